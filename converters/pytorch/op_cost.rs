//! Computes the FLOPs and bytes of a rank's operators, and counts each operator's work once.

use super::host::{HostNode, HostTrace};
use super::op_work::{self, KernelComputeOrMoveHint, OpCost, OperatorArguments};
use super::rank_timeline::{DeviceInterval, HostIntervalKind, JoinedRankCapture, NONE};
use super::tensor_lists;
use super::view_operators::moves_nothing;
use chakram_trace::graph::DistinctKeyInterner;

/// The cost of each host interval. Work is counted once, at the innermost operator that does it. The kernels of an
/// operator share its cost in proportion to their time. The cost of an operator that launches kernels itself is
/// computed from its own tensors, whatever its library.
///
/// If an operator's children together move about as many bytes as its own tensors hold, it does no work of its own. If
/// its tensors hold more than twice its children's bytes, it does work of its own too. Such children are only small
/// steps, such as the conversion of a scalar.
#[derive(Debug)]
pub struct IntervalFlopsAndBytesTable {
    /// Cost of each host interval; empty unless host operators count as compute.
    of: Vec<OpCost>,
    /// Host intervals that launch kernels themselves, in ascending order.
    launched: Vec<HostIntervalLaunchedKernelTotals>,
    /// For each kernel name, in the order of text indices: true if the name shows that the kernel computes.
    hints: Vec<(u32, KernelComputeOrMoveHint)>,
}

/// Host interval that launches kernels itself.
#[derive(Clone, Copy, Debug)]
struct HostIntervalLaunchedKernelTotals {
    item: u32,
    /// Cost of all kernels that the host interval launches.
    cost: OpCost,
    /// Total time of the host interval's own kernels, in ns.
    time: u64,
    /// Event of the first kernel that the host interval launches.
    kernel: u32,
}

impl IntervalFlopsAndBytesTable {
    /// Computes the costs of the host intervals of `rank`. Host operators get costs only if
    /// `host_computes` is true.
    pub fn new(rank: &JoinedRankCapture, host_computes: bool) -> Self {
        let mut this = Self {
            of: if host_computes {
                costs_of_host_intervals(rank)
            } else {
                Vec::new()
            },
            launched: Vec::new(),
            hints: hint_which_kernels_compute_or_move(rank),
        };
        for device in &rank.devices {
            let operator = rank.operator_of_device_event(device);
            if operator != NONE {
                this.launched.push(HostIntervalLaunchedKernelTotals {
                    item: operator,
                    cost: OpCost::default(),
                    time: duration_of_device_interval(device),
                    kernel: device.event,
                });
            }
        }
        this.launched.sort_by_key(|launched| launched.item);
        this.launched.dedup_by(|later, first| {
            let same = later.item == first.item;
            if same {
                first.time = first.time.saturating_add(later.time);
            }
            same
        });
        this.launched.shrink_to_fit();
        let mut known = OperatorCostCacheByShapesAndFirstKernel::default();
        for launched in &mut this.launched {
            let host = rank.items[launched.item as usize].host;
            let node = rank.host.nodes.get(host as usize);
            let Some(node) = node.filter(|_| launched.time > 0) else {
                continue;
            };
            launched.cost = known.cached_cost_of_launching_operator(rank, node, launched.kernel);
        }
        this
    }

    /// Returns the cost of `item`. Returns zero if `item` does no work, or if its children already
    /// count its work.
    pub fn cost_of_host_interval(&self, item: u32) -> OpCost {
        self.of.get(item as usize).copied().unwrap_or_default()
    }

    /// Returns the cost of the kernel `device`, which the operator `item` launched. The operator's cost is divided
    /// among its kernels in proportion to their times. `name` is the index of the kernel's name.
    pub fn kernel_share_of_operator_cost(
        &self,
        item: u32,
        device: &DeviceInterval,
        name: u32,
    ) -> OpCost {
        let found = self
            .launched
            .binary_search_by_key(&item, |launched| launched.item);
        let mut cost = found.map_or_else(
            |_| OpCost::default(),
            |found| {
                let HostIntervalLaunchedKernelTotals { cost, time, .. } = self.launched[found];
                cost.scale_by_time_fraction(duration_of_device_interval(device), time)
            },
        );
        if cost.flops == 0 {
            let hint = self.hints.binary_search_by_key(&name, |&(name, _)| name);
            match hint.map(|hint| self.hints[hint].1) {
                Ok(KernelComputeOrMoveHint::Computes) => cost.flops_unknown = true,
                Ok(KernelComputeOrMoveHint::Moves) => cost.flops_unknown = false,
                Ok(KernelComputeOrMoveHint::Unclear) | Err(_) => {}
            }
        }
        cost
    }
}

/// Returns, for each kernel name of `rank` in the order of text indices, true if the name shows that the kernel
/// computes.
fn hint_which_kernels_compute_or_move(
    rank: &JoinedRankCapture,
) -> Vec<(u32, KernelComputeOrMoveHint)> {
    let devices = rank.devices.iter();
    let mut names: Vec<u32> = devices
        .map(|device| rank.events[device.event as usize].name)
        .collect();
    names.sort_unstable();
    names.dedup();
    let hints = names.into_iter();
    let hints = hints.map(|name| {
        (
            name,
            op_work::compute_or_move_hint_of_kernel(rank.kineto.texts.get(name)),
        )
    });
    hints
        .filter(|(_, hint)| *hint != KernelComputeOrMoveHint::Unclear)
        .collect()
}

/// Returns the cost of each host interval of `rank`. The cost is zero if the interval does no work,
/// or if its children already count its work.
fn costs_of_host_intervals(rank: &JoinedRankCapture) -> Vec<OpCost> {
    let count = rank.items.len();
    let mut of = vec![OpCost::default(); count];
    let mut known = OperatorCostCache::default();
    // In the list, host intervals come after the intervals that enclose them, so the reverse order
    // visits children first.
    let mut inside = vec![OpCost::default(); count];
    for (i, item) in rank.items.iter().enumerate().rev() {
        let mut whole = inside[i];
        if rank.kind_of_host_interval(item) == HostIntervalKind::Operator
            && let Some(node) = rank.host.nodes.get(item.host as usize)
        {
            let own = if returns_view(&rank.host, item.host) {
                OpCost::default()
            } else {
                known.cost_of_node(&rank.host, node)
            };
            let computes = own.flops > 0 || own.flops_unknown;
            let inside_computes = whole.flops > 0 || whole.flops_unknown;
            if !inside_computes && (computes || own.bytes / 2 > whole.bytes) {
                of[i] = own;
                whole = own;
            }
        }
        if let Some(parent) = inside.get_mut(item.parent as usize) {
            parent.flops = parent.flops.saturating_add(whole.flops);
            parent.bytes = parent.bytes.saturating_add(whole.bytes);
            parent.flops_unknown |= whole.flops_unknown;
        }
    }
    of
}

/// Cache of operator costs, by the shapes of the arguments.
#[derive(Default)]
struct OperatorCostCache {
    operators: DistinctKeyInterner<(u32, u32)>,
    costs: Vec<OpCost>,
}

impl OperatorCostCache {
    fn cost_of_node(&mut self, host: &HostTrace, node: &HostNode) -> OpCost {
        let operator = self.operators.intern_key((node.name, node.form)) as usize;
        if operator == self.costs.len() {
            let plain = host.texts.get(node.name).strip_prefix("aten::");
            let plain = plain.filter(|plain| !moves_nothing(plain));
            let cost = plain.map_or_else(OpCost::default, |plain| operator_cost(host, node, plain));
            self.costs.push(cost);
        }
        self.costs[operator]
    }
}

/// Returns the cost of an operator; `plain` is the operator's name without `aten::`.
fn operator_cost(host: &HostTrace, node: &HostNode, plain: &str) -> OpCost {
    let form = host.shared_properties_of_node(node);
    let text = |number| host.texts.get(number);
    let mut operands = OperatorArguments::new(
        text(form.shapes_in),
        text(form.types_in),
        text(form.shapes_out),
        text(form.values),
    );
    operands.outputs_recorded = host.is_from_observer();
    op_work::estimate_cost(
        plain,
        &operands,
        form.bytes_in.saturating_add(form.bytes_out),
    )
}

/// Cache of the costs of operators that launch kernels themselves, by shapes and first kernel.
#[derive(Default)]
struct OperatorCostCacheByShapesAndFirstKernel {
    operators: DistinctKeyInterner<(u32, u32, u32)>,
    costs: Vec<OpCost>,
}

impl OperatorCostCacheByShapesAndFirstKernel {
    /// Returns the cost of an operator; `kernel` is the event of the operator's first kernel.
    fn cached_cost_of_launching_operator(
        &mut self,
        rank: &JoinedRankCapture,
        node: &HostNode,
        kernel: u32,
    ) -> OpCost {
        let name = rank.events[kernel as usize].name;
        let operator = self.operators.intern_key((node.name, node.form, name)) as usize;
        if operator == self.costs.len() {
            self.costs.push(work_of_operator_that_launches_kernels(
                rank,
                node,
                rank.event_name(kernel),
            ));
        }
        self.costs[operator]
    }
}

/// Returns the cost of an operator that launches kernels itself; `kernel` is the name of its first kernel.
fn work_of_operator_that_launches_kernels(
    rank: &JoinedRankCapture,
    node: &HostNode,
    kernel: &str,
) -> OpCost {
    let texts = &rank.host.texts;
    let name = texts.get(node.name);
    let plain = name.strip_prefix("aten::").unwrap_or(name);
    let mut cost = operator_cost(&rank.host, node, plain);
    // If an observer counted the bytes, the count already includes tensors in lists.
    let listed = match rank.host.is_from_observer() || op_work::is_row_lookup(plain) {
        true => None,
        false => tensor_lists::bytes_moved_by_tensor_list_kernel(
            texts.get(rank.host.shared_properties_of_node(node).shapes_in),
            kernel,
        ),
    };
    cost.bytes = cost.bytes.saturating_add(listed.unwrap_or(0));
    cost
}

pub(super) fn duration_of_device_interval(device: &DeviceInterval) -> u64 {
    u64::try_from(device.end.saturating_sub(device.start)).unwrap_or(0)
}

/// Returns true if an operator only returns views of its inputs: all its results share the inputs' storages, and its
/// schema says that it writes no input.
fn returns_view(host: &HostTrace, index: u32) -> bool {
    let [inputs, outputs] = host.input_and_output_storages_of_node(index);
    let node = &host.nodes[index as usize];
    let schema = host
        .texts
        .get(host.shared_properties_of_node(node).op_schema);
    !outputs.is_empty()
        && !schema.is_empty()
        && !schema.contains('!')
        && outputs.iter().all(|storage| inputs.contains(storage))
}
