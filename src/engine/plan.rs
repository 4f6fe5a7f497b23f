//! Everything that can be decided before the run: placement, prices, lanes, groups and matches.

use super::error::ReplayRefusal;
use super::unpriced_kernels::UnpricedKernels;
use super::{in_switch, matching, remote_memory};
use crate::collective::{CollectiveBackend, CustomCollective, GroupMembers};
use crate::compute::{ComputeModel, HostTiming, KernelProfile, KernelTiming};
use crate::graph::{Graph, Lane, NodeKind};
use crate::group::{GroupExtent, SharedPaths};
use crate::ids::{GroupId, NodeIndex, Npu, Rank};
use crate::machine::{Machine, NpuClass};
use crate::matching::CommRef;
use crate::network::NetworkKind;
use crate::topology::Topology;
use crate::trace::{CollectiveKind, escape};
use crate::units::{Bytes, Span};
use crate::workload::{MissingRankPolicy, RankInstance, Workload, shortened};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

/// Options of a replay.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// Source of the durations of kernels.
    pub compute: ComputeModel,
    /// Source of the durations of host work: nodes on the host, and delays in front of nodes.
    pub host: HostTiming,
    /// How the machine's host launches the nodes of graphs in which the host has no work of its own.
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
    /// Let collectives take what was measured on such a machine, where it has curves, the members lie along one dimension,
    /// and nothing disturbs them; if absent, where kernels are priced by curves.
    pub measured_collectives: Option<bool>,
    /// Factor on kernels by curves, launches and measured collectives; if absent, that of the machine's
    /// [corrections](Machine::corrections) of the workload's most frequent product, or none.
    pub correction: Option<f64>,
    /// Carry out every collective message by message, even where a closed form is proved. Has no effect unless
    /// [`CommTiming::Model`] carries out collectives at all.
    pub stepwise: bool,
    /// Custom algorithms, which replace the machine's in collectives of their kind among as many members as they have
    /// scripts. Have an effect only where [`CommTiming::Model`] carries out collectives natively.
    pub custom: Vec<CustomCollective>,
    /// Allow sends and receives without a matching half: such a send completes when its message has arrived, and such
    /// a receive never does. In insertion order only ([`CollectiveBackend::IN_ORDER`]).
    pub allow_unmatched: bool,
}

impl ReplayOptions {
    /// Returns the defaults as `change` leaves them.
    pub fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut options = Self::default();
        change(&mut options);
        options
    }
}

/// How a host launches work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchMode {
    /// Eagerly where kernels are priced by curves, and in no time otherwise.
    #[default]
    Auto,
    /// In no time.
    None,
    /// Every kernel, collective and message by itself, as long as the machine's [`Host`](crate::machine::Host) takes;
    /// in no time where it has none.
    Eager,
    /// All of a step at once, as CUDA graphs do.
    Graph,
}

/// Source of the durations of collectives and messages.
///
/// A communication node *starts* when it holds its lane; a receive holds none and starts when it is
/// ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
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

impl fmt::Display for CommTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Model => "model",
            Self::Captured => "captured",
            Self::Recorded => "recorded",
        })
    }
}

/// Sentinel in arrays of indices: none.
pub(super) const NONE: u32 = u32::MAX;

/// Basis of the durations of a replay, counted in nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PricingCoverage {
    /// Kernels priced by the chosen compute model.
    pub priced: u64,
    /// Kernels priced by roofline, because they have no recorded duration.
    pub estimated: u64,
    /// Kernels that kept their recorded duration, because the roofline lacks FLOPs, bytes or a peak.
    pub fell_back: u64,
    /// Kernels without any known size or duration; they take no time.
    pub unknown: u64,
    /// Kernels priced by curves.
    pub by_curves: u64,
    /// Sum of the durations of kernels by curves, in picoseconds.
    pub curve_time: u128,
    /// Sum of their standard deviations, in picoseconds.
    pub curve_deviation: u128,
    /// Sum of the durations of kernels that rest on recorded ones, in picoseconds.
    pub recorded_time: u128,
    /// Sum of the durations of kernels by roofline, in picoseconds.
    pub roofline_time: u128,
    /// Collectives and messages that last as recorded or captured, counted by their nodes.
    pub as_recorded: u64,
    /// Of those, nodes without a duration in the trace; they take no time.
    pub unrecorded: u64,
    /// Lanes of the traces beyond those of the machine, which share one.
    pub sharing: u64,
}

impl PricingCoverage {
    fn add(&mut self, other: Self) {
        self.priced += other.priced;
        self.estimated += other.estimated;
        self.fell_back += other.fell_back;
        self.unknown += other.unknown;
        self.by_curves += other.by_curves;
        self.curve_time += other.curve_time;
        self.curve_deviation += other.curve_deviation;
        self.recorded_time += other.recorded_time;
        self.roofline_time += other.roofline_time;
        self.as_recorded += other.as_recorded;
        self.unrecorded += other.unrecorded;
        self.sharing += other.sharing;
    }

    /// Counts a kernel with this price, unless it has none.
    fn kernel(&mut self, price: KernelTiming, computes: bool) {
        let (count, time) = match price {
            KernelTiming::Modeled(span) if computes => {
                (&mut self.priced, Some((&mut self.roofline_time, span)))
            }
            KernelTiming::Modeled(span) => {
                (&mut self.priced, Some((&mut self.recorded_time, span)))
            }
            KernelTiming::Fallback(span) => {
                (&mut self.fell_back, Some((&mut self.recorded_time, span)))
            }
            KernelTiming::Estimated(span) => {
                (&mut self.estimated, Some((&mut self.roofline_time, span)))
            }
            KernelTiming::Curve { span, deviation } => {
                self.curve_deviation += u128::from(deviation.0);
                (&mut self.by_curves, Some((&mut self.curve_time, span)))
            }
            KernelTiming::Unknown => (&mut self.unknown, None),
            KernelTiming::NoPeak(_) => return,
        };
        *count += 1;
        if let Some((sum, span)) = time {
            *sum += u128::from(span.0);
        }
    }
}

/// A collective that all members of a group carry out together.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallPlan {
    pub kind: CollectiveKind,
    /// The whole buffer ([`CollectiveKind::buffer`]).
    pub buffer: u64,
    /// The root's position in the extent.
    pub root: u32,
}

/// A group on the machine.
#[derive(Debug)]
pub(super) struct GroupPlan {
    pub id: GroupId,
    /// Name in the traces; `None` where they name none.
    pub name: Option<String>,
    /// Mask of the dimensions that take part, if not all.
    pub dimensions: Option<u32>,
    pub members: Vec<Rank>,
    /// Members that have a trace.
    pub present: u32,
    pub extent: GroupExtent,
    /// Per phase: the paths that messages have in common.
    pub paths: Vec<SharedPaths>,
    /// Ports of a member along a phase: two where it may be wired to neighbours on both sides.
    pub sides: u32,
    pub calls: Vec<CallPlan>,
    /// Whether some member's lane for these collectives serves anything else too, so that they launch only when every
    /// member is ready.
    pub launches_together: bool,
}

impl GroupPlan {
    /// Returns the number of ports that a collective of the group opens: each member has one on each side along each
    /// phase.
    pub fn ports(&self) -> u32 {
        self.extent.size() * self.extent.phases.len() as u32 * self.sides
    }

    /// Returns the number of the port of a member along a phase.
    #[inline]
    pub fn port(&self, phase: usize, position: u32, side: u32) -> u32 {
        (phase as u32 * self.extent.size() + position) * self.sides + side
    }

    /// Returns the sides on which a message leaves one member and enters the other.
    #[inline]
    pub fn sides_between(&self, topology: &Topology, from: u32, to: u32) -> [u32; 2] {
        let npu = |position: u32| self.extent.npus[position as usize];
        match self.sides {
            1 => [0; 2],
            _ => topology.sides(npu(from), npu(to)),
        }
    }
}

/// A group slot of an instance, bound to a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundSlot {
    /// Index among the plan's groups.
    pub group: u32,
    /// Index of the instance among the members.
    pub member: u32,
}

/// Plan of an instance.
#[derive(Debug)]
pub(super) struct InstancePlan {
    pub npu: Npu,
    /// Index into prices and lane maps.
    pub shared: u32,
    pub slots: Vec<BoundSlot>,
    /// Sequence of each call within its group, where it differs from the one in the graph because two slots are the
    /// same group here.
    pub sequences: Option<Vec<u32>>,
    /// Match of each message of the graph, [`NONE`] when the other end is absent.
    pub pairs: Vec<u32>,
}

/// Plan that instances of one graph on one NPU class share.
#[derive(Debug)]
pub(super) struct SharedGraphPlan {
    /// Duration of each node, where it does not depend on others; of communication that lasts as recorded, the
    /// duration after waiting.
    pub prices: Vec<Span>,
    /// Lane of the NPU for each lane of the graph, [`NONE`] for no lane.
    pub lanes: Vec<u32>,
    /// Number of lanes of the NPU in use.
    pub lane_count: u32,
    /// Per group slot: whether its collectives share a lane with anything else.
    pub mixed: Vec<bool>,
    /// Nodes on each lane of the NPU, once asked for.
    lane_nodes: OnceLock<Vec<LaneNodes>>,
    /// Basis of the prices.
    pub basis: PricingCoverage,
    /// Kernels without a price.
    unpriced: UnpricedKernels,
}

/// Nodes that hold a lane, by whether they are kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneNodes {
    pub kernels: u32,
    pub others: u32,
}

impl SharedGraphPlan {
    /// Returns the nodes of `graph`, whose plan this is, on each lane of the NPU.
    pub fn lane_nodes(&self, graph: &Graph) -> &[LaneNodes] {
        self.lane_nodes.get_or_init(|| {
            let mut nodes = vec![LaneNodes::default(); self.lane_count as usize];
            for node in graph.nodes() {
                let lane = self.lanes[graph.lane(node) as usize];
                let Some(on) = nodes.get_mut(lane as usize) else {
                    continue;
                };
                match graph.kind(node) {
                    NodeKind::Compute => on.kernels += 1,
                    _ => on.others += 1,
                }
            }
            nodes
        })
    }

    /// Returns whether every kernel has a price.
    fn is_priced(&self) -> bool {
        self.unpriced.is_empty()
    }
}

/// Coordinates of an NPU in some dimensions, as (dimension, coordinate).
type NpuCoordinates = Vec<(usize, u32)>;

/// The plan of a replay.
#[derive(Debug)]
pub(super) struct ReplayPlan {
    pub npu_of: Vec<Npu>,
    pub instance_of: Vec<u32>,
    pub instances: Vec<InstancePlan>,
    pub shared: Vec<SharedGraphPlan>,
    /// Of a job of one rank, the entry of `shared` for each NPU class; [`NONE`] for classes on which a kernel has no
    /// price. Empty for all other jobs.
    pub shared_of_class: Vec<u32>,
    pub groups: Vec<GroupPlan>,
    pub pairs: u32,
    /// Channel that counts the rendezvous requests of each channel, where messages are matched in issue order: the
    /// first of those that differ from it in message size alone.
    pub request_channels: Vec<u32>,
    pub basis: PricingCoverage,
    /// Refusal of reports, if most kernels have no price and that was not asked for.
    pub mostly_free: Option<ReplayRefusal>,
}

impl ReplayPlan {
    pub fn new<M: CollectiveBackend>(
        workload: &Workload,
        machine: &Machine,
        options: &ReplayOptions,
        backend: &M,
    ) -> Result<Self, ReplayRefusal> {
        let npu_of = place(workload.ranks(), machine, options.map.as_deref())?;
        let mut instance_of = vec![NONE; workload.ranks() as usize];
        for (i, instance) in workload.instances().iter().enumerate() {
            instance_of[instance.rank.index()] = i as u32;
        }
        let mut basis = PricingCoverage::default();
        let mut shared = Vec::new();
        let mut known: BTreeMap<(u32, usize), u32> = BTreeMap::new();
        let mut unpriced = UnpricedKernels::default();
        let mut instances = Vec::with_capacity(workload.instances().len());
        for instance in workload.instances() {
            let npu = npu_of[instance.rank.index()];
            let class = machine.class(npu);
            // Prices depend on the graph and the NPU class alone, so ranks that share both share them.
            let key = (instance.graph.0, class);
            let index = match known.get(&key) {
                Some(&index) => index,
                None => {
                    let graph = workload.graph(instance);
                    let class = &machine.classes()[class];
                    shared.push(price_graph(graph, class, machine, instance, options)?);
                    known.insert(key, shared.len() as u32 - 1);
                    shared.len() as u32 - 1
                }
            };
            basis.add(shared[index as usize].basis);
            unpriced.add(&shared[index as usize].unpriced, instance.rank, class);
            instances.push(InstancePlan {
                npu,
                shared: index,
                slots: Vec::new(),
                sequences: None,
                pairs: Vec::new(),
            });
        }
        let mut shared_of_class = Vec::new();
        if let [instance] = workload.instances() {
            let own = machine.class(npu_of[instance.rank.index()]);
            let graph = workload.graph(instance);
            for (number, class) in machine.classes().iter().enumerate() {
                if number == own {
                    shared_of_class.push(0);
                    continue;
                }
                let priced = price_graph(graph, class, machine, instance, options);
                let priced = priced.ok().filter(SharedGraphPlan::is_priced);
                shared_of_class.push(priced.map_or(NONE, |priced| {
                    shared.push(priced);
                    shared.len() as u32 - 1
                }));
            }
        }
        let (free, mostly_free) = unpriced.settle(workload, machine, options.compute, &basis)?;
        basis.unknown += free;
        // Some recorded durations are enough: nodes without one are counted in the report.
        if basis.unrecorded > 0 && basis.as_recorded == 0 {
            return Err(ReplayRefusal::new(
                format!(
                    "communication is to last as {}, but none of the {} communication nodes has a \
                     duration or `wait_ns`",
                    options.comm, basis.unrecorded
                ),
                "--comm model, which has the machine's network carry them; or convert the capture anew, \
                 with the durations of its communication kernels",
            ));
        }
        let mut plan = Self {
            npu_of,
            instance_of,
            instances,
            shared,
            shared_of_class,
            groups: Vec::new(),
            pairs: 0,
            request_channels: Vec::new(),
            basis,
            mostly_free,
        };
        in_switch::check(workload, machine)?;
        plan.bind_groups(workload, machine, backend);
        if M::IN_ORDER {
            matching::renumber_shared_groups(&mut plan, workload);
            matching::channels(&mut plan, workload, options.allow_unmatched)?;
        } else {
            matching::collectives(&mut plan, workload)?;
            matching::messages(&mut plan, workload)?;
        }
        Ok(plan)
    }

    /// Gives half of a message, of an instance, the number of the next match.
    pub(super) fn pair(&mut self, (instance, message): CommRef) {
        self.instances[instance as usize].pairs[message as usize] = self.pairs;
    }

    /// Finds the group on the machine for each slot of each instance.
    fn bind_groups<M: CollectiveBackend>(
        &mut self,
        workload: &Workload,
        machine: &Machine,
        backend: &M,
    ) {
        let mut known: BTreeMap<(GroupId, NpuCoordinates), u32> = BTreeMap::new();
        // The members of each group, partitioned by the dimensions that a mask leaves out.
        let mut parted: BTreeMap<(GroupId, Vec<usize>), BTreeMap<NpuCoordinates, Vec<Rank>>> =
            BTreeMap::new();
        // A mask that excludes nobody is dropped, so that it makes no second group.
        let mut whole: BTreeMap<GroupId, u32> = BTreeMap::new();
        for (i, instance) in workload.instances().iter().enumerate() {
            let graph = workload.graph(instance);
            let npu = self.instances[i].npu;
            let slots = graph.group_slots().iter().zip(&instance.groups);
            for (slot_index, (slot, &id)) in slots.enumerate() {
                // With only some dimensions taking part, members that differ from this rank in the others are
                // excluded.
                let dimensions = machine.topology().dimensions();
                let out: Vec<usize> = match slot.dimensions {
                    None => Vec::new(),
                    Some(mask) => (0..dimensions.len())
                        // A mask has 32 bits; dimensions beyond them never take part.
                        .filter(|&d| d >= 32 || mask >> d & 1 == 0)
                        // All members agree in a dimension of one NPU, so it partitions nothing.
                        .filter(|&d| dimensions[d].size > 1)
                        .collect(),
                };
                let place = |npu| -> NpuCoordinates {
                    let at = |&d: &usize| (d, machine.topology().coordinate(npu, d));
                    out.iter().map(at).collect()
                };
                let own = place(npu);
                let group = *known.entry((id, own.clone())).or_insert_with(|| {
                    let group = &workload.groups()[id.index()];
                    let all = &group.members;
                    let parts = parted.entry((id, out.clone())).or_insert_with(|| {
                        let mut parts: BTreeMap<NpuCoordinates, Vec<Rank>> = BTreeMap::new();
                        for rank in all {
                            let place = place(self.npu_of[rank.index()]);
                            parts.entry(place).or_default().push(*rank);
                        }
                        parts
                    });
                    let members = parts.remove(&own).expect("this rank is one of them");
                    let new = self.groups.len() as u32;
                    let everyone = members.len() == all.len();
                    if everyone && *whole.entry(id).or_insert(new) != new {
                        return whole[&id];
                    }
                    let dimensions = slot.dimensions.filter(|_| !everyone);
                    let name = group.name.clone();
                    let plan = self.group((id, name), dimensions, members, machine, backend);
                    self.groups.push(plan);
                    new
                });
                let mixed = &self.shared[self.instances[i].shared as usize].mixed;
                self.groups[group as usize].launches_together |= mixed[slot_index];
                let members = &self.groups[group as usize].members;
                // Members are mostly in order already, and then this is quick.
                let member = members
                    .binary_search(&instance.rank)
                    .ok()
                    .or_else(|| members.iter().position(|&m| m == instance.rank));
                self.instances[i].slots.push(BoundSlot {
                    group,
                    member: member.map_or(NONE, |m| m as u32),
                });
            }
        }
    }

    fn group<M: CollectiveBackend>(
        &self,
        (id, name): (GroupId, Option<String>),
        dimensions: Option<u32>,
        members: Vec<Rank>,
        machine: &Machine,
        backend: &M,
    ) -> GroupPlan {
        let npus: Vec<Npu> = members.iter().map(|m| self.npu_of[m.index()]).collect();
        let named = name.is_some();
        let party = GroupMembers { npus: &npus, named };
        let extent = backend.extent(party, machine.topology());
        let paths = extent.phases.iter();
        let paths = paths.map(|phase| backend.paths(&extent, phase, machine.topology()));
        let dimensions_of = machine.topology().dimensions();
        // Rings and meshes have links to either side instead of ports.
        let wired = |d: usize| dimensions_of.get(d).is_some_and(|of| !of.shape.has_ports());
        let sided = if extent.regular {
            extent.phases.iter().any(|phase| wired(phase.dimension))
        } else {
            (0..dimensions_of.len()).any(wired)
        };
        GroupPlan {
            id,
            name,
            dimensions,
            present: members
                .iter()
                .filter(|m| self.instance_of[m.index()] != NONE)
                .count() as u32,
            paths: paths.collect(),
            sides: 1 + u32::from(sided),
            extent,
            members,
            calls: Vec::new(),
            launches_together: false,
        }
    }
}

/// Returns the NPU of each of `ranks` ranks, from `map` or in their order.
///
/// # Errors
///
/// Fails if the machine has fewer NPUs, or the map is for other ranks, or names an NPU that does not exist, or one
/// twice.
pub fn place(
    ranks: u32,
    machine: &Machine,
    map: Option<&[Npu]>,
) -> Result<Vec<Npu>, ReplayRefusal> {
    let npus = machine.topology().npus();
    let Some(map) = map else {
        if ranks > npus {
            return Err(ReplayRefusal::new(
                format!(
                    "the job has {ranks} ranks, but machine `{}` has {npus} NPUs (0 to {})",
                    machine.name(),
                    npus - 1
                ),
                format!(
                    "take a machine with at least {ranks} NPUs; presets such as dgx-h100xN scale"
                ),
            ));
        }
        return Ok((0..ranks).map(Npu).collect());
    };
    if map.len() != ranks as usize {
        return Err(ReplayRefusal::new(
            format!(
                "the map places {} ranks, but the job has {ranks}",
                map.len()
            ),
            "give one NPU for each rank",
        ));
    }
    let mut taken = vec![NONE; npus as usize];
    for (rank, npu) in map.iter().enumerate() {
        match taken.get_mut(npu.index()) {
            None => {
                return Err(ReplayRefusal::new(
                    format!("the map puts rank {rank} on NPU {npu}, but there are {npus} NPUs"),
                    format!("NPUs are numbered 0 to {}", npus - 1),
                ));
            }
            Some(other) if *other != NONE => {
                return Err(ReplayRefusal::new(
                    format!("the map puts ranks {other} and {rank} on NPU {npu}"),
                    "give each rank an NPU of its own",
                ));
            }
            Some(free) => *free = rank as u32,
        }
    }
    Ok(map.to_vec())
}

/// Prices the nodes of `graph` on `class` and maps its lanes.
fn price_graph(
    graph: &Graph,
    class: &NpuClass,
    machine: &Machine,
    instance: &RankInstance,
    options: &ReplayOptions,
) -> Result<SharedGraphPlan, ReplayRefusal> {
    let refusal = |node: NodeIndex, found: String, hint: &str| {
        let node = matching::describe(instance.rank, graph, node);
        ReplayRefusal::new(format!("{node}: {found}"), hint)
    };
    // The bytes of a node, if `room` holds them at once.
    let within = |node: NodeIndex, room: Bytes, holder: &str, hint: &str| {
        let bytes = Bytes(graph.bytes(node));
        if bytes > room {
            let found = format!("it moves {bytes} at once, but {holder} holds {room}");
            return Err(refusal(node, found, hint));
        }
        Ok(bytes.0)
    };
    let mut basis = PricingCoverage::default();
    let mut unpriced = UnpricedKernels::default();
    let mut known: BTreeMap<_, KernelTiming> = BTreeMap::new();
    let mut prices = Vec::with_capacity(graph.len());
    for node in graph.nodes() {
        prices.push(match graph.kind(node) {
            NodeKind::Host => options.host.duration(graph.recorded(node)),
            NodeKind::Compute => {
                let kernel = KernelProfile {
                    recorded: graph.recorded(node),
                    captured: graph.captured().is_some(),
                    flops: graph.flops(node),
                    bytes: graph.bytes(node),
                    dtype: graph.dtype(node),
                    shape: graph.kernel(node),
                };
                let memory = class.memory.bandwidth;
                let price = || {
                    let curves = &class.curves;
                    let price = options.compute.price(&kernel, &class.peaks, memory, curves);
                    match (price, options.correction) {
                        (KernelTiming::Curve { span, deviation }, Some(factor)) => {
                            let span = Span::from_seconds(span.seconds() * factor);
                            KernelTiming::Curve { span, deviation }
                        }
                        (price, _) => price,
                    }
                };
                // A step has few kinds of kernels, and a price by shape takes a microsecond.
                let price = match kernel.shape {
                    Some(shape) => *known
                        .entry((shape, kernel.dtype, kernel.bytes, kernel.flops, kernel.recorded))
                        .or_insert_with(price),
                    None => price(),
                };
                basis.kernel(price, options.compute.computes());
                match price {
                    KernelTiming::NoPeak(dtype) => unpriced.without_peak(dtype, node),
                    KernelTiming::Unknown => unpriced.without_work(node),
                    _ => {}
                }
                price.span()
            }
            NodeKind::LocalMemory => {
                let holder = format!("an NPU of class `{}`", class.name);
                let hint = "take a machine with more memory, or split the tensor";
                let bytes = within(node, class.memory.capacity, &holder, hint)?;
                class.memory.access(bytes)
            }
            NodeKind::RemoteMemory => {
                let Some(remote) = machine.remote() else {
                    let name = machine.name();
                    return Err(refusal(
                        node,
                        format!("it reaches remote memory, and machine `{name}` has none"),
                        "add [remote_memory] to the machine, or set `tensor_loc` to 1 for local memory",
                    ));
                };
                let hint = "give the remote memory more capacity, or split the tensor";
                let bytes = within(node, remote.capacity, "the remote memory", hint)?;
                match remote_memory::too_many_chunks(machine, options, bytes) {
                    Some(found) => return Err(refusal(node, found, remote_memory::FEWER)),
                    // The price of remote memory depends on contention, and is found during the run.
                    None => Span::ZERO,
                }
            }
            NodeKind::Nothing => Span::ZERO,
            NodeKind::Send | NodeKind::Receive | NodeKind::Collective => {
                let (transfer, wait) = (graph.recorded(node), graph.wait(node));
                if options.comm != CommTiming::Model {
                    match transfer + wait {
                        Span::ZERO => basis.unrecorded += 1,
                        _ => basis.as_recorded += 1,
                    }
                }
                match options.comm {
                    CommTiming::Model => Span::ZERO,
                    CommTiming::Recorded => transfer,
                    CommTiming::Captured => transfer + wait,
                }
            }
        });
    }
    // Lanes of the NPU and threads of the host are capped separately; lanes beyond the cap share.
    let (mut device, mut host) = (0, 0);
    let lanes = graph.lanes().iter().map(|lane| match lane {
        Lane::None => NONE,
        Lane::Host(_) => {
            host += 1;
            // Host threads are numbered behind the lanes of the NPU, so the two never share.
            class.lanes + (host - 1) % class.host_lanes
        }
        _ => {
            device += 1;
            (device - 1) % class.lanes
        }
    });
    let lanes: Vec<u32> = lanes.collect();
    let beyond = [(device, class.lanes), (host, class.host_lanes)];
    basis.sharing = beyond
        .map(|(named, there)| u64::from(named.saturating_sub(there)))
        .iter()
        .sum();
    let used = lanes.iter().filter(|&&lane| lane != NONE).max();
    Ok(SharedGraphPlan {
        prices,
        lane_count: used.map_or(0, |&lane| lane + 1),
        mixed: mixed_slots(graph, &lanes),
        lane_nodes: OnceLock::new(),
        lanes,
        basis,
        unpriced,
    })
}

/// Returns for each group slot of `graph` whether a lane of its collectives also runs other nodes, given the NPU's
/// lane of each lane of the graph.
fn mixed_slots(graph: &Graph, lanes: &[u32]) -> Vec<bool> {
    /// Users of a lane.
    #[derive(Clone, Copy, PartialEq)]
    enum LaneUser {
        Nobody,
        Slot(u32),
        Several,
    }
    let count = lanes.iter().filter(|&&lane| lane != NONE).max();
    let mut users = vec![LaneUser::Nobody; count.map_or(0, |&lane| lane as usize + 1)];
    for node in graph.nodes() {
        let lane = lanes[graph.lane(node) as usize];
        if lane == NONE {
            continue;
        }
        let user = match graph.kind(node) {
            NodeKind::Collective => LaneUser::Slot(graph.call(node).group),
            _ => LaneUser::Several,
        };
        let known = &mut users[lane as usize];
        *known = match *known {
            LaneUser::Nobody => user,
            same if same == user => same,
            _ => LaneUser::Several,
        };
    }
    let mut mixed = vec![false; graph.group_slots().len()];
    for call in graph.calls() {
        let lane = lanes[graph.lane(call.node) as usize];
        mixed[call.group as usize] |= users[lane as usize] == LaneUser::Several;
    }
    mixed
}

/// Formats a group for messages: `group of ranks 0, 1`, ``group `tp` of ranks 0, 1``.
pub(super) fn group_text(group: &GroupPlan) -> String {
    let members = shortened(group.members.iter().map(|m| m.0));
    match &group.name {
        None => format!("group of ranks {members}"),
        Some(name) => format!("group `{}` of ranks {members}", escape(name)),
    }
}
