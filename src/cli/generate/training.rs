//! `chakram generate MODEL`: a model under a plan.

use crate::cli::output::RunArgs;
use crate::generate::plan::{
    Attention, Axis, Buckets, Effect, Optimizer, Plan, Recompute, ScheduleName, Stretch, Zero,
};
use crate::trace::Dtype;
use crate::units::Bytes;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::error::Error;
use std::path::{Path, PathBuf};

mod asked;

pub use asked::Asked;
use asked::Origin;

/// A model, a plan, and what becomes of the traces.
#[derive(Debug, Args)]
pub struct TrainingArgs {
    /// A model by name (see `chakram model list`) or a file, NAME.toml
    #[arg(value_name = "MODEL", required = true)]
    model: Option<String>,
    /// Tokens of a sample, other than the model has
    #[arg(long, visible_alias = "sequence", value_name = "N")]
    tokens: Option<u64>,
    /// Print what the plan comes to, and carry nothing out: as text, or as JSON with --format json; with --machine
    /// or --capacity whether it fits, with --machine where groups lie; of the options of replays, --map and --fit count
    #[arg(long, conflicts_with = "output")]
    pub dry_run: bool,
    /// Write the traces to PREFIX.0.et, PREFIX.1.et, … and PREFIX.job.json, which names them; into a folder as
    /// job.0.et, job.1.et, …
    #[arg(
        short,
        long,
        value_name = "PREFIX",
        required_unless_present_any = ["machine", "dry_run"]
    )]
    pub output: Option<PathBuf>,
    /// Write every rank as a file of its own; those that do the same are one under several names (hard links)
    /// otherwise, so that who edits one in place edits all
    #[arg(long, requires = "output")]
    pub no_links: bool,
    /// Replay the traces on this machine: a preset or a file
    #[arg(short, long, value_name = "MACHINE")]
    pub machine: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
    // Last, for its heading goes on.
    #[command(flatten)]
    plan: PlanArgs,
}

impl TrainingArgs {
    /// The files that may be read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let model = self.model.as_deref().map(Path::new);
        model.into_iter().chain(self.plan.plan.as_deref())
    }
}

/// A plan: a file, options, or options in place of what a file says.
#[derive(Debug, Args)]
#[command(next_help_heading = "Plan")]
struct PlanArgs {
    /// Read the plan from this file; options go before what it says
    #[arg(long, value_name = "FILE.toml")]
    plan: Option<PathBuf>,
    /// Replicas, each with samples of its own
    #[arg(long, visible_alias = "dp", value_name = "N")]
    data: Option<u32>,
    /// Members that share every matrix
    #[arg(long, visible_alias = "tp", value_name = "N")]
    tensor: Option<u32>,
    /// Stages that share the layers
    #[arg(long, visible_alias = "pp", value_name = "N")]
    pipeline: Option<u32>,
    /// Members of a tensor group also share tokens
    #[arg(long, visible_alias = "sp", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    sequence_parallel: Option<bool>,
    /// What replicas share: 1 the optimizer's state, 2 and gradients, 3 and parameters, as FSDP does
    #[arg(long, value_name = "LEVEL", value_parser = words(Zero::ALL))]
    zero: Option<Zero>,
    /// With --zero 3, layers whose parameters are gathered ahead
    #[arg(long, value_name = "LAYERS")]
    prefetch: Option<u32>,
    /// With --zero 3, whether parameters go after each pass
    #[arg(long, value_name = "BOOL")]
    reshard: Option<bool>,
    /// With --zero 2 or 3, reduce gradients once a step instead of after each micro-batch
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    accumulate: Option<bool>,
    /// What neighbouring ranks share, innermost first: tp,dp,pp
    #[arg(long, value_name = "AXES", value_delimiter = ',', value_parser = words(Axis::ALL))]
    order: Option<Vec<Axis>>,
    /// The rank at each position of that order: 0,2,1,3
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    ranks: Option<Vec<u32>>,
    /// Which dimensions of the machine axes lie along, by number or name, in place of an order: tp@nvlink,dp:2@1,pp@1
    /// is tp members along nvlink, and along dimension 1 two of dp and then all of pp
    #[arg(long, value_name = "AXIS[:N]@DIMENSION", value_delimiter = ',', conflicts_with_all = ["order", "ranks"])]
    place: Option<Vec<Stretch>>,
    /// Samples of a step
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Samples of a micro-batch
    #[arg(long, value_name = "N")]
    micro_batch: Option<u64>,
    /// The order of passes
    #[arg(long, value_name = "NAME", value_parser = words(ScheduleName::ALL))]
    schedule: Option<ScheduleName>,
    /// With --schedule interleaved, chunks of layers on a stage
    #[arg(long, value_name = "N")]
    chunks: Option<u32>,
    /// What is computed again for the backward pass
    #[arg(long, value_name = "WHAT", value_parser = words(Recompute::ALL))]
    recompute: Option<Recompute>,
    /// Memory of an NPU, for --recompute as-needed; the machine's by default
    #[arg(long, value_name = "SIZE")]
    capacity: Option<Bytes>,
    /// Who makes steps of gradients
    #[arg(long, value_name = "NAME", value_parser = words(Optimizer::ALL))]
    optimizer: Option<Optimizer>,
    /// Whether Adam keeps a master copy in single precision
    #[arg(long, value_name = "BOOL")]
    mixed: Option<bool>,
    /// Find the norm of all gradients before the step
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    clip: Option<bool>,
    /// Put gradients into buckets by layers, or by parameters as PyTorch does
    #[arg(long, value_name = "WHAT", value_parser = words(Buckets::ALL))]
    buckets: Option<Buckets>,
    /// Gradients that are reduced together
    #[arg(long, value_name = "SIZE")]
    bucket: Option<Bytes>,
    /// The same for the first ones found, if it is another size
    #[arg(long, value_name = "SIZE")]
    first_bucket: Option<Bytes>,
    /// Whether gradients are reduced beside the backward pass
    #[arg(long, value_name = "BOOL")]
    overlap: Option<bool>,
    /// Whether sums over a tensor group are formed beside products
    #[arg(long, value_name = "BOOL")]
    tensor_overlap: Option<bool>,
    /// Members of a tensor group each send a part to the next stage, which gathers them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    scatter_gather: Option<bool>,
    /// Number format of weights and activations
    #[arg(long, value_name = "FORMAT", value_parser = super::dtype_names())]
    dtype: Option<Dtype>,
    /// Number format of weights' gradients; that of weights by default
    #[arg(long, value_name = "FORMAT", value_parser = super::dtype_names())]
    gradients: Option<Dtype>,
    /// How attention is carried out
    #[arg(long, value_name = "HOW", value_parser = words(Attention::ALL))]
    attention: Option<Attention>,
    /// Whether dropout is carried out where the model has it
    #[arg(long, value_name = "BOOL")]
    dropout: Option<bool>,
    /// Steps
    #[arg(long, value_name = "N")]
    steps: Option<u32>,
    /// Leave out an effect, to see what it matters; several times or with commas
    #[arg(long, value_name = "EFFECTS", value_delimiter = ',', value_parser = words(Effect::ALL))]
    without: Vec<Effect>,
}

/// A parser of the words of an enum.
fn words<T: Copy + Send + Sync + 'static>(
    all: &'static [(T, &'static str)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|(_, word)| *word)).map(move |chosen| {
        let found = all.iter().find(|(_, word)| *word == chosen);
        found.expect("the parser admits these words only").0
    })
}

impl PlanArgs {
    /// The plan, and where it comes from.
    fn plan(&self) -> Result<(Plan, Origin), Box<dyn Error>> {
        let mut file = Origin(None);
        let mut plan = match &self.plan {
            Some(path) => {
                let text = crate::config::read(path).map_err(|error| {
                    format!("cannot read plan file {}: {error}", path.display())
                })?;
                let name = path.display().to_string();
                let plan = Plan::parse(&text, &name)?;
                file = Origin(Some([text, name]));
                plan
            }
            None => Plan::new(),
        };
        fn put<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(from) = from {
                to.clone_from(from);
            }
        }
        put(&mut plan.data, &self.data);
        put(&mut plan.tensor, &self.tensor);
        put(&mut plan.pipeline, &self.pipeline);
        put(&mut plan.sequence_parallel, &self.sequence_parallel);
        put(&mut plan.zero, &self.zero);
        put(&mut plan.prefetch, &self.prefetch);
        put(&mut plan.reshard, &self.reshard);
        put(&mut plan.accumulate, &self.accumulate);
        put(&mut plan.ranks, &self.ranks);
        put(&mut plan.batch, &self.batch);
        put(&mut plan.micro_batch, &self.micro_batch);
        put(&mut plan.recompute, &self.recompute);
        put(&mut plan.optimizer, &self.optimizer);
        put(&mut plan.mixed, &self.mixed);
        put(&mut plan.clip, &self.clip);
        put(&mut plan.buckets, &self.buckets);
        put(&mut plan.overlap, &self.overlap);
        put(&mut plan.tensor_overlap, &self.tensor_overlap);
        put(&mut plan.scatter_gather, &self.scatter_gather);
        put(&mut plan.dtype, &self.dtype);
        put(&mut plan.attention, &self.attention);
        put(&mut plan.dropout, &self.dropout);
        put(&mut plan.steps, &self.steps);
        plan.gradients = self.gradients.or(plan.gradients);
        let own = self.capacity.map(|bytes| bytes.0);
        plan.capacity = own.or(plan.capacity);
        if let Some(bytes) = self.bucket {
            plan.bucket = bytes.0;
        }
        let first = self.first_bucket.map(|bytes| bytes.0);
        plan.first_bucket = first.or(plan.first_bucket);
        // Each numbers ranks, so what is said here goes before what the file says of any of them.
        if let Some(place) = &self.place {
            plan.place.clone_from(place);
            plan.ranks.clear();
        } else if self.order.is_some() || self.ranks.is_some() {
            plan.place.clear();
        }
        if let Some(order) = &self.order {
            plan.order = order[..].try_into().map_err(|_| {
                format!(
                    "--order has {} axes; it takes tp, dp and pp in some order",
                    order.len()
                )
            })?;
        }
        if self.schedule.is_some() || self.chunks.is_some() {
            let name = self.schedule.unwrap_or(ScheduleName::of(plan.schedule));
            plan.schedule = name.schedule(self.chunks)?;
        }
        self.without
            .iter()
            .for_each(|effect| plan.without.add(*effect));
        Ok((plan, file))
    }
}
