//! Options of captures, and the rules for their combinations.

use super::EPOCH;
use clap::{Args, ValueEnum};
use std::fmt::{self, Display};

/// An option or combination of options is invalid, or exceeds the simulation's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError(String);

impl Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionError {}

fn refuse_option(option: &str, found: impl Display, expected: impl Display) -> OptionError {
    OptionError(format!("`{option}` is {found}; expected {expected}"))
}

fn check_at_least(option: &str, value: u32, least: u32) -> Result<(), OptionError> {
    if value < least {
        return Err(refuse_option(option, value, format!("{least} or more")));
    }
    Ok(())
}

fn check_limit(what: &str, found: u128, limit: u128, hint: &str) -> Result<(), OptionError> {
    if found > limit {
        let text =
            format!("{what} would be {found}, and {limit} are simulated at most; try {hint}");
        return Err(OptionError(text));
    }
    Ok(())
}

/// Device of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// The CPU, and Gloo.
    Cpu,
    /// NVIDIA's GPUs, and NCCL.
    Cuda,
}

impl Device {
    pub(super) fn list_backends(self) -> &'static str {
        match self {
            Self::Cpu => "cpu:gloo,cuda:gloo",
            Self::Cuda => "cuda:nccl",
        }
    }
}

/// How the work is divided among ranks, and which collectives the ranks call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JobParallelism {
    /// Replicas that call `c10d::allreduce_` for buckets, as in `DistributedDataParallel`.
    Ddp,
    /// Replicas that call `_c10d_functional` collectives and `wait_tensor`.
    Functional,
    /// Pipeline stages that exchange messages with their neighbours, and alternate between one forward and one backward
    /// pass. Valid only on the CPU.
    Pipeline,
}

/// What limits a step's speed on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LaunchOrKernelBound {
    /// Kernels are shorter than their launches.
    Launch,
    /// Kernels take longer than their launches, so they queue.
    Kernel,
}

/// Options of a capture.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Options {
    /// Device of the job
    #[arg(long, value_enum, default_value_t = Device::Cpu, value_name = "DEVICE")]
    pub device: Device,
    /// Division of work among ranks, and the collectives that they call
    #[arg(long, value_enum, default_value_t = JobParallelism::Ddp, value_name = "STYLE")]
    pub style: JobParallelism,
    /// Number of ranks
    #[arg(long, value_name = "N")]
    pub ranks: u32,
    /// Number of ranks that share each layer; 1 for no tensor parallelism
    #[arg(long = "tp", default_value_t = 1, value_name = "N")]
    pub tensor_parallel: u32,
    /// Number of captured steps
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub steps: u32,
    /// Layers of the model
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub layers: u32,
    /// Numbers per token between layers
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub hidden: u32,
    /// Tokens per replica and step, or per microbatch
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub tokens: u32,
    /// Microbatches per step of a pipeline
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub microbatches: u32,
    /// Size of a full bucket of gradients, in bytes
    #[arg(long, default_value_t = 1 << 20, value_name = "BYTES")]
    pub bucket: u64,
    /// Bytes per second of a collective or message
    #[arg(long, default_value_t = 1_000_000_000, value_name = "BYTES_PER_SECOND")]
    pub bandwidth: u64,
    /// Bound of a step on a GPU
    #[arg(long, value_enum, default_value_t = LaunchOrKernelBound::Kernel, value_name = "WHAT")]
    pub bound: LaunchOrKernelBound,
    /// Maximum random extra time of every action, in thousandths
    #[arg(long, default_value_t = 50, value_name = "PERMILLE")]
    pub skew: u32,
    /// Maximum random delay from the end of a collective to its end on a member, in nanoseconds
    #[arg(long, default_value_t = 200, value_name = "NS")]
    pub jitter: u32,
    /// A rank that takes FACTOR times as long for every action, rounded to thousandths; may be
    /// repeated
    #[arg(long = "straggler", value_name = "RANK=FACTOR", value_parser = parse_straggler)]
    pub stragglers: Vec<(u32, u32)>,
    /// A rank that begins this many nanoseconds after the others; may be repeated
    #[arg(long, value_name = "RANK=NS", value_parser = parse_late_rank)]
    pub late: Vec<(u32, u64)>,
    /// Clocks of ranks other than 0 are off by up to this many nanoseconds
    #[arg(long, default_value_t = 0, value_name = "NS")]
    pub clock_skew: u64,
    /// Seed of pseudo-random numbers
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
}

/// Parses RANK=VALUE.
fn parse_rank_value<T: std::str::FromStr>(text: &str, value: &str) -> Result<(u32, T), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(rank, value)| Some((rank.trim().parse().ok()?, value.trim().parse().ok()?)));
    parsed.ok_or_else(|| format!("expected RANK={value}"))
}

fn parse_straggler(text: &str) -> Result<(u32, u32), String> {
    let (rank, factor) = parse_rank_value::<f64>(text, "FACTOR, for example 3=1.5")?;
    if !(0.001..=1000.0).contains(&factor) {
        return Err("expected a factor from 0.001 to 1000".to_owned());
    }
    Ok((rank, (factor * 1000.0).round() as u32))
}

fn parse_late_rank(text: &str) -> Result<(u32, u64), String> {
    parse_rank_value(text, "NS, for example 3=10000000")
}

impl Options {
    /// Returns options for a small job that uses every feature.
    pub fn new(device: Device, style: JobParallelism, ranks: u32) -> Self {
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
            bound: LaunchOrKernelBound::Kernel,
            skew: 50,
            jitter: 200,
            stragglers: Vec::new(),
            late: Vec::new(),
            clock_skew: 0,
            seed: 0,
        }
    }

    /// Fails if an option or combination of options is invalid.
    pub fn validate_options(&self) -> Result<(), OptionError> {
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
            return Err(refuse_option(
                "tp",
                tp,
                format!("a divisor of the {ranks} ranks"),
            ));
        }
        for (option, value) in [("hidden", self.hidden * 4), ("tokens", self.tokens)] {
            if !value.is_multiple_of(tp) {
                let expected = format!("a multiple of the {tp} ranks that share a layer");
                return Err(refuse_option(option, value, expected));
            }
        }
        if self.bandwidth < 1000 {
            let found = format!("{} B/s", self.bandwidth);
            return Err(refuse_option("bandwidth", found, "1 kB/s or more"));
        }
        for (rank, factor) in &self.stragglers {
            if *rank >= ranks {
                return Err(refuse_option(
                    "straggler",
                    rank,
                    format!("a rank below {ranks}"),
                ));
            }
            if !(1..=1_000_000).contains(factor) {
                let found = f64::from(*factor) / 1000.0;
                return Err(refuse_option(
                    "straggler",
                    found,
                    "a factor from 0.001 to 1000",
                ));
            }
        }
        for (rank, late) in &self.late {
            if *rank >= ranks {
                return Err(refuse_option("late", rank, format!("a rank below {ranks}")));
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
            return Err(refuse_option("clock_skew", found, "three weeks at most"));
        }
        if self.style == JobParallelism::Pipeline {
            self.validate_pipeline()?;
        }
        self.validate_time_and_memory_bounds()
    }

    fn validate_pipeline(&self) -> Result<(), OptionError> {
        if self.device == Device::Cuda {
            return Err(refuse_option(
                "style",
                "pipeline",
                "ddp or functional on cuda",
            ));
        }
        check_at_least("ranks", self.ranks, 2)?;
        if self.tensor_parallel > 1 {
            return Err(refuse_option("tp", self.tensor_parallel, "1 in a pipeline"));
        }
        if !self.layers.is_multiple_of(self.ranks) {
            let expected = format!("a multiple of the {} stages", self.ranks);
            return Err(refuse_option("layers", self.layers, expected));
        }
        Ok(())
    }

    /// Checks that times stay below 2^62 ns, and that each rank's history fits into memory.
    fn validate_time_and_memory_bounds(&self) -> Result<(), OptionError> {
        let wide = |value: u32| u128::from(value);
        let (h, tokens, layers) = (wide(self.hidden), wide(self.tokens), wide(self.layers));
        let many = match self.style {
            JobParallelism::Pipeline => wide(self.microbatches),
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
            JobParallelism::Pipeline => many * 4,
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
