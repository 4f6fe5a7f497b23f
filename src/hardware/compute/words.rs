//! Parsing and formatting of compute models.

use super::{
    GemminiSettings, HostDurationSource, KernelDurationSource, LoopNestModel, RooflinePeakFraction,
};
use chakram_base::config::{did_you_mean, find_most_similar_name};
use chakram_base::units::{Bandwidth, Bytes};
use std::fmt;

/// Parses `recorded`, `scaled:F`, `curves` or `roofline`, all at the full peak rates.
///
/// # Errors
///
/// Fails if `text` is invalid; the error describes the expected form.
pub fn parse_kernel_duration_model(text: &str) -> Result<KernelDurationSource, String> {
    match text {
        "recorded" => Ok(KernelDurationSource::default()),
        "curves" => Ok(KernelDurationSource::Curves),
        "roofline" => Ok(KernelDurationSource::Roofline(
            RooflinePeakFraction::default(),
        )),
        _ if text.starts_with("loopnest:") => {
            parse_loop_nest(&text["loopnest:".len()..]).map(KernelDurationSource::LoopNest)
        }
        _ => {
            let expected = "expected recorded, scaled:F, curves, roofline or loopnest:ACCELERATOR";
            let near = find_most_similar_name(text, ["recorded", "curves", "roofline"]);
            let factor = parse_scale_factor(text, expected);
            let factor = factor.map_err(|why| why + &did_you_mean(near))?;
            Ok(KernelDurationSource::Scaled(
                factor,
                RooflinePeakFraction::default(),
            ))
        }
    }
}

/// Writes the model in the form that [`parse_kernel_duration_model`] reads, without the efficiency, which has its own
/// key.
impl fmt::Display for KernelDurationSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorded(_) | Self::RecordedOnly => f.write_str("recorded"),
            Self::Scaled(factor, _) => write!(f, "scaled:{factor}"),
            Self::Curves => f.write_str("curves"),
            Self::Roofline(_) => f.write_str("roofline"),
            Self::LoopNest(model) => write!(f, "loopnest:{model}"),
            Self::RecordedOn(_) | Self::RecordedOnDevices => f.write_str("recorded-on"),
        }
    }
}

/// Parses `recorded` or `scaled:F`.
///
/// # Errors
///
/// Fails if `text` is invalid; the error describes the expected form.
pub fn parse_host_duration_source(text: &str) -> Result<HostDurationSource, String> {
    match text {
        "recorded" => Ok(HostDurationSource::Recorded),
        _ => parse_scale_factor(text, "expected recorded or scaled:F")
            .map(HostDurationSource::Scaled),
    }
}

/// Parses a fraction such as `0.65`.
///
/// # Errors
///
/// Fails if `text` is invalid; the error describes the expected form.
pub fn parse_efficiency(text: &str) -> Result<RooflinePeakFraction, String> {
    let fraction = text.parse().ok().and_then(RooflinePeakFraction::new);
    fraction.ok_or_else(|| {
        "expected a fraction of the peak, above 0 and at most 1, for example 0.65".to_owned()
    })
}

/// Default number of mappings that a search tries.
const MAPPINGS: u32 = 1000;

/// Keys of an accelerator, each with a description of its values.
pub const ACCELERATOR: [(&str, &str); 7] = [
    ("array", "rows x columns such as 16x16"),
    ("scratchpad", "a size from 64 B on, such as 256 KiB"),
    ("accumulator", "a size from 64 B on, such as 64 KiB"),
    ("bandwidth", "a bandwidth such as 11.2 GB/s"),
    ("clock", "a frequency such as 700 MHz"),
    ("mappings", "a number of mappings from 1 to 1000000"),
    ("seed", "a whole number"),
];

/// Parses `gemmini-16`, or a version with changed values such as `gemmini-16,scratchpad=512 KiB,clock=1 GHz`. The
/// number after `gemmini-` is the number of rows and of columns of units.
///
/// # Errors
///
/// Fails if `text` is invalid; the error describes the expected form.
pub fn parse_loop_nest(text: &str) -> Result<LoopNestModel, String> {
    let mut parts = text.split(',').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let side = name
        .strip_prefix("gemmini-")
        .and_then(|side| side.parse().ok());
    let gemmini = side.and_then(GemminiSettings::square_array);
    let gemmini = gemmini.ok_or_else(|| {
        format!(
            "`{name}` is not an accelerator; expected gemmini-N, an array of N x N with N from 1 to 1024"
        )
    })?;
    let mut model = LoopNestModel {
        gemmini,
        mappings: MAPPINGS,
        seed: 0,
    };
    let mut given = Vec::new();
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let key = key.trim();
        if given.contains(&key) {
            return Err(format!("found {key} twice, expected it once"));
        }
        given.push(key);
        set_accelerator_value(&mut model, key, value.trim())?;
    }
    Ok(model)
}

/// Writes the model in the form that [`parse_loop_nest`] reads, with all values that differ from the array's defaults.
impl fmt::Display for LoopNestModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gemmini = &self.gemmini;
        let [rows, columns] = gemmini.array;
        write!(f, "gemmini-{rows}")?;
        let Some(usual) = GemminiSettings::square_array(rows) else {
            return Ok(());
        };
        if columns != rows {
            write!(f, ",array={rows}x{columns}")?;
        }
        if gemmini.scratchpad != usual.scratchpad {
            write!(f, ",scratchpad={}B", gemmini.scratchpad.0)?;
        }
        if gemmini.accumulator != usual.accumulator {
            write!(f, ",accumulator={}B", gemmini.accumulator.0)?;
        }
        if let Some(rate) = gemmini.bandwidth {
            write!(f, ",bandwidth={}GB/s", rate / 1e9)?;
        }
        if gemmini.clock != usual.clock {
            write!(f, ",clock={}MHz", gemmini.clock.as_hertz() / 1e6)?;
        }
        if self.mappings != MAPPINGS {
            write!(f, ",mappings={}", self.mappings)?;
        }
        if self.seed != 0 {
            write!(f, ",seed={}", self.seed)?;
        }
        Ok(())
    }
}

/// Sets the accelerator's value for a key such as `clock`.
///
/// # Errors
///
/// Fails if `key` is unknown or the value is invalid. The error lists the known keys, or describes the form of the
/// value.
pub fn set_accelerator_value(
    model: &mut LoopNestModel,
    key: &str,
    value: &str,
) -> Result<(), String> {
    let known = ACCELERATOR.iter().find(|(name, _)| *name == key);
    let Some((_, expected)) = known else {
        let names = ACCELERATOR.map(|(name, _)| name).join(", ");
        return Err(format!(
            "an accelerator has no key `{key}`; expected one of {names}"
        ));
    };
    let gemmini = &mut model.gemmini;
    let size = || value.parse().ok().filter(|size: &Bytes| size.0 >= 64);
    let done = match key {
        "array" => {
            let side = |text: &str| text.trim().parse().ok().filter(|n| (1..=1024).contains(n));
            let sides = value.split_once('x');
            let sides = sides.and_then(|(rows, columns)| Some([side(rows)?, side(columns)?]));
            sides.map(|sides| gemmini.array = sides)
        }
        "scratchpad" => size().map(|size| gemmini.scratchpad = size),
        "accumulator" => size().map(|size| gemmini.accumulator = size),
        "bandwidth" => {
            let rate = value.parse::<Bandwidth>().ok();
            rate.map(|rate| gemmini.bandwidth = Some(rate.bytes_per_second()))
        }
        "clock" => value.parse().ok().map(|clock| gemmini.clock = clock),
        "mappings" => {
            let count = value.parse().ok().filter(|n| (1..=1_000_000).contains(n));
            count.map(|count| model.mappings = count)
        }
        _ => value.parse().ok().map(|seed| model.seed = seed),
    };
    done.ok_or_else(|| format!("{key} is `{value}`; expected {expected}"))
}

/// Parses `scaled:F`; `expected` describes all accepted forms for the error.
///
/// # Errors
///
/// Fails with the error `expected` if `text` does not begin with `scaled:`, and with its own error if the factor is
/// invalid.
pub fn parse_scale_factor(text: &str, expected: &str) -> Result<f64, String> {
    let factor = text.strip_prefix("scaled:").ok_or(expected)?;
    match factor.parse::<f64>() {
        Ok(factor) if factor >= 0.0 && factor.is_finite() => Ok(factor),
        _ => Err(format!(
            "`{factor}` is not a factor; write for example scaled:0.5"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_accelerator_displays_as_its_text() {
        for text in [
            "gemmini-16",
            "gemmini-8,array=8x32,scratchpad=1048576B,clock=1000MHz",
            "gemmini-4,accumulator=4096B,bandwidth=3.5GB/s,mappings=50,seed=7",
        ] {
            assert_eq!(parse_loop_nest(text).unwrap().to_string(), text);
        }
        let words = "gemmini-8, array = 8x32, scratchpad = 1 MiB, clock = 1 GHz";
        let model = parse_loop_nest(words).unwrap();
        assert_eq!(
            model,
            parse_loop_nest("gemmini-8,array=8x32,scratchpad=1048576B,clock=1000MHz").unwrap()
        );
        // The bus transfers 128 bit per cycle at any clock; a stated bandwidth does not depend on the clock.
        for (text, bytes_per_cycle) in [
            ("gemmini-16", 16.0),
            ("gemmini-16,clock=1400MHz", 16.0),
            ("gemmini-16,clock=1400MHz,bandwidth=11.2GB/s", 8.0),
            ("gemmini-16,bandwidth=11.2GB/s", 16.0),
        ] {
            let gemmini = parse_loop_nest(text).unwrap().gemmini;
            assert_eq!(gemmini.memory_bytes_per_cycle(), bytes_per_cycle, "{text}");
        }
        for (text, said) in [
            ("gemini-16", "expected gemmini-N"),
            ("gemmini-0", "expected gemmini-N"),
            (
                "gemmini-16,cache=1",
                "an accelerator has no key `cache`; expected one of array, scratchpad",
            ),
            (
                "gemmini-16,clock=fast",
                "clock is `fast`; expected a frequency such as 700 MHz",
            ),
            (
                "gemmini-16,clock=1GHz,clock=2GHz",
                "found clock twice, expected it once",
            ),
            (
                "gemmini-16,array=16",
                "expected rows x columns such as 16x16",
            ),
            (
                "gemmini-16,mappings=0",
                "expected a number of mappings from 1",
            ),
            (
                "gemmini-16,scratchpad=1 B",
                "expected a size from 64 B on, such as 256 KiB",
            ),
        ] {
            let error = parse_loop_nest(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(matches!(
            parse_kernel_duration_model("loopnest:gemmini-16"),
            Ok(KernelDurationSource::LoopNest(_))
        ));
    }
}
