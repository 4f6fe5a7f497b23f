//! Processors that run nodes: the lanes of NPUs, or a model that replaces them.

use super::dataflow::{Dataflow, RunningRankInstance, SERVED, TURNS, pack_instance_and_node};
use super::discipline::EventOrderDiscipline;
use super::effects::Effects;
use super::ids::{InstanceIndex, InstanceNode};
use super::lanes::LanesOfAllNpus;
use super::processor::{ProcessorJobStartAndEnd, ProcessorKernelJob, SelfSchedulingProcessorModel};
use chakram_base::ids::{NodeIndex, Npu};
use chakram_base::units::Time;
use chakram_trace::graph::NodeKind;

/// The lanes of all NPUs, and the processor model, if any.
#[derive(Default)]
pub(super) struct Processors<'a> {
    lanes: LanesOfAllNpus,
    model: Option<&'a mut dyn SelfSchedulingProcessorModel>,
    /// Job times that the model has now decided. Reused to keep the list's allocation.
    started: Vec<ProcessorJobStartAndEnd>,
    /// True if the model was notified of jobs since `settle_instant` was last called.
    unsettled: bool,
}

impl<'a> Processors<'a> {
    pub fn new(model: Option<&'a mut dyn SelfSchedulingProcessorModel>) -> Self {
        Self {
            model,
            ..Self::default()
        }
    }

    pub fn kernel_lanes(&self) -> &LanesOfAllNpus {
        &self.lanes
    }

    #[inline]
    pub fn kernel_lanes_mut(&mut self) -> &mut LanesOfAllNpus {
        &mut self.lanes
    }

    /// Returns true if the model serves the kernels of a program on an NPU.
    pub fn serves_program(&self, npu: Npu, program: u32) -> bool {
        let model = self.model.as_ref();
        model.is_some_and(|model| model.serves_program(npu, program))
    }

    /// Gives a node its lane if the lane is free; otherwise queues the node. Returns true if the node took the lane.
    #[inline(always)]
    pub fn take_lane_or_queue_node(
        &mut self,
        flow: &Dataflow<'_>,
        instance: InstanceIndex,
        node: NodeIndex,
    ) -> bool {
        let running = flow.instance(instance);
        let lane = running.shared.lanes[running.graph.lane(node) as usize];
        let (lane, word) = (
            running.first_lane + lane,
            pack_instance_and_node(instance, node),
        );
        if running.has_flag(TURNS) {
            self.lanes.take_lane_in_turn_or_queue(lane, word, flow)
        } else {
            self.lanes.take_lane_or_queue(lane, word)
        }
    }

    /// Frees the lane of a complete node.
    #[inline(always)]
    pub fn free_lane<D: EventOrderDiscipline>(
        &mut self,
        effects: &mut Effects,
        now: Time,
        running: &RunningRankInstance<'_>,
        InstanceNode { instance, node }: InstanceNode,
    ) {
        if let Some(lane) = running.lane_of_node(node) {
            if running.has_flag(TURNS) {
                self.lanes.count_completed_node_of_turn(lane);
            }
            if self.lanes.free_lane_and_say_if_to_offer::<D>(now, lane) {
                effects.freed.push((instance, lane));
            }
        }
    }

    /// Submits a kernel to the model.
    pub fn submit_job(&mut self, now: Time, job: &ProcessorKernelJob) {
        if let Some(model) = &mut self.model {
            model.submit_job(now, job, &mut self.started);
            self.unsettled = true;
        }
    }

    /// Notifies the model that a kernel is complete.
    pub fn notify_model_of_job_end(&mut self, now: Time, job: &ProcessorKernelJob) {
        if let Some(model) = &mut self.model {
            model.on_job_ended(now, job, &mut self.started);
            self.unsettled = true;
        }
    }

    /// Returns true if the model was notified of jobs since `settle_instant` was last called.
    #[inline]
    pub fn has_jobs_since_last_settle(&self) -> bool {
        self.unsettled
    }

    /// Notifies the model that no more jobs will end or be submitted at this instant.
    pub fn settle_instant(&mut self, now: Time) {
        self.unsettled = false;
        if let Some(model) = &mut self.model {
            model.settle_instant(now, &mut self.started);
        }
    }

    /// Returns the job times that the model has decided. The caller must empty the list.
    pub fn decided_job_times_to_drain_mut(&mut self) -> &mut Vec<ProcessorJobStartAndEnd> {
        &mut self.started
    }
}

impl RunningRankInstance<'_> {
    /// Returns true if a node is a kernel that a processor model serves.
    #[inline]
    pub fn is_kernel_served_by_processor_model(&self, kind: NodeKind) -> bool {
        self.has_flag(SERVED) && kind == NodeKind::Compute
    }
}
