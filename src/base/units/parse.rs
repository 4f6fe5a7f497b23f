//! Parses quantities such as `"450 GB/s"` in machine files and on the command line.

use super::{Bandwidth, Bytes, FlopRate, Frequency, Span};
use std::str::FromStr;

/// Error about a string that is not the expected quantity; the message states the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}: {why}; write for example `{example}`")]
pub struct QuantityError {
    text: String,
    what: &'static str,
    why: String,
    example: &'static str,
}

/// One kind of quantity: its name, an example, and the factor of each unit.
struct QuantityKind {
    what: &'static str,
    example: &'static str,
    units: &'static [(&'static str, f64)],
}

const TIME: QuantityKind = QuantityKind {
    what: "a duration",
    example: "500 ns",
    units: &[
        ("ps", 1e-12),
        ("ns", 1e-9),
        ("us", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
    ],
};

const SIZE: QuantityKind = QuantityKind {
    what: "a size",
    example: "64 MiB",
    units: &[
        ("B", 1.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
    ],
};

const BANDWIDTH: QuantityKind = QuantityKind {
    what: "a bandwidth",
    example: "450 GB/s",
    units: &[
        ("B/s", 1.0),
        ("kB/s", 1e3),
        ("MB/s", 1e6),
        ("GB/s", 1e9),
        ("TB/s", 1e12),
        ("KiB/s", 1024.0),
        ("MiB/s", 1_048_576.0),
        ("GiB/s", 1_073_741_824.0),
        ("TiB/s", 1_099_511_627_776.0),
        ("Mbit/s", 1e6 / 8.0),
        ("Gbit/s", 1e9 / 8.0),
        ("Tbit/s", 1e12 / 8.0),
    ],
};

const RATE: QuantityKind = QuantityKind {
    what: "a rate of operations",
    example: "989 TFLOP/s",
    units: &[
        ("MFLOP/s", 1e6),
        ("GFLOP/s", 1e9),
        ("TFLOP/s", 1e12),
        ("PFLOP/s", 1e15),
        ("GOP/s", 1e9),
        ("TOP/s", 1e12),
        ("POP/s", 1e15),
    ],
};

const FREQUENCY: QuantityKind = QuantityKind {
    what: "a frequency",
    example: "1.41 GHz",
    units: &[
        ("Hz", 1.0),
        ("kHz", 1e3),
        ("MHz", 1e6),
        ("GHz", 1e9),
        ("THz", 1e12),
    ],
};

/// Returns the length of the number, such as `-1_000.5e+3`, at the start of `text`.
fn leading_number_length(text: &str) -> usize {
    let is_exponent = |c: char| matches!(c, 'e' | 'E');
    let mut before = None;
    for (i, c) in text.char_indices() {
        let belongs = match c {
            '0'..='9' | '.' | '_' => true,
            '-' if i == 0 => true,
            '-' | '+' => before.is_some_and(is_exponent),
            // `5e3` has an exponent, but `5 EB` and `5e` do not.
            'e' | 'E' => {
                text[i + 1..].starts_with(|n: char| n.is_ascii_digit() || "+-".contains(n))
            }
            _ => false,
        };
        if !belongs {
            return i;
        }
        before = Some(c);
    }
    text.len()
}

/// Splits `text` into a number and a unit, and returns the value in base units.
fn parse_quantity(text: &str, kind: &QuantityKind) -> Result<f64, QuantityError> {
    let fail = |why: String| QuantityError {
        text: text.chars().take(40).collect(),
        what: kind.what,
        why,
        example: kind.example,
    };
    let trimmed = text.trim();
    let end = leading_number_length(trimmed);
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim();
    let allowed = || {
        let names: Vec<_> = kind.units.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    };
    let value: f64 = number
        .replace('_', "")
        .parse()
        .map_err(|_| fail("the text does not begin with a number".to_owned()))?;
    if !value.is_finite() || value < 0.0 {
        return Err(fail(
            "the number must be finite and not negative".to_owned(),
        ));
    }
    // A number may lack its unit only if the number is zero.
    if unit.is_empty() && value != 0.0 {
        return Err(fail(format!("the unit is missing (one of {})", allowed())));
    }
    let factor = match kind.units.iter().find(|(name, _)| *name == unit) {
        Some(&(_, factor)) => factor,
        None if unit.is_empty() => 0.0,
        None => {
            return Err(fail(format!(
                "the unit `{unit}` is not one of {}",
                allowed()
            )));
        }
    };
    Ok(value * factor)
}

/// Returns `value`, or, if it is `None`, an error that says that the quantity must be more than zero.
fn require_positive_value<T>(
    text: &str,
    kind: &QuantityKind,
    value: Option<T>,
) -> Result<T, QuantityError> {
    value.ok_or_else(|| QuantityError {
        text: text.chars().take(40).collect(),
        what: kind.what,
        why: "the value must be more than zero".to_owned(),
        example: kind.example,
    })
}

impl FromStr for Span {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let span = Self::from_seconds_saturating(parse_quantity(text, &TIME)?);
        // from_seconds_saturating() saturates, so MAX represents every longer duration.
        require_positive_value(text, &TIME, (span < Self::MAX).then_some(span)).map_err(|e| {
            QuantityError {
                why: "the time is longer than 213 days".to_owned(),
                ..e
            }
        })
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let bytes = parse_quantity(text, &SIZE)?;
        // 9e18 is just below i64::MAX, the maximum number of bytes in traces.
        if bytes.fract() != 0.0 || bytes >= 9.0e18 {
            return Err(QuantityError {
                text: text.chars().take(40).collect(),
                what: SIZE.what,
                why: "the size must be a whole number of bytes below 9 EB".to_owned(),
                example: SIZE.example,
            });
        }
        Ok(Self(bytes as u64))
    }
}

impl FromStr for Bandwidth {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        require_positive_value(
            text,
            &BANDWIDTH,
            Self::new(parse_quantity(text, &BANDWIDTH)?),
        )
    }
}

impl FromStr for FlopRate {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        require_positive_value(text, &RATE, Self::new(parse_quantity(text, &RATE)?))
    }
}

impl FromStr for Frequency {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        require_positive_value(
            text,
            &FREQUENCY,
            Self::new(parse_quantity(text, &FREQUENCY)?),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_units_differ() {
        // 50 GB/s = 50e9; 50 GiB/s = 50 * 1,073,741,824 = 53.687 GB/s; 400 Gbit/s = 50 GB/s.
        let rate = |t: &str| t.parse::<Bandwidth>().unwrap().bytes_per_second();
        assert_eq!(rate("50 GB/s"), 50e9);
        assert_eq!(rate("50GiB/s"), 53_687_091_200.0);
        assert_eq!(rate("400 Gbit/s"), 50e9);
        assert_eq!("64 MiB".parse::<Bytes>().unwrap(), Bytes(67_108_864));
        assert_eq!("1e3 kB".parse::<Bytes>().unwrap(), Bytes(1_000_000));
        assert_eq!("1.5 us".parse::<Span>().unwrap(), Span(1_500_000));
        assert_eq!("0".parse::<Span>().unwrap(), Span::ZERO);
        assert_eq!(
            "312 TFLOP/s".parse::<FlopRate>().unwrap().per_second(),
            312e12
        );
        // 97 cycles of 1.41 GHz: 97 / 1.41e9 s = 68,794.326 ps.
        let clock = "1.41 GHz".parse::<Frequency>().unwrap();
        assert_eq!(clock.time_for_cycles(97), Span(68_794));
    }

    #[test]
    fn quantity_errors_list_allowed_units() {
        let text = "50 gb/s".parse::<Bandwidth>().unwrap_err().to_string();
        assert!(text.contains("GB/s") && text.contains("`gb/s`"), "{text}");
        assert!("50".parse::<Bandwidth>().is_err());
        assert!("0 GB/s".parse::<Bandwidth>().is_err());
        assert!("-1 ns".parse::<Span>().is_err());
        assert!("1e9 s".parse::<Span>().is_err());
        assert!("1.5 B".parse::<Bytes>().is_err());
        assert!("fast".parse::<FlopRate>().is_err());
        assert!("é".parse::<Span>().is_err());
        assert!("1eé".parse::<Span>().is_err());
    }
}
