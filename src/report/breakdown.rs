//! Divides each NPU's time into categories.
//!
//! Each instant of an NPU's time is attributed to the first category that applies: compute, transfer, waiting, memory,
//! host, idle. The parts therefore sum exactly to the makespan. The delay before a node counts as host time. A
//! communication (collective or message) counts as waiting until all of its partners have begun. From then on, it
//! counts as transfer. Transfer and waiting without simultaneous compute are *exposed communication*. Waiting for
//! another pipeline stage ([`CrossStageCommunicationDetector`]) counts as a *bubble* instead.
//!
//! Each instant with communication, hidden or exposed, is also charged to one communication, by group and kind. If
//! several communications are in progress, the instant is charged to the earliest transfer. If none of them transfers
//! yet, it is charged to the earliest wait. All messages of an NPU share one entry. Communication with unknown partners
//! has an entry of its own, and counts as transfer from its start.
//!
//! Memory time in which only remote memory is accessed is also counted separately, as remote memory. If the NPU's own
//! memory is accessed at the same time, the instant counts as local memory.

use super::keyed::by_part;
use super::open_comms::{ChargedCommunicationProgress, NpuCommunicationsInProgress};
use super::stages::CrossStageCommunicationDetector;
use super::{CollectiveRecord, NpuTimeCategory, Observer};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::{CompiledReplay, FoldedReplay, InstanceId};
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::workload::GraphBoundToRank;
use serde::{Deserialize, Serialize};

const KINDS: usize = CollectiveKind::ALL.len();
/// Offset of the label for messages between ranks. An offset is a label's index relative to the first label of an
/// instance, or of the replay.
const MESSAGES: usize = 0;
/// Offset of the label for communication with unknown partners.
const UNKNOWN: usize = 1;
/// Offset of the first label for collectives; each group has one label per kind.
const COLLECTIVES: usize = 2;

/// State of one NPU, aligned so that it fits in two cache lines.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct NpuTimeTracker {
    /// End of the time that has been attributed to categories.
    until: Time,
    /// Number of nodes in progress, by category. The bubble has no entry, because no node is itself a bubble.
    active: [u32; NpuTimeCategory::COUNT - 1],
    /// Time by category, without idle time. Idle time is the rest of the makespan, so it is computed only at the end.
    parts: [Span; NpuTimeCategory::COUNT - 1],
    /// Number of accesses to remote memory in progress; `active` counts them as memory, too.
    remote_accesses: u32,
    /// Memory time in which only remote memory is accessed.
    remote_memory: Span,
    /// Time with a communication in progress, with or without other nodes in progress.
    communicating: Span,
    /// Communications in progress.
    open: NpuCommunicationsInProgress,
    /// Completion time of the NPU's last node.
    finish: Time,
}

/// Time of one kind of collective in one group, or of messages, summed over NPUs.
///
/// Summed over all entries, waiting and transfer equal the time with a communication in progress. Exposed waiting and
/// exposed transfer equal the communication and bubble parts of the NPUs' time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct WaitingAndTransferTime {
    /// Time before all partners had begun. Partners are the other members of a collective, the sender of a receive, and
    /// the receiver of a send. A send that completes without its receive has no partner.
    #[serde(rename = "waiting_ps")]
    pub waiting: Span,
    /// Exposed part of `waiting`.
    #[serde(rename = "exposed_waiting_ps")]
    pub exposed_waiting: Span,
    /// Time from the start of the last partner to the end of the communication.
    #[serde(rename = "transferring_ps")]
    pub transferring: Span,
    /// Exposed part of `transferring`.
    #[serde(rename = "exposed_transferring_ps")]
    pub exposed_transferring: Span,
    /// Part of `exposed_waiting`: waiting for another pipeline stage. Zero in reports of older versions, which do not
    /// record it.
    #[serde(rename = "bubble_ps", default)]
    pub bubble: Span,
}

impl WaitingAndTransferTime {
    fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.exposed_waiting += other.exposed_waiting;
        self.transferring += other.transferring;
        self.exposed_transferring += other.exposed_transferring;
        self.bubble += other.bubble;
    }

    /// Returns the exposed communication (waiting and transfer) without the bubble.
    pub fn exposed_time_without_bubble(&self) -> Span {
        self.exposed_waiting - self.bubble + self.exposed_transferring
    }
}

/// Time of one NPU, divided by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuTime {
    /// Time by category, in order of precedence; the sum is the makespan.
    #[serde(rename = "time_ps", with = "by_part")]
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "by_part::Parts<Span>"))]
    pub parts: [Span; NpuTimeCategory::COUNT],
    /// Part of the memory time: remote accesses that no access to the NPU's own memory overlaps. Zero in reports of
    /// older versions, which do not record it.
    #[serde(rename = "remote_memory_ps", default)]
    pub remote_memory: Span,
    /// Time with a communication in progress, with or without overlapping compute.
    #[serde(rename = "communicating_ps")]
    pub communicating: Span,
    /// Completion time of the NPU's last node, counted from the start of the replay.
    #[serde(rename = "finish_ps")]
    pub finish: Span,
}

/// Attributes the time of every NPU to categories, and the time of every communication to a group and kind.
#[derive(Debug)]
pub struct BreakdownObserver<'a> {
    prepared: &'a CompiledReplay<'a>,
    npus: Vec<NpuTimeTracker>,
    /// Time charged to communications, by label.
    charged: Vec<WaitingAndTransferTime>,
    /// For each instance, the index of its first label, or `None` if instances share labels. There is one label for
    /// messages, one for communication with unknown partners, and one for each group and kind of collective. An
    /// instance's own labels number groups by the instance's slots; shared labels use the replay's group ids.
    own_labels: Option<Vec<u32>>,
    stages: CrossStageCommunicationDetector<'a>,
}

impl<'a> BreakdownObserver<'a> {
    /// Creates an observer of all instances of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let npus = workload.instances().iter().map(|instance| NpuTimeTracker {
            open: NpuCommunicationsInProgress::new(workload.graph_of(instance)),
            ..NpuTimeTracker::default()
        });
        Self {
            npus: npus.collect(),
            charged: vec![
                WaitingAndTransferTime::default();
                COLLECTIVES + prepared.group_views().count() * KINDS
            ],
            own_labels: None,
            stages: CrossStageCommunicationDetector::new(prepared),
            prepared,
        }
    }

    /// Creates an observer of all ranks in the simulated part of a folded job. In such a job, one rank represents many.
    /// Each instance has its own labels, because instances represent different numbers of ranks.
    pub(super) fn for_part_of_folded_job(prepared: &'a CompiledReplay<'a>) -> Self {
        let instances = prepared.workload_with_added_launches().instances().iter();
        let labels = |of: &GraphBoundToRank| COLLECTIVES + of.groups.len() * KINDS;
        let mut next = 0;
        let firsts = instances.map(|instance| {
            next += labels(instance);
            (next - labels(instance)) as u32
        });
        let firsts = firsts.collect();
        Self {
            charged: vec![WaitingAndTransferTime::default(); next],
            own_labels: Some(firsts),
            ..Self::new(prepared)
        }
    }

    /// Returns the time of each instance's NPU up to `makespan`, and the time charged to communications.
    pub fn into_npu_times_and_totals(
        self,
        makespan: Span,
    ) -> (Vec<NpuTime>, MessageAndCollectiveTimeTotals) {
        let (times, charged) = self.charge_time_until_end(makespan);
        (
            times,
            MessageAndCollectiveTimeTotals::split_times_indexed_by_label(charged),
        )
    }

    /// Returns the results of [`Self::into_npu_times_and_totals`] for the whole job that the simulated part represents.
    pub(super) fn into_npu_times_and_totals_of_whole_job(
        mut self,
        makespan: Span,
        whole: &CompiledReplay<'_>,
        folded: &FoldedReplay<'_>,
    ) -> (Vec<NpuTime>, MessageAndCollectiveTimeTotals) {
        let firsts = self.own_labels.take().unwrap_or_default();
        let (times, charged) = self.charge_time_until_end(makespan);
        let labels = COLLECTIVES + whole.group_views().count() * KINDS;
        let mut sums = vec![WaitingAndTransferTime::default(); labels];
        for (instance, &by) in (0..).map(InstanceId).zip(folded.instances) {
            let own = &charged[firsts[by.index()] as usize..];
            let (of_no_group, own) = own.split_at(COLLECTIVES);
            add_charged_times_by_label(&mut sums, of_no_group);
            for (group, kinds) in whole
                .groups_bound_to_instance_communicators(instance)
                .zip(own.chunks(KINDS))
            {
                add_charged_times_by_label(&mut sums[COLLECTIVES + group.index() * KINDS..], kinds);
            }
        }
        let times = folded.instances.iter().map(|by| times[by.index()]);
        (
            times.collect(),
            MessageAndCollectiveTimeTotals::split_times_indexed_by_label(sums),
        )
    }

    /// Attributes all time up to `makespan`. Returns the time of each NPU, and the time charged to each label.
    fn charge_time_until_end(
        mut self,
        makespan: Span,
    ) -> (Vec<NpuTime>, Vec<WaitingAndTransferTime>) {
        let end = Time::ZERO + makespan;
        for npu in &mut self.npus {
            npu.charge_until(end, &mut self.charged);
        }
        let times = self.npus.iter().map(|npu| {
            let [compute, communication, bubble, memory, host] = npu.parts;
            let idle = makespan - npu.parts.iter().copied().sum();
            NpuTime {
                parts: [compute, communication, bubble, memory, host, idle],
                remote_memory: npu.remote_memory,
                communicating: npu.communicating,
                finish: npu.finish.since(Time::ZERO),
            }
        });
        (times.collect(), self.charged)
    }
}

/// Time charged to communications, summed over NPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageAndCollectiveTimeTotals {
    /// Time charged to messages between ranks.
    pub messages: WaitingAndTransferTime,
    /// Time charged to communication with unknown partners.
    pub unknown: WaitingAndTransferTime,
    /// Time of collectives, by group and by kind in the order of [`CollectiveKind::ALL`].
    pub collectives: Vec<WaitingAndTransferTime>,
}

impl MessageAndCollectiveTimeTotals {
    /// Splits the times, indexed by shared labels, into messages, unknown communication and collectives.
    fn split_times_indexed_by_label(mut charged: Vec<WaitingAndTransferTime>) -> Self {
        let (messages, unknown) = (charged[MESSAGES], charged[UNKNOWN]);
        charged.drain(..COLLECTIVES);
        Self {
            messages,
            unknown,
            collectives: charged,
        }
    }
}

/// Adds each of `times` to the sum at the same index.
fn add_charged_times_by_label(
    sums: &mut [WaitingAndTransferTime],
    times: &[WaitingAndTransferTime],
) {
    sums.iter_mut()
        .zip(times)
        .for_each(|(sum, time)| sum.add(time));
}

impl NpuTimeTracker {
    /// Number of accesses to local and remote memory in progress.
    fn memory_accesses_in_progress(&self) -> u32 {
        self.active[NpuTimeCategory::Memory as usize]
    }

    #[inline]
    fn charge_until(&mut self, now: Time, charged: &mut [WaitingAndTransferTime]) {
        let elapsed = now.since(self.until);
        if elapsed == Span::ZERO {
            return;
        }
        self.until = now;
        let mut part = self.active.iter().position(|&count| count > 0);
        let exposed = part == Some(NpuTimeCategory::Communication as usize);
        if let Some((label, progress)) = self.open.charged_comm() {
            self.communicating += elapsed;
            let charged = &mut charged[label];
            let (all, not_hidden) = match progress {
                ChargedCommunicationProgress::Transfers => {
                    (&mut charged.transferring, &mut charged.exposed_transferring)
                }
                _ => (&mut charged.waiting, &mut charged.exposed_waiting),
            };
            *all += elapsed;
            if exposed {
                *not_hidden += elapsed;
            }
            if exposed && progress == ChargedCommunicationProgress::WaitsForStage {
                charged.bubble += elapsed;
                part = Some(NpuTimeCategory::Bubble as usize);
            }
        }
        if let Some(part) = part {
            self.parts[part] += elapsed;
            if part == NpuTimeCategory::Memory as usize
                && self.remote_accesses == self.memory_accesses_in_progress()
            {
                self.remote_memory += elapsed;
            }
        }
    }
}

impl BreakdownObserver<'_> {
    #[inline]
    fn graph_of_instance(&self, instance: InstanceId) -> &Graph {
        let workload = self.prepared.workload_with_added_launches();
        workload.graph_of(&workload.instances()[instance.index()])
    }

    /// Starts a communication, which waits for its partners at first. Time up to now must already be charged.
    #[inline]
    fn start_communication(&mut self, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let graph = self.graph_of_instance(instance);
        let first = self.own_labels.as_ref();
        let first = first.map_or(0, |firsts| firsts[instance.index()] as usize);
        let label = match kind {
            NodeKind::Collective => {
                let call = graph.collective_of(node);
                let group = match self.own_labels {
                    Some(_) => call.group as usize,
                    None => self
                        .prepared
                        .group_of_collective_node(instance, node)
                        .index(),
                };
                COLLECTIVES + group * KINDS + call.kind as usize
            }
            NodeKind::Communication => UNKNOWN,
            _ => MESSAGES,
        };
        let label = first + label;
        let for_stage = self
            .stages
            .has_partners_in_other_stage(instance, node, kind);
        let place = graph.communication_index(node);
        let npu = &mut self.npus[instance.index()];
        npu.active[NpuTimeCategory::Communication as usize] += 1;
        npu.open.start_comm(place, label as u32, for_stage);
        if kind == NodeKind::Communication {
            // The partners are unknown, so all the time counts as transfer.
            npu.open.begin_transfer(place);
        }
    }
}

impl Observer for BreakdownObserver<'_> {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let Some(part) = NpuTimeCategory::from_node_kind(kind) else {
            return;
        };
        let npu = &mut self.npus[instance.index()];
        npu.charge_until(now, &mut self.charged);
        if part == NpuTimeCategory::Communication {
            let place = self.graph_of_instance(instance).communication_index(node);
            if !self.npus[instance.index()].open.issue_if_waiting(place) {
                self.start_communication(instance, node, kind);
            }
            return;
        }
        npu.active[part as usize] += 1;
        npu.remote_accesses += u32::from(kind == NodeKind::RemoteMemory);
    }

    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let npu = &mut self.npus[instance.index()];
        npu.finish = now;
        let Some(part) = NpuTimeCategory::from_node_kind(kind) else {
            return;
        };
        npu.charge_until(now, &mut self.charged);
        npu.active[part as usize] -= 1;
        npu.remote_accesses -= u32::from(kind == NodeKind::RemoteMemory);
        if part == NpuTimeCategory::Communication {
            let place = self.graph_of_instance(instance).communication_index(node);
            self.npus[instance.index()].open.end_comm(place);
        }
    }

    #[inline]
    fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let place = self.graph_of_instance(instance).communication_index(node);
        let npu = &mut self.npus[instance.index()];
        npu.charge_until(now, &mut self.charged);
        npu.open.begin_transfer(place);
    }

    #[inline]
    fn on_member_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let place = self.graph_of_instance(instance).communication_index(node);
        let npu = &mut self.npus[instance.index()];
        // The same node of an earlier launch may still be in progress; its communication counts first.
        if npu.open.is_in_progress(place) {
            return;
        }
        npu.charge_until(now, &mut self.charged);
        self.start_communication(instance, node, NodeKind::Collective);
        self.npus[instance.index()].open.mark_unissued(place);
    }

    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}

    #[inline]
    fn on_delay_began(&mut self, now: Time, instance: InstanceId, _: NodeIndex) {
        let npu = &mut self.npus[instance.index()];
        npu.charge_until(now, &mut self.charged);
        npu.active[NpuTimeCategory::Host as usize] += 1;
    }

    #[inline]
    fn on_ready(&mut self, now: Time, instance: InstanceId, _: NodeIndex) {
        let npu = &mut self.npus[instance.index()];
        npu.charge_until(now, &mut self.charged);
        npu.active[NpuTimeCategory::Host as usize] -= 1;
    }
}
