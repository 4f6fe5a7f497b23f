//! A rank's statistics as ASTRA-sim defines them. They include only values that follow from the rank's trace and the
//! system file.

use super::trace::astra_kind_of_compute_node;
use super::{AstraInputs, AstraSystemFile};
use chakram_base::units::Span;
use chakram_trace::graph::{Graph, NodeKind};

/// A rank's work, known before the rank runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankWorkKindsAndKernelTime {
    /// Sum of the kernels' durations. ASTRA-sim does not count this time towards *exposed communication*. If all nodes
    /// take their recorded durations (a pure replay), this is the sum over all nodes except host work.
    pub busy: Span,
    /// True if any node is host work.
    pub host: bool,
    /// True if any node is a kernel.
    pub kernels: bool,
    /// True if any node is a collective, a send or a receive.
    pub communication: bool,
    /// True if any node is a load or store.
    pub memory: bool,
    /// True if any node does nothing.
    pub nothing: bool,
    /// True if [`astra_kind_of_compute_node`] classifies a [`NodeKind::Compute`] node as something other than a kernel.
    pub stand_ins: bool,
    /// Mean utilization of the NPU by kernels; `None` unless the system file enables the roofline model.
    pub roofline: Option<RooflineMeans>,
}

/// Means over the total time of kernels and host nodes; host nodes count as 0 FLOP/s and 0 bytes/s. As in ASTRA-sim,
/// the total time is one nanosecond too long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RooflineMeans {
    /// Fraction of the total time that compute-bound kernels (those limited by the peak FLOP/s) take.
    pub compute_bound: f64,
    /// Mean FLOP/s, as a fraction of the peak.
    pub compute: f64,
    /// Mean bytes/s, as a fraction of the bandwidth.
    pub memory: f64,
    /// Mean FLOPs per byte.
    pub intensity: f64,
}

impl RankWorkKindsAndKernelTime {
    /// Adds up the work in a graph built by an [`AstraTraceGraphReader`](super::AstraTraceGraphReader) for `inputs`.
    pub fn sum_work_of_graph(graph: &Graph, inputs: &AstraInputs) -> Self {
        let system = &inputs.system;
        let mut work = Self::default();
        let mut uses = TimeWeightedRooflineSums::default();
        for node in graph.nodes() {
            let kind = graph.kind(node);
            let (timed, recorded) = (kind == NodeKind::Compute, graph.recorded_duration(node));
            let kind = if timed {
                astra_kind_of_compute_node(graph, node)
            } else {
                kind
            };
            match kind {
                NodeKind::Nothing => work.nothing = true,
                NodeKind::Host => {
                    work.host = true;
                    uses.time += recorded;
                }
                NodeKind::Compute => {
                    work.kernels = true;
                    work.busy += recorded;
                    uses.time += recorded;
                    if system.roofline && !system.replay_only {
                        uses.add_kernel(
                            graph.flops(node),
                            graph.stated_bytes_of_node(node),
                            recorded,
                            system,
                        );
                    }
                }
                NodeKind::Send
                | NodeKind::Receive
                | NodeKind::Collective
                | NodeKind::Communication => work.communication = true,
                NodeKind::LocalMemory | NodeKind::RemoteMemory => work.memory = true,
            }
            if timed && kind != NodeKind::Compute {
                work.stand_ins = true;
                if system.replay_only {
                    work.busy += recorded;
                }
            }
        }
        work.roofline = system.roofline.then(|| uses.mean_values());
        work
    }
}

/// Sums of values, each weighted by its duration in ns.
#[derive(Default)]
struct TimeWeightedRooflineSums {
    time: Span,
    bound: f64,
    compute: f64,
    memory: f64,
    intensity: f64,
}

impl TimeWeightedRooflineSums {
    fn add_kernel(&mut self, flops: u64, bytes: u64, lasts: Span, system: &AstraSystemFile) {
        let bandwidth = system.local_memory_bandwidth.unwrap_or(0.0) * 1e9;
        let peak = system.peak * 1e12;
        if bytes == 0 {
            return;
        }
        let ns = as_ns(lasts);
        let intensity = flops as f64 / bytes as f64;
        let reached = (bandwidth * intensity).min(peak);
        if reached >= peak {
            self.bound += ns;
        }
        self.compute += ns * reached / peak;
        // Only the bandwidth limits a kernel without FLOPs.
        let memory = match flops {
            0 => 1.0,
            _ => reached / intensity / bandwidth,
        };
        self.memory += ns * memory;
        self.intensity += ns * intensity;
    }

    fn mean_values(&self) -> RooflineMeans {
        let time = 1.0 + as_ns(self.time);
        RooflineMeans {
            compute_bound: self.bound / time,
            compute: self.compute / time,
            memory: self.memory / time,
            intensity: self.intensity / time,
        }
    }
}

fn as_ns(span: Span) -> f64 {
    (span.0 / 1000) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{build_rank_graph_of_nodes, read_two_npu_inputs};
    use chakram_trace::format::Op;

    const KERNEL: fn(u64, u64) -> Op<'static> = |flops, bytes| Op::Compute {
        flops,
        bytes,
        dtype: None,
    };

    #[test]
    fn means_are_weighted_with_time() {
        // With 1 TFLOPS and 100 GB/s, the ridge is at 10 FLOPs per byte.
        let system = r#"{"preferred-dataset-splits": 1, "roofline-enabled": 1, "peak-perf": 1,
            "local-mem-bw": 100, "all-reduce-implementation": ["ring"]}"#;
        let inputs = read_two_npu_inputs(system);
        // 20,000 FLOPs on 1,000 bytes give 20 FLOPs per byte. A kernel of this intensity takes 20 ns at the peak, and
        // uses half of the bandwidth. 1,000 FLOPs on 1,000 bytes give 1 FLOP per byte. A kernel of this second
        // intensity takes 10 ns at the full bandwidth, and uses a tenth of the peak. A kernel with 2,900 bytes and no
        // FLOPs takes 29 ns. The 2,000 ns of host work count as 0 FLOPs on 0 bytes.
        let nodes = [
            (KERNEL(20_000, 1_000), 0),
            (KERNEL(1_000, 1_000), 0),
            (KERNEL(0, 2_900), 0),
            (KERNEL(7, 0), 0),
            (Op::Host, 2),
        ];
        let work = RankWorkKindsAndKernelTime::sum_work_of_graph(
            &build_rank_graph_of_nodes(&inputs, &nodes),
            &inputs,
        );
        assert_eq!(work.busy, Span::from_ns(20 + 10 + 29));
        // The total time is 20 + 10 + 29 + 2,000 + 1 = 2,060 ns.
        let found = work.roofline.unwrap();
        for (found, expected) in [
            (found.compute_bound, 20.0 / 2060.0),
            (found.compute, (20.0 + 0.1 * 10.0) / 2060.0),
            (found.memory, (0.5 * 20.0 + 10.0 + 29.0) / 2060.0),
            (found.intensity, (20.0 * 20.0 + 10.0) / 2060.0),
        ] {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
        assert!(work.host && work.kernels && !work.communication && !work.memory);
        assert!(!work.stand_ins && !work.nothing);
    }

    #[test]
    fn a_pure_replay_tells_memory_from_communication() {
        let system = r#"{"preferred-dataset-splits": 1, "replay-only": 1}"#;
        let inputs = read_two_npu_inputs(system);
        let memory = Op::Memory {
            store: false,
            place: chakram_trace::format::MemoryLocation::Remote,
            bytes: 5,
            in_switch: false,
        };
        let send = Op::Message {
            receive: false,
            peer: 1,
            tag: 0,
            bytes: 5,
            own: None,
            host: false,
        };
        // Busy time includes all nodes except host nodes: 3 us + 4 us, and 1 ns for the node without a recorded
        // duration.
        let graph =
            build_rank_graph_of_nodes(&inputs, &[(memory, 3), (send, 4), (Op::Host, 9), (send, 0)]);
        let work = RankWorkKindsAndKernelTime::sum_work_of_graph(&graph, &inputs);
        assert_eq!(work.busy, Span::from_ns(7_001));
        assert!(work.memory && work.communication && work.host && !work.kernels);
        assert!(work.stand_ins);
        let only = RankWorkKindsAndKernelTime::sum_work_of_graph(
            &build_rank_graph_of_nodes(&inputs, &[(memory, 3)]),
            &inputs,
        );
        assert!(only.memory && !only.communication);
    }
}
