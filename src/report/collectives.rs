//! Cost of each group's collectives: transfer time and waiting time.
//!
//! A collective's transfer lasts from the arrival of the last member to the end of the collective. Time that earlier
//! members spend before this arrival is waiting, not network time. For collectives with recorded times, the transfer is
//! the longest recorded duration among the members.

pub(super) mod table;

use super::breakdown::WaitingAndTransferTime;
use super::{CollectiveRecord, Observer};
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::units::{Span, Time};
use chakram_engine::{
    CompiledReplay, FoldedReplay, InstanceId, PlacedWorkloadGroup, ReplayGroupId,
};
use chakram_hardware::network::BytesOverOneLink;
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::NodeKind;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Totals over all collectives of one kind in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct GroupCollectiveTotals {
    /// Number of collectives counted here.
    pub calls: u64,
    /// Number of calls that were simulated message by message; a closed form timed the others.
    #[serde(rename = "calls_simulated")]
    pub stepwise: u64,
    /// Buffer sizes of these calls.
    #[serde(rename = "buffer_bytes")]
    pub buffers: BufferBytesSumAndExtremes,
    /// Time from the last arrival to the end, summed over calls. If communication keeps recorded or captured times,
    /// this is instead the longest recorded duration among the members, summed over calls.
    #[serde(rename = "transfer_ps")]
    pub transfer: Span,
    /// Waiting time for other members, summed over calls and over all members that have a trace.
    #[serde(rename = "waited_ps_sum_over_members")]
    pub waited: Span,
}

/// Buffer bytes of all collectives of one kind in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct BufferBytesSumAndExtremes {
    /// Sum of all buffers' bytes.
    pub sum: u64,
    /// Size of the smallest buffer.
    pub smallest: u64,
    /// Size of the largest buffer.
    pub largest: u64,
}

impl GroupCollectiveTotals {
    /// Returns the algorithm bandwidth: buffer bytes per second of transfer time. `None` if the bytes or the transfer
    /// time are zero.
    pub fn algorithm_bandwidth(&self) -> Option<f64> {
        let seconds = self.transfer.as_seconds();
        let bytes = self.buffers.sum;
        (bytes > 0 && seconds > 0.0).then(|| bytes as f64 / seconds)
    }

    /// Returns the bus bandwidth, in bytes per second, of collectives of `kind` among `members` NPUs.
    pub fn bus_bandwidth(&self, kind: CollectiveKind, members: u32) -> Option<f64> {
        Some(self.algorithm_bandwidth()? * bus_factor(kind, members))
    }
}

/// Counts collectives by group and kind.
#[derive(Debug)]
pub struct CollectiveObserver {
    by_group: Vec<[GroupCollectiveTotals; CollectiveKind::ALL.len()]>,
    /// Time that other members waited for each rank, by group and kind.
    late: BTreeMap<(ReplayGroupId, CollectiveKind), BTreeMap<Rank, Span>>,
    /// Number of messages of simulated collectives, by group.
    messages: Vec<u64>,
    /// Traffic of each link; `None` if the replay did not measure links.
    pub loads: Option<Vec<BytesOverOneLink>>,
}

impl CollectiveObserver {
    /// Creates an observer for `groups` groups.
    pub fn new(groups: usize) -> Self {
        Self {
            by_group: vec![Default::default(); groups],
            late: BTreeMap::new(),
            messages: vec![0; groups],
            loads: None,
        }
    }

    /// Extends the results from the simulated part of a folded job to the whole job. Each group of the whole job gets
    /// the tallies of its representative group. A wait for a member of the representative group is attributed to the
    /// member with the same index in the represented group.
    pub(super) fn extend_tallies_from_folded_to_whole_job(
        self,
        whole: &CompiledReplay<'_>,
        folded: &FoldedReplay<'_>,
    ) -> Self {
        let of_part: Vec<PlacedWorkloadGroup<'_>> = folded.part.group_views().collect();
        let mut late = BTreeMap::new();
        let by_group = (0..).map(ReplayGroupId).zip(whole.group_views());
        let by_group = by_group.map(|(group, view)| {
            let by = folded.groups[group.index()];
            for (kind, ..) in CollectiveKind::ALL {
                let Some(ranks) = self.late.get(&(by, kind)) else {
                    continue;
                };
                let positions = of_part[by.index()].members.iter().zip(view.members);
                let ranks = positions.filter_map(|(own, rank)| Some((*rank, *ranks.get(own)?)));
                late.insert((group, kind), ranks.collect());
            }
            self.by_group[by.index()]
        });
        let messages = folded.groups.iter().map(|by| self.messages[by.index()]);
        Self {
            by_group: by_group.collect(),
            late,
            messages: messages.collect(),
            loads: self.loads,
        }
    }

    /// Returns the number of calls over all groups and kinds, and how many of these calls were
    /// simulated.
    pub(super) fn count_all_and_simulated_calls(&self) -> (u64, u64) {
        let tallies = self.nonzero_tallies();
        tallies.fold((0, 0), |(calls, simulated), (.., tally)| {
            (calls + tally.calls, simulated + tally.stepwise)
        })
    }

    /// Returns the number of messages of simulated collectives.
    pub(super) fn sum_simulated_messages(&self) -> u64 {
        self.messages.iter().sum()
    }

    /// Returns the rank that the other members waited for longest in collectives of `kind` in `group`. Also returns
    /// this waiting time, summed over calls and members. With ties, returns the lowest such rank.
    pub fn most_awaited_rank(
        &self,
        group: ReplayGroupId,
        kind: CollectiveKind,
    ) -> Option<(Rank, Span)> {
        let late = self.late.get(&(group, kind))?.iter();
        late.max_by_key(|(rank, waited)| (**waited, Reverse(**rank)))
            .map(|(rank, waited)| (*rank, *waited))
    }

    /// Returns the tallies, sorted by group and kind. Tallies without calls are left out.
    pub fn nonzero_tallies(
        &self,
    ) -> impl Iterator<Item = (ReplayGroupId, CollectiveKind, GroupCollectiveTotals)> {
        self.by_group.iter().enumerate().flat_map(|(group, kinds)| {
            let named = CollectiveKind::ALL.iter().zip(kinds);
            named
                .filter(|(_, tally)| tally.calls > 0)
                .map(move |((kind, ..), tally)| (ReplayGroupId(group as u32), *kind, *tally))
        })
    }
}

impl Observer for CollectiveObserver {
    fn on_link_loads_measured(&mut self, loads: &[BytesOverOneLink]) {
        self.loads = Some(loads.to_vec());
    }

    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}

    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}

    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        let tally = &mut self.by_group[record.group.index()][record.kind as usize];
        let buffers = &mut tally.buffers;
        buffers.smallest = match tally.calls {
            0 => record.buffer,
            _ => buffers.smallest.min(record.buffer),
        };
        buffers.largest = buffers.largest.max(record.buffer);
        buffers.sum = buffers.sum.saturating_add(record.buffer);
        tally.calls += 1;
        self.messages[record.group.index()] += record.messages;
        tally.stepwise += u64::from(record.stepwise);
        tally.transfer += record.transfer;
        tally.waited += record.waited;
        if let Some((rank, waited)) = record.waited_for {
            let late = self.late.entry((record.group, record.kind)).or_default();
            *late.entry(rank).or_default() += waited;
        }
    }
}

/// Returns the ratio of bus bandwidth to algorithm bandwidth (buffer ÷ time). Each byte of the buffer must cross the
/// busiest port among `n` members at least this often (NCCL's performance notes).
pub(crate) fn bus_factor(kind: CollectiveKind, n: u32) -> f64 {
    let n = f64::from(n);
    match kind {
        CollectiveKind::AllReduce => 2.0 * (n - 1.0) / n,
        CollectiveKind::AllGather
        | CollectiveKind::ReduceScatter
        | CollectiveKind::AllToAll
        | CollectiveKind::Gather
        | CollectiveKind::Scatter => (n - 1.0) / n,
        CollectiveKind::Broadcast | CollectiveKind::Reduce => 1.0,
        CollectiveKind::Barrier => 0.0,
    }
}

/// A row of a report: the collectives of one kind in one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CollectiveRow {
    /// Name of the group, as shown to users.
    pub group: String,
    /// Index of the group in the replay. It distinguishes groups with the same name.
    pub group_index: u32,
    /// Number of members in the group, with or without a trace.
    pub members: u32,
    /// Number of members that have a trace.
    pub present: u32,
    /// Kind of the collectives.
    pub kind: CollectiveKind,
    /// Algorithms by dimension, innermost first, as in `ring 8 (nvlink), ring 4 (nodes)`; `as recorded` or `as
    /// captured` if the times come from the traces.
    pub algorithm: String,
    /// True if the times were measured on such a machine and no other communication slows down the collectives.
    #[serde(default)]
    pub measured: bool,
    /// Links on which the times were measured, if they differ from the machine's. The times in this row are then
    /// derived from the measured ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derived_from: Option<MeasuredAndMachineLinks>,
    /// Calls, bytes and times of the collectives.
    #[serde(flatten)]
    pub tally: GroupCollectiveTotals,
    /// The rank that the other members waited for longest in total.
    #[serde(rename = "straggler")]
    pub latest: Option<LongestAwaitedRank>,
    /// Bus bandwidth in bytes per second; `None` if the transfer time is zero.
    #[serde(rename = "bus_bytes_per_s")]
    pub bus: Option<f64>,
    /// NPU time charged to the collectives.
    #[serde(default)]
    pub charged: WaitingAndTransferTime,
    /// Role of the group in the job (such as data parallelism), if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// Links on which collectives were measured, and the machine's links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MeasuredAndMachineLinks {
    /// Name of the dimension with these links.
    pub dimension: String,
    /// Bandwidth of the measured links, in bytes per second.
    #[serde(rename = "bandwidth_bytes_per_s")]
    pub bandwidth: f64,
    /// Latency of the measured links.
    #[serde(rename = "latency_ps")]
    pub latency: Span,
    /// Bandwidth of the machine's links, in bytes per second.
    #[serde(rename = "machine_bandwidth_bytes_per_s")]
    pub machine_bandwidth: f64,
    /// Latency of the machine's links.
    #[serde(rename = "machine_latency_ps")]
    pub machine_latency: Span,
}

impl MeasuredAndMachineLinks {
    /// Returns how similar the measured links are to the machine's, from 0 to 1. The similarity is the product of two
    /// ratios: smaller to larger bandwidth, and smaller to larger latency.
    pub(super) fn link_similarity(&self) -> f64 {
        let near = |a: f64, b: f64| if a == b { 1.0 } else { a.min(b) / a.max(b) };
        near(self.bandwidth, self.machine_bandwidth)
            * near(self.latency.as_seconds(), self.machine_latency.as_seconds())
    }

    /// Formats the link settings in which the machine differs, each with its measured and its predicted value.
    pub(super) fn describe_differences(&self) -> String {
        let rate = |rate: f64| format!("{} GB/s", rate / 1e9);
        let mut changes = Vec::new();
        if self.bandwidth != self.machine_bandwidth {
            let [from, to] = [self.bandwidth, self.machine_bandwidth].map(rate);
            changes.push(format!("a bandwidth of {from}, and scaled to {to}"));
        }
        if self.latency != self.machine_latency {
            let (from, to) = (self.latency, self.machine_latency);
            changes.push(format!("a latency of {from}, and scaled to {to}"));
        }
        format!(
            "times of collectives along `{}` are derived: they were measured at {}",
            self.dimension,
            changes.join("; at ")
        )
    }
}

/// The rank that the rest of its group waited for longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct LongestAwaitedRank {
    /// The rank.
    pub rank: Rank,
    /// Total time that other members waited for this rank.
    #[serde(rename = "waited_ps_sum_over_members")]
    pub waited: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_what_the_busiest_port_carried() {
        // 8 members all-reduce 1 GB in 10 ms: the algorithm bandwidth is 100 GB/s, and the bus bandwidth 100 GB/s * 2
        // * 7 / 8 = 175 GB/s.
        let mut collectives = CollectiveObserver::new(1);
        collectives.on_collective_ended(&CollectiveRecord {
            group: ReplayGroupId(0),
            kind: CollectiveKind::AllReduce,
            buffer: 1_000_000_000,
            last_start: Time(5),
            end: Time(5) + Span::from_us(10_000),
            transfer: Span::from_us(10_000),
            waited_for: Some((Rank(4), Span(3))),
            waited: Span(3),
            stepwise: true,
            materialized: false,
            messages: 0,
        });
        assert_eq!(
            collectives.most_awaited_rank(ReplayGroupId(0), CollectiveKind::AllReduce),
            Some((Rank(4), Span(3)))
        );
        let (_, kind, tally) = collectives.nonzero_tallies().next().unwrap();
        assert_eq!(tally.bus_bandwidth(kind, 8), Some(175e9));
        assert_eq!((tally.calls, tally.stepwise, tally.waited), (1, 1, Span(3)));
        assert_eq!(collectives.nonzero_tallies().count(), 1);
    }
}
