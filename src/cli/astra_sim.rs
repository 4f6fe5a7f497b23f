//! `chakram astra-sim`: reads ASTRA-sim's files and flags, and prints its results.

use super::flags::parser_of_choices;
use super::output::{ReportDestinationAndOutputs, ReportFormatArg, TimelineArgs};
use crate::load::run_with_load_progress;
use crate::terminal;
use chakram_astra_sim::{
    AnalyticalCongestionModel, AstraFlags, MisleadingValidInputNote, Quirk, QuirkSet,
};
use chakram_jobs::{AstraSimJob, JobLoadOrWriteError};
use chakram_report::summary::format_count_with_noun;
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::file::discover_traces;
use clap::{ArgAction, Args};
use serde_json::{Map, Value};
use std::error::Error;
use std::io::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

mod explain;
mod render;
mod replay;
mod rewritten_args;
mod transcript;

pub use rewritten_args::rewrite_arguments;

const EXAMPLES: &str = "\
Examples:
  chakram astra-sim --workload-configuration=wl/all_reduce --system-configuration=system.json \\
      --remote-memory-configuration=no_memory_expansion.json --network-configuration=network.yml
  chakram astra-sim … --network-model aware      the congestion-aware network
  chakram astra-sim … --lenient                  unknown keys are ignored, with a note
  chakram astra-sim … --format json -o out.json  the report as JSON
  chakram astra-sim … --timeline out.json.gz     every node in a timeline
  chakram astra-sim … --quirks none              all quirks corrected
  chakram astra-sim … --explain-quirks           the effect of each quirk

Called through a link named AstraSim_Analytical_Congestion_Unaware or
AstraSim_Analytical_Congestion_Aware, the program is this command with that network model:
  ln -s $(command -v chakram) AstraSim_Analytical_Congestion_Aware
It then prints ASTRA-sim's own lines, and writes log/log.log, with every node if trace-enabled is 1.

Exit codes: 0 done, 1 the replay deadlocked, 2 bad input";

/// Returns the end of the help text, which describes every quirk and gives examples.
fn help_text_on_quirks_and_examples() -> String {
    let mut help =
        "Quirks (--quirks all,-NAME corrects one, none,+NAME all except one):\n".to_owned();
    for quirk in Quirk::all_quirks() {
        help += &format!(
            "  {quirk}: {}\n    corrected: {}\n",
            quirk.original_behaviour(),
            quirk.corrected_behaviour()
        );
    }
    help + "\n" + EXAMPLES
}

/// Run ASTRA-sim inputs with ASTRA-sim's files and flags
#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = help_text_on_quirks_and_examples()
)]
pub struct AstraSimArgs {
    /// Prefix of the traces: rank R reads PREFIX.R.et
    #[arg(long, value_name = "PREFIX")]
    workload_configuration: PathBuf,
    /// Process groups as JSON; none if the name contains `empty`
    #[arg(long, value_name = "FILE", default_value = "empty")]
    comm_group_configuration: PathBuf,
    /// Description of the system, as JSON
    #[arg(long, value_name = "FILE")]
    system_configuration: PathBuf,
    /// Description of the remote memory, as JSON
    #[arg(long, value_name = "FILE")]
    remote_memory_configuration: PathBuf,
    /// Description of the network, as YAML
    #[arg(long, value_name = "FILE")]
    network_configuration: PathBuf,
    /// Logging settings, as TOML; checked and ignored
    #[arg(long, value_name = "FILE", default_value = "empty")]
    logging_configuration: PathBuf,
    /// Folder of the log, written only if the program is called by a name of ASTRA-sim's binaries; `log` by default
    #[arg(long, value_name = "FOLDER")]
    logging_folder: Option<PathBuf>,
    /// Queues per dimension; the active chunks of a dimension are divided among its queues
    #[arg(long, value_name = "N", default_value = "1")]
    num_queues_per_dim: NonZeroU32,
    /// Ignored, as in ASTRA-sim
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = parse_nonnegative_scale)]
    compute_scale: f64,
    /// Ignored, as in ASTRA-sim
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = parse_nonnegative_scale)]
    comm_scale: f64,
    /// Factor that multiplies the endpoint delay of the system file
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = parse_nonnegative_scale)]
    injection_scale: f64,
    /// Start every message with a handshake between receiver and sender
    #[arg(
        long, value_name = "BOOL", action = ArgAction::Set, value_parser = parse_bool,
        num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true"
    )]
    rendezvous_protocol: bool,
    /// Network contention model
    #[arg(long, value_parser = parser_of_choices::<AnalyticalCongestionModel>(), value_name = "MODEL", default_value = "unaware")]
    network_model: AnalyticalCongestionModel,
    /// Quirks of ASTRA-sim to reproduce: all or none, then -NAME or +NAME, comma-separated
    #[arg(long, value_name = "SET", default_value_t = QuirkSet::ALL)]
    quirks: QuirkSet,
    /// Report how much each quirk changes the makespan
    #[arg(long, conflicts_with_all = ["quirks", "timeline"])]
    explain_quirks: bool,
    /// Ignore unknown keys and broken nodes, with a note
    #[arg(long)]
    lenient: bool,
    /// Simulate every collective message by message, even if the analytical result is exact
    #[arg(long)]
    stepwise: bool,
    #[command(flatten)]
    timeline: TimelineArgs,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = ReportFormatArg::Text, value_name = "FORMAT")]
    format: ReportFormatArg,
    /// Write the report to this file; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Arguments that chakram does not use and has removed from the command line; notes report them.
    #[arg(skip)]
    pub ignored: Vec<MisleadingValidInputNote>,
    /// True if the program was called by the name of an ASTRA-sim program; it then prints ASTRA-sim's lines.
    #[arg(skip)]
    pub original: bool,
}

fn parse_nonnegative_scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok();
    let scale = scale.filter(|scale: &f64| scale.is_finite() && *scale >= 0.0);
    scale.ok_or_else(|| "expected a number of at least 0".to_owned())
}

/// Parses a boolean in any spelling that ASTRA-sim accepts.
fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "true" | "True" | "t" | "T" | "1" => Ok(true),
        "false" | "False" | "f" | "F" | "0" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// Runs the command and prints the report to `out`.
///
/// # Errors
///
/// Fails if input is invalid, if the replay deadlocks, or if output cannot be written.
pub fn run(args: &AstraSimArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let mut outputs = OutputsAndProtectedInputs::default();
    for path in [
        &args.comm_group_configuration,
        &args.system_configuration,
        &args.remote_memory_configuration,
        &args.network_configuration,
        &args.logging_configuration,
    ] {
        outputs.register_input(path);
    }
    for file in discover_traces(&args.workload_configuration).unwrap_or_default() {
        outputs.register_input(&file.path);
    }
    let mut to = ReportDestinationAndOutputs::create_at_path(out, &args.output, outputs)?;
    if args.explain_quirks {
        return explain::replay_each_variation_and_print_table(args, &mut to);
    }
    let job = args.load_job_and_print_time(args.quirks)?;
    replay::run(args, &job, &mut to)?;
    Ok(ExitCode::SUCCESS)
}

impl AstraSimArgs {
    /// Reads all input files for a run that reproduces `quirks`.
    fn load_job(&self, quirks: QuirkSet) -> Result<AstraSimJob, JobLoadOrWriteError> {
        let hash = self.format == ReportFormatArg::Json;
        let flags = self.convert_to_library_flags(quirks);
        let mut job = run_with_load_progress(|progress| {
            AstraSimJob::load_inputs_with_optional_hashes(&flags, hash, progress)
        })?;
        job.notes.splice(..0, self.ignored.iter().cloned());
        Ok(job)
    }

    /// Calls [`Self::load_job`], and prints how long the call took if the general options request details.
    fn load_job_and_print_time(
        &self,
        quirks: QuirkSet,
    ) -> Result<AstraSimJob, JobLoadOrWriteError> {
        let start = Instant::now();
        let job = self.load_job(quirks)?;
        let traces = format_count_with_noun(job.workload.instances().len() as u64, "trace");
        terminal::print_detail_with_elapsed_time(start, format_args!("read {traces}"))
            .map_err(JobLoadOrWriteError::Io)?;
        Ok(job)
    }

    /// Returns true if the run prints and logs the same lines as ASTRA-sim: the program was called by the name of an
    /// ASTRA-sim program, and the user asked for no other format.
    fn prints_as_original_astra_sim(&self) -> bool {
        self.original && self.format == ReportFormatArg::Text && !self.explain_quirks
    }

    /// Returns the options that the JSON report lists.
    fn option_json(&self) -> Map<String, Value> {
        let model = self.convert_to_library_flags(self.quirks).model.to_string();
        let fields: [(&str, Value); 6] = [
            ("network_model", model.into()),
            ("num_queues_per_dim", self.num_queues_per_dim.get().into()),
            ("injection_scale", self.injection_scale.into()),
            ("rendezvous_protocol", self.rendezvous_protocol.into()),
            ("lenient", self.lenient.into()),
            ("stepwise", self.stepwise.into()),
        ];
        let quirks = (self.quirks != QuirkSet::ALL)
            .then(|| ("quirks", Value::from(self.quirks.to_string())));
        let fields = fields.into_iter().chain(quirks);
        fields.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Converts the parsed arguments to the library's type for ASTRA-sim's flags.
    fn convert_to_library_flags(&self, quirks: QuirkSet) -> AstraFlags {
        AstraFlags {
            model: self.network_model,
            workload: self.workload_configuration.clone(),
            groups: self.comm_group_configuration.clone(),
            system: self.system_configuration.clone(),
            memory: self.remote_memory_configuration.clone(),
            network: self.network_configuration.clone(),
            logging: self.logging_configuration.clone(),
            logging_folder: self.logging_folder.clone(),
            queues: self.num_queues_per_dim,
            compute_scale: self.compute_scale,
            comm_scale: self.comm_scale,
            injection_scale: self.injection_scale,
            rendezvous: self.rendezvous_protocol,
            lenient: self.lenient,
            logs: self.prints_as_original_astra_sim(),
            quirks,
        }
    }
}
