//! Emission of a rank's activities as nodes of a trace.

use super::activities::{Activities, Activity, ActivityKind, ActivityLane};
use super::alike_kernels::{AlikeKernels, KernelWork};
use super::calls::{CommCalls, CommOp, dtype};
use super::event_links::LinkMethod;
use super::group_inference::JobGroup;
use super::kineto::EventCategory;
use super::op_cost::{OpCost, OpCosts, length};
use super::profiler_cost::ProfilerCharges;
use super::rank_timeline::{HostIntervalKind, NONE, RankTimeline};
use super::transfer_times::CallTime;
use crate::trace::scan::NodeView;
use crate::trace::split_sizes::{SplitSizes, split_text};
use crate::trace::write::{AttributeValue, NamedAttribute, NodeExtras, NodeIo, TraceWriter};
use crate::trace::{CollectiveKind, Dtype, GroupName, Op, TraceError};
use crate::units::Span;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::Write;

/// Job-wide data that the nodes of a rank refer to.
pub struct EmitContext<'a> {
    /// Number of the rank; its capture may be another's.
    pub number: u32,
    /// The groups.
    pub groups: &'a [JobGroup],
    /// Waiting and transfer time of each call.
    pub times: &'a [CallTime],
    /// `comm_size` of each call, its root, and whether its partners are known.
    pub matches: &'a [CallMatchInfo],
    /// Start of the job, by this rank's clock, ns.
    pub start: i64,
    /// Whether nothing in the job ran on a device, so that host operators are the compute.
    pub host_computes: bool,
    /// Way in which the rank's two files were joined.
    pub method: LinkMethod,
}

/// Result of matching a call across ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallMatchInfo {
    /// `comm_size`.
    pub bytes: u64,
    /// Rank of the root.
    pub root: Option<u32>,
    /// Whether members exchange parts of different sizes.
    pub uneven: bool,
    /// Whether the partners were found; a call without them is written as host work.
    pub found: bool,
}

/// Numbers of emitted nodes and dependencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct EmittedCounts {
    /// Nodes.
    pub nodes: u64,
    /// Dependencies.
    pub causes: u64,
    /// Time of nodes on streams of a device, waiting for other ranks included, ns.
    pub device_ns: u64,
    /// Time that the profiler is estimated to have added to nodes of the host, ns.
    pub profiler_ns: u64,
}

/// First lane of communication in flight, beyond the numbers of threads.
const FIRST_FLIGHT: i64 = 1000;

/// Returns the order in which activities get their ids: by submission time, as far as dependencies allow, and the
/// calls of a rank in program order.
fn order(rank: &RankTimeline, activities: &Activities, calls: &CommCalls) -> Vec<u32> {
    // Matched calls are paired in the order of ids, so that order has to be program order.
    let made = activities.of_call.iter().zip(&calls.list);
    let mut last: BTreeMap<(u32, bool), u32> = BTreeMap::new();
    let mut program = Vec::new();
    for (&work, call) in made.filter(|&(&work, _)| work != NONE) {
        if let Some(before) = last.insert((call.group, call.is_message()), work) {
            program.push((before, work));
        }
    }
    let order = sorted(rank, activities, &program);
    if order.len() == activities.list.len() {
        return order;
    }
    // A call that had ended before an earlier one began: dependencies take precedence.
    sorted(rank, activities, &[])
}

/// Sorts the activities so that dependencies and the edges `more` go forward, by submission time; those on a cycle are left out.
fn sorted(rank: &RankTimeline, activities: &Activities, more: &[(u32, u32)]) -> Vec<u32> {
    let count = activities.list.len();
    let edges = || activities.dependencies.iter().chain(more);
    let mut waiting = vec![0_u32; count];
    let mut start = vec![0_u32; count + 1];
    for &(cause, effect) in edges() {
        waiting[effect as usize] += 1;
        start[cause as usize + 1] += 1;
    }
    for i in 0..count {
        start[i + 1] += start[i];
    }
    // Filled from behind, each part's start moves from its end to its beginning.
    start.remove(0);
    let mut effects = vec![0_u32; edges().count()];
    for &(cause, effect) in edges().rev() {
        let place = &mut start[cause as usize];
        *place -= 1;
        effects[*place as usize] = effect;
    }
    start.push(effects.len() as u32);
    // Ties are broken by start and number, so that the order does not depend on the heap.
    let key = |work: u32| {
        let activity = &activities.list[work as usize];
        (activities.submitted(rank, activity), activity.begin, work)
    };
    let mut ready: BinaryHeap<Reverse<(i64, i64, u32)>> = (0..count as u32)
        .filter(|&work| waiting[work as usize] == 0)
        .map(|work| Reverse(key(work)))
        .collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse((.., work))) = ready.pop() {
        order.push(work);
        let (from, to) = (start[work as usize], start[work as usize + 1]);
        for &effect in &effects[from as usize..to as usize] {
            waiting[effect as usize] -= 1;
            if waiting[effect as usize] == 0 {
                ready.push(Reverse(key(effect)));
            }
        }
    }
    order
}

/// Writes the nodes of `rank`. `activities` and `calls` are its own.
pub fn write<W: Write>(
    rank: &RankTimeline,
    calls: &CommCalls,
    activities: &Activities,
    job: &EmitContext<'_>,
    writer: &mut TraceWriter<W>,
) -> Result<EmittedCounts, TraceError> {
    let order = order(rank, activities, calls);
    let mut ids = vec![0_u32; activities.list.len()];
    for (place, &work) in order.iter().enumerate() {
        // Id 1 is the declaration of the groups.
        ids[work as usize] = place as u32 + 2;
    }
    let mut written = EmittedCounts::default();
    let text = groups_json(job.number, job.groups);
    writer.write(&NodeView::declaring(1, &text), &[], &NodeExtras::default())?;
    written.nodes += 1;
    let mut writing = ActivityEmitter {
        rank,
        calls,
        activities,
        job,
        ids: &ids,
        efforts: &OpCosts::new(rank, job.host_computes),
        alike: AlikeKernels::default(),
        dtypes: &dtypes(rank),
    };
    writing.alike = AlikeKernels::new(writing.kernels());
    let mut first = vec![0_u32; ids.len() + 1];
    for &(_, effect) in &activities.dependencies {
        first[effect as usize + 1] += 1;
    }
    for i in 0..ids.len() {
        first[i + 1] += first[i];
    }
    let mut causes: Vec<u64> = Vec::new();
    let mut attributes: Vec<NamedAttribute<'static>> = Vec::new();
    let mut charges = ProfilerCharges::new(job.method);
    for &work in &order {
        let activity = &activities.list[work as usize];
        causes.clear();
        // Dependencies are sorted by their dependent, so those of one activity are adjacent.
        let (from, to) = (first[work as usize], first[work as usize + 1]);
        let own = &activities.dependencies[from as usize..to as usize];
        let mut last = None;
        for &(cause, _) in own {
            causes.push(u64::from(ids[cause as usize]));
            last = last.max(Some(end_of(activities, calls, job, cause)));
        }
        causes.sort_unstable();
        let late = match activity.kind {
            ActivityKind::Call(call) => job.times[call as usize].late,
            _ => 0,
        };
        let delay = ns(activity.begin.saturating_sub(last.unwrap_or(job.start)));
        let delay = delay.saturating_add(late);
        let profiler = charges.charge(rank, activity, delay);
        written.profiler_ns = written.profiler_ns.saturating_add(profiler);
        attributes.clear();
        let span = (delay, profiler);
        writing.node(work, activity, span, &causes, &mut attributes, writer)?;
        written.nodes += 1;
        written.causes += causes.len() as u64;
        if let ActivityLane::Stream(_) = activities.lane(rank, activity) {
            let end = end_of(activities, calls, job, work);
            let lasted = ns(end.saturating_sub(activity.begin));
            written.device_ns = written.device_ns.saturating_add(lasted);
        }
    }
    Ok(written)
}

/// Returns the end of an activity in a replay that reproduces the capture.
fn end_of(activities: &Activities, calls: &CommCalls, job: &EmitContext<'_>, work: u32) -> i64 {
    let activity = &activities.list[work as usize];
    match activity.kind {
        ActivityKind::Call(call) => {
            let time = &job.times[call as usize];
            calls.list[call as usize]
                .start
                .saturating_add_unsigned(time.late)
                .saturating_add_unsigned(time.wait.saturating_add(time.transfer))
        }
        _ => activity.end,
    }
}

/// Returns the names of the lanes: metadata attribute and name.
pub fn lane_names(
    rank: &RankTimeline,
    activities: &Activities,
    host_computes: bool,
) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for (index, thread) in rank.threads.iter().enumerate() {
        let track = &rank.kineto.tracks[thread.track as usize];
        let name = if track.name.is_empty() {
            format!("thread {}", track.tid)
        } else {
            track.name.clone()
        };
        let lane = index + 1;
        if host_computes {
            names.push((format!("lane.{lane}"), format!("{name}: work")));
            names.push((format!("host_lane.{lane}"), format!("{name}: overhead")));
        } else {
            names.push((format!("host_lane.{lane}"), name));
        }
    }
    let lanes = activities.list.iter();
    let flights = lanes.filter_map(|work| match activities.lane(rank, work) {
        ActivityLane::Flight(lane) => Some(lane),
        _ => None,
    });
    if let Some(last) = flights.max() {
        let lanes = 0..=last;
        names.extend(lanes.map(|lane| {
            let number = FIRST_FLIGHT + i64::from(lane);
            (
                format!("lane.{number}"),
                format!("communication {}", lane + 1),
            )
        }));
    }
    names
}

/// A process group as PyTorch's `pg_config` states it.
#[derive(Serialize)]
struct GroupDeclaration<'g> {
    pg_name: &'g str,
    pg_desc: &'g str,
    ranks: &'g [u32],
    group_size: usize,
    group_count: usize,
}

/// Returns the declaration of a rank's groups in PyTorch's format.
fn groups_json(number: u32, groups: &[JobGroup]) -> String {
    let own = groups.iter().filter(|group| group.ranks.contains(&number));
    let declared = own.map(|group| GroupDeclaration {
        pg_name: &group.name,
        pg_desc: &group.desc,
        ranks: &group.ranks,
        group_size: group.ranks.len(),
        group_count: groups.len(),
    });
    let declared: Vec<_> = declared.collect();
    serde_json::to_string(&declared).expect("names and numbers can be written")
}

struct ActivityEmitter<'a> {
    rank: &'a RankTimeline,
    calls: &'a CommCalls,
    activities: &'a Activities,
    job: &'a EmitContext<'a>,
    ids: &'a [u32],
    efforts: &'a OpCosts,
    /// Kernels that say what others of their names do.
    alike: AlikeKernels,
    /// Element type of each form of the host's nodes.
    dtypes: &'a [Option<Dtype>],
}

/// Returns the element type that operators of each form compute in: that of their first tensor.
fn dtypes(rank: &RankTimeline) -> Vec<Option<Dtype>> {
    let forms = rank.host.forms.iter();
    forms
        .map(|form| dtype(rank.host.texts.get(form.types_in)))
        .collect()
}

impl<'a> ActivityEmitter<'a> {
    /// Returns the work of the rank's devices that is no call, with what its operators and copies say that it does.
    fn kernels(&self) -> impl Iterator<Item = KernelWork> + Clone + use<'a, '_> {
        let work = self.activities.list.iter();
        work.filter_map(|activity| match activity.kind {
            ActivityKind::Device(index) => Some(self.told(index)),
            _ => None,
        })
    }

    /// Returns what the operator of a kernel says that it does, or a copy itself.
    fn told(&self, index: u32) -> KernelWork {
        let own = &self.rank.devices[index as usize];
        let event = &self.rank.events[own.event as usize];
        let (cost, dtype) = match event.category {
            EventCategory::Kernel => {
                // The launch is a call of the driver inside the operator that the kernel belongs to.
                let operator = self.rank.operator_of(own);
                (self.efforts.share(operator, own), self.dtype(operator))
            }
            _ => {
                let bytes = self.rank.details(event).bytes;
                (OpCost { flops: 0, bytes }, None)
            }
        };
        KernelWork {
            name: event.name,
            time: length(own),
            cost,
            dtype,
        }
    }

    fn node<W: Write>(
        &self,
        work: u32,
        activity: &Activity,
        (delay, profiler): (u64, u64),
        causes: &[u64],
        attributes: &mut Vec<NamedAttribute<'static>>,
        writer: &mut TraceWriter<W>,
    ) -> Result<(), TraceError> {
        let mut extra = NodeExtras::default();
        let (item, name) = match activity.kind {
            ActivityKind::Item(item) => {
                (item, self.rank.item_name(&self.rank.items[item as usize]))
            }
            ActivityKind::Device(device) => {
                let device = &self.rank.devices[device as usize];
                if device.launch != NONE {
                    attributes.push(("launch", self.id_of(device.launch)));
                }
                (NONE, self.rank.name(device.event))
            }
            ActivityKind::Call(call) => {
                let call = &self.calls.list[call as usize];
                attributes.push(("launch", self.id_of(call.item)));
                (NONE, self.rank.name(call.event))
            }
            ActivityKind::End(_) => (NONE, "end of the thread"),
        };
        if let Some(item) = self.rank.items.get(item as usize) {
            if item.parent != NONE {
                attributes.push(("parent", self.id_of(item.parent)));
            }
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
                let form = self.rank.host.form(node);
                attributes.push(("scope", AttributeValue::Int(i64::from(form.scope))));
                let texts = &self.rank.host.texts;
                extra.inputs = io(texts.get(form.shapes_in), texts.get(form.types_in));
                extra.outputs = io(texts.get(form.shapes_out), texts.get(form.types_out));
            }
        }
        let op = self.op(activity);
        // Without times a node has a cost and no duration.
        let timed = |ns| Span::from_ns(if self.rank.untimed { 0 } else { ns });
        if let ActivityKind::Call(call) = activity.kind {
            let asked = &self.calls.list[call as usize].asked;
            attributes.push(("in_bytes", AttributeValue::Uint(asked.bytes_in)));
            attributes.push(("out_bytes", AttributeValue::Uint(asked.bytes_out)));
        }
        extra.attributes = attributes;
        let mut view = NodeView::new(u64::from(self.ids[work as usize]), name, op);
        let (send, receive) = self.split_texts(activity, op);
        view.splits = SplitSizes {
            send: &send,
            receive: &receive,
        };
        view.lane = Some(self.lane(activity));
        view.delay = timed(delay);
        view.profiler = timed(profiler);
        match activity.kind {
            ActivityKind::Call(call) => {
                let time = &self.job.times[call as usize];
                view.recorded = timed(time.transfer);
                if matches!(op, Op::Message { .. } | Op::Collective { .. }) {
                    view.wait = timed(time.wait);
                    view.eager = time.eager && !self.rank.untimed;
                }
            }
            _ => view.recorded = timed(ns(activity.end - activity.begin)),
        }
        writer.write(&view, causes, &extra)
    }

    /// Returns the texts of what an all-to-all of unequal parts sends to each member and receives from it; empty where that
    /// is unknown, and for all others.
    fn split_texts(&self, activity: &Activity, op: Op<'_>) -> (String, String) {
        let ActivityKind::Call(call) = activity.kind else {
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
            Some(parts) if parts.is_empty() => split_text(&vec![bytes / members as u64; members]),
            Some(parts) if parts.len() == members => split_text(parts),
            _ => String::new(),
        };
        let asked = &call.asked;
        (
            text(&asked.sends, asked.bytes_in),
            text(&asked.receives, asked.bytes_out),
        )
    }

    fn id_of(&self, item: u32) -> AttributeValue<'static> {
        let work = self.activities.of_item[item as usize];
        AttributeValue::Int(self.ids.get(work as usize).map_or(0, |&id| i64::from(id)))
    }

    fn lane(&self, activity: &Activity) -> i64 {
        match self.activities.lane(self.rank, activity) {
            ActivityLane::Thread(thread) => i64::from(thread) + 1,
            ActivityLane::Flight(lane) => FIRST_FLIGHT + i64::from(lane),
            ActivityLane::Stream(stream) => stream,
        }
    }

    fn op(&self, activity: &Activity) -> Op<'_> {
        match activity.kind {
            ActivityKind::End(_) => Op::Host,
            ActivityKind::Device(device) => self.kernel(device),
            ActivityKind::Item(item) => match self.rank.role(&self.rank.items[item as usize]) {
                HostIntervalKind::Operator => self.operator(item),
                _ => Op::Host,
            },
            ActivityKind::Call(index) => self.communication(index),
        }
    }

    /// Returns the element type that the operator `item` computes in.
    fn dtype(&self, item: u32) -> Option<Dtype> {
        let host = self.rank.items.get(item as usize)?.host;
        let node = self.rank.host.nodes.get(host as usize)?;
        self.dtypes[node.form as usize]
    }

    /// Returns the operation of a host operator. Where the host computes, operators that do the work are kernels; the
    /// others, such as views and operators that call others, are framework overhead.
    fn operator(&self, item: u32) -> Op<'_> {
        match self.efforts.of(item) {
            OpCost { flops, bytes } if self.job.host_computes && (flops > 0 || bytes > 0) => {
                Op::Compute {
                    flops,
                    bytes,
                    dtype: self.dtype(item),
                }
            }
            _ => Op::Host,
        }
    }

    fn kernel(&self, index: u32) -> Op<'_> {
        let told = self.told(index);
        let alike = match told.is_known() {
            true => None,
            false => self.alike.of(told.name, told.time),
        };
        let work = alike.unwrap_or(told);
        Op::Compute {
            flops: work.cost.flops,
            bytes: work.cost.bytes,
            dtype: work.dtype,
        }
    }

    fn communication(&self, index: u32) -> Op<'_> {
        let call = &self.calls.list[index as usize];
        let met = &self.job.matches[index as usize];
        // A call without partners would wait for ever in a replay.
        if !met.found {
            return Op::Host;
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
                // A message has its bytes on one side only.
                bytes: call.asked.bytes_in.max(call.asked.bytes_out),
                own: Some(self.job.number),
                host: false,
            },
        }
    }
}

fn io<'a>(shapes: &'a str, types: &'a str) -> NodeIo<'a> {
    NodeIo {
        values: "",
        shapes,
        types,
    }
}

fn ns(difference: i64) -> u64 {
    u64::try_from(difference).unwrap_or(0)
}
