//! Arguments for each traffic pattern that the command generates. Each pattern is a subcommand.

use super::TraceOutputOrReplayArgs;
use chakram_base::units::{Bandwidth, Bytes, FlopRate, Span};
use chakram_trace::format::{CollectiveKind, Dtype};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};

mod asked;

#[derive(Debug, Subcommand)]
pub(super) enum PatternArgs {
    /// Collective calls of one kind
    #[command(
        after_help = "Example:\n  chakram generate collective all-gather --size 4MiB --ranks 16 --count 10 --machine dgx-h100x2"
    )]
    Collective {
        /// Kind of collective
        #[arg(value_parser = collective_name_parser())]
        kind: CollectiveKind,
        /// Buffer size of a rank (for all-gather and gather, the size of its shard); 0 for barrier
        #[arg(long, default_value = "0 B", value_name = "SIZE")]
        size: Bytes,
        /// Number of ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Members of the process group in order, such as 0,2,4; all ranks by default
        #[arg(long, value_name = "RANKS", value_delimiter = ',')]
        group: Option<Vec<u32>>,
        /// Number of calls
        #[arg(long, default_value_t = 1, value_name = "N")]
        count: u32,
        /// Make each call depend on the previous call
        #[arg(long)]
        chained: bool,
        /// Root of the collective
        #[arg(long, value_name = "RANK")]
        root: Option<u32>,
        /// Dimensions of the machine to use, such as 0,2 (0 is the innermost); all by default
        #[arg(long, value_name = "DIMENSIONS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..32))]
        dimensions: Option<Vec<u32>>,
        /// Compute time of each member before the collective
        #[arg(long, default_value = "0", value_name = "TIME")]
        before: Span,
        /// Extra compute time per rank index: rank r computes r times this time longer
        #[arg(long, default_value = "0", value_name = "TIME")]
        skew: Span,
        #[command(flatten)]
        target: TraceOutputOrReplayArgs,
    },
    /// Point-to-point messages
    #[command(
        after_help = "Example:\n  chakram generate p2p ring --size 64MiB --ranks 16 --count 4 --machine tpu-v4"
    )]
    P2p {
        /// Traffic pattern
        #[arg(value_enum)]
        traffic: TrafficPatternArg,
        /// Message size
        #[arg(long, value_name = "SIZE")]
        size: Bytes,
        /// Number of ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Number of rounds
        #[arg(long, default_value_t = 1, value_name = "N")]
        count: u32,
        /// Distance for `stride`: rank r sends to rank r + N
        #[arg(long, default_value_t = 1, value_name = "N")]
        stride: u32,
        /// Seed of the permutation for `random`
        #[arg(long, default_value_t = 0, value_name = "N")]
        seed: u64,
        #[command(flatten)]
        target: TraceOutputOrReplayArgs,
    },
    /// Chains of dependent kernels
    #[command(
        after_help = "Example:\n  chakram generate chain --ranks 8 --nodes 100000 --chains 4 --machine dgx-a100"
    )]
    Chain {
        /// Number of ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Kernels per rank
        #[arg(long, value_name = "N")]
        nodes: u32,
        /// Independent chains per rank, each on a separate lane
        #[arg(long, default_value_t = 1, value_name = "N")]
        chains: u32,
        /// Recorded duration of a kernel
        #[arg(long, default_value = "1 us", value_name = "TIME")]
        duration: Span,
        /// FLOPs of a kernel, for the roofline
        #[arg(long, default_value_t = 0, value_name = "N")]
        flops: u64,
        /// Memory traffic of a kernel, for the roofline
        #[arg(long, default_value = "0 B", value_name = "SIZE")]
        bytes: Bytes,
        /// Data type of a kernel, for the roofline
        #[arg(long, value_parser = dtype_name_parser(), value_name = "FORMAT")]
        dtype: Option<Dtype>,
        #[command(flatten)]
        target: TraceOutputOrReplayArgs,
    },
    /// Memory loads with dependent kernels
    #[command(after_help = "\
Examples:
  chakram generate memory --ranks 256 --bytes 1GB --duration 200us --loads 4 --machine hiermem
  chakram generate memory --ranks 256 --bytes 4MB --in-switch --store --machine hiermem-opt")]
    Memory {
        /// Number of ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Size of a load or store; with --in-switch, the share of one rank
        #[arg(long, value_name = "SIZE")]
        bytes: Bytes,
        /// Loads per rank
        #[arg(long, default_value_t = 1, value_name = "N")]
        loads: u32,
        /// Duration of the kernel after each load; no kernel by default
        #[arg(long, default_value = "0", value_name = "TIME")]
        duration: Span,
        /// Store the same size after each load and kernel
        #[arg(long)]
        store: bool,
        /// Issue loads without waiting for kernels and stores
        #[arg(long)]
        prefetch: bool,
        /// Gather loads and reduce stores in the switches
        #[arg(long, conflicts_with = "local")]
        in_switch: bool,
        /// Use the NPU's own memory; by default remote memory
        #[arg(long)]
        local: bool,
        /// Use the remote memory [remote_memories.NAME] of the machine file
        #[arg(long, value_name = "NAME", conflicts_with = "local")]
        memory: Option<String>,
        #[command(flatten)]
        target: TraceOutputOrReplayArgs,
    },
    /// Data-parallel training steps of a transformer
    #[command(after_help = "\
Examples:
  chakram generate data-parallel --ranks 64 --machine dgx-h100x8 --compute roofline
  chakram generate data-parallel --ranks 8 --layers 4 --hidden 1024 -o traces/small/job")]
    DataParallel {
        /// Number of ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Layers of the model
        #[arg(long, default_value_t = 32, value_name = "N")]
        layers: u32,
        /// Hidden size
        #[arg(long, default_value_t = 4096, value_name = "N")]
        hidden: u32,
        /// Tokens per rank in each step
        #[arg(long, default_value_t = 4096, value_name = "N")]
        tokens: u32,
        /// Sequence length in tokens; by default all tokens of a rank
        #[arg(long, value_name = "N")]
        sequence: Option<u32>,
        /// Data type of weights and gradients
        #[arg(long, value_parser = dtype_name_parser(), default_value = "bf16", value_name = "FORMAT")]
        dtype: Dtype,
        /// Training steps
        #[arg(long, default_value_t = 1, value_name = "N")]
        steps: u32,
        /// Peak FLOP/s of the reference NPU for recorded durations
        #[arg(long, default_value = "312 TFLOP/s", value_name = "RATE")]
        reference_flops: FlopRate,
        /// Memory bandwidth of the reference NPU for recorded durations
        #[arg(long, default_value = "2.039 TB/s", value_name = "BANDWIDTH")]
        reference_bandwidth: Bandwidth,
        #[command(flatten)]
        target: TraceOutputOrReplayArgs,
    },
    /// A transformer on a wafer by the rules of PALM's public code, for comparison with its publication
    #[command(after_help = "\
Examples:
  chakram generate palm t-76b --machine wafer-5x4-published
  chakram generate palm t-145b --tensor 4 --machine wafer-5x4-published --format json")]
    Palm {
        /// Model in PALM's Table VII
        #[arg(value_enum)]
        model: PalmSimulatorPaperModelArg,
        /// Tensor group size; the stage's 16 cores are divided into replicas of this size
        #[arg(long, default_value_t = 8, value_name = "N")]
        tensor: u32,
        /// Samples per micro-batch, summed over all replicas; 1/20 of the batch by default
        #[arg(long, value_name = "N")]
        micro_batch: Option<u32>,
        #[command(flatten)]
        target: TraceOutputOrReplayArgs,
    },
}

impl PatternArgs {
    /// Returns the destination of the traces.
    pub(super) fn trace_destination_mut(&mut self) -> &mut TraceOutputOrReplayArgs {
        match self {
            Self::Collective { target, .. }
            | Self::P2p { target, .. }
            | Self::Chain { target, .. }
            | Self::Memory { target, .. }
            | Self::DataParallel { target, .. }
            | Self::Palm { target, .. } => target,
        }
    }
}

/// A model in PALM's Table VII.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PalmSimulatorPaperModelArg {
    /// 18 billion parameters: 40 layers of 6144, batch 1024
    #[value(name = "t-18b")]
    T18b,
    /// 76 billion parameters: 60 layers of 10240, batch 1792
    #[value(name = "t-76b")]
    T76b,
    /// 145 billion parameters: 80 layers of 12288, batch 2304
    #[value(name = "t-145b")]
    T145b,
}

/// Traffic pattern of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TrafficPatternArg {
    /// Between rank 0 and the last rank, back and forth
    PingPong,
    /// From every rank to the next
    Ring,
    /// From every rank r to rank r + --stride
    Stride,
    /// From every rank to rank 0
    Incast,
    /// Between ranks 0 and 1, 2 and 3, …
    Pairs,
    /// By a random permutation with the seed --seed
    Random,
}

fn collective_name_parser() -> impl TypedValueParser<Value = CollectiveKind> {
    let names = CollectiveKind::ALL.iter().map(|(_, name, _)| *name);
    PossibleValuesParser::new(names).map(|chosen| {
        let found = CollectiveKind::ALL
            .iter()
            .find(|(_, name, _)| *name == chosen);
        found.expect("the parser admits these names only").0
    })
}

fn dtype_name_parser() -> impl TypedValueParser<Value = Dtype> {
    PossibleValuesParser::new(Dtype::ALL.iter().map(|(_, name)| *name))
        .map(|chosen| Dtype::from_name(&chosen).expect("the parser admits these names only"))
}

pub(super) fn pattern_names() -> Vec<String> {
    let command = PatternArgs::augment_subcommands(clap::Command::new("generate"));
    let names = command.get_subcommands().map(clap::Command::get_name);
    names.map(str::to_owned).collect()
}
