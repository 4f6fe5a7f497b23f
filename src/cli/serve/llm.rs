//! `chakram serve` with a language model: builds a scenario from the options, and prints the
//! result.

use super::{MOST_REPEATED, ServeArgs, ServeFormat, ServeReportTableKind};
use crate::output::ReportDestinationAndOutputs;
use chakram_base::units::Span;
use chakram_hardware::machine::Machine;
use chakram_report::document::VersionedDocument;
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_serving::ServeError;
use chakram_serving::llm::{
    CompletedLlmRequest, LengthDistribution, LlmCapacityPlan, LlmObserver, LlmReport, LlmScenario,
    LlmTimeLimits, NoLlmObserver, TriedEngineConfiguration, check_llm_model_name_servable,
    find_highest_scenario_rate, html, is_llm_scenario, plan_fewest_engines_within_limits,
    plan_report, rows, serve_llm, text,
};
use chakram_workloads::model::PresetOrModelFileText;
use clap::Args;
use serde::Serialize;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

const MODEL: &str = "Language models";

/// Number of requests if the user gives no number.
const DEFAULT_REQUESTS: u64 = 1000;

/// Options for language models.
#[derive(Debug, Args)]
pub struct LlmArgs {
    /// Tokens per prompt, if SCENARIO is a language model: 1024, 512..1024 or 'lognormal 1024 0.6'; --output gives the
    /// tokens per answer
    #[arg(long, help_heading = MODEL, value_name = "TOKENS")]
    input: Option<LengthDistribution>,
    /// Number of users, each of whom sends a new request after each answer; instead of --rate
    #[arg(long, help_heading = MODEL, value_name = "N", conflicts_with = "rate", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    users: Option<u32>,
    /// File of requests, instead of --rate, --input and --output: CSV from Azure or BurstGPT, or JSON lines from
    /// Mooncake
    #[arg(long, help_heading = MODEL, value_name = "FILE", conflicts_with_all = ["rate", "users", "input"])]
    pub(super) arrivals: Option<PathBuf>,
    /// NPUs that share an engine's layers; by default the fewest whose memory can hold the model
    #[arg(long, help_heading = MODEL, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    tensor: Option<u32>,
    /// Number of engines
    #[arg(long, help_heading = MODEL, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    replicas: Option<u32>,
    /// Number format of weights: bf16, fp16, fp8 or fp4
    #[arg(long, help_heading = MODEL, value_name = "FORMAT")]
    weights: Option<String>,
    /// Set a key of [engine], such as max_num_seqs=256, kv=fp8, router=longest-prefix or rules=static
    #[arg(long = "engine", help_heading = MODEL, value_name = "KEY=VALUE")]
    engine: Vec<String>,
    /// Find the fewest NPUs on which enough requests meet the limits of --slo, and the highest request rate of these
    /// NPUs
    #[arg(long, help_heading = MODEL, conflicts_with_all = ["replicas", "find_capacity", "users", "arrivals", "html", "table"])]
    pub(super) plan: bool,
}

/// Parsed value of `--slo`: one limit on request times, or several for a language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOrLlmSloArg {
    /// Limit on the serving time of requests.
    Serve(Span),
    /// Limits for a language model.
    Tokens(LlmTimeLimits),
}

impl FromStr for RequestOrLlmSloArg {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        if !given.contains('=') {
            return given
                .parse()
                .map(Self::Serve)
                .map_err(|error: chakram_base::units::QuantityError| error.to_string());
        }
        let mut limits = LlmTimeLimits::default();
        for part in given.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let place = match name.trim() {
                "ttft" => &mut limits.ttft,
                "tpot" => &mut limits.tpot,
                "e2e" => &mut limits.e2e,
                other => {
                    return Err(format!(
                        "found {other:?}, expected ttft, tpot or e2e with a time, such as ttft=500ms,tpot=30ms"
                    ));
                }
            };
            let span: Span = value
                .trim()
                .parse()
                .map_err(|error| format!("{name}: {error}"))?;
            if span == Span::ZERO {
                return Err(format!("{name}: found 0, expected a time above 0"));
            }
            if place.replace(span).is_some() {
                return Err(format!("found {name} twice, expected it once"));
            }
        }
        Ok(Self::Tokens(limits))
    }
}

/// The language model or scenario that the argument SCENARIO names.
pub enum LlmModelOrScenario {
    /// Name of a model; options describe the rest of its scenario.
    Model(String),
    /// Text of a scenario.
    Scenario(String),
}

impl LlmModelOrScenario {
    /// Finds out whether `path` names a language model or a scenario that has one. Returns `None` if it names neither.
    pub fn detect_llm_input(path: &Path) -> Option<Self> {
        let name = path.to_str()?;
        if !path.exists() {
            return PresetOrModelFileText::find_source(name)
                .is_ok()
                .then(|| Self::Model(name.to_owned()));
        }
        let text = chakram_base::config::read_file_or_standard_input(path).ok()?;
        if is_llm_scenario(&text) {
            return Some(Self::Scenario(text));
        }
        // A scenario never begins with a brace, so this is a Hugging Face model.
        if text.trim_start().starts_with('{') {
            return Some(Self::Model(name.to_owned()));
        }
        let source = PresetOrModelFileText::find_source(name).ok()?;
        source
            .parse_definition(None)
            .is_ok()
            .then(|| Self::Model(name.to_owned()))
    }
}

/// Writes each request when it completes.
struct RequestRowWriter<'w> {
    out: &'w mut dyn Write,
    /// True if each request is written as a JSON object on its own line.
    is_json: bool,
    classes: Vec<&'w str>,
}

impl LlmObserver for RequestRowWriter<'_> {
    fn on_completed(&mut self, request: &CompletedLlmRequest) -> io::Result<()> {
        let class = self.classes[request.class as usize];
        let line = match self.is_json {
            true => rows::format_request_json(request, class),
            false => rows::render_request_csv_line(request, class),
        };
        self.out.write_all(line.as_bytes())
    }
}

#[derive(Serialize)]
struct LlmReportDocument<'r> {
    report: &'r LlmReport,
}

impl LlmArgs {
    /// Rejects all language-model options if the scenario has no language model.
    pub fn reject_all_llm_options(&self) -> Result<(), String> {
        let given = [
            ("--input", self.input.is_some()),
            ("--users", self.users.is_some()),
            ("--arrivals", self.arrivals.is_some()),
            ("--tensor", self.tensor.is_some()),
            ("--replicas", self.replicas.is_some()),
            ("--weights", self.weights.is_some()),
            ("--engine", !self.engine.is_empty()),
            ("--plan", self.plan),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(format!(
                "{option} is for language models, but the scenario has none\n  try: the name of a model in place \
                 of the scenario, such as llama3-8b"
            )),
            None => Ok(()),
        }
    }
}

fn quote_toml(text: &str) -> String {
    let escaped = text.chars().flat_map(|c| match c {
        '"' | '\\' => vec!['\\', c],
        c if c.is_control() => vec![' '],
        c => vec![c],
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Returns the text of a scenario file for `model` with the given options.
fn scenario_text(
    args: &ServeArgs,
    model: &str,
    answer: Option<LengthDistribution>,
) -> Result<String, String> {
    let own = &args.llm;
    let mut text = format!("name = {}\n", quote_toml(model));
    let write = |text: &mut String, line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("a string grows as needed");
    };
    if let Some(seed) = args.seed {
        write(&mut text, format_args!("seed = {seed}"));
    }
    write(
        &mut text,
        format_args!("[engine]\nmodel = {}", quote_toml(model)),
    );
    if let Some(tensor) = own.tensor {
        write(&mut text, format_args!("tensor = {tensor}"));
    }
    if let Some(replicas) = own.replicas {
        write(&mut text, format_args!("replicas = {replicas}"));
    }
    let has_router = own.engine.iter().any(|pair| pair.starts_with("router="));
    let replicas = own.engine.iter();
    let replicas = replicas.filter_map(|pair| pair.strip_prefix("replicas=")?.parse().ok());
    let mut replicas = replicas.chain(own.replicas);
    let several = own.plan || replicas.any(|replicas: u32| replicas > 1);
    if has_router && !several {
        return Err(
            "--engine router: one engine takes all requests\n  try: --replicas 2".to_owned(),
        );
    }
    if several && !has_router {
        write(&mut text, format_args!("router = \"least-outstanding\""));
    }
    if let Some(format) = &own.weights {
        write(&mut text, format_args!("weights = {}", quote_toml(format)));
    }
    let mut given: Vec<&str> = Vec::new();
    let options = [
        ("tensor", own.tensor.is_some()),
        ("replicas", own.replicas.is_some()),
        ("weights", own.weights.is_some()),
    ];
    for pair in &own.engine {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(format!(
                "--engine {pair}: found no =, expected KEY=VALUE such as max_num_seqs=256"
            ));
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if key.is_empty() || !key.chars().all(plain) {
            return Err(format!(
                "--engine {pair}: found {key:?}, expected a key such as max_num_seqs"
            ));
        }
        if given.contains(&key) {
            return Err(format!("--engine {key}: found two values, expected one"));
        }
        if key == "model" {
            return Err(format!(
                "--engine model: the model is {model}, the first argument\n  try: chakram serve {value}"
            ));
        }
        if options
            .iter()
            .any(|(option, is_given)| *is_given && *option == key)
        {
            return Err(format!(
                "--engine {key}: --{key} gives this key too, expected one of the two"
            ));
        }
        given.push(key);
        let is_bare =
            value == "true" || value == "false" || value.parse::<f64>().is_ok_and(f64::is_finite);
        let value = if is_bare {
            value.to_owned()
        } else {
            quote_toml(value)
        };
        write(&mut text, format_args!("{key} = {value}"));
    }
    text += "[requests]\n";
    let count = args.requests;
    if let Some(file) = &own.arrivals {
        if answer.is_some() {
            return Err("--output: the file of --arrivals states the tokens of answers\n  try: -o FILE, for the report".to_owned());
        }
        let path = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        write(
            &mut text,
            format_args!(
                "arrivals = \"file\"\nfile = {}",
                quote_toml(&path.display().to_string())
            ),
        );
        if let Some(count) = count {
            write(&mut text, format_args!("count = {count}"));
        }
    } else {
        match (args.rate, own.users) {
            (Some(rate), None) => write(
                &mut text,
                format_args!("arrivals = \"poisson\"\nrate = {rate:?}"),
            ),
            (None, Some(users)) => write(
                &mut text,
                format_args!("arrivals = \"users\"\nusers = {users}"),
            ),
            _ if args.find_capacity => write(
                &mut text,
                format_args!("arrivals = \"poisson\"\nrate = 1.0"),
            ),
            _ => {
                return Err(format!(
                    "{model} is a language model: the arrivals of requests are not given\n  try: --rate 4 \
                     --input 1024 --output 256, or --users 16, or --arrivals FILE"
                ));
            }
        }
        write(
            &mut text,
            format_args!("count = {}", count.unwrap_or(DEFAULT_REQUESTS)),
        );
        let (Some(input), Some(answer)) = (own.input.clone(), answer) else {
            return Err(format!(
                "{model} is a language model: the lengths of prompts and answers are not given\n  try: --input 1024 --output 256"
            ));
        };
        write(
            &mut text,
            format_args!(
                "[[class]]\nname = \"requests\"\ninput = \"{input}\"\noutput = \"{answer}\""
            ),
        );
    }
    Ok(text)
}

/// Separates the two kinds of values of `--output`: the number of tokens per answer, and the file for the report.
pub fn split_output_tokens_and_report_file(
    given: &[PathBuf],
    is_model: bool,
) -> Result<(Option<LengthDistribution>, Option<&Path>), String> {
    let (mut tokens, mut file) = (None, None);
    for value in given {
        let text = value.to_str().unwrap_or("");
        let length = text.parse::<LengthDistribution>();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if let (true, true, Err(expected)) = (is_model, is_number, &length) {
            return Err(format!("--output {text}: {expected}"));
        }
        let length = length.ok();
        let twice = match length.filter(|_| is_model) {
            Some(length) => tokens.replace(length).is_some(),
            None => file.replace(value.as_path()).is_some(),
        };
        if twice {
            return Err(format!(
                "--output {} is the second length of answers, expected one",
                value.display()
            ));
        }
    }
    Ok((tokens, file))
}

/// Returns why options that repeat values of the scenario `own` have no effect.
fn reasons_options_repeat_scenario(args: &ServeArgs, own: &LlmScenario) -> Vec<String> {
    let is_same_rate = |rate| own.workload.with_rate(rate).as_ref() == Some(&own.workload);
    let options = [
        ("--seed", args.seed == Some(own.seed)),
        (
            "--requests",
            args.requests.is_some() && args.requests == own.workload.count,
        ),
        ("--rate", args.rate.is_some_and(is_same_rate)),
    ];
    let same = options.into_iter().filter(|(_, is_same)| *is_same);
    same.map(|(option, _)| super::without_effect(option, super::SAME))
        .collect()
}

/// Returns the scenario that the command line names, after the options have changed it, and why some of the options
/// have no effect.
fn load_scenario_and_apply_options(
    args: &ServeArgs,
    input: &LlmModelOrScenario,
    answer: Option<LengthDistribution>,
) -> Result<(LlmScenario, Vec<String>), Box<dyn Error>> {
    let mut repeated = Vec::new();
    let mut scenario = match input {
        LlmModelOrScenario::Model(name) => {
            check_llm_model_name_servable(name)?;
            if args.seed == Some(LlmScenario::DEFAULT_SEED) {
                let why = format!("{} is the default", LlmScenario::DEFAULT_SEED);
                repeated.push(super::without_effect("--seed", &why));
            }
            let text = scenario_text(args, name, answer)?;
            LlmScenario::parse(&text, "the command line", Path::new(""))?
        }
        LlmModelOrScenario::Scenario(text) => {
            args.llm.reject_all_llm_options().map_err(|_| {
                "options that describe a language model only go with a model's name; a scenario has keys for them\n  try: the keys of the scenario"
            })?;
            let folder = args.scenario.parent().unwrap_or(Path::new(""));
            let mut scenario =
                LlmScenario::parse(text, &args.scenario.display().to_string(), folder)?;
            repeated = reasons_options_repeat_scenario(args, &scenario);
            scenario.seed = args.seed.unwrap_or(scenario.seed);
            if let Some(count) = args.requests {
                super::check_warmup_leaves_requests(scenario.warmup, count)?;
                scenario.workload.count = Some(count);
            }
            if let Some(rate) = args.rate {
                let changed = scenario.workload.with_rate(rate);
                scenario.workload = changed
                    .ok_or("--rate: the scenario's arrivals have no rate; expected poisson or constant arrivals")?;
            }
            scenario
        }
    };
    match args.slo {
        None => {}
        Some(RequestOrLlmSloArg::Tokens(limits)) => scenario.limits = limits,
        Some(RequestOrLlmSloArg::Serve(_)) => {
            return Err("--slo: found a time without a name, expected the limited time\n  try: --slo ttft=500ms,tpot=30ms".into());
        }
    }
    Ok((scenario, repeated))
}

fn check_options(args: &ServeArgs) -> Result<(), String> {
    if args.timeline.is_some() {
        return Err("--timeline draws no language models\n  try: --html FILE.html, or --format csv --table requests".to_owned());
    }
    if args.table == Some(ServeReportTableKind::Levels) {
        return Err("--table levels: for language models only the tables models and requests exist\n  try: --format json, which has levels".to_owned());
    }
    if !args.rates.is_empty() {
        return Err(
            "--rates is not for language models\n  try: --rate, one run per rate, or --find-capacity"
                .to_owned(),
        );
    }
    if args.llm.plan && args.find_capacity {
        return Err(
            "--plan and --find-capacity are different analyses\n  try: --plan, whose result includes the highest rate of its engines"
                .to_owned(),
        );
    }
    match (args.table, args.format) {
        (None, _) | (Some(_), ServeFormat::Csv) => {}
        (Some(ServeReportTableKind::Requests), ServeFormat::Json) => {}
        (Some(_), _) => {
            return Err(
                "--table needs --format csv, or json for requests\n  try: --format csv".to_owned(),
            );
        }
    }
    if args.table.is_some() && args.find_capacity {
        return Err(
            "--table shows one run, but --find-capacity makes several\n  try: --rate, without --find-capacity"
                .to_owned(),
        );
    }
    if args.html.is_some() && args.find_capacity {
        return Err(
            "--html shows one run, but --find-capacity makes several\n  \
             try: --format csv or json, or --rate and --html, for one run"
                .to_owned(),
        );
    }
    let is_closed = args.llm.users.is_some() || args.llm.arrivals.is_some();
    if args.find_capacity && is_closed {
        return Err(
            "--find-capacity changes the rate of arrivals, but --users and --arrivals have none\n  \
             try: --find-capacity without them, or one run for each number of users"
                .to_owned(),
        );
    }
    if args.platforms.len() > 1 {
        return Err(
            "--machine: a language model is served on one machine\n  try: one --machine".to_owned(),
        );
    }
    Ok(())
}

/// Simulates the serving of a language model, and prints the result.
pub fn run(
    args: &ServeArgs,
    input: &LlmModelOrScenario,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    check_options(args)?;
    let is_model = matches!(input, LlmModelOrScenario::Model(_));
    let (answer, file) = split_output_tokens_and_report_file(&args.output, is_model)?;
    let (scenario, repeated) = load_scenario_and_apply_options(args, input, answer)?;
    let machine = args
        .platforms
        .first()
        .map(|name| Machine::load_by_name(name))
        .transpose()?;
    let (outputs, page) = args.claim_outputs_and_html_page()?;
    let mut to =
        ReportDestinationAndOutputs::create_at_path(out, file.unwrap_or(Path::new("-")), outputs)?;
    let style = to.text_style();
    if args.llm.plan || args.find_capacity {
        let (rendered, has_answer) =
            render_planned_or_found_capacity(args, &scenario, machine.as_ref(), style)?;
        to.write_report(&rendered)?;
        if !has_answer {
            return Err(
                "the plan has no answer: none of the tried numbers of NPUs keeps the limits\n  \
                        try: longer limits, a smaller --attain, or --requests for a longer run"
                    .into(),
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = None;
    if args.table == Some(ServeReportTableKind::Requests) {
        let mut failed = None;
        to.run_write_and_commit_output(|out| {
            let is_json = args.format == ServeFormat::Json;
            if !is_json {
                writeln!(out, "{}", rows::REQUESTS)?;
            }
            let mut lines = BufWriter::new(out);
            let classes = scenario
                .workload
                .classes
                .iter()
                .map(|class| class.name.as_str());
            let mut observer = RequestRowWriter {
                out: &mut lines,
                is_json,
                classes: classes.collect(),
            };
            match serve_llm(&scenario, machine.as_ref(), &mut observer) {
                Ok(found) => report = Some(found),
                Err(error) => failed = Some(error),
            }
            lines.flush()
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
    } else {
        let mut found = serve_llm(&scenario, machine.as_ref(), &mut NoLlmObserver)?;
        if !repeated.iter().any(|why| why.starts_with("--seed")) {
            let silent = warn_if_seed_has_no_effect(args, &scenario, machine.as_ref(), &found)?;
            found.warnings.extend(silent);
        }
        found.warnings.extend(repeated);
        let rendered = match args.format {
            ServeFormat::Json => {
                VersionedDocument::new("chakram.serve-llm.1", LlmReportDocument { report: &found })
                    .to_json_text()
            }
            ServeFormat::Csv => rows::render_classes_csv(&found),
            ServeFormat::Text => text::render_text(&found, style),
        };
        to.write_report(&rendered)?;
        report = Some(found);
    }
    if let (Some(claim), Some(report)) = (page, &report) {
        let mut file = claim.create_file()?;
        file.write_all(html::render_html(report).as_bytes())?;
        file.commit()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the result of `--plan` or `--find-capacity`, and whether it is an answer. A plan without an answer still
/// shows what was tried.
fn render_planned_or_found_capacity(
    args: &ServeArgs,
    scenario: &LlmScenario,
    machine: Option<&Machine>,
    style: TextStyleWidthAndDetail,
) -> Result<(String, bool), Box<dyn Error>> {
    if let (true, Some(machine)) = (args.llm.plan, machine) {
        let found = plan_fewest_engines_within_limits(
            scenario,
            machine,
            args.required_share_meeting_limits(),
        )?;
        let rendered = match args.format {
            ServeFormat::Json => VersionedDocument::new(
                "chakram.serve-llm-plan.1",
                LlmCapacityPlanDocument { plan: &found },
            )
            .to_json_text(),
            ServeFormat::Csv => plan_report::render_plan_csv(&found),
            ServeFormat::Text => plan_report::render_plan(&found, style),
        };
        return Ok((rendered, found.chosen.is_some()));
    }
    let Some(row) =
        find_highest_scenario_rate(scenario, machine, args.required_share_meeting_limits())?
    else {
        return Err("no rate keeps the limits: requests are too slow even when served alone, or too few for a \
                    decision\n  try: longer limits, a smaller --attain, or --requests for a longer run".into());
    };
    let rendered = match args.format {
        ServeFormat::Json => VersionedDocument::new(
            "chakram.serve-llm-capacity.1",
            LlmHighestRequestRateDocument { capacity: &row },
        )
        .to_json_text(),
        ServeFormat::Csv => plan_report::render_highest_rate_configuration_csv(&row),
        ServeFormat::Text => plan_report::format_highest_rate(
            &row,
            args.required_share_meeting_limits(),
            &scenario.describe_limits_on_all_requests(),
        ),
    };
    Ok((rendered, true))
}

#[derive(Serialize)]
struct LlmCapacityPlanDocument<'r> {
    plan: &'r LlmCapacityPlan,
}

#[derive(Serialize)]
struct LlmHighestRequestRateDocument<'r> {
    capacity: &'r TriedEngineConfiguration,
}

/// Returns a warning if the seed has no effect on the run of `report`.
fn warn_if_seed_has_no_effect(
    args: &ServeArgs,
    scenario: &LlmScenario,
    machine: Option<&Machine>,
    report: &LlmReport,
) -> Result<Option<String>, ServeError> {
    if args.seed.is_none() || report.arrived > MOST_REPEATED / 20 {
        return Ok(None);
    }
    let mut other = scenario.clone();
    other.seed = scenario.seed ^ 1;
    let mut repeated = serve_llm(&other, machine, &mut NoLlmObserver)?;
    repeated.seed = report.seed;
    Ok((repeated == *report)
        .then(|| super::without_effect("--seed", "this run uses no random numbers")))
}
