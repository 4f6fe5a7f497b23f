//! Software stacks: named sets of the kernels, launch times and plan options that a framework
//! chooses.
//!
//! A stack file has plan options (`[plan]`) and software-dependent durations. The durations are in one table per NPU
//! class (`[npu.CLASS]`, as in machine files). The user's options override the stack's options.

use chakram_base::config::{
    ConfigDocument, ConfigError, ConfigLiteral, did_you_mean, find_most_similar_name,
    quote_and_truncate_for_message, read_file_or_standard_input,
};
use chakram_hardware::machine::{Machine, SoftwareStackCurvesAndHosts};
use chakram_report::stack::{SoftwareStackDecision, SoftwareStackDecisionReport};
use chakram_workloads::generate::plan::{OPTIONS, ParallelismPlan, PlanDraft, PlanOption};
use std::io;

const ROOT: &[&str] = &["name", "description", "plan", "npu"];

/// Plan options that a stack may set, because they depend on the software. The user decides degrees, batches and
/// recomputation.
const OF_STACKS: &[&str] = &[
    "accumulate",
    "attention",
    "backward_prefetch",
    "bucket",
    "buckets",
    "clip",
    "context_exchange",
    "elementwise",
    "expert_exchange",
    "expert_products",
    "first_bucket",
    "gather_overlap",
    "gradients",
    "loss",
    "overlap",
    "pipeline_overlap",
    "prefetch",
    "reshard",
    "scaling",
    "scatter_gather",
    "softmax",
    "split",
    "tensor_overlap",
];

/// A built-in stack.
#[derive(Clone, Copy, Debug)]
pub struct SoftwareStackPreset {
    /// Name of the stack for `--stack`.
    pub name: &'static str,
    /// Contents of the stack file. Comments in the file state the source of every number.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// Every built-in stack.
        pub const STACK_PRESETS: &[SoftwareStackPreset] = &[$(SoftwareStackPreset {
            name: $name,
            text: include_str!(concat!("stack/presets/", $name, ".toml")),
        }),*];
    };
}

presets!(
    "reference",
    "megatron-te",
    "megatron-te-fa2",
    "pytorch-eager",
    "pytorch-compiled",
    "torchtitan",
    "llm-foundry",
    "fsdp-hf",
    "maxtext",
);

/// A plan option, and its value in a stack.
#[derive(Clone, Debug)]
struct PlanOptionSetByStack {
    option: &'static PlanOption,
    words: Vec<String>,
}

/// A software stack, parsed from its file.
#[derive(Clone, Debug)]
pub struct FrameworkDurationsAndPlanOptions {
    name: String,
    description: String,
    prices: SoftwareStackCurvesAndHosts,
    options: Vec<PlanOptionSetByStack>,
}

/// Reason why a stack cannot be found, read or applied.
#[derive(Debug, thiserror::Error)]
pub enum SoftwareStackError {
    /// There is no stack with this name.
    #[error("no stack is called {}{}\n  try: one of {}, or a file NAME.toml", quote_and_truncate_for_message(.name), did_you_mean(.closest.as_deref()), .all)]
    Unknown {
        /// The unknown name.
        name: String,
        /// The most similarly named stack; `None` if no name is similar.
        closest: Option<String>,
        /// Names of all stacks.
        all: String,
    },
    /// The stack file cannot be read.
    #[error("cannot read stack file {file}: {source}")]
    Read {
        /// Path of the file.
        file: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The stack file is invalid.
    #[error(transparent)]
    Refused(#[from] ConfigError),
    /// The stack has no plan options, and all its durations are for NPUs that the machine does not
    /// have.
    #[error("stack {} has kernel times for {known}, but {machine} has none of these NPUs\n  try: another machine or stack", quote_and_truncate_for_message(.stack))]
    OtherNpus {
        /// Name of the stack, for the message.
        stack: String,
        /// NPU classes for which the stack has durations.
        known: String,
        /// Name of the machine, for the message.
        machine: String,
    },
}

impl FrameworkDurationsAndPlanOptions {
    /// Finds the stack called `name`. If `name` contains a `/` or ends in `.toml`, the stack is a
    /// file; otherwise it is a preset.
    ///
    /// # Errors
    ///
    /// Fails if there is no such stack, or if its file cannot be read or is invalid.
    pub fn load_by_name(name: &str) -> Result<Self, SoftwareStackError> {
        if name.contains('/') || name.ends_with(".toml") {
            let text =
                read_file_or_standard_input(name).map_err(|source| SoftwareStackError::Read {
                    file: name.to_owned(),
                    source,
                })?;
            return Ok(Self::parse(&text, name)?);
        }
        let names = || STACK_PRESETS.iter().map(|preset| preset.name);
        let Some(preset) = STACK_PRESETS.iter().find(|preset| preset.name == name) else {
            let shown: String = name.chars().take(80).collect();
            return Err(SoftwareStackError::Unknown {
                closest: find_most_similar_name(&shown, names()).map(str::to_owned),
                name: shown,
                all: names().collect::<Vec<_>>().join(", "),
            });
        };
        Ok(Self::parse(preset.text, preset.name)?)
    }

    /// Parses the text of a stack file. Error messages call the file `file`.
    ///
    /// # Errors
    ///
    /// Fails if the text is not TOML, if a key is unknown or has no effect, or if the text does not
    /// name the stack.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let document = ConfigDocument::parse(text, file)?;
        let root = document.root_table_with_allowed_keys(ROOT)?;
        let name = root.require_field("name", "the stack's name")?;
        let stack = Self {
            name: name.read_one_line_text()?.to_owned(),
            description: root
                .read_or_default("description", "", |field| field.read_one_line_text())?
                .to_owned(),
            prices: match root.get("npu") {
                Some(field) => SoftwareStackCurvesAndHosts::parse_class_tables(&field)?,
                None => SoftwareStackCurvesAndHosts::default(),
            },
            options: match root.get("plan") {
                Some(field) => read_plan_options(&field.read_table(Some(OF_STACKS))?)?,
                None => Vec::new(),
            },
        };
        let is_empty = stack.options.is_empty() && stack.prices.is_empty();
        if is_empty && stack.name != SoftwareStackDecisionReport::REFERENCE {
            let expected = "a table [plan] or [npu.CLASS], because a stack must set something";
            return Err(name.invalid_value_error("only a name", expected));
        }
        Ok(stack)
    }

    /// Returns the name of the stack.
    pub fn stack_name(&self) -> &str {
        &self.name
    }

    /// Returns the stack's description, which is one line or empty.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns `machine` with the stack's durations in place of its own, and a report about the stack's durations.
    ///
    /// # Errors
    ///
    /// Fails if the stack has no plan options and all its durations are for NPUs that the machine
    /// does not have.
    pub fn apply_durations_to_machine(
        &self,
        machine: &Machine,
    ) -> Result<(Machine, SoftwareStackDecisionReport), SoftwareStackError> {
        let (priced, parts) = machine.with_stack(&self.prices);
        if parts.is_empty() && !self.prices.is_empty() && self.options.is_empty() {
            return Err(SoftwareStackError::OtherNpus {
                stack: self.name.clone(),
                known: self.prices.class_names().collect::<Vec<_>>().join(", "),
                machine: machine.name().to_owned(),
            });
        }
        let decided = parts
            .into_iter()
            .map(|part| SoftwareStackDecision::new(part.part, part.what));
        let mut report = self.empty_stack_report();
        report.decided = decided.collect();
        if report.decided.is_empty() && !self.prices.is_empty() {
            let classes = machine
                .npu_classes()
                .iter()
                .map(|class| class.name.as_str());
            let classes = classes.collect::<Vec<_>>().join(", ");
            let why = format!("for {classes}, which the stack does not cover");
            report.left.push(SoftwareStackDecision::new("prices", why));
        }
        if self.name == SoftwareStackDecisionReport::REFERENCE
            && let Some(reference) =
                SoftwareStackDecisionReport::from_measured_kernels_of_machine(machine)
        {
            report.decided = reference.decided;
        }
        Ok((priced, report))
    }

    /// Returns the stack's report for a run without a machine. It lists no plan options yet.
    pub fn empty_stack_report(&self) -> SoftwareStackDecisionReport {
        SoftwareStackDecisionReport {
            name: self.name.clone(),
            given: true,
            decided: Vec::new(),
            left: Vec::new(),
        }
    }

    /// Sets the stack's options in `plan`. Skips options for which `is_given` is true. Records both kinds of options in
    /// `report`. Also skips options that the plan rejects, and records the reasons.
    pub fn set_plan_options(
        &self,
        plan: &mut ParallelismPlan,
        is_given: impl Fn(&str) -> bool,
        report: &mut SoftwareStackDecisionReport,
    ) {
        for PlanOptionSetByStack { option, words } in &self.options {
            let key = option.key;
            if is_given(key) {
                let why = format!("{}: given otherwise", words.join(","));
                report.left.push(SoftwareStackDecision::new(key, why));
                continue;
            }
            match plan.set_default_option(option, words) {
                Ok(()) => {
                    let value = words.join(",");
                    report.decided.push(SoftwareStackDecision::new(key, value));
                }
                Err(error) => {
                    let why = format!("{}: {error}", words.join(","));
                    report.left.push(SoftwareStackDecision::new(key, why));
                }
            }
        }
    }
}

/// Reads the options in a table, in the order of [`OPTIONS`].
fn read_plan_options(
    table: &chakram_base::config::ConfigTable<'_>,
) -> Result<Vec<PlanOptionSetByStack>, ConfigError> {
    let mut found = Vec::new();
    let mut draft = PlanDraft::new(ParallelismPlan::new());
    for option in OPTIONS {
        let Some(field) = OF_STACKS
            .contains(&option.key)
            .then(|| table.get(option.key))
            .flatten()
        else {
            continue;
        };
        option.set_option_from_field(&mut draft, &field)?;
        let words = match field.read_literal()? {
            ConfigLiteral::List(items) => items.iter().map(ToString::to_string).collect(),
            one => vec![one.to_string()],
        };
        found.push(PlanOptionSetByStack { option, words });
    }
    if found.is_empty() {
        let expected = format!("at least one of {}", OF_STACKS.join(", "));
        return Err(table.invalid_table_error("nothing", expected));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_base::dtype::Dtype;

    fn expect_parse_error(text: &str) -> String {
        FrameworkDurationsAndPlanOptions::parse(text, "s.toml")
            .unwrap_err()
            .to_string()
    }

    fn bf16_attention_fraction_of_machine(machine: &Machine) -> f64 {
        let curve = machine.npu_classes()[0].curves.attention[Dtype::Bf16 as usize];
        curve.unwrap().compute
    }

    #[test]
    fn every_stack_preset_loads_as_a_stack_with_its_own_name() {
        for preset in STACK_PRESETS {
            let stack = FrameworkDurationsAndPlanOptions::load_by_name(preset.name).unwrap();
            assert_eq!(stack.stack_name(), preset.name);
            assert!(!stack.description().is_empty(), "{}", preset.name);
        }
    }

    #[test]
    fn keys_that_are_unknown_or_do_nothing_are_refused_by_line() {
        for (text, expected) in [
            ("name = \"a\"", "s.toml:1: key `name`: found only a name"),
            (
                "name = \"a\"\n[plan]\ntensor = 8",
                "s.toml:3: key `plan.tensor`: found an unknown key",
            ),
            ("name = \"a\"\n[plan]", "key `plan`: found nothing"),
            ("name = \"a\"\n[npu.h100]", "key `npu.h100`: found nothing"),
            (
                "name = \"a\"\n[npu.h100.attentoin]",
                "s.toml:2: key `npu.h100.attentoin`: found an unknown key",
            ),
            (
                "name = \"a\"\n[plan]\nloss = \"fusd\"",
                "s.toml:3: key `plan.loss`: found \"fusd\"",
            ),
        ] {
            let found = expect_parse_error(text);
            assert!(found.contains(expected), "{found}\n{expected}");
        }
        let unknown = FrameworkDurationsAndPlanOptions::load_by_name("llm-fondry")
            .unwrap_err()
            .to_string();
        assert!(unknown.contains("did you mean `llm-foundry`"), "{unknown}");
    }

    #[test]
    fn a_stack_changes_the_kernels_of_classes_that_it_names() {
        let stack = FrameworkDurationsAndPlanOptions::load_by_name("llm-foundry").unwrap();
        let machine = Machine::load_preset("dgx-h100").unwrap();
        let (priced, report) = stack.apply_durations_to_machine(&machine).unwrap();
        assert_eq!(bf16_attention_fraction_of_machine(&machine), 0.58);
        assert_eq!(bf16_attention_fraction_of_machine(&priced), 0.272);
        assert!(
            report.to_line().contains("FlashAttention-1 (Triton)"),
            "{}",
            report.to_line()
        );
        // Decoding keeps the machine's kernel durations, because the stack has no durations for decoding.
        let of = |machine: &Machine| {
            machine.npu_classes()[0].curves.attention[Dtype::Bf16 as usize]
                .unwrap()
                .decode
        };
        assert_eq!(of(&machine), of(&priced));
        // A power limit of 500 W instead of 700 W also slows the stack's kernels.
        let capped = Machine::load_preset("grand-teton-h100").unwrap();
        let (priced, _) = stack.apply_durations_to_machine(&capped).unwrap();
        let kept = capped.npu_classes()[0].curves.kept.attention;
        assert!(
            kept < 0.9
                && (bf16_attention_fraction_of_machine(&priced) - 0.272 * kept).abs() < 1e-12
        );
    }

    #[test]
    fn applying_a_stack_without_prices_for_the_machine_reports_so() {
        let stack = FrameworkDurationsAndPlanOptions::load_by_name("llm-foundry").unwrap();
        let machine = Machine::load_preset("tpu-v4").unwrap();
        let (priced, report) = stack.apply_durations_to_machine(&machine).unwrap();
        assert_eq!(priced, machine);
        assert!(
            report.to_line().contains("not prices for tpu-v4"),
            "{}",
            report.to_line()
        );
        let text = "name = \"a\"\n[npu.h100.moving]\nfraction = 0.5\nfloor = \"1 us\"\ngap = \"1 us\"\nerror = 0.1";
        let alone = FrameworkDurationsAndPlanOptions::parse(text, "s.toml").unwrap();
        let error = alone
            .apply_durations_to_machine(&machine)
            .unwrap_err()
            .to_string();
        assert!(error.contains("has kernel times for h100"), "{error}");
    }

    #[test]
    fn options_that_are_given_go_before_those_of_the_stack() {
        let stack = FrameworkDurationsAndPlanOptions::load_by_name("megatron-te").unwrap();
        let mut report = stack.empty_stack_report();
        let mut plan = ParallelismPlan::new();
        stack.set_plan_options(&mut plan, |key| key == "loss", &mut report);
        let given = ParallelismPlan::new();
        assert_eq!(plan.loss, given.loss);
        assert!(plan.clip && plan.gradients == Some(Dtype::Fp32));
        // Without a sharded optimizer, there are no gathers that could overlap with anything.
        assert!(!plan.gather_overlap);
        let left: Vec<_> = report.left.iter().map(|left| left.part.as_str()).collect();
        assert_eq!(left, ["gather_overlap", "loss"]);
    }

    #[test]
    fn the_reference_stack_changes_nothing() {
        let stack =
            FrameworkDurationsAndPlanOptions::load_by_name(SoftwareStackDecisionReport::REFERENCE)
                .unwrap();
        let machine = Machine::load_preset("dgx-a100").unwrap();
        let (priced, report) = stack.apply_durations_to_machine(&machine).unwrap();
        assert_eq!(priced, machine);
        assert_eq!(report.to_line(), "reference: attention FlashAttention-2");
    }
}
