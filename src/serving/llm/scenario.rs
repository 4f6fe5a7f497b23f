//! Parses scenarios of language models.
//!
//! A scenario file has these keys (defaults in parentheses):
//!
//! - `name`, and optionally `seed` (1);
//! - `[engine]`: `rules` (`vllm-v1`), and any key of these rules. `model` is a preset or a file.
//!   The model's options are `tensor` (NPUs per engine), `weights` (number format of the weights),
//!   `expert_weights` (format of the experts' weights, by default as `weights`), `weight_scales`
//!   (`tensor`, or `block` if each block of FP8 weights has a scale), `expert_parallel`
//!   (false; true if each NPU has whole experts), `kv` (format of keys and values), and
//!   `memory_utilization`. `blocks` is the number of KV blocks per engine, and is required without
//!   a model. `data_parallel` (1) is the number of ranks per engine. Each rank computes the
//!   attention of its own requests; the ranks run in lockstep and share the experts. `replicas` (1)
//!   is the number of engines. `router` is `round-robin`, `least-outstanding` or `longest-prefix`;
//! - `[step]`, unless a model and a machine determine step times: `base` is the time of each step,
//!   and `token`, `request` and `context` are added per token, per request and per token read.
//!   Alternatively, `profile` is a table of measured operations, and `rows` are the rows to read.
//!   The profile's options are the model's `layers`, `experts` (their number, and their number per
//!   token), `skew`, and the savings of captured graphs (`graph_saving`, `graph_tokens`). With a
//!   model and a machine, `leave_out` lists the parts of a step that take no time;
//! - `[requests]`: `arrivals` is `poisson` or `constant` (both with a `rate` per second), `bursts`,
//!   `users`, `at-once` or `file`. With `bursts`, groups of `burst` requests arrive at intervals of
//!   `every`. With `users`, each of `users` users waits for `think` after an answer, and then sends
//!   the next request. A `file` is replayed at `speed` times the recorded speed. `count` and
//!   `duration` limit the number of requests;
//! - `[[class]]`, unless a file states lengths: `name`, `weight` (1), `input` and `output` tokens,
//!   `priority` (0; the lowest number is the most urgent), `shared_prefix` tokens, the number of
//!   distinct `prefixes` (1), `turns` (1) and the time `think` between turns. The limits `ttft`,
//!   `tpot` and `e2e` of a class replace the limits of `[slo]`;
//! - `[slo]`, optionally: the limits `ttft`, `tpot` and `e2e`;
//! - `[client]`, optionally: the times `before` the queue and `after` the engine, and the time to `tokenize` each token
//!   of a prompt, one prompt after another;
//! - `[measure]`, optionally: `warmup`, the number of initial requests that are not counted (0).

use super::super::error::ServeError;
use super::limits::{LIMITS_OF_CLASSES, LlmTimeLimits};
use super::rules::{
    DEFAULT_RULES, EngineRules, HardwareForEngineRules, REFUSED_KEYS, RULE_KEYS, RULE_SETS,
    list_rule_names_with_hint,
};
use super::step_cost::StepTimePart;
use super::step_load::LinearStepTimeCoefficients;
use super::step_profile::StepProfileReadOptions;
use super::workload::{LengthDistribution, LlmArrivals, LlmWorkload, RequestClass};
use chakram_base::config::{
    ConfigDocument, ConfigError, ConfigTable, quote_and_truncate_for_message,
};
use chakram_base::dtype::Dtype;
use chakram_base::units::Span;
use std::path::Path;

/// Requests, engines and limits of a serving run.
#[derive(Clone, Debug, PartialEq)]
pub struct LlmScenario {
    /// Name that reports show.
    pub name: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Name of the scheduling rules.
    pub rules: String,
    /// Rules that the scenario states; they override the named rules.
    pub own_rules: ScenarioRuleTextForReparsing,
    /// The served model, if step times are computed from a model.
    pub model: Option<LlmModelAndServingOptions>,
    /// Number of KV blocks per engine, if the scenario states it.
    pub blocks: Option<u32>,
    /// Number of engines.
    pub replicas: u32,
    /// Number of ranks per engine, which run in lockstep.
    pub ranks: u32,
    /// Rule by which requests are assigned to engines.
    pub router: EngineRoutingRule,
    /// Step times, if the scenario states them.
    pub step: Option<LinearStepTimeCoefficients>,
    /// Table of measured operations from which step times follow, if the scenario names one. The times in `step` are
    /// added to them.
    pub profile: Option<StepProfileReadOptions>,
    /// Parts of a step's time that count as zero.
    pub left_out: Vec<StepTimePart>,
    /// Arrivals and lengths of requests.
    pub workload: LlmWorkload,
    /// Limits on how long requests may take.
    pub limits: LlmTimeLimits,
    /// Times between client and engine.
    pub client: ClientDelays,
    /// Number of requests at the beginning that reports do not count.
    pub warmup: u64,
}

/// Rules that a scenario states, as text. The text is kept because rules are parsed again once the machine is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScenarioRuleTextForReparsing {
    /// Text of the scenario's file.
    pub text: String,
    /// Name of the file for error messages.
    pub file: String,
}

/// A model and its serving options.
#[derive(Clone, Debug, PartialEq)]
pub struct LlmModelAndServingOptions {
    /// Name of the model: a preset or a file.
    pub name: String,
    /// Number of NPUs per engine, or `None` for the smallest number whose memory suffices.
    pub tensor: Option<u32>,
    /// Number format of weights and activations.
    pub weights: Dtype,
    /// Number format of the experts' weights.
    pub expert_weights: Dtype,
    /// True if FP8 weights have one scale per block; false if they have one per tensor.
    pub has_block_scales: bool,
    /// True if each NPU has whole experts, false if each NPU has a part of every expert.
    pub has_whole_experts: bool,
    /// Number format of keys and values.
    pub kv: Dtype,
    /// Fraction of an NPU's memory that an engine may use.
    pub memory_utilization: f64,
}

impl LlmModelAndServingOptions {
    /// Creates a model in BF16 that may use nine tenths of the memory, as is vLLM's default.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            tensor: None,
            weights: Dtype::Bf16,
            expert_weights: Dtype::Bf16,
            has_block_scales: false,
            has_whole_experts: false,
            kv: Dtype::Bf16,
            memory_utilization: 0.9,
        }
    }
}

/// Rule by which requests are assigned to engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineRoutingRule {
    /// Assigns requests to the engines in turn.
    RoundRobin,
    /// Chooses the engine with the fewest requests. In a tie, chooses the first of them.
    LeastOutstanding,
    /// Chooses the engine that caches the longest beginning of the prompt. In a tie, chooses the engine with the fewest
    /// requests.
    LongestPrefix,
}

const ROUTERS: &[(EngineRoutingRule, &str)] = &[
    (EngineRoutingRule::RoundRobin, "round-robin"),
    (EngineRoutingRule::LeastOutstanding, "least-outstanding"),
    (EngineRoutingRule::LongestPrefix, "longest-prefix"),
];

impl EngineRoutingRule {
    /// Returns the rule's name in files and reports.
    pub fn stable_name(self) -> &'static str {
        ROUTERS
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or("", |(_, name)| name)
    }

    /// Returns the rule with this name, or `None` if there is no such rule.
    pub fn from_name(name: &str) -> Option<Self> {
        ROUTERS
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(kind, _)| *kind)
    }
}

/// Delays between a client and its engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientDelays {
    /// Time from when a client sends a request until it enters the queue.
    pub before: Span,
    /// Time to turn one token of a prompt from text into a number. The server's front end processes prompts one after
    /// another, before the time `before` begins.
    pub tokenize: Span,
    /// Time from when an engine produces a token until the client receives it.
    pub after: Span,
}

const ROOT: &[&str] = &[
    "name", "seed", "engine", "step", "requests", "class", "slo", "client", "measure",
];
const ENGINE: &[&str] = &[
    "rules",
    "model",
    "tensor",
    "weights",
    "expert_weights",
    "weight_scales",
    "expert_parallel",
    "kv",
    "memory_utilization",
    "blocks",
    "data_parallel",
    "replicas",
    "router",
];
const STEP: &[&str] = &[
    "base",
    "token",
    "request",
    "context",
    "profile",
    "rows",
    "layers",
    "experts",
    "skew",
    "graph_saving",
    "graph_tokens",
    "leave_out",
];
const REQUESTS: &[&str] = &[
    "arrivals", "rate", "burst", "every", "users", "think", "file", "speed", "count", "duration",
];
const CLASS: &[&str] = &[
    "name",
    "weight",
    "input",
    "output",
    "priority",
    "shared_prefix",
    "prefixes",
    "turns",
    "think",
    "ttft",
    "tpot",
    "e2e",
];

/// Maximum number of requests in a run.
const MOST_REQUESTS: u64 = 1_000_000_000;
/// Maximum number of engines.
pub(super) const MOST_REPLICAS: u32 = 4096;

/// Maximum number of ranks per engine.
const MOST_RANKS: u32 = 256;

/// Number formats that weights may have, with their names in files.
pub const FORMATS: &[(Dtype, &str)] = &[
    (Dtype::Bf16, "bf16"),
    (Dtype::Fp16, "fp16"),
    (Dtype::Fp8, "fp8"),
    (Dtype::Fp4, "fp4"),
];

/// Values of `weight_scales`; true means one scale per block.
const WEIGHT_SCALES: &[(bool, &str)] = &[(false, "tensor"), (true, "block")];

/// Number formats that keys and values may have.
const KV_FORMATS: &[(Dtype, &str)] = FORMATS.split_at(3).0;

/// Returns true if `text` is a language model's scenario, that is, if it has a table `engine`.
pub fn is_llm_scenario(text: &str) -> bool {
    let document = ConfigDocument::parse(text, "scenario");
    document.is_ok_and(|document| document.unchecked_root().get("engine").is_some())
}

impl LlmScenario {
    /// Seed of scenarios that state none.
    pub const DEFAULT_SEED: u64 = 1;

    /// Parses a scenario. Error messages call the file `file`, and paths in `text` are relative to
    /// `folder`.
    ///
    /// # Errors
    ///
    /// Fails if the scenario is invalid.
    pub fn parse(text: &str, file: &str, folder: &Path) -> Result<Self, ServeError> {
        let document = ConfigDocument::parse(text, file)?;
        let root = document.root_table_with_allowed_keys(ROOT)?;
        let engine = require_engine_table(&root)?;
        let rules = engine.read_or_default("rules", DEFAULT_RULES, |field| {
            let name = field.read_one_line_text()?;
            match RULE_SETS.iter().any(|(known, _)| *known == name) {
                true => Ok(name),
                false => Err(field.invalid_value_error(
                    quote_and_truncate_for_message(name),
                    list_rule_names_with_hint(name),
                )),
            }
        })?;
        let model = parse_served_llm(&engine, folder)?;
        let blocks = engine.read_optional("blocks", |field| {
            field.read_count(super::block_pool::MOST_BLOCKS)
        })?;
        let step = root.read_optional("step", |field| field.read_table(Some(STEP)))?;
        let (given, left_out) = match &step {
            Some(table) => parse_linear_step_time_and_parts(table, model.is_some())?,
            None => (None, Vec::new()),
        };
        let profile = match &step {
            Some(table) => parse_step_profile(table, folder)?,
            None => None,
        };
        if model.is_none() {
            if given.is_none() && profile.is_none() {
                return Err(root
                    .missing_entry_error("step", "times of steps, because [engine] names no model")
                    .into());
            }
            if blocks.is_none() {
                return Err(engine
                    .missing_entry_error(
                        "blocks",
                        "the blocks of an engine, because there is no model",
                    )
                    .into());
            }
        }
        let requests = root
            .require_field("requests", "the arrivals of requests")?
            .read_table(Some(REQUESTS))?;
        let arrivals = parse_arrivals(&requests, folder)?;
        let is_file = matches!(arrivals, LlmArrivals::File { .. });
        let count = requests.read_optional("count", |field| {
            field.read_integer_between(1, MOST_REQUESTS)
        })?;
        let duration: Option<Span> =
            requests.read_optional("duration", |field| field.read_quantity("60 s"))?;
        if !is_file && count.is_none() && duration.is_none() {
            return Err(requests
                .missing_entry_error("count", "a number of requests, or a `duration`")
                .into());
        }
        let scenario = Self {
            name: root
                .require_field("name", "the scenario's name")?
                .read_one_line_text()?
                .to_owned(),
            seed: root.read_or_default("seed", Self::DEFAULT_SEED, |field| {
                field.read_integer_between(0, u64::MAX >> 1)
            })?,
            rules: rules.to_owned(),
            own_rules: ScenarioRuleTextForReparsing {
                text: text.to_owned(),
                file: file.to_owned(),
            },
            model,
            blocks,
            replicas: engine
                .read_or_default("replicas", 1, |field| field.read_count(MOST_REPLICAS))?,
            ranks: engine
                .read_or_default("data_parallel", 1, |field| field.read_count(MOST_RANKS))?,
            router: engine.read_or_default("router", EngineRoutingRule::RoundRobin, |field| {
                field.read_choice(ROUTERS)
            })?,
            step: given,
            profile,
            left_out,
            workload: LlmWorkload {
                arrivals,
                count,
                duration,
                classes: parse_request_classes(&root, is_file)?,
            },
            limits: parse_slo_time_limits(&root)?,
            client: parse_client_delays(&root)?,
            warmup: match root
                .read_optional("measure", |field| field.read_table(Some(&["warmup"])))?
            {
                Some(table) => table.read_or_default("warmup", 0, |field| {
                    field.read_integer_between(0, MOST_REQUESTS)
                })?,
                None => 0,
            },
        };
        if let Some(count) = scenario
            .workload
            .count
            .filter(|count| scenario.warmup >= *count)
        {
            return Err(root
                .invalid_table_error(
                    format_args!("measure.warmup = {} of {count} requests", scenario.warmup),
                    "fewer, so that some requests are counted",
                )
                .into());
        }
        // The rules are parsed again once the machine is known. Parse them now too, so that errors are reported before
        // a machine is loaded.
        let rules = scenario.resolve_engine_rules(None)?;
        if scenario.ranks > 1 && rules.async_scheduling {
            return Err(engine
                .invalid_table_error(
                    "async_scheduling with data_parallel",
                    "one of them: ranks in lockstep that compose ahead are not simulated",
                )
                .into());
        }
        Ok(scenario)
    }

    /// Returns the limits of a class.
    pub fn limits_of_class(&self, class: &RequestClass) -> LlmTimeLimits {
        class.limits.with_missing_limits_from(&self.limits)
    }

    /// Returns the limits for all classes together: the scenario's limits, with missing ones taken from the classes.
    pub fn limits_of_all_classes_together(&self) -> LlmTimeLimits {
        let classes = self.workload.classes.iter();
        classes.fold(self.limits, |all, class| {
            all.with_missing_limits_from(&class.limits)
        })
    }

    /// Describes the limits on all requests: `their limits` if classes have different limits.
    pub fn describe_limits_on_all_requests(&self) -> String {
        let all = self.limits_of_all_classes_together();
        let mut classes = self.workload.classes.iter();
        match classes.all(|class| self.limits_of_class(class) == all) {
            true => all.describe_limits(),
            false => LIMITS_OF_CLASSES.to_owned(),
        }
    }

    /// Returns true if the scenario itself sets the rule `key`.
    pub fn states_rule(&self, key: &str) -> bool {
        let document = ConfigDocument::parse(&self.own_rules.text, &self.own_rules.file);
        document.is_ok_and(|document| {
            let engine = document.unchecked_root().get("engine");
            let table = engine.and_then(|field| field.read_table(None).ok());
            table.is_some_and(|table| table.get(key).is_some())
        })
    }

    /// Returns the rules for NPUs of `hardware`.
    ///
    /// # Errors
    ///
    /// Fails if rules contradict one another.
    pub fn resolve_engine_rules(
        &self,
        hardware: Option<HardwareForEngineRules<'_>>,
    ) -> Result<EngineRules, ServeError> {
        let mut rules = EngineRules::load_named(&self.rules, hardware)?;
        if !self.own_rules.text.is_empty() {
            let document = ConfigDocument::parse(&self.own_rules.text, &self.own_rules.file)?;
            if let Some(field) = document.unchecked_root().get("engine") {
                rules.apply_rule_table(&field.read_table(None)?)?;
            }
        }
        rules.check_consistency()?;
        Ok(rules)
    }
}

fn require_engine_table<'d>(root: &ConfigTable<'d>) -> Result<ConfigTable<'d>, ConfigError> {
    let field = root.require_field("engine", "the engine")?;
    // Keys of other programs have their own error messages, so check for these keys before rejecting unknown ones.
    let all = field.read_table(None)?;
    for (key, what) in REFUSED_KEYS {
        if let Some(given) = all.get(key) {
            return Err(given.invalid_value_error(
                given.raw_text(),
                format_args!("no such key: {what} are not simulated"),
            ));
        }
    }
    let allowed: Vec<&str> = ENGINE.iter().chain(RULE_KEYS).copied().collect();
    field.read_table(Some(&allowed))
}

/// Rejects a table that has one of `keys`, with an error that expected `expected` instead.
fn refuse_keys<'k>(
    table: &ConfigTable<'_>,
    keys: impl IntoIterator<Item = &'k str>,
    expected: &str,
) -> Result<(), ConfigError> {
    match keys.into_iter().find_map(|key| table.get(key)) {
        Some(field) => Err(field.invalid_value_error(field.raw_text(), expected)),
        None => Ok(()),
    }
}

fn parse_served_llm(
    engine: &ConfigTable<'_>,
    folder: &Path,
) -> Result<Option<LlmModelAndServingOptions>, ConfigError> {
    let Some(field) = engine.get("model") else {
        let of_model = [
            "tensor",
            "weights",
            "expert_weights",
            "weight_scales",
            "expert_parallel",
            "all_reduce",
            "expert_kernels",
            "quantization",
            "dependent_launch",
            "graphs",
            "graph_tokens",
            "kv",
            "memory_utilization",
        ];
        refuse_keys(
            engine,
            of_model,
            "no such key, because [engine] names no model",
        )?;
        return Ok(None);
    };
    let name = field.read_one_line_text()?;
    let is_file = name.ends_with(".toml") || name.contains('/');
    let name = match is_file {
        true => folder.join(name).display().to_string(),
        false => name.to_owned(),
    };
    let own = LlmModelAndServingOptions::new(name);
    let weights =
        engine.read_or_default("weights", own.weights, |field| field.read_choice(FORMATS))?;
    let expert_weights = engine.read_or_default("expert_weights", weights, |field| {
        field.read_choice(FORMATS)
    })?;
    let has_block_scales = engine.read_or_default("weight_scales", false, |field| {
        let has_blocks = field.read_choice(WEIGHT_SCALES)?;
        if weights != Dtype::Fp8 && expert_weights != Dtype::Fp8 {
            return Err(field.invalid_value_error(
                field.raw_text(),
                "no such key, because no weights are in fp8",
            ));
        }
        Ok(has_blocks)
    })?;
    Ok(Some(LlmModelAndServingOptions {
        tensor: engine.read_optional("tensor", |field| field.read_count(1024))?,
        weights,
        expert_weights,
        has_block_scales,
        has_whole_experts: engine
            .read_or_default("expert_parallel", false, |field| field.read_flag())?,
        kv: engine.read_or_default("kv", own.kv, |field| field.read_choice(KV_FORMATS))?,
        memory_utilization: engine.read_or_default(
            "memory_utilization",
            own.memory_utilization,
            |field| field.read_positive(1.0),
        )?,
        ..own
    }))
}

fn parse_linear_step_time_and_parts(
    table: &ConfigTable<'_>,
    has_model: bool,
) -> Result<(Option<LinearStepTimeCoefficients>, Vec<StepTimePart>), ConfigError> {
    let times = ["base", "token", "request", "context"];
    let span =
        |key: &str| table.read_or_default(key, Span::ZERO, |field| field.read_quantity("20 us"));
    let given = times.iter().any(|key| table.get(key).is_some());
    let linear = LinearStepTimeCoefficients {
        base: span("base")?,
        token: span("token")?,
        request: span("request")?,
        context: span("context")?,
    };
    let profiled = table.get("profile").is_some();
    if given && !profiled && linear == LinearStepTimeCoefficients::default() {
        return Err(table.invalid_table_error("steps of zero time", "a time above 0"));
    }
    let left_out = table.read_optional("leave_out", |field| {
        if given || !has_model || profiled {
            return Err(field.invalid_value_error(
                field.raw_text(),
                "no such key, because steps have given times",
            ));
        }
        let items = field.read_array_items("parts of the cost of a step")?;
        items
            .iter()
            .map(|item| item.read_choice(StepTimePart::NAMES))
            .collect()
    })?;
    Ok((given.then_some(linear), left_out.unwrap_or_default()))
}

/// Parses the table of measured operations, if the scenario names one.
fn parse_step_profile(
    table: &ConfigTable<'_>,
    folder: &Path,
) -> Result<Option<StepProfileReadOptions>, ConfigError> {
    let Some(path) = table.get("profile") else {
        let of_profile = [
            "rows",
            "layers",
            "experts",
            "skew",
            "graph_saving",
            "graph_tokens",
        ];
        refuse_keys(table, of_profile, "no such key without `profile`")?;
        return Ok(None);
    };
    let rows = table.read_optional("rows", |field| {
        let all = field.read_table(None)?;
        let fields = all.fields();
        fields
            .map(|(column, value)| Ok((column.to_owned(), value.read_one_line_text()?.to_owned())))
            .collect::<Result<Vec<_>, ConfigError>>()
    })?;
    let graph_saving = table.read_or_default("graph_saving", Span::ZERO, |field| {
        field.read_quantity("0.5 ms")
    })?;
    let graph_tokens = match graph_saving {
        Span::ZERO => {
            refuse_keys(
                table,
                ["graph_tokens"],
                "no such key without `graph_saving`",
            )?;
            0
        }
        _ => table.read_count("graph_tokens", 1 << 20)?,
    };
    Ok(Some(StepProfileReadOptions {
        path: folder.join(path.read_one_line_text()?),
        rows: rows.unwrap_or_default(),
        layers: table.read_count("layers", 1 << 16)?,
        experts: table.read_optional("experts", |field| {
            let [all, each] = field.read_array_of_exact_length(
                "numbers",
                "experts of a block and experts per token",
            )?;
            let all = all.read_count(1 << 16)?;
            let chosen = each.read_count(1 << 16)?;
            match chosen <= all {
                true => Ok([all, chosen]),
                false => Err(each.invalid_value_error(chosen, "at most the number of experts")),
            }
        })?,
        skew: table.read_or_default("skew", 0.0, |field| field.read_positive(1.0))?,
        graph_saving,
        graph_tokens,
    }))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ArrivalKindName {
    Poisson,
    Constant,
    Bursts,
    Users,
    AtOnce,
    File,
}

fn parse_arrivals(table: &ConfigTable<'_>, folder: &Path) -> Result<LlmArrivals, ConfigError> {
    use ArrivalKindName as Name;
    let name = table.read_choice(
        "arrivals",
        &[
            (Name::Poisson, "poisson"),
            (Name::Constant, "constant"),
            (Name::Bursts, "bursts"),
            (Name::Users, "users"),
            (Name::AtOnce, "at-once"),
            (Name::File, "file"),
        ],
    )?;
    let own: &[&str] = match name {
        Name::Poisson | Name::Constant => &["rate"],
        Name::Bursts => &["burst", "every"],
        Name::Users => &["users", "think"],
        Name::AtOnce => &[],
        Name::File => &["file", "speed"],
    };
    let others = ["rate", "burst", "every", "users", "think", "file", "speed"];
    let others = others.into_iter().filter(|key| !own.contains(key));
    refuse_keys(table, others, "no such key with these arrivals")?;
    let rate = || {
        table
            .require_field("rate", "requests per second")?
            .read_positive(1e9)
    };
    Ok(match name {
        Name::Poisson => LlmArrivals::Poisson(rate()?),
        Name::Constant => LlmArrivals::Constant(rate()?),
        Name::Bursts => LlmArrivals::Bursts {
            burst: table.read_count("burst", 1 << 20)?,
            every: table.read_quantity("every", "10 s")?,
        },
        Name::Users => LlmArrivals::Users {
            users: table.read_count("users", 1 << 20)?,
            think: table
                .read_or_default("think", Span::ZERO, |field| field.read_quantity("10 s"))?,
        },
        Name::AtOnce => LlmArrivals::AtOnce,
        Name::File => LlmArrivals::File {
            path: folder.join(
                table
                    .require_field("file", "the file's path")?
                    .read_one_line_text()?,
            ),
            speed: table.read_or_default("speed", 1.0, |field| field.read_positive(1e6))?,
        },
    })
}

fn parse_request_classes(
    root: &ConfigTable<'_>,
    is_file: bool,
) -> Result<Vec<RequestClass>, ConfigError> {
    let Some(field) = root.get("class") else {
        return match is_file {
            true => {
                let any = || LengthDistribution::Fixed(1);
                Ok(vec![RequestClass::new("requests", any(), any())])
            }
            false => Err(root.missing_entry_error("class", "requests, under [[class]]")),
        };
    };
    if is_file {
        return Err(field.invalid_value_error(
            "classes",
            "no such key, because the file states each request",
        ));
    }
    let mut all: Vec<RequestClass> = Vec::new();
    for table in field.read_tables(CLASS)? {
        let length = |key: &str| -> Result<LengthDistribution, ConfigError> {
            let field = table.require_field(key, "a number of tokens")?;
            let text = match field.as_whole_number() {
                Some(number) => number.to_string(),
                None => field
                    .read_text("a number of tokens, or a text of a distribution")?
                    .to_owned(),
            };
            text.parse().map_err(|expected: String| {
                field
                    .invalid_value_error(field.raw_text(), expected.trim_start_matches("expected "))
            })
        };
        let named = table.require_field("name", "the name of the class")?;
        let name = named.read_one_line_text()?;
        if all.iter().any(|other| other.name == name) {
            return Err(
                named.invalid_value_error(named.raw_text(), "a name that no other class has")
            );
        }
        let class = RequestClass {
            weight: table.read_or_default("weight", 1.0, |field| field.read_positive(1e9))?,
            priority: table.read_or_default("priority", 0, |field| {
                Ok(field.read_integer_between(0, 1 << 20)? as i32)
            })?,
            shared_prefix: table.read_or_default("shared_prefix", 0, |field| {
                Ok(field.read_integer_between(0, super::workload::MOST_LENGTH.into())? as u32)
            })?,
            prefixes: table.read_or_default("prefixes", 1, |field| field.read_count(1 << 20))?,
            turns: table.read_or_default("turns", 1, |field| field.read_count(1 << 16))?,
            think: table
                .read_or_default("think", Span::ZERO, |field| field.read_quantity("10 s"))?,
            limits: parse_limits_in_table(&table)?,
            ..RequestClass::new(name, length("input")?, length("output")?)
        };
        if class.shared_prefix == 0 && class.prefixes > 1 {
            return Err(table.invalid_table_error(
                "prefixes of no tokens",
                "`shared_prefix`, the tokens of each",
            ));
        }
        if class.turns == 1 && class.think != Span::ZERO {
            return Err(table
                .invalid_table_error("`think` in conversations of one turn", "`turns` above 1"));
        }
        all.push(class);
    }
    if all.is_empty() {
        return Err(root.missing_entry_error("class", "at least one class"));
    }
    Ok(all)
}

fn parse_slo_time_limits(root: &ConfigTable<'_>) -> Result<LlmTimeLimits, ConfigError> {
    let Some(table) = root.read_optional("slo", |field| {
        field.read_table(Some(&["ttft", "tpot", "e2e"]))
    })?
    else {
        return Ok(LlmTimeLimits::default());
    };
    parse_limits_in_table(&table)
}

/// Parses the limits in a table.
fn parse_limits_in_table(table: &ConfigTable<'_>) -> Result<LlmTimeLimits, ConfigError> {
    let limit = |key: &str| {
        table.read_optional(key, |field| match field.read_quantity("500 ms")? {
            Span::ZERO => Err(field.invalid_value_error(field.raw_text(), "a time above 0")),
            limit => Ok(limit),
        })
    };
    Ok(LlmTimeLimits {
        ttft: limit("ttft")?,
        tpot: limit("tpot")?,
        e2e: limit("e2e")?,
    })
}

fn parse_client_delays(root: &ConfigTable<'_>) -> Result<ClientDelays, ConfigError> {
    let Some(table) = root.read_optional("client", |field| {
        field.read_table(Some(&["before", "tokenize", "after"]))
    })?
    else {
        return Ok(ClientDelays::default());
    };
    let span =
        |key: &str| table.read_or_default(key, Span::ZERO, |field| field.read_quantity("15 ms"));
    Ok(ClientDelays {
        before: span("before")?,
        tokenize: table
            .read_or_default("tokenize", Span::ZERO, |field| field.read_quantity("2 us"))?,
        after: span("after")?,
    })
}
