//! `chakram schedule`: sub-layers of a model on chips, with what each step takes, over one topology or many.

mod args;
mod tables;
mod topologies;
mod work;

use super::traces;
use chakram_base::config;
use chakram_base::units::counted;
use chakram_jobs::JobOutputs;
use chakram_report::table::{TextTable, left, right};
use chakram_report::text::TextStyle;
use chakram_studies::schedule::{CycleTable, PartitionRule, ScheduledJob, write_schedule};
use chakram_trace::files::OutputSet;
use chakram_trace::format::job::JobFile;
use chakram_trace::format::write::TraceWriter;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::rc::Rc;
use work::{LayerPrices, TopologyRow};

pub use args::ScheduleArgs;

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
    let work = Rc::new(work::work(args, args.model.tensor, &mut prices)?);
    if args.model.partition == PartitionRule::Hierarchical {
        tables::partition(&args.model, out)?;
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
    let rows = topologies::rows(args, &work, &mut prices, |row| {
        tables::line(&table, row, out)
    })?;
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
        tables::steps(only("--steps")?, out)?;
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
