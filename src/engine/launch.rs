//! Launches: executions of a program. Feeds request launches, and observers receive records of them.

use chakram_base::ids::{Npu, Rank};
use chakram_base::units::{Span, Time};
use std::fmt;
use std::sync::Arc;

/// Index of a launch within the run, counting from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaunchSerial(pub u64);

impl fmt::Display for LaunchSerial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A feed's request to execute a program now.
#[derive(Clone, Debug, Default)]
pub struct LaunchRequest {
    /// Index of the program in the run.
    pub program: u32,
    /// The NPU that runs a one-rank program. If `None`, the program runs on the NPU that it was compiled for. Every
    /// kernel of the program must have a known duration on this NPU's class.
    pub npu: Option<Npu>,
    /// Tag that the feed chose, which the launch's records repeat.
    pub tag: u64,
    /// Durations of the kernels in this launch.
    pub prices: LaunchKernelDurationSource,
    /// When the launch's ranks start.
    pub release: LaunchRankReleaseMode,
}

/// Source of the kernel durations in a launch.
#[derive(Clone, Debug, Default)]
pub enum LaunchKernelDurationSource {
    /// The durations that were compiled with the program.
    #[default]
    AsCompiled,
    /// The program's durations multiplied by this factor, each rounded to the nearest picosecond.
    Scaled(f64),
    /// Kernel durations by class. A class is the index of the kernel's name in its graph
    /// ([`Graph::name_index`](chakram_trace::graph::Graph::name_index)). Kernels of a class without a duration in this
    /// list keep the program's duration.
    ByClass(Arc<[Option<Span>]>),
}

/// When the ranks of a launch start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchRankReleaseMode {
    /// All ranks start now, each after its release time in the workload.
    #[default]
    Together,
    /// Each rank starts when the feed releases it ([`FeedLaunchAndRankStartRequests::request_rank_start_now`]).
    ByRank,
}

/// Record of a launch, for feeds and observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramLaunchRecord {
    /// Index of the launch within the run.
    pub serial: LaunchSerial,
    /// Index of the feed that requested the launch.
    pub feed: u32,
    /// Index of the program that the launch executes.
    pub program: u32,
    /// The tag that the feed chose for the launch.
    pub tag: u64,
    /// The NPU that the request named, or `None` if it named none.
    pub npu: Option<Npu>,
    /// Instant at which the launch began.
    pub began: Time,
}

/// Requests of a feed, collected while the feed handles a notification.
#[derive(Debug, Default)]
pub struct FeedLaunchAndRankStartRequests {
    /// Index that the run's next launch will get.
    pub(super) next: u64,
    pub(super) orders: Vec<LaunchOrRankStartRequest>,
}

/// A feed's request to begin a launch, or to release a rank of a launch.
#[derive(Debug)]
pub(super) enum LaunchOrRankStartRequest {
    LaunchRequest(LaunchRequest),
    Release(LaunchSerial, Rank),
}

impl FeedLaunchAndRankStartRequests {
    /// Requests a launch that begins now, and returns its index.
    pub fn begin_launch(&mut self, launch: LaunchRequest) -> LaunchSerial {
        self.orders
            .push(LaunchOrRankStartRequest::LaunchRequest(launch));
        self.next += 1;
        LaunchSerial(self.next - 1)
    }

    /// Requests that a rank of a launch start now. Has no effect unless the launch belongs to this feed and uses
    /// [`LaunchRankReleaseMode::ByRank`].
    pub fn request_rank_start_now(&mut self, launch: LaunchSerial, rank: Rank) {
        self.orders
            .push(LaunchOrRankStartRequest::Release(launch, rank));
    }
}
