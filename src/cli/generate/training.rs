//! `chakram generate MODEL`: a model under a plan.

use crate::cli::output::RunArgs;
use crate::generate::plan::ParallelismPlan;
use clap::Args;
use std::error::Error;
use std::path::{Path, PathBuf};

mod flags;
mod request;

use flags::PlanFlags;
use request::PlanSource;
pub use request::TrainingRequest;

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
#[command(next_help_heading = "ParallelismPlan")]
struct PlanArgs {
    /// Read the plan from this file; options go before what it says
    #[arg(long, value_name = "FILE.toml")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    flags: PlanFlags,
}

impl PlanArgs {
    /// The plan, and where it comes from.
    fn plan(&self) -> Result<(ParallelismPlan, PlanSource), Box<dyn Error>> {
        let mut file = PlanSource(None);
        let plan = match &self.plan {
            Some(path) => {
                let text = crate::config::read(path).map_err(|error| {
                    format!("cannot read plan file {}: {error}", path.display())
                })?;
                let name = path.display().to_string();
                let plan = ParallelismPlan::parse(&text, &name)?;
                file = PlanSource(Some([text, name]));
                plan
            }
            None => ParallelismPlan::new(),
        };
        Ok((self.flags.over(plan)?, file))
    }
}
