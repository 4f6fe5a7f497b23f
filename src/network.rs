//! What a transfer costs: models behind one contract.
//!
//! A model owns state and no queue. [`Network::submit`] accepts a message and schedules, in the one
//! agenda, the events at which something happens to it; [`Network::handle`] is told when such an
//! event is due and answers with [`Notice`]s. Messages of one operation leave and enter through
//! [`Port`]s that the operation opened.

use crate::ids::Npu;
use crate::topology::Path;
use crate::units::{Amount, Span, Time};
use std::fmt;

mod contention_free;
mod links;
mod ports;
#[cfg(test)]
mod rig;
mod servers;
mod trains;

pub use contention_free::ContentionFree;
pub use links::Links;
pub use ports::SharedPorts;
pub use servers::{Place, Servers};
pub use trains::Trains;

/// The models that machine files can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Model {
    /// Operations do not meet one another.
    #[default]
    ContentionFree,
    /// All that an NPU sends into a dimension shares a port, and all that it receives; where it is wired to
    /// neighbours, all that it sends to one side, and receives from it.
    Ports,
    /// Every link of every route is shared.
    Links,
}

impl Model {
    /// Every model with the name it has in machine files.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::ContentionFree, "contention_free"),
        (Self::Ports, "ports"),
        (Self::Links, "links"),
    ];
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// The two ends of an NPU's attachment, as one operation sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port(pub u32);

/// Consecutive ports opened by one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u32,
    count: u32,
}

impl Ports {
    /// `count` ports from `first` on.
    pub fn new(first: u32, count: u32) -> Self {
        Self { first, count }
    }

    /// Stands for a port where the model has none.
    #[inline]
    pub fn any(self) -> Port {
        Port(self.first)
    }

    /// The `i`-th port.
    #[inline]
    pub fn port(self, i: u32) -> Port {
        debug_assert!(i < self.count, "an operation uses the ports it opened");
        Port(self.first + i)
    }
}

/// A message handed to the network.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The caller's name for it, which notices carry back.
    pub op: u32,
    /// The NPUs that send and receive it.
    pub ends: (Npu, Npu),
    /// Where it leaves.
    pub from: Port,
    /// Where it enters.
    pub to: Port,
    /// What lies between, where the caller knows; the topology does.
    pub path: Option<Path>,
    /// How large it is.
    pub amount: Amount,
    /// Whether the caller wants to know when its last byte has left.
    pub tell_injected: bool,
    /// Whether all messages that enter through `to` come from one sender, over one path.
    pub sole_sender: bool,
    /// Of messages whose first bytes come to a port at once, the one with the lowest enters first.
    /// It says what the message is, as `op` does not: those are used again. Below 2^27.
    pub order: u32,
}

impl Message {
    /// A message that no port paces, for models that have none.
    pub fn plain(op: u32, ends: (Npu, Npu), amount: Amount) -> Self {
        Self {
            op,
            ends,
            from: Port(0),
            to: Port(0),
            path: None,
            amount,
            tell_injected: false,
            sole_sender: true,
            order: 0,
        }
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Its last byte has left the sender.
    Injected(u32),
    /// Its last byte has arrived. Its op may be used again.
    Delivered(u32),
}

/// Schedules events for a model, so that models need not know what else the agenda holds.
pub trait Schedule {
    /// Has [`Network::handle`] called with `event` at `at`.
    fn schedule(&mut self, at: Time, event: NetworkEvent);
}

/// An event of a network model. Its meaning belongs to the model; events of one instant are handled
/// in ascending order, but for [`Self::Hop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkEvent {
    /// The last byte of the op's message has left.
    Injected(u32),
    /// The first byte of the op's message is at the receiver's port.
    FirstByte {
        /// The message's [`Message::order`].
        order: u32,
        /// The op.
        op: u32,
    },
    /// The last byte of the op's message has arrived.
    Delivered(u32),
    /// The op's message is at the next device of its route.
    Hop {
        /// Of messages that come to a device at once, the one with the lowest goes first, and of those with
        /// the same the one that was submitted first. Below 2^27.
        order: u32,
        /// The op.
        op: u32,
    },
    /// The link has sent what it was given.
    LinkFree(u32),
}

/// A model of the network.
pub trait Network {
    /// What people and programs call it.
    const NAME: &'static str;

    /// Whether messages of different operations meet.
    const SHARED: bool;

    /// Opens `count` ports with nothing in them.
    fn open(&mut self, count: u32) -> Ports;

    /// Gives ports back.
    fn close(&mut self, ports: Ports);

    /// Accepts a message that its sender hands over `now`.
    fn submit(&mut self, now: Time, message: &Message, agenda: &mut impl Schedule);

    /// How long a message takes that meets no other; `None` where the model does not say. Unless
    /// [`Self::SHARED`], it is never held up by what an operation of its own does besides.
    fn uncontended(&self, _ends: (Npu, Npu), _amount: Amount) -> Option<Span> {
        None
    }

    /// Whether members of one line along `dimension`, as many as `members` of it, never hold one another's
    /// messages up, if at each moment each sends at most one to another member, and receives at most one;
    /// `neighbours`: each sends to the next of the line, and the last to the first.
    fn keeps_apart(&self, dimension: usize, members: u32, neighbours: bool) -> bool;

    /// Whether nothing is on its way through, or yet to come to, what `npu` sends and receives with along
    /// `dimension`, and nobody claims it.
    fn is_idle(&self, _now: Time, _npu: Npu, _dimension: usize) -> bool {
        true
    }

    /// Says that whoever is named by `claim` has for itself what `npu` sends and receives with along
    /// `dimension`, or no longer has (`None`).
    fn claim(&mut self, _npu: Npu, _dimension: usize, _claim: Option<u32>) {}

    /// Whose claim a message between `ends` would touch, of several the lowest; `None` if nobody's.
    fn claimed(&self, _ends: (Npu, Npu)) -> Option<u32> {
        None
    }

    /// What NPUs send and receive with along dimensions where they have ports of their own, for what comes to an
    /// NPU, or goes from it, without being a message of another NPU's. `None` where operations do not meet.
    fn attachments(&mut self) -> Option<&mut Servers> {
        None
    }

    /// An event that the model scheduled is due.
    fn handle(
        &mut self,
        now: Time,
        event: NetworkEvent,
        agenda: &mut impl Schedule,
        notices: &mut Vec<Notice>,
    );
}
