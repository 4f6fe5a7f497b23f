//! Work of a whole job as its producer states it: `steps 1, samples 16, tokens 32768, model_flops 123`.
//!
//! Stands in the metadata record of every trace, beside the roles of groups. Nothing that a replay computes depends
//! on it; reports derive rates from it.

use std::fmt::{self, Display};

/// Name of the attribute of the metadata record.
pub const ATTRIBUTE: &str = "work_amounts";

/// Samples that a job works on, and the FLOPs that its model counts for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkAmounts {
    /// Number of steps.
    pub steps: u64,
    /// Samples of all steps and replicas.
    pub samples: u64,
    /// Tokens of these samples; `None` where a sample is no sequence.
    pub tokens: Option<u64>,
    /// FLOPs of the model for these samples, forward and, if it is trained, backward, without recomputation.
    pub model_flops: u128,
}

impl Display for WorkAmounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "steps {}, samples {}", self.steps, self.samples)?;
        if let Some(tokens) = self.tokens {
            write!(f, ", tokens {tokens}")?;
        }
        write!(f, ", model_flops {}", self.model_flops)
    }
}

impl WorkAmounts {
    /// Reads the text of the attribute; `None` unless it states steps, samples and FLOPs. Other words are skipped.
    pub fn read(text: &str) -> Option<Self> {
        let said = |name: &str| {
            let mut parts = text
                .split(',')
                .filter_map(|part| part.trim().split_once(' '));
            let (_, number) = parts.find(|(word, _)| *word == name)?;
            number.parse::<u128>().ok()
        };
        let count = |name: &str| said(name).and_then(|number| u64::try_from(number).ok());
        Some(Self {
            steps: count("steps")?,
            samples: count("samples")?,
            tokens: count("tokens"),
            model_flops: said("model_flops")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::WorkAmounts;

    #[test]
    fn what_is_written_is_read_back() {
        for tokens in [None, Some(32_768)] {
            let amounts = WorkAmounts {
                steps: 2,
                samples: 16,
                tokens,
                model_flops: u128::MAX,
            };
            assert_eq!(WorkAmounts::read(&amounts.to_string()), Some(amounts));
        }
        for text in ["", "samples 16", "steps 1, samples -1, model_flops 3"] {
            assert_eq!(WorkAmounts::read(text), None, "{text}");
        }
    }
}
