//! Captures as PyTorch's profiler writes them, of a job that is simulated here, with the truth.
//!
//! A capture is two files per rank: the host's operators from `ExecutionTraceObserver`, and the
//! timeline from Kineto. Converters can be tried and measured on them without PyTorch, at any size,
//! and held against [`Truth`], which knows when everything happened.
//!
//! # The job
//!
//! Every rank trains layers of a normalization and a perceptron with two matrices. A rank's thread
//! goes through its program in order; durations come from round constants and from the sizes of the
//! tensors (`cost.rs`), stretched by the rank's factor and a pseudo-random part. Ranks meet in
//! collectives: one begins to transfer when its last member has started, and ends on all at once,
//! but for a few nanoseconds.
//!
//! - On a CPU with Gloo, two workers per group take collectives in order, the thread goes on, and
//!   stands still in the end until the gradients are reduced. In a pipeline, messages are
//!   annotations on the thread itself.
//! - On GPUs with NCCL, operators launch kernels, which queue on the compute stream; collectives run
//!   on a stream of their group's, and streams wait for one another through events. The host waits
//!   only at the end of a step.
//!
//! This has nothing in common with chakram's engine, nor with its readers of captures.
//!
//! # Where it differs from PyTorch
//!
//! Workers of Gloo record no operators of their own, and their annotations never become parents of
//! others in the host's file. Ids of correlation and of external events have no gaps within a
//! block, and the allocator never gives a freed storage to another tensor. Communicators are not
//! set up, buckets are not rebuilt, there is no clock drift, and the memory of a GPU moves without
//! allocations. On GPUs only the calls that the job needs are recorded: launches, copies, events,
//! and one synchronization per step.

use super::{GenerateError, check_at_least, check_limit, refused};
use crate::units::{Bandwidth, Span};
use cost::draw;
use layout::Layout;
use meet::{Outcome, clock, pace, simulate};
use program::Program;
use simulate::Clock;
use std::io::{Result, Write};

mod build;
mod comm;
mod cost;
mod gpu;
mod host;
mod kineto;
mod layout;
mod meet;
mod model;
mod ops;
mod out;
mod program;
mod records;
mod reducer;
mod schema;
mod simulate;
mod step;
mod tensor;
#[cfg(test)]
mod tests;
mod truth;

pub use simulate::Waiter;
pub use truth::{MeetingTruth, MemberTruth, RankTruth, Truth, WaitTruth};

/// Kineto's `baseTimeNanoseconds`.
const BASE: u64 = 1_790_857_026_000_000_000;
/// Where the job begins, behind that.
const EPOCH: u64 = 4_313_706_734_900_000;
/// The process of rank 0; the others follow.
const PID: u64 = 19_340;

/// What the job computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The CPU, and Gloo.
    Cpu,
    /// NVIDIA's GPUs, and NCCL.
    Cuda,
}

impl Device {
    fn backends(self) -> &'static str {
        match self {
            Self::Cpu => "cpu:gloo,cuda:gloo",
            Self::Cuda => "cuda:nccl",
        }
    }
}

/// How ranks share the work and call collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Replicas, as `DistributedDataParallel`: `c10d::allreduce_` of buckets.
    Ddp,
    /// Replicas with `_c10d_functional` collectives and `wait_tensor`.
    Functional,
    /// Stages with messages between neighbours, one forward one backward; on the CPU only.
    Pipeline,
}

/// What a step on a GPU is bound by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Kernels are shorter than what it takes to launch them.
    Launch,
    /// Kernels queue.
    Kernel,
}

/// What to capture.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What the job computes on.
    pub device: Device,
    /// How ranks share the work.
    pub style: Style,
    /// How many ranks there are.
    pub ranks: u32,
    /// How many ranks share each layer; 1 for no tensor parallelism.
    pub tensor_parallel: u32,
    /// How many steps are captured.
    pub steps: u32,
    /// Layers of the model.
    pub layers: u32,
    /// Numbers per token between layers.
    pub hidden: u32,
    /// Tokens per replica and step, or per microbatch.
    pub tokens: u32,
    /// Microbatches per step of a pipeline.
    pub microbatches: u32,
    /// Bytes after which a bucket of gradients is reduced.
    pub bucket: u64,
    /// Bytes per second of a collective or message.
    pub bandwidth: u64,
    /// What a step on a GPU is bound by.
    pub bound: Bound,
    /// Whatever takes time takes up to this many thousandths longer, differently each time.
    pub skew: u32,
    /// Members of a collective end up to this many nanoseconds after it.
    pub jitter: u32,
    /// Ranks that take so many thousandths of the time for everything.
    pub stragglers: Vec<(u32, u32)>,
    /// Ranks that begin so many nanoseconds after the others.
    pub late: Vec<(u32, u64)>,
    /// Ranks' clocks are off by up to this many nanoseconds, but for rank 0's.
    pub clock_skew: u64,
    /// What pseudo-random numbers come from.
    pub seed: u64,
}

impl Options {
    /// Bytes per second from a bandwidth, rounded down.
    pub fn bytes_per_second(bandwidth: Bandwidth) -> u64 {
        bandwidth.bytes_per_second() as u64
    }

    /// Whole nanoseconds of a span.
    pub fn nanoseconds(span: Span) -> u64 {
        span.0 / 1000
    }

    /// Small, quick, and with a bit of everything.
    pub fn new(device: Device, style: Style, ranks: u32) -> Self {
        Self {
            device,
            style,
            ranks,
            tensor_parallel: 1,
            steps: 1,
            layers: 4,
            hidden: 256,
            tokens: 128,
            microbatches: 4,
            bucket: 1 << 20,
            bandwidth: 1_000_000_000,
            bound: Bound::Kernel,
            skew: 50,
            jitter: 200,
            stragglers: Vec::new(),
            late: Vec::new(),
            clock_skew: 0,
            seed: 0,
        }
    }

    /// Says what is wrong, if anything is.
    pub fn validate(&self) -> std::result::Result<(), GenerateError> {
        for (option, value) in [
            ("ranks", self.ranks),
            ("tp", self.tensor_parallel),
            ("steps", self.steps),
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("tokens", self.tokens),
            ("microbatches", self.microbatches),
        ] {
            check_at_least(option, value, 1)?;
        }
        for (what, value, limit, hint) in [
            ("ranks", self.ranks, 1 << 16, "fewer ranks"),
            ("layers", self.layers, 20_000, "fewer layers"),
            ("hidden", self.hidden, 1 << 20, "a smaller hidden size"),
            ("tokens", self.tokens, 1 << 24, "fewer tokens"),
            (
                "microbatches",
                self.microbatches,
                1 << 12,
                "fewer microbatches",
            ),
            ("steps", self.steps, 1 << 24, "fewer steps"),
            ("skew, in thousandths,", self.skew, 1000, "a smaller skew"),
        ] {
            check_limit(what, value.into(), limit, hint)?;
        }
        let (ranks, tp) = (self.ranks, self.tensor_parallel);
        if !ranks.is_multiple_of(tp) {
            return Err(refused("tp", tp, format!("a divisor of the {ranks} ranks")));
        }
        for (option, value) in [("hidden", self.hidden * 4), ("tokens", self.tokens)] {
            if !value.is_multiple_of(tp) {
                let expected = format!("a multiple of the {tp} ranks that share a layer");
                return Err(refused(option, value, expected));
            }
        }
        if self.bandwidth < 1000 {
            let found = format!("{} B/s", self.bandwidth);
            return Err(refused("bandwidth", found, "1 kB/s or more"));
        }
        for (rank, factor) in &self.stragglers {
            if *rank >= ranks {
                return Err(refused("straggler", rank, format!("a rank below {ranks}")));
            }
            if !(1..=1_000_000).contains(factor) {
                let found = f64::from(*factor) / 1000.0;
                return Err(refused("straggler", found, "a factor from 0.001 to 1000"));
            }
        }
        for (rank, late) in &self.late {
            if *rank >= ranks {
                return Err(refused("late", rank, format!("a rank below {ranks}")));
            }
            check_limit(
                "how late a rank is, in ns,",
                u128::from(*late),
                1 << 50,
                "a shorter time",
            )?;
        }
        if self.clock_skew > EPOCH / 2 {
            let found = format!("{} ns", self.clock_skew);
            return Err(refused("clock_skew", found, "three weeks at most"));
        }
        if self.style == Style::Pipeline {
            self.validate_pipeline()?;
        }
        self.validate_size()
    }

    fn validate_pipeline(&self) -> std::result::Result<(), GenerateError> {
        if self.device == Device::Cuda {
            return Err(refused("style", "pipeline", "ddp or functional on cuda"));
        }
        check_at_least("ranks", self.ranks, 2)?;
        if self.tensor_parallel > 1 {
            return Err(refused("tp", self.tensor_parallel, "1 in a pipeline"));
        }
        if !self.layers.is_multiple_of(self.ranks) {
            let expected = format!("a multiple of the {} stages", self.ranks);
            return Err(refused("layers", self.layers, expected));
        }
        Ok(())
    }

    /// Times are whole nanoseconds below 2^62, and what a rank remembers fits into memory.
    fn validate_size(&self) -> std::result::Result<(), GenerateError> {
        let wide = |value: u32| u128::from(value);
        let (h, tokens, layers) = (wide(self.hidden), wide(self.tokens), wide(self.layers));
        let many = match self.style {
            Style::Pipeline => wide(self.microbatches),
            _ => 1,
        };
        let bytes = layers * (8 * h * h + 13 * h) * 4 + many * layers * tokens * h * 32;
        let compute = many * layers * (48 * tokens * h * h + 200 * tokens * h) / 100 + bytes / 10;
        let network = bytes * 8 * 1_000_000_000 / u128::from(self.bandwidth);
        let operators = many * layers * 200 + 100;
        let slowest = self
            .stragglers
            .iter()
            .map(|(_, f)| *f)
            .max()
            .unwrap_or(1000)
            .max(1000);
        let step = (compute + operators * 50_000) * wide(slowest) / 1000 * 2 + network;
        check_limit(
            "the time, in ns,",
            step * wide(self.steps),
            1 << 60,
            "fewer or smaller steps",
        )?;
        check_limit(
            "the operators of a step",
            operators,
            8_000_000,
            "fewer layers or microbatches",
        )?;
        let meets = match self.style {
            Style::Pipeline => many * 4,
            _ => {
                let params = layers * (8 * h * h + 6 * h) * 4;
                let buckets = (params / u128::from(self.bucket.max(1))).min(layers * 6) + 2;
                buckets
                    + if self.tensor_parallel > 1 {
                        4 * layers
                    } else {
                        0
                    }
            }
        };
        let all = meets * wide(self.steps) * wide(self.ranks);
        check_limit(
            "the parts of collectives",
            all,
            50_000_000,
            "fewer ranks, steps or layers",
        )?;
        Ok(())
    }
}

/// A job that has been simulated and can be written.
#[derive(Debug)]
pub struct Capture {
    options: Options,
    layout: Layout,
    /// One for all ranks, or one for each stage.
    programs: Vec<Program>,
    outcome: Outcome,
}

/// Simulates the job that `options` describe.
pub fn generate(options: &Options) -> std::result::Result<Capture, GenerateError> {
    options.validate()?;
    let mut layout = Layout::new(options);
    let different = match options.style {
        Style::Pipeline => options.ranks,
        _ => 1,
    };
    let mut programs = Vec::new();
    for rank in 0..different {
        let (mut program, asked) = step::program(options, &layout, rank);
        if rank == 0 {
            layout.settle(options, &mut program, &asked);
        }
        programs.push(program);
    }
    let outcome = simulate(options, &layout, &programs);
    Ok(Capture {
        options: options.clone(),
        layout,
        programs,
        outcome,
    })
}

impl Capture {
    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.options.ranks
    }

    /// Writes the host's file of `rank`.
    ///
    /// # Errors
    /// Those of `sink`.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn write_host(&self, rank: u32, sink: impl Write) -> Result<()> {
        assert!(rank < self.ranks(), "rank {rank} does not exist");
        host::write(self, rank, sink)
    }

    /// Writes Kineto's file of `rank`.
    ///
    /// # Errors
    /// Those of `sink`.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn write_kineto(&self, rank: u32, sink: impl Write) -> Result<()> {
        assert!(rank < self.ranks(), "rank {rank} does not exist");
        kineto::write(self, rank, sink)
    }

    /// The program of `rank`, with what its groups and devices are called.
    fn program(&self, rank: u32) -> Program {
        step::program(&self.options, &self.layout, rank).0
    }

    /// The program of `rank` but for names.
    fn shared_program(&self, rank: u32) -> &Program {
        &self.programs[(rank as usize).min(self.programs.len() - 1)]
    }

    fn clock(&self, rank: u32) -> Clock {
        clock(&self.options, rank)
    }

    /// How far the clock of `rank` is ahead.
    fn offset(&self, rank: u32) -> i64 {
        let skew = self.options.clock_skew;
        if rank == 0 || skew == 0 {
            return 0;
        }
        let drawn = draw([self.options.seed, 0x0c10c, rank.into()]) % (2 * skew + 1);
        drawn as i64 - skew as i64
    }
}
