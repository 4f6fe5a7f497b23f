//! Implements the engine's traits for collective backends with ASTRA-sim's collectives.

use crate::endless_waits::EndlessWait;
use crate::program::{
    CollectiveChunkPhase, MemberQueueDirectionAndTree, PhaseOperation, PhaseQueueSubset,
};
use crate::{
    AlgorithmAndAllNpusAtOnceFlag, AllReduceDecomposition, AstraAlgorithm, Quirk, end_order,
    symmetry,
};
use chakram_base::ids::{MemberIndex, Npu, Position};
use chakram_base::units::{Span, Time, UnroundedBufferShare};
use chakram_hardware::collective::{
    BusEventScheduler, BusTransferTrigger, ChunkQueueIndexAndCapacity, ChunkStageSequences,
    CollectiveAlgorithmsFormatter, CollectiveBackend, CollectiveEndpointModel,
    CollectiveMatchingRules, CollectiveMemberNpus, CollectiveRequest, EndpointBusTransfer,
    EndpointDelayOrBusProcessing, FlowShopEndAndQueueOrder, FlowShopInput, MemberLinePosition,
    MemberOrderChangeForMessages, PostedReceiveSenderAndStep, ScriptAction,
    ScriptExecutingMemberId, ScriptMemberEvent, SendStepWithConditions,
    SortEventsByInsertionMarker, StageBeginAndAdmittingPassage, TransferCompletionToken,
    UncontendedMessageCostFunctions, WaitingChunkPriority, simulate_flow_shop_observed,
};
use chakram_hardware::group::{self, GroupPhasesAndMemberPositions, PathsToNextAndAnyMember};
use chakram_hardware::topology::{LineSendPattern, PathLatencyAndRates, Topology};
use chakram_trace::format::CollectiveKind;

use super::AstraCollectiveBackend;
use std::ops::Range;

/// Endpoint delay in named groups, in ns.
const FAST: u64 = 10;
/// Size of a rendezvous request, in bytes.
const HANDSHAKE: u64 = 8192;

impl CollectiveBackend for AstraCollectiveBackend {
    type Stage = CollectiveChunkPhase;

    fn place_group(
        &self,
        party: CollectiveMemberNpus<'_>,
        topology: &Topology,
    ) -> GroupPhasesAndMemberPositions {
        // A named group of all NPUs behaves like the unnamed group of all NPUs.
        let named = party.named && party.npus.len() < self.npus as usize;
        if named && !self.named_groups_have_phase_per_dimension() {
            return build_single_line_placement(party.npus);
        }
        let mut extent = GroupPhasesAndMemberPositions::new(party.npus, topology);
        // Add a phase with all members as one line, for `one…` algorithms. A group that is not a
        // sub-grid is one line already.
        if party.npus.len() > 1 && extent.regular {
            extent.phases.push(group::PhaseDimensionSizeAndStride {
                dimension: self.network_dimension_count() + usize::from(named),
                size: party.npus.len() as u32,
                stride: 1,
            });
        }
        extent
    }

    fn common_paths_of_phase(
        &self,
        _: &GroupPhasesAndMemberPositions,
        _: &group::PhaseDimensionSizeAndStride,
        _: &Topology,
    ) -> PathsToNextAndAnyMember {
        PathsToNextAndAnyMember::default()
    }

    fn path_shared_by_stage_messages(
        &self,
        _: &CollectiveChunkPhase,
        _: &PathsToNextAndAnyMember,
    ) -> Option<PathLatencyAndRates> {
        None
    }

    fn cache_key_apart_from_group_kind_bytes(&self, request: &CollectiveRequest) -> u64 {
        let script = self.custom_algorithm_index(request.kind, request.node);
        let script = script.map_or(0, |script| u64::from(script) + 1);
        if self.quirks.has_quirk(Quirk::OneAtATime) {
            return script;
        }
        // Each collective has its own queues; its index selects them.
        u64::from(request.number) << 32 | script
    }

    fn chunk_schedule(
        &self,
        request: &CollectiveRequest,
        extent: &GroupPhasesAndMemberPositions,
        _: &[PathsToNextAndAnyMember],
    ) -> ChunkStageSequences<CollectiveChunkPhase> {
        let mut out = Vec::new();
        let script = self.custom_algorithm_index(request.kind, request.node);
        if let Some(script) = script.filter(|_| extent.member_count() > 1) {
            // A member executes its script in the first queue of the innermost level. The other fields of this phase
            // have no effect.
            out.push(CollectiveChunkPhase {
                phase: 0,
                algorithm: AstraAlgorithm::Ring,
                part: PhaseOperation::AllReduce,
                amount: UnroundedBufferShare::from_bytes(request.bytes),
                size: extent.member_count(),
                level: 0,
                rotation: PhaseQueueSubset::None,
                named: self.is_named_partial_group(extent),
                order: 0,
                collective: request.number,
                quirks: self.quirks,
                script: Some(script),
            });
            return ChunkStageSequences::with_uniform_chunks(out, 1);
        }
        let (chunk, count) = self.chunk_size_and_count(request.kind, request.bytes);
        let route = self.phases_of_collective(request.kind, extent);
        let named = self.is_named_partial_group(extent);
        let mut amount = chunk;
        let mut push = |&(phase, level, algorithm): &(u32, u32, AstraAlgorithm), part, rotation| {
            let stage = CollectiveChunkPhase {
                phase,
                algorithm,
                part,
                amount,
                size: extent.phases[phase as usize].size,
                level,
                rotation,
                named,
                order: out.len() as u32,
                collective: request.number,
                quirks: self.quirks,
                script: None,
            };
            amount = stage.result_size();
            out.push(stage);
        };
        match (request.kind, self.optimization) {
            (CollectiveKind::AllReduce, AllReduceDecomposition::LocalBwAware) => {
                if let Some((last, inner)) = route.split_last() {
                    for dimension in inner {
                        push(
                            dimension,
                            PhaseOperation::ReduceScatter,
                            PhaseQueueSubset::First,
                        );
                    }
                    push(last, PhaseOperation::AllReduce, PhaseQueueSubset::First);
                    for dimension in inner.iter().rev() {
                        push(
                            dimension,
                            PhaseOperation::AllGather,
                            PhaseQueueSubset::Second,
                        );
                    }
                }
            }
            (CollectiveKind::AllGather, _) => {
                for dimension in route.iter().rev() {
                    push(dimension, PhaseOperation::AllGather, PhaseQueueSubset::All);
                }
            }
            (kind, _) => {
                let part = match kind {
                    CollectiveKind::AllReduce => PhaseOperation::AllReduce,
                    CollectiveKind::ReduceScatter => PhaseOperation::ReduceScatter,
                    _ => PhaseOperation::AllToAll,
                };
                for dimension in &route {
                    push(dimension, part, PhaseQueueSubset::All);
                }
            }
        }
        ChunkStageSequences::with_uniform_chunks(out, count)
    }

    #[inline]
    fn phase_index(&self, stage: &CollectiveChunkPhase) -> usize {
        stage.phase as usize
    }

    #[inline]
    fn line_position(
        &self,
        extent: &GroupPhasesAndMemberPositions,
        stage: &CollectiveChunkPhase,
        position: Position,
        _: Position,
    ) -> Option<MemberLinePosition> {
        let index = extent.phases[stage.phase as usize].member_index_in_dimension(position);
        Some(stage.line_position_from_index(index, position))
    }

    #[inline]
    fn receive_count(
        &self,
        stage: &CollectiveChunkPhase,
        slot: u16,
        position: MemberLinePosition,
    ) -> u32 {
        stage.receive_count(MemberQueueDirectionAndTree::from_packed(slot), position)
    }

    #[inline]
    fn nth_send(
        &self,
        stage: &CollectiveChunkPhase,
        slot: u16,
        position: MemberLinePosition,
        i: u32,
    ) -> Option<SendStepWithConditions> {
        stage.nth_send(MemberQueueDirectionAndTree::from_packed(slot), position, i)
    }

    #[inline]
    fn sends_one_message_at_a_time(&self, _: &CollectiveChunkPhase) -> bool {
        false
    }

    fn describer(&self) -> CollectiveAlgorithmsFormatter {
        let own = self.clone();
        CollectiveAlgorithmsFormatter::new(move |kind, extent, topology, _| {
            let phases = own.phases_of_collective(kind, extent).into_iter();
            let phases = phases.map(|(phase, _, algorithm)| {
                let phase = &extent.phases[phase as usize];
                let one = phase.dimension >= own.network_dimension_count();
                let name = AlgorithmAndAllNpusAtOnceFlag { algorithm, one };
                match topology.dimensions().get(phase.dimension) {
                    Some(dimension) if extent.regular => {
                        format!("{name} {} ({})", phase.size, dimension.name)
                    }
                    _ => format!("{name} {}", phase.size),
                }
            });
            CollectiveAlgorithmsFormatter::join_phase_descriptions(phases)
        })
    }

    fn closed_form(
        &self,
        chunk_schedule: &ChunkStageSequences<CollectiveChunkPhase>,
        extent: &GroupPhasesAndMemberPositions,
        _: &[PathsToNextAndAnyMember],
        quiet: &UncontendedMessageCostFunctions<'_>,
    ) -> Option<Span> {
        let result = self.compute_collective_flow_shop(chunk_schedule, extent, quiet, |_| ())?;
        Some(result.end)
    }
}

impl CollectiveEndpointModel for AstraCollectiveBackend {
    #[inline]
    fn find_queue_where_chunks_await_stage(
        &self,
        stage: &CollectiveChunkPhase,
        slot: u16,
    ) -> Option<ChunkQueueIndexAndCapacity> {
        let number = self.queue_index_for_phase(stage) * self.queues
            + u32::from(MemberQueueDirectionAndTree::from_packed(slot).queue);
        let number = if self.quirks.has_quirk(Quirk::OneAtATime) {
            number
        } else {
            // A collective visits each dimension at most twice, which bounds the number of its queues.
            let queues = 2 * self.network_dimension_count() as u32 * self.queues;
            ChunkQueueIndexAndCapacity::private_queue_index(stage.collective, queues, number)
        };
        Some(ChunkQueueIndexAndCapacity {
            number,
            capacity: self.capacity,
        })
    }

    #[inline]
    fn initial_credits_of_member(
        &self,
        stage: &CollectiveChunkPhase,
        slot: u16,
        position: MemberLinePosition,
    ) -> u32 {
        stage.initial_credits(MemberQueueDirectionAndTree::from_packed(slot), position)
    }

    #[inline]
    fn is_scripted(&self, stage: &CollectiveChunkPhase) -> bool {
        stage.script.is_some()
    }

    fn advance_script(
        &mut self,
        stage: &CollectiveChunkPhase,
        extent: &GroupPhasesAndMemberPositions,
        player: ScriptExecutingMemberId,
        _: Position,
        cue: ScriptMemberEvent,
        acts: &mut Vec<ScriptAction>,
    ) {
        let script = stage.script.expect("only scripted stages are played");
        let place = || {
            let own = extent.npus[player.position.index()];
            // A member's trace is chosen by its index among the group's NPUs in ascending order, not by its
            // position in the group.
            extent.npus.iter().filter(|npu| **npu < own).count() as u32
        };
        let (scripts, players) = self.scripts.algorithm_at_index_with_executor(script);
        players.deliver_event_and_append_actions(scripts, place, player, cue, acts);
    }

    #[inline]
    fn endpoint_processing_per_message(
        &self,
        stage: &CollectiveChunkPhase,
    ) -> EndpointDelayOrBusProcessing {
        if self.stage_has_named_group_constant_delay(stage) || self.buses.is_empty() {
            EndpointDelayOrBusProcessing::Delay(self.endpoint_delay_of_stage(stage))
        } else {
            EndpointDelayOrBusProcessing::Bus
        }
    }

    fn bus_transfer(
        &self,
        stage: &CollectiveChunkPhase,
        slot: u16,
        position: MemberLinePosition,
        of: BusTransferTrigger,
        ticket: TransferCompletionToken,
    ) -> EndpointBusTransfer {
        stage.bus_transfer_caused_by_packet(
            MemberQueueDirectionAndTree::from_packed(slot),
            position,
            of,
            ticket,
        )
    }

    fn submit_npu_bus_transfer(
        &mut self,
        now: Time,
        npu: Npu,
        load: EndpointBusTransfer,
        clock: &mut impl BusEventScheduler,
    ) {
        self.buses[npu.index()].accept_transfer(now, load, clock);
    }

    fn return_completed_transfer_and_pause_bus(
        &mut self,
        now: Time,
        npu: Npu,
        event: u32,
        clock: &mut impl BusEventScheduler,
    ) -> Option<TransferCompletionToken> {
        self.buses[npu.index()].handle_event(now, event, clock)
    }

    fn resume_npu_bus_after_transfer(
        &mut self,
        now: Time,
        npu: Npu,
        event: u32,
        clock: &mut impl BusEventScheduler,
    ) {
        self.buses[npu.index()].resume_after_event(now, event, clock);
    }

    #[inline]
    fn reduction_time_of_received_message(
        &self,
        stage: &CollectiveChunkPhase,
        slot: u16,
        position: MemberLinePosition,
        r: u32,
    ) -> Option<Span> {
        let amount = stage.reduced_amount_of_received_message(
            MemberQueueDirectionAndTree::from_packed(slot),
            position,
            r,
        )?;
        Some(self.reduction_time_of(amount))
    }

    fn rts_bytes(&self) -> Option<u64> {
        self.rendezvous.then_some(HANDSHAKE)
    }
}

impl CollectiveMatchingRules for AstraCollectiveBackend {
    type Order = SortEventsByInsertionMarker;

    #[inline]
    fn assign_queue_slot_to_chunk_pass(&mut self, npu: Npu, stage: &CollectiveChunkPhase) -> u16 {
        self.counters.assign_next_queue(npu, stage).to_packed()
    }

    fn stages_exchange_same_messages(
        &self,
        a: &CollectiveChunkPhase,
        b: &CollectiveChunkPhase,
    ) -> bool {
        a.has_same_exchanges(b)
    }

    fn list_member_order_changes_begin_to_end(
        &self,
        chunk_schedule: &ChunkStageSequences<CollectiveChunkPhase>,
        extent: &GroupPhasesAndMemberPositions,
        quiet: &UncontendedMessageCostFunctions<'_>,
    ) -> Option<Vec<MemberOrderChangeForMessages>> {
        let stages = chunk_schedule.stages_of_all_routes();
        let is_proved = stages.iter().all(|stage| {
            self.endpoint_delay_of_stage(stage) > Span::ZERO
                && end_order::is_reordering_proved_for_stage(stage, extent, &self.sizes, quiet)
        });
        if !is_proved {
            return None;
        }
        let mut passages = Vec::new();
        self.compute_collective_flow_shop(chunk_schedule, extent, quiet, |passage| {
            passages.push(passage)
        })?;
        let delays = |stage: &CollectiveChunkPhase| {
            let line = self.member_line_of_stage(stage, extent, quiet);
            line.delay_ends_and_arrival_counts_of_member(
                self.endpoint_delay_of_stage(stage),
                |amount| self.reduction_time_of(amount),
            )
        };
        end_order::order_change_from_start_to_ends(stages, &passages, delays, |stage| {
            self.endpoint_delay_of_stage(stage)
        })
    }

    fn reorder_members_to_receive_order(
        &self,
        stage: &CollectiveChunkPhase,
        messages: Range<u32>,
        extent: &GroupPhasesAndMemberPositions,
        members: &mut Vec<Position>,
    ) {
        end_order::reorder_members_from_send_to_arrival(stage, messages, extent, members);
    }

    fn on_join(
        &mut self,
        now: Time,
        npu: Npu,
        named: bool,
        request: &CollectiveRequest,
        extent: &GroupPhasesAndMemberPositions,
    ) {
        if self.issued.is_none() {
            return;
        }
        let scripted = self
            .custom_algorithm_index(request.kind, request.node)
            .is_some();
        let chunks = if scripted {
            1
        } else {
            u64::from(self.chunk_size_and_count(request.kind, request.bytes).1)
        };
        let alone = !scripted && self.phases_of_collective(request.kind, extent).is_empty();
        if now == Time::ZERO && self.undelayed == Some(None) && !scripted && !alone {
            self.record_member_delaying_message_at_zero(npu, request, extent);
        }
        let Some(issued) = &mut self.issued else {
            return;
        };
        let node = request.node;
        if alone {
            issued.record_first_endless_wait(EndlessWait::Alone { npu, node });
            return;
        }
        // ASTRA-sim numbers messages of custom algorithms separately.
        let of_all = (!named && !scripted).then_some(request.number);
        issued.record_collective_join(npu, node, chunks, extent.member_count(), of_all);
    }

    fn on_node_never_started_in_astra_sim(&mut self, npu: Npu) {
        if let Some(issued) = &mut self.issued {
            issued.record_first_endless_wait(EndlessWait::Asleep { npu });
        }
    }

    fn matches_by_sender(&self) -> bool {
        self.counters.has_counters()
    }

    #[inline]
    fn direction_or_tree_of_slot(&self, slot: u16) -> u16 {
        MemberQueueDirectionAndTree::direction_and_tree_bits(slot)
    }

    fn steps_before_posting_receive(
        &self,
        stage: &CollectiveChunkPhase,
        slot: u16,
        position: MemberLinePosition,
        from: u32,
        heard: u32,
    ) -> Option<u32> {
        stage.steps_before_nth_receive_from_member(
            MemberQueueDirectionAndTree::from_packed(slot),
            position,
            from,
            heard,
        )
    }

    fn translate_requested_step_to_sender(
        &self,
        stage: &CollectiveChunkPhase,
        slot: u16,
        position: MemberLinePosition,
        to: u32,
        step: u32,
    ) -> Option<u32> {
        stage.own_step_that_receiver_requests(
            MemberQueueDirectionAndTree::from_packed(slot),
            position,
            to,
            step,
        )
    }

    #[inline]
    fn matches_collectives_in_issue_order(&self) -> bool {
        self.quirks.has_quirk(Quirk::OneAtATime)
    }

    fn kth_source_to_post_receive_for(
        &self,
        stage: &CollectiveChunkPhase,
        slot: u16,
        position: MemberLinePosition,
        taken: u32,
        k: u32,
    ) -> Option<PostedReceiveSenderAndStep> {
        stage.nth_receive_source_after_steps(
            MemberQueueDirectionAndTree::from_packed(slot),
            position,
            taken,
            k,
        )
    }
}

impl AstraCollectiveBackend {
    /// Records the member if it joins a collective at time 0 and immediately delays a message. In trees, only leaves do
    /// so, because other members first wait for a message.
    fn record_member_delaying_message_at_zero(
        &mut self,
        npu: Npu,
        request: &CollectiveRequest,
        extent: &GroupPhasesAndMemberPositions,
    ) {
        let chunk_schedule = self.chunk_schedule(request, extent, &[]);
        let Some(stage) = chunk_schedule.stages_of_all_routes().first() else {
            return;
        };
        let place = extent.npus.iter().zip(0..).find(|(at, _)| **at == npu);
        let position = place.map_or(Position(0), |(_, place)| Position(place));
        let index = extent.phases[stage.phase as usize].member_index_in_dimension(position);
        let line = stage.line_position_from_index(index, position);
        let delays = EndpointDelayOrBusProcessing::Delay(Span::ZERO)
            == self.endpoint_processing_per_message(stage);
        if delays && stage.initial_credits(stage.only_queue_and_direction(), line) > 0 {
            self.undelayed = Some(Some((npu, request.node)));
        }
    }

    /// Returns true if, in a collective of all NPUs, no link ever carries two messages at the same time. Assumes two
    /// things that are true of every algorithm: chunks in the same stage send to the same members, and a member sends
    /// its messages to one partner after another.
    fn is_conflict_free(
        &self,
        chunk_schedule: &ChunkStageSequences<CollectiveChunkPhase>,
        quiet: &UncontendedMessageCostFunctions<'_>,
    ) -> bool {
        let one_by_one = self.capacity == 1 || chunk_schedule.chunk_count() == 1;
        one_by_one
            && chunk_schedule.stages_of_all_routes().iter().all(|stage| {
                let pattern = match stage.algorithm {
                    AstraAlgorithm::Ring => LineSendPattern::Neighbours,
                    AstraAlgorithm::HalvingDoubling => LineSendPattern::InStep,
                    AstraAlgorithm::Direct { .. } => LineSendPattern::Staggered,
                    AstraAlgorithm::DoubleBinaryTree => LineSendPattern::Any,
                };
                stage.size == self.npus
                    && (quiet.conflict_free)(stage.phase as usize, stage.size, pattern)
            })
    }

    /// Returns the line of members that communicate in `stage`; the levels must have one queue.
    fn member_line_of_stage<'a>(
        &'a self,
        stage: &'a CollectiveChunkPhase,
        extent: &'a GroupPhasesAndMemberPositions,
        quiet: &'a UncontendedMessageCostFunctions<'a>,
    ) -> symmetry::PhaseMemberLine<'a> {
        symmetry::PhaseMemberLine {
            stage,
            slot: stage.only_queue_and_direction(),
            extent,
            sizes: &self.sizes,
            quiet,
        }
    }

    /// Returns the flow shop of a collective. All its members start together on idle links. Calls `on_begin` whenever a
    /// chunk begins a stage. Returns `None` if the duration cannot be proven.
    fn compute_collective_flow_shop(
        &self,
        chunk_schedule: &ChunkStageSequences<CollectiveChunkPhase>,
        extent: &GroupPhasesAndMemberPositions,
        quiet: &UncontendedMessageCostFunctions<'_>,
        on_begin: impl FnMut(StageBeginAndAdmittingPassage),
    ) -> Option<FlowShopEndAndQueueOrder> {
        // If an NPU has several queues, chunks depend on earlier collectives.
        let plain = self.queues == 1 && self.buses.is_empty() && !self.rendezvous;
        let phases = chunk_schedule.stages_of_all_routes();
        if !plain || phases.iter().any(|stage| stage.script.is_some()) {
            return None;
        }
        if quiet.shared && !self.is_conflict_free(chunk_schedule, quiet) {
            return None;
        }
        let spans = phases.iter().map(|stage| {
            let line = self.member_line_of_stage(stage, extent, quiet);
            line.duration_if_same_for_all_members(self.endpoint_delay_of_stage(stage), |amount| {
                self.reduction_time_of(amount)
            })
        });
        let spans: Vec<Span> = spans.collect::<Option<_>>()?;
        let queues: Vec<u32> = phases
            .iter()
            .map(|stage| self.queue_index_for_phase(stage))
            .collect();
        let last = queues.iter().max().map_or(0, |&queue| queue as usize);
        let stages = FlowShopInput {
            spans: &spans,
            queue_of: &queues,
            capacity: &vec![self.capacity; last + 1],
            back: &vec![false; phases.len()],
            intra: WaitingChunkPriority::Fifo,
        };
        // All chunks are identical, so a flow shop of the stages, with the queues' capacities, gives the end time.
        Some(simulate_flow_shop_observed(
            chunk_schedule,
            stages,
            on_begin,
        ))
    }

    /// Returns the endpoint delay in `stage` on machines without buses.
    #[inline]
    fn endpoint_delay_of_stage(&self, stage: &CollectiveChunkPhase) -> Span {
        if self.stage_has_named_group_constant_delay(stage) {
            Span::from_ns(FAST)
        } else {
            self.endpoint
        }
    }

    /// Returns true if `stage` belongs to a named group, whose endpoints have a constant delay.
    #[inline]
    fn stage_has_named_group_constant_delay(&self, stage: &CollectiveChunkPhase) -> bool {
        stage.named && self.quirks.has_quirk(Quirk::GroupEndpoint)
    }

    /// Returns the index of the queues that chunks join before `stage`. Queues are indexed by dimension or by phase.
    #[inline]
    fn queue_index_for_phase(&self, stage: &CollectiveChunkPhase) -> u32 {
        if self.quirks.has_quirk(Quirk::SharedQueue) {
            stage.level
        } else {
            stage.order
        }
    }
}

/// Returns an extent with a single phase, in which the members form one line in their given order.
fn build_single_line_placement(npus: &[Npu]) -> GroupPhasesAndMemberPositions {
    let size = npus.len() as u32;
    let phase = group::PhaseDimensionSizeAndStride {
        dimension: 0,
        size,
        stride: 1,
    };
    GroupPhasesAndMemberPositions {
        phases: if size > 1 { vec![phase] } else { Vec::new() },
        npus: npus.to_vec(),
        position_of: (0..size).map(Position).collect(),
        member_at: (0..size).map(MemberIndex).collect(),
        regular: false,
    }
}
