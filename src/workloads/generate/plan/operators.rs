//! Operators that a tensor group shards with degrees of their own (`[[operator]]` in a plan file).

use crate::generate::sharding::OperatorAxisShardCounts;
use std::fmt;
use std::str::FromStr;

/// A name pattern that selects operators, and the number of parts into which a tensor group divides each axis of these
/// operators.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorPatternDegrees {
    /// Name pattern, such as `mlp.up` (in every layer) or `stage2.0/conv1` (in one layer). A `*`
    /// matches any characters.
    pub name: String,
    /// Number of parts along each axis; the product is the plan's tensor degree.
    pub degrees: OperatorAxisShardCounts,
}

impl OperatorPatternDegrees {
    /// Returns true if the pattern matches `operator` of `layer`; a pattern without a slash matches
    /// in every layer.
    pub fn matches_operator(&self, layer: &str, operator: &str) -> bool {
        pattern_matches_operator(&self.name, layer, operator)
    }
}

fn pattern_matches_operator(pattern: &str, layer: &str, operator: &str) -> bool {
    if pattern.contains('/') {
        matches_pattern(pattern, &format!("{layer}/{operator}"))
    } else {
        matches_pattern(pattern, operator)
    }
}

/// Operators, selected by a name pattern as in [`OperatorPatternDegrees::name`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorNamePattern(String);

impl OperatorNamePattern {
    /// Syntax of a pattern, for error messages.
    pub(super) const FORM: &'static str =
        "an operator such as mlp.up or layer0/mlp.up, where * matches any characters";

    /// Returns true if the pattern matches `operator` of `layer`; a pattern without a slash matches
    /// in every layer.
    pub fn matches_operator(&self, layer: &str, operator: &str) -> bool {
        pattern_matches_operator(&self.0, layer, operator)
    }
}

impl fmt::Display for OperatorNamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for OperatorNamePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = !text.is_empty() && !text.contains(char::is_whitespace);
        let pattern = is_name.then(|| Self(text.to_owned()));
        pattern.ok_or_else(|| format!("expected {}", Self::FORM))
    }
}

/// Returns true if `text` matches `pattern`; a `*` in `pattern` matches any characters.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or("");
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = pieces.next_back() else {
        return rest.is_empty();
    };
    // Match each literal as early as possible, so that the most text is left for later literals.
    for piece in pieces {
        let Some(at) = rest.find(piece) else {
            return false;
        };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, text, expected) in [
            ("mlp.up", "mlp.up", true),
            ("mlp.up", "mlp.up2", false),
            ("mlp.*", "mlp.", true),
            ("*", "", true),
            ("conv*", "shortcut.conv", false),
            ("*conv*", "shortcut.conv", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*b", "abb", true),
            ("a*b*b", "ab", false),
            ("stage*.0/conv1", "stage2.0/conv1", true),
            ("stage*.0/conv1", "stage2.1/conv1", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn pattern_with_slash_also_matches_the_layer() {
        let of = |name: &str| OperatorPatternDegrees {
            name: name.to_owned(),
            degrees: OperatorAxisShardCounts {
                b: 1,
                m: 1,
                n: 2,
                k: 1,
            },
        };
        assert!(of("conv1").matches_operator("stage1.0", "conv1"));
        assert!(!of("stage2.0/conv1").matches_operator("stage1.0", "conv1"));
        assert!(of("*/conv1").matches_operator("stage1.0", "conv1"));
    }
}
