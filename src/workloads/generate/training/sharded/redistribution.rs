//! Sums, redistributions and messages among the members of a tensor group.

use super::super::layer::node_name_with_phase_and_suffix;
use super::super::program::{
    LayerProgramBuilder, ProgramNodeOperation, ProgramPredecessorsOrNodeDependency,
};
use super::redistribution_cache::{MessageEnd, RedistributionWithGroups};
use super::{MemberOperator, MemberProgramWriter};
use crate::generate::plan::{AblationEffect, ParallelGroupKind};
use crate::generate::sharding::{MemberNumberDigit, SampleRowColumnSharding};
use chakram_trace::format::{CollectiveKind, TrainingPhase};
use std::ops::Range;

/// A result that needs a sum over members, a redistribution, or both.
pub(super) struct NeededSumOrRedistribution<'m> {
    pub from: &'m SampleRowColumnSharding,
    pub over: Option<MemberNumberDigit>,
    pub need: &'m SampleRowColumnSharding,
    pub elements: u64,
}

impl MemberProgramWriter<'_> {
    pub(super) fn emit_collective(
        &mut self,
        name: String,
        kind: CollectiveKind,
        bytes: u64,
        family: ParallelGroupKind,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let task = ProgramNodeOperation::Collective {
            kind,
            bytes,
            family,
        };
        to.push_chained_node(name, phase, task, ["", ""]);
    }

    /// Returns the bytes of `elements` elements per sample, for all samples of a micro-batch.
    pub(super) fn micro_batch_bytes(&self, elements: u64) -> u64 {
        let sizes = self.lowering_context().sizes;
        let each = sizes.samples.saturating_mul(sizes.number);
        elements.saturating_mul(each)
    }

    /// Emits the sum of `what` if it is pending, and then the redistribution to the needed layout.
    pub(super) fn emit_pending_sum_and_redistribution(
        &mut self,
        what: &NeededSumOrRedistribution<'_>,
        whose: [&str; 2],
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let context = self.lowering_context();
        if context
            .without
            .has_effect(AblationEffect::TensorCommunication)
            || what.elements == 0
        {
            return;
        }
        let total = self.micro_batch_bytes(what.elements);
        let own = total / what.from.shard_count();
        if let Some(over) = what.over {
            if let Some(family) = self
                .lowering
                .find_reduce_scatter_groups(what.from, over, what.need)
            {
                let name = node_name_with_phase_and_suffix(phase, whose[0], ".reduce-scatter");
                let kind = CollectiveKind::ReduceScatter;
                return self.emit_collective(name, kind, own, family, phase, to);
            }
            let family = self.lowering.find_sum_groups(over);
            let name = node_name_with_phase_and_suffix(phase, whose[0], ".all-reduce");
            self.emit_collective(name, CollectiveKind::AllReduce, own, family, phase, to);
        }
        match &*self.lowering.find_redistribution(what.from, what.need) {
            RedistributionWithGroups::Nothing => {}
            RedistributionWithGroups::Gather { family, of } => {
                let bytes = total.div_ceil(*of);
                let name = node_name_with_phase_and_suffix(phase, whose[1], ".all-gather");
                self.emit_collective(name, CollectiveKind::AllGather, bytes, *family, phase, to);
            }
            RedistributionWithGroups::Exchange { family, share } => {
                let name = node_name_with_phase_and_suffix(phase, whose[1], ".all-to-all");
                let bytes = total / share;
                self.emit_collective(name, CollectiveKind::AllToAll, bytes, *family, phase, to);
            }
            RedistributionWithGroups::Messages { hops, of } => {
                let bytes = |pieces: u64| {
                    let bytes = u128::from(total) * u128::from(pieces) / u128::from(*of);
                    u64::try_from(bytes).unwrap_or(u64::MAX)
                };
                let own = self.member as usize;
                self.emit_messages(&hops[own], bytes, whose[1], phase, to);
            }
        }
    }

    /// Emits this member's sends and receives among the messages in `all`.
    fn emit_messages(
        &mut self,
        all: &[MessageEnd],
        bytes: impl Fn(u64) -> u64,
        whose: &str,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let slot = self.slot;
        self.slot += 1;
        let after = to.front.clone();
        let mut received = Vec::new();
        for &MessageEnd {
            receive,
            peer,
            pieces,
        } in all
        {
            let task = ProgramNodeOperation::Message {
                receive,
                peer,
                bytes: bytes(pieces),
                slot,
            };
            let what = if receive { "receive" } else { "send" };
            let name = node_name_with_phase_and_suffix(phase, whose, &format!(".{what}{peer}"));
            let item = to.push_parallel_node(name, phase, task, after.clone(), ["", ""]);
            if receive {
                // Only receives extend the chain, because no node waits for a send.
                received.push(ProgramPredecessorsOrNodeDependency::Node(item));
            }
        }
        if !received.is_empty() {
            to.front = received;
        }
    }

    /// Receives the neighbours' rows that this member's windows cover. With `back`, sends back the gradients of these
    /// rows instead.
    pub(super) fn exchange_halo(
        &mut self,
        one: &MemberOperator<'_>,
        back: bool,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let Some(windows) = &one.step.windows else {
            return;
        };
        if self
            .lowering_context()
            .without
            .has_effect(AblationEffect::TensorCommunication)
            || back && !one.wanted
        {
            return;
        }
        let (cutting, spec) = (&one.step.cutting, &one.spec);
        let columns = cutting.input_layout(spec).columns;
        // Number of elements in a row: all channels of all its pixels.
        let row =
            spec.sum_tensor_volumes(&spec.inputs) / u128::from(spec.extent_of_axis('i').max(1));
        let row = u64::try_from(row).unwrap_or(u64::MAX) / u64::from(columns.parts);
        let digit = cutting.rows;
        let rows: Vec<_> = (0..digit.parts)
            .filter_map(|part| windows.stored_and_covered_rows_of_part(part))
            .collect();
        let over = |[has, needed]: &[Range<u64>; 2]| {
            !needed.is_empty() && (needed.start < has.start || needed.end > has.end)
        };
        if !rows.iter().any(over) {
            return;
        }
        // Peers have the same shard as this member along all other axes.
        let part = digit.shard_of_member(self.member);
        let base = self.member - part * digit.stride;
        let common = |needed: &Range<u64>, has: &Range<u64>| {
            let end = needed.end.min(has.end);
            end.saturating_sub(needed.start.max(has.start))
        };
        let [input_rows_owned_by_shard, own_needed] = &rows[part as usize];
        let mut all = Vec::new();
        for (other, [has, needed]) in (0..).zip(&rows).filter(|(other, _)| *other != part) {
            let peer = base + other * digit.stride;
            // First add the rows that this member needs from the peer, then those that the peer needs. In the backward
            // pass, gradients move in the opposite direction.
            for (receive, pieces) in [
                (!back, common(own_needed, has)),
                (back, common(needed, input_rows_owned_by_shard)),
            ] {
                let hop = MessageEnd {
                    receive,
                    peer,
                    pieces,
                };
                all.extend((pieces > 0).then_some(hop));
            }
        }
        // Sort by sender, then by receiver, like the messages of redistributions.
        let ends = |hop: &MessageEnd| {
            if hop.receive {
                (hop.peer, self.member)
            } else {
                (self.member, hop.peer)
            }
        };
        all.sort_unstable_by_key(ends);
        let context = self.lowering_context();
        let samples = context.sizes.samples / u64::from(cutting.samples.parts);
        let row = [row, samples, context.sizes.number]
            .into_iter()
            .fold(1, u64::saturating_mul);
        let bytes = |rows: u64| rows.saturating_mul(row);
        self.emit_messages(&all, bytes, &one.step.operator.name, phase, to);
    }
}
