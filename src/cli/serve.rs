//! `chakram serve`: simulates requests to shared processors, and requests to serving engines of
//! language models.

mod llm;

use super::output::ReportDestinationAndOutputs;
use super::terminal;
use chakram_report::document::VersionedDocument;
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_serving::llm::check_llm_model_name_servable;
use chakram_serving::{
    ArrivalRateResult, ArrivalRateSweepResults, CompletedRequest, NoRequestObserver, Platform,
    RequestObserver, RequestServeTimeLimitOption, RequestTimelineWriter, Scenario, ServeError,
    ServeReport, ServedJob, compare, find_capacity, html, rows, serve_requests, sweep_rates, text,
};
use chakram_trace::files::{OutputClaim, OutputsAndProtectedInputs};
use chakram_trace::format::TraceError;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use llm::{LlmArgs, LlmModelOrScenario, RequestOrLlmSloArg};

/// Share of requests that must meet their limits if the user gives none.
const DEFAULT_ATTAIN: f64 = 0.99;

const LOAD: &str = "Load";
const REPORT: &str = "Report";

/// To check whether a setting has an effect, the command repeats runs with at most this many requests. A repetition
/// takes at most a second or two.
const MOST_REPEATED: u64 = 200_000;

/// Serve requests over time: waiting, batching, latency percentiles
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram serve traces/lightspeed/burst-10g.toml --machine lightning
  chakram serve traces/lightspeed/burst-10g.toml --machine a100x --machine brainwave
  chakram serve scenario.toml --slo '20 ms' --rates 100,200,400 --html load.html
  chakram serve scenario.toml --slo '20 ms' --find-capacity
  chakram serve scenario.toml --format csv --table requests > requests.csv
  chakram serve llama3-70b --machine dgx-h100 --rate 4 --input 1024 --output 256 --slo ttft=500ms,tpot=30ms
  chakram serve llama3-8b --machine dgx-h100 --users 32 --input 512..1024 --output 128 --html serving.html")]
pub struct ServeArgs {
    /// A scenario file (models, arrivals, end of the run and policy), or a language model: a preset or a file
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// Platform to serve on: a preset from `chakram platform list`, a machine for traces or a language model, or a
    /// file; several are compared, except with a language model
    #[arg(
        short = 'm',
        short_alias = 'p',
        long = "machine",
        id = "platform",
        value_name = "PLATFORM"
    )]
    platforms: Vec<String>,
    /// Seed of all random numbers, overriding the scenario
    #[arg(long, help_heading = LOAD, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Arrivals per second, overriding the scenario
    #[arg(long, help_heading = LOAD, value_name = "RATE", allow_negative_numbers = true, value_parser = parse_request_rate)]
    rate: Option<f64>,
    /// Number of requests, overriding the scenario
    #[arg(long, help_heading = LOAD, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    requests: Option<u64>,
    /// Run at each of these arrival rates, in requests per second, and show latency against load
    #[arg(long, help_heading = LOAD, value_name = "RATES", allow_negative_numbers = true, value_delimiter = ',', value_parser = parse_request_rate, conflicts_with_all = ["rate", "find_capacity"])]
    rates: Vec<f64>,
    /// Find the highest arrival rate at which enough requests meet their limit
    #[arg(long, help_heading = LOAD, conflicts_with = "rate")]
    find_capacity: bool,
    /// Share of requests that must meet their limits, for --find-capacity and --plan (default: 0.99); 1 means all
    /// requests of the run
    #[arg(long, help_heading = LOAD, value_name = "SHARE", value_parser = parse_nonzero_share)]
    attain: Option<f64>,
    /// Limit on serve times, for goodput and capacity; the default is the models' deadlines; for a language model, give
    /// ttft=TIME,tpot=TIME,e2e=TIME
    #[arg(long, help_heading = REPORT, value_name = "TIME")]
    slo: Option<RequestOrLlmSloArg>,
    /// Format of the report
    #[arg(long, help_heading = REPORT, value_enum, default_value_t = ServeFormat::Text)]
    format: ServeFormat,
    /// Table that --format csv prints; with a language model, requests can also be written as JSON lines
    #[arg(long, help_heading = REPORT, value_enum, value_name = "TABLE")]
    table: Option<ServeReportTableKind>,
    /// Write a timeline of requests and jobs to this file, for Perfetto or chrome://tracing
    #[arg(long, help_heading = REPORT, value_name = "FILE.json")]
    timeline: Option<PathBuf>,
    /// Also write the report as a self-contained page with charts
    #[arg(long, help_heading = REPORT, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Write to this file; the default is standard output; with a language model, a number sets the tokens per answer
    /// instead
    #[arg(short, long, help_heading = REPORT, value_name = "FILE")]
    output: Vec<PathBuf>,
    #[command(flatten)]
    llm: LlmArgs,
}

/// Output format of `serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServeFormat {
    /// Human-readable text
    Text,
    /// JSON with all values
    Json,
    /// One table as comma-separated values
    Csv,
}

/// A table of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServeReportTableKind {
    /// One row per model, per class, and for all requests
    Models,
    /// One row per request, in order of completion
    Requests,
    /// One row per time interval: numbers of requests in the queue and in the system
    Levels,
}

fn parse_request_rate(text: &str) -> Result<f64, String> {
    let rate = text.trim().parse::<f64>().ok();
    rate.filter(|rate| *rate > 0.0 && *rate <= 1e12)
        .ok_or_else(|| "expected a number of requests per second above 0, such as 250".to_owned())
}

fn parse_nonzero_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok();
    share
        .filter(|share| *share > 0.0 && *share <= 1.0)
        .ok_or_else(|| "expected a share above 0 and at most 1, such as 0.99".to_owned())
}

/// JSON document that `serve` prints.
#[derive(Serialize)]
struct ServeReportsAndSweepsDocument<'r> {
    reports: &'r [ServeReport],
    /// Results at several request rates on a single platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    sweep: Option<&'r ArrivalRateSweepResults>,
    /// Results at several request rates on each of several platforms, in the order of the command line.
    #[serde(skip_serializing_if = "<[ArrivalRateSweepResults]>::is_empty")]
    sweeps: &'r [ArrivalRateSweepResults],
}

/// Writes each request's row and timeline entry, if the user asked for them.
struct RequestRowAndTimelineWriter<'r, 'm, W> {
    rows: Option<&'r mut (dyn Write + 'r)>,
    models: Vec<&'m str>,
    timeline: Option<RequestTimelineWriter<'m, W>>,
}

impl<W: Write> RequestObserver for RequestRowAndTimelineWriter<'_, '_, W> {
    fn on_completed(&mut self, request: &CompletedRequest) -> io::Result<()> {
        if let Some(rows) = &mut self.rows {
            let line =
                rows::render_one_request_csv_line(request, self.models[request.model as usize]);
            rows.write_all(line.as_bytes())?;
        }
        match &mut self.timeline {
            Some(timeline) => timeline.on_completed(request),
            None => Ok(()),
        }
    }

    fn wants_jobs(&self) -> bool {
        self.timeline.is_some()
    }

    fn on_job_served(&mut self, job: &ServedJob) {
        if let Some(timeline) = &mut self.timeline {
            timeline.on_job_served(job);
        }
    }
}

impl ServeArgs {
    /// Returns the command's outputs, which must not replace its inputs, and the HTML page if the user wants one.
    fn claim_outputs_and_html_page(
        &self,
    ) -> Result<(OutputsAndProtectedInputs, Option<OutputClaim>), TraceError> {
        let mut outputs = OutputsAndProtectedInputs::default();
        outputs.register_input(&self.scenario);
        if let Some(file) = &self.llm.arrivals {
            outputs.register_input(file);
        }
        for name in &self.platforms {
            outputs.register_input(Path::new(name));
        }
        let page = self.html.as_ref().map(|path| outputs.claim_path(path));
        Ok((outputs, page.transpose()?))
    }

    /// Rejects combinations of options in which one would have no effect.
    fn reject_options_without_effect(&self) -> Result<(), String> {
        let several = self.platforms.len() > 1;
        let sweeps = !self.rates.is_empty() || self.find_capacity;
        let requests = self.table == Some(ServeReportTableKind::Requests);
        if self.attain.is_some() && !self.find_capacity && !self.llm.plan {
            return Err(
                "--attain has no effect: it sets the share of requests that --find-capacity or --plan must reach\n  \
                        try: --find-capacity, or --plan for a language model"
                    .to_owned(),
            );
        }
        if self.table == Some(ServeReportTableKind::Levels) && sweeps {
            return Err(
                "--table levels shows a single run, but several rates are compared\n  try: --rate, for one of the rates"
                    .to_owned(),
            );
        }
        if (requests || self.timeline.is_some()) && (several || sweeps) {
            return Err(
                "--table requests and --timeline show one run, but there are several\n  \
                        try: one --machine, without --rates and --find-capacity"
                    .to_owned(),
            );
        }
        if self.html.as_deref() == Some(Path::new("-")) {
            return Err(
                "--html - : the page would be mixed with the lines of the report\n  \
                        try: --html FILE.html"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the share of requests that must meet their limits.
    fn required_share_meeting_limits(&self) -> f64 {
        self.attain.unwrap_or(DEFAULT_ATTAIN)
    }

    /// Returns the scenario `own` after the command line's settings have changed it.
    fn apply_settings_to_scenario(&self, own: &Scenario) -> Result<Scenario, String> {
        let mut scenario = own.clone();
        scenario.seed = self.seed.unwrap_or(scenario.seed);
        if let Some(requests) = self.requests {
            scenario.stop.requests = Some(requests);
            // With fewer requests, the run ends when all of them are complete.
            scenario.stop.first = scenario.stop.first.map(|first| first.min(requests));
            check_warmup_leaves_requests(scenario.warmup, requests)?;
        }
        if let Some(rate) = self.rate {
            let changed = scenario.with_rate(rate);
            scenario = changed.ok_or("--rate: the scenario's arrivals have no rate; expected Poisson or periodic arrivals")?;
        }
        Ok(scenario)
    }
}

/// Rejects a number of requests of which the warm-up of the scenario leaves none, as files of scenarios do.
fn check_warmup_leaves_requests(warmup: u64, requests: u64) -> Result<(), String> {
    if requests > warmup {
        return Ok(());
    }
    Err(format!(
        "--requests: found {requests}, expected more than {warmup}, the requests at the beginning that the scenario does \
         not count (measure.warmup)\n  try: --requests {}, or a smaller warmup in the scenario",
        warmup.saturating_mul(2)
    ))
}

/// Returns why the seed of `args` has no effect on this run of `scenario`, or `None` if it has an effect. `own` is the
/// scenario before the command line's settings are applied, and `report` is the run's report.
fn reason_seed_has_no_effect(
    args: &ServeArgs,
    (own, scenario): (&Scenario, &Scenario),
    platform: Option<&Platform>,
    options: RequestServeTimeLimitOption,
    report: &ServeReport,
) -> Result<Option<String>, ServeError> {
    let Some(seed) = args.seed else {
        return Ok(None);
    };
    if seed == own.seed {
        return Ok(Some(without_effect("--seed", SAME)));
    }
    if report.arrived > MOST_REPEATED {
        let why = format!(
            "--seed was not compared with the scenario's: a run of more than {MOST_REPEATED} requests is not repeated"
        );
        return Ok(Some(why));
    }
    let mut other = scenario.clone();
    other.seed = own.seed;
    let mut repeated = serve_requests(&other, platform, options, &mut NoRequestObserver)?;
    repeated.seed = seed;
    repeated.warnings.clone_from(&report.warnings);
    let is_same = repeated == *report;
    Ok(is_same.then(|| without_effect("--seed", "this run uses no random numbers")))
}

/// Returns why `--requests` and `--rate` have no effect on the run of `report`; empty if both have an effect.
fn reasons_load_options_have_no_effect(
    args: &ServeArgs,
    own: &Scenario,
    report: &ServeReport,
) -> Vec<String> {
    let requests = args.requests.and_then(|requests| {
        let fewest = own.stop.requests.map_or(requests, |own| own.min(requests));
        let why = match own.stop.requests == Some(requests) {
            true => SAME,
            false if report.arrived < fewest => {
                "the run ends before this number of requests arrives"
            }
            false => return None,
        };
        Some(without_effect("--requests", why))
    });
    let is_same = |&rate: &f64| own.with_rate(rate).as_ref() == Some(own);
    let rate = args.rate.filter(is_same);
    let rate = rate.map(|_| without_effect("--rate", SAME));
    requests.into_iter().chain(rate).collect()
}

/// Why a setting that repeats the scenario's value has no effect.
const SAME: &str = "the scenario states the same value";

fn without_effect(option: &str, why: &str) -> String {
    format!("{option} has no effect: {why}")
}

/// Runs the scenario, and prints the result to `out`.
///
/// # Errors
///
/// Fails if the scenario or a platform is invalid, or if output cannot be written.
pub fn serve_scenario_and_print_result(
    args: &ServeArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    args.reject_options_without_effect()?;
    if let Some(input) = LlmModelOrScenario::detect_llm_input(&args.scenario) {
        return llm::run(args, &input, out);
    }
    if let Err(refused) = args.llm.reject_all_llm_options() {
        // A name that is neither a scenario nor a model is more likely a misspelt model.
        if !args.scenario.exists() && Scenario::load_file(&args.scenario).is_err() {
            check_llm_model_name_servable(&args.scenario.display().to_string())?;
        }
        return Err(refused.into());
    }
    if args.table.is_some() && args.format != ServeFormat::Csv {
        return Err("--table needs --format csv\n  try: --format csv".into());
    }
    let (_, file) = llm::split_output_tokens_and_report_file(&args.output, false)?;
    let slo = match args.slo {
        Some(RequestOrLlmSloArg::Tokens(_)) => {
            return Err(
                "--slo: found limits of language models, expected a time such as 20ms".into(),
            );
        }
        Some(RequestOrLlmSloArg::Serve(limit)) => Some(limit),
        None => None,
    };
    let own = Scenario::load_file(&args.scenario)?;
    let scenario = args.apply_settings_to_scenario(&own)?;
    let platforms = args
        .platforms
        .iter()
        .map(|name| Platform::load_by_name(name));
    let platforms: Vec<Platform> = platforms.collect::<Result<_, _>>()?;
    let options = RequestServeTimeLimitOption::from_serve_time_limit(slo);
    let (mut outputs, page) = args.claim_outputs_and_html_page()?;
    let picture = args
        .timeline
        .as_ref()
        .map(|path| outputs.claim_path(path))
        .transpose()?;
    let path = file.unwrap_or(Path::new("-"));
    let mut to = ReportDestinationAndOutputs::create_at_path(out, path, outputs)?;
    let style = to.text_style();
    let first = platforms.first();

    if args.find_capacity || !args.rates.is_empty() {
        let mut sweeps = Vec::new();
        for platform in platforms_or_single_none(&platforms) {
            let found = sweep_rates_on_one_platform(args, (&own, &scenario), platform, options);
            sweeps
                .push(found.map_err(|error| name_platform_in_error(error, platform, &platforms))?);
        }
        to.write_report(&render_output(args, &[], &sweeps, style))?;
        return write_page(page, &scenario.name, &[], &sweeps);
    }
    let mut reports = Vec::new();
    if platforms.len() > 1 {
        for platform in &platforms {
            let report = serve_requests(&scenario, Some(platform), options, &mut NoRequestObserver);
            reports.push(
                report
                    .map_err(|error| name_platform_in_error(error, Some(platform), &platforms))?,
            );
        }
    } else {
        let models = || scenario.models.iter().map(|model| model.name.as_str());
        let file = picture
            .map(|claim| claim.create_file())
            .transpose()?
            .map(BufWriter::new);
        let mut writers = RequestRowAndTimelineWriter {
            rows: None,
            models: models().collect(),
            timeline: file
                .map(|file| RequestTimelineWriter::new(file, models().collect()))
                .transpose()?,
        };
        if args.table == Some(ServeReportTableKind::Requests) {
            let mut failed = None;
            to.run_write_and_commit_output(|out| {
                writeln!(out, "{}", rows::REQUESTS)?;
                let mut rows = BufWriter::new(out);
                let mut all = RequestRowAndTimelineWriter {
                    rows: Some(&mut rows),
                    models: models().collect(),
                    timeline: writers.timeline.take(),
                };
                match serve_requests(&scenario, first, options, &mut all) {
                    Ok(report) => reports.push(report),
                    Err(error) => failed = Some(error),
                }
                writers.timeline = all.timeline;
                rows.flush()
            })?;
            if let Some(error) = failed {
                return Err(error.into());
            }
        } else {
            reports.push(serve_requests(&scenario, first, options, &mut writers)?);
        }
        if let Some(timeline) = writers.timeline {
            let (file, left_out) = timeline.finish_timeline()?;
            file.into_inner()
                .map_err(|error| error.into_error())?
                .commit()?;
            if left_out > 0 {
                terminal::print_note(format_args!(
                    "the timeline leaves out {left_out} requests and jobs at its end"
                ))?;
            }
        }
    }
    // Each platform has its own run, so a setting may affect only some of them.
    for (i, report) in reports.iter_mut().enumerate() {
        let runs = (&own, &scenario);
        let seed = reason_seed_has_no_effect(args, runs, platforms.get(i), options, report)?;
        report.warnings.extend(seed);
        let load = reasons_load_options_have_no_effect(args, &own, report);
        report.warnings.extend(load);
    }
    if args.table != Some(ServeReportTableKind::Requests) {
        to.write_report(&render_output(args, &reports, &[], style))?;
    }
    write_page(page, &scenario.name, &reports, &[])
}

/// Returns the platforms to run on. Returns a single `None` if the command line names no platform.
fn platforms_or_single_none(platforms: &[Platform]) -> Vec<Option<&Platform>> {
    match platforms {
        [] => vec![None],
        all => all.iter().map(Some).collect(),
    }
}

/// If there are several platforms, adds the platform's name to `error`.
fn name_platform_in_error(
    error: ServeError,
    platform: Option<&Platform>,
    all: &[Platform],
) -> ServeError {
    match (error, platform) {
        (ServeError::Unfit(why), Some(platform)) if all.len() > 1 => {
            ServeError::Unfit(format!("platform {}: {why}", platform.name))
        }
        (other, _) => other,
    }
}

/// Runs `scenario` on `platform` at the requested rates. `own` is the scenario before the command line's settings are
/// applied.
fn sweep_rates_on_one_platform(
    args: &ServeArgs,
    (own, scenario): (&Scenario, &Scenario),
    platform: Option<&Platform>,
    options: RequestServeTimeLimitOption,
) -> Result<ArrivalRateSweepResults, ServeError> {
    let mut found = match args.find_capacity {
        true => find_capacity(
            scenario,
            platform,
            options,
            args.required_share_meeting_limits(),
        )?,
        false => sweep_rates(scenario, platform, options, &args.rates)?,
    };
    // A scenario draws random numbers either at every rate or at none, so check only the first rate.
    let mut seed = None;
    if let Some(point) = found.points.first() {
        let at_rate = scenario.with_rate(point.rate_per_s);
        let at_rate = at_rate.as_ref().unwrap_or(scenario);
        seed = reason_seed_has_no_effect(args, (own, at_rate), platform, options, &point.report)?;
    }
    for ArrivalRateResult { report, .. } in &mut found.points {
        report.warnings.extend(seed.clone());
        let load = reasons_load_options_have_no_effect(args, own, report);
        report.warnings.extend(load);
    }
    Ok(found)
}

fn render_output(
    args: &ServeArgs,
    reports: &[ServeReport],
    sweeps: &[ArrivalRateSweepResults],
    style: TextStyleWidthAndDetail,
) -> String {
    match (args.format, sweeps, reports) {
        (ServeFormat::Json, ..) => {
            let (sweep, sweeps) = match sweeps {
                [one] => (Some(one), &[][..]),
                several => (None, several),
            };
            let document = ServeReportsAndSweepsDocument {
                reports,
                sweep,
                sweeps,
            };
            VersionedDocument::new("chakram.serve.1", document).to_json_text()
        }
        (ServeFormat::Csv, [], _) if args.table == Some(ServeReportTableKind::Levels) => {
            rows::render_request_counts_over_time_csv(reports)
        }
        (ServeFormat::Csv, [], _) => rows::render_models_csv(reports),
        (ServeFormat::Csv, sweeps, _) => {
            let points = sweeps.iter().flat_map(|sweep| &sweep.points);
            let reports: Vec<_> = points.map(|point| point.report.clone()).collect();
            rows::render_models_csv(&reports)
        }
        (ServeFormat::Text, [], [one]) => text::render_text(one, style),
        (ServeFormat::Text, [], _) => compare::render_platforms_side_by_side(reports, style),
        (ServeFormat::Text, sweeps, _) => {
            let tables: Vec<_> = sweeps
                .iter()
                .map(|sweep| compare::render_rate_sweep(sweep, style))
                .collect();
            tables.join("\n")
        }
    }
}

/// Writes the HTML page, if the user wants one.
fn write_page(
    page: Option<OutputClaim>,
    title: &str,
    reports: &[ServeReport],
    sweeps: &[ArrivalRateSweepResults],
) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(claim) = page {
        let mut file = claim.create_file()?;
        file.write_all(html::render_html(title, reports, sweeps).as_bytes())?;
        file.commit()?;
    }
    Ok(ExitCode::SUCCESS)
}
