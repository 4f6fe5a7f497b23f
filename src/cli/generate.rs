//! `chakram generate`: microbenchmarks and training steps, into files or straight into a replay.

mod capture;
mod dry_run;
mod files;
mod training;

use super::output::{Destination, Format, RunArgs, load_machine};
use crate::generate::{Chain, Collective, DataParallel, Job, Memory, P2p, Pattern, Traffic};
use crate::machine::Machine;
use crate::trace::{CollectiveKind, Dtype, MemoryPlace};
use crate::units::{Bandwidth, Bytes, FlopRate, Span};
use crate::workload::Absent;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use training::TrainingArgs;

/// Generate traces, or replay them without a file
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  chakram generate gpt3-175b --tensor 8 --pipeline 8 --data 2 --batch 64 --machine dgx-a100x16
  chakram generate collective all-reduce --size 1GB --ranks 512 --machine conv-4d
  chakram generate p2p incast --size 1MiB --ranks 8 --machine dgx-h100
  chakram generate data-parallel --ranks 8 -o /tmp/dp/job    writes /tmp/dp/job.0.et, …
  chakram generate chain --ranks 1 --nodes 1000000 --machine dgx-h100 --format json
  chakram generate capture --ranks 4 --steps 2 -o /tmp/cap   writes PyTorch's files, and the truth")]
pub struct GenerateArgs {
    #[command(subcommand)]
    pattern: Option<PatternArgs>,
    #[command(flatten)]
    training: Box<TrainingArgs>,
}

/// What becomes of the traces: files, a replay, or both.
#[derive(Debug, Args)]
struct Target {
    /// Write the traces to PREFIX.0.et, PREFIX.1.et, …
    #[arg(
        short,
        long,
        value_name = "PREFIX",
        required_unless_present = "machine"
    )]
    output: Option<PathBuf>,
    /// Replay the traces on this machine: a preset or a file
    #[arg(short, long, value_name = "MACHINE")]
    machine: Option<String>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum PatternArgs {
    /// One collective, once or several times
    #[command(
        after_help = "Example:\n  chakram generate collective all-gather --size 4MiB --ranks 16 --count 10 --machine dgx-h100x2"
    )]
    Collective {
        /// Which
        #[arg(value_parser = collective_names())]
        kind: CollectiveKind,
        /// Bytes of a rank: the whole buffer, but the shard for all-gather and gather; none for barrier
        #[arg(long, default_value = "0 B", value_name = "SIZE")]
        size: Bytes,
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Only these ranks, in this order: 0,2,4
        #[arg(long, value_name = "RANKS", value_delimiter = ',')]
        group: Option<Vec<u32>>,
        /// How many times
        #[arg(long, default_value_t = 1, value_name = "N")]
        count: u32,
        /// Each waits for the one before
        #[arg(long)]
        chained: bool,
        /// The root's rank
        #[arg(long, value_name = "RANK")]
        root: Option<u32>,
        /// Only these dimensions of the machine, innermost 0: 0,2
        #[arg(long, value_name = "DIMENSIONS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..32))]
        dimensions: Option<Vec<u32>>,
        /// Every member computes this long before
        #[arg(long, default_value = "0", value_name = "TIME")]
        before: Span,
        /// Rank r computes r times this long before
        #[arg(long, default_value = "0", value_name = "TIME")]
        skew: Span,
        #[command(flatten)]
        target: Target,
    },
    /// Messages between pairs of ranks
    #[command(
        after_help = "Example:\n  chakram generate p2p ring --size 64MiB --ranks 16 --count 4 --machine tpu-v4"
    )]
    P2p {
        /// Who sends to whom
        #[arg(value_enum)]
        traffic: TrafficArg,
        /// Bytes of a message
        #[arg(long, value_name = "SIZE")]
        size: Bytes,
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// How many rounds
        #[arg(long, default_value_t = 1, value_name = "N")]
        count: u32,
        /// For stride: rank r sends to r + N
        #[arg(long, default_value_t = 1, value_name = "N")]
        stride: u32,
        /// For random: draws the permutation
        #[arg(long, default_value_t = 0, value_name = "N")]
        seed: u64,
        #[command(flatten)]
        target: Target,
    },
    /// Kernels that wait for one another and for nothing else
    #[command(
        after_help = "Example:\n  chakram generate chain --ranks 8 --nodes 100000 --chains 4 --machine dgx-a100"
    )]
    Chain {
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Kernels of a rank
        #[arg(long, value_name = "N")]
        nodes: u32,
        /// Independent chains of a rank, each on a lane of its own
        #[arg(long, default_value_t = 1, value_name = "N")]
        chains: u32,
        /// Recorded duration of a kernel
        #[arg(long, default_value = "1 us", value_name = "TIME")]
        duration: Span,
        /// Operations of a kernel, for the roofline
        #[arg(long, default_value_t = 0, value_name = "N")]
        flops: u64,
        /// Bytes of a kernel, for the roofline
        #[arg(long, default_value = "0 B", value_name = "SIZE")]
        bytes: Bytes,
        /// Number format of a kernel, for the roofline
        #[arg(long, value_parser = dtype_names(), value_name = "FORMAT")]
        dtype: Option<Dtype>,
        #[command(flatten)]
        target: Target,
    },
    /// Loads from memory, and kernels that need them
    #[command(after_help = "\
Examples:
  chakram generate memory --ranks 256 --bytes 1GB --kernel 200us --loads 4 --machine hiermem
  chakram generate memory --ranks 256 --bytes 4MB --in-switch --store --machine hiermem-opt")]
    Memory {
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Bytes of a load or store; with --in-switch, those of one rank, which all share
        #[arg(long, value_name = "SIZE")]
        bytes: Bytes,
        /// Loads of a rank
        #[arg(long, default_value_t = 1, value_name = "N")]
        loads: u32,
        /// Recorded duration of the kernel behind each load; none by default
        #[arg(long, default_value = "0", value_name = "TIME")]
        kernel: Span,
        /// Store as many bytes after each
        #[arg(long)]
        store: bool,
        /// Loads wait for no kernel or store
        #[arg(long)]
        prefetch: bool,
        /// Switches gather what is loaded and reduce what is stored
        #[arg(long, conflicts_with = "local")]
        in_switch: bool,
        /// The NPU's own memory; that beyond it by default
        #[arg(long)]
        local: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Training steps of a transformer of which every rank holds a replica
    #[command(after_help = "\
Examples:
  chakram generate data-parallel --ranks 64 --machine dgx-h100x8 --compute roofline
  chakram generate data-parallel --ranks 8 --layers 4 --hidden 1024 -o traces/small/job")]
    DataParallel {
        /// How many ranks
        #[arg(long, value_name = "N")]
        ranks: u32,
        /// Layers of the model
        #[arg(long, default_value_t = 32, value_name = "N")]
        layers: u32,
        /// Numbers per token between layers
        #[arg(long, default_value_t = 4096, value_name = "N")]
        hidden: u32,
        /// Tokens per rank and step
        #[arg(long, default_value_t = 4096, value_name = "N")]
        tokens: u32,
        /// Tokens that attend to each other; all of a rank's by default
        #[arg(long, value_name = "N")]
        sequence: Option<u32>,
        /// Number format of weights and gradients
        #[arg(long, value_parser = dtype_names(), default_value = "bf16", value_name = "FORMAT")]
        dtype: Dtype,
        /// Training steps
        #[arg(long, default_value_t = 1, value_name = "N")]
        steps: u32,
        /// The recorded durations are those of an NPU that computes this fast …
        #[arg(long, default_value = "312 TFLOP/s", value_name = "RATE")]
        reference_flops: FlopRate,
        /// … and has memory this fast
        #[arg(long, default_value = "2.039 TB/s", value_name = "BANDWIDTH")]
        reference_bandwidth: Bandwidth,
        #[command(flatten)]
        target: Target,
    },
    /// A job as PyTorch's profiler captures it, with the truth beside it
    Capture(capture::CaptureArgs),
}

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TrafficArg {
    /// Rank 0 and the last rank, to and fro
    PingPong,
    /// Every rank to the next
    Ring,
    /// Every rank r to r + --stride
    Stride,
    /// Every rank to rank 0
    Incast,
    /// Ranks 0 and 1 to each other, 2 and 3, …
    Pairs,
    /// A random permutation, from --seed
    Random,
}

fn collective_names() -> impl TypedValueParser<Value = CollectiveKind> {
    let names = CollectiveKind::ALL.iter().map(|(_, name, _)| *name);
    PossibleValuesParser::new(names).map(|chosen| {
        let found = CollectiveKind::ALL
            .iter()
            .find(|(_, name, _)| *name == chosen);
        found.expect("the parser admits these names only").0
    })
}

fn dtype_names() -> impl TypedValueParser<Value = Dtype> {
    PossibleValuesParser::new(Dtype::ALL.iter().map(|(_, name)| *name))
        .map(|chosen| Dtype::from_name(&chosen).expect("the parser admits these names only"))
}

/// Does what `args` ask for.
///
/// # Errors
///
/// Options that make no sense, a replay that fails, or output that cannot be written.
pub fn run(args: &GenerateArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(PatternArgs::Capture(args)) = &args.pattern {
        return capture::run(args, out);
    }
    let (machine, output, given) = match &args.pattern {
        Some(args) => {
            let target = pattern(args)?.2;
            (&target.machine, &target.output, &target.run)
        }
        None => {
            let args = &args.training;
            (&args.machine, &args.output, &args.run)
        }
    };
    let run = match &args.pattern {
        Some(_) => given.clone(),
        None => given.unrecorded(),
    };
    run.check(false)?;
    let dry = args.pattern.is_none() && args.training.dry_run;
    if let (None, Some(option), false) = (machine, given.first_given(), dry) {
        return Err(format!("{option} is for a replay; add --machine MACHINE").into());
    }
    let machine = machine
        .as_ref()
        .map(|machine| load_machine(machine, run.wants_hashes()));
    let machine = machine.transpose()?;
    let (pattern, name) = match &args.pattern {
        Some(args) => {
            let (pattern, name, _) = pattern(args)?;
            (pattern, name)
        }
        None => {
            let memory = |machine: &Machine| {
                let classes = machine.classes().iter();
                classes.map(|class| class.memory.capacity.0).min()
            };
            let capacity = machine.as_ref().and_then(|(machine, _)| memory(machine));
            let (training, name) = args.training.training(capacity, &patterns())?;
            if dry {
                let summary = training.summary()?;
                let text = match run.format {
                    Format::Text => dry_run::text(&name, &summary),
                    Format::Json => dry_run::json(&name, &summary),
                    Format::Csv => return Err("--dry-run prints text or json".into()),
                };
                out.write_all(text.as_bytes())?;
                return Ok(ExitCode::SUCCESS);
            }
            (Pattern::Training(Box::new(training)), name)
        }
    };
    let job = Job::new(pattern)?;
    if let Some(prefix) = output {
        files::write(&job, prefix)?;
        if machine.is_none() {
            writeln!(
                out,
                "wrote {} ranks, {} nodes, to {}.0.et …",
                job.ranks(),
                (0..job.ranks())
                    .map(|rank| job.node_count(rank))
                    .sum::<u64>(),
                prefix.display()
            )?;
        }
    }
    if let Some((machine, inputs)) = machine {
        let mut inputs: Vec<_> = inputs.into_iter().collect();
        let workload = job.workload()?;
        let options = run.options(Absent::Refuse, &workload, &mut inputs)?;
        let mut to = Destination::Stdout(out);
        return run.replay(&workload, &name, &machine, &options, &inputs, &mut to);
    }
    Ok(ExitCode::SUCCESS)
}

/// The names of patterns.
fn patterns() -> Vec<String> {
    let command = PatternArgs::augment_subcommands(clap::Command::new("generate"));
    let names = command.get_subcommands().map(clap::Command::get_name);
    names.map(str::to_owned).collect()
}

/// What the options ask for, and what people call it.
fn pattern(args: &PatternArgs) -> Result<(Pattern, String, &Target), String> {
    Ok(match args {
        PatternArgs::Collective {
            kind,
            size,
            ranks,
            group,
            count,
            chained,
            root,
            dimensions,
            before,
            skew,
            target,
        } => {
            if *kind != CollectiveKind::Barrier && size.0 == 0 {
                return Err(format!(
                    "--size: {kind} needs bytes, for example --size 64MiB"
                ));
            }
            let mask = |list: &Vec<u32>| list.iter().fold(0, |mask, d| mask | 1 << d);
            let pattern = Pattern::Collective(Collective {
                kind: *kind,
                bytes: size.0,
                ranks: *ranks,
                group: group.clone(),
                count: *count,
                chained: *chained,
                root: *root,
                dimensions: dimensions.as_ref().map(mask),
                before: *before,
                skew: *skew,
            });
            (pattern, format!("{kind} of {size}"), target)
        }
        PatternArgs::P2p {
            traffic,
            size,
            ranks,
            count,
            stride,
            seed,
            target,
        } => {
            let shape = match traffic {
                TrafficArg::PingPong => Traffic::PingPong,
                TrafficArg::Ring => Traffic::Ring,
                TrafficArg::Stride => Traffic::Stride(*stride),
                TrafficArg::Incast => Traffic::Incast,
                TrafficArg::Pairs => Traffic::Pairs,
                TrafficArg::Random => Traffic::Random(*seed),
            };
            let pattern = Pattern::P2p(P2p {
                traffic: shape,
                ranks: *ranks,
                bytes: size.0,
                count: *count,
            });
            let name = traffic.to_possible_value();
            let name = name.as_ref().map_or("messages", |value| value.get_name());
            (pattern, format!("{name} of {size}"), target)
        }
        PatternArgs::Chain {
            ranks,
            nodes,
            chains,
            duration,
            flops,
            bytes,
            dtype,
            target,
        } => {
            let pattern = Pattern::Chain(Chain {
                ranks: *ranks,
                nodes: *nodes,
                chains: *chains,
                duration: *duration,
                flops: *flops,
                bytes: bytes.0,
                dtype: *dtype,
            });
            (pattern, "chain".to_owned(), target)
        }
        PatternArgs::Memory {
            ranks,
            bytes,
            loads,
            kernel,
            store,
            prefetch,
            in_switch,
            local,
            target,
        } => {
            let pattern = Pattern::Memory(Memory {
                ranks: *ranks,
                loads: *loads,
                bytes: bytes.0,
                place: match local {
                    true => MemoryPlace::Local,
                    false => MemoryPlace::Remote,
                },
                kernel: *kernel,
                store: *store,
                in_switch: *in_switch,
                prefetch: *prefetch,
            });
            (pattern, format!("loads of {bytes}"), target)
        }
        PatternArgs::DataParallel {
            ranks,
            layers,
            hidden,
            tokens,
            sequence,
            dtype,
            steps,
            reference_flops,
            reference_bandwidth,
            target,
        } => {
            let pattern = Pattern::DataParallel(DataParallel {
                ranks: *ranks,
                layers: *layers,
                hidden: *hidden,
                tokens: *tokens,
                sequence: sequence.unwrap_or(*tokens),
                dtype: *dtype,
                steps: *steps,
                reference_flops: *reference_flops,
                reference_bandwidth: *reference_bandwidth,
            });
            (pattern, format!("data-parallel, {layers} layers"), target)
        }
        PatternArgs::Capture(_) => unreachable!("it is no pattern, and was run"),
    })
}
