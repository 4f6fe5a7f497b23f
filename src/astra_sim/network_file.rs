//! The network file of the analytical networks. The file lists dimensions, innermost first.

use super::document::{InputDocumentWithUniqueKnownKeys, ReadAndIgnoredKeys};
use super::error::{InputError, MisleadingValidInputNote, did_you_mean};
use super::input_entry::InputValue;
use chakram_base::ids::MAX_NPUS;
use chakram_hardware::topology::DimensionShape;

/// One dimension of ASTRA-sim's network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AstraDimension {
    /// How links connect the dimension's NPUs.
    pub shape: DimensionShape,
    /// Number of NPUs along the dimension, at least 2.
    pub npus: u32,
    /// Bandwidth available to a single message, in GB/s of 2^30 bytes, above 0.
    pub bandwidth: f64,
    /// Latency of each hop, in ns, at least 0.
    pub latency: f64,
}

/// Contents of a network file.
#[derive(Clone, Debug, PartialEq)]
pub struct AstraNetworkFile {
    /// Dimensions, innermost first; at least one.
    pub dimensions: Vec<AstraDimension>,
}

const SHAPES: [(DimensionShape, &str); 3] = [
    (DimensionShape::Ring, "Ring"),
    (DimensionShape::FullyConnected, "FullyConnected"),
    (DimensionShape::Switch, "Switch"),
];

pub(super) const KEYS: ReadAndIgnoredKeys = ReadAndIgnoredKeys {
    read: &["topology", "npus_count", "bandwidth", "latency"],
    ignored: &[],
};

impl AstraNetworkFile {
    /// Returns the total number of NPUs, at most [`MAX_NPUS`].
    pub fn npu_count(&self) -> u32 {
        self.dimensions
            .iter()
            .map(|dimension| dimension.npus)
            .product()
    }

    /// Parses a network file. `file` is the file's name in errors. With `lenient`, unknown keys become notes. Brackets
    /// are optional around a list with a single value.
    ///
    /// # Errors
    ///
    /// Fails if `text` is not a YAML mapping with the four lists, all of equal length, or if it describes an impossible
    /// network.
    pub fn parse(
        text: &str,
        file: &str,
        lenient: bool,
    ) -> Result<(Self, Vec<MisleadingValidInputNote>), InputError> {
        let document = InputDocumentWithUniqueKnownKeys::parse_yaml(text, file, &KEYS, lenient)?;
        let shapes = read_per_dimension(&document, "topology", None, parse_dimension_shape_name)?;
        let length = Some(shapes.len());
        let npus = read_per_dimension(&document, "npus_count", length, |value| {
            let whole = parse_number(value).filter(|n| n.fract() == 0.0 && *n >= 2.0);
            let fits = whole.filter(|&n| n <= f64::from(MAX_NPUS));
            let expected = || format!("whole numbers from 2 to {MAX_NPUS}");
            fits.map(|n| n as u32).ok_or_else(expected)
        })?;
        let bandwidths = read_per_dimension(&document, "bandwidth", length, |value| {
            let fits = parse_number(value).filter(|&n| n.is_finite() && n > 0.0);
            fits.ok_or_else(|| "numbers above 0, in GB/s".to_owned())
        })?;
        let latencies = read_per_dimension(&document, "latency", length, |value| {
            let fits = parse_number(value).filter(|&n| n.is_finite() && n >= 0.0);
            fits.ok_or_else(|| "numbers of at least 0, in ns".to_owned())
        })?;
        let all = npus.iter().try_fold(1_u32, |all, &npus| {
            all.checked_mul(npus).filter(|&all| all <= MAX_NPUS)
        });
        if all.is_none() {
            let expected = format_args!("at most {MAX_NPUS} NPUs in all");
            return Err(document.invalid_value("npus_count", "a larger product", expected, ""));
        }
        let rows = shapes.into_iter().zip(npus).zip(bandwidths).zip(latencies);
        let dimension = |(((shape, npus), bandwidth), latency)| AstraDimension {
            shape,
            npus,
            bandwidth,
            latency,
        };
        let dimensions = rows.map(dimension).collect();
        Ok((Self { dimensions }, document.into_notes()))
    }
}

/// Returns the values of `key`, one per dimension, each parsed by `read`.
fn read_per_dimension<T>(
    document: &InputDocumentWithUniqueKnownKeys<'_>,
    key: &str,
    length: Option<usize>,
    read: impl Fn(&InputValue) -> Result<T, String>,
) -> Result<Vec<T>, InputError> {
    const HINT: &str = "topology, npus_count, bandwidth and latency, one value each per dimension";
    let list = match document.get(key) {
        Some(InputValue::List(list)) => list,
        Some(single) => std::slice::from_ref(single),
        None => return Err(document.invalid_value(key, "nothing", "a list", HINT)),
    };
    if list.is_empty() {
        return Err(document.invalid_value(key, "an empty list", "a value per dimension", HINT));
    }
    if let Some(length) = length.filter(|&length| length != list.len()) {
        let found = format_args!("{} values", list.len());
        let expected = format_args!("{length}, as many as `topology` has");
        return Err(document.invalid_value(key, found, expected, HINT));
    }
    let item = |value| {
        read(value)
            .map_err(|e| document.invalid_value(key, InputValue::describe_value(value), e, ""))
    };
    list.iter().map(item).collect()
}

fn parse_dimension_shape_name(value: &InputValue) -> Result<DimensionShape, String> {
    let text = value.as_text().unwrap_or_default();
    let found = SHAPES.iter().find(|(_, name)| *name == text);
    let names = SHAPES.map(|(_, name)| name);
    let expected = || format!("{}{}", names.join(", "), did_you_mean(text, names));
    found.map(|(shape, _)| *shape).ok_or_else(expected)
}

/// Parses a number, with or without quotes, because ASTRA-sim accepts both.
fn parse_number(value: &InputValue) -> Option<f64> {
    let quoted = || value.as_text()?.trim().parse().ok();
    value.as_number().or_else(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect_parse_error(text: &str) -> String {
        AstraNetworkFile::parse(text, "n", true)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn dimensions_are_read_innermost_first() {
        let text = "# three\ntopology: [ Ring, FullyConnected, Switch ]\nnpus_count: [ 2, 8, 4 ]\n\
            bandwidth: [ 200.0, 100, \"33.3\" ]  # GB/s\nlatency:\n  - 123.45\n  - 0\n  - 5e2\n";
        let (network, notes) = AstraNetworkFile::parse(text, "n", false).unwrap();
        assert_eq!(notes, []);
        let dimension = |shape, npus, bandwidth, latency| AstraDimension {
            shape,
            npus,
            bandwidth,
            latency,
        };
        assert_eq!(
            network.dimensions,
            [
                dimension(DimensionShape::Ring, 2, 200.0, 123.45),
                dimension(DimensionShape::FullyConnected, 8, 100.0, 0.0),
                dimension(DimensionShape::Switch, 4, 33.3, 500.0),
            ]
        );
        // The network has 2 x 8 x 4 NPUs.
        assert_eq!(network.npu_count(), 64);
        let single = "topology: Switch\nnpus_count: 2\nbandwidth: 1\nlatency: 0";
        let (network, _) = AstraNetworkFile::parse(single, "n", false).unwrap();
        assert_eq!(
            network.dimensions,
            [dimension(DimensionShape::Switch, 2, 1.0, 0.0)]
        );
    }

    #[test]
    fn invalid_networks_are_refused_with_their_line() {
        let with = |topology: &str, npus: &str, bandwidth: &str, latency: &str| {
            let rest = format!("bandwidth: {bandwidth}\nlatency: {latency}");
            expect_parse_error(&format!("topology: {topology}\nnpus_count: {npus}\n{rest}"))
        };
        for (text, start) in [
            (
                with("[ring]", "[8]", "[1]", "[1]"),
                "n:1: key `topology`: found \"ring\"",
            ),
            (
                with("[]", "[]", "[]", "[]"),
                "n:1: key `topology`: found an empty list",
            ),
            (with("{a: b}", "[8]", "[1]", "[1]"), "n:1: key `topology`"),
            (
                with("[Ring]", "[8, 2]", "[1]", "[1]"),
                "n:2: key `npus_count`: found 2 values",
            ),
            (
                with("[Ring]", "[1]", "[1]", "[1]"),
                "n:2: key `npus_count`: found the number 1.0",
            ),
            (
                with("[Ring]", "[2.5]", "[1]", "[1]"),
                "n:2: key `npus_count`",
            ),
            (
                with("[Ring]", "[-2]", "[1]", "[1]"),
                "n:2: key `npus_count`",
            ),
            (with("[Ring]", "[8]", "[0]", "[1]"), "n:3: key `bandwidth`"),
            (
                with("[Ring]", "[8]", "[\".inf\"]", "[1]"),
                "n:3: key `bandwidth`",
            ),
            (with("[Ring]", "[8]", "[1]", "[-1]"), "n:4: key `latency`"),
            (
                with("[Ring]", "[8]", "[1]", "~"),
                "n:4: key `latency`: found nothing",
            ),
            (
                expect_parse_error("topology: Ring"),
                "n:1: key `npus_count`: found nothing",
            ),
            // 2048 x 2048 x 2 = 2^23 NPUs exceed the maximum, 2^22.
            (
                with(
                    "[Ring, Ring, Ring]",
                    "[2048, 2048, 2]",
                    "[1, 1, 1]",
                    "[1, 1, 1]",
                ),
                "n:2: key `npus_count`: found a larger product",
            ),
        ] {
            assert!(text.starts_with(start), "{text}");
        }
        let text = with("[Swicth]", "[8]", "[1]", "[1]");
        assert!(text.contains("did you mean `Switch`?"), "{text}");
        let unknown = "topology: Ring\nlatency_ns: 1";
        let text = AstraNetworkFile::parse(unknown, "n", false)
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("n:2: key `latency_ns`: found an unknown key"),
            "{text}"
        );
    }
}
