//! Parses and formats edits as text: `batch=2x`, `layers=+4`, `delay=50ms,rank=1,at=backward`.

use super::TrainingStepPhase;
use chakram_base::config::{did_you_mean, find_most_similar_name};
use chakram_base::units::{Bytes, Span};
use std::fmt;
use std::str::FromStr;

/// A positive fraction of two integers in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleFactor {
    /// Numerator.
    pub over: u64,
    /// Denominator.
    pub under: u64,
}

impl ScaleFactor {
    /// The factor 1, which changes nothing.
    pub const ONE: Self = Self { over: 1, under: 1 };
    /// Maximum numerator and denominator, chosen so that the product of two numerators fits in 64 bits.
    const MAX: u64 = 1 << 20;

    /// Creates the factor `over / under` in lowest terms. Returns `None` if `over` or `under` is 0 or too large.
    pub fn new(over: u64, under: u64) -> Option<Self> {
        let (mut a, mut b) = (over, under);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        let reduced = (over > 0 && under > 0).then(|| Self {
            over: over / a,
            under: under / a,
        })?;
        (reduced.over <= Self::MAX && reduced.under <= Self::MAX).then_some(reduced)
    }

    /// Returns the product of two factors; `None` if its numerator or denominator is too large.
    pub fn multiply_factors_if_representable(self, other: Self) -> Option<Self> {
        Self::new(self.over * other.over, self.under * other.under)
    }

    /// Returns the factor as an `f64`.
    pub fn to_f64(self) -> f64 {
        self.over as f64 / self.under as f64
    }

    /// Returns `value` times the factor, rounded to the nearest integer.
    pub fn scale_value(self, value: u64) -> u64 {
        let scaled = u128::from(value) * u128::from(self.over) + u128::from(self.under) / 2;
        u64::try_from(scaled / u128::from(self.under)).unwrap_or(u64::MAX)
    }

    /// Returns the factor as an integer; `None` if it is a fraction.
    pub fn to_whole_number(self) -> Option<u64> {
        (self.under == 1).then_some(self.over)
    }
}

impl fmt::Display for ScaleFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.under {
            1 => write!(f, "{}x", self.over),
            under => write!(f, "{}/{under}x", self.over),
        }
    }
}

impl FromStr for ScaleFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || format!("`{text}` is not a factor; expected 2x, 1.5x, 1/2x, or both sizes: 8:16");
        let parts = |from: &str, to: &str| Self::new(to.parse().ok()?, from.parse().ok()?);
        let found = match (text.split_once(':'), text.strip_suffix('x')) {
            (Some((from, to)), _) => parts(from, to),
            (None, Some(factor)) => match (factor.split_once('/'), factor.split_once('.')) {
                (Some((over, under)), _) => parts(under, over),
                (None, Some((whole, part))) if part.len() <= 4 => {
                    let under = 10_u64.pow(part.len() as u32);
                    format!("{whole}{part}")
                        .parse()
                        .ok()
                        .and_then(|over| Self::new(over, under))
                }
                _ => parts("1", factor),
            },
            (None, None) => None,
        };
        found.ok_or_else(expected)
    }
}

/// The new hidden size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenSizeChange {
    /// Multiplies the current hidden size by this factor.
    Times(ScaleFactor),
    /// Sets exactly this hidden size.
    To(u64),
}

/// The new number of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddedLayersOrScaleFactor {
    /// Adds this number of layers; a negative number removes layers.
    By(i64),
    /// Multiplies the current number of layers by this factor.
    Times(ScaleFactor),
}

/// Order in which a pipeline stage runs its passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelinePassOrder {
    /// GPipe: all forward passes run before the first backward pass.
    GPipe,
    /// 1F1B: a stage first runs one forward pass for itself and one for each later stage. Then it alternates between
    /// one backward pass and one forward pass.
    OneForwardOneBackward,
}

/// An edit of a captured or generated job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEdit {
    /// Multiplies the number of samples in each rank's micro-batches.
    Batch(ScaleFactor),
    /// Multiplies the number of tokens per sequence.
    Sequence(ScaleFactor),
    /// Changes the hidden size. The other widths of the layers change in proportion.
    Hidden(HiddenSizeChange),
    /// Changes the number of repeated layers.
    Layers(AddedLayersOrScaleFactor),
    /// Sets the number of forward and backward passes per optimizer step. The capture must have one forward and one
    /// backward pass per step.
    Accumulate(u32),
    /// Multiplies the number of micro-batches of a pipeline. The total number of samples does not change.
    MicroBatches(u32),
    /// Sets the number of data-parallel replicas.
    Data(u32),
    /// Sets the number of pipeline stages. Each stage keeps its number of layers.
    Pipeline(u32),
    /// Sets the number of ranks. Ranks without a trace get copies of captured ranks.
    Ranks(u32),
    /// Sets the bucket size, in bytes, at which gradients are reduced.
    Bucket(u64),
    /// Sets whether a sharded job frees parameters after the forward pass and gathers them again for the backward pass.
    Reshard(bool),
    /// Sets whether gradients are reduced during the backward pass.
    Overlap(bool),
    /// Sets the order in which pipeline stages run their passes.
    Schedule(PipelinePassOrder),
    /// Adds host time before a phase.
    Delay {
        /// Host time to add in each step.
        span: Span,
        /// The only rank that is delayed; `None` for all ranks.
        rank: Option<u32>,
        /// Phase before which the time is added.
        at: TrainingStepPhase,
    },
}

/// For each edit: its name, how its value is written in help texts, and its meaning.
pub const EDITS: &[(&str, &str, &str)] = &[
    (
        "batch",
        "2x or 8:16",
        "samples of each micro-batch of a rank",
    ),
    ("sequence", "2x or 512:1024", "tokens of a sequence"),
    (
        "hidden",
        "1.5x, 1024:1536 or 1536",
        "hidden size, and other widths of layers in proportion",
    ),
    ("layers", "+4, -2, 2x or 8:12", "repeated layers"),
    (
        "accumulate",
        "2",
        "forward and backward passes before each optimizer step",
    ),
    (
        "microbatches",
        "2x or 4:8",
        "micro-batches of a pipeline, with the same total of samples",
    ),
    ("data", "8", "replicas"),
    (
        "pipeline",
        "8",
        "stages of a pipeline, each with the same number of layers",
    ),
    (
        "ranks",
        "64",
        "all ranks of the job; absent ranks copy captured ranks of their role",
    ),
    (
        "bucket",
        "25MiB",
        "size at which a bucket of gradients is reduced",
    ),
    (
        "reshard",
        "off",
        "free gathered parameters after the forward pass",
    ),
    (
        "overlap",
        "off",
        "reduce gradients during the backward pass",
    ),
    (
        "schedule",
        "1f1b or gpipe",
        "order of the passes of a pipeline",
    ),
    (
        "delay",
        "50ms,rank=1,at=backward",
        "host time before a phase",
    ),
];

/// Names of unsupported edits, each with the reason.
const UNKNOWN_CHANGES: &[(&str, &str)] = &[
    (
        "tensor",
        "other tensor-parallel degrees cut kernels into shapes that the capture does not show",
    ),
    (
        "context",
        "other context-parallel degrees cut attention into kernels that the capture does not show",
    ),
    (
        "fusion",
        "the capture does not show the kernels that fusion would make",
    ),
    (
        "graphs",
        "the capture does not show what launches of graphs cost",
    ),
    (
        "threads",
        "the capture does not show how kernels share other threads",
    ),
    (
        "dtype",
        "the capture does not show the kernels of other formats",
    ),
];

impl FromStr for JobEdit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split([',', ' ']).filter(|word| !word.is_empty());
        let first = words.next().unwrap_or_default();
        let Some((name, value)) = first.split_once('=') else {
            return Err(format!(
                "`{text}` is not an edit; expected NAME=VALUE such as batch=2x"
            ));
        };
        if let Some((_, why)) = UNKNOWN_CHANGES.iter().find(|(known, _)| *known == name) {
            return Err(format!("`{name}` cannot be edited: {why}"));
        }
        let Some((_, form, _)) = EDITS.iter().find(|(known, _, _)| *known == name) else {
            let names: Vec<_> = EDITS.iter().map(|(known, _, _)| *known).collect();
            let near = did_you_mean(find_most_similar_name(name, names.iter().copied()));
            let all = names.join(", ");
            return Err(match near.is_empty() {
                true => format!("no edit is called `{name}`; expected one of {all}"),
                false => format!("no edit is called `{name}`{near}"),
            });
        };
        let expected = || format!("`{value}` is not a value of {name}; expected {name}={form}");
        let number = || {
            let found = value.parse::<u32>().ok();
            found.filter(|&n| n > 0).ok_or_else(expected)
        };
        let (mut rank, mut at) = (None, TrainingStepPhase::Forward);
        for word in words {
            match word.split_once('=') {
                Some(("rank", text)) if name == "delay" => {
                    let found = text
                        .parse()
                        .map_err(|_| format!("`{text}` is not a rank"))?;
                    rank = Some(found);
                }
                Some(("at", text)) if name == "delay" => {
                    at = TrainingStepPhase::from_name(text).ok_or_else(|| {
                        format!(
                            "`{text}` is not a phase; expected one of forward, backward, optimizer"
                        )
                    })?;
                }
                _ => {
                    return Err(format!(
                        "`{word}` is not a part of {name}; expected {name}={form}"
                    ));
                }
            }
        }
        Ok(match name {
            "batch" => Self::Batch(value.parse()?),
            "sequence" => Self::Sequence(value.parse()?),
            "hidden" => Self::Hidden(match value.parse::<u64>() {
                Ok(size) if size > 0 => HiddenSizeChange::To(size),
                _ => HiddenSizeChange::Times(value.parse()?),
            }),
            "layers" => Self::Layers(match value.as_bytes().first() {
                Some(b'+' | b'-') => {
                    AddedLayersOrScaleFactor::By(value.parse().map_err(|_| expected())?)
                }
                _ => AddedLayersOrScaleFactor::Times(value.parse().map_err(|_| expected())?),
            }),
            "accumulate" => Self::Accumulate(number()?),
            "microbatches" => {
                let factor: ScaleFactor = value.parse()?;
                let whole = factor
                    .to_whole_number()
                    .and_then(|whole| u32::try_from(whole).ok());
                Self::MicroBatches(whole.ok_or_else(|| {
                    format!("{value} does not give a whole multiple of the micro-batches")
                })?)
            }
            "reshard" | "overlap" => match (name, value) {
                ("reshard", "off") => Self::Reshard(false),
                ("overlap", "off") => Self::Overlap(false),
                ("reshard", "on") => {
                    return Err("reshard=on cannot be made: the capture shows no gathers for the backward pass".to_owned());
                }
                (_, "on") => {
                    return Err("overlap=on cannot be made: the capture does not show when each gradient is ready".to_owned());
                }
                _ => return Err(expected()),
            },
            "schedule" => match value {
                "1f1b" => Self::Schedule(PipelinePassOrder::OneForwardOneBackward),
                "gpipe" => Self::Schedule(PipelinePassOrder::GPipe),
                _ => return Err(expected()),
            },
            "data" => Self::Data(number()?),
            "pipeline" => Self::Pipeline(number()?),
            "ranks" => Self::Ranks(number()?),
            "bucket" => {
                let bytes: Bytes = value.parse().map_err(|e| format!("bucket={value}: {e}"))?;
                Self::Bucket(bytes.0)
            }
            _ => Self::Delay {
                span: value.parse().map_err(|e| format!("delay={value}: {e}"))?,
                rank,
                at,
            },
        })
    }
}

impl fmt::Display for JobEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch(factor) => write!(f, "batch={factor}"),
            Self::Sequence(factor) => write!(f, "sequence={factor}"),
            Self::Hidden(HiddenSizeChange::Times(factor)) => write!(f, "hidden={factor}"),
            Self::Hidden(HiddenSizeChange::To(size)) => write!(f, "hidden={size}"),
            Self::Layers(AddedLayersOrScaleFactor::By(by)) => write!(f, "layers={by:+}"),
            Self::Layers(AddedLayersOrScaleFactor::Times(factor)) => write!(f, "layers={factor}"),
            Self::Accumulate(times) => write!(f, "accumulate={times}"),
            Self::MicroBatches(times) => write!(f, "microbatches={times}x"),
            Self::Data(replicas) => write!(f, "data={replicas}"),
            Self::Pipeline(stages) => write!(f, "pipeline={stages}"),
            Self::Ranks(ranks) => write!(f, "ranks={ranks}"),
            Self::Reshard(_) => f.write_str("reshard=off"),
            Self::Overlap(_) => f.write_str("overlap=off"),
            Self::Schedule(PipelinePassOrder::GPipe) => f.write_str("schedule=gpipe"),
            Self::Schedule(PipelinePassOrder::OneForwardOneBackward) => {
                f.write_str("schedule=1f1b")
            }
            Self::Bucket(bytes) => write!(f, "bucket={bytes}B"),
            Self::Delay { span, rank, at } => {
                write!(f, "delay={}ns", span.0 / 1000)?;
                if let Some(rank) = rank {
                    write!(f, ",rank={rank}")?;
                }
                write!(f, ",at={}", at.name_of_phase())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_read_as_they_are_written() {
        for text in [
            "batch=2x",
            "batch=3/2x",
            "sequence=1/2x",
            "hidden=3/2x",
            "hidden=1536",
            "layers=+4",
            "layers=-1",
            "layers=2x",
            "accumulate=2",
            "microbatches=2x",
            "data=8",
            "pipeline=8",
            "ranks=64",
            "reshard=off",
            "overlap=off",
            "schedule=1f1b",
            "bucket=26214400B",
            "delay=50000000ns,rank=1,at=backward",
            "delay=3ns,at=forward",
        ] {
            let edit: JobEdit = text.parse().unwrap();
            assert_eq!(edit.to_string(), text);
        }
        let factor = |text: &str| text.parse::<ScaleFactor>().ok();
        assert_eq!(factor("1.5x"), ScaleFactor::new(3, 2));
        assert_eq!(factor("8:12"), ScaleFactor::new(3, 2));
        assert_eq!(factor("/2"), None);
        assert_eq!(factor("-1x"), None);
        assert_eq!(factor("0:4"), None);
        // 7 x 3/2 = 10.5, which is rounded up to 11.
        assert_eq!(ScaleFactor { over: 3, under: 2 }.scale_value(7), 11);
    }
}
