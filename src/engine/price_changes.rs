//! Changes durations to answer what-if questions: durations of kernels and collectives, slow ranks, and jitter.
//!
//! The engine applies changes before the loop, when it computes durations. Changes to kernels come first, in the given
//! order and each applied to the previous result; then the factor of a slow rank, and finally jitter.

use crate::ReplayRefusal;
use crate::options::CommunicationDurationSource;
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::random::split_mix;
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_trace::format::{CollectiveKind, escape_and_shorten_name};
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::workload::Workload;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

mod pattern;

use pattern::{
    KernelPattern, KernelPatternField, KernelPatternMatcher, check_kernel_class_name, matches_glob,
    split_pattern_into_property_and_glob,
};

/// Maximum number of names that an error lists.
const NAMED: usize = 5;

/// How to change one duration: by a factor, or to a new duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DurationAdjustment {
    /// Multiplies the duration.
    Factor(f64),
    /// Replaces the duration.
    Time(Span),
}

impl DurationAdjustment {
    /// Applies the change to `span`.
    pub fn scale_or_replace_span(self, span: Span) -> Span {
        match self {
            Self::Factor(factor) => span.scale_by(factor),
            Self::Time(time) => time,
        }
    }
}

impl FromStr for DurationAdjustment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('x').unwrap_or(text).parse::<f64>();
        match number {
            Ok(factor) if factor.is_finite() && factor >= 0.0 => Ok(Self::Factor(factor)),
            Ok(_) => Err(format!("the factor {text} is not 0 or more")),
            Err(_) => text.parse().map(Self::Time).map_err(|_| {
                format!("`{text}` is neither a factor, such as 0.5, nor a time, such as 12us")
            }),
        }
    }
}

/// A change to the durations of all kernels that match a pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelDurationChange {
    pattern: KernelPattern,
    time: DurationAdjustment,
    text: String,
}

impl FromStr for KernelDurationChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, time) = split_assignment(text)?;
        let (field, glob) = split_pattern_into_property_and_glob(pattern);
        if field == KernelPatternField::Class && !glob.contains(['*', '?']) {
            check_kernel_class_name(glob)?;
        }
        Ok(Self {
            text: text.to_owned(),
            ..Self::of_pattern(pattern, time.parse()?)
        })
    }
}

impl KernelDurationChange {
    /// Creates a change that applies `time` to every kernel that matches `pattern`.
    pub fn of_pattern(pattern: &str, time: DurationAdjustment) -> Self {
        let (field, glob) = split_pattern_into_property_and_glob(pattern);
        Self {
            pattern: KernelPattern {
                field,
                glob: glob.to_owned(),
            },
            time,
            text: pattern.to_owned(),
        }
    }
}

/// A change to the durations of collectives that are selected by kind or name.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveDurationChange {
    glob: String,
    time: DurationAdjustment,
    text: String,
}

impl FromStr for CollectiveDurationChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (glob, time) = split_assignment(text)?;
        Ok(Self {
            glob: glob.to_owned(),
            time: time.parse()?,
            text: text.to_owned(),
        })
    }
}

impl CollectiveDurationChange {
    /// Creates a change that applies `time` to every collective whose kind or name matches `glob`.
    pub fn of_kind_or_name(glob: &str, time: DurationAdjustment) -> Self {
        Self {
            glob: glob.to_owned(),
            time,
            text: glob.to_owned(),
        }
    }

    /// Returns true if the change applies to a collective of `kind` whose name is `name`.
    fn applies_to_collective(&self, kind: CollectiveKind, name: &str) -> bool {
        matches_glob(&self.glob.replace('_', "-"), &kind.to_string())
            || matches_glob(&self.glob, name)
    }
}

/// Splits `PATTERN=TIME` at the last `=`, because shapes also contain `=`.
fn split_assignment(text: &str) -> Result<(&str, &str), String> {
    text.rsplit_once('=')
        .filter(|(pattern, _)| !pattern.is_empty())
        .ok_or_else(|| {
            "expected PATTERN=FACTOR or PATTERN=TIME, for example 'class:attention=0.5'".to_owned()
        })
}

/// Random variation of kernel durations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelJitter {
    /// Maximum relative change of a duration, below 1. Changes are uniformly distributed between minus and plus this
    /// value.
    pub spread: f64,
    /// Seed of the random draws.
    pub seed: u64,
}

impl FromStr for KernelJitter {
    type Err = String;

    /// Parses `5%` or `0.05`, optionally followed by `,seed=7`.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!("`{text}` is not a spread; expected less than 100%, such as 5% or 5%,seed=7")
        };
        let (spread, seed) = match text.split_once(',') {
            None => (text, 0),
            Some((spread, seed)) => {
                let seed = seed
                    .trim()
                    .strip_prefix("seed=")
                    .and_then(|seed| seed.parse().ok());
                (spread, seed.ok_or_else(expected)?)
            }
        };
        let number = |text: &str| text.trim().parse::<f64>().map_err(|_| expected());
        let spread = match spread.strip_suffix('%') {
            Some(percent) => number(percent)? / 100.0,
            None => number(spread)?,
        };
        match (0.0..1.0).contains(&spread) {
            true => Ok(Self { spread, seed }),
            false => Err(expected()),
        }
    }
}

impl KernelJitter {
    /// Returns the factor for a node: 1 + spread x (2 u - 1), where u in [0, 1) is drawn for this seed, rank and node.
    fn factor_of_kernel(self, rank: Rank, node: NodeIndex) -> f64 {
        let mut seed = self.seed;
        let mut place = split_mix(&mut seed) ^ (u64::from(rank.0) << 32 | node.index() as u64);
        let draw = split_mix(&mut place);
        let unit = (draw >> 11) as f64 / (1_u64 << 53) as f64;
        1.0 + self.spread * (2.0 * unit - 1.0)
    }
}

/// All requested changes of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestedDurationChanges {
    /// Changes to kernels, applied in order.
    pub kernels: Vec<KernelDurationChange>,
    /// Changes to collectives. If several changes match a collective, the last change applies.
    pub collectives: Vec<CollectiveDurationChange>,
    /// Slow ranks, each with a factor for its kernel durations.
    pub slow: Vec<(Rank, f64)>,
    /// Random variation of kernel durations, or `None`.
    pub jitter: Option<KernelJitter>,
}

/// Effect of one requested change, summed over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DurationChangeEffect {
    /// The requested change, as the option's key and text.
    pub change: String,
    /// True if the change applies to collectives. A collective counts once, not once per member.
    pub of_collectives: bool,
    /// Number of matching nodes, summed over all ranks.
    pub matched: u64,
    /// Number of nodes whose duration the change altered.
    pub changed: u64,
    /// Total duration of the matching nodes before the change, or `None` if it is unknown before the replay.
    pub before: Option<Span>,
    /// Total duration of the matching nodes after the change, or `None` if it is unknown before the replay.
    pub after: Option<Span>,
}

impl RequestedDurationChanges {
    /// Returns true if no changes are requested.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns `rank` if the changes may give this rank durations of its own, otherwise `None`.
    pub(crate) fn rank_if_it_may_have_own_durations(&self, rank: Rank) -> Option<Rank> {
        let is_slow = self.slow.iter().any(|(slow, _)| *slow == rank);
        (is_slow || self.jitter.is_some()).then_some(rank)
    }

    /// Returns a count of zero for each change.
    pub(crate) fn create_zero_counts(&self) -> Vec<DurationChangeEffect> {
        let count = |change: String, of_collectives| DurationChangeEffect {
            change,
            of_collectives,
            matched: 0,
            changed: 0,
            before: Some(Span::ZERO),
            after: Some(Span::ZERO),
        };
        let kernels = self
            .kernels
            .iter()
            .map(|one| count(format!("kernel {}", one.text), false));
        let slow = self
            .slow
            .iter()
            .map(|(rank, factor)| count(format!("slow {rank}={factor}"), false));
        let jitter = self.jitter.iter().map(|jitter| {
            let (percent, seed) = (100.0 * jitter.spread, jitter.seed);
            count(format!("jitter {percent}%, seed {seed}"), false)
        });
        let collectives = self.collectives.iter();
        let collectives = collectives.map(|one| count(format!("collective {}", one.text), true));
        kernels
            .chain(slow)
            .chain(jitter)
            .chain(collectives)
            .collect()
    }

    /// Changes `prices`, the durations of `graph`'s nodes on `rank`. Returns what each change did, in the order of
    /// [`Self::create_zero_counts`]. Includes collectives only if they take their recorded or captured time.
    pub(crate) fn change_graph_durations(
        &self,
        graph: &Graph,
        rank: Rank,
        comm: CommunicationDurationSource,
        prices: &mut [Span],
    ) -> Vec<DurationChangeEffect> {
        let mut counts = self.create_zero_counts();
        if self.is_empty() {
            return counts;
        }
        let from = counts.len() - self.collectives.len();
        for call in graph
            .collective_calls()
            .iter()
            .filter(|_| comm != CommunicationDurationSource::Model)
        {
            let price = &mut prices[call.node.index()];
            let recorded = *price;
            for (number, time) in self.matching_collective_changes(call.kind, graph.name(call.node))
            {
                // Changes to collectives do not accumulate, so each starts from the recorded duration.
                *price = recorded;
                counts[from + number]
                    .apply_and_count_change(price, time.scale_or_replace_span(recorded));
            }
        }
        let slow = self
            .slow
            .iter()
            .map(|(slow, factor)| (*slow == rank).then_some(*factor));
        let slow: Vec<Option<f64>> = slow.collect();
        let mut meant: Vec<KernelPatternMatcher<'_>> = self
            .kernels
            .iter()
            .map(|change| KernelPatternMatcher::new(&change.pattern, graph))
            .collect();
        for node in graph
            .nodes()
            .filter(|&node| graph.kind(node) == NodeKind::Compute)
        {
            let price = &mut prices[node.index()];
            let mut counts = counts.iter_mut();
            for (change, meant) in self.kernels.iter().zip(&mut meant) {
                let count = counts.next().expect("there is one for each");
                if meant.matches_node(node) {
                    count.apply_and_count_change(price, change.time.scale_or_replace_span(*price));
                }
            }
            for (factor, count) in slow.iter().zip(&mut counts) {
                if let Some(factor) = factor {
                    count.apply_and_count_change(price, price.scale_by(*factor));
                }
            }
            if let Some((jitter, count)) = self.jitter.zip(counts.next()) {
                count.apply_and_count_change(
                    price,
                    price.scale_by(jitter.factor_of_kernel(rank, node)),
                );
            }
        }
        counts
    }

    /// Fails if a change matches no node.
    pub(crate) fn check_changes_match_nodes(
        &self,
        counts: &[DurationChangeEffect],
        workload: &Workload,
    ) -> Result<(), ReplayRefusal> {
        let Some(idle) = counts.iter().find(|count| count.matched == 0) else {
            return Ok(());
        };
        self.check_slow_ranks_have_traces(workload)?;
        let is_meant = |kind: NodeKind| match idle.of_collectives {
            true => kind == NodeKind::Collective,
            false => kind == NodeKind::Compute,
        };
        let of_kind = || {
            let graphs = workload.distinct_graphs().iter();
            let nodes = graphs.flat_map(|graph| graph.nodes().map(move |node| (graph, node)));
            nodes.filter(|(graph, node)| is_meant(graph.kind(*node)))
        };
        let what = if idle.of_collectives {
            "collectives"
        } else {
            "kernels"
        };
        let classes: BTreeSet<&str> = of_kind()
            .filter_map(|(graph, node)| Some(graph.kernel(node)?.class_name()))
            .collect();
        let mut names: Vec<&str> = Vec::new();
        for (graph, node) in of_kind() {
            let name = graph.name(node);
            if !names.contains(&name) {
                names.push(name);
            }
            if names.len() == NAMED {
                break;
            }
        }
        let listed = |words: &mut dyn Iterator<Item = &str>| {
            words
                .map(escape_and_shorten_name)
                .map(|word| word.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let mut hint = match &names[..] {
            [] => format!("the job has no {what}"),
            names => format!("{what} are called {}", listed(&mut names.iter().copied())),
        };
        match classes.is_empty() {
            false => hint += &format!("; their classes are {}", listed(&mut classes.into_iter())),
            true if idle.of_collectives || names.is_empty() => {}
            true => hint += "; none states its class or shape",
        }
        let change = match idle.change.split_once(' ') {
            Some(("kernel", text)) => (SettingKey::Kernel, text),
            Some(("slow", text)) => (SettingKey::Slow, text),
            Some(("collective", text)) => (SettingKey::Collective, text),
            _ => (SettingKey::Jitter, &*idle.change),
        };
        Err(ReplayRefusal::new(
            format!(
                "{} matches none of the {what} of the job",
                change
                    .0
                    .format_with_value(escape_and_shorten_name(change.1))
            ),
            hint,
        ))
    }

    /// Fails if a slow rank has no trace.
    fn check_slow_ranks_have_traces(&self, workload: &Workload) -> Result<(), ReplayRefusal> {
        let ranks = || workload.instances().iter().map(|instance| instance.rank);
        let absent = self
            .slow
            .iter()
            .find(|(slow, _)| !ranks().any(|rank| rank == *slow));
        let (Some((slow, factor)), Some(first), Some(last)) =
            (absent, ranks().min(), ranks().max())
        else {
            return Ok(());
        };
        Err(ReplayRefusal::new(
            format!(
                "{}: rank {slow} has no trace",
                SettingKey::Slow.format_with_value(format_args!("{slow}={factor}"))
            ),
            format!("one of the ranks {first} to {last}"),
        ))
    }

    /// Returns the changes, with their indices, that match a collective of `kind` whose name is `name`. Of these, the
    /// last change applies.
    pub(crate) fn matching_collective_changes(
        &self,
        kind: CollectiveKind,
        name: &str,
    ) -> impl Iterator<Item = (usize, DurationAdjustment)> {
        let all = self.collectives.iter().enumerate();
        all.filter(move |(_, change)| change.applies_to_collective(kind, name))
            .map(|(number, change)| (number, change.time))
    }
}

impl DurationChangeEffect {
    /// Counts a change of a node's duration from `price` to `new`, and applies the change.
    fn apply_and_count_change(&mut self, price: &mut Span, new: Span) {
        self.matched += 1;
        self.changed += u64::from(new != *price);
        self.before = self.before.map(|sum| sum + *price);
        self.after = self.after.map(|sum| sum + new);
        *price = new;
    }

    /// Counts a matching collective whose duration is unknown before the replay.
    pub(crate) fn count_match_of_unknown_duration(&mut self) {
        self.matched += 1;
        self.changed += 1;
        (self.before, self.after) = (None, None);
    }

    /// Adds what the same change did on another rank.
    pub(crate) fn merge_count(&mut self, other: &Self) {
        self.matched += other.matched;
        self.changed += other.changed;
        let both = |a: Option<Span>, b: Option<Span>| a.zip(b).map(|(a, b)| a + b);
        self.before = both(self.before, other.before);
        self.after = both(self.after, other.after);
    }
}

impl fmt::Display for DurationChangeEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_are_of_the_whole_text() {
        for (glob, text) in [
            ("*", ""),
            ("a*c", "abbc"),
            ("a?c", "abc"),
            ("*mm*", "aten::mm"),
            ("a*b*c", "aXbYbZc"),
        ] {
            assert!(matches_glob(glob, text), "{glob} {text}");
        }
        for (glob, text) in [("a", "ab"), ("a*c", "abcd"), ("?", ""), ("*b", "ba")] {
            assert!(!matches_glob(glob, text), "{glob} {text}");
        }
    }

    #[test]
    fn duration_changes_parse_or_say_what_is_expected() {
        let change: KernelDurationChange = "shape:gemm*m=1024*=0.5x".parse().unwrap();
        assert_eq!(change.time, DurationAdjustment::Factor(0.5));
        assert_eq!(
            (change.pattern.field, &*change.pattern.glob),
            (KernelPatternField::Shape, "gemm*m=1024*")
        );
        let time: KernelDurationChange = "*flash*=12us".parse().unwrap();
        assert_eq!(time.time, DurationAdjustment::Time(Span(12_000_000)));
        let said = |text: &str| text.parse::<KernelDurationChange>().unwrap_err();
        assert!(said("flash").starts_with("expected PATTERN=FACTOR"));
        assert!(
            said("class:atention=0.5").contains("did you mean `attention`?"),
            "{}",
            said("class:atention=0.5")
        );
        assert!(said("a=-1").contains("not 0 or more"));
        assert!(said("a=fast").contains("neither a factor"));
        assert!("100%".parse::<KernelJitter>().is_err());
        assert_eq!(
            "5%,seed=7".parse(),
            Ok(KernelJitter {
                spread: 0.05,
                seed: 7
            })
        );
    }

    #[test]
    fn jitter_stays_within_its_spread_and_spreads_evenly() {
        let jitter = KernelJitter {
            spread: 0.1,
            seed: 3,
        };
        let draws: Vec<f64> = (0..10_000)
            .map(|i| jitter.factor_of_kernel(Rank(i % 7), NodeIndex(i)))
            .collect();
        assert!(draws.iter().all(|draw| (0.9..1.1).contains(draw)));
        // The distribution is uniform on 0.9 to 1.1, with mean 1 and standard deviation 0.2 /
        // sqrt(12) = 0.0577.
        let mean = draws.iter().sum::<f64>() / 1e4;
        let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / 1e4;
        assert!(
            (mean - 1.0).abs() < 0.002 && (variance.sqrt() - 0.0577).abs() < 0.001,
            "{mean} {variance}"
        );
    }
}
