//! Kernels that the compute model cannot price: arithmetic in a format for which an NPU class has no peak.
//!
//! A kernel whose bytes are known and whose FLOPs are not is priced by its bytes, whatever its format, and a recorded
//! kernel keeps its duration. Any other would take no time although it computes, so it is refused.

use super::error::ReplayRefusal;
use super::matching;
use crate::ids::{NodeIndex, Rank};
use crate::machine::Machine;
use crate::trace::Dtype;
use crate::workload::Workload;
use std::collections::BTreeMap;

/// Unpriced kernels by NPU class and format.
#[derive(Debug, Default)]
pub(super) struct UnpricedKernels(BTreeMap<(usize, Option<Dtype>), UnpricedFormat>);

/// Kernels of one format.
#[derive(Clone, Copy, Debug)]
struct UnpricedFormat {
    count: u64,
    /// First kernel of the lowest rank.
    rank: Rank,
    node: NodeIndex,
}

impl UnpricedKernels {
    /// Adds a kernel of a graph, before rank and class are known.
    pub fn kernel(&mut self, dtype: Option<Dtype>, node: NodeIndex) {
        let first = UnpricedFormat {
            count: 0,
            rank: Rank(0),
            node,
        };
        self.0.entry((0, dtype)).or_insert(first).count += 1;
    }

    /// Adds the kernels of `graph` for `rank`, which comes after those added before, and a class.
    pub fn add(&mut self, graph: &Self, rank: Rank, class: usize) {
        for (&(_, dtype), kernels) in &graph.0 {
            let first = UnpricedFormat {
                count: 0,
                rank,
                ..*kernels
            };
            self.0.entry((class, dtype)).or_insert(first).count += kernels.count;
        }
    }

    /// Refuses the kernels, if there are any.
    pub fn refuse(&self, workload: &Workload, machine: &Machine) -> Result<(), ReplayRefusal> {
        let lowest = self
            .0
            .iter()
            .min_by_key(|(_, kernels)| (kernels.rank, kernels.node));
        let Some((&(class, dtype), kernels)) = lowest else {
            return Ok(());
        };
        let class = &machine.classes()[class];
        let mut instances = workload
            .instances()
            .iter()
            .filter(|instance| instance.rank == kernels.rank);
        let first = instances.next().map_or_else(String::new, |instance| {
            let graph = workload.graph(instance);
            matching::describe(instance.rank, graph, kernels.node)
        });
        let has: Vec<_> = class.peaks.formats().map(|(d, _)| d.to_string()).collect();
        let has = if has.is_empty() {
            "has no peaks".to_owned()
        } else {
            format!("computes in {}", has.join(", "))
        };
        let of =
            |dtype: Option<Dtype>| dtype.map_or("no stated format".to_owned(), |d| d.to_string());
        let counts = self.0.iter().map(|(&(class, dtype), kernels)| {
            let on = match machine.classes().len() {
                1 => String::new(),
                _ => format!(" on `{}`", machine.classes()[class].name),
            };
            format!("{} in {}{on}", kernels.count, of(dtype))
        });
        let counts: Vec<_> = counts.collect();
        let (format, key) = (of(dtype), dtype.unwrap_or(Dtype::Bf16));
        Err(ReplayRefusal::new(
            format!(
                "{first}: it computes in {format}, and class `{}` of machine `{}` {has}; kernels of the job \
                 without a price: {}",
                class.name,
                machine.name(),
                counts.join(", "),
            ),
            format!(
                "a machine with a peak for {key}; a job in a format that this one has; or, where {key} is to run \
                 at another format's rate, a machine file that says so: {key} = \"… TFLOP/s\" in \
                 [npu.{}.peak]",
                class.name
            ),
        ))
    }
}
