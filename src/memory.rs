//! What a load or a store costs, and which of them wait for one another.
//!
//! Memory of the NPU's own is [`LocalMemory`]. Memory beyond it is reached in one of two ways.
//! *Channels* serve one access at a time, first come, first served ([`Attachment::PerNpu`],
//! [`Attachment::Pool`], [`Attachment::PerNode`]). *Pools that are networks* are made of links that
//! accesses share while they last: the designs of Fig. 5 in Won et al., "ASTRA-sim2.0" (ISPASS 2023),
//! one file each. A design says what there is of links and which of them an access passes
//! (`memory/layout.rs`); how those that meet share is the same for all (`memory/sharing.rs`).

use crate::ids::Npu;
use crate::units::{Amount, Bandwidth, Bytes, Span, Time};
use std::fmt;

mod hierarchical;
mod layout;
mod local;
mod mesh;
mod per_node;
mod per_npu;
mod pool;
mod ring;
mod sharing;
mod switch;

pub use hierarchical::Hierarchical;
pub use mesh::Mesh;
pub use ring::Ring;
pub use sharing::End;
pub use switch::{Level, Switch};

/// The memory of one NPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalMemory {
    /// Bytes per second, reads and writes together.
    pub bandwidth: Bandwidth,
    /// Time of the first byte.
    pub latency: Span,
    /// What it holds; a node that moves more at once is refused.
    pub capacity: Bytes,
}

/// How NPUs reach the memory beyond their own.
#[derive(Clone, Debug, PartialEq)]
pub enum Attachment {
    /// Every NPU has a channel of its own.
    PerNpu,
    /// One channel for all, first come, first served.
    Pool,
    /// One channel for each so many NPUs that are neighbours by number; at least 1.
    PerNode(u32),
    /// Memories behind switches of their own, which reach the switches of the nodes.
    Hierarchical(Hierarchical),
    /// Memories behind levels of switches.
    Switch(Switch),
    /// Memories and NPUs on a ring.
    Ring(Ring),
    /// Memories and NPUs on a mesh of two dimensions.
    Mesh(Mesh),
}

impl Attachment {
    /// The attachments that machine files can name.
    pub const NAMES: [&str; 6] = ["per_npu", "pool", "hierarchical", "switch", "ring", "mesh"];

    /// What machine files call it; importers have one more, which they cannot.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PerNpu => "per_npu",
            Self::Pool => "pool",
            Self::PerNode(_) => "per_node",
            Self::Hierarchical(_) => "hierarchical",
            Self::Switch(_) => "switch",
            Self::Ring(_) => "ring",
            Self::Mesh(_) => "mesh",
        }
    }

    /// Whether it can be that of a machine with `npus` NPUs.
    pub fn fits(&self, npus: u32) -> bool {
        match self {
            Self::PerNpu | Self::Pool => true,
            Self::PerNode(size) => *size > 0,
            Self::Hierarchical(design) => design.fits(npus),
            Self::Switch(design) => design.fits(npus),
            Self::Ring(design) => design.fits(npus),
            Self::Mesh(design) => design.fits(npus),
        }
    }

    /// Whether bytes pass switches, which can gather and reduce them.
    pub fn has_switches(&self) -> bool {
        matches!(self, Self::Hierarchical(_) | Self::Switch(_))
    }
}

/// Memory beyond the NPUs' own.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteMemory {
    /// How it is reached.
    pub attachment: Attachment,
    /// Bytes per second of one channel, or of one memory of a pool that is a network.
    pub bandwidth: Bandwidth,
    /// Time of the first byte.
    pub latency: Span,
    /// What it holds; a node that moves more at once is refused.
    pub capacity: Bytes,
    /// Whether a channel's bytes / bandwidth is cut off to whole nanoseconds, as ASTRA-sim has it.
    pub whole_ns: bool,
}

/// What it is made of, for people: `4 groups of 100 GB/s behind 16 switches, 256 GB/s for each NPU`.
impl fmt::Display for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |rate: Bandwidth| rate.bytes_per_second() / 1e9;
        let one = gb(self.bandwidth);
        match &self.attachment {
            Attachment::PerNpu => write!(f, "{one} GB/s for each NPU"),
            Attachment::Pool => write!(f, "{one} GB/s for all NPUs"),
            Attachment::PerNode(size) => write!(f, "{one} GB/s for each {size} NPUs"),
            Attachment::Hierarchical(design) => {
                let (groups, switches) = (design.groups, design.out_switches);
                let port = gb(design.in_node_bandwidth);
                write!(
                    f,
                    "{groups} groups of {one} GB/s behind {switches} switches, "
                )?;
                write!(f, "{port} GB/s for each NPU")
            }
            Attachment::Switch(design) => {
                let (groups, port) = (design.groups, gb(design.npu_bandwidth));
                let levels = design.levels.len();
                write!(
                    f,
                    "{groups} of {one} GB/s behind {levels} levels of switches, "
                )?;
                write!(f, "{port} GB/s for each NPU")
            }
            Attachment::Ring(design) => {
                let (groups, link) = (design.groups, gb(design.link_bandwidth));
                write!(f, "{groups} of {one} GB/s on a ring of {link} GB/s")
            }
            Attachment::Mesh(design) => {
                let (columns, rows) = (design.columns, design.rows);
                let link = gb(design.link_bandwidth);
                write!(
                    f,
                    "{columns} x {rows} of {one} GB/s on a mesh of {link} GB/s"
                )
            }
        }
    }
}

/// A load or store beyond the NPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who asks.
    pub npu: Npu,
    /// Bytes that the memory reads or writes for it.
    pub bytes: u64,
    /// Whether all NPUs do the same and the switches gather what is loaded, so that each ends with the
    /// bytes of all, or reduce what is stored.
    pub in_switch: bool,
    /// The caller's own number for it.
    pub token: u64,
}

/// The remote memory of a running machine: what its channels or links are doing.
#[derive(Debug)]
pub struct RemoteAccess {
    latency: Span,
    bandwidth: Bandwidth,
    whole_ns: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    PerNpu(per_npu::Channels),
    Pool(pool::Channel),
    PerNode(per_node::Channels),
    Shared(Box<sharing::Sharing>),
}

impl RemoteAccess {
    /// Nothing under way on a machine of `npus` NPUs, which `memory` was checked for.
    pub fn new(memory: &RemoteMemory, npus: u32) -> Self {
        let (one, latency) = (memory.bandwidth, memory.latency);
        let shared = |layout| State::Shared(Box::new(sharing::Sharing::new(layout, latency)));
        let state = match &memory.attachment {
            Attachment::PerNpu => State::PerNpu(per_npu::Channels::new(npus)),
            Attachment::Pool => State::Pool(pool::Channel::default()),
            Attachment::PerNode(size) => State::PerNode(per_node::Channels::new(npus, *size)),
            Attachment::Hierarchical(design) => shared(design.layout(one, npus)),
            Attachment::Switch(design) => shared(design.layout(one, npus)),
            Attachment::Ring(design) => shared(design.layout(one, npus)),
            Attachment::Mesh(design) => shared(design.layout(one, npus)),
        };
        Self {
            latency,
            bandwidth: one,
            whole_ns: memory.whole_ns,
            state,
        }
    }

    /// An access begins. When it ends, if that is known: channels serve accesses in the order of these
    /// calls, and one keeps its channel for latency + bytes / bandwidth. `None` where it depends on what
    /// begins while it lasts; then [`Self::settle`] and [`Self::ended`] tell.
    pub fn begin(&mut self, now: Time, access: Access) -> Option<Time> {
        let span = || {
            let transfer = match self.whole_ns {
                true => {
                    let per_ns = self.bandwidth.bytes_per_second() / 1e9;
                    Span::from_ns((access.bytes as f64 / per_ns) as u64)
                }
                false => self.bandwidth.serialization(Amount::whole(access.bytes)),
            };
            self.latency + transfer
        };
        match &mut self.state {
            State::PerNpu(channels) => Some(channels.access(now, access.npu, span())),
            State::Pool(channel) => Some(channel.access(now, span())),
            State::PerNode(channels) => Some(channels.access(now, access.npu, span())),
            State::Shared(sharing) => {
                sharing.begin(now, access);
                None
            }
        }
    }

    /// Whether accesses began or ended since [`Self::settle`] was called.
    #[inline]
    pub fn is_unsettled(&self) -> bool {
        match &self.state {
            State::Shared(sharing) => sharing.is_unsettled(),
            _ => false,
        }
    }

    /// Shares links among the accesses under way, once all that happens `now` has happened. When to call
    /// [`Self::ended`], and with which number; what was said before is void.
    pub fn settle(&mut self, now: Time) -> Option<(Time, u32)> {
        match &mut self.state {
            State::Shared(sharing) => sharing.settle(now),
            _ => None,
        }
    }

    /// Hands `take` what ends, if nothing was settled since `settlement` was.
    pub fn ended(&mut self, now: Time, settlement: u32, take: impl FnMut(End)) {
        if let State::Shared(sharing) = &mut self.state {
            sharing.ended(now, settlement, take);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(attachment: Attachment) -> Vec<Time> {
        let memory = RemoteMemory {
            attachment,
            bandwidth: Bandwidth::new(25e9).unwrap(),
            latency: Span::from_ns(100),
            capacity: Bytes(1 << 40),
            whole_ns: false,
        };
        let mut remote = RemoteAccess::new(&memory, 4);
        (0..4)
            .map(|npu| {
                let access = Access {
                    npu: Npu(npu),
                    bytes: 1 << 20,
                    in_switch: false,
                    token: 0,
                };
                remote.begin(Time::ZERO, access).unwrap()
            })
            .collect()
    }

    #[test]
    fn a_pool_serves_one_after_another_and_channels_of_their_own_at_once() {
        // 1 MiB / 25 GB/s = 41.943,04 us, + 0.1 us = 42,043,040 ps.
        let one = 42_043_040;
        assert_eq!(ends(Attachment::PerNpu), vec![Time(one); 4]);
        let expected: Vec<_> = (1..=4).map(|i| Time(one * i)).collect();
        assert_eq!(ends(Attachment::Pool), expected);
        // NPUs 0 and 1 share a channel, and 2 and 3 do.
        let two = [one, 2 * one, one, 2 * one].map(Time);
        assert_eq!(ends(Attachment::PerNode(2)), two);
    }
}
