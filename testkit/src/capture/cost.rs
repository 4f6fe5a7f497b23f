//! Durations of actions on the simulated computer, in ns.
//!
//! The durations resemble those in real captures, but are round numbers, so that tests can derive a schedule by hand. A
//! rank's options scale the durations.

use super::{Device, LaunchOrKernelBound, Options};

/// Time from an operator's start to the start of its first child or of its work.
pub(super) const HEAD: u64 = 2_000;
/// Time from the end of an operator's last child or work to the operator's end.
pub(super) const TAIL: u64 = 1_000;
/// Time from an operator's end to the next event on its thread.
pub(super) const BETWEEN: u64 = 500;
/// Time that Python spends before it calls an operator.
pub(super) const PYTHON: u64 = 5_000;
/// Duration of a call that launches work on a stream.
pub(super) const LAUNCH: u64 = 4_000;
/// Duration of a call that records or waits for events.
pub(super) const RUNTIME: u64 = 1_000;
/// Time from the end of a launching call to the earliest start of its work on the stream.
pub(super) const REACH: u64 = 3_000;
/// Gap between two successive kernels or copies on one stream.
pub(super) const STREAM_GAP: u64 = 1_000;
/// Time from the request of a collective to its earliest start on a Gloo worker.
pub(super) const QUEUE: u64 = 20_000;
/// Gap between two successive collectives on one worker.
pub(super) const WORKER_GAP: u64 = 5_000;
/// Time from the end of an event until the thread that waits for it runs again.
pub(super) const WAKE: u64 = 10_000;
/// Duration of an empty collective or message, from the last member's start.
pub(super) const LATENCY: u64 = 20_000;

/// Returns the time that `amount` takes at `per_us` per microsecond, in ns, rounded up.
fn duration_at_rate(amount: u128, per_us: u128) -> u64 {
    u64::try_from((amount * 1000).div_ceil(per_us)).unwrap_or(u64::MAX)
}

/// Returns the duration of a kernel with this work, on the CPU's thread or on a stream.
pub(super) fn simulated_kernel_duration(options: &Options, flops: u128, bytes: u128) -> u64 {
    match (options.device, options.bound) {
        // The CPU computes 100 GFLOP/s, and reads and writes 10 GB/s.
        (Device::Cpu, _) => duration_at_rate(flops, 100_000).max(duration_at_rate(bytes, 10_000)),
        // The GPU computes 300 TFLOP/s, and reads and writes 2 TB/s. Kernels of launch-bound jobs have
        // almost no work.
        (Device::Cuda, LaunchOrKernelBound::Launch) => 2_000,
        (Device::Cuda, LaunchOrKernelBound::Kernel) => {
            20_000 + duration_at_rate(flops, 300_000_000).max(duration_at_rate(bytes, 2_000_000))
        }
    }
}

/// Returns the duration of a collective or message, from its last member's start to its end.
/// `bytes` is the larger of input and output.
pub(super) fn simulated_transfer_duration(
    kind: CommunicationOperation,
    bytes: u64,
    members: u32,
    bytes_per_second: u64,
) -> u64 {
    let (bytes, n) = (u128::from(bytes), u128::from(members.max(1)));
    let carried = match kind {
        CommunicationOperation::Collective(CollectiveKind::AllReduce) => bytes * 2 * (n - 1) / n,
        CommunicationOperation::Collective(
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter,
        ) => bytes * (n - 1) / n,
        _ => bytes,
    };
    let ns = (carried * 1_000_000_000).div_ceil(u128::from(bytes_per_second.max(1)));
    LATENCY.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Collectives that jobs can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectiveKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
}

impl CollectiveKind {
    fn hyphenated_kind_name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Broadcast => "broadcast",
        }
    }
}

/// Operations that involve several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommunicationOperation {
    /// A collective.
    Collective(CollectiveKind),
    /// A message from the first member to the second.
    Message,
}

impl CommunicationOperation {
    /// Returns the operation's name in the file of true times.
    pub(super) fn operation_name_in_true_times(self) -> String {
        match self {
            Self::Collective(kind) => kind.hyphenated_kind_name().to_owned(),
            Self::Message => "message".to_owned(),
        }
    }
}

/// Returns a pseudo-random number that depends on all of `parts`, computed with SplitMix64.
pub(super) fn hash_to_random_number(parts: [u64; 3]) -> u64 {
    parts.iter().fold(0, |state: u64, part| {
        let mut z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
