//! The work of a whole job, as stated by the tool that wrote its traces, such as `steps 1, samples 16, tokens 32768,
//! model_flops 123, attention causal`.
//!
//! The metadata record of every trace states the work, next to the roles of groups. Replays ignore the work, but
//! reports derive rates from it.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};

/// Name of the metadata attribute that states the work.
pub const ATTRIBUTE: &str = "work_amounts";

/// Which pairs of tokens the FLOPs of attention count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CountedAttentionPairs {
    /// The FLOPs count each token paired with itself and with all earlier tokens, as under a causal mask.
    Causal,
    /// The FLOPs count each token paired with every token.
    Full,
}

impl CountedAttentionPairs {
    /// Returns the word that traces and reports use for this variant.
    pub fn stable_name(self) -> &'static str {
        match self {
            Self::Causal => "causal",
            Self::Full => "full",
        }
    }
}

/// The samples that a job processes, and the model's FLOPs for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSamplesAndModelFlops {
    /// Number of training steps or passes.
    pub steps: u64,
    /// Number of samples, over all steps and replicas.
    pub samples: u64,
    /// Number of tokens in these samples, or `None` if samples are not sequences.
    pub tokens: Option<u64>,
    /// The model's FLOPs for these samples. They cover the forward pass and, in training, the backward pass, but no
    /// recomputation.
    pub model_flops: u128,
    /// Which pairs of tokens `model_flops` counts; `None` if the model has no attention or the trace does not state the
    /// pairs.
    pub attention: Option<CountedAttentionPairs>,
    /// True if the model routes tokens to experts.
    pub experts: bool,
}

impl Display for JobSamplesAndModelFlops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "steps {}, samples {}", self.steps, self.samples)?;
        if let Some(tokens) = self.tokens {
            write!(f, ", tokens {tokens}")?;
        }
        write!(f, ", model_flops {}", self.model_flops)?;
        if let Some(counted) = self.attention {
            write!(f, ", attention {}", counted.stable_name())?;
        }
        match self.experts {
            true => f.write_str(", experts chosen"),
            false => Ok(()),
        }
    }
}

impl JobSamplesAndModelFlops {
    /// Parses the attribute's text; returns `None` unless it states steps, samples and FLOPs. Unknown words are
    /// skipped.
    pub fn parse_attribute(text: &str) -> Option<Self> {
        let said = |name: &str| {
            let mut parts = text
                .split(',')
                .filter_map(|part| part.trim().split_once(' '));
            parts.find(|(word, _)| *word == name).map(|(_, said)| said)
        };
        let count = |name: &str| said(name)?.parse::<u64>().ok();
        let counted = [CountedAttentionPairs::Causal, CountedAttentionPairs::Full];
        Some(Self {
            steps: count("steps")?,
            samples: count("samples")?,
            tokens: count("tokens"),
            model_flops: said("model_flops")?.parse().ok()?,
            attention: said("attention")
                .and_then(|word| counted.into_iter().find(|one| one.stable_name() == word)),
            experts: said("experts") == Some("chosen"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{CountedAttentionPairs, JobSamplesAndModelFlops};

    #[test]
    fn written_work_amounts_are_read_back() {
        let causal = Some(CountedAttentionPairs::Causal);
        for (tokens, attention) in [
            (None, None),
            (Some(32_768), causal),
            (Some(1), Some(CountedAttentionPairs::Full)),
        ] {
            let amounts = JobSamplesAndModelFlops {
                steps: 2,
                samples: 16,
                tokens,
                model_flops: u128::MAX,
                attention,
                experts: attention == causal,
            };
            assert_eq!(
                JobSamplesAndModelFlops::parse_attribute(&amounts.to_string()),
                Some(amounts)
            );
        }
        for text in ["", "samples 16", "steps 1, samples -1, model_flops 3"] {
            assert_eq!(
                JobSamplesAndModelFlops::parse_attribute(text),
                None,
                "{text}"
            );
        }
    }
}
