//! The communication of one rank: which operator asked for what, and when it was under way.
//!
//! Three sources say it. `c10d::*` operators carry tensors, root and peer as arguments;
//! `_c10d_functional::*` operators around them the name of the group; `record_param_comms`, which NCCL
//! writes, everything. When it was under way say gloo's intervals, or NCCL's kernels.

use super::rank::{NONE, Rank};
use crate::trace::CollectiveKind;

mod args;
mod device;
mod host;

pub use args::{Asked, dtype};

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// One member's part of a collective.
    Collective(CollectiveKind),
    /// Sends to a member of the group.
    Send,
    /// Receives from a member of the group.
    Receive,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The item that made it.
    pub item: u32,
    /// The number of its record function: calls of a rank are in this order.
    pub rf_id: u64,
    /// What it does.
    pub act: Act,
    /// What its arguments say.
    pub asked: Asked,
    /// Which of the job's groups; set when they are known.
    pub group: u32,
    /// The thread of [`Rank::threads`] on which it was carried out, or [`NONE`] if that is the
    /// caller's or a device.
    pub worker: u32,
    /// The stream on which it was carried out, if on a device.
    pub stream: Option<i64>,
    /// Where: the kernel among [`Rank::devices`], or [`NONE`].
    pub device: u32,
    /// By when the work had been handed over: the caller's later time is its own.
    pub launched: i64,
    /// When it started, ns since the epoch by this rank's clock.
    pub start: i64,
    /// When its transfer had ended; of a message on the host, when the program had waited for it.
    pub end: i64,
    /// When its result could be used: after copies that its worker makes at the end.
    pub done: i64,
    /// The Kineto event that carried it out, the last of several.
    pub event: u32,
    /// How many intervals or kernels carried it out.
    pub parts: u32,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Calls {
    /// The calls, in program order.
    pub list: Vec<Call>,
    /// Calls that were never seen to run, by the operator's name.
    pub never_ran: Vec<String>,
    /// Intervals of communication that no operator asked for.
    pub orphans: u64,
    /// Kernels of communication whose operation cannot be told, by name.
    pub unknown: Vec<String>,
}

/// Finds the calls of `rank`.
pub fn find(rank: &Rank) -> Calls {
    let mut calls = host::find(rank);
    device::find(rank, &mut calls);
    calls.list.sort_by_key(|call| (call.rf_id, call.item));
    calls
}

impl Call {
    /// Whether this is a send or receive.
    pub fn is_message(&self) -> bool {
        !matches!(self.act, Act::Collective(_))
    }

    /// Whether it ran on a device.
    pub fn on_device(&self) -> bool {
        self.device != NONE
    }
}
