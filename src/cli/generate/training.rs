//! `chakram generate MODEL`: the training step of a model under a plan.

use crate::output::ReplayAndReportArgs;
use chakram_jobs::{FrameworkDurationsAndPlanOptions, SoftwareStackError};
use chakram_workloads::generate::plan::{ParallelismPlan, PlanDraft};
use chakram_workloads::generate::schedule::StagePassOrders;
use clap::Args;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

mod flags;
mod request;
mod settings;

use flags::GivenPlanOptions;
use request::PlanFileText;
pub use request::RequestedTrainingRun;

/// A model, a plan, and the destination of the traces.
#[derive(Debug, Args)]
pub struct TrainingArgs {
    /// Preset (`chakram model list`) or file, NAME.toml or config.json; - is stdin
    #[arg(value_name = "MODEL", required = true)]
    model: Option<String>,
    /// Tokens per sequence; by default the model's length
    #[arg(long, visible_alias = "sequence", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    tokens: Option<u64>,
    /// Print FLOPs, memory, communication and placement, without a replay
    #[arg(long, conflicts_with = "output")]
    pub dry_run: bool,
    /// Write the traces to PREFIX.0.et, …, and PREFIX.job.json
    #[arg(short, long, value_name = "PREFIX")]
    pub output: Option<PathBuf>,
    /// Write one file per rank instead of hard links for identical ranks
    #[arg(long, hide_short_help = true, requires = "output")]
    pub no_links: bool,
    /// Replay on this machine: preset (`chakram machine list`) or file
    #[arg(short, long, value_name = "MACHINE")]
    pub machine: Option<String>,
    /// Software stack, preset or file: kernels, launches, plan options
    #[arg(long, value_name = "STACK")]
    stack: Option<String>,
    /// Contents of the stack file, read at first use.
    #[arg(skip)]
    read_stack: OnceLock<FrameworkDurationsAndPlanOptions>,
    /// Simulate N micro-batches of the step and extrapolate to all
    #[arg(long, value_name = "N", hide_short_help = true, requires = "machine", conflicts_with_all = ["output", "dry_run"])]
    pub extrapolate: Option<u32>,
    /// Change the job: layers=+4, hidden=1.5x, delay=…, or a file of `edits`; repeatable
    #[arg(long, value_name = "EDIT", hide_short_help = true, conflicts_with_all = ["dry_run", "extrapolate"])]
    pub edit: Vec<String>,
    #[command(flatten)]
    pub run: ReplayAndReportArgs,
    // This field must be last, because its help heading applies to all options after it.
    #[command(flatten)]
    plan: TrainingPlanArgs,
}

impl TrainingArgs {
    /// Returns the stack that the user chose. The first call reads the stack's file.
    ///
    /// # Errors
    ///
    /// Fails if there is no such stack, or if its file is invalid.
    pub fn load_software_stack(
        &self,
    ) -> Result<Option<&FrameworkDurationsAndPlanOptions>, SoftwareStackError> {
        let Some(name) = &self.stack else {
            return Ok(None);
        };
        if let Some(stack) = self.read_stack.get() {
            return Ok(Some(stack));
        }
        let stack = FrameworkDurationsAndPlanOptions::load_by_name(name)?;
        Ok(Some(self.read_stack.get_or_init(|| stack)))
    }

    /// Returns the files that the command reads.
    pub fn input_files(&self) -> impl Iterator<Item = &Path> {
        let model = self.model.as_deref().map(Path::new);
        let plan = [self.plan.plan.as_deref(), self.plan.pass_orders.as_deref()];
        let stack = self.stack.as_deref().map(Path::new);
        let files = plan.into_iter().chain([stack]).flatten();
        model.into_iter().chain(files)
    }
}

/// A plan from a file, from options, or from a file with values that options override.
#[derive(Debug, Args)]
struct TrainingPlanArgs {
    /// Read the plan from this file; options override it
    #[arg(long, help_heading = "Parallelism and batch", value_name = "FILE.toml")]
    plan: Option<PathBuf>,
    /// Read the order of passes from this file, with a line per stage in PyTorch's form: 0F0,0F1,0B0,…
    #[arg(
        long,
        help_heading = "Parallelism and batch",
        hide_short_help = true,
        value_name = "FILE.csv",
        conflicts_with_all = ["schedule", "chunks"]
    )]
    pass_orders: Option<PathBuf>,
    #[command(flatten)]
    flags: GivenPlanOptions,
}

/// Reads the order of each stage's passes from a file.
fn read_pass_orders(path: &Path) -> Result<StagePassOrders, Box<dyn Error>> {
    let name = path.display();
    let text = chakram_base::config::read_file_or_standard_input(path)
        .map_err(|error| format!("cannot read orders of passes {name}: {error}"))?;
    let orders = StagePassOrders::parse(&text);
    orders.map_err(|error| format!("{name}: {error}").into())
}

impl TrainingPlanArgs {
    /// Returns the plan without the option `left_out`, and the plan's source.
    fn resolve_plan_without_option(
        &self,
        left_out: Option<&str>,
    ) -> Result<(ParallelismPlan, PlanFileText), Box<dyn Error>> {
        let mut file = PlanFileText(None);
        let plan = match &self.plan {
            Some(path) => {
                let text =
                    chakram_base::config::read_file_or_standard_input(path).map_err(|error| {
                        format!("cannot read plan file {}: {error}", path.display())
                    })?;
                let name = path.display().to_string();
                let plan = ParallelismPlan::parse(&text, &name)?;
                file = PlanFileText(Some([text, name]));
                plan
            }
            None => ParallelismPlan::new(),
        };
        let plan = match &self.pass_orders {
            Some(path) => {
                let mut draft = PlanDraft::new(plan);
                draft.replace_schedule_with_passes(read_pass_orders(path)?);
                draft.finish_plan()?
            }
            None => plan,
        };
        Ok((self.flags.apply_to_plan(plan, left_out)?, file))
    }

    /// Returns true if a flag or the plan file sets the option `key`. The option `left_out` counts as not set.
    fn flag_or_plan_file_sets_option(
        &self,
        file: &PlanFileText,
        key: &str,
        left_out: Option<&str>,
    ) -> bool {
        let is_flag = self.flags.given_values().any(|(given, _)| given == key);
        let stated = file.0.as_ref().is_some_and(|[text, name]| {
            ParallelismPlan::stated_option_keys(text, name).is_ok_and(|keys| keys.contains(&key))
        });
        is_flag && left_out != Some(key) || stated
    }
}
