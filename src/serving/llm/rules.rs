//! Rules by which an engine schedules requests. A built-in rule file is named after the program
//! that it models. A scenario may override its rules.

use super::super::error::ServeError;
use chakram_base::config::{
    ConfigDocument, ConfigError, ConfigTable, did_you_mean, find_most_similar_name,
    quote_and_truncate_for_message,
};
use chakram_base::units::Bytes;

/// Built-in rules, each with its name and its file.
pub const RULE_SETS: &[(&str, &str)] = &[
    ("vllm-v1", include_str!("rules/vllm-v1.toml")),
    ("static", include_str!("rules/static.toml")),
    ("tensorrt-llm", include_str!("rules/tensorrt-llm.toml")),
    ("sglang", include_str!("rules/sglang.toml")),
];

/// Name of the rules for scenarios that name no rules.
pub const DEFAULT_RULES: &str = "vllm-v1";

/// Keys of rules, which a scenario may also set.
pub(super) const RULE_KEYS: &[&str] = &[
    "batching",
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "max_model_len",
    "policy",
    "chunked_prefill",
    "prefix_caching",
    "long_prefill_token_threshold",
    "full_sequence_must_fit",
    "watermark",
    "reserve",
    "state_blocks",
    "all_reduce",
    "expert_kernels",
    "quantization",
    "graphs",
    "dependent_launch",
    "graph_tokens",
    "receive_interval",
    "async_scheduling",
];

/// Keys from other programs that chakram does not have, each with an explanation for the error message.
pub(super) const REFUSED_KEYS: &[(&str, &str)] = &[
    ("speculative", "drafts of tokens that a step verifies"),
    (
        "num_speculative_tokens",
        "drafts of tokens that a step verifies",
    ),
    (
        "kv_offload",
        "keys and values that are swapped out of the NPU's memory",
    ),
    ("prefill_pool", "separate engines for prefill and decode"),
    ("decode_pool", "separate engines for prefill and decode"),
    ("pipeline", "stages of a pipeline"),
    ("pipeline_parallel", "stages of a pipeline"),
    (
        "sliding_window",
        "windows that the model itself does not have",
    ),
    (
        "max_num_partial_prefills",
        "a limit on the number of chunked prompts at once",
    ),
];

/// When waiting requests may join the running ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchJoinRule {
    /// Waiting requests may join at each step.
    Continuous,
    /// Waiting requests may join only when no request is running.
    Static,
    /// Prompts have steps of their own, which run before the steps that compute answers.
    PromptsFirst,
}

/// Rule that orders waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingRequestOrder {
    /// The request that arrived first comes first.
    FirstCome,
    /// The request with the lowest priority number comes first. In a tie, the one that arrived first.
    Priority,
}

/// Rule that determines when a request allocates blocks for its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvBlockAllocationTimeRule {
    /// A request allocates blocks for its tokens as they are computed.
    AsComputed,
    /// On admission, a request allocates blocks for all tokens of its prompt and answer.
    WholeRequest,
}

/// Kernels that an engine uses to sum results over its NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduceKernelLibrary {
    /// vLLM's own kernels, which leave the norm after the sum to a separate kernel.
    Vllm,
    /// TensorRT-LLM's kernels, also provided by FlashInfer. They include the norm after the sum.
    TensorrtLlm,
}

impl AllReduceKernelLibrary {
    /// All variants, with their names in files.
    pub const NAMES: &[(Self, &str)] = &[(Self::Vllm, "vllm"), (Self::TensorrtLlm, "tensorrt-llm")];
}

/// Kernels that an engine uses for the matrix products of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertKernelLibrary {
    /// Triton's kernels, which vLLM and SGLang use on Hopper.
    Triton,
    /// TensorRT-LLM's CUTLASS kernels, which FlashInfer also provides.
    Cutlass,
    /// Marlin's kernels, which convert four-bit weights and compute in BF16.
    Marlin,
    /// The kernels that all other matrix products use.
    Plain,
}

impl ExpertKernelLibrary {
    /// All variants, with their names in files.
    pub const NAMES: &[(Self, &str)] = &[
        (Self::Triton, "triton"),
        (Self::Cutlass, "cutlass"),
        (Self::Marlin, "marlin"),
        (Self::Plain, "plain"),
    ];
}

/// Kernels that quantize the inputs of products whose weights have one scale per tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputQuantizingKernels {
    /// The kernels that run before products quantize the inputs.
    Fused,
    /// A separate kernel quantizes the results of attention; before other products, the preceding kernels quantize the
    /// inputs.
    Attention,
    /// A separate kernel quantizes the input of each product.
    Separate,
}

impl InputQuantizingKernels {
    /// All variants, with their names in files.
    pub const NAMES: &[(Self, &str)] = &[
        (Self::Fused, "fused"),
        (Self::Attention, "attention"),
        (Self::Separate, "separate"),
    ];
}

/// Steps whose kernels an engine launches as captured graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphCaptureRule {
    /// All steps; also stands for an engine whose host launches kernels faster than they run.
    All,
    /// Steps of up to `graph_tokens` tokens; in steps with prompts, attention is launched between graphs.
    Pieces,
    /// Steps in which each request has one token, for up to `graph_tokens` requests.
    Decodes,
    /// No steps.
    Never,
}

impl GraphCaptureRule {
    /// All rules with their names in files.
    pub const NAMES: &[(Self, &str)] = &[
        (Self::All, "all"),
        (Self::Pieces, "pieces"),
        (Self::Decodes, "decodes"),
        (Self::Never, "none"),
    ];
}

const BATCHINGS: &[(BatchJoinRule, &str)] = &[
    (BatchJoinRule::Continuous, "continuous"),
    (BatchJoinRule::Static, "static"),
    (BatchJoinRule::PromptsFirst, "prompts-first"),
];
const POLICIES: &[(WaitingRequestOrder, &str)] = &[
    (WaitingRequestOrder::FirstCome, "fcfs"),
    (WaitingRequestOrder::Priority, "priority"),
];
const RESERVES: &[(KvBlockAllocationTimeRule, &str)] = &[
    (KvBlockAllocationTimeRule::AsComputed, "as-computed"),
    (KvBlockAllocationTimeRule::WholeRequest, "whole-request"),
];

/// Rules by which an engine schedules requests.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineRules {
    /// Name of the built-in rules on which these rules are based.
    pub name: String,
    /// The program, with its version, whose rules these are.
    pub follows: String,
    /// When waiting requests may join the running ones.
    pub batching: BatchJoinRule,
    /// Maximum number of tokens that one step computes.
    pub max_num_batched_tokens: u32,
    /// Maximum number of running requests.
    pub max_num_seqs: u32,
    /// Number of tokens per block.
    pub block_size: u32,
    /// Maximum number of tokens in a request, or `None` for no limit.
    pub max_model_len: Option<u32>,
    /// Rule that orders waiting requests.
    pub policy: WaitingRequestOrder,
    /// True if a prompt may be computed in parts.
    pub chunked_prefill: bool,
    /// True if requests reuse cached blocks whose content is the same.
    pub prefix_caching: bool,
    /// Maximum number of tokens that one request may have in a step, or 0 for no limit.
    pub long_prefill_token_threshold: u32,
    /// True if a request is admitted only if enough blocks are free for all of its tokens; otherwise, enough for its
    /// first step suffice.
    pub full_sequence_must_fit: bool,
    /// Fraction of the blocks that an admission must leave free while other requests are running.
    pub watermark: f64,
    /// Rule that determines when a request allocates blocks for its tokens.
    pub reserve: KvBlockAllocationTimeRule,
    /// Number of blocks that a request occupies for linear-attention states, in addition to those of its tokens.
    pub state_blocks: u32,
    /// Kernels that an engine uses to sum results over its NPUs.
    pub all_reduce: AllReduceKernelLibrary,
    /// Kernels that an engine uses for the matrix products of experts.
    pub expert_kernels: ExpertKernelLibrary,
    /// Kernels that quantize the inputs of products.
    pub quantization: InputQuantizingKernels,
    /// True if each kernel of a captured graph starts before the previous kernel has ended, so that no time passes
    /// between kernels.
    pub dependent_launch: bool,
    /// Steps that the engine launches as captured graphs.
    pub graphs: GraphCaptureRule,
    /// Largest number of tokens in a captured graph.
    pub graph_tokens: u32,
    /// The scheduler receives new requests after this number of steps without prompts; 1 means before each step. It
    /// also receives them if no request runs, and after each step with prompts.
    pub receive_interval: u32,
    /// True if the scheduler composes the next step while a step runs, and so before it knows that step's tokens.
    pub async_scheduling: bool,
}

/// The machine's properties that rules may depend on.
#[derive(Clone, Copy, Debug)]
pub struct HardwareForEngineRules<'a> {
    /// Name of the NPU class.
    pub npu: &'a str,
    /// Memory per NPU, if known.
    pub memory: Option<Bytes>,
}

impl EngineRules {
    /// Returns the rules called `name`. Applies the conditions in the rules to `hardware`, if it is known.
    ///
    /// # Errors
    ///
    /// Fails if there are no rules with this name.
    pub fn load_named(
        name: &str,
        hardware: Option<HardwareForEngineRules<'_>>,
    ) -> Result<Self, ServeError> {
        let Some((name, text)) = RULE_SETS.iter().find(|(known, _)| *known == name) else {
            let expected = list_rule_names_with_hint(name);
            return Err(ServeError::Unfit(format!(
                "found {}, expected {expected}",
                quote_and_truncate_for_message(name)
            )));
        };
        let file = format!("rules {name}");
        let document = ConfigDocument::parse(text, &file)?;
        let mut allowed = vec!["name", "follows", "when"];
        allowed.extend(RULE_KEYS);
        let root = document.root_table_with_allowed_keys(&allowed)?;
        let mut rules = Self {
            name: root
                .require_field("name", "a name")?
                .read_one_line_text()?
                .to_owned(),
            follows: root
                .require_field("follows", "the system that the rules follow")?
                .read_one_line_text()?
                .to_owned(),
            batching: root.read_choice("batching", BATCHINGS)?,
            max_num_batched_tokens: root.read_count("max_num_batched_tokens", MOST_TOKENS)?,
            max_num_seqs: root.read_count("max_num_seqs", MOST_SEQUENCES)?,
            block_size: root.read_count("block_size", MOST_BLOCK_SIZE)?,
            max_model_len: None,
            policy: root.read_choice("policy", POLICIES)?,
            chunked_prefill: root
                .require_field("chunked_prefill", "true or false")?
                .read_flag()?,
            prefix_caching: root
                .require_field("prefix_caching", "true or false")?
                .read_flag()?,
            long_prefill_token_threshold: 0,
            full_sequence_must_fit: root
                .require_field("full_sequence_must_fit", "true or false")?
                .read_flag()?,
            watermark: 0.0,
            reserve: root.read_choice("reserve", RESERVES)?,
            state_blocks: 0,
            all_reduce: AllReduceKernelLibrary::Vllm,
            expert_kernels: ExpertKernelLibrary::Plain,
            quantization: InputQuantizingKernels::Fused,
            dependent_launch: false,
            receive_interval: root.read_count("receive_interval", MOST_SEQUENCES)?,
            graphs: GraphCaptureRule::All,
            graph_tokens: root.read_count("graph_tokens", MOST_TOKENS)?,
            async_scheduling: false,
        };
        rules.apply_rule_table(&root)?;
        let mut allowed = vec!["npu", "memory_below"];
        allowed.extend(RULE_KEYS);
        let conditions = root.read_optional("when", |field| field.read_tables(&allowed))?;
        for condition in conditions.unwrap_or_default() {
            let npu = condition.read_optional("npu", |field| field.read_one_line_text())?;
            let below: Option<Bytes> =
                condition.read_optional("memory_below", |field| field.read_quantity("70 GiB"))?;
            let holds = hardware.is_some_and(|hardware| {
                let is_npu = npu.is_none_or(|npu| hardware.npu == npu);
                let is_small = below
                    .is_none_or(|below| hardware.memory.is_some_and(|memory| memory.0 < below.0));
                is_npu && is_small
            });
            if holds {
                rules.apply_rule_table(&condition)?;
                break;
            }
        }
        Ok(rules)
    }

    /// Overrides rules with those that `table` contains.
    pub(super) fn apply_rule_table(&mut self, table: &ConfigTable<'_>) -> Result<(), ConfigError> {
        self.batching = table.read_or_default("batching", self.batching, |field| {
            field.read_choice(BATCHINGS)
        })?;
        let count =
            |key, own, most| table.read_or_default(key, own, |field| field.read_count(most));
        self.max_num_batched_tokens = count(
            "max_num_batched_tokens",
            self.max_num_batched_tokens,
            MOST_TOKENS,
        )?;
        self.max_num_seqs = count("max_num_seqs", self.max_num_seqs, MOST_SEQUENCES)?;
        self.block_size = count("block_size", self.block_size, MOST_BLOCK_SIZE)?;
        let length = table.read_optional("max_model_len", |field| field.read_count(MOST_TOKENS))?;
        self.max_model_len = length.or(self.max_model_len);
        self.policy =
            table.read_or_default("policy", self.policy, |field| field.read_choice(POLICIES))?;
        let flag = |key, own| table.read_or_default(key, own, |field| field.read_flag());
        self.chunked_prefill = flag("chunked_prefill", self.chunked_prefill)?;
        self.prefix_caching = flag("prefix_caching", self.prefix_caching)?;
        self.full_sequence_must_fit = flag("full_sequence_must_fit", self.full_sequence_must_fit)?;
        self.async_scheduling = flag("async_scheduling", self.async_scheduling)?;
        self.all_reduce = table.read_or_default("all_reduce", self.all_reduce, |field| {
            field.read_choice(AllReduceKernelLibrary::NAMES)
        })?;
        self.expert_kernels =
            table.read_or_default("expert_kernels", self.expert_kernels, |field| {
                field.read_choice(ExpertKernelLibrary::NAMES)
            })?;
        self.quantization = table.read_or_default("quantization", self.quantization, |field| {
            field.read_choice(InputQuantizingKernels::NAMES)
        })?;
        self.dependent_launch = flag("dependent_launch", self.dependent_launch)?;
        self.graphs = table.read_or_default("graphs", self.graphs, |field| {
            field.read_choice(GraphCaptureRule::NAMES)
        })?;
        self.graph_tokens = table.read_or_default("graph_tokens", self.graph_tokens, |field| {
            field.read_count(MOST_TOKENS)
        })?;
        self.receive_interval = count("receive_interval", self.receive_interval, MOST_SEQUENCES)?;
        self.state_blocks = table.read_or_default("state_blocks", self.state_blocks, |field| {
            Ok(field.read_integer_between(0, u64::from(MOST_TOKENS))? as u32)
        })?;
        let threshold = self.long_prefill_token_threshold;
        self.long_prefill_token_threshold =
            table.read_or_default("long_prefill_token_threshold", threshold, |field| {
                Ok(field.read_integer_between(0, u64::from(MOST_TOKENS))? as u32)
            })?;
        self.watermark = table.read_or_default("watermark", self.watermark, |field| {
            let given = field.raw_text().trim().parse::<f64>().ok();
            let share = given.filter(|share| (0.0..1.0).contains(share));
            share.ok_or_else(|| {
                field.invalid_value_error(field.raw_text(), "a share of at least 0 and below 1")
            })
        })?;
        self.reserve =
            table.read_or_default("reserve", self.reserve, |field| field.read_choice(RESERVES))?;
        Ok(())
    }

    /// Returns every rule with its value, in the syntax of scenarios.
    pub fn list_rule_values(&self) -> Vec<(&'static str, String)> {
        fn name_of_listed_value<T: PartialEq>(all: &[(T, &str)], one: T) -> String {
            let found = all.iter().find(|(value, _)| *value == one);
            found.map_or_else(String::new, |(_, name)| (*name).to_owned())
        }
        let length = self.max_model_len;
        vec![
            ("batching", name_of_listed_value(BATCHINGS, self.batching)),
            (
                "max_num_batched_tokens",
                self.max_num_batched_tokens.to_string(),
            ),
            ("max_num_seqs", self.max_num_seqs.to_string()),
            ("block_size", self.block_size.to_string()),
            (
                "max_model_len",
                length.map_or("any".to_owned(), |most| most.to_string()),
            ),
            ("policy", name_of_listed_value(POLICIES, self.policy)),
            ("chunked_prefill", self.chunked_prefill.to_string()),
            ("prefix_caching", self.prefix_caching.to_string()),
            (
                "long_prefill_token_threshold",
                self.long_prefill_token_threshold.to_string(),
            ),
            (
                "full_sequence_must_fit",
                self.full_sequence_must_fit.to_string(),
            ),
            ("watermark", self.watermark.to_string()),
            ("reserve", name_of_listed_value(RESERVES, self.reserve)),
            ("state_blocks", self.state_blocks.to_string()),
            (
                "all_reduce",
                name_of_listed_value(AllReduceKernelLibrary::NAMES, self.all_reduce),
            ),
            (
                "expert_kernels",
                name_of_listed_value(ExpertKernelLibrary::NAMES, self.expert_kernels),
            ),
            (
                "quantization",
                name_of_listed_value(InputQuantizingKernels::NAMES, self.quantization),
            ),
            (
                "graphs",
                name_of_listed_value(GraphCaptureRule::NAMES, self.graphs),
            ),
            ("dependent_launch", self.dependent_launch.to_string()),
            ("graph_tokens", self.graph_tokens.to_string()),
            ("receive_interval", self.receive_interval.to_string()),
            ("async_scheduling", self.async_scheduling.to_string()),
        ]
    }

    /// Checks that no rules contradict one another; the error names those that do.
    pub fn check_consistency(&self) -> Result<(), ServeError> {
        if self.batching == BatchJoinRule::PromptsFirst && !self.full_sequence_must_fit {
            return Err(ServeError::Unfit(
                "engine.full_sequence_must_fit: found false with batching = prompts-first, expected true: a prompt that does not \
                 fit as a whole could be admitted and put back forever, before any answer\n  try: full_sequence_must_fit = true"
                    .to_owned(),
            ));
        }
        if self.prefix_caching && self.state_blocks > 0 {
            return Err(ServeError::Unfit(format!(
                "engine.prefix_caching: found true with state_blocks = {}, expected false: the state after a prefix is not \
                 cached\n  try: prefix_caching = false",
                self.state_blocks
            )));
        }
        if !self.chunked_prefill
            && self
                .max_model_len
                .is_some_and(|most| most > self.max_num_batched_tokens)
        {
            return Err(ServeError::Unfit(format!(
                "engine.chunked_prefill: found false with max_num_batched_tokens = {} and max_model_len = {}, expected steps that \
                 hold the longest prompt\n  try: max_num_batched_tokens = {}",
                self.max_num_batched_tokens,
                self.max_model_len.unwrap_or(0),
                self.max_model_len.unwrap_or(0),
            )));
        }
        Ok(())
    }
}

const MOST_TOKENS: u32 = 1 << 26;
const MOST_SEQUENCES: u32 = 1 << 20;
const MOST_BLOCK_SIZE: u32 = 1 << 16;

/// Lists the names of all rules, and suggests the one most similar to `name`.
pub(super) fn list_rule_names_with_hint(name: &str) -> String {
    let names: Vec<&str> = RULE_SETS.iter().map(|(name, _)| *name).collect();
    let hint = did_you_mean(find_most_similar_name(name, names.iter().copied()));
    format!("rules, one of {}{hint}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_token_and_request_budgets_depend_on_the_npu() {
        let gib = |count: u64| Some(Bytes(count << 30));
        let rules = |npu, memory| {
            let rules =
                EngineRules::load_named("vllm-v1", Some(HardwareForEngineRules { npu, memory }))
                    .unwrap();
            (rules.max_num_batched_tokens, rules.max_num_seqs)
        };
        assert_eq!(rules("h100", gib(80)), (8192, 1024));
        assert_eq!(rules("a100", gib(80)), (2048, 256));
        assert_eq!(rules("l40s", gib(48)), (2048, 256));
        assert_eq!(rules("unknown", None), (8192, 1024));
    }

    #[test]
    fn all_rule_sets_are_read_and_stated_again() {
        for (name, _) in RULE_SETS {
            let rules = EngineRules::load_named(name, None).unwrap();
            assert_eq!(rules.name, *name);
            let stated: Vec<&str> = rules
                .list_rule_values()
                .iter()
                .map(|(key, _)| *key)
                .collect();
            assert_eq!(stated, RULE_KEYS);
        }
        let error = EngineRules::load_named("vllm", None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("vllm-v1"), "{error}");
    }
}
