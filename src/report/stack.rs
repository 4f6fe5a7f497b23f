//! A run's software stack, and the decisions that it makes.

use chakram_hardware::machine::Machine;
use serde::{Deserialize, Serialize};

/// A job's software stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct SoftwareStackDecisionReport {
    /// Name of the stack.
    pub name: String,
    /// True if the user chose the stack; otherwise the kernel times come from the machine file.
    pub given: bool,
    /// The stack's decisions about kernel times and plan options.
    pub decided: Vec<SoftwareStackDecision>,
    /// Kernel times and plan options of the stack that do not apply to the run, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<SoftwareStackDecision>,
}

/// A decision about kernel times or about a plan option.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct SoftwareStackDecision {
    /// What was decided: `attention`, `gemm`, `moving`, `host`, or the key of a plan option.
    pub part: String,
    /// The chosen kernel or value, or why the decision does not apply.
    pub value: String,
}

impl SoftwareStackDecisionReport {
    /// Stack name that means that the machine file's kernel times are kept.
    pub const REFERENCE: &'static str = "reference";

    /// Returns the kernel times of `machine` as a stack; `None` if the machine has no measured kernels.
    pub fn from_measured_kernels_of_machine(machine: &Machine) -> Option<Self> {
        machine.has_kernel_curves().then(|| Self {
            name: Self::REFERENCE.to_owned(),
            given: false,
            decided: attention_kernels_of_machine(machine),
            left: Vec::new(),
        })
    }

    /// Adds the plan-option decisions of `plan`.
    pub fn add_plan_decisions(&mut self, plan: &Self) {
        self.decided.extend_from_slice(&plan.decided);
        self.left.extend_from_slice(&plan.left);
    }

    /// Formats the stack as one line: `NAME: decisions; not decisions`.
    pub fn to_line(&self) -> String {
        let list = |decisions: &[SoftwareStackDecision]| {
            let parts = decisions.iter().map(SoftwareStackDecision::to_text);
            parts.collect::<Vec<_>>().join(", ")
        };
        let mut line = self.name.clone();
        if !self.decided.is_empty() {
            line.push_str(": ");
            line.push_str(&list(&self.decided));
        }
        if !self.left.is_empty() {
            line.push_str("; not ");
            line.push_str(&list(&self.left));
        }
        line
    }
}

impl SoftwareStackDecision {
    /// Creates a decision: `part` is the subject of the decision, and `value` its result.
    pub fn new(part: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            part: part.into(),
            value: value.into(),
        }
    }

    fn to_text(&self) -> String {
        match self.value.as_str() {
            "" => self.part.clone(),
            value => format!("{} {value}", self.part),
        }
    }
}

/// Returns the attention kernels that the machine file names.
fn attention_kernels_of_machine(machine: &Machine) -> Vec<SoftwareStackDecision> {
    let classes = machine.npu_classes().iter();
    let kernels = classes.filter_map(|class| class.curves.attention_kernel.as_deref());
    let mut kernels: Vec<_> = kernels.collect();
    kernels.dedup();
    let kernels = kernels.into_iter();
    kernels
        .map(|kernel| SoftwareStackDecision::new("attention", kernel))
        .collect()
}
