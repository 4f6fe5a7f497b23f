//! The native backend runs the machine's algorithm for each dimension, and pipelines chunks through the dimensions.
//! Endpoints take no time. If a custom algorithm supports a collective's kind and number of members, they execute its
//! scripts instead.
//!
//! A collective in several chunks is a pipeline: while one chunk is in the second dimension, the next is in the first.
//! An NPU has at most [`ChunkCountOrderAndOverlap::active`] chunks in one dimension at the same time. In trees, the
//! maximum is at least four chunks per level. The chunks share the NPU's port. The order of chunks is computed for the
//! whole collective in advance, as if all members started together and each stage took its uncontended time
//! ([`simulate_flow_shop()`]). Members that start late keep this order, so no two members ever wait for each other.
//!
//! Closed form: if each dimension has at most one chunk at a time and each stage has a closed form, the schedule gives
//! the exact times. The members of a line (which exchange data in a phase) end a stage together and with empty ports.
//! Chunks therefore pass through every line exactly as in the computed schedule.

use super::backend::{
    BusEventScheduler, BusTransferTrigger, ChunkQueueIndexAndCapacity,
    CollectiveAlgorithmsFormatter, CollectiveBackend, CollectiveEndpointModel,
    CollectiveMatchingRules, CollectiveMemberNpus, CollectiveRequest, EndpointBusTransfer,
    EndpointDelayOrBusProcessing, PostedReceiveSenderAndStep, ScriptAction,
    ScriptExecutingMemberId, ScriptMemberEvent, SortEventsByContentMarker, TransferCompletionToken,
    UncontendedMessageCostFunctions,
};
use super::chunk_count::{
    ChunkCountChoiceCache, ChunkCountSearchInputs, max_chunks_in_flight_in_tree,
    uses_tree_algorithm,
};
use super::flow_shop::{self, simulate_flow_shop};
use super::routes::build_collective_chunk_schedule;
use super::{
    ChunkAdmissionOrderPerPhase, ChunkCountOrderAndOverlap, ChunkStageSequences,
    CollectiveAlgorithm, CollectiveCurve, CollectiveStage, CollectiveStagePrimitive,
    CrossNodeNcclRingAndTreeModel, DimensionAlgorithmChoice, DimensionVisitOrder,
    FittedCollectiveProtocol, MemberLinePosition, NamedScriptedAlgorithm, PairBytesByPhase,
    ScriptExecutor, SendStepWithConditions, StageWithAlgorithm, across_nodes, curve, late_ring,
    protocol, stage_assignment,
};
use crate::group::{
    GroupPhasesAndMemberPositions, PathsToNextAndAnyMember, PhaseDimensionSizeAndStride,
};
use crate::topology::{LineSendPattern, PathLatencyAndRates, Topology};
use chakram_base::ids::{MemberIndex, Npu, Position};
use chakram_base::units::{Span, Time, UnroundedBufferShare};
use std::num::NonZeroU32;

/// Runs collectives with the machine's algorithms.
#[derive(Clone, Debug)]
pub struct NativeBackend<'a> {
    /// Choice of algorithm for each dimension.
    pub algorithms: &'a [DimensionAlgorithmChoice],
    /// Topology of the machine.
    pub topology: &'a Topology,
    /// Number, order and overlap of chunks.
    pub pipeline: ChunkCountOrderAndOverlap,
    /// Custom algorithms that replace the machine's algorithms. A collective uses the first one that applies to it.
    pub custom: &'a [NamedScriptedAlgorithm],
    /// Measured times of collectives along each dimension. For undisturbed collectives, they replace the machine's
    /// algorithms. May be empty.
    pub curves: &'a [Vec<CollectiveCurve>],
    /// Factor that corrects measured times, or `None` if they are used as measured.
    pub correction: Option<f64>,
    /// The library's protocols in each dimension, for collectives that have no curve. May be empty.
    pub protocols: &'a [Vec<FittedCollectiveProtocol>],
    /// The library's rings and trees over several nodes, for each dimension. The list may be empty.
    pub across_nodes: &'a [Option<CrossNodeNcclRingAndTreeModel>],
    /// Bytes that pairs of members exchange in all-to-alls with unequal parts, indexed by
    /// [`CollectiveRequest::splits`].
    pub splits: Vec<&'a PairBytesByPhase>,
    /// Progress of members that execute scripts.
    pub players: ScriptExecutor,
    /// The numbers of chunks chosen so far, if the machine states none.
    pub chosen: ChunkCountChoiceCache,
}

impl CollectiveBackend for NativeBackend<'_> {
    type Stage = StageWithAlgorithm;

    fn place_group(
        &self,
        party: CollectiveMemberNpus<'_>,
        topology: &Topology,
    ) -> GroupPhasesAndMemberPositions {
        GroupPhasesAndMemberPositions::new(party.npus, topology)
    }

    fn common_paths_of_phase(
        &self,
        extent: &GroupPhasesAndMemberPositions,
        phase: &PhaseDimensionSizeAndStride,
        topology: &Topology,
    ) -> PathsToNextAndAnyMember {
        extent.common_paths_to_next_and_any_member(phase, topology)
    }

    #[inline]
    fn path_shared_by_stage_messages(
        &self,
        assignment: &StageWithAlgorithm,
        paths: &PathsToNextAndAnyMember,
    ) -> Option<PathLatencyAndRates> {
        assignment.uniform_path(paths)
    }

    fn cache_key_apart_from_group_kind_bytes(&self, request: &CollectiveRequest) -> u64 {
        request.splits.map_or(0, |number| u64::from(number) + 1)
    }

    fn chunk_schedule(
        &self,
        request: &CollectiveRequest,
        extent: &GroupPhasesAndMemberPositions,
        paths: &[PathsToNextAndAnyMember],
    ) -> ChunkStageSequences<StageWithAlgorithm> {
        let fits = |custom: &NamedScriptedAlgorithm| {
            custom.applies_to(request.kind, extent.member_count())
        };
        if let Some(script) = self.custom.iter().position(fits) {
            let stage = CollectiveStage {
                phase: 0,
                primitive: CollectiveStagePrimitive::AllReduce,
                buffer: UnroundedBufferShare::from_bytes(request.buffer),
                mirrored: false,
                bidirectional: false,
            };
            let scripted = StageWithAlgorithm {
                stage,
                // Placeholder: a scripted stage has no algorithm of its own.
                algorithm: CollectiveAlgorithm::Ring,
                script: Some(script as u16),
                splits: None,
            };
            return ChunkStageSequences::with_uniform_chunks(vec![scripted], 1);
        }
        let lie = (extent, self.topology);
        let splits = request.splits.map(|number| self.splits[number as usize]);
        let of = (request.kind, request.buffer);
        let counted = ChunkCountSearchInputs {
            of,
            extent,
            topology: self.topology,
            paths,
            choices: self.algorithms,
        };
        let mut chunk_schedule = match request.splits {
            None => {
                let resolved = self.chosen.resolve_chunks(&counted, self.pipeline);
                let algorithms = resolved.algorithms_or(self.algorithms);
                build_collective_chunk_schedule(of, lie, algorithms, resolved.pipeline)
            }
            Some(number) => {
                // Each phase's bytes are defined only if all chunks pass through the phases in the same order.
                let pipeline = ChunkCountOrderAndOverlap {
                    inter: DimensionVisitOrder::default(),
                    ..self.pipeline
                };
                let pipeline = self.chosen.resolve_chunks(&counted, pipeline).pipeline;
                let equal = build_collective_chunk_schedule(of, lie, self.algorithms, pipeline);
                equal.map_stages(|stage| StageWithAlgorithm {
                    algorithm: PairBytesByPhase::algorithm_for_unequal_parts(stage.algorithm),
                    stage: CollectiveStage {
                        bidirectional: false,
                        ..stage.stage
                    },
                    splits: Some(number),
                    ..stage
                })
            }
        };
        // Measured times apply only to equal parts.
        let of = (
            request.kind,
            splits.map_or(
                request.buffer,
                PairBytesByPhase::equivalent_equal_parts_bytes,
            ),
        );
        let formula = || {
            protocol::fastest_protocol_time(self.protocols, of, lie)
                .or_else(|| across_nodes::time_across_nodes(self.across_nodes, of, lie))
        };
        if let Some(span) =
            curve::predict_time_from_one_dimension_curves(self.curves, of, lie).or_else(formula)
        {
            let span = match self.correction {
                Some(factor) => Span::from_seconds_saturating(span.as_seconds() * factor),
                None => span,
            };
            chunk_schedule = chunk_schedule.with_measured_time(span);
        }
        let both_ways = chunk_schedule
            .stages_of_all_routes()
            .iter()
            .any(|c| c.stage.bidirectional);
        let chunk_schedule = chunk_schedule.with_strands(1 + u32::from(both_ways));
        // Every chunk is admitted immediately, so an admission order would have no effect.
        if chunk_schedule.chunk_count() <= self.pipeline.active.get() || extent.phases.is_empty() {
            return chunk_schedule;
        }
        let alone = |assignment: &StageWithAlgorithm| {
            self.estimate_uncontended_stage_duration(assignment, extent, paths)
        };
        let spans: Vec<Span> = chunk_schedule
            .stages_of_all_routes()
            .iter()
            .map(alone)
            .collect();
        let capacity = self.max_concurrent_chunks_per_phase(&chunk_schedule, extent);
        let order = self
            .simulate_chunks_through_phases(&chunk_schedule, &spans, &capacity)
            .order;
        chunk_schedule.with_chunk_admission_order(ChunkAdmissionOrderPerPhase { order, capacity })
    }

    #[inline]
    fn is_split_into_two_strands(&self, assignment: &StageWithAlgorithm) -> bool {
        assignment.stage.bidirectional
    }

    #[inline]
    fn phase_index(&self, assignment: &StageWithAlgorithm) -> usize {
        assignment.stage.phase
    }

    #[inline]
    fn line_position(
        &self,
        extent: &GroupPhasesAndMemberPositions,
        assignment: &StageWithAlgorithm,
        position: Position,
        root: Position,
    ) -> Option<MemberLinePosition> {
        MemberLinePosition::new(extent, &assignment.stage, position, root)
    }

    #[inline]
    fn receive_count(
        &self,
        assignment: &StageWithAlgorithm,
        _: u16,
        line: MemberLinePosition,
    ) -> u32 {
        match assignment.splits {
            None => assignment.algorithm.receive_count(&assignment.stage, line),
            Some(number) => self.splits[number as usize].receive_count(&assignment.stage, line),
        }
    }

    #[inline]
    fn nth_send(
        &self,
        assignment: &StageWithAlgorithm,
        _: u16,
        line: MemberLinePosition,
        i: u32,
    ) -> Option<SendStepWithConditions> {
        let of = (assignment.algorithm, &assignment.stage);
        match assignment.splits {
            None => of.0.nth_send(of.1, line, i),
            Some(number) => self.splits[number as usize].nth_send(of, line, i),
        }
    }

    #[inline]
    fn sends_one_message_at_a_time(&self, assignment: &StageWithAlgorithm) -> bool {
        !assignment
            .algorithm
            .receives_from_same_member_in_all_steps()
    }

    fn describer(&self) -> CollectiveAlgorithmsFormatter {
        let algorithms = self.algorithms.to_vec();
        let pipeline = self.pipeline;
        let custom = self.custom.to_vec();
        let chosen = self.chosen.clone();
        CollectiveAlgorithmsFormatter::new(move |kind, extent, topology, bytes| {
            let mut custom = custom.iter();
            if let Some(custom) =
                custom.find(|custom| custom.applies_to(kind, extent.member_count()))
            {
                // Without a stated size, nothing tells whether the messages suit the collective.
                let sizes = match custom.buffer {
                    Some(_) => "",
                    None => ", sizes from its files",
                };
                return format!("custom {}{sizes}", custom.name);
            }
            let of = (kind, bytes);
            let phases = extent.phases.iter();
            let paths: Vec<_> = phases
                .map(|phase| extent.common_paths_to_next_and_any_member(phase, topology))
                .collect();
            let counted = ChunkCountSearchInputs {
                of,
                extent,
                topology,
                paths: &paths,
                choices: &algorithms,
            };
            let stated = pipeline.chunks.is_some();
            let resolved = chosen.resolve_chunks(&counted, pipeline);
            let mut pipeline = resolved.pipeline;
            let used = resolved.algorithms_or(&algorithms);
            let chunk_schedule =
                build_collective_chunk_schedule(of, (extent, topology), used, pipeline);
            let phases = stage_assignment::describe_algorithms_by_phase(
                chunk_schedule.stages_of_all_routes(),
                extent,
                topology,
                &algorithms,
            );
            let list = CollectiveAlgorithmsFormatter::join_phase_descriptions(phases.into_iter());
            let equal = pipeline.chunks.map_or(1, NonZeroU32::get);
            if equal == 1 || extent.phases.is_empty() {
                return list;
            }
            pipeline.chunks = NonZeroU32::new(equal.max(chunk_schedule.chunk_count()));
            let how = if stated { "" } else { " (chosen)" };
            format!("{list}; {pipeline}{how}")
        })
    }

    fn closed_form(
        &self,
        chunk_schedule: &ChunkStageSequences<StageWithAlgorithm>,
        extent: &GroupPhasesAndMemberPositions,
        paths: &[PathsToNextAndAnyMember],
        quiet: &UncontendedMessageCostFunctions<'_>,
    ) -> Option<Span> {
        if let Some(span) = chunk_schedule.measured_time() {
            return Some(span);
        }
        // If several chunks are in one phase at the same time, there is no closed form, because each chunk's share of
        // the ports is unknown.
        let admission = chunk_schedule.admission_order();
        let one_by_one =
            admission.is_some_and(|admission| admission.capacity.iter().all(|&most| most == 1));
        let one_by_one = one_by_one || chunk_schedule.chunk_count() == 1;
        let scripted = chunk_schedule
            .stages_of_all_routes()
            .iter()
            .any(|assignment| assignment.script.is_some());
        let unequal = chunk_schedule
            .stages_of_all_routes()
            .iter()
            .any(|assignment| assignment.splits.is_some());
        if !one_by_one || scripted || unequal {
            return None;
        }
        let spans = chunk_schedule
            .stages_of_all_routes()
            .iter()
            .map(|assignment| {
                let phase = &extent.phases[assignment.stage.phase];
                let pattern = match assignment.algorithm {
                    CollectiveAlgorithm::Ring => LineSendPattern::Neighbours,
                    _ => LineSendPattern::Any,
                };
                let apart = (quiet.conflict_free)(phase.dimension, phase.size, pattern);
                assignment.closed_form(extent, paths).filter(|_| apart)
            });
        let spans: Vec<Span> = spans.collect::<Option<_>>()?;
        // No closed form applies if a stage takes no time: at the collective's last instant, another operation's
        // message could then precede and delay the stage's last messages.
        if quiet.shared && spans.contains(&Span::ZERO) {
            return None;
        }
        Some(match admission {
            None => spans.into_iter().fold(Span::ZERO, |sum, span| sum + span),
            Some(admission) => {
                self.simulate_chunks_through_phases(chunk_schedule, &spans, &admission.capacity)
                    .end
            }
        })
    }

    fn end_times_of_late_members(
        &self,
        chunk_schedule: &ChunkStageSequences<StageWithAlgorithm>,
        extent: &GroupPhasesAndMemberPositions,
        paths: &[PathsToNextAndAnyMember],
        begins: &[Span],
    ) -> Option<Vec<Span>> {
        let is_single = chunk_schedule.chunk_count() == 1;
        let stages = is_single.then(|| chunk_schedule.stages_of_all_routes())?;
        late_ring::find_late_ring_member_ends(stages, extent, paths, begins)
    }
}

impl CollectiveEndpointModel for NativeBackend<'_> {
    #[inline]
    fn find_queue_where_chunks_await_stage(
        &self,
        _: &StageWithAlgorithm,
        _: u16,
    ) -> Option<ChunkQueueIndexAndCapacity> {
        None
    }

    #[inline]
    fn initial_credits_of_member(
        &self,
        _: &StageWithAlgorithm,
        _: u16,
        _: MemberLinePosition,
    ) -> u32 {
        0
    }

    #[inline]
    fn is_scripted(&self, assignment: &StageWithAlgorithm) -> bool {
        assignment.script.is_some()
    }

    fn advance_script(
        &mut self,
        assignment: &StageWithAlgorithm,
        extent: &GroupPhasesAndMemberPositions,
        player: ScriptExecutingMemberId,
        root: Position,
        cue: ScriptMemberEvent,
        acts: &mut Vec<ScriptAction>,
    ) {
        let number = assignment.script.expect("only scripted stages are played");
        let custom = &self.custom[number as usize];
        // Each member has its own script, and the members may be in a different order from the positions of the extent.
        let size = extent.member_count();
        let first = if custom.kind.has_root() {
            extent.member_at[root.index()].0
        } else {
            0
        };
        let script_of = |position: Position| {
            let MemberIndex(member) = extent.member_at[position.index()];
            (member + size - first) % size
        };
        let position_of = |script: u32| extent.position_of[((script + first) % size) as usize];
        let cue = match cue {
            ScriptMemberEvent::Message { from, label } => ScriptMemberEvent::Message {
                from: script_of(Position(from)),
                label,
            },
            other => other,
        };
        let before = acts.len();
        let script = || script_of(player.position);
        self.players
            .deliver_event_and_append_actions(&custom.scripts, script, player, cue, acts);
        for act in &mut acts[before..] {
            if let ScriptAction::Send { to, .. } = act {
                *to = position_of(*to).0;
            }
        }
    }

    #[inline]
    fn endpoint_processing_per_message(
        &self,
        _: &StageWithAlgorithm,
    ) -> EndpointDelayOrBusProcessing {
        EndpointDelayOrBusProcessing::Instant
    }

    fn bus_transfer(
        &self,
        _: &StageWithAlgorithm,
        _: u16,
        _: MemberLinePosition,
        _: BusTransferTrigger,
        _: TransferCompletionToken,
    ) -> EndpointBusTransfer {
        unreachable!("endpoints take no time")
    }

    fn submit_npu_bus_transfer(
        &mut self,
        _: Time,
        _: Npu,
        _: EndpointBusTransfer,
        _: &mut impl BusEventScheduler,
    ) {
        unreachable!("endpoints take no time")
    }

    fn return_completed_transfer_and_pause_bus(
        &mut self,
        _: Time,
        _: Npu,
        _: u32,
        _: &mut impl BusEventScheduler,
    ) -> Option<TransferCompletionToken> {
        unreachable!("endpoints take no time")
    }

    fn resume_npu_bus_after_transfer(
        &mut self,
        _: Time,
        _: Npu,
        _: u32,
        _: &mut impl BusEventScheduler,
    ) {
        unreachable!("endpoints take no time")
    }

    #[inline]
    fn reduction_time_of_received_message(
        &self,
        _: &StageWithAlgorithm,
        _: u16,
        _: MemberLinePosition,
        _: u32,
    ) -> Option<Span> {
        None
    }

    fn rts_bytes(&self) -> Option<u64> {
        None
    }
}

impl CollectiveMatchingRules for NativeBackend<'_> {
    type Order = SortEventsByContentMarker;

    #[inline]
    fn assign_queue_slot_to_chunk_pass(&mut self, _: Npu, _: &StageWithAlgorithm) -> u16 {
        0
    }

    fn kth_source_to_post_receive_for(
        &self,
        _: &StageWithAlgorithm,
        _: u16,
        _: MemberLinePosition,
        _: u32,
        _: u32,
    ) -> Option<PostedReceiveSenderAndStep> {
        None
    }
}

impl NativeBackend<'_> {
    /// Returns, for each phase, the maximum number of chunks that a member may process at the same time. In trees, it
    /// is at least four per level, because a chunk travels up and down the tree while others follow. More chunks would
    /// only queue at the ports, where their upward messages would delay the downward ones that members wait for.
    fn max_concurrent_chunks_per_phase(
        &self,
        chunk_schedule: &ChunkStageSequences<StageWithAlgorithm>,
        extent: &GroupPhasesAndMemberPositions,
    ) -> Vec<u32> {
        let mut capacity = vec![self.pipeline.active.get(); extent.phases.len()];
        for assignment in chunk_schedule.stages_of_all_routes() {
            if uses_tree_algorithm(assignment) {
                let size = extent.phases[assignment.stage.phase].size;
                let most = &mut capacity[assignment.stage.phase];
                *most = max_chunks_in_flight_in_tree(*most, size);
            }
        }
        capacity
    }

    /// Simulates how the chunks of `chunk_schedule` pass through the phases. `spans` contains the duration of each
    /// stage.
    fn simulate_chunks_through_phases(
        &self,
        chunk_schedule: &ChunkStageSequences<StageWithAlgorithm>,
        spans: &[Span],
        capacity: &[u32],
    ) -> flow_shop::FlowShopEndAndQueueOrder {
        let phases = chunk_schedule
            .stages_of_all_routes()
            .iter()
            .map(|assignment| assignment.stage.phase);
        let queue_of: Vec<u32> = phases.map(|phase| phase as u32).collect();
        let back = chunk_schedule.stages_of_all_routes().iter();
        let back = back
            .map(|assignment| assignment.stage.primitive == CollectiveStagePrimitive::AllGather);
        let back: Vec<bool> = back.collect();
        let stages = flow_shop::FlowShopInput {
            spans,
            queue_of: &queue_of,
            capacity,
            back: &back,
            intra: self.pipeline.intra,
        };
        simulate_flow_shop(chunk_schedule, stages)
    }

    /// Returns the uncontended duration of a stage. Without a closed form the duration is an estimate, which affects
    /// only the order of chunks and never a result. The estimate adds up the times of successive messages over a link
    /// or up a tree. Each message has the algorithm's message size and the latency of one link. The estimate is
    /// proportional to the message times, so it is in whole picoseconds if they are.
    fn estimate_uncontended_stage_duration(
        &self,
        assignment: &StageWithAlgorithm,
        extent: &GroupPhasesAndMemberPositions,
        paths: &[PathsToNextAndAnyMember],
    ) -> Span {
        assignment.closed_form(extent, paths).unwrap_or_else(|| {
            let phase = &extent.phases[assignment.stage.phase];
            let dimension = &self.topology.dimensions()[phase.dimension];
            let (message, count) = assignment
                .algorithm
                .approximate_serial_messages(&assignment.stage, phase.size);
            (dimension.link_bandwidth().serialization_time(message) + dimension.latency)
                .times(count.into())
        })
    }
}

impl StageWithAlgorithm {
    /// Returns the path that all messages share, or `None` if paths differ.
    #[inline]
    pub(super) fn uniform_path(
        &self,
        paths: &PathsToNextAndAnyMember,
    ) -> Option<PathLatencyAndRates> {
        if self.algorithm == CollectiveAlgorithm::Ring {
            paths.next
        } else {
            paths.any
        }
    }

    pub(super) fn closed_form(
        &self,
        extent: &GroupPhasesAndMemberPositions,
        paths: &[PathsToNextAndAnyMember],
    ) -> Option<Span> {
        let path = self.uniform_path(&paths[self.stage.phase])?;
        let n = extent.phases[self.stage.phase].size;
        self.algorithm.closed_form(&self.stage, n, &path)
    }
}
