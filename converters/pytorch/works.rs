//! What a rank did, as pieces of work with the causes that let each of them start.
//!
//! Every operator becomes one piece, which lies where the largest part of its own time lay; the rest of
//! its own time, and the time between operators, is host time in front of the piece that follows. So no
//! time is lost and nothing moves. An annotation is a mark without length: its own time is Python's.
//!
//! Causes, each of which had ended when the piece started:
//!
//! - the piece before it on its thread or stream;
//! - for communication and kernels, the piece that launched it;
//! - for a piece that had to wait ([`waits`]), the communication or kernel it waited for. The wait
//!   itself is no part of any piece: it comes out of the replay;
//! - for a thread that idled, the piece on another thread that ended last.
//!
//! The host time in front of a piece is counted from its last cause.

use super::calls::Calls;
use super::rank::{NONE, Rank, Role};

mod chain;
mod device;
mod flights;
mod waits;

use waits::Source;

/// What a piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// An item of [`Rank::items`].
    Item(u32),
    /// A device event of [`Rank::devices`] that is no communication.
    Device(u32),
    /// A call of [`Calls::list`].
    Call(u32),
    /// Nothing: the end of a thread's last interval.
    End(u32),
}

/// Where a piece of work ran; pieces of a lane do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// A host thread.
    Thread(u32),
    /// Communication of the host in flight: a worker, or the messages to a peer.
    Flight(u32),
    /// A stream of the device.
    Stream(i64),
}

/// A piece of work.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// What it is.
    pub doing: Doing,
    /// Where it ran.
    pub lane: Lane,
    /// Start, ns since the epoch by this rank's clock.
    pub begin: i64,
    /// End.
    pub end: i64,
    /// Pieces are numbered in this order as far as causes allow: by when they were asked for.
    pub asked: i64,
}

/// How causes were found that the capture does not state, and what was odd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Found {
    /// Waits for messages, of which the capture says when they ended.
    pub message_waits: u64,
    /// Waits of callers that do not go on at once.
    pub blocking: u64,
    /// Waits in `wait_tensor`.
    pub wait_tensor: u64,
    /// Waits before the first use of the result's storage.
    pub first_use: u64,
    /// Waits that only the times show: a thread idled until communication ended.
    pub by_time: u64,
    /// Waits of the host for the device.
    pub device_syncs: u64,
    /// Streams that waited for one another.
    pub stream_waits: u64,
    /// Threads that went on when another thread ended its work.
    pub handoffs: u64,
    /// Causes that ended after their effect began, by up to this many ns, and were cut.
    pub cut: u64,
    /// Calls that nothing was seen to wait for.
    pub unawaited: u64,
}

/// A rank's work.
#[derive(Debug, Default)]
pub struct Works {
    /// The pieces.
    pub list: Vec<Work>,
    /// Pairs of cause and effect, sorted by effect, without doubles.
    pub causes: Vec<(u32, u32)>,
    /// For each call its piece.
    pub of_call: Vec<u32>,
    /// For each item its piece.
    pub of_item: Vec<u32>,
    /// For each call, whether the program was seen to block for it.
    pub blocked: Vec<bool>,
    /// What was found.
    pub found: Found,
}

/// Takes `rank` apart. Sets when the calls' results could be used.
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
    /// From the start of the first piece to the end of the last, ns since the epoch.
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

    /// Says that `effect` starts after `cause`; nothing if one of them is not there.
    fn cause(&mut self, cause: u32, effect: u32) {
        if cause != NONE && effect != NONE && cause != effect {
            self.causes.push((cause, effect));
        }
    }

    /// Sorts the causes and drops those that contradict the times: a cause ends before its effect
    /// begins. Of pieces without length at one moment the one that was placed first comes first, so
    /// that causes close no circle.
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

/// For each thread whether it only carries out what other threads asked for.
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

/// Whether an item's own time is work rather than Python's.
fn is_work(role: Role) -> bool {
    role != Role::Annotation
}
