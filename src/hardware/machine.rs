//! The simulated system after validation: every [`Machine`] value is valid.
//!
//! A machine comes from a TOML file, a preset or an importer. Its NPUs belong to classes, and its network is a stack of
//! dimensions. It may also have memory outside its NPUs.

use crate::collective::{
    ChunkCountOrderAndOverlap, CollectiveAlgorithm, CollectiveCurve, CrossNodeNcclRingAndTreeModel,
    DimensionAlgorithmChoice, FittedCollectiveProtocol,
};
use crate::compute::{KernelTimeCurves, PeakRatesByFormat, RecordingNpuClass};
use crate::devices::maker_of;
use crate::memory::{LocalMemory, MemoryAttachment, NamedRemoteMemory, RemoteMemory};
use crate::network;
use crate::topology::{DimensionShape, Topology, TopologyDimension};
use chakram_base::config::ConfigDocument;
use chakram_base::ids::{EndpointId, Npu};
use chakram_base::shared_memory::RemoteMemoryCapacityAndSharers;
use chakram_base::units::{Bandwidth, Bytes, Span};
use class_assignment::NpuClassAssignment;

mod build;
mod chips;
mod class_assignment;
mod class_prices;
mod collective_time;
mod correction;
mod error;
mod failure;
mod host;
mod inline;
mod network_settings;
mod preset;
mod preset_files;
mod rank_domain;
mod relative;
mod stack_prices;

pub use correction::PassKernelTimeCorrection;
pub use error::MachineError;
pub use failure::{FailedNpuOrNamedLinks, FailedPartAndTime};
pub use host::{Host, HostBlockingOperations};
pub use inline::{is_inline_machine_notation, is_inline_notation_without_rates};
pub use network_settings::NetworkSettings;
pub use preset::{
    PresetOrMachineFileText, find_machine_text, is_machine_file_path, is_preset, load_for_ranks,
    load_for_ranks_replacing_values, read_preset_text, scale_machine_name_to_ranks,
};
pub use preset_files::{MachinePreset, PRESETS};
pub use rank_domain::NpuLimitPerSpannedDomain;
pub use relative::{
    KnownMachineDatasheetOverrides, derive_relative_machine, find_source_by_machine_or_npu_name,
    parse_number_format_and_peak_rate,
};
pub use stack_prices::{NameOfStackReplacedPart, SoftwareStackCurvesAndHosts};

/// NPUs with equal rates and memories.
#[derive(Clone, Debug, PartialEq)]
pub struct NpuClass {
    /// Name of the class in the machine file.
    pub name: String,
    /// Dense peak rates by number format.
    pub peaks: PeakRatesByFormat,
    /// Curves of measured kernels (empty if none were measured).
    pub curves: KernelTimeCurves,
    /// The memory of one NPU. `None` if the machine does not describe its NPUs; their peak rates are then also unknown.
    pub memory: Option<LocalMemory>,
    /// Maximum number of the NPU's lanes that can run at the same time, at least 1.
    pub lanes: u32,
    /// Maximum number of host lanes that can run at the same time for one NPU, at least 1.
    pub host_lanes: u32,
    /// Factor that multiplies the time of each kernel, under every compute model; at least 1.
    pub slowdown: f64,
}

impl NpuClass {
    /// Creates a class for NPUs that the machine does not describe: all their rates are unknown.
    pub fn create_class_with_unknown_rates() -> Self {
        Self {
            name: "unknown".to_owned(),
            peaks: PeakRatesByFormat::default(),
            curves: KernelTimeCurves::default(),
            memory: None,
            lanes: UNKNOWN_LANES,
            host_lanes: UNKNOWN_LANES,
            slowdown: 1.0,
        }
    }

    /// Returns the bandwidth of the NPU's memory, or `None` if unknown.
    pub fn memory_bandwidth(&self) -> Option<Bandwidth> {
        self.memory.map(|memory| memory.bandwidth)
    }

    /// Converts the class to a [`RecordingNpuClass`], for kernels recorded on it. Returns `None` if its memory
    /// bandwidth is unknown.
    pub fn to_recording_class(&self) -> Option<RecordingNpuClass> {
        let memory = self.memory_bandwidth()?;
        Some(RecordingNpuClass::new(&self.peaks, memory).set_maker(maker_of(&self.name)))
    }
}

/// How many NPU lanes, and how many host lanes, an NPU has if the machine does not describe it; the same as in the GPU
/// presets. A trace with more lanes causes a warning.
const UNKNOWN_LANES: u32 = 32;

/// A simulated system: its NPUs, network, hosts and remote memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    name: String,
    description: String,
    relative_of: Option<String>,
    price_per_npu_hour: Option<f64>,
    topology: Topology,
    network: NetworkSettings,
    algorithms: Vec<DimensionAlgorithmChoice>,
    collective_curves: Vec<Vec<CollectiveCurve>>,
    collective_protocols: Vec<Vec<FittedCollectiveProtocol>>,
    across_nodes: Vec<Option<CrossNodeNcclRingAndTreeModel>>,
    pipeline: ChunkCountOrderAndOverlap,
    scalable: bool,
    rank_domain: Option<NpuLimitPerSpannedDomain>,
    classes: Vec<NpuClass>,
    class_of: NpuClassAssignment,
    remote: Option<RemoteMemory>,
    named_memories: Vec<NamedRemoteMemory>,
    host: Option<Host>,
    corrections: Vec<PassKernelTimeCorrection>,
    failures: Vec<FailedPartAndTime>,
    /// Memory of every NPU, if a plan states it; otherwise the classes and the memory at ports determine it.
    stated_npu_memory: Option<Bytes>,
}

impl Machine {
    /// Parses the text of a machine file. Errors use `file` as the file's name.
    ///
    /// # Errors
    ///
    /// Fails if `text` is not TOML, has an unknown key, lacks a required key, or describes an impossible machine. Never
    /// panics.
    pub fn parse(text: &str, file: &str) -> Result<Self, MachineError> {
        Ok(build::build_machine(
            &ConfigDocument::parse(text, file)?,
            None,
        )?)
    }

    /// Parses `text`, an edited version of the machine file of `original`. Measured times without `measured_at` count
    /// as measured on the links or NPUs of the original machine.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::parse`].
    pub fn parse_edited_text_of_machine(
        text: &str,
        file: &str,
        original: &Self,
    ) -> Result<Self, MachineError> {
        let document = ConfigDocument::parse(text, file)?;
        Ok(build::build_machine(&document, Some(original))?)
    }

    /// Returns the preset called `name`. For `NAMExN`, returns the preset `NAME` with `N` NPUs along its outermost
    /// dimension.
    ///
    /// # Errors
    ///
    /// Fails if there is no such preset, the preset has a fixed size, or `N` is zero or too large.
    pub fn load_preset(name: &str) -> Result<Self, MachineError> {
        Self::parse(&read_preset_text(name)?, name)
    }

    /// Loads the machine called `name`, which has one of these forms:
    ///
    /// - A name that contains a `/` or ends in `.toml` is a file.
    /// - The notation of the ASTRA-sim 2.0 paper lists dimensions: `Ring(4)_Switch(2):250 GB/s,50 GB/s:500 ns`. If the
    ///   name of a preset comes first, the preset supplies the NPU: `h100:Ring(8):50 GB/s:500 ns`.
    /// - A name of any other form is a preset, as in [`Machine::load_preset`].
    ///
    /// # Errors
    ///
    /// Fails if there is no such preset or file, or the file is invalid.
    pub fn load_by_name(name: &str) -> Result<Self, MachineError> {
        let source = find_machine_text(name)?;
        Self::parse(&source.text, &source.file)
    }

    /// Creates a machine of one class, for importers of other formats.
    ///
    /// Returns `None` if the arguments do not describe a valid machine. They are invalid if the number of algorithms
    /// differs from the number of dimensions, the class has no lanes of one kind, a memory has a capacity of zero, or
    /// the remote memory does not fit the number of NPUs. The class may lack peak rates; a model that needs one then
    /// reports the kernel's format.
    pub fn create_with_one_npu_class(
        name: String,
        topology: Topology,
        algorithms: Vec<DimensionAlgorithmChoice>,
        class: NpuClass,
        remote: Option<RemoteMemory>,
    ) -> Option<Self> {
        let dimensions = topology.dimensions().len() == algorithms.len();
        let lanes = class.lanes > 0 && class.host_lanes > 0;
        // The same rules apply to machine files, where `build` reports violations with better messages.
        let some = |capacity: Option<Bytes>| capacity.is_none_or(|capacity| capacity.0 > 0);
        let fits = |r: &RemoteMemory| some(r.capacity) && r.fits_topology(&topology);
        let own = class.memory.is_none_or(|memory| some(memory.capacity));
        let memory = own && remote.as_ref().is_none_or(fits);
        (dimensions && lanes && memory).then(|| Self {
            name,
            description: String::new(),
            relative_of: None,
            price_per_npu_hour: None,
            class_of: NpuClassAssignment::with_uniform_class(topology.npu_count()),
            network: NetworkSettings {
                switching: topology.switching_mode(),
                ..NetworkSettings::default()
            },
            topology: add_memories_as_endpoints(topology, remote.as_ref(), &[]),
            algorithms,
            collective_curves: Vec::new(),
            collective_protocols: Vec::new(),
            across_nodes: Vec::new(),
            pipeline: ChunkCountOrderAndOverlap::default(),
            scalable: false,
            rank_domain: None,
            classes: vec![class],
            remote,
            named_memories: Vec::new(),
            host: None,
            corrections: Vec::new(),
            failures: Vec::new(),
            stated_npu_memory: None,
        })
    }

    /// Returns a machine of one NPU, for callers that compute all jobs' times themselves. Its rates are never used.
    pub fn placeholder_machine(name: &str) -> Self {
        let rate = Bandwidth::new(1e9).expect("1 GB/s is a bandwidth");
        let topology = Topology::new(vec![TopologyDimension {
            name: "none".to_owned(),
            shape: DimensionShape::Switch,
            size: 1,
            bandwidth: rate,
            latency: Span::ZERO,
        }]);
        let class = NpuClass {
            name: name.to_owned(),
            peaks: PeakRatesByFormat::default(),
            curves: KernelTimeCurves::default(),
            memory: None,
            lanes: 1,
            host_lanes: 1,
            slowdown: 1.0,
        };
        let algorithms = vec![DimensionAlgorithmChoice::Named(CollectiveAlgorithm::Direct)];
        let topology = topology.expect("one dimension of one NPU");
        Self::create_with_one_npu_class(name.to_owned(), topology, algorithms, class, None)
            .expect("an algorithm for the dimension, lanes and memory")
    }

    /// Returns the machine with the algorithm of `dimension` changed to `algorithm`, or `None` if the machine has no
    /// such dimension.
    pub fn with_dimension_algorithm(
        mut self,
        dimension: usize,
        algorithm: DimensionAlgorithmChoice,
    ) -> Option<Self> {
        *self.algorithms.get_mut(dimension)? = algorithm;
        Some(self)
    }

    /// Returns the machine with the chunking of collectives changed to `pipeline`.
    pub fn with_chunking(self, pipeline: ChunkCountOrderAndOverlap) -> Self {
        Self { pipeline, ..self }
    }

    /// Returns the same machine with `sends` as the rule for when sends complete.
    pub fn with_send_completion(mut self, sends: network::SendCompletionRule) -> Self {
        self.network.send_completion = sends;
        self
    }

    /// Returns the machine's name for reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a one-line description of the machine (possibly empty).
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the name of the machine on which the kernel curves were measured, if that machine's rates differ from
    /// this machine's.
    pub fn relative_of(&self) -> Option<&str> {
        self.relative_of.as_deref()
    }

    /// Returns the price of one NPU per hour, in dollars, or `None` if unknown.
    pub fn price_per_npu_hour(&self) -> Option<f64> {
        self.price_per_npu_hour
    }

    /// Maximum price of an NPU per hour, in dollars.
    pub const MAX_PRICE: f64 = 1e6;

    /// Returns the topology: the positions of NPUs, and the links between them.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the network model, which a replay may override.
    pub fn network_model(&self) -> network::NetworkModelKind {
        self.network.model
    }

    /// Returns the network's settings other than its links.
    pub fn network_settings(&self) -> NetworkSettings {
        self.network
    }

    /// Returns the rule for when a send between two ranks completes; the rule is the same under every network model.
    pub fn send_completion(&self) -> network::SendCompletionRule {
        self.network.send_completion
    }

    /// Returns the choice of collective algorithm for each dimension, innermost first.
    pub fn collective_algorithms(&self) -> &[DimensionAlgorithmChoice] {
        &self.algorithms
    }

    /// Returns the measured collectives along each dimension, innermost first (empty if none were
    /// measured).
    pub fn collective_curves(&self) -> &[Vec<CollectiveCurve>] {
        &self.collective_curves
    }

    /// Returns the protocols of the collective library along each dimension, innermost first (empty if none are
    /// described).
    pub fn collective_protocols(&self) -> &[Vec<FittedCollectiveProtocol>] {
        &self.collective_protocols
    }

    /// Returns the library's rings and trees over several nodes along each dimension, innermost first (empty if none
    /// are described).
    pub fn across_nodes(&self) -> &[Option<CrossNodeNcclRingAndTreeModel>] {
        &self.across_nodes
    }

    /// Returns how many chunks collectives have, in which order they run, and how they overlap.
    pub fn chunking_settings(&self) -> ChunkCountOrderAndOverlap {
        self.pipeline
    }

    /// Returns true if `NAMExN` may set the size of the outermost dimension.
    pub fn is_scalable(&self) -> bool {
        self.scalable
    }

    /// Returns the dimension along which large jobs use only some of the NPUs, or `None` if jobs use all NPUs.
    pub fn dimension_with_npu_limit(&self) -> Option<&NpuLimitPerSpannedDomain> {
        self.rank_domain.as_ref()
    }

    /// Returns a copy of this machine in which jobs use every NPU, even if the machine file restricts the `ranks` of a
    /// dimension.
    pub fn with_all_npus_used(self) -> Self {
        Self {
            rank_domain: None,
            ..self
        }
    }

    /// Returns the NPU that `rank` occupies in a job of `ranks` ranks without a placement map.
    pub fn npu_of_rank(&self, rank: u32, ranks: u32) -> Npu {
        let placed = |domain: &NpuLimitPerSpannedDomain| domain.npu_of_rank(rank, ranks);
        self.rank_domain.as_ref().map_or(Npu(rank), placed)
    }

    /// Returns the smallest size of the outermost dimension at which the machine has at least `ranks` NPUs. All
    /// dimensions except the outermost keep their sizes.
    pub fn outermost_size_for(&self, ranks: u128) -> u128 {
        let (_, inner) =
            (self.topology.dimensions().split_last()).expect("machines have dimensions");
        let unit: u128 = inner.iter().map(|d| u128::from(d.size)).product();
        let large = |domain: &&NpuLimitPerSpannedDomain| ranks > u128::from(domain.npus);
        let usable = match self.rank_domain.as_ref().filter(large) {
            Some(domain) => unit / u128::from(domain.npus) * u128::from(domain.used),
            None => unit,
        };
        ranks.div_ceil(usable)
    }

    /// Returns the number of ranks in the largest job that fits without a placement map.
    pub fn max_ranks_without_placement_map(&self) -> u32 {
        let npus = self.topology.npu_count();
        let most = |domain: &NpuLimitPerSpannedDomain| domain.max_ranks_of_job_on_machine(npus);
        self.rank_domain.as_ref().map_or(npus, most)
    }

    /// Returns the classes of NPUs, at least one, in the order of the file.
    pub fn npu_classes(&self) -> &[NpuClass] {
        &self.classes
    }

    /// Sets the memory capacity of every NPU, for plans that state it. With `None`, NPUs have the memory of their
    /// classes.
    pub fn set_npu_memory_capacity(&mut self, capacity: Option<Bytes>) {
        self.stated_npu_memory = capacity;
    }

    /// Returns the memory capacity of every NPU that [`Self::set_npu_memory_capacity`] set.
    pub fn npu_memory_capacity_if_overridden(&self) -> Option<Bytes> {
        self.stated_npu_memory
    }

    /// Returns the memory capacity of one NPU of a class: its own memory, plus its share of memory at ports, unless
    /// [`Self::set_npu_memory_capacity`] set another. Returns `None` if the capacity of its own memory is unknown.
    pub fn npu_memory_capacity_with_port_share(&self, class: usize) -> Option<Bytes> {
        if self.stated_npu_memory.is_some() {
            return self.stated_npu_memory;
        }
        let own = self.classes[class].memory?.capacity?;
        Some(match &self.remote {
            Some(RemoteMemory {
                attachment: MemoryAttachment::Ports(ports),
                capacity: Some(capacity),
                ..
            }) => {
                let all = u128::from(capacity.0) * u128::from(ports.port_count());
                let share = all / u128::from(self.topology.npu_count());
                Bytes(
                    own.0
                        .saturating_add(u64::try_from(share).unwrap_or(u64::MAX)),
                )
            }
            _ => own,
        })
    }

    /// Returns the remote memory that can store data beyond the NPUs' own capacity. It excludes memory at ports, which
    /// [`Self::npu_memory_capacity_with_port_share`] already includes.
    pub fn remote_memory_beyond_npu_capacity(&self) -> Option<RemoteMemoryCapacityAndSharers> {
        self.remote
            .as_ref()?
            .capacity_and_sharing_npu_count(self.topology.npu_count())
    }

    /// Returns the memory port that `npu` uses, as an index into [`RemoteMemory::list_npus_with_ports`]. Returns `None`
    /// if there are no ports, or if no route leads to a port.
    pub fn nearest_memory_port(&self, npu: Npu) -> Option<u32> {
        match &self.remote.as_ref()?.attachment {
            MemoryAttachment::Ports(ports) => ports.nearest_port(npu, &self.topology),
            _ => None,
        }
    }

    /// Returns the class of `npu`, as an index into [`Self::npu_classes`]. `npu` must be an NPU of this machine.
    pub fn class_of_npu(&self, npu: Npu) -> usize {
        self.class_of.class_of_npu(npu)
    }

    /// Returns ranges of consecutive NPUs of one class as (first NPU, last NPU, class), in ascending order. Each NPU is
    /// in exactly one range.
    pub fn npu_ranges_of_one_class(&self) -> impl Iterator<Item = (Npu, Npu, usize)> + '_ {
        let runs = self.class_of.iter_runs();
        runs.map(|(first, last, class)| (Npu(first), Npu(last), class))
    }

    /// Returns true if any class of NPUs has curves of measured kernels.
    pub fn has_kernel_curves(&self) -> bool {
        self.classes.iter().any(|class| !class.curves.is_empty())
    }

    /// Returns the parts of the machine that fail during each replay, in the order of the machine file.
    pub fn parts_that_fail(&self) -> &[FailedPartAndTime] {
        &self.failures
    }

    /// Returns the same machine after `change` has modified the host and the curves of the classes.
    pub fn with_changed_host_and_curves(
        &self,
        change: impl FnOnce(&mut Option<Host>, &mut [&mut KernelTimeCurves]),
    ) -> Self {
        let mut machine = self.clone();
        let classes = machine.classes.iter_mut();
        let mut curves: Vec<_> = classes.map(|class| &mut class.curves).collect();
        change(&mut machine.host, &mut curves);
        machine
    }

    /// Returns the factors that correct durations; they are derived from measured steps.
    pub fn kernel_time_corrections(&self) -> &[PassKernelTimeCorrection] {
        &self.corrections
    }

    /// Returns the host of each NPU, or `None` if launch times are unknown.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Returns the remote memory for loads and stores that name no memory, or `None`.
    pub fn unnamed_remote_memory(&self) -> Option<&RemoteMemory> {
        self.remote.as_ref()
    }

    /// Returns the remote memories that traces address by name, in the order of the file.
    pub fn named_memories(&self) -> &[NamedRemoteMemory] {
        &self.named_memories
    }

    /// Returns the remote memories, starting with the unnamed memory. Each memory comes with its first endpoint, which
    /// is meaningful only if the memory is attached to the network.
    pub fn remote_memories_with_first_endpoints(
        &self,
    ) -> impl Iterator<Item = (Option<&RemoteMemory>, EndpointId)> {
        let named = self.named_memories.iter().map(|named| Some(&named.memory));
        let mut next = self.topology.npu_count();
        std::iter::once(self.unnamed_remote_memory())
            .chain(named)
            .map(move |memory| {
                let first = EndpointId(next);
                next += memory.map_or(0, |memory| {
                    memory.list_memory_endpoints_in_network().len() as u32
                });
                (memory, first)
            })
    }

    /// Returns the index of the memory called `name` in [`Self::named_memories`], or `None`.
    pub fn index_of_named_memory(&self, name: &str) -> Option<usize> {
        let mut memories = self.named_memories.iter();
        memories.position(|memory| memory.name == name)
    }
}

/// Returns the same network with the machine's memories as endpoints, in the order of
/// [`Machine::remote_memories_with_first_endpoints`].
fn add_memories_as_endpoints(
    topology: Topology,
    remote: Option<&RemoteMemory>,
    named: &[NamedRemoteMemory],
) -> Topology {
    let named = named.iter().map(|named| &named.memory);
    let all = remote.into_iter().chain(named);
    topology.with_memories(
        all.flat_map(RemoteMemory::list_memory_endpoints_in_network)
            .collect(),
    )
}

#[cfg(test)]
mod tests;
