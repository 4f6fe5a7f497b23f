//! ASTRA-sim's collective backend: its chunks, phases, queues and costs.
//!
//! # Chunks
//!
//! With S bytes and k splits a chunk has C = ⌊S/k⌋ bytes. Except in an all-gather, a chunk of fewer bytes than there
//! are NPUs is padded to that many, and S to k chunks. There are ⌈S/C⌉ chunks, and *all* have C bytes, the last too:
//! 1,000,003 bytes in 4 splits are 5 chunks of 250,000.
//!
//! # Phases
//!
//! All-gather goes through the dimensions from the outermost, reduce-scatter and all-to-all from the innermost.
//! All-reduce, `baseline`: an all-reduce of the whole chunk in every dimension; `localBWAware`: reduce-scatter in all
//! but the last dimension, all-reduce in that, all-gather back. Where the list of implementations is shorter than the
//! dimensions, the others are left out; a `one…` algorithm stands for all NPUs as one line and ends the list. A named
//! group that is not all ranks is one line in the order of its file, with the list's only entry, or ring if there are
//! several.
//!
//! # Costs
//!
//! Before the first message and after each reception an endpoint takes its delay (10 ns in named groups); a reception
//! that is reduced takes 3⌊m / bandwidth⌋ ns more: two reads and a write.
//!
//! # Where quirks are corrected
//!
//! Without [`Quirk::Padding`] there are min(k, S) chunks, at least one, of S divided by that, exactly, and so are all
//! shares of them. Without [`Quirk::ShortList`] the last name of a list stands for the remaining dimensions, or a
//! ring where that cannot be. Without [`Quirk::GroupRing`] a named group that fills a sub-grid has a phase for each
//! dimension in which its members differ, and one that does not is a line along the outermost of them; both are
//! carried out as the list says for the dimension, or by a ring where that cannot be, and queue at that dimension.
//! Without [`Quirk::SharedQueue`] each phase has its own queues, which NPUs pass in the order in which chunks come
//! from the phase before. Without [`Quirk::GroupEndpoint`] endpoints of named groups are like all others. Without
//! [`Quirk::OneAtATime`] collectives of an NPU overlap; each has queues of its own, taken in turn from the first, so
//! that NPUs which join them in different orders do not wait for each other, and they are matched in program order.

use super::endless_waits::{EndlessWait, IssueCounts};
use super::quirks::{self, Quirk, QuirkSet};
use super::shared_bus::SharedBus;
use super::{AstraAlgorithm, AstraInputs, CollectiveImplementation, CollectiveOptimization};
use chakram_base::ids::Npu;
use chakram_base::units::{BufferShare, Span};
use chakram_hardware::collective::ScriptedAlgorithm;
use chakram_hardware::group::{self, GroupExtent};
use chakram_trace::format::CollectiveKind;
use custom_scripts::CustomScripts;
use queue_counters::QueueCounters;
use std::path::Path;

mod backend;
mod custom_scripts;
mod queue_counters;

/// ASTRA-sim's collective backend, as the module describes it.
#[derive(Clone, Debug)]
pub struct AstraCollectives {
    splits: u64,
    optimization: CollectiveOptimization,
    implementations: super::CollectiveImplementations,
    quirks: QuirkSet,
    npus: u32,
    /// NPUs along each dimension.
    sizes: Vec<u32>,
    queues: u32,
    /// Chunks in a stage at once, per queue.
    capacity: u32,
    endpoint: Span,
    /// Bytes per second of a reduction; `None` if it takes no time.
    reduction: Option<f64>,
    rendezvous: bool,
    counters: QueueCounters,
    /// Bus of each NPU, where buses are modelled.
    buses: Vec<SharedBus>,
    scripts: CustomScripts,
    /// Counts of issued chunks, where every quirk is on.
    issued: Option<IssueCounts>,
    /// Where a scale makes an endpoint delay 0 and every quirk is on: the first NPU and node that took it at time 0.
    undelayed: Option<Option<(Npu, u64)>>,
}

impl AstraCollectives {
    /// Creates the backend that `inputs` describe.
    pub fn new(inputs: &AstraInputs) -> Self {
        let system = &inputs.system;
        let queues = inputs.queues.get();
        let trees = |list: &Vec<CollectiveImplementation>| {
            list.iter()
                .any(|i| i.algorithm == AstraAlgorithm::DoubleBinaryTree)
        };
        let dimensions = inputs.network.dimensions.len();
        let counts = queues > 1 || trees(&system.implementations.all_reduce);
        let npus = inputs.network.npus();
        let mut own = Self {
            splits: u64::from(system.splits),
            optimization: system.optimization,
            implementations: system.implementations.clone(),
            quirks: inputs.quirks,
            npus,
            sizes: inputs.network.dimensions.iter().map(|d| d.npus).collect(),
            queues,
            // ASTRA-sim divides the active chunks of a dimension among its queues, rounding up.
            capacity: system.active_chunks.div_ceil(queues),
            endpoint: Span::from_ns(inputs.endpoint_delay),
            // Without a bandwidth of the local memory, reductions take no time.
            reduction: system.local_memory_bandwidth.filter(|bw| *bw > 0.0),
            rendezvous: inputs.rendezvous,
            counters: QueueCounters::new(
                (npus, dimensions),
                queues,
                counts,
                !inputs.quirks.has(Quirk::OneAtATime),
            ),
            buses: match system.shared_bus {
                Some(terms) => vec![SharedBus::new(terms, system.reduction_delay); npus as usize],
                None => Vec::new(),
            },
            scripts: CustomScripts::default(),
            issued: (inputs.quirks == QuirkSet::ALL).then(|| IssueCounts::new(npus)),
            undelayed: (inputs.quirks == QuirkSet::ALL && inputs.scales_delay_away())
                .then_some(None),
        };
        if !own.quirks.has(Quirk::ShortList) {
            // Lists are final from here on: every look-up sees the extended ones.
            own.extend_lists();
        }
        own
    }

    /// Returns the first state of the replay in which the original would have waited for ever.
    pub fn beyond(&self) -> Option<EndlessWait> {
        self.issued.as_ref().and_then(|issued| issued.first)
    }

    /// Returns the first NPU, and its node, that came to a collective at time 0 without an endpoint delay because a scale
    /// leaves none: the original aborts there.
    pub fn undelayed(&self) -> Option<(Npu, u64)> {
        self.undelayed.flatten()
    }

    /// Extends each list to all dimensions by its last name, or by a ring where that cannot be.
    fn extend_lists(&mut self) {
        let mut lists = std::mem::take(&mut self.implementations);
        for (kind, list) in [
            (CollectiveKind::AllReduce, &mut lists.all_reduce),
            (CollectiveKind::AllGather, &mut lists.all_gather),
            (CollectiveKind::ReduceScatter, &mut lists.reduce_scatter),
            (CollectiveKind::AllToAll, &mut lists.all_to_all),
        ] {
            let Some(&last) = list.last().filter(|last| !last.one) else {
                continue;
            };
            for &size in self.sizes.get(list.len()..).unwrap_or_default() {
                let algorithm = if self.is_supported(last.algorithm, kind, size, true) {
                    last.algorithm
                } else {
                    AstraAlgorithm::Ring
                };
                list.push(CollectiveImplementation {
                    algorithm,
                    one: false,
                });
            }
        }
        self.implementations = lists;
    }

    /// Adds `algorithm`, read from the files that begin with `prefix`, for the collectives that `inputs` name.
    pub fn add_custom(
        &mut self,
        inputs: &AstraInputs,
        prefix: &Path,
        algorithm: ScriptedAlgorithm,
    ) {
        self.scripts.add(inputs, prefix, algorithm);
    }

    /// Returns the custom algorithm of a collective.
    pub(super) fn script(&self, kind: CollectiveKind, node: u64) -> Option<u16> {
        self.scripts.number(kind, node)
    }

    /// Returns a custom algorithm.
    pub(super) fn custom(&self, number: u16) -> &ScriptedAlgorithm {
        self.scripts.get(number)
    }

    /// Returns the list of implementations of a collective; empty where it has none.
    pub(super) fn list(&self, kind: CollectiveKind) -> &[CollectiveImplementation] {
        let lists = &self.implementations;
        match kind {
            CollectiveKind::AllReduce => &lists.all_reduce,
            CollectiveKind::AllGather => &lists.all_gather,
            CollectiveKind::ReduceScatter => &lists.reduce_scatter,
            CollectiveKind::AllToAll => &lists.all_to_all,
            _ => &[],
        }
    }

    /// Returns the duration of a reduction of `amount`: two reads and a write, each truncated to whole ns under
    /// [`Quirk::WholeNs`].
    #[inline]
    fn reduction_of(&self, amount: BufferShare) -> Span {
        let once = |gbps: f64| quirks::bytes(amount) / (gbps * 1e9) * 1e9;
        self.quirks.span(self.reduction.map_or(0.0, once)).times(3)
    }

    /// Returns whether messages pass buses.
    pub(super) fn has_buses(&self) -> bool {
        !self.buses.is_empty()
    }

    /// Returns the number of all NPUs.
    pub(super) fn npus(&self) -> u32 {
        self.npus
    }

    /// Returns the number of dimensions.
    fn dimensions(&self) -> usize {
        self.sizes.len()
    }

    /// Returns the number of NPUs along a dimension.
    pub(super) fn size(&self, dimension: usize) -> u32 {
        self.sizes[dimension]
    }

    pub(super) fn optimization(&self) -> CollectiveOptimization {
        self.optimization
    }

    /// Returns whether named groups go through the dimensions that they span.
    pub(super) fn groups_span(&self) -> bool {
        !self.quirks.has(Quirk::GroupRing)
    }

    /// Returns the bytes of a chunk and the number of chunks.
    pub(super) fn chunks(&self, kind: CollectiveKind, bytes: u64) -> (BufferShare, u32) {
        if !self.quirks.has(Quirk::Padding) {
            let count = self.splits.min(bytes).max(1);
            let parts = count;
            return (BufferShare { bytes, parts }, count as u32);
        }
        let (mut size, mut chunk) = (bytes, bytes / self.splits);
        if kind != CollectiveKind::AllGather && chunk < u64::from(self.npus) {
            chunk = u64::from(self.npus);
            // The padded size is the original's, although the members contribute less.
            size = self.splits * chunk;
        }
        let count = match chunk {
            // An all-gather of fewer bytes than splits, which `check` refuses for more than one member.
            0 => 0,
            _ => size.div_ceil(chunk),
        };
        (
            BufferShare::whole(chunk),
            u32::try_from(count).unwrap_or(u32::MAX),
        )
    }

    /// Returns whether an extent is that of a named group other than all ranks: as one line it is no sub-grid, and
    /// where it spans dimensions its line of all has a number of its own.
    fn is_named(&self, extent: &GroupExtent) -> bool {
        let beyond = |phase: &group::GroupPhase| phase.dimension > self.dimensions();
        !extent.regular || extent.phases.last().is_some_and(beyond)
    }

    /// Returns the phases of the extent that a collective goes through, innermost first, with the level whose queues
    /// they pass and their algorithm.
    fn route(&self, kind: CollectiveKind, extent: &GroupExtent) -> Vec<(u32, u32, AstraAlgorithm)> {
        let list = self.list(kind);
        if self.is_named(extent) && self.groups_span() {
            return self.route_of_group(kind, list, extent);
        }
        if !extent.regular {
            let algorithm = match list {
                [only] => only.algorithm,
                _ => AstraAlgorithm::Ring,
            };
            return extent.phases.iter().map(|_| (0, 0, algorithm)).collect();
        }
        let mut route = Vec::new();
        for (level, implementation) in list.iter().enumerate() {
            let dimension = if implementation.one {
                self.dimensions()
            } else {
                level
            };
            let phase = extent.phases.iter().position(|p| p.dimension == dimension);
            if let Some(phase) = phase {
                route.push((phase as u32, level as u32, implementation.algorithm));
            }
            if implementation.one {
                break;
            }
        }
        route
    }

    /// Returns the route of a named group that spans dimensions: in each its own algorithm, or a ring where it has
    /// too few members for that.
    fn route_of_group(
        &self,
        kind: CollectiveKind,
        list: &[CollectiveImplementation],
        extent: &GroupExtent,
    ) -> Vec<(u32, u32, AstraAlgorithm)> {
        let along = extent.phases.iter().enumerate();
        let along: Vec<_> = along
            .filter(|(_, p)| p.dimension < self.dimensions())
            .collect();
        let mut route = Vec::new();
        for &(number, phase) in &along {
            let level = phase.dimension as u32;
            let said = list.get(phase.dimension).or(list.last());
            let Some(&CollectiveImplementation { algorithm, one }) = said else {
                break;
            };
            // All members as one line, which is the last phase.
            let number = if one { extent.phases.len() - 1 } else { number };
            let size = extent.phases[number].size;
            let several = along.len() > 1 && !one;
            let algorithm = if self.is_supported(algorithm, kind, size, several) {
                algorithm
            } else {
                AstraAlgorithm::Ring
            };
            route.push((number as u32, level, algorithm));
            if one {
                break;
            }
        }
        route
    }
}
