//! Places engines on a machine: chooses each engine's NPUs, and computes its KV blocks and step times.

use super::super::error::ServeError;
use super::block_pool::MOST_BLOCKS;
use super::model_sizes::LlmModelSizes;
use super::rules::{EngineRules, HardwareForEngineRules};
use super::scenario::{LlmModelAndServingOptions, LlmScenario};
use super::step_cost::{
    EngineParallelismAndKernels, ServedModelNumberFormats, StepTimeCalculator, name_of_format,
};
use super::step_price::StepTimeSource;
use super::step_profile::ProfiledStepTimeModel;
use super::workload::{LlmArrivals, RequestClass};
use chakram_base::ids::Npu;
use chakram_base::units::format_thousands;
use chakram_hardware::machine::{Machine, NpuClass};
use serde::{Deserialize, Serialize};

/// A set of identical engines, with their blocks and step times.
#[derive(Clone, Debug, PartialEq)]
pub struct IdenticalLlmEngines {
    /// Scheduling rules of the engines.
    pub rules: EngineRules,
    /// Number of KV blocks per engine.
    pub blocks: u32,
    /// Number of engines.
    pub replicas: u32,
    /// Number of ranks per engine. They run in lockstep, each with its own requests and blocks.
    pub ranks: u32,
    /// Where step times come from.
    pub price: StepTimeSource,
    /// NPUs and memory of the engines, if step times are computed for a machine.
    pub place: Option<EngineModelNpusAndMemory>,
}

/// The NPUs that engines run on, and how each NPU's memory is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineModelNpusAndMemory {
    /// Name of the machine.
    pub machine: String,
    /// Class of the NPUs that the engines run on.
    pub npu: String,
    /// Number of NPUs in the machine.
    pub npus: u32,
    /// Name of the model.
    pub model: String,
    /// Number format of the model's weights.
    pub weights: String,
    /// Number format of the experts' weights, if it differs from `weights`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_weights: Option<String>,
    /// Number format of keys and values.
    pub kv: String,
    /// Number of NPUs per rank of an engine.
    pub tensor: u32,
    /// Number of ranks per engine, which run in lockstep and share the experts.
    #[serde(default = "rank_count_if_report_omits_it")]
    pub data_parallel: u32,
    /// True if the scenario states the number of NPUs.
    pub is_stated: bool,
    /// Memory of each NPU of the engine.
    pub memory: NpuMemoryBreakdown,
    /// All possible numbers of NPUs per engine, each with the number of tokens whose keys and values fit in memory.
    pub choices: Vec<TensorDegreeCandidate>,
    /// Price of an NPU in dollars per hour, if known.
    pub price_per_npu_hour: Option<f64>,
}

/// Bytes of an NPU's memory, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpuMemoryBreakdown {
    /// Total memory.
    pub memory: u64,
    /// Memory that the engine may use.
    pub usable: u64,
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of the activations and logits of the largest step.
    pub activations: u64,
    /// Bytes of the device's context and captured graphs.
    pub context: u64,
    /// Memory that remains for keys and values.
    pub left: u64,
    /// Bytes of keys and values per token.
    pub kv_of_token: u64,
    /// Bytes for linear-attention states, which each request needs regardless of its length.
    #[serde(default)]
    pub state_of_request: u64,
    /// Number of KV blocks: as many as fit into `left`, or the scenario's number.
    pub blocks: u32,
    /// True if the scenario states the number of blocks.
    pub is_stated: bool,
}

/// A possible number of NPUs per engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorDegreeCandidate {
    /// Number of NPUs.
    pub npus: u32,
    /// Number of tokens whose keys and values fit in an engine's memory.
    pub kv_tokens: u64,
    /// True if memory suffices for the longest request that is typical of the scenario.
    pub fits: bool,
}

/// Returns the number of ranks that a report without this field means.
fn rank_count_if_report_omits_it() -> u32 {
    1
}

/// Bytes of the device's context, of the library's buffers, and of captured graphs. This constant is fitted to one
/// measurement: on an RTX 4090 with Llama 3.1 8B and a budget of 2,048 tokens, vLLM 0.19 has 2,588 blocks. The memory
/// left by the weights exceeds these blocks by 1.24 GB. Of this, activations and logits, as computed below, take 0.53
/// GB; the rest is this constant.
const CONTEXT_BYTES: u64 = 700_000_000;

impl NpuMemoryBreakdown {
    /// Plans the memory of one NPU of an engine with `npus` NPUs.
    fn new(
        sizes: &LlmModelSizes,
        served: &LlmModelAndServingOptions,
        (rules, stated): (&EngineRules, Option<u32>),
        (npus, ranks, memory): (u32, u32, u64),
    ) -> Self {
        let budget = u64::from(rules.max_num_batched_tokens);
        let rows = u64::from(rules.max_num_seqs.min(rules.max_num_batched_tokens));
        // The activations, in BF16, consist of four copies of the residual stream (before a norm and after a product),
        // the queries, keys and values, and the MLP's intermediate products. Logits are stored in BF16, and again in
        // single precision with their probabilities.
        let of_tokens = 2 * budget
            .saturating_mul(4 * sizes.hidden + sizes.max_activation_columns_per_token(npus));
        let logits = 8 * rows * sizes.vocabulary;
        let usable = (memory as f64 * served.memory_utilization) as u64;
        let weights =
            sizes.weight_bytes_per_npu(npus, ranks, [served.weights, served.expert_weights]);
        let activations = of_tokens.saturating_add(logits);
        let taken = weights
            .saturating_add(activations)
            .saturating_add(CONTEXT_BYTES);
        let left = usable.saturating_sub(taken);
        let kv_of_token = sizes.kv_bytes_per_token_and_npu(npus, served.kv);
        let state_of_request = sizes.linear_attention_state_bytes(npus);
        // The engine reserves one block for padding rows.
        let held = left / (kv_of_token * u64::from(rules.block_size)).max(1);
        let derived = held.saturating_sub(1).min(MOST_BLOCKS.into()) as u32;
        Self {
            memory,
            usable,
            weights,
            activations,
            context: CONTEXT_BYTES,
            left,
            kv_of_token,
            state_of_request,
            blocks: stated.unwrap_or(derived),
            is_stated: stated.is_some(),
        }
    }
}

/// A scenario's model on a machine, before the number of NPUs per engine is chosen.
struct ModelOnMachineWithoutEngineSize<'a> {
    scenario: &'a LlmScenario,
    served: &'a LlmModelAndServingOptions,
    machine: &'a Machine,
    class: &'a NpuClass,
    memory: u64,
    sizes: LlmModelSizes,
    rules: EngineRules,
}

impl<'a> ModelOnMachineWithoutEngineSize<'a> {
    fn new(
        scenario: &'a LlmScenario,
        served: &'a LlmModelAndServingOptions,
        machine: &'a Machine,
    ) -> Result<Self, ServeError> {
        if machine.npu_classes().len() > 1 {
            return Err(ServeError::Unfit(format!(
                "machine {} has NPUs of {} classes; expected one class for all engines",
                machine.name(),
                machine.npu_classes().len()
            )));
        }
        let class = &machine.npu_classes()[machine.class_of_npu(Npu(0))];
        let memory = class.memory.and_then(|memory| memory.capacity);
        let Some(memory) = memory else {
            return Err(ServeError::Unfit(format!(
                "machine {}: the NPUs have no memory_capacity, which weights, keys and values need",
                machine.name()
            )));
        };
        let hardware = HardwareForEngineRules {
            npu: &class.name,
            memory: Some(memory),
        };
        let sizes = LlmModelSizes::load_by_name(&served.name)?;
        let mut rules = scenario.resolve_engine_rules(Some(hardware))?;
        if sizes.linear_attention_state_bytes(1) > 0 && rules.prefix_caching {
            if scenario.states_rule("prefix_caching") {
                return Err(ServeError::Unfit(format!(
                    "engine.prefix_caching: found true, expected false: {} has linear attention, and the state after a prefix \
                     is not cached\n  try: prefix_caching = false",
                    sizes.name
                )));
            }
            rules.prefix_caching = false;
        }
        limit_requests_to_learned_positions(&mut rules, scenario, &sizes)?;
        Ok(Self {
            sizes,
            rules,
            memory: memory.0,
            scenario,
            served,
            machine,
            class,
        })
    }

    fn plan_npu_memory(&self, npus: u32) -> NpuMemoryBreakdown {
        let of = (&self.rules, self.scenario.blocks);
        let place = (npus, self.scenario.ranks, self.memory);
        NpuMemoryBreakdown::new(&self.sizes, self.served, of, place)
    }

    /// Returns the possible numbers of NPUs per engine: powers of two up to the size of the
    /// machine's first dimension.
    fn list_tensor_degrees(&self) -> Vec<TensorDegreeCandidate> {
        let most = self
            .machine
            .topology()
            .dimensions()
            .first()
            .map_or(1, |dimension| dimension.size);
        let longest = self.scenario.workload.classes.iter().map(|class| {
            let turns = u64::from(class.turns);
            let each = u64::from(class.input.typical_max_length())
                + u64::from(class.output.typical_max_length());
            u64::from(class.shared_prefix) + turns * each
        });
        let longest = longest.max().unwrap_or(1);
        let numbers = (0..10).map(|power| 1_u32 << power);
        let ranks = self.scenario.ranks;
        let numbers = numbers.filter(|npus| {
            npus * ranks <= most
                && self.sizes.can_divide_among_npus(*npus)
                && (ranks == 1 || self.sizes.can_divide_experts(npus * ranks))
        });
        numbers
            .map(|npus| {
                let plan = self.plan_npu_memory(npus);
                let blocks = plan.blocks.saturating_sub(self.state_blocks(&plan));
                let kv_tokens = u64::from(blocks) * u64::from(self.rules.block_size);
                let holds = plan.left > 0 || self.scenario.blocks.is_some();
                TensorDegreeCandidate {
                    npus,
                    kv_tokens,
                    fits: holds && kv_tokens >= longest,
                }
            })
            .collect()
    }

    /// Returns the number of blocks for a request's states: the scenario's number, or as many as the states' bytes
    /// need.
    fn state_blocks(&self, plan: &NpuMemoryBreakdown) -> u32 {
        if self.scenario.states_rule("state_blocks") {
            return self.rules.state_blocks;
        }
        let block = plan.kv_of_token * u64::from(self.rules.block_size);
        let blocks = plan.state_of_request.div_ceil(block.max(1));
        blocks.min(MOST_BLOCKS.into()) as u32
    }

    fn place_engines(mut self, tensor: Option<u32>) -> Result<IdenticalLlmEngines, ServeError> {
        let choices = self.list_tensor_degrees();
        let ranks = self.scenario.ranks;
        let (name, machine) = (&self.sizes.name, self.machine.name());
        if ranks > 1 && !self.sizes.has_experts() {
            return Err(ServeError::Unfit(format!(
                "engine.data_parallel: found {ranks}, expected 1: ranks in lockstep share experts, and {name} has none\n  try: \
                 replicas = {ranks}"
            )));
        }
        if ranks > 1 && choices.is_empty() {
            return Err(ServeError::Unfit(format!(
                "engine.data_parallel: found {ranks}, expected a divisor of the experts of {name} whose ranks are on the first \
                 dimension of {machine}\n  try: data_parallel = 2"
            )));
        }
        let npus = match tensor {
            Some(npus) if ranks > 1 && !choices.iter().any(|choice| choice.npus == npus) => {
                return Err(ServeError::Unfit(format!(
                    "engine.tensor: found {npus} with {ranks} ranks, expected NPUs on the first dimension of {machine} that divide \
                     the heads and experts of {name}\n  try: {}",
                    format_tensor_choices(&choices)
                )));
            }
            Some(npus) if !self.sizes.can_divide_among_npus(npus) => {
                return Err(ServeError::Unfit(format!(
                    "engine.tensor: found {npus}, expected a number of NPUs among which {name} divides: {} \
                     heads, {} heads of keys and values\n  try: {}",
                    self.sizes.max_query_and_key_head_counts()[0],
                    self.sizes.max_query_and_key_head_counts()[1],
                    format_tensor_choices(&choices)
                )));
            }
            Some(npus)
                if self
                    .machine
                    .topology()
                    .dimensions()
                    .first()
                    .is_some_and(|first| npus > first.size) =>
            {
                return Err(ServeError::Unfit(format!(
                    "engine.tensor: found {npus}, expected at most the NPUs along the first dimension of {machine}: engines across \
                     nodes are not simulated\n  try: {}",
                    format_tensor_choices(&choices)
                )));
            }
            Some(npus) => npus,
            None => match choices.iter().find(|choice| choice.fits) {
                Some(choice) => choice.npus,
                None if self.scenario.blocks.is_some() => {
                    let most = choices.iter().map(|choice| choice.kv_tokens).max();
                    return Err(ServeError::Unfit(format!(
                        "engine.blocks: found blocks for {} tokens, expected blocks for the longest request\n  try: more blocks, \
                         or no blocks, which derives them from the memory",
                        format_thousands(most.unwrap_or(0))
                    )));
                }
                None => {
                    let largest = choices.last().map_or(1, |choice| choice.npus);
                    let plan = self.plan_npu_memory(largest);
                    let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
                    return Err(ServeError::Unfit(format!(
                        "{name} does not fit on {largest} NPUs of {machine}: each has {} for an engine, weights take {}, \
                         activations {}, context and graphs {}, and the longest request needs {} of keys and values a token\n  \
                         try: weights in fp8, a machine with more memory, or a smaller model",
                        gb(plan.usable),
                        gb(plan.weights),
                        gb(plan.activations),
                        gb(plan.context),
                        format_thousands(plan.kv_of_token) + " bytes",
                    )));
                }
            },
        };
        let plan = self.plan_npu_memory(npus);
        self.rules.state_blocks = self.state_blocks(&plan);
        if plan.blocks == 0 || plan.left == 0 && !plan.is_stated {
            return Err(ServeError::Unfit(format!(
                "{name} on {npus} NPUs of {machine} leaves no memory for keys and values: {:.1} GB of {:.1} GB are weights\n  try: {}",
                plan.weights as f64 / 1e9,
                plan.usable as f64 / 1e9,
                format_tensor_choices(&choices)
            )));
        }
        let needed = u64::from(npus * ranks) * u64::from(self.scenario.replicas);
        if needed > u64::from(self.machine.topology().npu_count()) {
            return Err(ServeError::Unfit(format!(
                "{} engines of {} NPUs need {needed}, and {machine} has {}\n  try: a larger machine, such as {machine}x{}",
                self.scenario.replicas,
                npus * ranks,
                self.machine.topology().npu_count(),
                needed.div_ceil(u64::from(self.machine.topology().npu_count()))
            )));
        }
        let formats = ServedModelNumberFormats {
            weights: self.served.weights,
            experts: self.served.expert_weights,
            kv: self.served.kv,
            has_block_scales: self.served.has_block_scales,
        };
        let of_experts = ["expert_weights", "expert_kernels"];
        if let Some(key) = of_experts.iter().find(|key| self.scenario.states_rule(key))
            && !self.sizes.has_experts()
        {
            return Err(ServeError::Unfit(format!(
                "engine.{key}: found this key, expected no such key: {name} has no experts"
            )));
        }
        let whole = self.served.has_whole_experts;
        if whole && !self.sizes.has_experts() {
            return Err(ServeError::Unfit(format!(
                "engine.expert_parallel: found true, expected no such key: {name} has no experts"
            )));
        }
        if whole && !self.sizes.can_divide_experts(npus) {
            return Err(ServeError::Unfit(format!(
                "engine.expert_parallel: found true with tensor = {npus}, expected NPUs that can have equally many experts of \
                 {name}\n  try: expert_parallel = false"
            )));
        }
        let stated = load_step_time_source_of_scenario(self.scenario)?;
        let of_cost = [
            "all_reduce",
            "expert_kernels",
            "quantization",
            "dependent_launch",
            "graphs",
            "graph_tokens",
            "weight_scales",
        ];
        if let Some(key) = of_cost.iter().find(|key| self.scenario.states_rule(key))
            && stated.is_some()
        {
            return Err(ServeError::Unfit(format!(
                "engine.{key}: found this key, expected no such key: [step] gives the times of steps\n  try: without {key}, or \
                 without the times in [step]"
            )));
        }
        let cost = match stated {
            Some(given) => given,
            None => StepTimeSource::Model(Box::new(StepTimeCalculator::new(
                self.sizes.clone(),
                self.machine,
                EngineParallelismAndKernels {
                    npus,
                    ranks,
                    has_whole_experts: whole || ranks > 1,
                    all_reduce: self.rules.all_reduce,
                    expert_kernels: self.rules.expert_kernels,
                    quantization: self.rules.quantization,
                    dependent_launch: self.rules.dependent_launch,
                    graphs: self.rules.graphs,
                    graph_tokens: self.rules.graph_tokens,
                },
                formats,
                &self.scenario.left_out,
            )?)),
        };
        Ok(IdenticalLlmEngines {
            blocks: plan.blocks,
            replicas: self.scenario.replicas,
            ranks,
            price: cost,
            place: Some(EngineModelNpusAndMemory {
                machine: machine.to_owned(),
                npu: self.class.name.clone(),
                npus: self.machine.topology().npu_count(),
                model: name.clone(),
                weights: name_of_format(self.served.weights).to_owned(),
                expert_weights: (self.served.expert_weights != self.served.weights)
                    .then(|| name_of_format(self.served.expert_weights).to_owned()),
                kv: name_of_format(self.served.kv).to_owned(),
                tensor: npus,
                data_parallel: ranks,
                is_stated: tensor.is_some(),
                memory: plan,
                choices,
                price_per_npu_hour: self.machine.price_per_npu_hour(),
            }),
            rules: self.rules,
        })
    }
}

/// Limits requests to the learned positions of a model, if it has any. Unless the scenario states a limit, none of its
/// requests may be certain to exceed the positions.
fn limit_requests_to_learned_positions(
    rules: &mut EngineRules,
    scenario: &LlmScenario,
    sizes: &LlmModelSizes,
) -> Result<(), ServeError> {
    let (Some(positions), name) = (sizes.learned_positions, &sizes.name) else {
        return Ok(());
    };
    let most = positions.min(u32::MAX.into()) as u32;
    if let Some(stated) = rules.max_model_len {
        if stated > most {
            return Err(ServeError::Unfit(format!(
                "engine.max_model_len: found {stated}, expected at most the {most} learned positions of {name}"
            )));
        }
        return Ok(());
    }
    rules.max_model_len = Some(most);
    let is_file = matches!(scenario.workload.arrivals, LlmArrivals::File { .. });
    let classes = scenario.workload.classes.iter().filter(|_| !is_file);
    let longest = classes.filter_map(RequestClass::max_request_tokens).max();
    match longest.filter(|tokens| *tokens > positions) {
        Some(tokens) => Err(ServeError::Unfit(format!(
            "found requests of up to {tokens} tokens of prompt and answer, and learned positions for {most} in {name}\n  \
             try: shorter requests, or max_model_len = {most}, with which the engine refuses longer prompts and cuts answers"
        ))),
        None => Ok(()),
    }
}

/// Returns the step times that the scenario states, or `None` if a model and a machine determine
/// them.
fn load_step_time_source_of_scenario(
    scenario: &LlmScenario,
) -> Result<Option<StepTimeSource>, ServeError> {
    if let Some(choice) = &scenario.profile {
        let besides = scenario.step.unwrap_or_default();
        let profile = ProfiledStepTimeModel::load_chosen_table(choice, besides, scenario.ranks)?;
        return Ok(Some(StepTimeSource::Profile(Box::new(profile))));
    }
    Ok(scenario.step.map(StepTimeSource::Linear))
}

fn format_tensor_choices(choices: &[TensorDegreeCandidate]) -> String {
    let fitting = choices.iter().filter(|choice| choice.fits);
    let numbers: Vec<String> = fitting.map(|choice| choice.npus.to_string()).collect();
    match numbers.is_empty() {
        true => "a machine with more memory".to_owned(),
        false => format!("tensor {}", numbers.join(" or ")),
    }
}

impl IdenticalLlmEngines {
    /// Creates the engines of `scenario` on `machine`. A scenario that names a model requires a
    /// machine.
    ///
    /// # Errors
    ///
    /// Fails if the machine is missing or has too little memory for the model.
    pub fn new(scenario: &LlmScenario, machine: Option<&Machine>) -> Result<Self, ServeError> {
        match (&scenario.model, machine) {
            (Some(served), Some(machine)) => {
                ModelOnMachineWithoutEngineSize::new(scenario, served, machine)?
                    .place_engines(served.tensor)
            }
            (Some(served), None) => Err(ServeError::Unfit(format!(
                "model {} needs a machine that says how long its steps take\n  try: a machine such as dgx-h100",
                served.name
            ))),
            (None, _) => {
                let (Some(price), Some(blocks)) = (
                    load_step_time_source_of_scenario(scenario)?,
                    scenario.blocks,
                ) else {
                    return Err(ServeError::Unfit(
                        "[engine] needs a model, or blocks and [step]".to_owned(),
                    ));
                };
                if machine.is_some() {
                    return Err(ServeError::Unfit(
                        "a machine has no effect, because [step] gives the times of steps\n  try: without a machine, or `model` in [engine]".to_owned(),
                    ));
                }
                Ok(Self {
                    rules: scenario.resolve_engine_rules(None)?,
                    blocks,
                    replicas: scenario.replicas,
                    ranks: scenario.ranks,
                    price,
                    place: None,
                })
            }
        }
    }

    /// Returns, for each key of the engine in `scenario` that has no effect, why.
    ///
    /// # Errors
    ///
    /// Fails if a table of measured times is invalid.
    pub fn list_keys_without_effect(
        &self,
        scenario: &LlmScenario,
    ) -> Result<Vec<String>, ServeError> {
        match &self.price {
            StepTimeSource::Model(cost) => {
                cost.list_keys_without_effect(|key| scenario.states_rule(key))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the number of NPUs of all engines, or `None` if there is no machine.
    pub fn total_npus(&self) -> Option<u32> {
        self.place
            .as_ref()
            .map(|place| place.tensor * self.ranks * self.replicas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_base::dtype::Dtype;

    fn load_model_sizes(name: &str) -> LlmModelSizes {
        LlmModelSizes::load_by_name(name).unwrap()
    }

    /// vLLM 0.19 on an RTX 4090 with 25,250,627,584 bytes has 2,588 blocks for Llama 3.1 8B; the
    /// weights alone would leave 3,178 blocks.
    #[test]
    fn kv_block_count_matches_vllm() {
        let rules = EngineRules {
            max_num_batched_tokens: 2048,
            max_num_seqs: 256,
            ..EngineRules::load_named("vllm-v1", None).unwrap()
        };
        let served = LlmModelAndServingOptions::new("llama3-8b");
        assert_eq!(served.weights, Dtype::Bf16);
        let memory = (1, 1, 25_250_627_584);
        let plan = NpuMemoryBreakdown::new(
            &load_model_sizes("llama3-8b"),
            &served,
            (&rules, None),
            memory,
        );
        assert_eq!((plan.usable - plan.weights) / (16 * 131_072), 3178);
        let off = f64::from(plan.blocks) / 2588.0 - 1.0;
        assert!(off.abs() < 0.01, "{} blocks", plan.blocks);
        let given = NpuMemoryBreakdown::new(
            &load_model_sizes("llama3-8b"),
            &served,
            (&rules, Some(77)),
            memory,
        );
        assert_eq!((given.blocks, given.is_stated), (77, true));
    }
}
