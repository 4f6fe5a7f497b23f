//! Activities of a rank, with the dependencies that let each of them start.
//!
//! Every operator becomes one activity, placed where the largest part of its own time lay; the rest of its own time,
//! and the time between operators, is host time in front of the activity that follows. So no time is lost and nothing
//! moves. An annotation is a mark without length: its own time is Python's.
//!
//! Dependencies, each of which had ended when the activity started:
//!
//! - the previous activity on its thread or stream;
//! - for communication and kernels, the activity that launched it;
//! - for an activity that had to wait ([`waits`]), the communication or kernel it waited for. The wait itself is part
//!   of no activity: it results from the replay;
//! - for a thread that idled, the activity on another thread that ended last.
//!
//! The host time in front of an activity is counted from its last dependency.

use super::calls::Calls;
use super::rank::{NONE, Rank, Role};

mod chain;
mod device;
mod flights;
mod waits;

use waits::Source;

/// Kind of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// An item of [`Rank::items`].
    Item(u32),
    /// A device event of [`Rank::devices`] that is no communication.
    Device(u32),
    /// A call of [`Calls::list`].
    Call(u32),
    /// No work: the end of a thread's last interval.
    End(u32),
}

/// Lane of an activity; activities of a lane do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// A host thread.
    Thread(u32),
    /// Communication of the host in flight: a worker, or the messages to a peer.
    Flight(u32),
    /// A stream of the device.
    Stream(i64),
}

/// An activity of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Kind.
    pub doing: Doing,
    /// Lane.
    pub lane: Lane,
    /// Start, ns since the epoch by this rank's clock.
    pub begin: i64,
    /// End.
    pub end: i64,
    /// Submission time: activities are numbered in this order as far as dependencies allow.
    pub asked: i64,
}

/// Counts of dependencies that the capture does not state, by the rule that found them, and of anomalies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Found {
    /// Waits for messages, whose end the capture states.
    pub message_waits: u64,
    /// Waits of callers that do not continue at once.
    pub blocking: u64,
    /// Waits in `wait_tensor`.
    pub wait_tensor: u64,
    /// Waits before the first use of the result's storage.
    pub first_use: u64,
    /// Waits that only the times show: a thread idled until communication ended.
    pub by_time: u64,
    /// Waits of the host for the device.
    pub device_syncs: u64,
    /// Waits of streams for one another.
    pub stream_waits: u64,
    /// Threads that continued when another thread ended its work.
    pub handoffs: u64,
    /// Dependencies that ended after their dependent began, by up to this many ns, and were clipped.
    pub cut: u64,
    /// Calls for which no wait was found.
    pub unawaited: u64,
}

/// Activities of a rank.
#[derive(Debug, Default)]
pub struct Works {
    /// All activities.
    pub list: Vec<Work>,
    /// Pairs of dependency and dependent, sorted by dependent, without duplicates.
    pub causes: Vec<(u32, u32)>,
    /// Activity of each call.
    pub of_call: Vec<u32>,
    /// Activity of each item.
    pub of_item: Vec<u32>,
    /// Per call, whether the program was seen to block for it.
    pub blocked: Vec<bool>,
    /// Counts by rule.
    pub found: Found,
}

/// Extracts the activities of `rank`. Sets the times from which results of calls could be used.
pub fn find(rank: &Rank, calls: &mut Calls) -> Works {
    waits::set_done(rank, calls);
    let mut found = Found::default();
    let segments: Vec<_> = (0..rank.threads.len() as u32)
        .map(|thread| rank.segments(thread))
        .collect();
    let (mut waits, blocked) = waits::find(rank, calls, &segments, &mut found);
    let mut bounds = chain::Bounds::new(rank, calls);
    device::host_syncs(rank, &mut bounds, &mut waits, &mut found);
    let mut works = Works {
        of_call: vec![NONE; calls.list.len()],
        of_item: vec![NONE; rank.items.len()],
        blocked,
        ..Works::default()
    };
    let chains = chain::build(rank, calls, &segments, &bounds, &waits, &mut works);
    flights::place(rank, calls, &chains, &mut works);
    let device_works = device::place(rank, calls, &mut works, &mut found);
    for wait in &waits {
        let source = match wait.source {
            Source::Call(call)
                if calls.list[call as usize].done > calls.list[call as usize].end =>
            {
                let call = &calls.list[call as usize];
                chains.before(call.worker, call.done, &works.list)
            }
            Source::Call(call) => works.of_call[call as usize],
            Source::Device(device) => device_works[device as usize],
        };
        let target = match wait.into {
            NONE => chains.after(wait.thread, wait.to, &works.list),
            item => works.of_item[item as usize],
        };
        works.cause(source, target);
    }
    chains.hand_over(rank, calls, &mut works, &mut found);
    works.found = found;
    works.settle();
    works
}

impl Works {
    /// Returns the start of the first activity and the end of the last, ns since the epoch.
    pub fn span(&self) -> (i64, i64) {
        let first = self.list.iter().map(|work| work.begin).min();
        let last = self.list.iter().map(|work| work.end).max();
        (first.unwrap_or(0), last.unwrap_or(0))
    }

    fn push(&mut self, work: Work) -> u32 {
        debug_assert!(work.begin <= work.end, "{work:?} takes time");
        self.list.push(work);
        self.list.len() as u32 - 1
    }

    /// Records that `effect` starts after `cause`; does nothing if one of them does not exist.
    fn cause(&mut self, cause: u32, effect: u32) {
        if cause != NONE && effect != NONE && cause != effect {
            self.causes.push((cause, effect));
        }
    }

    /// Sorts the dependencies and drops those that contradict the times: a dependency ends before its dependent
    /// begins. Of activities without length at one moment the one that was placed first comes first, so that
    /// dependencies close no cycle.
    fn settle(&mut self) {
        self.causes
            .sort_unstable_by_key(|&(cause, effect)| (effect, cause));
        self.causes.dedup();
        let list = &self.list;
        let before = self.causes.len();
        self.causes.retain(|&(cause, effect)| {
            let (one, other) = (&list[cause as usize], &list[effect as usize]);
            let moment = one.begin == other.end;
            one.end <= other.begin && (!moment || cause < effect)
        });
        self.found.cut = (before - self.causes.len()) as u64;
    }
}

/// Returns for each thread whether it only carries out work that other threads requested.
fn workers(rank: &Rank, calls: &Calls) -> Vec<bool> {
    let mut works_for = vec![false; rank.threads.len()];
    for call in calls.list.iter().filter(|call| call.worker != NONE) {
        works_for[call.worker as usize] = true;
    }
    for call in &calls.list {
        works_for[rank.items[call.item as usize].thread as usize] = false;
    }
    works_for
}

/// Returns whether an item's own time is work rather than Python's.
fn is_work(role: Role) -> bool {
    role != Role::Annotation
}
