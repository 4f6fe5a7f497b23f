//! Arguments of patterns: one subcommand each.

use super::TargetArgs;
use crate::trace::{CollectiveKind, Dtype};
use crate::units::{Bandwidth, Bytes, FlopRate, Span};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};

mod asked;

#[derive(Debug, Subcommand)]
pub(super) enum PatternArgs {
    /// One collective, once or several times
    #[command(
        after_help = "Example:\n  chakram generate collective all-gather --size 4MiB --ranks 16 --count 10 --machine dgx-h100x2"
    )]
    Collective {
        /// Which
        #[arg(value_parser = collective_names())]
        kind: CollectiveKind,
        /// Bytes of a rank: the whole buffer, but the shard for all-gather and gather; none for barrier
        #[arg(long, default_value = "0 B", value_name = "SIZE")]
        size: Bytes,
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Only these ranks, in this order: 0,2,4
        #[arg(long, value_name = "RANKS", value_delimiter = ',')]
        group: Option<Vec<u32>>,
        /// How many times
        #[arg(long, default_value_t = 1, value_name = "N")]
        count: u32,
        /// Each waits for the one before
        #[arg(long)]
        chained: bool,
        /// The root's rank
        #[arg(long, value_name = "RANK")]
        root: Option<u32>,
        /// Only these dimensions of the machine, innermost 0: 0,2
        #[arg(long, value_name = "DIMENSIONS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..32))]
        dimensions: Option<Vec<u32>>,
        /// Every member computes this long before
        #[arg(long, default_value = "0", value_name = "TIME")]
        before: Span,
        /// Rank r computes r times this long before
        #[arg(long, default_value = "0", value_name = "TIME")]
        skew: Span,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Messages between pairs of ranks
    #[command(
        after_help = "Example:\n  chakram generate p2p ring --size 64MiB --ranks 16 --count 4 --machine tpu-v4"
    )]
    P2p {
        /// Who sends to whom
        #[arg(value_enum)]
        traffic: TrafficArg,
        /// Bytes of a message
        #[arg(long, value_name = "SIZE")]
        size: Bytes,
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// How many rounds
        #[arg(long, default_value_t = 1, value_name = "N")]
        count: u32,
        /// For stride: rank r sends to r + N
        #[arg(long, default_value_t = 1, value_name = "N")]
        stride: u32,
        /// For random: draws the permutation
        #[arg(long, default_value_t = 0, value_name = "N")]
        seed: u64,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Kernels that wait for one another and for nothing else
    #[command(
        after_help = "Example:\n  chakram generate chain --ranks 8 --nodes 100000 --chains 4 --machine dgx-a100"
    )]
    Chain {
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Kernels of a rank
        #[arg(long, value_name = "N")]
        nodes: u32,
        /// Independent chains of a rank, each on a lane of its own
        #[arg(long, default_value_t = 1, value_name = "N")]
        chains: u32,
        /// Recorded duration of a kernel
        #[arg(long, default_value = "1 us", value_name = "TIME")]
        duration: Span,
        /// Operations of a kernel, for the roofline
        #[arg(long, default_value_t = 0, value_name = "N")]
        flops: u64,
        /// Bytes of a kernel, for the roofline
        #[arg(long, default_value = "0 B", value_name = "SIZE")]
        bytes: Bytes,
        /// Number format of a kernel, for the roofline
        #[arg(long, value_parser = dtype_names(), value_name = "FORMAT")]
        dtype: Option<Dtype>,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Loads from memory, and kernels that need them
    #[command(after_help = "\
Examples:
  chakram generate memory --ranks 256 --bytes 1GB --kernel 200us --loads 4 --machine hiermem
  chakram generate memory --ranks 256 --bytes 4MB --in-switch --store --machine hiermem-opt")]
    Memory {
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Bytes of a load or store; with --in-switch, those of one rank, which all share
        #[arg(long, value_name = "SIZE")]
        bytes: Bytes,
        /// Loads of a rank
        #[arg(long, default_value_t = 1, value_name = "N")]
        loads: u32,
        /// Recorded duration of the kernel behind each load; none by default
        #[arg(long, default_value = "0", value_name = "TIME")]
        kernel: Span,
        /// Store as many bytes after each
        #[arg(long)]
        store: bool,
        /// Loads wait for no kernel or store
        #[arg(long)]
        prefetch: bool,
        /// Switches gather what is loaded and reduce what is stored
        #[arg(long, conflicts_with = "local")]
        in_switch: bool,
        /// The NPU's own memory; that beyond it by default
        #[arg(long)]
        local: bool,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Training steps of a transformer of which every rank holds a replica
    #[command(after_help = "\
Examples:
  chakram generate data-parallel --ranks 64 --machine dgx-h100x8 --compute roofline
  chakram generate data-parallel --ranks 8 --layers 4 --hidden 1024 -o traces/small/job")]
    DataParallel {
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Layers of the model
        #[arg(long, default_value_t = 32, value_name = "N")]
        layers: u32,
        /// Numbers per token between layers
        #[arg(long, default_value_t = 4096, value_name = "N")]
        hidden: u32,
        /// Tokens per rank and step
        #[arg(long, default_value_t = 4096, value_name = "N")]
        tokens: u32,
        /// Tokens that attend to each other; all of a rank's by default
        #[arg(long, value_name = "N")]
        sequence: Option<u32>,
        /// Number format of weights and gradients
        #[arg(long, value_parser = dtype_names(), default_value = "bf16", value_name = "FORMAT")]
        dtype: Dtype,
        /// Training steps
        #[arg(long, default_value_t = 1, value_name = "N")]
        steps: u32,
        /// The recorded durations are those of an NPU that computes this fast …
        #[arg(long, default_value = "312 TFLOP/s", value_name = "RATE")]
        reference_flops: FlopRate,
        /// … and has memory this fast
        #[arg(long, default_value = "2.039 TB/s", value_name = "BANDWIDTH")]
        reference_bandwidth: Bandwidth,
        #[command(flatten)]
        target: TargetArgs,
    },
}

/// Traffic pattern of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TrafficArg {
    /// Rank 0 and the last rank, to and fro
    PingPong,
    /// Every rank to the next
    Ring,
    /// Every rank r to r + --stride
    Stride,
    /// Every rank to rank 0
    Incast,
    /// Ranks 0 and 1 to each other, 2 and 3, …
    Pairs,
    /// A random permutation, from --seed
    Random,
}

fn collective_names() -> impl TypedValueParser<Value = CollectiveKind> {
    let names = CollectiveKind::ALL.iter().map(|(_, name, _)| *name);
    PossibleValuesParser::new(names).map(|chosen| {
        let found = CollectiveKind::ALL
            .iter()
            .find(|(_, name, _)| *name == chosen);
        found.expect("the parser admits these names only").0
    })
}

fn dtype_names() -> impl TypedValueParser<Value = Dtype> {
    PossibleValuesParser::new(Dtype::ALL.iter().map(|(_, name)| *name))
        .map(|chosen| Dtype::from_name(&chosen).expect("the parser admits these names only"))
}

/// The names of all.
pub(super) fn names() -> Vec<String> {
    let command = PatternArgs::augment_subcommands(clap::Command::new("generate"));
    let names = command.get_subcommands().map(clap::Command::get_name);
    names.map(str::to_owned).collect()
}
