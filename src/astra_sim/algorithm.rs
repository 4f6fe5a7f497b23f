//! The collective algorithms that a system file can name.

use std::fmt;

/// Algorithm that a collective uses in one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AstraAlgorithm {
    /// `ring`: every member sends to its neighbour on the ring.
    Ring,
    /// `direct` and `direct<W>`: every member sends to every other member.
    Direct {
        /// Maximum number of messages that a member has in flight, at least 1; `None` means no limit.
        window: Option<u32>,
    },
    /// `halvingDoubling`: members exchange data with partners at distances of 1, 2, 4, …
    HalvingDoubling,
    /// `doubleBinaryTree`: messages go up and down one of two mirrored trees. ASTRA-sim uses this
    /// algorithm only for all-reduce.
    DoubleBinaryTree,
}

/// One entry of a system file's list of collective algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmAndAllNpusAtOnceFlag {
    /// Algorithm that the entry selects.
    pub algorithm: AstraAlgorithm,
    /// True for `oneRing`, `oneDirect<W>` and `oneHalvingDoubling`, which run once over all NPUs instead of once per
    /// dimension.
    pub one: bool,
}

/// Algorithm names that error messages suggest. `<W>` is a placeholder for a whole number.
pub(super) const NAMES: [&str; 9] = [
    "ring",
    "direct",
    "direct<W>",
    "halvingDoubling",
    "doubleBinaryTree",
    "oneRing",
    "oneDirect",
    "oneDirect<W>",
    "oneHalvingDoubling",
];

impl AlgorithmAndAllNpusAtOnceFlag {
    /// Parses an algorithm's name as system files spell it; the case matters.
    pub fn parse(name: &str) -> Option<Self> {
        let (inner, one) = match name.strip_prefix("one") {
            Some(inner) => (inner, true),
            None => (name, false),
        };
        let window = |text: &str| match text {
            "" => Some(AstraAlgorithm::Direct { window: None }),
            _ => {
                let digits = text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit());
                let window = text.parse().ok().filter(|&window| digits && window > 0);
                window.map(|window| AstraAlgorithm::Direct {
                    window: Some(window),
                })
            }
        };
        let algorithm = match (inner, one) {
            ("ring", false) | ("Ring", true) => AstraAlgorithm::Ring,
            ("halvingDoubling", false) | ("HalvingDoubling", true) => {
                AstraAlgorithm::HalvingDoubling
            }
            ("doubleBinaryTree", false) => AstraAlgorithm::DoubleBinaryTree,
            _ => window(inner.strip_prefix(if one { "Direct" } else { "direct" })?)?,
        };
        Some(Self { algorithm, one })
    }
}

impl fmt::Display for AlgorithmAndAllNpusAtOnceFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plain, one) = match self.algorithm {
            AstraAlgorithm::Ring => ("ring", "oneRing"),
            AstraAlgorithm::Direct { .. } => ("direct", "oneDirect"),
            AstraAlgorithm::HalvingDoubling => ("halvingDoubling", "oneHalvingDoubling"),
            AstraAlgorithm::DoubleBinaryTree => ("doubleBinaryTree", "oneDoubleBinaryTree"),
        };
        f.write_str(if self.one { one } else { plain })?;
        match self.algorithm {
            AstraAlgorithm::Direct {
                window: Some(window),
            } => write!(f, "{window}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithm_names_survive_parse_and_format() {
        for name in [
            "ring",
            "direct",
            "direct1",
            "direct99999",
            "halvingDoubling",
            "doubleBinaryTree",
            "oneRing",
            "oneDirect",
            "oneDirect4",
            "oneHalvingDoubling",
        ] {
            let parsed = AlgorithmAndAllNpusAtOnceFlag::parse(name).unwrap();
            assert_eq!(parsed.to_string(), name);
            assert_eq!(parsed.one, name.starts_with("one"));
        }
    }

    #[test]
    fn invalid_algorithm_names_parse_to_none() {
        for name in [
            "",
            "Ring",
            "onering",
            "oneDoubleBinaryTree",
            "direct0",
            "direct-1",
            "direct+1",
            "direct100000",
            "directé",
            "one",
        ] {
            assert_eq!(AlgorithmAndAllNpusAtOnceFlag::parse(name), None, "{name}");
        }
    }
}
