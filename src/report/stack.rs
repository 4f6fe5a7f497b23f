//! The software stack of a run, and the decisions that the stack makes.

use chakram_hardware::machine::Machine;
use serde::{Deserialize, Serialize};

/// The software stack of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct StackReport {
    /// Name of the stack.
    pub name: String,
    /// Whether the user chose the stack. If not, kernel times come from the machine's file.
    pub given: bool,
    /// Decisions of the stack about kernel times and about options of the plan.
    pub decided: Vec<StackDecision>,
    /// Kernel times and options that the stack states but that do not apply to the run, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<StackDecision>,
}

/// A decision about kernel times or about an option of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct StackDecision {
    /// Part that was decided: `attention`, `gemm`, `moving`, `host`, or the key of an option.
    pub part: String,
    /// Chosen kernel, chosen value, or reason why the part does not apply.
    pub value: String,
}

impl StackReport {
    /// Name of the stack that keeps the kernel times of the machine's file.
    pub const REFERENCE: &'static str = "reference";

    /// Returns the kernel times of `machine` itself as a stack; `None` if the machine has no curves of kernels.
    pub fn of_machine(machine: &Machine) -> Option<Self> {
        machine.has_curves().then(|| Self {
            name: Self::REFERENCE.to_owned(),
            given: false,
            decided: attention_of(machine),
            left: Vec::new(),
        })
    }

    /// Adds the decisions about the plan.
    pub fn add_plan(&mut self, plan: &Self) {
        self.decided.extend_from_slice(&plan.decided);
        self.left.extend_from_slice(&plan.left);
    }

    /// Returns a line in the form `NAME: decisions; not decisions`.
    pub fn to_line(&self) -> String {
        let list = |decisions: &[StackDecision]| {
            let parts = decisions.iter().map(StackDecision::to_text);
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

impl StackDecision {
    /// Creates the decision `value` about `part`.
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

/// Returns the attention kernels that the file of `machine` names.
fn attention_of(machine: &Machine) -> Vec<StackDecision> {
    let classes = machine.classes().iter();
    let kernels = classes.filter_map(|class| class.curves.attention_kernel.as_deref());
    let mut kernels: Vec<_> = kernels.collect();
    kernels.dedup();
    let kernels = kernels.into_iter();
    kernels
        .map(|kernel| StackDecision::new("attention", kernel))
        .collect()
}
