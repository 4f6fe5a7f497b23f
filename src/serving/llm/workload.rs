//! Describes requests to language models: when they arrive, and how long their prompts and answers
//! are.

use super::super::random::{RandomStream, log_normal_value_at_deviations};
use super::limits::LlmTimeLimits;
use chakram_base::units::Span;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The requests of a run, with their arrivals.
#[derive(Clone, Debug, PartialEq)]
pub struct LlmWorkload {
    /// Arrivals of requests over time.
    pub arrivals: LlmArrivals,
    /// Maximum number of requests, excluding later turns of conversations. `None` for no maximum: a
    /// file then yields all of its requests.
    pub count: Option<u64>,
    /// Time after which no more requests arrive.
    pub duration: Option<Span>,
    /// Classes of requests, at least one.
    pub classes: Vec<RequestClass>,
}

/// Arrivals of requests over time.
#[derive(Clone, Debug, PartialEq)]
pub enum LlmArrivals {
    /// Requests arrive independently of one another, at this mean rate in requests per second.
    Poisson(f64),
    /// Requests arrive at equal intervals, at this rate in requests per second.
    Constant(f64),
    /// Several requests arrive together as a burst; bursts arrive at equal intervals.
    Bursts {
        /// Number of requests that arrive together.
        burst: u32,
        /// Time from one burst to the next.
        every: Span,
    },
    /// Users send a request, wait for the answer, and then send the next request.
    Users {
        /// Number of users.
        users: u32,
        /// Time from an answer to the user's next request.
        think: Span,
    },
    /// All requests arrive at time 0.
    AtOnce,
    /// Requests are read from a file.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Factor by which the file's arrivals are sped up.
        speed: f64,
    },
}

/// A class of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestClass {
    /// Name that reports show.
    pub name: String,
    /// Relative frequency of this class among all requests.
    pub weight: f64,
    /// Number of prompt tokens after the shared prefix.
    pub input: LengthDistribution,
    /// Number of answer tokens.
    pub output: LengthDistribution,
    /// Priority; lower numbers are more urgent.
    pub priority: i32,
    /// Number of tokens in the prefix that prompts of the class share.
    pub shared_prefix: u32,
    /// Number of distinct prefixes. Each request begins with one of these prefixes.
    pub prefixes: u32,
    /// Number of requests in a conversation. Each request begins with all earlier prompts and answers of its
    /// conversation.
    pub turns: u32,
    /// Time from an answer to the next turn.
    pub think: Span,
    /// Limits of the class, which override the scenario's limits.
    pub limits: LlmTimeLimits,
}

impl RequestClass {
    /// Creates a class of single-turn requests that share no tokens.
    pub fn new(
        name: impl Into<String>,
        input: LengthDistribution,
        output: LengthDistribution,
    ) -> Self {
        Self {
            name: name.into(),
            weight: 1.0,
            input,
            output,
            priority: 0,
            shared_prefix: 0,
            prefixes: 1,
            turns: 1,
            think: Span::ZERO,
            limits: LlmTimeLimits::default(),
        }
    }
}

/// Distribution of a number of tokens. A scenario writes the distribution as `1024`, `512..1024`,
/// `lognormal MEAN DEVIATION` (deviation of the logarithm), or `empirical 128 512 4096` (measured
/// lengths).
#[derive(Clone, Debug, PartialEq)]
pub enum LengthDistribution {
    /// All lengths equal this number.
    Fixed(u32),
    /// Every length in this range, including both ends, is equally probable.
    Uniform(u32, u32),
    /// The logarithm of the length is normally distributed.
    LogNormal {
        /// Mean of the lengths.
        mean: f64,
        /// Standard deviation of the logarithm.
        deviation: f64,
    },
    /// Each of these lengths is equally probable; there is at least one length.
    Empirical(Arc<[u32]>),
}

/// Maximum length of a prompt or answer.
pub(super) const MOST_LENGTH: u32 = 1 << 24;

impl LengthDistribution {
    /// Draws a length, at least 1.
    pub fn draw_length(&self, random: &mut LengthRandomStream) -> u32 {
        match *self {
            Self::Fixed(length) => length,
            Self::Uniform(least, most) => {
                let span = f64::from(most - least + 1);
                least + ((random.next_unit() * span) as u32).min(most - least)
            }
            Self::LogNormal { mean, deviation } => {
                let length = random.next_log_normal(mean, deviation).round();
                (length as u32).clamp(1, MOST_LENGTH)
            }
            Self::Empirical(ref lengths) => {
                let place = (random.next_unit() * lengths.len() as f64) as usize;
                lengths[place.min(lengths.len() - 1)]
            }
        }
    }

    /// Returns the mean.
    pub fn mean_length(&self) -> f64 {
        match *self {
            Self::Fixed(length) => f64::from(length),
            Self::Uniform(least, most) => (f64::from(least) + f64::from(most)) / 2.0,
            Self::LogNormal { mean, .. } => mean,
            Self::Empirical(ref lengths) => {
                let sum: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
                sum as f64 / lengths.len() as f64
            }
        }
    }

    /// Returns the largest possible length; `None` if there is none.
    pub fn max_length(&self) -> Option<u32> {
        match self {
            Self::LogNormal { .. } => None,
            _ => Some(self.typical_max_length()),
        }
    }

    /// Returns a length that few requests exceed, which is used to size memory.
    pub fn typical_max_length(&self) -> u32 {
        match *self {
            Self::Fixed(length) | Self::Uniform(_, length) => length,
            Self::LogNormal { mean, deviation } => {
                // 99th percentile of the distribution.
                (log_normal_value_at_deviations(mean, deviation, 2.326) as u32)
                    .clamp(1, MOST_LENGTH)
            }
            Self::Empirical(ref lengths) => lengths.iter().copied().max().unwrap_or(1),
        }
    }
}

/// Random numbers that determine a request's lengths.
pub type LengthRandomStream = RandomStream;

impl FromStr for LengthDistribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "expected a number of tokens from 1 to {MOST_LENGTH} such as 1024, a range such as 512..1024, lognormal MEAN \
                 DEVIATION such as \"lognormal 1024 0.6\", or measured lengths such as \"empirical 128 512 4096\""
            )
        };
        let length = |text: &str| {
            let length = text.trim().parse::<u32>().ok();
            length.filter(|length| (1..=MOST_LENGTH).contains(length))
        };
        let text = text.trim();
        if let Some((least, most)) = text.split_once("..") {
            let both = length(least).zip(length(most));
            let ordered = both.filter(|(least, most)| least <= most);
            return ordered
                .map(|(least, most)| Self::Uniform(least, most))
                .ok_or_else(expected);
        }
        if let Some(numbers) = text.strip_prefix("empirical ") {
            let lengths: Option<Vec<u32>> = numbers.split_ascii_whitespace().map(length).collect();
            let lengths = lengths.filter(|lengths| !lengths.is_empty());
            return lengths
                .map(|lengths| Self::Empirical(lengths.into()))
                .ok_or_else(expected);
        }
        if let Some(numbers) = text.strip_prefix("lognormal") {
            let numbers: Option<Vec<f64>> = numbers
                .split_ascii_whitespace()
                .map(|number| number.parse().ok())
                .collect();
            return match numbers.as_deref() {
                Some(&[mean, deviation])
                    if (1.0..=f64::from(MOST_LENGTH)).contains(&mean)
                        && (0.0..=5.0).contains(&deviation) =>
                {
                    Ok(Self::LogNormal { mean, deviation })
                }
                _ => Err(expected()),
            };
        }
        length(text).map(Self::Fixed).ok_or_else(expected)
    }
}

impl fmt::Display for LengthDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(f, "{length}"),
            Self::Uniform(least, most) => write!(f, "{least}..{most}"),
            Self::LogNormal { mean, deviation } => write!(f, "lognormal {mean} {deviation}"),
            Self::Empirical(lengths) => {
                write!(f, "empirical")?;
                lengths.iter().try_for_each(|length| write!(f, " {length}"))
            }
        }
    }
}

impl RequestClass {
    /// Returns the most tokens that a prompt and its answer can have together; `None` if there is no such number.
    pub fn max_request_tokens(&self) -> Option<u64> {
        let of_turn = u64::from(self.input.max_length()?) + u64::from(self.output.max_length()?);
        Some(u64::from(self.shared_prefix) + u64::from(self.turns) * of_turn)
    }
}

impl LlmWorkload {
    /// Returns true if a client may send another request when one is complete.
    pub fn has_follow_up_requests(&self) -> bool {
        matches!(self.arrivals, LlmArrivals::Users { .. })
            || self.classes.iter().any(|class| class.turns > 1)
    }

    /// Returns the long-run mean number of requests per second. `None` if answers or a file determine the arrivals.
    pub fn mean_rate(&self) -> Option<f64> {
        match self.arrivals {
            LlmArrivals::Poisson(rate) | LlmArrivals::Constant(rate) => Some(rate),
            LlmArrivals::Bursts { burst, every } => Some(f64::from(burst) / every.as_seconds()),
            _ => None,
        }
    }

    /// Returns the workload at the rate `rate`; `None` if it has no rate.
    pub fn with_rate(&self, rate: f64) -> Option<Self> {
        let arrivals = match self.arrivals {
            LlmArrivals::Poisson(_) => LlmArrivals::Poisson(rate),
            LlmArrivals::Constant(_) => LlmArrivals::Constant(rate),
            _ => return None,
        };
        Some(Self {
            arrivals,
            ..self.clone()
        })
    }

    /// Describes the arrivals.
    pub fn describe_arrivals(&self) -> String {
        let mut text = match &self.arrivals {
            LlmArrivals::Poisson(rate) => format!("Poisson arrivals, {rate} requests/s"),
            LlmArrivals::Constant(rate) => {
                format!("arrivals at equal intervals, {rate} requests/s")
            }
            LlmArrivals::Bursts { burst, every } => {
                format!("{burst} requests at once every {every}")
            }
            LlmArrivals::Users { users, think } if *think == Span::ZERO => {
                format!("{users} users who ask again when they have their answer")
            }
            LlmArrivals::Users { users, think } => {
                format!("{users} users who ask again {think} after they have their answer")
            }
            LlmArrivals::AtOnce => "all requests at 0".to_owned(),
            LlmArrivals::File { path, speed } if *speed == 1.0 => {
                format!("arrivals of {}", path.display())
            }
            LlmArrivals::File { path, speed } => {
                format!(
                    "arrivals of {} at {speed} times their speed",
                    path.display()
                )
            }
        };
        if let Some(count) = self.count {
            // A file may have fewer requests.
            let most = match self.arrivals {
                LlmArrivals::File { .. } => "at most ",
                _ => "",
            };
            text += &format!(", {most}{count} of them");
        }
        if let Some(duration) = self.duration {
            text += &format!(", for {duration}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::RandomPurpose;

    #[test]
    fn lengths_have_the_means_that_are_asked_for() {
        for (text, within) in [
            ("1024", 1e-9),
            ("500..1500", 0.01),
            ("lognormal 800 0.7", 0.02),
            ("empirical 100 200 900", 0.02),
        ] {
            let lengths: LengthDistribution = text.parse().unwrap();
            assert_eq!(lengths.to_string(), text);
            let mut random = RandomStream::new(5, RandomPurpose::Lengths);
            let sum: f64 = (0..60_000)
                .map(|_| f64::from(lengths.draw_length(&mut random)))
                .sum();
            let mean = sum / 60_000.0;
            assert!(
                (mean / lengths.mean_length() - 1.0).abs() < within,
                "{text}: {mean}"
            );
        }
        for text in [
            "0",
            "",
            "5..4",
            "-1",
            "1..",
            "lognormal",
            "lognormal 5",
            "empirical",
            "empirical 0 1",
            "lognormal 5 -1",
            "1e3",
            "x",
        ] {
            assert!(text.parse::<LengthDistribution>().is_err(), "{text}");
        }
    }
}
