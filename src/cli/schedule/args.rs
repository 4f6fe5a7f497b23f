//! Options of `chakram schedule`.

use crate::flags::choices;
use chakram_base::units::{Bandwidth, Bytes, Span};
use chakram_hardware::compute::{LoopNestModel, parse_loop_nest};
use chakram_hardware::topology::chip_graph::{LinkInterpolation, LinkTechnology};
use chakram_studies::schedule::{LanguageModel, ListRule, PartitionRule};
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
pub struct ScheduleArgs {
    /// A schedule file, in place of a model
    #[arg(value_name = "SCHEDULE")]
    pub file: Option<PathBuf>,
    /// Sizes of a model, in place of a file
    #[command(flatten)]
    pub model: ModelSizes,
    /// torus:2x4, mesh:2x4, ring:8, a topology file, interfaces:8 without links; tori:36, the best torus of each number
    /// of chips up to it; or random:250, that many graphs drawn. Several times for several
    #[arg(long, value_name = "GRAPH", required = true)]
    pub topology: Vec<String>,
    /// Chips of graphs that are drawn, fewer than this
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(3..=256))]
    pub below: u32,
    /// Seed of graphs that are drawn
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Rule that assigns sub-layers to chips
    #[arg(long, value_parser = choices::<ListRule>(), default_value = "steps", value_name = "RULE")]
    pub rule: ListRule,
    /// Rates of links by the number of links of a chip, and perhaps of interfaces: 1=180GB/s,3=64GB/s,interface=1GB/s
    #[arg(long, value_name = "LINKS=RATE,…", value_parser = LinkTechnology::parse)]
    pub rates: Option<LinkTechnology>,
    /// Rates of links for numbers of them that the table lacks
    #[arg(long, value_parser = choices::<LinkInterpolation>(), default_value = "none", value_name = "RULE")]
    pub interpolate: LinkInterpolation,
    /// Memory of a chip; sub-layers that are larger are cut into more parts, and data leave for others
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Bandwidth of a chip's memory, which takes in all transfers of a stage
    #[arg(long, value_name = "RATE")]
    pub memory_bandwidth: Option<Bandwidth>,
    /// Watts of a connection while it transfers
    #[arg(long, value_name = "WATTS", default_value_t = 0.0)]
    pub power: f64,
    /// Accelerator of a chip
    #[arg(long, value_name = "ACCELERATOR", default_value = "gemmini-16,scratchpad=32MB", value_parser = parse_loop_nest)]
    pub accelerator: LoopNestModel,
    /// Accelerators of a chip, which share its memory and its connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub accelerators: u16,
    /// Time in which the host issues a command, of which each transfer and each sub-layer takes one
    #[arg(long, value_name = "TIME")]
    pub dispatch: Option<Span>,
    /// Cycles of layers, as Timeloop or FireSim found them, in a CSV file; layers that it lacks are mapped
    #[arg(long, value_name = "FILE")]
    pub cycles: Option<PathBuf>,
    /// Print what each step takes; CSV then has this table
    #[arg(long)]
    pub steps: bool,
    /// Print where the data of each step are; CSV then has this table
    #[arg(long)]
    pub log: bool,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = ScheduleFormat::Text, value_name = "FORMAT")]
    pub format: ScheduleFormat,
    /// Write the schedule to this file, of one topology
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write a trace for each chip, of one topology, with barriers around the sub-layers of each step
    #[arg(long, value_name = "PREFIX")]
    pub traces: Option<PathBuf>,
    /// Leave out barriers in traces
    #[arg(long, requires = "traces")]
    pub without_barriers: bool,
}

/// Format of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScheduleFormat {
    /// For people
    Text,
    /// Everything, steps and log included, as one document; times in picoseconds
    Json,
    /// One table as comma-separated values: topologies, or what --steps or --log prints
    Csv,
}

/// Sizes of a model.
#[derive(Clone, Copy, Debug, Args)]
pub struct ModelSizes {
    /// Width of embeddings
    #[arg(long, value_name = "N", default_value_t = 512, conflicts_with = "file")]
    pub embedding: u64,
    /// Width of the feed-forward part
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2048,
        conflicts_with = "file"
    )]
    pub forward: u64,
    /// Heads of attention
    #[arg(long, value_name = "N", default_value_t = 8, conflicts_with = "file")]
    pub heads: u64,
    /// Encoder layers
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "file")]
    pub encoders: u32,
    /// Decoder layers
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "file")]
    pub decoders: u32,
    /// Tokens that there are; 0 leaves out the product onto them
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "file")]
    pub vocabulary: u64,
    /// Tokens of a sequence
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "file")]
    pub sequence: u64,
    /// Sequences, one after another
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file")]
    pub micro_batches: u32,
    /// Parts of each product
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file")]
    pub tensor: u64,
    /// Rule that cuts products into parts
    #[arg(
        long,
        value_parser = choices::<PartitionRule>(),
        default_value = "columns",
        value_name = "RULE",
        conflicts_with = "file"
    )]
    pub partition: PartitionRule,
}

impl ModelSizes {
    /// The model in so many parts.
    pub fn model(&self, parts: u64) -> LanguageModel {
        LanguageModel {
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
