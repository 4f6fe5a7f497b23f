//! The report: everything that the observers found, ready to be rendered.

use super::Observer;
use super::breakdown::{Breakdown, Charged, NpuTime, Part};
use super::collectives::{Collectives, Tally};
use super::memory::{Memory, MemoryRow};
use super::operators::{Operator, Operators};
use crate::collective::Manner;
use crate::engine::{Basis, Comm, GroupView, Outcome, Prepared, ReplayError};
use crate::graph::{Kind, Repairs};
use crate::ids::{Npu, Rank};
use crate::network::{ContentionFree, Network};
use crate::trace::CollectiveKind;
use crate::units::{Bytes, Span};
use crate::workload::shortened;

/// Where the time of one NPU went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpuRow {
    /// The rank on it.
    pub rank: Rank,
    /// The NPU.
    pub npu: Npu,
    /// Its class.
    pub class: String,
    /// Where its time went, and when it finished.
    pub time: NpuTime,
    /// When its last event ended in the capture, from the start of the job, if the trace says.
    pub captured: Option<Span>,
}

/// What the collectives of one kind in one group cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveRow {
    /// The group, as people call it.
    pub group: String,
    /// What the group is for, if that is known.
    pub role: Option<String>,
    /// Index of the group in the replay, which tells groups of one name apart.
    pub group_index: u32,
    /// How many members it has.
    pub members: u32,
    /// How many of them have a trace.
    pub present: u32,
    /// Which collective.
    pub kind: CollectiveKind,
    /// Calls, bytes and times.
    pub tally: Tally,
    /// The time of NPUs that they were charged with.
    pub charged: Charged,
    /// The rank that the others waited for longest, and how long, over all calls and members.
    pub latest: Option<(Rank, Span)>,
    /// Algorithms by dimension, innermost first: `ring 8 (nvlink), ring 4 (nodes)`; or `as recorded`, `as
    /// captured`.
    pub algorithm: String,
}

/// Exposed communication of a group, summed over its NPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposedRow {
    /// The group, or messages between ranks.
    pub what: String,
    /// What the group is for, if that is known.
    pub role: Option<String>,
    /// How many members it has; none of messages.
    pub members: u32,
    /// The sum over NPUs.
    pub exposed: Span,
}

/// What sends and receives are called together.
pub(super) const MESSAGES: &str = "messages between ranks";

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// The machine's name and its NPUs.
    pub machine: String,
    /// See `machine`.
    pub npus: u32,
    /// Ranks of the job.
    pub ranks: u32,
    /// Ranks without a trace.
    pub absent: Vec<Rank>,
    /// How durations of collectives and messages were found.
    pub comm: Comm,
    /// The model of the network that carried them, if one did: [`Network::NAME`].
    pub network: Option<String>,
    /// What durations rest on.
    pub basis: Basis,
    /// What was repaired in the traces, over all ranks.
    pub repairs: Repairs,
    /// One row for each rank with a trace, in order.
    pub rows: Vec<NpuRow>,
    /// Collectives by group and kind.
    pub collectives: Vec<CollectiveRow>,
    /// The time of NPUs that messages between ranks were charged with.
    pub messages: Charged,
    /// Exposed communication by group, largest first, without those that have none.
    pub exposed: Vec<ExposedRow>,
    /// Operators, longest first.
    pub operators: Vec<Operator>,
    /// The memory of NPUs, one row for each rank whose trace says what it allocates or frees, in order.
    pub memory: Vec<MemoryRow>,
}

/// Replays `prepared`, watched by `extra` too, and reports.
pub fn replay<O: Observer>(
    prepared: &Prepared<'_>,
    mut extra: O,
) -> Result<(Report, O), ReplayError> {
    // Those of the report are part of the loop; it is compiled for one kind of others, which are called.
    let others: Option<&mut dyn Observer> = match extra.is_nobody() {
        true => None,
        false => Some(&mut extra),
    };
    let mut observers = observers(prepared, others);
    let outcome = prepared.run_inline(&mut observers)?;
    let network = prepared.network().to_string();
    let (report, _) = finish(prepared, outcome, observers, network);
    Ok((report, extra))
}

/// As [`replay`], over another network and with collectives in another manner.
pub fn replay_in<O: Observer, N: Network, M: Manner>(
    prepared: &Prepared<'_>,
    extra: O,
    network: N,
    manner: &mut M,
) -> Result<(Report, O), ReplayError> {
    let mut observers = observers(prepared, extra);
    let watched: &mut dyn Observer = &mut observers;
    let outcome = prepared.run_in(watched, network, manner)?;
    Ok(finish(prepared, outcome, observers, N::NAME.to_owned()))
}

/// Those that a report needs, and another one.
type Observers<'a, O> = (
    Breakdown<'a>,
    (Collectives, (Operators<'a>, (Memory<'a>, O))),
);

fn observers<'a, O: Observer>(prepared: &'a Prepared<'a>, extra: O) -> Observers<'a, O> {
    let collectives = Collectives::new(prepared.groups().count());
    let operators = Operators::new(prepared);
    let others = (operators, (Memory::new(prepared), extra));
    (Breakdown::new(prepared), (collectives, others))
}

/// The report of a replay that has ended.
fn finish<O>(
    prepared: &Prepared<'_>,
    outcome: Outcome,
    observers: Observers<'_, O>,
    network: String,
) -> (Report, O) {
    let groups: Vec<GroupView<'_>> = prepared.groups().collect();
    let (breakdown, (collectives, (operators, (memory, extra)))) = observers;
    let (times, mut charged) = breakdown.finish(outcome.makespan);
    let messages = charged.pop().unwrap_or_default();
    let (workload, machine) = (prepared.workload(), prepared.machine());
    let mut repairs = Repairs::default();
    for instance in workload.instances() {
        let of = workload.graph(instance).repairs();
        repairs.dangling_control += of.dangling_control;
        repairs.self_control += of.self_control;
        repairs.cyclic_control += of.cyclic_control;
        repairs.duplicates += of.duplicates;
        repairs.host_communication += of.host_communication;
    }
    let mut present = workload.instances().iter().map(|i| i.rank).peekable();
    let absent = (0..workload.ranks())
        .map(Rank)
        .filter(|rank| present.next_if_eq(rank).is_none())
        .collect();
    let rows = workload
        .instances()
        .iter()
        .zip(times)
        .map(|(instance, time)| {
            let npu = prepared.npu(instance.rank);
            NpuRow {
                rank: instance.rank,
                npu,
                class: machine.classes()[machine.class(npu)].name.clone(),
                time,
                captured: workload.graph(instance).captured(),
            }
        });
    let rows = rows.collect();
    let role = |group: &GroupView<'_>| workload.groups()[group.id.index()].role.clone();
    let by_group = groups.iter().zip(charged.chunks(CollectiveKind::ALL.len()));
    let by_group = by_group.map(|(group, kinds)| ExposedRow {
        what: group_label(prepared, group),
        role: role(group),
        members: group.members.len() as u32,
        exposed: kinds.iter().map(Charged::exposed).sum(),
    });
    let between_ranks = ExposedRow {
        what: MESSAGES.to_owned(),
        role: None,
        members: 0,
        exposed: messages.exposed(),
    };
    let mut exposed: Vec<_> = by_group
        .chain([between_ranks])
        .filter(|row| row.exposed > Span::ZERO)
        .collect();
    exposed.sort_by_key(|row| std::cmp::Reverse(row.exposed));
    let latest = |index, kind| collectives.latest(index, kind);
    let collectives = collectives.tallies().map(|(index, kind, tally)| {
        let group = &groups[index as usize];
        CollectiveRow {
            group: group_label(prepared, group),
            role: role(group),
            group_index: index,
            members: group.members.len() as u32,
            present: group.present,
            kind,
            tally,
            charged: charged[index as usize * CollectiveKind::ALL.len() + kind as usize],
            latest: latest(index, kind),
            algorithm: algorithms_label(prepared, kind, group, &tally),
        }
    });
    let report = Report {
        machine: machine.name().to_owned(),
        npus: machine.topology().npus(),
        ranks: workload.ranks(),
        absent,
        comm: prepared.comm(),
        network: (prepared.comm() == Comm::Model).then_some(network),
        basis: prepared.basis(),
        repairs,
        rows,
        collectives: collectives.collect(),
        messages,
        exposed,
        operators: operators.finish(),
        memory: memory.finish(),
        outcome,
    };
    (report, extra)
}

/// `all 8`, `tp (0, 1, 2, 3)`, `0, 1 along nvlink`.
pub(super) fn group_label(prepared: &Prepared<'_>, group: &GroupView<'_>) -> String {
    let name = &prepared.workload().groups()[group.id.index()].name;
    let members = || shortened(group.members.iter().map(|m| m.0));
    match (name, group.dimensions) {
        (None, None) => format!("all {} ranks", group.members.len()),
        (Some(name), None) => format!("{name} ({})", members()),
        (None, Some(_)) => format!("ranks {}", members()),
        (Some(name), Some(_)) => format!("{name}: {}", members()),
    }
}

/// `128 groups of 8`.
pub(super) fn groups_of(groups: usize, members: u32) -> String {
    let ending = if groups == 1 { "" } else { "s" };
    let groups = thousands(groups as u64);
    format!("{groups} group{ending} of {members}")
}

/// The algorithm in each dimension that the group spans, for a buffer of `bytes`, or on what the durations
/// of its collectives rest instead.
pub(super) fn algorithm_label(
    prepared: &Prepared<'_>,
    kind: CollectiveKind,
    group: &GroupView<'_>,
    bytes: u64,
) -> String {
    match prepared.comm() {
        Comm::Model => prepared.algorithms(kind, group, bytes),
        other => format!("as {other}"),
    }
}

/// The same for collectives of several sizes: what the smallest and the largest use, if that differs. What
/// an algorithm takes is a constant and a part in proportion to the buffer, so one that takes least at both
/// ends takes least between them.
fn algorithms_label(
    prepared: &Prepared<'_>,
    kind: CollectiveKind,
    group: &GroupView<'_>,
    tally: &Tally,
) -> String {
    let label = |bytes| algorithm_label(prepared, kind, group, bytes);
    let (small, large) = (label(tally.smallest), label(tally.largest));
    match small == large {
        true => small,
        false => format!(
            "{small} at {}; {large} at {}",
            Bytes(tally.smallest),
            Bytes(tally.largest)
        ),
    }
}

impl Report {
    /// The model of the network that carried communication, where it is one under which operations meet.
    pub fn shared_network(&self) -> Option<&str> {
        let name = self.network.as_deref();
        name.filter(|&name| name != ContentionFree::NAME)
    }

    /// The mean of a time over NPUs, to the nearest picosecond.
    pub fn mean(&self, time: impl Fn(&NpuTime) -> Span) -> Span {
        let sum: u128 = self
            .rows
            .iter()
            .map(|row| u128::from(time(&row.time).0))
            .sum();
        rounded(sum, self.rows.len())
    }

    /// The rows with the least and the most time in `part`.
    pub fn extremes(&self, part: Part) -> Option<(&NpuRow, &NpuRow)> {
        let time = |row: &NpuRow| row.time.parts[part as usize];
        let least = self.rows.iter().min_by_key(|row| (time(row), row.rank))?;
        let most = self
            .rows
            .iter()
            .max_by_key(|row| (time(row), std::cmp::Reverse(row.rank)))?;
        Some((least, most))
    }

    /// When the capture ended, and the rank that ended last, of several the lowest; `None` unless every
    /// trace says when its own did.
    pub fn captured(&self) -> Option<(Span, Rank)> {
        let ends = self.rows.iter().map(|row| Some((row.captured?, row.rank)));
        let ends: Vec<_> = ends.collect::<Option<_>>()?;
        let slowest = |(end, rank): &(Span, Rank)| (*end, std::cmp::Reverse(*rank));
        ends.into_iter().max_by_key(slowest)
    }

    /// By how much the replay took longer than the capture, in percent of that.
    pub fn difference(&self) -> Option<f64> {
        percent_more(self.outcome.makespan, self.captured()?.0)
    }

    /// The mean of exposed communication while another member of a collective had not arrived.
    pub fn exposed_waiting(&self) -> Span {
        let rows = self.collectives.iter();
        let sum = rows.map(|row| row.charged.exposed_waiting).sum();
        mean(sum, self.rows.len())
    }

    /// The mean of the rest of exposed communication: transfers, and all of messages.
    pub fn exposed_transferring(&self) -> Span {
        let all = self.mean(|time| time.parts[Part::Communication as usize]);
        Span(all.0.saturating_sub(self.exposed_waiting().0))
    }

    /// What the user should know before trusting the numbers.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::from_iter(self.does_not_fit());
        let mut say = |count: u64, text: &str| {
            if count > 0 {
                warnings.push(text.replace("{}", &thousands(count)));
            }
        };
        let repairs = &self.repairs;
        say(
            self.absent.len() as u64,
            "{} ranks have no trace: each arrives at collectives with the last rank that has one, \
             and sends when its receiver is ready",
        );
        say(
            self.basis.unknown,
            "{} kernels take no time: the trace has neither a duration nor what the compute model \
             needs",
        );
        say(
            self.basis.fell_back,
            "{} kernels keep their recorded duration: the roofline lacks their FLOPs and bytes, or a \
             peak for their number format",
        );
        say(
            self.basis.unrecorded,
            "{} communication nodes take no time: the trace has no duration for them",
        );
        say(
            self.basis.sharing,
            "{} lanes of the traces share one with another, because the machine has fewer (`lanes`, \
             `host_lanes`): nodes wait there that did not in the trace",
        );
        say(
            repairs.cyclic_control,
            "{} control dependencies are left out: together with the data dependencies they close a \
             cycle (converters before 2024 left stale ids in them)",
        );
        say(
            repairs.dangling_control,
            "{} control dependencies on nodes that do not exist were dropped",
        );
        say(
            repairs.self_control,
            "{} control dependencies of nodes on themselves were dropped",
        );
        let sums = self
            .collectives
            .iter()
            .flat_map(|row| [row.tally.waited, row.tally.transfer]);
        let sums = sums.chain(self.exposed.iter().map(|row| row.exposed));
        let sums = sums.chain(self.operators.iter().map(|operator| operator.total));
        say(
            sums.filter(|&sum| sum == Span::MAX).count() as u64,
            "{} sums over calls and ranks are longer than 213 days, which is all that picoseconds in \
             64 bits hold; they, their means and shares are too small",
        );
        say(
            repairs.duplicates,
            "{} dependencies were named twice and merged",
        );
        say(
            repairs.host_communication,
            "{} communication nodes are marked as host work; they carry sizes, so they are replayed \
             as communication",
        );
        warnings.extend(self.unknown_memory());
        warnings
    }
}

impl NpuRow {
    /// By how much the rank finished later than in the capture, in percent of that.
    pub fn difference(&self) -> Option<f64> {
        percent_more(self.time.finish, self.captured?)
    }
}

/// By how much `found` is more than `expected`, in percent of that; `None` when that is nothing.
pub fn percent_more(found: Span, expected: Span) -> Option<f64> {
    let (found, expected) = (found.0 as f64, expected.0 as f64);
    (expected > 0.0).then(|| 100.0 * (found - expected) / expected)
}

/// `sum` over `count`, to the nearest picosecond.
pub(super) fn mean(sum: Span, count: usize) -> Span {
    rounded(sum.0.into(), count)
}

fn rounded(sum: u128, count: usize) -> Span {
    let count = count.max(1) as u128;
    Span(((sum + count / 2) / count) as u64)
}

/// `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What kind of node an operator is, for people.
pub fn kind_label(kind: Kind) -> &'static str {
    match kind {
        Kind::Nothing => "nothing",
        Kind::Host => "host",
        Kind::Compute => "compute",
        Kind::LocalMemory => "local memory",
        Kind::RemoteMemory => "remote memory",
        Kind::Send => "send",
        Kind::Receive => "receive",
        Kind::Collective => "collective",
    }
}

#[cfg(test)]
mod tests {
    use super::{percent_more, thousands};
    use crate::units::Span;

    #[test]
    fn differences_are_in_percent_of_what_was_captured() {
        // 103 - 100 = 3 of 100; 50 - 200 = -150 of 200.
        assert_eq!(percent_more(Span(103), Span(100)), Some(3.0));
        assert_eq!(percent_more(Span(50), Span(200)), Some(-75.0));
        assert_eq!(percent_more(Span(50), Span::ZERO), None);
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!(thousands(7), "7");
        assert_eq!(thousands(1234), "1,234");
        assert_eq!(thousands(123_456_789), "123,456,789");
    }
}
