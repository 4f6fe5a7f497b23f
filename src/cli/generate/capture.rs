//! `chakram generate capture`: the files of PyTorch's profiler, of a job that never ran.

use crate::files::{OutputFile, Outputs};
use crate::generate::capture::{Bound, Capture, Device, Options, Style, generate};
use crate::trace::TraceError;
use crate::trace::file::Packer;
use crate::units::{Bandwidth, Bytes, Span};
use clap::{Args, ValueEnum};
use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How to capture.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes host.R.json (ExecutionTraceObserver) and kineto.R.json for every rank R, and truth.json.

Examples:
  chakram generate capture --ranks 4 --steps 2 -o /tmp/cap
  chakram generate capture --ranks 8 --tp 2 --device cuda --straggler 3=1.5 -o /tmp/cap
  chakram generate capture --ranks 4 --style pipeline --microbatches 8 -o /tmp/cap
  chakram generate capture --ranks 2 --layers 64 --steps 100 -z zst -o /tmp/large")]
pub struct CaptureArgs {
    /// How many ranks
    #[arg(long, value_name = "N")]
    ranks: u32,
    /// Write into this folder
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// What the job computes on
    #[arg(long, value_enum, default_value_t = DeviceArg::Cpu, value_name = "DEVICE")]
    device: DeviceArg,
    /// How ranks share the work, and which collectives they call
    #[arg(long, value_enum, default_value_t = StyleArg::Ddp, value_name = "STYLE")]
    style: StyleArg,
    /// How many ranks share each layer
    #[arg(long, default_value_t = 1, value_name = "N")]
    tp: u32,
    /// Steps to capture
    #[arg(long, default_value_t = 1, value_name = "N")]
    steps: u32,
    /// Layers of the model
    #[arg(long, default_value_t = 4, value_name = "N")]
    layers: u32,
    /// Numbers per token between layers
    #[arg(long, default_value_t = 256, value_name = "N")]
    hidden: u32,
    /// Tokens per replica and step, or per microbatch
    #[arg(long, default_value_t = 128, value_name = "N")]
    tokens: u32,
    /// Microbatches of a pipeline
    #[arg(long, default_value_t = 4, value_name = "N")]
    microbatches: u32,
    /// Gradients are reduced in buckets of this size
    #[arg(long, default_value = "1 MiB", value_name = "SIZE")]
    bucket: Bytes,
    /// How fast a collective or message transfers
    #[arg(long, default_value = "1 GB/s", value_name = "BANDWIDTH")]
    bandwidth: Bandwidth,
    /// What a step on GPUs is bound by
    #[arg(long, value_enum, default_value_t = BoundArg::Kernel, value_name = "WHAT")]
    bound: BoundArg,
    /// Whatever takes time takes up to this much longer: 50 is 5 %
    #[arg(long, default_value_t = 50, value_name = "PERMILLE")]
    skew: u32,
    /// Members of a collective end up to this long after it
    #[arg(long, default_value = "200 ns", value_name = "TIME")]
    jitter: Span,
    /// A rank that takes FACTOR times as long for everything; may be repeated
    #[arg(long, value_name = "RANK=FACTOR", value_parser = straggler)]
    straggler: Vec<(u32, u32)>,
    /// A rank that begins later: RANK=TIME, for example 3=10ms; may be repeated
    #[arg(long, value_name = "RANK=TIME", value_parser = late)]
    late: Vec<(u32, Span)>,
    /// Clocks of ranks are off by up to this much
    #[arg(long, default_value = "0", value_name = "TIME")]
    clock_skew: Span,
    /// What pseudo-random numbers come from
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Compress the files of ranks
    #[arg(short = 'z', long, value_enum, value_name = "FORMAT")]
    compress: Option<CompressArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeviceArg {
    /// Gloo
    Cpu,
    /// NCCL
    Cuda,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StyleArg {
    /// Replicas: c10d collectives, buckets of gradients
    Ddp,
    /// Replicas: _c10d_functional collectives and wait_tensor
    Functional,
    /// Stages, one forward one backward; on the CPU
    Pipeline,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BoundArg {
    /// Launching: streams are idle in between
    Launch,
    /// Kernels: they queue
    Kernel,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CompressArg {
    /// zstd
    Zst,
    /// gzip
    Gz,
}

fn straggler(text: &str) -> Result<(u32, u32), String> {
    let hint = || "expected RANK=FACTOR, for example 3=1.5".to_owned();
    let (rank, factor) = text.split_once('=').ok_or_else(hint)?;
    let rank = rank.trim().parse().map_err(|_| hint())?;
    let factor: f64 = factor.trim().parse().map_err(|_| hint())?;
    if !(0.001..=1000.0).contains(&factor) {
        return Err("expected a factor from 0.001 to 1000".to_owned());
    }
    Ok((rank, (factor * 1000.0).round() as u32))
}

fn late(text: &str) -> Result<(u32, Span), String> {
    let (rank, span) = text
        .split_once('=')
        .ok_or("expected RANK=TIME, for example 3=10ms")?;
    let rank = rank.trim().parse();
    let rank = rank.map_err(|_| format!("`{}` is no rank", text.trim()))?;
    Ok((rank, span.parse::<Span>().map_err(|e| e.to_string())?))
}

impl CaptureArgs {
    fn options(&self) -> Result<Options, String> {
        Ok(Options {
            device: match self.device {
                DeviceArg::Cpu => Device::Cpu,
                DeviceArg::Cuda => Device::Cuda,
            },
            style: match self.style {
                StyleArg::Ddp => Style::Ddp,
                StyleArg::Functional => Style::Functional,
                StyleArg::Pipeline => Style::Pipeline,
            },
            ranks: self.ranks,
            tensor_parallel: self.tp,
            steps: self.steps,
            layers: self.layers,
            hidden: self.hidden,
            tokens: self.tokens,
            microbatches: self.microbatches,
            bucket: self.bucket.0,
            bandwidth: Options::bytes_per_second(self.bandwidth),
            bound: match self.bound {
                BoundArg::Launch => Bound::Launch,
                BoundArg::Kernel => Bound::Kernel,
            },
            skew: self.skew,
            jitter: u32::try_from(Options::nanoseconds(self.jitter))
                .map_err(|_| format!("--jitter: {} is more than 4 s", self.jitter))?,
            stragglers: self.straggler.clone(),
            late: self
                .late
                .iter()
                .map(|(rank, span)| (*rank, Options::nanoseconds(*span)))
                .collect(),
            clock_skew: Options::nanoseconds(self.clock_skew),
            seed: self.seed,
        })
    }
}

/// Does what `args` ask for.
pub(super) fn run(args: &CaptureArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let capture = generate(&args.options()?)?;
    let ending = match args.compress {
        None => "",
        Some(CompressArg::Zst) => "zst",
        Some(CompressArg::Gz) => "gz",
    };
    let name = |what: &str, rank| {
        let dot = if ending.is_empty() { "" } else { "." };
        args.output.join(format!("{what}.{rank}.json{dot}{ending}"))
    };
    let mut outputs = Outputs::default();
    let mut bytes = 0;
    for rank in 0..capture.ranks() {
        bytes += write(&mut outputs, &name("host", rank), ending, |file| {
            capture.write_host(rank, file)
        })?;
        bytes += write(&mut outputs, &name("kineto", rank), ending, |file| {
            capture.write_kineto(rank, file)
        })?;
    }
    truth(&mut outputs, &capture, &args.output.join("truth.json"))?;
    outputs.commit()?;
    writeln!(
        out,
        "wrote {} ranks, {} of JSON, to {}",
        capture.ranks(),
        Bytes(bytes),
        args.output.display()
    )?;
    Ok(ExitCode::SUCCESS)
}

fn truth(outputs: &mut Outputs, capture: &Capture, path: &Path) -> Result<(), TraceError> {
    write(outputs, path, "", |file| {
        let mut file = BufWriter::new(file);
        serde_json::to_writer(&mut file, &capture.truth())?;
        file.write_all(b"\n")?;
        file.flush()
    })
    .map(drop)
}

/// Writes a file, packed as `ending` says, and returns how many bytes went in.
fn write(
    outputs: &mut Outputs,
    path: &Path,
    ending: &str,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<u64, TraceError> {
    let failed = |source| TraceError::io(path.to_owned(), "write", source);
    let packer = Packer::new(outputs.create(path)?, ending).map_err(failed)?;
    let mut counting = Counting { packer, bytes: 0 };
    body(&mut counting).map_err(failed)?;
    let file = counting.packer.finish().map_err(failed)?;
    outputs.keep(file)?;
    Ok(counting.bytes)
}

/// Counts what goes into a file.
struct Counting {
    packer: Packer<OutputFile>,
    bytes: u64,
}

impl Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.packer.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.packer.flush()
    }
}
