//! Plan options as settings of a run. Each setting comes with the job that results without its option, so that the
//! program can detect options without an effect.

use super::TrainingArgs;
use super::request::{STACK, TOKENS};
use crate::generate::edited::{self, GeneratedJobAndEdits};
use crate::generate::shorter::StepWithFewerMicroBatches;
use chakram_hardware::machine::Machine;
use chakram_jobs::{
    GivenSetting, MAX_REPEATED_NODES, RunInputsWithoutSetting, machine_properties_for_plans,
};
use chakram_trace::workload::Workload;
use chakram_workloads::generate::{CheckedWorkloadPattern, ModelAndParallelismPlan};
use std::borrow::Cow;

/// Key of the memory of NPUs that the plan states.
const CAPACITY: &str = "capacity";

impl TrainingArgs {
    /// Returns the plan options on the command line as settings. `workload` is the job on `machine` with all these
    /// options.
    pub fn plan_options_as_settings<'a>(
        &'a self,
        machine: &'a Machine,
        training: &'a ModelAndParallelismPlan,
        workload: &'a Workload,
    ) -> Vec<GivenSetting<'a>> {
        let tokens = self.tokens.map(|tokens| (TOKENS, tokens.to_string()));
        let options = self.plan.flags.given_values().chain(tokens);
        let settings = options.map(|(option, value)| GivenSetting {
            key: match option {
                TOKENS => TOKENS.to_owned(),
                option => format!("plan.{option}"),
            },
            value,
            option: None,
            without: Box::new(move || match option {
                CAPACITY => self.run_without_capacity_option(machine, workload),
                option => {
                    let other = self
                        .resolve_model_and_plan_without_option(Some(option), Some(machine), &[])
                        .ok()?;
                    let other = other.training;
                    if other.plan == training.plan && other.model == training.model {
                        return Some(RunInputsWithoutSetting::default());
                    }
                    self.job_if_ranks_and_nodes_equal_workload(other, workload)
                }
            }),
        });
        settings.collect()
    }

    /// Returns the run without the option `capacity`: NPUs then have the memory of the machine.
    fn run_without_capacity_option(
        &self,
        machine: &Machine,
        workload: &Workload,
    ) -> Option<RunInputsWithoutSetting<'static>> {
        let stated = machine.npu_memory_capacity_if_overridden();
        let mut machine = machine.clone();
        machine.set_npu_memory_capacity(None);
        let mut classes = 0..machine.npu_classes().len();
        if classes.all(|class| machine.npu_memory_capacity_with_port_share(class) == stated) {
            return Some(RunInputsWithoutSetting::default());
        }
        let other = self
            .resolve_model_and_plan_without_option(Some(CAPACITY), Some(&machine), &[])
            .ok()?;
        Some(RunInputsWithoutSetting {
            machine: Some(Cow::Owned(machine)),
            ..self.job_if_ranks_and_nodes_equal_workload(other.training, workload)?
        })
    }

    /// Returns the software stack that the user chose as a setting of a run. `machine` is the machine without the
    /// stack.
    pub fn software_stack_setting<'a>(
        &'a self,
        machine: &'a Machine,
        training: &'a ModelAndParallelismPlan,
        workload: &'a Workload,
    ) -> Option<GivenSetting<'a>> {
        let stack = self.stack.as_ref()?;
        Some(GivenSetting {
            key: STACK.to_owned(),
            value: stack.clone(),
            option: None,
            without: Box::new(move || {
                let other = self
                    .resolve_model_and_plan_without_option(Some(STACK), Some(machine), &[])
                    .ok()?;
                let other = other.training;
                let run = match other.plan == training.plan && other.model == training.model {
                    true => RunInputsWithoutSetting::default(),
                    false => self.job_if_ranks_and_nodes_equal_workload(other, workload)?,
                };
                Some(RunInputsWithoutSetting {
                    machine: Some(Cow::Borrowed(machine)),
                    ..run
                })
            }),
        })
    }

    /// For each setting that changes the machine, replaces the job by the job for the changed machine, unless the plan
    /// takes the same facts from it as from `machine`.
    pub fn rebind_jobs_of_machine_settings<'a>(
        &'a self,
        settings: &mut [GivenSetting<'a>],
        machine: &'a Machine,
        workload: &'a Workload,
    ) {
        for setting in settings {
            let run = std::mem::replace(&mut setting.without, Box::new(|| None));
            setting.without = Box::new(move || {
                let mut found = run()?;
                // If the stack has no durations for the changed machine, no run on this machine is possible.
                if let (Some(stack), Some(other)) =
                    (self.load_software_stack().ok()?, &found.machine)
                {
                    found.machine =
                        Some(Cow::Owned(stack.apply_durations_to_machine(other).ok()?.0));
                }
                if let (Some(memory), Some(other)) = (
                    machine.npu_memory_capacity_if_overridden(),
                    &mut found.machine,
                ) {
                    other.to_mut().set_npu_memory_capacity(Some(memory));
                }
                let Some(other) = found.machine.as_deref() else {
                    return Some(found);
                };
                let taken = |machine: &Machine| {
                    let (mut plan, _) = self.plan.resolve_plan_without_option(None).ok()?;
                    plan.fill_open_options_from_machine(&machine_properties_for_plans(machine))
                        .ok()
                };
                if taken(other) == taken(machine) {
                    return Some(found);
                }
                let asked = self.resolve_request(Some(other), &[]).ok()?;
                let job = self.job_if_ranks_and_nodes_equal_workload(asked.training, workload)?;
                Some(RunInputsWithoutSetting {
                    machine: found.machine,
                    ..job
                })
            });
        }
    }

    /// Returns the job of `training`, with the same edits as `workload`. Returns `None` if the job has other numbers of
    /// ranks or nodes without edits, because the results differ in any case.
    fn job_if_ranks_and_nodes_equal_workload(
        &self,
        training: ModelAndParallelismPlan,
        workload: &Workload,
    ) -> Option<RunInputsWithoutSetting<'static>> {
        let job = match self.extrapolate {
            Some(simulated) => StepWithFewerMicroBatches::new(training, simulated)
                .ok()?
                .job_with_fewer_turns(0),
            None => CheckedWorkloadPattern::new(training),
        };
        let job = job.ok()?;
        let edits = edited::parse_edits_rejecting_plan_options(&self.edit).ok()?;
        let nodes: u64 = (0..job.rank_count()).map(|rank| job.node_count(rank)).sum();
        // Edits may change the numbers of ranks and nodes.
        let is_of_same_size = job.rank_count() == workload.rank_count_including_untraced()
            && nodes == workload.node_count();
        if edits.is_empty() && !is_of_same_size {
            return None;
        }
        if nodes.max(workload.node_count()) > MAX_REPEATED_NODES {
            return Some(RunInputsWithoutSetting {
                is_too_large: true,
                ..RunInputsWithoutSetting::default()
            });
        }
        let other = match edits.is_empty() {
            true => job.build_workload().ok()?,
            false => GeneratedJobAndEdits::new(&job, "", edits)
                .and_then(|edited| edited.load_edited())
                .ok()?
                .into_workload(),
        };
        Some(RunInputsWithoutSetting {
            workload: Some(other),
            ..RunInputsWithoutSetting::default()
        })
    }
}
