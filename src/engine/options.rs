//! Options of a replay.

use super::extensions::Extensions;
use super::price_changes::PriceChanges;
use chakram_base::ids::Npu;
use chakram_base::setting::SettingChoice;
use chakram_hardware::collective::CustomCollective;
use chakram_hardware::compute::{ComputeModel, HostTiming};
use chakram_hardware::machine::MachineFailure;
use chakram_hardware::network::NetworkKind;
use chakram_trace::workload::MissingRankPolicy;
use serde::{Deserialize, Serialize};
use std::fmt;

mod rules;

pub use rules::OptionRefusal;

/// Options of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// Source of the durations of kernels.
    pub compute: ComputeModel,
    /// Source of the durations of host work: nodes on the host, and delays in front of nodes.
    pub host: HostTiming,
    /// Launching, by the machine's host, of the nodes of graphs in which the host has no work of its own.
    pub launch: LaunchMode,
    /// Source of the durations of collectives and messages.
    pub comm: CommTiming,
    /// Treatment of ranks without a trace.
    pub missing_ranks: MissingRankPolicy,
    /// NPU of each rank; rank r sits on NPU r if absent.
    pub map: Option<Vec<Npu>>,
    /// Model of the network; the machine's if absent. Has no effect unless [`CommTiming::Model`] carries out
    /// collectives and messages.
    pub network: Option<NetworkKind>,
    /// Source of the uncontended time of collectives; if absent, curves where kernels are priced by curves.
    pub collectives: Option<CollectiveTiming>,
    /// Factor on kernels by curves, launches and measured collectives; if absent, that of the machine's
    /// [corrections](chakram_hardware::machine::Machine::corrections) of the workload's most frequent product, or none.
    pub correction: Option<f64>,
    /// Carry out every collective message by message, even where a closed form is proved. Has no effect unless
    /// [`CommTiming::Model`] carries out collectives at all.
    pub stepwise: bool,
    /// Kernels and collectives that last otherwise than they are priced, slow ranks and jitter.
    pub changes: PriceChanges,
    /// Parts of the machine that fail, besides those that its file says.
    pub failures: Vec<MachineFailure>,
    /// Let one of several ranks that do the same at the same time run for all of them, for as long as they do; the answer is
    /// the same. Has no effect unless [`CommTiming::Model`] carries out collectives and messages.
    pub aggregate: bool,
    /// Models of the caller's own, in place of the machine's.
    pub extensions: Extensions,
    /// Replay communication of which neither size nor duration is known without time, so that the makespan is a lower bound;
    /// it is refused otherwise.
    pub lower_bound: bool,
    /// Count the bytes over every link; every collective is carried out message by message for that.
    pub links: bool,
    /// Custom algorithms, which replace the machine's in collectives of their kind among as many members as they have
    /// scripts. Have an effect only where [`CommTiming::Model`] carries out collectives natively.
    pub custom: Vec<CustomCollective>,
    /// Allow sends and receives without a matching half: such a send completes when its message has arrived, and such
    /// a receive never does. In insertion order only ([`Discipline::MATCHES_AS_ISSUED`](super::Discipline::MATCHES_AS_ISSUED)).
    pub allow_unmatched: bool,
    /// Answer a collective by closed form only where the order in which its members end at one instant is proved, too. In
    /// insertion order only, as above.
    pub ordered_ends: bool,
}

impl ReplayOptions {
    /// Returns whether prices change, or parts of the machine fail.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty() || !self.failures.is_empty()
    }

    /// Returns the defaults as `change` leaves them.
    pub fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut options = Self::default();
        change(&mut options);
        options
    }
}

/// Launching of work by a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchMode {
    /// Eagerly where kernels are priced by curves, and in no time otherwise.
    #[default]
    Auto,
    /// In no time.
    None,
    /// Every kernel, collective and message by itself, as long as the machine's [`Host`](chakram_hardware::machine::Host) takes;
    /// in no time where it has none.
    Eager,
    /// All of a step at once, as CUDA graphs do.
    Graph,
}

impl SettingChoice for LaunchMode {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Eager,
            "eager",
            "Every kernel and collective by itself, as the machine's [host] has it",
        ),
        (
            Self::Graph,
            "graph",
            "All of a step at once, as CUDA graphs do",
        ),
        (Self::None, "none", "In no time"),
    ];
}

/// Source of the uncontended time of collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveTiming {
    /// What was measured on such a machine, where it has curves, the members lie along one dimension, and nothing
    /// disturbs them.
    Curves,
    /// The machine's algorithms and links.
    Algorithms,
}

impl SettingChoice for CollectiveTiming {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Curves,
            "curves",
            "As measured among as many NPUs of this kind, where the machine has that",
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
/// A communication node *starts* when it holds its lane; a receive holds none and starts when it is
/// ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CommTiming {
    /// By the model of the machine's network.
    #[default]
    Model,
    /// As captured, waiting included, every rank by itself: start + wait + recorded duration. No rank waits for
    /// another, so the replay shows what the conversion of a capture kept.
    Captured,
    /// Transfers last as recorded, and waiting results from the replay: a member's part ends at the last start of
    /// those that it waits for, plus its own recorded duration.
    ///
    /// A member waits for all members and itself; in broadcast, scatter, reduce and gather the root waits for all,
    /// and any other member for itself and the root. Both halves of a message wait for each other. An *eager* member
    /// waits for nobody; a receive always waits for its send. A member without a trace starts with the last that has
    /// one, and the half of a message without a trace with the other half.
    Recorded,
}

impl SettingChoice for CommTiming {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Model, "model", "Simulated on the machine's network"),
        (
            Self::Captured,
            "captured",
            "As captured, waiting included: each rank by itself",
        ),
        (
            Self::Recorded,
            "recorded",
            "Transfers as recorded; waiting is simulated",
        ),
    ];
}

impl fmt::Display for CommTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
