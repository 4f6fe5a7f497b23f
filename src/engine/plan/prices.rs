//! Computes how long a graph's nodes take on an NPU class, and which NPU lanes they use.

use super::{NONE, SharedGraphPlan};
use crate::coverage::DurationSourceCounts;
use crate::options::{CommunicationDurationSource, ReplayOptions};
use crate::unpriced_kernels::UntimedKernels;
use crate::unpriced_kernels::machine_without_npu_error_text;
use crate::{ReplayRefusal, fabric, matching};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Bytes, Span};
use chakram_hardware::compute::{KernelDurationSource, KernelDurationWithBasis, KernelTraceFacts};
use chakram_hardware::machine::{Machine, NpuClass};
use chakram_hardware::memory::NamedRemoteMemory;
use chakram_hardware::recordings::compute_model_with_recording_class;
use chakram_trace::format::escape_and_shorten_name;
use chakram_trace::graph::{Graph, Lane, NodeKind};
use chakram_trace::workload::GraphBoundToRank;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Computes how long each node of `graph` takes on `class`, and maps the graph's lanes to NPU lanes.
pub(super) fn compute_graph_durations(
    graph: &Graph,
    class: &NpuClass,
    machine: &Machine,
    instance: &GraphBoundToRank,
    options: &ReplayOptions,
) -> Result<SharedGraphPlan, ReplayRefusal> {
    let refusal = |node: NodeIndex, found: String, hint: &str| {
        let node = matching::describe_node(instance.rank, graph, node);
        ReplayRefusal::new(format!("{node}: {found}"), hint)
    };
    // Returns the bytes of a load or store, or an error if the bytes exceed the capacity `room`.
    let within = |node: NodeIndex, room: Option<Bytes>, holder: &str, hint: &str| {
        let bytes = Bytes(graph.stated_bytes_of_node(node));
        if let Some(room) = room.filter(|room| bytes > *room) {
            let found =
                format!("the node moves {bytes} at once, but {holder} has a capacity of {room}");
            return Err(refusal(node, found, hint));
        }
        Ok(bytes.0)
    };
    // Map the memories that the graph names to the machine's memories.
    let memories: Vec<_> = (graph.remote_memories().iter())
        .map(|name| machine.index_of_named_memory(name))
        .collect();
    let mut basis = DurationSourceCounts::default();
    let mut unpriced = UntimedKernels::default();
    let device = graph.capture_environment().device.as_deref();
    let compute = compute_model_with_recording_class(options.compute, device)
        .keep_recorded_if_other_npu_maker(&class.name);
    basis.at_peaks = compute.assumes_full_peak_rates();
    basis.recording_class_known = matches!(compute, KernelDurationSource::RecordedOn(_));
    basis.carried = compute.was_recorded_at_other_rates(&class.peaks, class.memory_bandwidth());
    let mut known: BTreeMap<_, KernelDurationWithBasis> = BTreeMap::new();
    let own = options.extensions.kernels.as_ref();
    let captured = graph.captured_end().is_some();
    let keeps_recorded = own.is_none() && options.compute.keeps_recorded_durations();
    let mut price_kernel = |node: NodeIndex, recorded: Span| {
        let kernel = KernelTraceFacts {
            name: graph.name(node),
            recorded,
            captured,
            flops: graph.flops(node),
            flops_unknown: graph.flops_unknown(node),
            bytes: graph.stated_bytes_of_node(node),
            dtype: graph.dtype(node),
            shape: graph.kernel(node),
        };
        let price = || {
            if let Some(span) = own.and_then(|model| model.price_kernel(&kernel, class)) {
                return KernelDurationWithBasis::Modeled(span);
            }
            let (memory, curves) = (class.memory_bandwidth(), &class.curves);
            let mut price = compute.price_kernel(&kernel, &class.peaks, memory, curves);
            if let (KernelDurationWithBasis::Curve { span, .. }, Some(factor)) =
                (&mut price, options.correction)
            {
                *span = Span::from_seconds_saturating(span.as_seconds() * factor);
            }
            price
        };
        // A duration takes a microsecond to compute, and a step has few distinct kernels, so cache durations.
        let by_name = !class.curves.measured.is_empty();
        if !by_name && kernel.shape.is_none() {
            return price();
        }
        let name = by_name.then(|| graph.name_index(node));
        let flops = (kernel.flops, kernel.flops_unknown);
        let work = (kernel.dtype, kernel.bytes, flops, recorded);
        *known
            .entry((name, kernel.shape, work))
            .or_insert_with(price)
    };
    let mut prices = Vec::with_capacity(graph.len());
    for node in graph.nodes() {
        prices.push(match graph.kind(node) {
            NodeKind::Host => options.host.scale_duration(graph.recorded_duration(node)),
            NodeKind::Compute => {
                let recorded = graph.recorded_duration(node);
                let price = if keeps_recorded && (captured || recorded > Span::ZERO) {
                    KernelDurationWithBasis::Modeled(recorded)
                } else {
                    price_kernel(node, recorded)
                };
                basis.count_kernel_duration_source(
                    price,
                    options.compute.ignores_recorded_durations(),
                );
                basis.without_curve += u64::from(
                    options.compute == KernelDurationSource::Curves
                        && matches!(price, KernelDurationWithBasis::Modeled(_)),
                );
                let bytes_alone = graph.flops_unknown(node) && graph.stated_bytes_of_node(node) > 0;
                if let (KernelDurationWithBasis::Fallback(span), true) = (price, bytes_alone) {
                    basis.flops_unknown += 1;
                    basis.flops_unknown_time += u128::from(span.0);
                }
                match price {
                    KernelDurationWithBasis::NoPeak(dtype) => {
                        unpriced.add_kernel_without_peak(dtype, node)
                    }
                    KernelDurationWithBasis::Unknown => unpriced.add_kernel_without_work(node),
                    _ => {}
                }
                if class.slowdown > 1.0 {
                    price.duration().scale_by(class.slowdown)
                } else {
                    price.duration()
                }
            }
            NodeKind::LocalMemory => {
                let Some(memory) = class.memory else {
                    let found = "the node is a load or store of the NPU's own memory";
                    let (found, hint) = machine_without_npu_error_text(machine, found);
                    return Err(refusal(node, found, &hint));
                };
                let holder = format!("an NPU of class `{}`", class.name);
                let hint = "take a machine with more memory, or split the tensor";
                let bytes = within(node, memory.capacity, &holder, hint)?;
                let own = options.extensions.memory.as_ref();
                let own =
                    own.and_then(|design| design.time_local_access_by_user_model(&memory, bytes));
                own.or_else(|| memory.time_access(bytes)).ok_or_else(|| {
                    let found = format!("{holder} does not state the latency of its memory");
                    refusal(node, found, "give the class `memory_latency`")
                })?
            }
            NodeKind::RemoteMemory => {
                let remote = match graph.remote_memory(node) {
                    None => machine
                        .unnamed_remote_memory()
                        .ok_or_else(|| missing_unnamed_remote_memory_error(machine)),
                    Some(slot) => memories[slot as usize]
                        .map(|index| &machine.named_memories()[index].memory)
                        .ok_or_else(|| {
                            unknown_memory_error(machine, &graph.remote_memories()[slot as usize])
                        }),
                };
                let remote = remote.map_err(|(found, advice_to_use_less_memory)| {
                    refusal(node, found, &advice_to_use_less_memory)
                })?;
                let hint = "give the remote memory more capacity, or split the tensor";
                let bytes = within(node, remote.capacity, "the remote memory", hint)?;
                match fabric::find_too_many_chunks_fault(machine, remote, options, bytes) {
                    Some((found, hint)) => return Err(refusal(node, found, &hint)),
                    // Contention may change how long a remote access takes, so this is worked out during the run.
                    None => Span::ZERO,
                }
            }
            NodeKind::Nothing => Span::ZERO,
            NodeKind::Communication => {
                let recorded = graph.recorded_duration(node);
                basis.comm_unknown += 1;
                basis.comm_unknown_time += u128::from(recorded.0);
                basis.comm_unknown_free += u64::from(recorded == Span::ZERO);
                recorded
            }
            NodeKind::Send | NodeKind::Receive | NodeKind::Collective => {
                let (transfer, wait) = (graph.recorded_duration(node), graph.recorded_wait(node));
                if options.comm != CommunicationDurationSource::Model {
                    match transfer + wait {
                        Span::ZERO => basis.unrecorded += 1,
                        _ => basis.as_recorded += 1,
                    }
                }
                match options.comm {
                    CommunicationDurationSource::Model if graph.size_unknown(node) => {
                        basis.size_unknown += 1;
                        basis.size_unknown_time += u128::from(transfer.0);
                        basis.size_unknown_free += u64::from(transfer + wait == Span::ZERO);
                        transfer
                    }
                    CommunicationDurationSource::Model => Span::ZERO,
                    CommunicationDurationSource::Recorded => transfer,
                    CommunicationDurationSource::Captured => transfer + wait,
                }
            }
        });
    }
    // The machine limits lanes of the NPU and threads of the host separately. Lanes beyond the limit share an existing
    // lane.
    let (mut device, mut host) = (0, 0);
    let lanes = graph
        .lanes_in_order_of_first_use()
        .iter()
        .map(|lane| match lane {
            Lane::None => NONE,
            Lane::Host(_) => {
                host += 1;
                // Host threads are numbered after the NPU's lanes, so they never share a lane with kernels.
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
    let memories = memories
        .into_iter()
        .map(|index| index.map_or(NONE, |index| index as u32));
    Ok(SharedGraphPlan {
        memories: memories.collect(),
        prices,
        lane_count: used.map_or(0, |&lane| lane + 1),
        mixed: flag_group_slots_sharing_lanes_with_others(graph, &lanes),
        lane_nodes: OnceLock::new(),
        lanes,
        beside_collectives: match class.curves.beside_collectives {
            Some(factor) if basis.by_curves > 0 && basis.recorded_time == 0 => factor,
            _ => 1.0,
        },
        basis,
        unpriced,
    })
}

/// Returns one flag for each communicator (group slot) of `graph`: true if a lane of its collectives also runs other
/// nodes. `lanes` maps the graph's lanes to NPU lanes.
fn flag_group_slots_sharing_lanes_with_others(graph: &Graph, lanes: &[u32]) -> Vec<bool> {
    /// The group slots whose nodes use a lane.
    #[derive(Clone, Copy, PartialEq)]
    enum CollectiveGroupsUsingLane {
        Nobody,
        Slot(u32),
        Several,
    }
    let count = lanes.iter().filter(|&&lane| lane != NONE).max();
    let mut users =
        vec![CollectiveGroupsUsingLane::Nobody; count.map_or(0, |&lane| lane as usize + 1)];
    for node in graph.nodes() {
        let lane = lanes[graph.lane(node) as usize];
        if lane == NONE {
            continue;
        }
        let user = match graph.kind(node) {
            NodeKind::Collective => {
                CollectiveGroupsUsingLane::Slot(graph.collective_of(node).group)
            }
            _ => CollectiveGroupsUsingLane::Several,
        };
        let known = &mut users[lane as usize];
        *known = match *known {
            CollectiveGroupsUsingLane::Nobody => user,
            same if same == user => same,
            _ => CollectiveGroupsUsingLane::Several,
        };
    }
    let mut mixed = vec![false; graph.group_slots().len()];
    for call in graph.collective_calls() {
        let lane = lanes[graph.lane(call.node) as usize];
        mixed[call.group as usize] |= users[lane as usize] == CollectiveGroupsUsingLane::Several;
    }
    mixed
}

/// Builds the error for a load from or store to the unnamed memory of a `machine` that has none.
fn missing_unnamed_remote_memory_error(machine: &Machine) -> (String, String) {
    let name = machine.name();
    let hint = match machine.named_memories() {
        [] => "add [remote_memory] to the machine, or set `tensor_loc` to 1 for local memory"
            .to_owned(),
        named => format!(
            "name one of its memories with the attribute `remote_memory`: {}; or add [remote_memory]",
            list_memory_names(named)
        ),
    };
    let found = match machine.named_memories() {
        [] => format!("the node accesses remote memory, but machine `{name}` has none"),
        _ => format!(
            "the node does not name a remote memory, but all remote memories of machine `{name}` have names"
        ),
    };
    (found, hint)
}

/// Builds the error for a load from or store to a memory that `machine` lacks.
fn unknown_memory_error(machine: &Machine, name: &str) -> (String, String) {
    let name = escape_and_shorten_name(name);
    let found = format!(
        "the node accesses the remote memory \"{name}\", which machine `{}` does not have",
        machine.name()
    );
    let hint = match machine.named_memories() {
        [] => format!("add [remote_memories.{name}] to the machine"),
        named => format!("it has {}", list_memory_names(named)),
    };
    (found, hint)
}

fn list_memory_names(memories: &[NamedRemoteMemory]) -> String {
    let names: Vec<_> = memories
        .iter()
        .map(|memory| escape_and_shorten_name(&memory.name))
        .collect();
    names.join(", ")
}
