//! Writes the inputs of a run: the traces, which are identical on all ranks, and the other files.

use chakram::trace::{CollectiveKind, GroupName, NodeView, Op, Sink, TraceWriter};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// The work that every NPU does.
#[derive(Clone, Copy)]
pub enum BenchmarkNpuWorkKind {
    /// Data-parallel training in whole iterations, with no more than this many nodes.
    Training(u64),
    /// This many all-reduces of 1 MiB, all ready at the start.
    AllReduces(u64),
    /// One kernel.
    Kernel,
}

/// The layout of the ranks' files.
#[derive(Clone, Copy)]
pub enum LinkedOrCopiedRankFiles {
    /// One file, to which every rank has a link.
    Linked,
    /// A separate copy for each rank.
    Copied,
}

/// A network whose dimensions are all of one kind and whose links are all equally fast.
pub struct UniformNetwork {
    /// `Ring` or `FullyConnected`.
    pub kind: &'static str,
    /// The number of NPUs along each dimension.
    pub dimensions: &'static [u64],
    /// The bandwidth of each link, in GB/s.
    pub bandwidth: u64,
    /// The latency of each link, in nanoseconds.
    pub latency: u64,
}

/// The settings that control how collectives and kernels are simulated.
pub struct AstraSystemSettings {
    /// `ring` or `direct`.
    pub algorithm: &'static str,
    /// `baseline` or `localBWAware`.
    pub optimization: &'static str,
    /// The number of chunks into which a collective is split.
    pub splits: u64,
    /// The maximum number of chunks that may be in one dimension at once.
    pub active: u64,
    /// The bandwidth of an NPU's memory, in GB/s.
    pub memory: u64,
    /// The peak rate of an NPU, in TFLOPS. If there is a peak rate, the roofline model times
    /// kernels; otherwise kernels take their recorded time.
    pub peak: Option<u64>,
}

const LAYERS: u64 = 32;
const HIDDEN: u64 = 4096;
const TOKENS: u64 = 4096;

/// The forward kernels of a layer, each with its relative share of the layer's operations and bytes.
const KERNELS: [(&str, f64, u64); 6] = [
    ("qkv", 6.0, 4),
    ("attn", 4.0, 6),
    ("proj", 2.0, 2),
    ("ln", 0.02, 2),
    ("mlp1", 8.0, 5),
    ("mlp2", 8.0, 5),
];

/// The number of nodes in a layer: forward and backward kernels, the all-reduce, and the optimizer.
const NODES_OF_LAYER: u64 = 2 * KERNELS.len() as u64 + 2;

impl BenchmarkNpuWorkKind {
    fn iterations_for_node_count(nodes: u64) -> u64 {
        nodes / (LAYERS * NODES_OF_LAYER)
    }

    /// Returns the number of all-reduces that each NPU executes.
    pub fn all_reduce_count_per_npu(self) -> u64 {
        match self {
            Self::Training(nodes) => Self::iterations_for_node_count(nodes) * LAYERS,
            Self::AllReduces(count) => count,
            Self::Kernel => 0,
        }
    }

    fn append_nodes_to_trace(self, out: &mut BenchTraceFileWriter) {
        match self {
            Self::Training(nodes) => {
                append_training_nodes(out, Self::iterations_for_node_count(nodes))
            }
            Self::AllReduces(count) => {
                for i in 0..count {
                    out.all_reduce(&format!("all_reduce.{i}"), 1 << 20, &[]);
                }
            }
            Self::Kernel => {
                out.append_compute_kernel("kernel", 1_000_000_000, 1_000_000, &[]);
            }
        }
    }
}

impl UniformNetwork {
    /// Returns the number of NPUs.
    pub fn npus(&self) -> u64 {
        self.dimensions.iter().product()
    }

    /// Returns the number of messages in an all-reduce with one chunk. In each dimension, every NPU
    /// sends two messages to each other NPU: one to scatter and one to gather.
    pub fn messages_per_all_reduce(&self) -> u64 {
        let steps = self.dimensions.iter().map(|npus| 2 * (npus - 1));
        self.npus() * steps.sum::<u64>()
    }

    fn yaml(&self) -> String {
        let list = |of: &dyn Fn(u64) -> String| {
            let values: Vec<_> = self.dimensions.iter().map(|npus| of(*npus)).collect();
            values.join(", ")
        };
        format!(
            "topology: [ {} ]\nnpus_count: [ {} ]\nbandwidth: [ {} ]\nlatency: [ {} ]\n",
            list(&|_| self.kind.to_owned()),
            list(&|npus| npus.to_string()),
            list(&|_| self.bandwidth.to_string()),
            list(&|_| self.latency.to_string()),
        )
    }
}

impl AstraSystemSettings {
    fn json(&self, dimensions: usize) -> String {
        let algorithms = vec![format!("\"{}\"", self.algorithm); dimensions].join(", ");
        let kinds = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"];
        let kinds = kinds.map(|kind| format!("  \"{kind}-implementation\": [{algorithms}],\n"));
        format!(
            "{{\n  \"scheduling-policy\": \"LIFO\",\n  \"endpoint-delay\": 10,\n  \
             \"active-chunks-per-dimension\": {},\n  \"preferred-dataset-splits\": {},\n{}  \
             \"collective-optimization\": \"{}\",\n  \"local-mem-bw\": {},\n  \
             \"roofline-enabled\": {},\n  \"peak-perf\": {}\n}}\n",
            self.active,
            self.splits,
            kinds.concat(),
            self.optimization,
            self.memory,
            u8::from(self.peak.is_some()),
            self.peak.unwrap_or(0),
        )
    }
}

/// Writes all inputs into `folder`: traces `wl.<rank>.et`, `system.json`, `network.yml` and
/// `memory.json`.
pub fn write_astra_inputs(
    folder: &Path,
    work: BenchmarkNpuWorkKind,
    files: LinkedOrCopiedRankFiles,
    network: &UniformNetwork,
    system: &AstraSystemSettings,
) {
    let first = folder.join("wl.0.et");
    let mut trace = BenchTraceFileWriter::new(&first);
    work.append_nodes_to_trace(&mut trace);
    trace.finish();
    for rank in 1..network.npus() {
        let path = folder.join(format!("wl.{rank}.et"));
        match files {
            LinkedOrCopiedRankFiles::Linked => fs::hard_link(&first, path),
            LinkedOrCopiedRankFiles::Copied => fs::copy(&first, path).map(|_| ()),
        }
        .expect("there is room for it");
    }
    for (name, text) in [
        ("system.json", system.json(network.dimensions.len())),
        ("network.yml", network.yaml()),
        (
            "memory.json",
            "{\"memory-type\": \"NO_MEMORY_EXPANSION\"}\n".to_owned(),
        ),
    ] {
        fs::write(folder.join(name), text).expect("there is room for it");
    }
}

/// Writes the traces of a transformer's training. Each layer's gradients are reduced as soon as the layer's backward
/// pass has ended, concurrently with the backward passes of lower layers. The layer's optimizer waits for the
/// reduction, and its next forward pass waits for the optimizer.
fn append_training_nodes(out: &mut BenchTraceFileWriter, iterations: u64) {
    let operations = (2 * TOKENS * HIDDEN * HIDDEN) as f64;
    let weights = 12 * HIDDEN * HIDDEN;
    let mut optimizers: Vec<Option<u64>> = vec![None; LAYERS as usize];
    for i in 0..iterations {
        let mut before = None;
        for (layer, optimizer) in optimizers.iter().enumerate() {
            for (k, (name, share, bytes)) in KERNELS.iter().enumerate() {
                let waits = before.into_iter();
                let waits: Vec<u64> = match k {
                    0 => waits.chain(*optimizer).collect(),
                    _ => waits.collect(),
                };
                let operations = (share * operations / 6.0) as u64;
                let name = format!("f{i}.{layer}.{name}");
                before = Some(out.append_compute_kernel(
                    &name,
                    operations,
                    bytes * TOKENS * HIDDEN,
                    &waits,
                ));
            }
        }
        for (layer, optimizer) in optimizers.iter_mut().enumerate().rev() {
            for (name, share, bytes) in KERNELS.iter().rev() {
                let operations = (2.0 * share * operations / 6.0) as u64;
                let name = format!("b{i}.{layer}.{name}");
                let bytes = 2 * bytes * TOKENS * HIDDEN;
                before =
                    Some(out.append_compute_kernel(&name, operations, bytes, before.as_slice()));
            }
            let reduced = out.all_reduce(&format!("ar{i}.{layer}"), weights * 2, before.as_slice());
            let name = format!("o{i}.{layer}");
            *optimizer = Some(out.append_compute_kernel(&name, weights, weights * 4, &[reduced]));
        }
    }
}

/// A trace under construction.
struct BenchTraceFileWriter {
    writer: TraceWriter<BufWriter<File>>,
    next: u64,
}

impl BenchTraceFileWriter {
    fn new(path: &Path) -> Self {
        let file = File::create(path).expect("there is room for it");
        let writer = TraceWriter::new(BufWriter::new(file)).expect("there is room for it");
        Self { writer, next: 1 }
    }

    fn append_node(&mut self, name: &str, op: Op<'_>, waits: &[u64]) -> u64 {
        let id = self.next;
        self.next += 1;
        let node = NodeView::new(id, name, op);
        self.writer
            .receive_node(&node, waits)
            .expect("there is room for it");
        id
    }

    fn append_compute_kernel(&mut self, name: &str, flops: u64, bytes: u64, waits: &[u64]) -> u64 {
        let op = Op::Compute {
            flops,
            bytes,
            dtype: None,
        };
        self.append_node(name, op, waits)
    }

    fn all_reduce(&mut self, name: &str, bytes: u64, waits: &[u64]) -> u64 {
        let op = Op::Collective {
            kind: CollectiveKind::AllReduce,
            bytes,
            group: GroupName::World,
            root: None,
            dimensions: None,
            host: false,
        };
        self.append_node(name, op, waits)
    }

    fn finish(self) {
        let mut out = self.writer.into_unflushed_sink();
        out.flush().expect("there is room for it");
    }
}
