//! Launches: executions of a program, as feeds ask for them and observers are told of them.

use chakram_base::ids::{Npu, Rank};
use chakram_base::units::{Span, Time};
use std::fmt;
use std::sync::Arc;

/// Number of a launch among all of a run, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchSerial(pub u64);

impl fmt::Display for LaunchSerial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One execution of a program, from now on.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Index of the program among those of the run.
    pub program: u32,
    /// The NPU on which a program of one rank runs; that for which it was compiled if absent. Its class has to be one
    /// on which every kernel of the program has a price.
    pub npu: Option<Npu>,
    /// A number of the feed's own, which records of the launch carry.
    pub tag: u64,
    /// Durations of its kernels.
    pub prices: LaunchPrices,
    /// Beginning of its ranks.
    pub release: LaunchRelease,
}

/// Durations of the kernels of a launch.
#[derive(Clone, Debug, Default)]
pub enum LaunchPrices {
    /// Those of the program.
    #[default]
    AsCompiled,
    /// Those of the program times a factor, each to the nearest picosecond.
    Scaled(f64),
    /// One for each class of kernels, which is the index of a kernel's name in its graph
    /// ([`Graph::name_index`](chakram_trace::graph::Graph::name_index)). Classes without one keep that of the
    /// program.
    ByClass(Arc<[Option<Span>]>),
}

/// Beginning of the ranks of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchRelease {
    /// At once, each as much later as the workload says.
    #[default]
    Together,
    /// Each when its feed says so ([`LaunchQueue::release`]).
    ByRank,
}

/// A launch as feeds and observers are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchRecord {
    /// Its number.
    pub serial: LaunchSerial,
    /// Index of its feed among those of the run.
    pub feed: u32,
    /// Index of its program among those of the run.
    pub program: u32,
    /// The feed's own number.
    pub tag: u64,
    /// The NPU, if the launch named one.
    pub npu: Option<Npu>,
    /// The instant at which it began.
    pub began: Time,
}

/// Requests of a feed, collected while it is told something.
#[derive(Debug, Default)]
pub struct LaunchQueue {
    /// Number of the next launch of the run.
    pub(super) next: u64,
    pub(super) orders: Vec<LaunchOrderEntry>,
}

/// One thing that a feed asked for.
#[derive(Debug)]
pub(super) enum LaunchOrderEntry {
    Launch(Launch),
    Release(LaunchSerial, Rank),
}

impl LaunchQueue {
    /// Begins a launch now, and returns its number.
    pub fn launch(&mut self, launch: Launch) -> LaunchSerial {
        self.orders.push(LaunchOrderEntry::Launch(launch));
        self.next += 1;
        LaunchSerial(self.next - 1)
    }

    /// Lets a rank of a launch begin now, which is of this feed and waits for that ([`LaunchRelease::ByRank`]). Has no
    /// effect on any other.
    pub fn release(&mut self, launch: LaunchSerial, rank: Rank) {
        self.orders.push(LaunchOrderEntry::Release(launch, rank));
    }
}
