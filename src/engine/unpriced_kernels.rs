//! Finds kernels without a known duration. A kernel's duration is unknown in two cases. Either the machine states no
//! suitable rate (the number format has no peak rate, or the NPU is not described), or the trace states neither FLOPs
//! nor bytes.
//!
//! If a kernel's bytes are known but its FLOPs are not, its duration follows from the bytes in any format. A recorded
//! kernel keeps its duration. An arithmetic kernel without a known duration would take no time, so the engine treats it
//! as an error. If most kernels have a recorded duration, the few without one are only counted and reported. If most
//! kernels have no known duration, the report would be meaningless, so the engine returns an error.

use super::coverage::DurationSourceCounts;
use super::error::ReplayRefusal;
use super::matching;
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::setting::SettingKey;
use chakram_hardware::compute::KernelDurationSource;
use chakram_hardware::machine::{Machine, is_inline_machine_notation};
use chakram_trace::format::Dtype;
use chakram_trace::workload::Workload;
use std::collections::BTreeMap;

/// Kernels without a known duration: kernels with FLOPs, by NPU class and number format, and kernels with neither FLOPs
/// nor bytes.
#[derive(Debug, Default)]
pub(super) struct UntimedKernels {
    formats: BTreeMap<(usize, Option<Dtype>), UntimedKernelsInFormat>,
    /// The first kernels with neither FLOPs nor bytes, on the lowest rank that has such kernels.
    bare: Vec<(Rank, NodeIndex)>,
}

/// Kernels that use one number format and have no known duration.
#[derive(Clone, Copy, Debug)]
struct UntimedKernelsInFormat {
    count: u64,
    /// Lowest rank with such a kernel; `node` is the first such kernel on that rank.
    rank: Rank,
    node: NodeIndex,
}

/// Maximum number of kernels that an error names.
const NAMED: usize = 3;

impl UntimedKernels {
    /// Adds a kernel whose number format has no peak rate. [`Self::add_kernels_of_rank_graph`] sets the kernel's rank
    /// and class later.
    pub fn add_kernel_without_peak(&mut self, dtype: Option<Dtype>, node: NodeIndex) {
        let first = UntimedKernelsInFormat {
            count: 0,
            rank: Rank(0),
            node,
        };
        self.formats.entry((0, dtype)).or_insert(first).count += 1;
    }

    /// Returns true if all kernels have a known duration.
    pub fn is_empty(&self) -> bool {
        self.formats.is_empty() && self.bare.is_empty()
    }

    /// Adds a kernel that has neither FLOPs nor bytes.
    pub fn add_kernel_without_work(&mut self, node: NodeIndex) {
        if self.bare.len() < NAMED {
            self.bare.push((Rank(0), node));
        }
    }

    /// Adds the kernels collected for a graph, which `rank` executes on an NPU of class `class`. The caller must add
    /// ranks in ascending order.
    pub fn add_kernels_of_rank_graph(&mut self, graph: &Self, rank: Rank, class: usize) {
        for (&(_, dtype), kernels) in &graph.formats {
            let first = UntimedKernelsInFormat {
                count: 0,
                rank,
                ..*kernels
            };
            self.formats.entry((class, dtype)).or_insert(first).count += kernels.count;
        }
        if self.bare.is_empty() {
            self.bare = graph.bare.iter().map(|&(_, node)| (rank, node)).collect();
        }
    }

    /// Fails if an arithmetic kernel has no known duration. Otherwise returns the number of kernels that take no time.
    /// If most kernels take no time, it also returns an error for the reports to show. `basis` counts all other
    /// kernels.
    pub fn count_or_refuse_untimed_kernels(
        &self,
        workload: &Workload,
        machine: &Machine,
        compute: KernelDurationSource,
        basis: &DurationSourceCounts,
    ) -> Result<(u64, Option<ReplayRefusal>), ReplayRefusal> {
        let computing = self.formats.values().map(|kernels| kernels.count).sum();
        if compute.allows_zero_time_kernels() {
            return Ok((computing, None));
        }
        let recorded = if compute.ignores_recorded_durations() {
            0
        } else {
            basis.priced
        };
        let priced = basis.estimated + basis.by_curves + basis.fell_back + basis.kept;
        let others = priced + basis.unknown + computing;
        let mut classes = self.formats.keys().map(|&(class, _)| class);
        let unknown = classes.any(|class| machine.npu_classes()[class].memory.is_none());
        if computing > 0 && (recorded <= others || unknown) {
            return Err(self.build_missing_peak_rate_error(workload, machine));
        }
        let all = basis.priced + others;
        let unpriced = basis.unknown + computing;
        let refusal =
            (2 * unpriced > all).then(|| self.kernels_without_time_error(workload, unpriced, all));
        Ok((computing, refusal))
    }

    /// Builds the error for a replay in which most kernels take no time.
    fn kernels_without_time_error(
        &self,
        workload: &Workload,
        unpriced: u64,
        all: u64,
    ) -> ReplayRefusal {
        let first: Vec<_> = self
            .bare
            .iter()
            .map(|&(rank, node)| describe_node(workload, rank, node))
            .collect();
        ReplayRefusal::new(
            format!(
                "{unpriced} of {all} kernels have no time: the trace states neither a duration nor \
                 FLOPs or bytes for them; the first: {}",
                first.join(", ")
            ),
            format!(
                "traces with durations (`duration_micros` or `duration_ns`), or with FLOPs and bytes \
                 (`num_ops`, `tensor_size`), from which the roofline computes times; or {} scaled:0, which \
                 leaves kernels out and replays only communication",
                SettingKey::Compute
            ),
        )
    }

    /// Builds the error for kernels in number formats without a peak rate. There must be at least one.
    fn build_missing_peak_rate_error(
        &self,
        workload: &Workload,
        machine: &Machine,
    ) -> ReplayRefusal {
        let lowest = self
            .formats
            .iter()
            .min_by_key(|(_, kernels)| (kernels.rank, kernels.node));
        let (&(class, dtype), kernels) = lowest.expect("there are some");
        let class = &machine.npu_classes()[class];
        let first = describe_node(workload, kernels.rank, kernels.node);
        if class.memory.is_none() {
            let all: u64 = self.formats.values().map(|kernels| kernels.count).sum();
            let found = format!(
                "{first}: the kernel has FLOPs or bytes but no recorded duration, like {all} kernels of the job"
            );
            let (found, hint) = machine_without_npu_error_text(machine, &found);
            return ReplayRefusal::new(found, hint);
        }
        let has: Vec<_> = class
            .peaks
            .iter_peaks()
            .map(|(d, _)| d.to_string())
            .collect();
        let has = if has.is_empty() {
            "has no peaks".to_owned()
        } else {
            format!("computes in {}", has.join(", "))
        };
        let of =
            |dtype: Option<Dtype>| dtype.map_or("an unknown format".to_owned(), |d| d.to_string());
        let counts = self.formats.iter().map(|(&(class, dtype), kernels)| {
            let on = match machine.npu_classes().len() {
                1 => String::new(),
                _ => format!(" on `{}`", machine.npu_classes()[class].name),
            };
            format!("{} in {}{on}", kernels.count, of(dtype))
        });
        let counts: Vec<_> = counts.collect();
        let (format, key) = (of(dtype), dtype.unwrap_or(Dtype::Bf16));
        ReplayRefusal::new(
            format!(
                "{first}: the kernel computes in {format}, but class `{}` of machine `{}` {has}; \
                 kernels of the job without a time: {}",
                class.name,
                machine.name(),
                counts.join(", "),
            ),
            format!(
                "a machine with a peak for {key}; a job in a format that this machine has; or, if \
                 {key} runs at another format's rate, a machine file with {key} = \"… TFLOP/s\" in \
                 [npu.{}.peak]",
                class.name
            ),
        )
    }
}

/// Returns an error's problem and hint: `found` needs a rate of an NPU that `machine` does not describe.
pub(super) fn machine_without_npu_error_text(machine: &Machine, found: &str) -> (String, String) {
    let name = machine.name();
    let example = match is_inline_machine_notation(name) {
        true => format!("h100:{name}"),
        false => "h100:Ring(8):50GB/s:500ns".to_owned(),
    };
    (
        format!(
            "{found}, but machine `{name}` describes no NPU, so peak rates and memory are unknown"
        ),
        format!(
            "the NPU of a preset before the dimensions, such as {example}; or a machine file with a table \
             [npu.NAME]"
        ),
    )
}

/// Returns a readable name of a node of `rank`.
fn describe_node(workload: &Workload, rank: Rank, node: NodeIndex) -> String {
    let mut instances = workload.instances().iter();
    let instance = instances.find(|instance| instance.rank == rank);
    instance.map_or_else(String::new, |instance| {
        matching::describe_node(rank, workload.graph_of(instance), node)
    })
}
