//! Converts activities to nodes of a trace.

use super::super::activities::{
    ActivityKindAndIndex, HostOrDeviceActivity, RankActivitiesAndDependencies,
    ThreadCommunicationOrStreamLane,
};
use super::super::alike_kernels::{SameNameWorkEstimator, TimedKernelWithKnownWork};
use super::super::calls::{CommOp, RankCommCallsAndAnomalies, parse_first_tensor_dtype};
use super::super::kineto::EventCategory;
use super::super::op_cost::{IntervalFlopsAndBytesTable, duration_of_device_interval};
use super::super::op_work::OpCost;
use super::super::rank_timeline::{
    HostInterval, HostIntervalKind, JoinedRankCapture, NONE, ProfiledStepWindows,
};
use super::lanes::FIRST_FLIGHT;
use super::{RankNodeEmissionInputs, clamp_to_nonnegative_ns};
use chakram_base::units::Span;
use chakram_trace::format::origin;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::split_sizes::{AllToAllSplitText, format_size_list};
use chakram_trace::format::write::{
    AttributeValue, NamedAttribute, NodeFieldsBeyondView, NodeInputsOrOutputs, TraceWriter,
};
use chakram_trace::format::{CollectiveKind, Dtype, GroupName, Op, TraceError};
use std::io::Write;

pub(super) struct HostAndDeviceActivityEmitter<'a> {
    pub rank: &'a JoinedRankCapture,
    pub calls: &'a RankCommCallsAndAnomalies,
    pub activities: &'a RankActivitiesAndDependencies,
    pub job: &'a RankNodeEmissionInputs<'a>,
    pub ids: &'a [u32],
    pub efforts: &'a IntervalFlopsAndBytesTable,
    /// Kernels with known work, from which the work of their namesakes is estimated.
    pub alike: SameNameWorkEstimator,
    /// Element type of each form of host node.
    pub dtypes: &'a [Option<Dtype>],
    pub steps: &'a ProfiledStepWindows,
}

/// Returns, for each form of host node, the element type of the operator's first tensor.
pub(super) fn first_tensor_dtype_of_each_node_form(rank: &JoinedRankCapture) -> Vec<Option<Dtype>> {
    let forms = rank.host.forms.iter();
    forms
        .map(|form| parse_first_tensor_dtype(rank.host.texts.get(form.types_in)))
        .collect()
}

impl<'a> HostAndDeviceActivityEmitter<'a> {
    /// Returns the rank's device work except communication. The FLOPs and bytes are the values
    /// recorded for operators and copies.
    pub fn iter_device_work_except_communication(
        &self,
    ) -> impl Iterator<Item = TimedKernelWithKnownWork> + Clone + use<'a, '_> {
        let work = self.activities.list.iter();
        work.filter_map(|activity| match activity.kind {
            ActivityKindAndIndex::Device(index) if !self.is_unknown_communication(index) => {
                Some(self.recorded_work_of_kernel(index))
            }
            _ => None,
        })
    }

    /// Returns true if a kernel or copy is communication but its operation is unknown.
    fn is_unknown_communication(&self, index: u32) -> bool {
        self.calls.unknown.binary_search(&index).is_ok()
    }

    /// Returns the work of a kernel or copy. A kernel's work is recorded with its operator, a copy's with the copy
    /// itself.
    fn recorded_work_of_kernel(&self, index: u32) -> TimedKernelWithKnownWork {
        let own = &self.rank.devices[index as usize];
        let event = &self.rank.events[own.event as usize];
        let (cost, dtype) = match event.category {
            EventCategory::Kernel => {
                // The launch is a driver call inside the kernel's operator.
                let operator = self.rank.operator_of_device_event(own);
                let cost = self
                    .efforts
                    .kernel_share_of_operator_cost(operator, own, event.name);
                (cost, self.dtype_computed_by_operator(operator))
            }
            _ => {
                let bytes = self.rank.details_of_event(event).bytes;
                let cost = OpCost {
                    bytes,
                    ..OpCost::default()
                };
                (cost, None)
            }
        };
        TimedKernelWithKnownWork {
            name: event.name,
            time: duration_of_device_interval(own),
            cost,
            dtype,
        }
    }

    pub fn write_node<W: Write>(
        &self,
        work: u32,
        activity: &HostOrDeviceActivity,
        (delay, profiler): (u64, u64),
        causes: &[u64],
        attributes: &mut Vec<NamedAttribute<'static>>,
        writer: &mut TraceWriter<W>,
    ) -> Result<(), TraceError> {
        let mut extra = NodeFieldsBeyondView::default();
        let (item_index, name) = match activity.kind {
            ActivityKindAndIndex::Item(item) => (
                item,
                self.rank
                    .host_interval_name(&self.rank.items[item as usize]),
            ),
            ActivityKindAndIndex::Device(device) => {
                let device = &self.rank.devices[device as usize];
                if device.launch != NONE {
                    attributes.push((
                        origin::LAUNCH,
                        self.node_id_attribute_of_item(device.launch),
                    ));
                }
                (NONE, self.rank.event_name(device.event))
            }
            ActivityKindAndIndex::Call(call) => {
                let call = &self.calls.list[call as usize];
                attributes.push((origin::LAUNCH, self.node_id_attribute_of_item(call.item)));
                (NONE, self.rank.event_name(call.event))
            }
            ActivityKindAndIndex::End(_) => (NONE, "end of the thread"),
        };
        if let Some(item) = self.rank.items.get(item_index as usize) {
            if item.parent != NONE {
                attributes.push((origin::PARENT, self.node_id_attribute_of_item(item.parent)));
            }
            attributes.extend(self.changed_step_and_python_attributes(item_index, item));
            let event = &self.rank.events[item.event as usize];
            if event.rf_id != 0 && !self.rank.ordered {
                attributes.push(("rf_id", AttributeValue::Int(event.rf_id as i64)));
            }
            if let Some(node) = self.rank.host.nodes.get(item.host as usize) {
                if let Some(record) = self.rank.host.records.get(item.host as usize) {
                    attributes.push(("et_id", AttributeValue::Int(record.id as i64)));
                    if record.seq_id >= 0 {
                        attributes.push(("seq_id", AttributeValue::Int(record.seq_id)));
                    }
                    if record.fw_parent != 0 {
                        let fw_parent = AttributeValue::Int(record.fw_parent as i64);
                        attributes.push(("fw_parent", fw_parent));
                    }
                }
                let form = self.rank.host.shared_properties_of_node(node);
                attributes.push(("scope", AttributeValue::Int(i64::from(form.scope))));
                let texts = &self.rank.host.texts;
                extra.inputs =
                    shapes_and_types_io(texts.get(form.shapes_in), texts.get(form.types_in));
                extra.outputs =
                    shapes_and_types_io(texts.get(form.shapes_out), texts.get(form.types_out));
            }
        }
        let (op, flops_unknown) = self.trace_op_of_activity(activity);
        // If the capture has no times, nodes have a cost but no duration.
        let timed = |ns| Span::from_ns(if self.rank.untimed { 0 } else { ns });
        if let ActivityKindAndIndex::Call(call) = activity.kind {
            let asked = &self.calls.list[call as usize].asked;
            attributes.push(("in_bytes", AttributeValue::Uint(asked.bytes_in)));
            attributes.push(("out_bytes", AttributeValue::Uint(asked.bytes_out)));
        }
        extra.attributes = attributes;
        let mut view = NodeView::new(u64::from(self.ids[work as usize]), name, op);
        let (send, receive) = self.format_uneven_all_to_all_bytes(activity, op);
        view.flops_unknown = flops_unknown;
        view.splits = AllToAllSplitText {
            send: &send,
            receive: &receive,
        };
        view.lane = Some(self.lane_number(activity));
        view.delay = timed(delay);
        view.profiler = timed(profiler);
        match activity.kind {
            ActivityKindAndIndex::Call(call) => {
                let time = &self.job.times[call as usize];
                view.recorded = timed(time.transfer);
                if matches!(op, Op::Message { .. } | Op::Collective { .. }) {
                    view.size_unknown = self.job.matches[call as usize].size_unknown;
                    view.wait = timed(time.wait);
                    view.eager = time.eager && !self.rank.untimed;
                }
            }
            _ => view.recorded = timed(clamp_to_nonnegative_ns(activity.end - activity.begin)),
        }
        writer.write_node(&view, causes, &extra)
    }

    /// Returns two texts for an all-to-all with unequal parts: the bytes sent to each member, and the bytes received
    /// from each. Both are empty for other operations and for unknown sizes.
    fn format_uneven_all_to_all_bytes(
        &self,
        activity: &HostOrDeviceActivity,
        op: Op<'_>,
    ) -> (String, String) {
        let ActivityKindAndIndex::Call(call) = activity.kind else {
            return <_>::default();
        };
        let exchanges = matches!(
            op,
            Op::Collective {
                kind: CollectiveKind::AllToAll,
                ..
            }
        );
        if !exchanges || !self.job.matches[call as usize].uneven {
            return <_>::default();
        }
        let call = &self.calls.list[call as usize];
        let members = self.job.groups[call.group as usize].ranks.len();
        let text = |parts: &Option<Vec<u64>>, bytes: u64| match parts {
            Some(parts) if parts.is_empty() => {
                format_size_list(&vec![bytes / members as u64; members])
            }
            Some(parts) if parts.len() == members => format_size_list(parts),
            _ => String::new(),
        };
        let asked = &call.asked;
        (
            text(&asked.sends, asked.bytes_in),
            text(&asked.receives, asked.bytes_out),
        )
    }

    /// Returns the step and the Python call of a host interval where they differ from those of the enclosing interval.
    fn changed_step_and_python_attributes(
        &self,
        index: u32,
        item: &HostInterval,
    ) -> impl Iterator<Item = NamedAttribute<'static>> + use<> {
        let around = self.rank.items.get(item.parent as usize);
        let step = self.steps.step_number_of_interval(item);
        let step = step.filter(|_| {
            around.and_then(|around| self.steps.step_number_of_interval(around)) != step
        });
        let stack = self.rank.stacks.innermost_python_call_of_item(index);
        let stack =
            (stack != self.rank.stacks.innermost_python_call_of_item(item.parent)).then_some(stack);
        let step = step.map(|step| (origin::STEP, AttributeValue::Uint(step)));
        let stack = stack.map(|stack| (origin::STACK, AttributeValue::Uint(stack.into())));
        step.into_iter().chain(stack)
    }

    fn node_id_attribute_of_item(&self, item: u32) -> AttributeValue<'static> {
        let work = self.activities.of_item[item as usize];
        AttributeValue::Int(self.ids.get(work as usize).map_or(0, |&id| i64::from(id)))
    }

    fn lane_number(&self, activity: &HostOrDeviceActivity) -> i64 {
        match self.activities.lane_of_activity(self.rank, activity) {
            ThreadCommunicationOrStreamLane::Thread(thread) => i64::from(thread) + 1,
            ThreadCommunicationOrStreamLane::Flight(lane) => FIRST_FLIGHT + i64::from(lane),
            ThreadCommunicationOrStreamLane::Stream(stream) => stream,
        }
    }

    /// Returns an activity's operation, and true if the amount of its computation is unknown.
    fn trace_op_of_activity(&self, activity: &HostOrDeviceActivity) -> (Op<'_>, bool) {
        match activity.kind {
            ActivityKindAndIndex::End(_) => (Op::Host, false),
            ActivityKindAndIndex::Device(device) => self.trace_op_of_kernel(device),
            ActivityKindAndIndex::Item(item) => {
                match self
                    .rank
                    .kind_of_host_interval(&self.rank.items[item as usize])
                {
                    HostIntervalKind::Operator => self.trace_op_of_host_operator(item),
                    _ => (Op::Host, false),
                }
            }
            ActivityKindAndIndex::Call(index) => {
                (self.trace_op_of_communication_call(index), false)
            }
        }
    }

    /// Returns the element type with which the operator `item` computes.
    fn dtype_computed_by_operator(&self, item: u32) -> Option<Dtype> {
        let host = self.rank.items.get(item as usize)?.host;
        let node = self.rank.host.nodes.get(host as usize)?;
        self.dtypes[node.form as usize]
    }

    /// Returns the operation of a host operator. If host operators count as compute, operators that
    /// do work become kernels. Views and operators that only call other operators become framework
    /// overhead.
    fn trace_op_of_host_operator(&self, item: u32) -> (Op<'_>, bool) {
        let OpCost {
            flops,
            bytes,
            flops_unknown,
        } = self.efforts.cost_of_host_interval(item);
        let works = flops > 0 || bytes > 0 || flops_unknown;
        if !(self.job.host_computes && works) {
            return (Op::Host, false);
        }
        let op = Op::Compute {
            flops,
            bytes,
            dtype: self.dtype_computed_by_operator(item),
        };
        (op, flops_unknown)
    }

    fn trace_op_of_kernel(&self, index: u32) -> (Op<'_>, bool) {
        if self.is_unknown_communication(index) {
            let event = &self.rank.events[self.rank.devices[index as usize].event as usize];
            let bytes = self.rank.details_of_event(event).bytes;
            return (Op::Communication { bytes }, false);
        }
        let told = self.recorded_work_of_kernel(index);
        let alike = match told.has_known_flops_and_bytes() {
            true => None,
            false => self.alike.estimate_work(told.name, told.time),
        };
        let TimedKernelWithKnownWork { cost, dtype, .. } = alike.unwrap_or(told);
        let op = Op::Compute {
            flops: cost.flops,
            bytes: cost.bytes,
            dtype,
        };
        (op, cost.flops_unknown)
    }

    fn trace_op_of_communication_call(&self, index: u32) -> Op<'_> {
        let call = &self.calls.list[index as usize];
        let met = &self.job.matches[index as usize];
        // A call without partners would wait forever in a replay, so it becomes work that takes as long as was
        // recorded.
        if !met.found {
            return match call.on_device() {
                true => Op::Communication { bytes: 0 },
                false => Op::Host,
            };
        }
        let group = &self.job.groups[call.group as usize];
        match call.act {
            CommOp::Collective(kind) => Op::Collective {
                kind,
                bytes: met.bytes,
                group: GroupName::from_text(&group.name),
                root: met.root,
                dimensions: None,
                host: false,
            },
            act => Op::Message {
                receive: act == CommOp::Receive,
                peer: call
                    .asked
                    .peer
                    .and_then(|peer| group.ranks.get(peer as usize).copied())
                    .unwrap_or(u32::MAX),
                tag: call.asked.tag,
                bytes: match call.asked.bytes_in.max(call.asked.bytes_out) {
                    0 => met.bytes,
                    own => own,
                },
                own: Some(self.job.number),
                host: false,
            },
        }
    }
}

fn shapes_and_types_io<'a>(shapes: &'a str, types: &'a str) -> NodeInputsOrOutputs<'a> {
    NodeInputsOrOutputs {
        values: "",
        shapes,
        types,
    }
}
