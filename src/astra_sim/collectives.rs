//! ASTRA-sim's collective backend, which computes chunks, phases, queues and times.
//!
//! # Chunks
//!
//! With S bytes and k splits, a chunk has C = ⌊S/k⌋ bytes. If C is less than the number of NPUs, the chunk is padded to
//! the number of NPUs, and S is padded to k chunks. An all-gather is not padded. There are ⌈S/C⌉ chunks, and even the
//! last chunk has C bytes: 1,000,003 bytes in 4 splits give 5 chunks of 250,000 bytes.
//!
//! # Phases
//!
//! An all-gather visits the dimensions from the outermost to the innermost; a reduce-scatter and an all-to-all visit
//! them in the opposite order. If `collective-optimization` is `baseline`, an all-reduce runs as one all-reduce of the
//! whole chunk in every dimension. If it is `localBWAware`, an all-reduce has three parts: a reduce-scatter through all
//! dimensions except the last, an all-reduce in the last dimension, and an all-gather back through the other
//! dimensions. If the system file lists fewer implementations than there are dimensions, the collective skips the
//! remaining dimensions. A `one…` algorithm treats all NPUs as one line, so ASTRA-sim ignores later entries of the
//! list. A named group that lacks some ranks is a single line of members, in the order of the groups file. The line
//! uses the list's only algorithm, or a ring if the list has several entries.
//!
//! # Costs
//!
//! An endpoint adds its delay (10 ns in named groups) before it sends the first message and after it receives each
//! message. A member that reduces a received message of m bytes needs another 3⌊m / bandwidth⌋ ns for two reads and a
//! write.
//!
//! # Corrected quirks
//!
//! If [`Quirk::Padding`] is corrected, there are c = max(1, min(k, S)) chunks of exactly S / c bytes. Each member's
//! share of a chunk is then exact, too. If [`Quirk::ShortList`] is corrected, the last algorithm of a list also applies
//! to the remaining dimensions. A ring replaces the algorithm in dimensions where it cannot run.
//!
//! If [`Quirk::GroupRing`] is corrected, a named group that fills a sub-grid has one phase for each dimension in which
//! its members differ. Any other named group is a line along the outermost of these dimensions. In each dimension, both
//! kinds of group use the list's algorithm, or a ring if that algorithm cannot run there. The chunks of such a group
//! queue at the same dimension.
//!
//! If [`Quirk::SharedQueue`] is corrected, each phase has its own queues. Chunks pass through these queues in the order
//! in which they arrive from the previous phase. If [`Quirk::GroupEndpoint`] is corrected, endpoints of named groups
//! have the same delay as other endpoints. If [`Quirk::OneAtATime`] is corrected, an NPU's collectives may overlap.
//! Each then has its own queues, and uses them in rotation, beginning with the first. So NPUs that join collectives in
//! different orders do not wait for each other. The replay matches collectives in program order.

use super::endless_waits::{EndlessWait, EndlessWaitDetectorByIssuedChunks};
use super::quirks::{self, Quirk, QuirkSet};
use super::shared_bus::NpuInnerAndOuterBus;
use super::{AlgorithmAndAllNpusAtOnceFlag, AllReduceDecomposition, AstraAlgorithm, AstraInputs};
use chakram_base::ids::Npu;
use chakram_base::units::{Span, UnroundedBufferShare};
use chakram_hardware::collective::ScriptedAlgorithm;
use chakram_hardware::group::{self, GroupPhasesAndMemberPositions};
use chakram_trace::format::CollectiveKind;
use custom_scripts::CustomCollectiveAlgorithms;
use queue_counters::AllNpuAssignedChunkCounters;
use std::path::Path;

mod backend;
mod custom_scripts;
mod queue_counters;

/// ASTRA-sim's collective backend; the module's documentation describes it.
#[derive(Clone, Debug)]
pub struct AstraCollectiveBackend {
    splits: u64,
    optimization: AllReduceDecomposition,
    implementations: super::AlgorithmsPerCollectiveKind,
    quirks: QuirkSet,
    npus: u32,
    /// Number of NPUs along each dimension.
    sizes: Vec<u32>,
    queues: u32,
    /// Maximum number of chunks that a queue lets into a stage at once.
    capacity: u32,
    endpoint: Span,
    /// Bytes that a reduction processes per second, or `None` if reductions take no time.
    reduction: Option<f64>,
    rendezvous: bool,
    counters: AllNpuAssignedChunkCounters,
    /// Bus of each NPU; empty if buses are not modelled.
    buses: Vec<NpuInnerAndOuterBus>,
    scripts: CustomCollectiveAlgorithms,
    /// How many chunks the NPUs have issued. `None` unless every quirk is on.
    issued: Option<EndlessWaitDetectorByIssuedChunks>,
    /// First (NPU, node) that would have had an endpoint delay at time 0 if a scale had not reduced the delay to 0.
    /// `None` unless every quirk is on.
    undelayed: Option<Option<(Npu, u64)>>,
}

impl AstraCollectiveBackend {
    /// Creates the backend that `inputs` describe.
    pub fn new(inputs: &AstraInputs) -> Self {
        let system = &inputs.system;
        let queues = inputs.queues.get();
        let trees = |list: &Vec<AlgorithmAndAllNpusAtOnceFlag>| {
            list.iter()
                .any(|i| i.algorithm == AstraAlgorithm::DoubleBinaryTree)
        };
        let dimensions = inputs.network.dimensions.len();
        let counts = queues > 1 || trees(&system.implementations.all_reduce);
        let npus = inputs.network.npu_count();
        let mut own = Self {
            splits: u64::from(system.splits),
            optimization: system.optimization,
            implementations: system.implementations.clone(),
            quirks: inputs.quirks,
            npus,
            sizes: inputs.network.dimensions.iter().map(|d| d.npus).collect(),
            queues,
            // Divide a dimension's active chunks among its queues and round up, as ASTRA-sim does.
            capacity: system.active_chunks.div_ceil(queues),
            endpoint: Span::from_ns(inputs.endpoint_delay),
            // If the bandwidth of the local memory is unknown, reductions take no time.
            reduction: system.local_memory_bandwidth.filter(|bw| *bw > 0.0),
            rendezvous: inputs.rendezvous,
            counters: AllNpuAssignedChunkCounters::new(
                (npus, dimensions),
                queues,
                counts,
                !inputs.quirks.has_quirk(Quirk::OneAtATime),
            ),
            buses: match system.shared_bus {
                Some(terms) => {
                    vec![NpuInnerAndOuterBus::new(terms, system.reduction_delay); npus as usize]
                }
                None => Vec::new(),
            },
            scripts: CustomCollectiveAlgorithms::default(),
            issued: (inputs.quirks == QuirkSet::ALL)
                .then(|| EndlessWaitDetectorByIssuedChunks::new(npus)),
            undelayed: (inputs.quirks == QuirkSet::ALL && inputs.scales_endpoint_delay_to_zero())
                .then_some(None),
        };
        if !own.quirks.has_quirk(Quirk::ShortList) {
            // Lists do not change after this, so all later code sees the extended lists.
            own.extend_algorithm_lists();
        }
        own
    }

    /// Returns the first state in the replay that would make ASTRA-sim wait forever.
    pub fn first_endless_wait(&self) -> Option<EndlessWait> {
        self.issued.as_ref().and_then(|issued| issued.first)
    }

    /// Returns the first NPU that started a collective at time 0 with an endpoint delay that a scale had reduced to 0.
    /// Also returns the collective's node, at which ASTRA-sim aborts.
    pub fn first_undelayed_npu_and_collective(&self) -> Option<(Npu, u64)> {
        self.undelayed.flatten()
    }

    /// Extends each list to all dimensions: repeats the last algorithm, or a ring where that algorithm cannot run.
    fn extend_algorithm_lists(&mut self) {
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
                let algorithm = if self.is_algorithm_supported(last.algorithm, kind, size, true) {
                    last.algorithm
                } else {
                    AstraAlgorithm::Ring
                };
                list.push(AlgorithmAndAllNpusAtOnceFlag {
                    algorithm,
                    one: false,
                });
            }
        }
        self.implementations = lists;
    }

    /// Adds `algorithm`, whose files begin with `prefix`, for the collectives that `inputs` name.
    pub fn add_custom_algorithm(
        &mut self,
        inputs: &AstraInputs,
        prefix: &Path,
        algorithm: ScriptedAlgorithm,
    ) {
        self.scripts.add_algorithm(inputs, prefix, algorithm);
    }

    /// Returns the index of the custom algorithm for a collective; `None` if the collective uses a
    /// built-in algorithm.
    pub(super) fn custom_algorithm_index(&self, kind: CollectiveKind, node: u64) -> Option<u16> {
        self.scripts.script_index_of_collective(kind, node)
    }

    /// Returns the custom algorithm with index `number`.
    pub(super) fn custom_algorithm_by_index(&self, number: u16) -> &ScriptedAlgorithm {
        self.scripts.algorithm_by_index(number)
    }

    /// Returns the implementations for a kind of collective; empty if the system file has none.
    pub(super) fn implementations_of_collective_kind(
        &self,
        kind: CollectiveKind,
    ) -> &[AlgorithmAndAllNpusAtOnceFlag] {
        let lists = &self.implementations;
        match kind {
            CollectiveKind::AllReduce => &lists.all_reduce,
            CollectiveKind::AllGather => &lists.all_gather,
            CollectiveKind::ReduceScatter => &lists.reduce_scatter,
            CollectiveKind::AllToAll => &lists.all_to_all,
            _ => &[],
        }
    }

    /// Returns the time to reduce `amount`: two reads and a write. [`Quirk::WholeNs`] truncates each of the three times
    /// to whole ns.
    #[inline]
    fn reduction_time_of(&self, amount: UnroundedBufferShare) -> Span {
        let once = |gbps: f64| quirks::fractional_bytes_of_share(amount) / (gbps * 1e9) * 1e9;
        self.quirks
            .convert_ns_to_span(self.reduction.map_or(0.0, once))
            .times(3)
    }

    /// Returns true if messages pass over buses.
    pub(super) fn has_buses(&self) -> bool {
        !self.buses.is_empty()
    }

    /// Returns the number of NPUs in the machine.
    pub(super) fn npu_count(&self) -> u32 {
        self.npus
    }

    /// Returns the number of dimensions in the network.
    fn network_dimension_count(&self) -> usize {
        self.sizes.len()
    }

    /// Returns the number of NPUs along a dimension.
    pub(super) fn dimension_size(&self, dimension: usize) -> u32 {
        self.sizes[dimension]
    }

    pub(super) fn all_reduce_decomposition(&self) -> AllReduceDecomposition {
        self.optimization
    }

    /// Returns true if a named group has one phase for each dimension that it spans, instead of a
    /// single ring.
    pub(super) fn named_groups_have_phase_per_dimension(&self) -> bool {
        !self.quirks.has_quirk(Quirk::GroupRing)
    }

    /// Returns the size of a chunk in bytes, and the number of chunks.
    pub(super) fn chunk_size_and_count(
        &self,
        kind: CollectiveKind,
        bytes: u64,
    ) -> (UnroundedBufferShare, u32) {
        if !self.quirks.has_quirk(Quirk::Padding) {
            let count = self.splits.min(bytes).max(1);
            let parts = count;
            return (UnroundedBufferShare { bytes, parts }, count as u32);
        }
        let (mut size, mut chunk) = (bytes, bytes / self.splits);
        if kind != CollectiveKind::AllGather && chunk < u64::from(self.npus) {
            chunk = u64::from(self.npus);
            // Pad the size as ASTRA-sim does, although members contribute fewer bytes.
            size = self.splits * chunk;
        }
        let count = match chunk {
            // If an all-gather has fewer bytes than splits, its chunks have 0 bytes. `check_collective` rejects such an
            // all-gather if it has several members.
            0 => 0,
            _ => size.div_ceil(chunk),
        };
        (
            UnroundedBufferShare::from_bytes(chunk),
            u32::try_from(count).unwrap_or(u32::MAX),
        )
    }

    /// Returns true if the extent belongs to a named group that lacks some ranks. Such a group either is a single line
    /// with an irregular extent, or spans dimensions. If it spans dimensions, the extent's last phase holds all
    /// members, and its index is beyond the machine's dimensions.
    fn is_named_partial_group(&self, extent: &GroupPhasesAndMemberPositions) -> bool {
        let beyond = |phase: &group::PhaseDimensionSizeAndStride| {
            phase.dimension > self.network_dimension_count()
        };
        !extent.regular || extent.phases.last().is_some_and(beyond)
    }

    /// Returns a collective's phases, innermost dimension first; each has its index in the extent, the level whose
    /// queues it uses, and its algorithm.
    fn phases_of_collective(
        &self,
        kind: CollectiveKind,
        extent: &GroupPhasesAndMemberPositions,
    ) -> Vec<(u32, u32, AstraAlgorithm)> {
        let list = self.implementations_of_collective_kind(kind);
        if self.is_named_partial_group(extent) && self.named_groups_have_phase_per_dimension() {
            return self.phases_of_named_group(kind, list, extent);
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
                self.network_dimension_count()
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

    /// Returns the phases of a named group that spans dimensions. Each dimension uses its own algorithm, or a ring if
    /// it has too few members for that algorithm.
    fn phases_of_named_group(
        &self,
        kind: CollectiveKind,
        list: &[AlgorithmAndAllNpusAtOnceFlag],
        extent: &GroupPhasesAndMemberPositions,
    ) -> Vec<(u32, u32, AstraAlgorithm)> {
        let along = extent.phases.iter().enumerate();
        let along: Vec<_> = along
            .filter(|(_, p)| p.dimension < self.network_dimension_count())
            .collect();
        let mut route = Vec::new();
        for &(number, phase) in &along {
            let level = phase.dimension as u32;
            let said = list.get(phase.dimension).or(list.last());
            let Some(&AlgorithmAndAllNpusAtOnceFlag { algorithm, one }) = said else {
                break;
            };
            // The last phase of the extent contains all members as one line.
            let number = if one { extent.phases.len() - 1 } else { number };
            let size = extent.phases[number].size;
            let several = along.len() > 1 && !one;
            let algorithm = if self.is_algorithm_supported(algorithm, kind, size, several) {
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
