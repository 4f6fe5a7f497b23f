//! The true times of a generated job, for comparison with the times in its captures.

use super::meet::OneMemberCommunicationTimes;
use super::simulate::CommunicationWaiterKind;
use super::{SimulatedJobCaptureWriter, cost::CommunicationOperation, pace_of_rank};
use serde::Serialize;
use std::collections::BTreeMap;

/// A job's true times. Times are whole ns of a clock that all ranks share. The clock's 0 is [`JobTrueTimes::epoch_ns`]
/// after the start of 1970. Times in a rank's Kineto file also include the rank's offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobTrueTimes {
    /// Version of this format: 1.
    pub version: u32,
    /// The shared clock's 0, in ns since 1970.
    pub epoch_ns: u64,
    /// True times of each rank, in rank order.
    pub ranks: Vec<RankTrueTimesAndCounts>,
    /// All collectives and messages, ordered by step and, within a step, in program order.
    pub collectives: Vec<CommunicationTrueTimes>,
}

/// True times and counts of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RankTrueTimesAndCounts {
    /// The rank's index in the job.
    pub rank: u32,
    /// Offset of the Kineto file's clock from the shared clock, in ns.
    pub clock_offset_ns: i64,
    /// Start of the rank's first event.
    pub first_ns: u64,
    /// End of the rank's last event; the profiler's own span and window do not count.
    pub last_ns: u64,
    /// Start and end of the steps `ProfilerStep#2`, `ProfilerStep#3`, …; Python's time before a
    /// step does not count.
    pub steps: Vec<[u64; 2]>,
    /// Factor that multiplies durations, in thousandths, before the pseudo-random part is added.
    pub straggle_permille: u32,
    /// Number of `cpu_op` and `user_annotation` events. The host's file has the same number of nodes with a record
    /// function, not counting `## process_group:init ##`.
    pub host_ops: u64,
    /// Number of `cuda_runtime` events.
    pub runtime_calls: u64,
    /// Number of `kernel` events, including the kernels of collectives.
    pub kernels: u64,
    /// Number of `gpu_memcpy` events.
    pub copies: u64,
    /// Number of collectives that the rank takes part in.
    pub collectives: u64,
    /// Number of messages that the rank sent.
    pub sends: u64,
    /// Number of messages that the rank received.
    pub receives: u64,
}

/// True times of a collective or message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommunicationTrueTimes {
    /// `all-reduce`, `all-gather`, `reduce-scatter`, `broadcast`, or `message`.
    pub kind: String,
    /// Index of the step, counting from 0.
    pub step: u32,
    /// Name of the group in PyTorch.
    pub group: String,
    /// Ranks of the group; for a message, sender and receiver.
    pub ranks: Vec<u32>,
    /// Number of earlier collectives of the group; for a message, number of earlier messages from
    /// this sender to this receiver.
    pub sequence: u64,
    /// Bytes of a member's input or output, whichever is larger.
    pub bytes: u64,
    /// Members in the order of `ranks`.
    pub members: Vec<CommunicationMemberTrueTimes>,
}

/// One member's part in a collective or message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommunicationMemberTrueTimes {
    /// The member's rank.
    pub rank: u32,
    /// Start of Gloo's annotation or NCCL's kernel.
    pub start_ns: u64,
    /// End of Gloo's annotation or NCCL's kernel.
    pub end_ns: u64,
    /// Time from this member's start to the last member's start, ns.
    pub wait_ns: u64,
    /// Time from the last member's start to this member's end, ns.
    pub transfer_ns: u64,
    /// Wait of a thread or stream of this rank for the collective or message; `None` if nothing
    /// waited.
    pub waited: Option<ThreadOrStreamWaitTruth>,
}

/// A wait of a thread or stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadOrStreamWaitTruth {
    /// The thread or stream that waits.
    pub by: CommunicationWaiterKind,
    /// Start of the wait, ns.
    pub from_ns: u64,
    /// End of the wait, ns: the thread runs again, or the stream may start its next kernel.
    pub until_ns: u64,
}

impl SimulatedJobCaptureWriter {
    /// Returns the job's true times.
    pub fn compute_truth(&self) -> JobTrueTimes {
        let steps =
            (0..self.options.steps).flat_map(|step| self.true_communication_times_of_step(step));
        JobTrueTimes {
            version: 1,
            epoch_ns: super::BASE + super::EPOCH,
            collectives: steps.collect(),
            ranks: (0..self.options.ranks)
                .map(|rank| self.rank_truth(rank))
                .collect(),
        }
    }

    fn rank_truth(&self, rank: u32) -> RankTrueTimesAndCounts {
        let (tally, steps) = (
            &self.outcome.tallies[rank as usize],
            &self.outcome.steps[rank as usize],
        );
        let program = self.shared_program(rank);
        let steps_run = u64::from(self.options.steps);
        let mut counts = [0; 3];
        for meet in &program.meets {
            let which = match self.layout.meetings
                [self.layout.global_communication_index(meet, rank) as usize]
                .exchange
            {
                CommunicationOperation::Collective(_) => 0,
                CommunicationOperation::Message => {
                    1 + usize::from(!self.sends_message(meet.global, rank))
                }
            };
            counts[which] += steps_run;
        }
        RankTrueTimesAndCounts {
            rank,
            clock_offset_ns: self.clock_offset_ns(rank),
            first_ns: steps.first().map_or(0, |step| step.0),
            last_ns: tally.last,
            steps: steps.iter().map(|(start, end)| [*start, *end]).collect(),
            straggle_permille: pace_of_rank(&self.options, rank).straggle,
            host_ops: tally.ops,
            runtime_calls: tally.calls,
            kernels: tally.kernels,
            copies: tally.copies,
            collectives: counts[0],
            sends: counts[1],
            receives: counts[2],
        }
    }

    /// Returns the sending stage and the receiving stage of a message, derived from the numbering in [`super::step`].
    fn sending_and_receiving_stage(&self, global: u32) -> [u32; 2] {
        let stage = global / 2 / self.options.microbatches;
        match global % 2 {
            0 => [stage, stage + 1],
            _ => [stage + 1, stage],
        }
    }

    fn sends_message(&self, global: u32, rank: u32) -> bool {
        self.sending_and_receiving_stage(global)[0] == rank
    }

    fn true_communication_times_of_step(&self, step: u32) -> Vec<CommunicationTrueTimes> {
        let meetings = &self.layout.meetings;
        let mut parts: Vec<Vec<(u32, OneMemberCommunicationTimes)>> =
            vec![Vec::new(); meetings.len()];
        for rank in 0..self.options.ranks {
            let history = &self.outcome.histories[rank as usize];
            let program = self.shared_program(rank);
            for (meet, part) in program
                .meets
                .iter()
                .zip(history.communications_of_step(step))
            {
                parts[self.layout.global_communication_index(meet, rank) as usize]
                    .push((rank, *part));
            }
        }
        // For each step, the number of collectives by group, and the number of messages by pair of ranks.
        let mut counts: BTreeMap<(u32, [u32; 2]), u64> = BTreeMap::new();
        let key = |global: usize| match meetings[global].exchange {
            CommunicationOperation::Message => (0, self.sending_and_receiving_stage(global as u32)),
            CommunicationOperation::Collective(_) => (meetings[global].group, [0; 2]),
        };
        for global in 0..meetings.len() {
            *counts.entry(key(global)).or_default() += 1;
        }
        let list = meetings.iter().zip(parts).enumerate();
        list.map(|(global, (meeting, parts))| {
            let group = &self.layout.groups[meeting.group as usize];
            let ranks = match meeting.exchange {
                CommunicationOperation::Message => {
                    self.sending_and_receiving_stage(global as u32).to_vec()
                }
                CommunicationOperation::Collective(_) => group.ranks.clone(),
            };
            let last = parts.iter().map(|(_, part)| part.start).max().unwrap_or(0);
            let mut members: Vec<_> = parts
                .iter()
                .map(|part| truth_of_member(*part, last))
                .collect();
            members.sort_by_key(|m| ranks.iter().position(|rank| *rank == m.rank));
            CommunicationTrueTimes {
                kind: meeting.exchange.operation_name_in_true_times(),
                step,
                group: group.name.clone(),
                sequence: u64::from(step) * counts[&key(global)] + u64::from(meeting.nth),
                bytes: meeting.bytes,
                members,
                ranks,
            }
        })
        .collect()
    }
}

fn truth_of_member(
    (rank, part): (u32, OneMemberCommunicationTimes),
    last: u64,
) -> CommunicationMemberTrueTimes {
    CommunicationMemberTrueTimes {
        rank,
        start_ns: part.start,
        end_ns: part.end,
        wait_ns: last - part.start,
        transfer_ns: part.end - last,
        waited: part
            .waited
            .map(|(by, from_ns, until_ns)| ThreadOrStreamWaitTruth {
                by,
                from_ns,
                until_ns,
            }),
    }
}

impl Serialize for CommunicationWaiterKind {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match self {
            Self::Host => "host",
            Self::Stream => "stream",
        })
    }
}
