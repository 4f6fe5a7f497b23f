//! Launches: executions of a program, as requested by feeds and reported to observers.

use chakram_base::ids::{Npu, Rank};
use chakram_base::units::{Span, Time};
use std::fmt;
use std::sync::Arc;

/// Number of a launch in the run, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchSerial(pub u64);

impl fmt::Display for LaunchSerial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Request to execute a program now.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Index of the program in the run.
    pub program: u32,
    /// The NPU on which a program of one rank runs. If `None`, the program runs on the NPU for which it was compiled.
    /// Every kernel of the program must have a known duration on this NPU's class.
    pub npu: Option<Npu>,
    /// Number that the feed chooses, and that records of the launch repeat.
    pub tag: u64,
    /// Durations of the launch's kernels.
    pub prices: LaunchPrices,
    /// Determines when the launch's ranks start.
    pub release: LaunchRelease,
}

/// Durations of the kernels of a launch.
#[derive(Clone, Debug, Default)]
pub enum LaunchPrices {
    /// The durations that were compiled with the program.
    #[default]
    AsCompiled,
    /// The program's durations times this factor, each rounded to the nearest picosecond.
    Scaled(f64),
    /// Durations by class of kernels. A class is the index of the kernel's name in its graph
    /// ([`Graph::name_index`](chakram_trace::graph::Graph::name_index)). Classes without a duration here keep the
    /// program's duration.
    ByClass(Arc<[Option<Span>]>),
}

/// Determines when the ranks of a launch start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchRelease {
    /// All ranks of the launch start now, each after its release time in the workload.
    #[default]
    Together,
    /// Each rank of the launch starts when the feed releases it ([`LaunchQueue::release_rank`]).
    ByRank,
}

/// Description of a launch for feeds and observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchRecord {
    /// Number of the launch in the run.
    pub serial: LaunchSerial,
    /// Index of the feed that requested the launch.
    pub feed: u32,
    /// Index of the program that is executed.
    pub program: u32,
    /// The number that the feed chose.
    pub tag: u64,
    /// The NPU that the launch request named, or `None`.
    pub npu: Option<Npu>,
    /// Instant at which the launch began.
    pub began: Time,
}

/// Requests of a feed, collected while the feed handles a notification.
#[derive(Debug, Default)]
pub struct LaunchQueue {
    /// Number that the run's next launch will get.
    pub(super) next: u64,
    pub(super) orders: Vec<LaunchOrderEntry>,
}

/// Request of a feed: to begin a launch, or to release a rank of a launch.
#[derive(Debug)]
pub(super) enum LaunchOrderEntry {
    Launch(Launch),
    Release(LaunchSerial, Rank),
}

impl LaunchQueue {
    /// Begins a launch now, and returns its number.
    pub fn begin_launch(&mut self, launch: Launch) -> LaunchSerial {
        self.orders.push(LaunchOrderEntry::Launch(launch));
        self.next += 1;
        LaunchSerial(self.next - 1)
    }

    /// Starts a rank of a launch now. Has no effect unless the launch belongs to this feed and uses
    /// [`LaunchRelease::ByRank`].
    pub fn release_rank(&mut self, launch: LaunchSerial, rank: Rank) {
        self.orders.push(LaunchOrderEntry::Release(launch, rank));
    }
}
