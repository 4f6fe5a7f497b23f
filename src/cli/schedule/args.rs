//! Options of `chakram schedule`.

use crate::flags::parser_of_choices;
use chakram_base::units::{Bandwidth, Bytes, Span};
use chakram_hardware::compute::{LoopNestModel, parse_loop_nest};
use chakram_hardware::topology::chip_graph::{LinkRateByLinkCount, RateInterpolationByLinkCount};
use chakram_studies::schedule::{
    DeapLanguageModel, MatrixProductPartitionRule, SubLayerChipAssignmentRule,
};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Schedule the sub-layers of a model on chips, step by step
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram schedule --decoders 2 --tensor 8 --topology torus:2x4 --topology mesh:2x4
  chakram schedule --decoders 2 --topology tori:36 --interpolate log
  chakram schedule --decoders 2 --topology random:250 --seed 1 --interpolate log
  chakram schedule --decoders 1 --topology ring:4:… -o schedule.txt --log
  chakram schedule schedule.txt --topology chips.topology --traces steps")]
pub struct MultiChipScheduleArgs {
    /// A schedule file, instead of a model
    #[arg(value_name = "SCHEDULE")]
    pub file: Option<PathBuf>,
    /// Sizes of a model, instead of a file
    #[command(flatten)]
    pub model: LanguageModelSizeArgs,
    /// torus:2x4, mesh:2x4, ring:8, a topology file, or interfaces:8 (no links); tori:36 for the best torus of each
    /// number of chips up to 36; random:250 for 250 random graphs; repeatable
    #[arg(long, value_name = "GRAPH", required = true)]
    pub topology: Vec<String>,
    /// Random graphs have fewer chips than this
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(3..=256))]
    pub below: u32,
    /// Seed of the random graphs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Rule that assigns sub-layers to chips
    #[arg(long, value_parser = parser_of_choices::<SubLayerChipAssignmentRule>(), default_value = "steps", value_name = "RULE")]
    pub rule: SubLayerChipAssignmentRule,
    /// Link rates by a chip's number of links, optionally with interfaces: 1=180GB/s,3=64GB/s,interface=1GB/s
    #[arg(long, value_name = "LINKS=RATE,…", value_parser = LinkRateByLinkCount::parse)]
    pub rates: Option<LinkRateByLinkCount>,
    /// Rule for link rates that are not in the table
    #[arg(long, value_parser = parser_of_choices::<RateInterpolationByLinkCount>(), default_value = "none", value_name = "RULE")]
    pub interpolate: RateInterpolationByLinkCount,
    /// Memory of a chip; larger sub-layers are cut into more parts, and data are evicted
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Bandwidth of a chip's memory, which limits the sum of a step's incoming transfers
    #[arg(long, value_name = "RATE")]
    pub memory_bandwidth: Option<Bandwidth>,
    /// Power of a connection during a transfer, in watts
    #[arg(long, value_name = "WATTS", default_value_t = 0.0)]
    pub power: f64,
    /// Accelerator in each chip
    #[arg(long, value_name = "ACCELERATOR", default_value = "gemmini-16,scratchpad=32MB", value_parser = parse_loop_nest)]
    pub accelerator: LoopNestModel,
    /// Accelerators per chip, which share the chip's memory and connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub accelerators: u16,
    /// Time that the host needs to issue a command; each transfer and each sub-layer takes one command
    #[arg(long, value_name = "TIME")]
    pub dispatch: Option<Span>,
    /// Layer cycles from Timeloop or FireSim, as CSV; chakram maps the missing layers itself
    #[arg(long, value_name = "FILE")]
    pub cycles: Option<PathBuf>,
    /// Print the times of each step; with CSV, print only this table
    #[arg(long)]
    pub steps: bool,
    /// Print where the data of each step come from; with CSV, print only this table
    #[arg(long)]
    pub log: bool,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = SubLayerScheduleFormat::Text, value_name = "FORMAT")]
    pub format: SubLayerScheduleFormat,
    /// Write the schedule to this file; needs a single topology
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write a trace for each chip, with barriers around each step's sub-layers; needs a single topology
    #[arg(long, value_name = "PREFIX")]
    pub traces: Option<PathBuf>,
    /// Omit barriers from the traces
    #[arg(long, requires = "traces")]
    pub without_barriers: bool,
}

/// Output format of `schedule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SubLayerScheduleFormat {
    /// Human-readable text
    Text,
    /// JSON with steps and log; times in picoseconds
    Json,
    /// One table as comma-separated values: topologies, or the table of --steps or --log
    Csv,
}

/// Sizes of a language model.
#[derive(Clone, Copy, Debug, Args)]
pub struct LanguageModelSizeArgs {
    /// Embedding width
    #[arg(long, value_name = "N", default_value_t = 512, conflicts_with = "file")]
    pub embedding: u64,
    /// Feed-forward width
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2048,
        conflicts_with = "file"
    )]
    pub forward: u64,
    /// Attention heads
    #[arg(long, value_name = "N", default_value_t = 8, conflicts_with = "file")]
    pub heads: u64,
    /// Encoder layers
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "file")]
    pub encoders: u32,
    /// Decoder layers
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "file")]
    pub decoders: u32,
    /// Number of tokens in the vocabulary; 0 omits the product with the vocabulary
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "file")]
    pub vocabulary: u64,
    /// Tokens per sequence
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "file")]
    pub sequence: u64,
    /// Number of sequences, which run one after another
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file")]
    pub micro_batches: u32,
    /// Number of parts into which each product is cut
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file")]
    pub tensor: u64,
    /// Rule that cuts products into parts
    #[arg(
        long,
        value_parser = parser_of_choices::<MatrixProductPartitionRule>(),
        default_value = "columns",
        value_name = "RULE",
        conflicts_with = "file"
    )]
    pub partition: MatrixProductPartitionRule,
}

impl LanguageModelSizeArgs {
    /// Returns the language model. Each matrix product is cut into `parts` parts.
    pub fn to_language_model(self, parts: u64) -> DeapLanguageModel {
        DeapLanguageModel {
            embedding: self.embedding,
            forward: self.forward,
            heads: self.heads,
            encoders: self.encoders,
            decoders: self.decoders,
            vocabulary: self.vocabulary,
            sequence: self.sequence,
            micro_batches: self.micro_batches,
            tensor: parts,
            partition: self.partition,
        }
    }
}
