//! Parses replay arguments and prints reports, for all commands that replay a workload.

use super::custom_algorithm;
use super::flags::flag_of_setting;
use super::given::{OneReplayOptionGroupArgs, ReplayOptionGroup};
use super::progress::{ProgressDisplay, run_showing_elapsed_time};
use super::terminal;
use chakram_base::ids::Npu;
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, parse_token_count};
use chakram_engine::{CompiledReplay, ReplayError, ReplayOptions};
use chakram_hardware::machine::Machine;
use chakram_jobs::{self as job, GivenSetting, NamedMachineText, ReplaySettingsError};
use chakram_report::edits::JobAndMachineEditReport;
use chakram_report::extrapolation::FewerMicroBatchMakespans;
use chakram_report::sensitivity::{MakespanSensitivityReport, SensitivityReplayInputs};
use chakram_report::settings::SettingWithoutEffect;
use chakram_report::stack::SoftwareStackDecisionReport;
use chakram_report::summary::{HashedInput, Provenance, format_count_with_noun};
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_report::{self as report, PictureRecorder, Report, tile_map};
use chakram_trace::files::{OutputFile, OutputsAndProtectedInputs};
use chakram_trace::workload::{MissingRankPolicy, Workload};
use clap::Args;
use serde_json::{Map, Value};
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

mod args;
mod destination;
mod machines;
mod render;
mod settings;
mod timeline_file;

pub use args::{CallerNodeTableSlot, MemoryOverflowAction, ReportFormatArg, ReportTableArg};
pub use destination::{ReportDestinationAndOutputs, is_parquet};
pub use machines::{MachineWithSourceAndEdits, load_machine};
pub use timeline_file::{TimelineArgs, TimelineFileCreator};

/// Help heading for options about the report.
pub(super) const REPORT: &str = "Report";

/// The options that change the times of a replay.
#[derive(Clone, Debug)]
pub struct TimeChangingReplayOptions;

impl ReplayOptionGroup for TimeChangingReplayOptions {
    fn option_belongs_to_group(key: SettingKey) -> bool {
        !key.affects_trace_reading()
    }
}

/// The options of [`TimeChangingReplayOptions`] as command-line arguments, which every replaying command accepts.
pub type TimeChangingReplayArgs = OneReplayOptionGroupArgs<TimeChangingReplayOptions>;

/// Arguments that control a replay and its report.
#[derive(Clone, Debug, Args)]
pub struct ReplayAndReportArgs {
    /// Options that change the times of the replay.
    #[command(flatten)]
    pub timing: TimeChangingReplayArgs,
    #[command(flatten)]
    timeline: TimelineArgs,
    /// Also write the report as a self-contained page with charts
    #[arg(long, help_heading = REPORT, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Also draw a machine of tiles: cores by stage, links and memory ports by load
    #[arg(long, help_heading = REPORT, hide_short_help = true, value_name = "FILE.svg")]
    tile_map: Option<PathBuf>,
    /// Format of the report
    #[arg(long, help_heading = REPORT, value_enum, default_value_t = ReportFormatArg::Text, value_name = "FORMAT")]
    pub format: ReportFormatArg,
    /// Print all rows and full names instead of fewer than 60 lines
    #[arg(long, help_heading = REPORT)]
    details: bool,
    /// What to do if peak memory exceeds the NPU's capacity
    #[arg(long, help_heading = REPORT, value_enum, default_value_t = MemoryOverflowAction::Report, value_name = "ACTION")]
    pub fit: MemoryOverflowAction,
    /// Report the bytes and load of dimensions and links; this simulates collectives message by message
    #[arg(long, help_heading = REPORT, hide_short_help = true)]
    links: bool,
    /// Also report what faster kernels, collectives, host, and machine rates and latencies would gain, and the limits
    /// of these gains
    #[arg(long, help_heading = REPORT, hide_short_help = true)]
    sensitivities: bool,
    /// Dollars per NPU hour, such as 2.50; by default from the machine's file
    #[arg(long, help_heading = REPORT, hide_short_help = true, value_name = "DOLLARS", value_parser = parse_npu_hour_price)]
    price: Option<f64>,
    /// Also report the days, NPU hours, dollars and energy that a run of this many tokens takes, such as 15T
    #[arg(long, help_heading = REPORT, hide_short_help = true, value_name = "TOKENS", value_parser = parse_token_count)]
    total_tokens: Option<u64>,
    /// Table for --format csv
    #[arg(long, help_heading = REPORT, value_enum, value_name = "TABLE")]
    pub table: Option<ReportTableArg>,
    /// In JSON and the table of operators, list each micro-batch's operators, mb*/…, instead of their sums
    #[arg(long, help_heading = REPORT, hide_short_help = true)]
    pub all_operators: bool,
    /// Receives the table of nodes for a caller in the same process.
    #[arg(skip)]
    pub nodes: CallerNodeTableSlot,
}

/// A job to replay, and further data for its report.
#[derive(Clone, Copy)]
pub struct JobWithReportFacts<'a> {
    /// Traces, groups and instances of the job.
    pub workload: &'a Workload,
    /// Name of the job in reports.
    pub name: &'a str,
    /// Makespan with the profiler's overhead if the replay subtracts that overhead, otherwise without it. `None` if the
    /// overhead is unknown.
    pub other_profiler: Option<Span>,
    /// Replays with fewer micro-batches, from which the whole step is extrapolated.
    pub shorter: Option<FewerMicroBatchMakespans>,
    /// How many items each edit of the job matched and changed.
    pub edits: Option<&'a JobAndMachineEditReport>,
    /// Gains from faster parts of the machine, if the user asked for them.
    pub sensitivities: Option<&'a MakespanSensitivityReport>,
    /// Options for reading the traces, as in the report's JSON, if there are any.
    pub trace_options: Option<&'a Map<String, Value>>,
    /// Software stack, if the user chose one.
    pub stack: Option<&'a SoftwareStackDecisionReport>,
}

/// Parses a price in dollars per NPU hour.
pub fn parse_npu_hour_price(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_start_matches('$').parse().ok();
    let price = number.filter(|price| *price > 0.0 && *price <= Machine::MAX_PRICE);
    price.ok_or_else(|| "expected dollars for an hour of an NPU such as 2.50".to_owned())
}

/// The parsed value of `--map`. The map has its own type, because clap treats a `Vec` as a repeated
/// option.
#[derive(Clone, Debug)]
pub struct RankToNpuMapArg(Vec<Npu>);

impl RankToNpuMapArg {
    /// Returns the NPU of each rank.
    pub fn npus_of_ranks(&self) -> &[Npu] {
        &self.0
    }
}

/// Parses the list of NPUs on which the ranks are placed.
pub fn parse_placement(text: &str) -> Result<RankToNpuMapArg, String> {
    job::parse_npus(text).map(RankToNpuMapArg)
}

impl ReplayAndReportArgs {
    /// Returns true if the report contains hashes of its inputs.
    pub fn wants_input_hashes(&self) -> bool {
        self.format == ReportFormatArg::Json
    }

    /// Rejects options that would have no effect. `several` is true if the command replays on
    /// several machines.
    pub fn reject_options_without_effect(&self, several: bool) -> Result<(), String> {
        if self.wants_machine_comparison_table() && !several {
            return Err(
                "--table compare is for machines that `chakram replay` compares".to_owned(),
            );
        }
        if self.timeline.file_path().is_some() && several {
            return Err(
                "--timeline draws one replay, but there are several machines\n  \
                 try: one --machine at a time"
                    .to_owned(),
            );
        }
        if self.sensitivities && several {
            return Err(
                "--sensitivities is for one replay, but there are several machines\n  \
                 try: one --machine at a time"
                    .to_owned(),
            );
        }
        if self.tile_map.is_some() && several {
            return Err(
                "--tile-map shows one replay, but there are several machines\n  \
                 try: one --machine at a time"
                    .to_owned(),
            );
        }
        if self.details && self.format != ReportFormatArg::Text {
            return Err("--details is for --format text; other formats have all rows".to_owned());
        }
        if self.wants_nodes() && several {
            return Err(
                "--table nodes shows one replay, but there are several machines\n  \
                 try: one --machine at a time"
                    .to_owned(),
            );
        }
        match self.table {
            Some(ReportTableArg::Nodes) if self.format == ReportFormatArg::Json => {
                return Err(
                    "--table nodes is CSV, or Parquet with -o FILE.parquet, not JSON\n  \
                     try: without --format"
                        .to_owned(),
                );
            }
            None | Some(ReportTableArg::Nodes) => {}
            Some(_) if self.format != ReportFormatArg::Csv => {
                return Err("--table needs --format csv\n  try: --format csv".to_owned());
            }
            Some(_) => {}
        }
        let lists =
            self.format == ReportFormatArg::Json || self.table == Some(ReportTableArg::Operators);
        if self.all_operators && !lists {
            return Err(
                "--all-operators needs --format json, or --format csv --table operators".to_owned(),
            );
        }
        let options = self.options_without_custom_algorithms();
        let options = options.map_err(|refusal| refusal.to_string())?;
        options
            .check_options_do_not_conflict()
            .map_err(|refusal| refusal.to_string())
    }

    /// Rejects options that can only show one launch of one job. `beside` is true if other jobs share the machine.
    pub fn check_single_launch_options(&self, beside: bool) -> Result<(), String> {
        let given = [
            (self.timeline.file_path().is_some(), "--timeline"),
            (self.html.is_some(), "--html"),
            (self.sensitivities, "--sensitivities"),
            (self.tile_map.is_some(), "--tile-map"),
            (self.wants_nodes(), "--table nodes"),
        ];
        if let Some((_, option)) = given.iter().find(|(given, _)| *given) {
            return Err(format!(
                "{option} shows one launch of one job, but there are several\n  \
                 try: without --repeat, --starts and --with"
            ));
        }
        if beside && self.format == ReportFormatArg::Csv {
            return Err(
                "--format csv prints tables of one job, but with --with there are several\n  \
                 try: --format json"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Prints `report` in the requested format.
    pub fn print_report(
        &self,
        mut report: Report,
        name: &str,
        absent: MissingRankPolicy,
        inputs: &[HashedInput],
        to: &mut ReportDestinationAndOutputs<'_>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        let style = TextStyleWidthAndDetail {
            details: self.details,
            ..to.text_style()
        };
        to.run_write_and_commit_output(|out| {
            self.render_report(&mut report, name, absent, inputs, style, out)
        })?;
        self.print_warnings_missing_from_format(&report)?;
        let beside = report.beside.iter().map(|other| &other.report);
        self.exit_code_for_memory_fit(beside.chain([&report]))
    }

    /// Returns the first option on the command line that has no effect without a replay.
    pub fn first_replay_only_option(&self) -> Option<String> {
        let others = [
            (self.timeline.file_path().is_some(), "--timeline"),
            (self.html.is_some(), "--html"),
            (self.tile_map.is_some(), "--tile-map"),
            (self.sensitivities, "--sensitivities"),
            (self.format != ReportFormatArg::Text, "--format"),
            (self.details, "--details"),
            (self.links, "--links"),
            (self.price.is_some(), "--price"),
            (self.total_tokens.is_some(), "--total-tokens"),
            (self.table.is_some(), "--table"),
            (self.all_operators, "--all-operators"),
            (self.fit != MemoryOverflowAction::Report, "--fit"),
        ];
        let other = || {
            others
                .iter()
                .find_map(|(given, name)| given.then(|| (*name).to_owned()))
        };
        let first = self.timing.given_options().first();
        first.map(|(key, _)| flag_of_setting(*key)).or_else(other)
    }

    /// Returns true if the replay counts bytes per link.
    fn counts_link_bytes(&self) -> bool {
        self.links || self.table == Some(ReportTableArg::Links)
    }

    /// Rejects options that have no effect on a command that only writes traces and prints a summary.
    pub fn reject_replay_options_for_summary(&self) -> Result<(), String> {
        // A summary can also be text or JSON, so accept `--format`.
        let run = Self {
            format: match self.format {
                ReportFormatArg::Csv => ReportFormatArg::Csv,
                ReportFormatArg::Text | ReportFormatArg::Json => ReportFormatArg::Text,
            },
            ..self.clone()
        };
        match run.first_replay_only_option() {
            Some(option) => Err(format!("{option} is for a replay; add --machine MACHINE")),
            None => Ok(()),
        }
    }

    /// Replays a job that was built in memory from `inputs`, and prints the report. The job has no edits and no
    /// software stack.
    pub fn replay_and_print_built_workload(
        &self,
        workload: &Workload,
        name: &str,
        loaded: &MachineWithSourceAndEdits,
        mut inputs: Vec<HashedInput>,
        to: &mut ReportDestinationAndOutputs<'_>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        inputs.extend(loaded.input.clone());
        let machines = std::slice::from_ref(loaded);
        let absent = MissingRankPolicy::Refuse;
        let options = self.replay_options(absent, workload, machines, &mut inputs)?;
        let edits = loaded.describe_job_and_machine_edits(workload, &[], &options)?;
        let sensitivities = self.find_sensitivities(workload, loaded, &options)?;
        let job = JobWithReportFacts {
            workload,
            name,
            other_profiler: None,
            edits: edits.as_ref(),
            sensitivities: sensitivities.as_ref(),
            trace_options: None,
            stack: None,
            shorter: None,
        };
        let settings = self.replay_settings(loaded, &options);
        self.replay_and_print(job, &loaded.machine, &options, &inputs, &settings, to)
    }

    /// Replays `job` on `machine` and prints the report.
    pub fn replay_and_print(
        &self,
        job: JobWithReportFacts<'_>,
        machine: &Machine,
        options: &ReplayOptions,
        inputs: &[HashedInput],
        given: &[GivenSetting<'_>],
        to: &mut ReportDestinationAndOutputs<'_>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        let JobWithReportFacts { workload, name, .. } = job;
        self.check_memory_known_for_required_fit(workload)?;
        let start = Instant::now();
        let prepared = run_showing_elapsed_time("matching ranks", || {
            CompiledReplay::new(workload, machine, options)
        });
        let prepared = prepared.map_err(ReplayError::from)?;
        let timeline = TimelineFileCreator::start_timeline(&self.timeline, &prepared, to)?;
        let page = self.create_html_output_file(to)?;
        let map = self.tile_map.as_ref();
        let map = map
            .map(|path| to.path_of_additional_output("--tile-map", path))
            .transpose()?;
        let map = map
            .map(|record_path| to.other_outputs().create_file(&record_path))
            .transpose()?;
        let pictures = page.as_ref().map(|_| PictureRecorder::new(&prepared));
        // If the host is simulated, progress also counts its kernel launches as nodes.
        let progress = ProgressDisplay::start_counting(
            "replaying",
            "nodes",
            prepared.workload_with_added_launches().node_count(),
        );
        let observers = ((timeline, pictures), progress.node_observer());
        let (mut report, nodes, ((timeline, pictures), _)) = match self.wants_nodes() {
            true => {
                let (report, nodes, observers) =
                    report::replay_to_report_with_nodes(&prepared, observers)?;
                (report, Some(nodes), observers)
            }
            false => {
                let (report, observers) = report::replay_to_report(&prepared, observers)?;
                (report, None, observers)
            }
        };
        drop(progress);
        let done = format_count_with_noun(workload.node_count(), "node");
        terminal::print_detail_with_elapsed_time(start, format_args!("replayed {done}"))?;
        job::note_settings_without_effect(&mut report, &prepared, options, given);
        let makespan = report.outcome.makespan;
        if let Some((profiler, other)) = report.profiler.as_mut().zip(job.other_profiler) {
            let kernels = report.rows.iter();
            let kernels =
                kernels.map(|row| row.time.parts[report::NpuTimeCategory::Compute as usize]);
            let busiest = kernels.max().unwrap_or_default();
            profiler.set_both_makespans(makespan, other, busiest, workload);
        }
        report.add_edits(job.edits.cloned());
        report.sensitivities = job.sensitivities.cloned();
        if let Some(options) = job.trace_options {
            report.provenance = Some(Provenance::new(options.clone(), &[]));
        }
        if let Some(stack) = job.stack {
            report.stack = Some(stack.clone());
        }
        if let Some(shorter) = job.shorter.filter(|shorter| shorter.keeps_all_activations) {
            report.warnings.push(format!(
                "the schedule keeps the activations of all {} micro-batches, so the step needs more memory than stated, which \
                 is that of {} micro-batches",
                shorter.micro_batches, shorter.simulated
            ));
        }
        if let Some(shorter) = &job.shorter {
            report.add_whole_step_extrapolation(shorter);
        }
        self.add_cost_to_report(&mut report);
        report.pictures = pictures.map(|pictures| pictures.into_pictures(&report));
        TimelineFileCreator::finish_timeline(timeline, self.timeline.file_path())?;
        if let Some(mut file) = map {
            let svg = tile_map::render_tile_map(&report, &prepared)?;
            file.write_all(svg.as_bytes())?;
            file.commit()?;
        }
        if let Some(mut file) = page {
            let html = self.render_page(&report, name, options.missing_ranks, inputs);
            file.write_all(html.as_bytes())?;
            file.commit()?;
        }
        if let Some(nodes) = nodes {
            let printed = self
                .prints_node_table()
                .then(|| to.write_node_table(&nodes));
            self.nodes.store_first_table(nodes);
            if let Some(printed) = printed {
                printed?;
                self.print_warnings_missing_from_format(&report)?;
                return self.exit_code_for_memory_fit([&report]);
            }
        }
        self.print_report(report, name, options.missing_ranks, inputs, to)
    }

    /// Returns true if the user or a caller wants the table of nodes.
    fn wants_nodes(&self) -> bool {
        self.prints_node_table() || self.nodes.is_node_table_requested()
    }

    /// Returns true if the table of nodes is printed in place of the report.
    pub fn prints_node_table(&self) -> bool {
        self.table == Some(ReportTableArg::Nodes)
    }

    /// Adds the job's cost to `report`. The price and the number of tokens come from the command line.
    pub fn add_cost_to_report(&self, report: &mut Report) {
        let own = report.cost.map(|cost| cost.dollars_per_npu_hour);
        report.add_replay_and_token_costs(self.price.or(own), self.total_tokens);
        if let (Some(tokens), None) = (self.total_tokens, &report.run) {
            report.settings.without_effect.push(SettingWithoutEffect {
                key: "total_tokens".to_owned(),
                value: tokens.to_string(),
                reason: "the job does not state its number of tokens".to_owned(),
            });
        }
    }

    /// Computes the sensitivities of `workload` (its gains from faster parts), if the user asked for them.
    pub fn find_sensitivities(
        &self,
        workload: &Workload,
        loaded: &MachineWithSourceAndEdits,
        options: &ReplayOptions,
    ) -> Result<Option<MakespanSensitivityReport>, ReplayError> {
        let run = SensitivityReplayInputs {
            workload,
            machine: &loaded.machine,
            options,
        };
        let (text, file) = (&*loaded.text, &*loaded.file);
        (self.sensitivities || self.table == Some(ReportTableArg::Sensitivities))
            .then(|| job::find_sensitivities(&run, NamedMachineText { text, file }))
            .transpose()
    }

    /// Creates the file of the HTML page, if the user asked for one.
    pub fn create_html_output_file(
        &self,
        to: &mut ReportDestinationAndOutputs<'_>,
    ) -> Result<Option<OutputFile>, Box<dyn Error>> {
        let page = self.html.as_ref();
        page.map(|path| to.create_additional_output("--html", path))
            .transpose()
    }

    /// Prints to standard error the warnings and notes that the report's format does not show.
    pub fn print_warnings_missing_from_format(
        &self,
        report: &Report,
    ) -> Result<(), Box<dyn Error>> {
        if self.format == ReportFormatArg::Csv || self.prints_node_table() {
            for warning in &report.warnings {
                terminal::print_warning_unless_quiet(format_args!("{warning}"))?;
            }
            for note in report.settings.to_sentences() {
                terminal::print_note(format_args!("{note}"))?;
            }
        }
        Ok(())
    }

    /// Rejects `--fit require` if `workload` does not state how much memory its nodes allocate.
    pub fn check_memory_known_for_required_fit(&self, workload: &Workload) -> Result<(), String> {
        let graphs = workload.distinct_graphs();
        let silent = graphs
            .iter()
            .all(|graph| graph.distinct_memory_changes().is_empty());
        if self.fit == MemoryOverflowAction::Require && silent {
            return Err(
                "--fit require: no node states its allocations, so the memory is unknown\n  \
                 try: traces with `allocates.…` attributes, as `chakram generate` writes for models"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the exit code for replays that completed. With `--fit require`, also prints to standard error which
    /// replays do not fit.
    pub fn exit_code_for_memory_fit<'r>(
        &self,
        reports: impl IntoIterator<Item = &'r Report>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        let mut code = ExitCode::SUCCESS;
        for report in reports {
            if let (MemoryOverflowAction::Require, Some(text)) =
                (self.fit, report.describe_ranks_out_of_memory())
            {
                terminal::print_or_capture_stderr_line(format_args!(
                    "error: on {}: {text}",
                    report.machine.name
                ))?;
                code = ExitCode::from(3);
            }
        }
        Ok(code)
    }

    /// Registers the files that these options read as inputs, so that `outputs` cannot overwrite them.
    pub fn protect_inputs(&self, outputs: &mut OutputsAndProtectedInputs) {
        for arg in &self.timing.parsed_settings().custom {
            custom_algorithm::protect_custom_files_as_inputs(arg, outputs);
        }
    }

    /// Returns the engine's options, without those for custom algorithms.
    fn options_without_custom_algorithms(&self) -> Result<ReplayOptions, ReplaySettingsError> {
        Ok(ReplayOptions {
            links: self.counts_link_bytes(),
            ..self
                .timing
                .parsed_settings()
                .options_with_efficiency_without_files()?
        })
    }

    /// Returns the engine's options for replays of `workload` on `machines`. Fails if an option has no effect
    /// on one of the machines. If hashes are requested, adds the files that the options name to `inputs`.
    pub fn replay_options(
        &self,
        absent: MissingRankPolicy,
        workload: &Workload,
        machines: &[MachineWithSourceAndEdits],
        inputs: &mut Vec<HashedInput>,
    ) -> Result<ReplayOptions, Box<dyn Error>> {
        let hashed = self.wants_input_hashes().then_some(inputs);
        let options = ReplayOptions {
            custom: job::load_custom_algorithms(&self.timing.parsed_settings().custom, hashed)?,
            missing_ranks: absent,
            ..self.options_without_custom_algorithms()?
        };
        for machine in machines {
            options.check_options_have_effect(&machine.machine, workload)?;
        }
        for note in custom_algorithm::unused_algorithm_notes(&options.custom, workload) {
            terminal::print_note(format_args!("{note}"))?;
        }
        Ok(options)
    }

    /// Returns the NPU of each rank from `--map`, or `None` without `--map`.
    pub fn rank_map(&self) -> Option<&[Npu]> {
        self.timing
            .parsed_settings()
            .options_without_files_and_efficiency()
            .map
            .as_deref()
    }

    /// Returns true if the user asked for the table that compares machines.
    pub fn wants_machine_comparison_table(&self) -> bool {
        self.table == Some(ReportTableArg::Compare)
    }
}
