//! Options that control how a job is replayed.

use super::extensions::ReplacementKernelAndMemoryModels;
use super::price_changes::RequestedDurationChanges;
use chakram_base::ids::Npu;
use chakram_base::setting::EnumeratedSetting;
use chakram_hardware::collective::NamedScriptedAlgorithm;
use chakram_hardware::compute::{HostDurationSource, KernelDurationSource};
use chakram_hardware::machine::FailedPartAndTime;
use chakram_hardware::network::NetworkModelKind;
use chakram_trace::workload::MissingRankPolicy;
use serde::{Deserialize, Serialize};
use std::fmt;

mod rules;

pub use rules::UnusableOptionReason;

/// Options that control how a job is replayed.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// Source of kernel durations.
    pub compute: KernelDurationSource,
    /// Source of the durations of host work: host nodes, and delays before nodes.
    pub host: HostDurationSource,
    /// How the machine's host launches the nodes of graphs without host work.
    pub launch: HostLaunchMode,
    /// Source of the durations of collectives and messages.
    pub comm: CommunicationDurationSource,
    /// How to replay ranks that have no trace.
    pub missing_ranks: MissingRankPolicy,
    /// NPU of each rank. By default, rank r is on NPU r.
    pub map: Option<Vec<Npu>>,
    /// Network model, or `None` for the machine's model. Has an effect only with
    /// [`CommunicationDurationSource::Model`].
    pub network: Option<NetworkModelKind>,
    /// Source of the times of uncontended collectives. By default, they come from curves if kernels use curves.
    pub collectives: Option<CollectiveCurvesOrAlgorithms>,
    /// Factor by which launch times, times of measured collectives, and kernel times from curves are multiplied. By
    /// default, the factor is the machine's [correction](chakram_hardware::machine::Machine::corrections) for the
    /// workload's most frequent matrix product, if the machine has one.
    pub correction: Option<f64>,
    /// Simulate every collective message by message, even if a closed form is proven exact. Has an effect only with
    /// [`CommunicationDurationSource::Model`].
    pub stepwise: bool,
    /// Changes to the durations of kernels and collectives, slow ranks, and jitter.
    pub changes: RequestedDurationChanges,
    /// Failures of machine parts, in addition to the failures in the machine's file.
    pub failures: Vec<FailedPartAndTime>,
    /// Use tile groups: when several ranks do the same work at the same time, simulate only one on behalf of all. The
    /// results are the same. Has an effect only with [`CommunicationDurationSource::Model`].
    pub aggregate: bool,
    /// Caller-supplied models, which replace the machine's models.
    pub extensions: ReplacementKernelAndMemoryModels,
    /// Replay communication whose size and duration are unknown as if it took no time. The makespan is then a lower
    /// bound. Otherwise such communication is an error.
    pub lower_bound: bool,
    /// Count the bytes that each link carries. Every collective is then simulated message by message.
    pub links: bool,
    /// Custom collective algorithms. Each replaces the machine's algorithm for its kind of collective, if the group has
    /// one member per script. Has an effect only with [`CommunicationDurationSource::Model`] and native collectives.
    pub custom: Vec<NamedScriptedAlgorithm>,
    /// Allow sends and receives that match no other half. An unmatched send completes when its message has arrived; an
    /// unmatched receive never completes. Has an effect only if events are handled in insertion order
    /// ([`EventOrderDiscipline::MATCHES_AS_ISSUED`](super::EventOrderDiscipline::MATCHES_AS_ISSUED)).
    pub allow_unmatched: bool,
    /// Answer a collective analytically only if it is also proven in which order its members end at an instant. Has an
    /// effect only if events are handled in insertion order.
    pub ordered_ends: bool,
}

impl ReplayOptions {
    /// Returns true if the options change durations or make parts of the machine fail.
    pub fn changes_durations_or_has_failures(&self) -> bool {
        !self.changes.is_empty() || !self.failures.is_empty()
    }

    /// Returns the default options, modified by `change`.
    pub fn default_with_changes(change: impl FnOnce(&mut Self)) -> Self {
        let mut options = Self::default();
        change(&mut options);
        options
    }
}

/// How a host launches work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostLaunchMode {
    /// [`Self::Eager`] if kernel times come from curves, otherwise [`Self::None`].
    #[default]
    Auto,
    /// The host's launches take no time.
    None,
    /// The host launches every kernel, collective and message separately, with the launch times of the machine's
    /// [`Host`](chakram_hardware::machine::Host). If the machine has no host, launches take no time.
    Eager,
    /// The host launches all nodes of a step together, as with CUDA graphs.
    Graph,
}

impl EnumeratedSetting for HostLaunchMode {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Eager,
            "eager",
            "Each kernel and collective separately, at the machine's [host] costs",
        ),
        (
            Self::Graph,
            "graph",
            "All work of a step together, like CUDA graphs",
        ),
        (Self::None, "none", "Launches cost nothing"),
    ];
}

/// Source of the uncontended time of collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveCurvesOrAlgorithms {
    /// Times from the machine's measured curves. The machine must have curves, the members must be along one dimension,
    /// and no other traffic may disturb the collective.
    Curves,
    /// Times that the machine's collective algorithms and links give.
    Algorithms,
}

impl EnumeratedSetting for CollectiveCurvesOrAlgorithms {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Curves,
            "curves",
            "Measured times for the same number of NPUs, if the machine has them",
        ),
        (
            Self::Algorithms,
            "algorithms",
            "By the machine's algorithms and links",
        ),
    ];
}

/// Source of the durations of collectives and messages.
///
/// A communication node *starts* when it takes its lane. A receive has no lane and starts when it is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CommunicationDurationSource {
    /// Times that the machine's network model computes.
    #[default]
    Model,
    /// Captured times, including waiting, taken separately for every rank: start + wait + recorded duration. No rank
    /// waits for another, so the replay shows how faithfully the conversion preserved the capture.
    Captured,
    /// Transfers take their recorded duration, but the replay works out how long each waits. A member's part begins
    /// when all members that it waits for have started, and lasts for its own recorded duration.
    ///
    /// A member waits for all members including itself. In broadcast, scatter, reduce and gather, the root waits for
    /// all members, and every other member waits for itself and the root. Both halves of a message wait for each other.
    /// An *eager* member does not wait, but a receive always waits for its send. A member without a trace starts
    /// together with the last member that has a trace. If one half of a message has no trace, it starts together with
    /// the other half.
    Recorded,
}

impl EnumeratedSetting for CommunicationDurationSource {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Model, "model", "Simulated on the machine's network"),
        (
            Self::Captured,
            "captured",
            "As captured, including waiting; no rank waits for another",
        ),
        (
            Self::Recorded,
            "recorded",
            "Transfers as recorded; waiting is simulated",
        ),
    ];
}

impl fmt::Display for CommunicationDurationSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.choice_name())
    }
}
