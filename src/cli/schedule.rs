//! `chakram schedule`: sub-layers of a model on chips, with what each step takes, over one topology or many.

use super::traces;
use crate::compute::{LayerShape, LoopNestModel, parse_loop_nest, search_mapping};
use crate::config;
use crate::files::OutputSet;
use crate::generate::p2p::split_mix;
use crate::job::JobOutputs;
use crate::report::table::{TextTable, left, right};
use crate::report::text::TextStyle;
use crate::schedule::{
    ChipMachine, ChipSchedule, CutAlong, CycleTable, LanguageModel, ListRule, PartitionRule,
    PartitionedModel, ScheduledJob, StepError, StepTotals, TaskCost, TaskGraph, parse_schedule,
    schedule, write_schedule,
};
use crate::topology::chip_graph::{ChipGraph, LinkInterpolation, LinkTechnology};
use crate::trace::job::JobFile;
use crate::trace::write::TraceWriter;
use crate::units::{Bandwidth, Bytes, Span, counted};
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Schedule the sub-layers of a model on chips, step by step
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram schedule --decoders 2 --tensor 8 --topology torus:2x4 --topology mesh:2x4
  chakram schedule --decoders 2 --topology tori:36 --interpolate log
  chakram schedule --decoders 2 --topology random:250 --seed 1 --interpolate log
  chakram schedule --decoders 1 --topology ring:4:… -o schedule.txt --log
  chakram schedule schedule.txt --topology chips.topology --traces steps")]
pub struct ScheduleArgs {
    /// A schedule file, in place of a model
    #[arg(value_name = "SCHEDULE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    model: ModelSizes,
    /// torus:2x4, mesh:2x4, ring:8, a topology file, interfaces:8 without links; tori:36, the best torus of each number
    /// of chips up to it; or random:250, that many graphs drawn. Several times for several
    #[arg(long, value_name = "GRAPH", required = true)]
    topology: Vec<String>,
    /// Chips of graphs that are drawn, fewer than this
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(3..=256))]
    below: u32,
    /// Seed of graphs that are drawn
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Rule that assigns sub-layers to chips
    #[arg(long, value_enum, default_value_t = RuleArg::Steps, value_name = "RULE")]
    rule: RuleArg,
    /// Rates of links by the number of links of a chip, and perhaps of interfaces: 1=180GB/s,3=64GB/s,interface=1GB/s
    #[arg(long, value_name = "LINKS=RATE,…", value_parser = LinkTechnology::parse)]
    rates: Option<LinkTechnology>,
    /// Rates of links for numbers of them that the table lacks
    #[arg(long, value_enum, default_value_t = InterpolateArg::None, value_name = "RULE")]
    interpolate: InterpolateArg,
    /// Memory of a chip; sub-layers that are larger are cut into more parts, and data leave for others
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Bandwidth of a chip's memory, which takes in all transfers of a stage
    #[arg(long, value_name = "RATE")]
    memory_bandwidth: Option<Bandwidth>,
    /// Watts of a connection while it transfers
    #[arg(long, value_name = "WATTS", default_value_t = 0.0)]
    power: f64,
    /// Accelerator of a chip
    #[arg(long, value_name = "ACCELERATOR", default_value = "gemmini-16,scratchpad=32MB", value_parser = parse_loop_nest)]
    accelerator: LoopNestModel,
    /// Accelerators of a chip, which share its memory and its connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    accelerators: u16,
    /// Time in which the host issues a command, of which each transfer and each sub-layer takes one
    #[arg(long, value_name = "TIME")]
    dispatch: Option<Span>,
    /// Cycles of layers, as Timeloop or FireSim found them, in a CSV file; layers that it lacks are mapped
    #[arg(long, value_name = "FILE")]
    cycles: Option<PathBuf>,
    /// Print what each step takes
    #[arg(long)]
    steps: bool,
    /// Print where the data of each step are
    #[arg(long)]
    log: bool,
    /// Write the schedule to this file, of one topology
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a trace for each chip, of one topology, with barriers around the sub-layers of each step
    #[arg(long, value_name = "PREFIX")]
    traces: Option<PathBuf>,
    /// Leave out barriers in traces
    #[arg(long, requires = "traces")]
    without_barriers: bool,
}

/// Sizes of a model.
#[derive(Clone, Copy, Debug, Args)]
struct ModelSizes {
    /// Width of embeddings
    #[arg(long, value_name = "N", default_value_t = 512, conflicts_with = "file")]
    embedding: u64,
    /// Width of the feed-forward part
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2048,
        conflicts_with = "file"
    )]
    forward: u64,
    /// Heads of attention
    #[arg(long, value_name = "N", default_value_t = 8, conflicts_with = "file")]
    heads: u64,
    /// Encoder layers
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "file")]
    encoders: u32,
    /// Decoder layers
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "file")]
    decoders: u32,
    /// Tokens that there are; 0 leaves out the product onto them
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "file")]
    vocabulary: u64,
    /// Tokens of a sequence
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "file")]
    sequence: u64,
    /// Sequences, one after another
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file")]
    micro_batches: u32,
    /// Parts of each product
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "file")]
    tensor: u64,
    /// Rule that cuts products into parts
    #[arg(
        long,
        value_enum,
        default_value_t = PartitionArg::Columns,
        value_name = "RULE",
        conflicts_with = "file"
    )]
    partition: PartitionArg,
}

/// Rule that cuts products into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PartitionArg {
    /// All over columns, as tensor parallelism does
    Columns,
    /// All over rows, as data parallelism does
    Rows,
    /// Each as moves least, found by hierarchical dynamic programming as HyPar does
    Hypar,
}

impl ModelSizes {
    /// The model in so many parts.
    fn model(&self, parts: u64) -> LanguageModel {
        LanguageModel {
            embedding: self.embedding,
            forward: self.forward,
            heads: self.heads,
            encoders: self.encoders,
            decoders: self.decoders,
            vocabulary: self.vocabulary,
            sequence: self.sequence,
            micro_batches: self.micro_batches,
            tensor: parts,
            partition: match self.partition {
                PartitionArg::Columns => PartitionRule::Columns,
                PartitionArg::Rows => PartitionRule::Rows,
                PartitionArg::Hypar => PartitionRule::Hierarchical,
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RuleArg {
    /// One a chip in each step
    Steps,
    /// When a chip is free, as long as they have operations
    Durations,
    /// DEAP's Algorithm 1 as printed
    Printed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InterpolateArg {
    /// They are unknown
    None,
    /// That of the next larger number
    Step,
    /// A line between logarithms
    Log,
}

/// Sub-layers with what they cost, and a schedule if a file has one.
struct ScheduledWork {
    graph: TaskGraph,
    costs: Vec<TaskCost>,
    given: Option<ChipSchedule>,
    /// Parts of each product.
    parts: u64,
}

/// Answer on a topology.
struct TopologyRow {
    links: Option<ChipGraph>,
    name: String,
    schedule: ChipSchedule,
    totals: StepTotals,
    work: std::rc::Rc<ScheduledWork>,
    /// Accelerators of a chip.
    accelerators: usize,
    /// Whether the host takes time.
    has_host: bool,
}

impl TopologyRow {
    fn chips(&self) -> usize {
        self.schedule.chips.len().div_ceil(self.accelerators)
    }
}

/// Does what `args` ask for and prints to `out`.
///
/// # Errors
///
/// Models, files and topologies that are refused, and output that cannot be written.
pub fn run(args: &ScheduleArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let table = args.cycles.as_ref().map(|path| {
        let name = path.display().to_string();
        let text = config::read(path).map_err(|error| format!("cannot read {name}: {error}"))?;
        CycleTable::parse(&text, &name).map_err(|error| error.to_string())
    });
    let mut prices = LayerPrices {
        model: args.accelerator,
        table: table.transpose()?,
        known: BTreeMap::new(),
        mapped: 0,
    };
    let work = std::rc::Rc::new(work(args, args.model.tensor, &mut prices)?);
    if args.model.partition == PartitionArg::Hypar {
        partition(&args.model, out)?;
    }
    let mut columns = vec![
        left("TOPOLOGY", 18),
        right("chips", 6),
        right("steps", 6),
        right("mean distance", 14),
        right("communication", 15),
        right("processing", 13),
        right("in all", 13),
        right("energy", 13),
    ];
    if args.dispatch.is_some() {
        columns.insert(4, right("host", 13));
    }
    let table = TextTable::new(columns);
    out.write_all(table.first_line(TextStyle::default()).as_bytes())?;
    let mut rows: Vec<TopologyRow> = Vec::new();
    let mut state = args.seed;
    for name in &args.topology {
        if let Some(most) = number_behind(name, "tori:", 1024)? {
            for chips in 1..=most {
                let widths = (1..=chips)
                    .filter(|width| chips.is_multiple_of(*width) && width * width <= chips);
                let mut best: Option<TopologyRow> = None;
                for width in widths {
                    let graph = ChipGraph::named(&format!("torus:{}x{width}", chips / width))?;
                    let row = on(args, &work, Some(graph), chips as usize, &mut prices)?;
                    if best
                        .as_ref()
                        .is_none_or(|best| row.totals.seconds() < best.totals.seconds())
                    {
                        best = Some(row);
                    }
                }
                let row = best.ok_or("there is no torus")?;
                line(&table, &row, out)?;
                rows.push(row);
            }
        } else if let Some(draws) = number_behind(name, "random:", 100_000)? {
            let mut best: Option<f64> = None;
            for draw in 1..=draws {
                let random = &mut || split_mix(&mut state);
                let chips = 2 + ((u128::from(random()) * u128::from(args.below - 2)) >> 64) as u32;
                let graph = ChipGraph::random(chips, random);
                let row = match on(args, &work, Some(graph), chips as usize, &mut prices) {
                    // Chips of more links than the table has do not exist.
                    Err(error)
                        if error
                            .downcast_ref::<StepError>()
                            .is_some_and(|error| matches!(error, StepError::NoRate(_))) =>
                    {
                        continue;
                    }
                    other => other?,
                };
                if best.is_none_or(|best| row.totals.seconds() < best) {
                    best = Some(row.totals.seconds());
                    let row = TopologyRow {
                        name: format!("draw {draw}"),
                        ..row
                    };
                    line(&table, &row, out)?;
                    rows.push(row);
                }
            }
        } else {
            let (graph, chips) = topology(name)?;
            let row = on(args, &work, graph, chips, &mut prices)?;
            line(&table, &row, out)?;
            rows.push(row);
        }
    }
    if prices.table.is_some() && prices.mapped > 0 {
        let (mapped, all) = (prices.mapped, prices.known.len());
        writeln!(
            out,
            "mapped on the accelerator, as the table lacks them: {mapped} of {}",
            counted(all as u64, "layer")
        )?;
    }
    let only = |what: &str| match &rows[..] {
        [row] => Ok(row),
        _ => Err(format!(
            "{what} is of one topology, and there are {}",
            rows.len()
        )),
    };
    if args.steps {
        steps(only("--steps")?, out)?;
    }
    if args.log {
        writeln!(out)?;
        for entry in &only("--log")?.totals.log {
            writeln!(out, "{entry}")?;
        }
    }
    if let Some(path) = &args.output {
        let row = only("-o")?;
        let mut outputs = OutputSet::default();
        args.file.iter().for_each(|file| outputs.reads(file));
        let mut file = outputs.create(path)?;
        file.write_all(write_schedule(&row.work.graph, &row.schedule).as_bytes())?;
        file.commit()?;
    }
    if let Some(prefix) = &args.traces {
        let row = only("--traces")?;
        writeln!(out, "\n{}", write_traces(row, prefix, args)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The number behind `word`, if `name` begins with it.
fn number_behind(name: &str, word: &str, most: u32) -> Result<Option<u32>, String> {
    let Some(number) = name.strip_prefix(word) else {
        return Ok(None);
    };
    let found = number.parse().ok().filter(|n| (1..=most).contains(n));
    found
        .map(Some)
        .ok_or_else(|| format!("--topology {name}: expected {word}N with N from 1 to {most}"))
}

/// The graph called `name`, and the number of its chips.
fn topology(name: &str) -> Result<(Option<ChipGraph>, usize), Box<dyn Error>> {
    if let Some(chips) = number_behind(name, "interfaces:", 4096)? {
        return Ok((None, chips as usize));
    }
    let graph = if name.contains('/') || !name.contains(':') {
        let text = config::read(name).map_err(|error| format!("cannot read {name}: {error}"))?;
        ChipGraph::parse(&text, name)?
    } else {
        ChipGraph::named(name)?
    };
    let chips = graph.chips() as usize;
    Ok((Some(graph), chips))
}

/// Sizes, strides and dilations of a layer.
type LayerKey = ([u64; 7], [u64; 2], [u64; 2]);

/// Costs of layers, each found out once.
struct LayerPrices {
    model: LoopNestModel,
    table: Option<CycleTable>,
    known: BTreeMap<LayerKey, TaskCost>,
    /// Layers that the table lacks.
    mapped: usize,
}

impl LayerPrices {
    fn cost(&mut self, layer: &LayerShape) -> Result<TaskCost, String> {
        let model = self.model;
        let key = (layer.sizes, layer.stride, layer.dilation);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let clock = model.gemmini.clock;
        if let Some(row) = self.table.as_ref().and_then(|table| table.get(layer)) {
            let cost = TaskCost {
                seconds: clock.cycles(row.cycles).seconds(),
                joules: row.energy.unwrap_or(0.0) * 1e-12,
                cycles: row.cycles,
            };
            self.known.insert(key, cost);
            return Ok(cost);
        }
        self.mapped += 1;
        let found = search_mapping(
            &model.gemmini.accelerator(1),
            layer,
            model.mappings,
            model.seed,
        );
        let found = found
            .ok_or("no mapping of a sub-layer can be\n  try: more mappings in --accelerator")?;
        let cost = TaskCost {
            seconds: clock.cycles(found.cost.cycles).seconds(),
            joules: found.cost.energy * 1e-12,
            cycles: found.cost.cycles,
        };
        self.known.insert(key, cost);
        Ok(cost)
    }
}

/// The sub-layers of the file, or of the model in so many parts.
fn work(
    args: &ScheduleArgs,
    parts: u64,
    prices: &mut LayerPrices,
) -> Result<ScheduledWork, Box<dyn Error>> {
    let (graph, given) = match &args.file {
        Some(path) => {
            let name = path.display().to_string();
            let text =
                config::read(path).map_err(|error| format!("cannot read {name}: {error}"))?;
            let (graph, schedule) = parse_schedule(&text, &name)?;
            (graph, Some(schedule))
        }
        None => {
            let model = args.model.model(parts);
            (model.tasks()?, None)
        }
    };
    let costs = graph
        .tasks
        .iter()
        .map(|task| prices.cost(&task.record.shape));
    Ok(ScheduledWork {
        costs: costs.collect::<Result<_, _>>()?,
        graph,
        given,
        parts,
    })
}

/// Follows the work on a topology; where a chip's memory is too small for a sub-layer, with products cut into more parts.
fn on(
    args: &ScheduleArgs,
    work: &std::rc::Rc<ScheduledWork>,
    links: Option<ChipGraph>,
    chips: usize,
    prices: &mut LayerPrices,
) -> Result<TopologyRow, Box<dyn Error>> {
    let rule = match args.rule {
        RuleArg::Steps => ListRule::Steps,
        RuleArg::Durations => ListRule::Durations,
        RuleArg::Printed => ListRule::Printed,
    };
    let interpolation = match args.interpolate {
        InterpolateArg::None => LinkInterpolation::None,
        InterpolateArg::Step => LinkInterpolation::Step,
        InterpolateArg::Log => LinkInterpolation::Logarithmic,
    };
    let table = LinkTechnology::table_three(interpolation);
    let technology = LinkTechnology {
        interpolation,
        ..args.rates.clone().unwrap_or(table)
    };
    let machine = ChipMachine {
        links,
        technology,
        capacity: args.memory.map(|size| size.0),
        memory_bandwidth: args.memory_bandwidth.map(Bandwidth::bytes_per_second),
        connection_power: args.power,
        word: 1,
        accelerators: args.accelerators.into(),
        dispatch: args.dispatch.map_or(0.0, Span::seconds),
    };
    let slots = chips * machine.accelerators;
    let mut work = std::rc::Rc::clone(work);
    loop {
        let schedule = match &work.given {
            Some(given) => given.clone(),
            None => schedule(&work.graph, slots, rule)?,
        };
        let totals = match machine.steps(&work.graph, &schedule, &work.costs) {
            Err(StepError::DoesNotFit { .. }) if work.given.is_none() && work.parts < 4096 => {
                work = std::rc::Rc::new(self::work(args, work.parts * 2, prices)?);
                continue;
            }
            other => other?,
        };
        let name = machine.links.as_ref().map_or("interfaces", ChipGraph::name);
        let name = if work.parts > args.model.tensor {
            format!("{name}, {} parts", work.parts)
        } else {
            name.to_owned()
        };
        return Ok(TopologyRow {
            name,
            links: machine.links,
            schedule,
            totals,
            work,
            accelerators: machine.accelerators,
            has_host: args.dispatch.is_some(),
        });
    }
}

/// Formats seconds.
fn time(seconds: f64) -> String {
    format!("{:.3} us", seconds * 1e6)
}

fn line(
    table: &TextTable<'_>,
    row: &TopologyRow,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let steps = &row.totals.steps;
    let sum = |of: fn(&crate::schedule::StepCost) -> f64| steps.iter().map(of).sum::<f64>();
    let distance = row
        .links
        .as_ref()
        .map(|links| links.summary().mean_distance);
    let mut cells = vec![
        row.name.clone(),
        row.chips().to_string(),
        steps.len().to_string(),
        distance.map_or("-".to_owned(), |far| format!("{far:.3}")),
        time(sum(|step| step.communication)),
        time(sum(|step| step.processing)),
        time(row.totals.seconds()),
        format!("{:.3} uJ", row.totals.joules() * 1e6),
    ];
    if row.has_host {
        cells.insert(4, time(sum(|step| step.dispatch)));
    }
    let cells: Vec<&dyn std::fmt::Display> = cells.iter().map(|cell| cell as _).collect();
    out.write_all(table.line(&cells, anstyle::Style::new()).as_bytes())?;
    Ok(())
}

/// Prints how products are cut, and what that moves beside cuts of one kind.
fn partition(sizes: &ModelSizes, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let by = |partition| -> Result<PartitionedModel, Box<dyn Error>> {
        let model = LanguageModel {
            partition,
            ..sizes.model(sizes.tensor)
        };
        Ok(model.partitioned()?)
    };
    let best = by(PartitionRule::Hierarchical)?;
    // Layers are cut alike more often than not.
    let mut cuts: Vec<(String, String, usize)> = Vec::new();
    for (name, cut) in &best.products {
        let name = name.split_once(": ").map_or(&name[..], |(_, name)| name);
        let cut = cut.iter().map(|along| match along {
            CutAlong::Rows => "rows",
            CutAlong::Columns => "columns",
        });
        let cut = cut.collect::<Vec<_>>().join(", ");
        match cuts
            .iter_mut()
            .find(|(own, of, _)| own == name && *of == cut)
        {
            Some((_, _, count)) => *count += 1,
            None => cuts.push((name.to_owned(), cut, 1)),
        }
    }
    let columns = [
        left("PRODUCT", 38),
        right("layers", 7),
        right("cut along", 30),
    ];
    let table = TextTable::new(columns);
    out.write_all(table.first_line(TextStyle::default()).as_bytes())?;
    for (name, cut, count) in &cuts {
        let cells: [&dyn std::fmt::Display; 3] = [name, count, cut];
        out.write_all(table.line(&cells, anstyle::Style::new()).as_bytes())?;
    }
    // A word is a byte here.
    let other = |partition| by(partition).map_or("-".to_owned(), |of| Bytes(of.words).to_string());
    writeln!(
        out,
        "{} are moved, {} with all along columns, {} with all along rows\n",
        Bytes(best.words),
        other(PartitionRule::Columns),
        other(PartitionRule::Rows)
    )?;
    Ok(())
}

/// Prints what each step takes.
fn steps(row: &TopologyRow, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let columns = [
        left("STEP", 6),
        right("communication", 15),
        right("processing", 15),
        right("cycles", 12),
        right("between chips", 15),
        right("memory", 13),
        right("energy", 13),
        right("power", 12),
    ];
    let table = TextTable::new(columns);
    out.write_all(table.headings(TextStyle::default()).as_bytes())?;
    for (number, step) in row.totals.steps.iter().enumerate() {
        let seconds = step.dispatch + step.communication + step.processing;
        let watts = if seconds > 0.0 {
            step.joules / seconds
        } else {
            0.0
        };
        let cells: [&dyn std::fmt::Display; 8] = [
            &number,
            &time(step.communication),
            &time(step.processing),
            &step.cycles,
            &format!("{} B", step.between_chips),
            &format!("{} B", step.memory),
            &format!("{:.3} uJ", step.joules * 1e6),
            &format!("{watts:.3} W"),
        ];
        out.write_all(table.line(&cells, anstyle::Style::new()).as_bytes())?;
    }
    Ok(())
}

/// Writes a trace for each chip.
fn write_traces(
    row: &TopologyRow,
    prefix: &std::path::Path,
    args: &ScheduleArgs,
) -> Result<String, Box<dyn Error>> {
    let mut outputs = JobOutputs::new(prefix, "", OutputSet::default())?;
    let job = ScheduledJob {
        graph: &row.work.graph,
        schedule: &row.schedule,
        costs: &row.work.costs,
        totals: &row.totals,
        barriers: !args.without_barriers,
        accelerators: row.accelerators,
    };
    for chip in 0..row.chips() as u32 {
        let target = outputs.path(chip);
        let mut writer = TraceWriter::new(outputs.start(chip)?)?;
        let nodes = job.nodes(chip, &mut writer);
        nodes.map_err(|error| error.writing_to(&target))?;
        outputs.finish(chip, writer.into_inner())?;
    }
    traces::saved(&outputs.commit(JobFile::default())?)
}
