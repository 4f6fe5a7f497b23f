//! `chakram schedule`: schedules a model's sub-layers on chips, and computes the time of each step on one or more
//! topologies.

mod args;
mod document;
mod tables;
mod topologies;
mod work;

use super::{terminal, traces};
use chakram_base::config;
use chakram_base::units::format_count_with_noun;
use chakram_jobs::JobBeingWritten;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_studies::schedule::{
    LayerCyclesAndEnergyTable, MatrixProductPartitionRule, ScheduleWithCosts, format_schedule_file,
};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::job::JobTraceManifest;
use chakram_trace::format::write::TraceWriter;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::rc::Rc;
use tables::MatrixCutsAndTotalMovedBytes;
use work::{LayerCostCache, TopologyScheduleResult};

pub use args::{MultiChipScheduleArgs, SubLayerScheduleFormat};

/// Schedules the model or file on the topologies, and prints the result to `out`.
///
/// # Errors
///
/// Fails if a model, a file or a topology is invalid, or if output cannot be written.
pub fn schedule_on_topologies_and_print(
    args: &MultiChipScheduleArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let table = args.cycles.as_ref().map(|path| {
        let name = path.display().to_string();
        let text = config::read_file_or_standard_input(path)
            .map_err(|error| format!("cannot read {name}: {error}"))?;
        LayerCyclesAndEnergyTable::parse(&text, &name).map_err(|error| error.to_string())
    });
    let mut prices = LayerCostCache {
        model: args.accelerator,
        table: table.transpose()?,
        known: BTreeMap::new(),
        mapped: 0,
    };
    if args.format == SubLayerScheduleFormat::Csv && args.steps && args.log {
        return Err("--format csv prints one table; leave out --steps or --log".into());
    }
    let model = &args.model;
    if args.file.is_none() && model.encoders == 0 && model.decoders == 0 && model.vocabulary == 0 {
        return Err(
            "found no layers, expected a model or a file of a schedule\n  try: --decoders 2, --encoders 2, or SCHEDULE"
                .into(),
        );
    }
    let work = Rc::new(work::load_sub_layers_of_file_or_model(
        args,
        args.model.tensor,
        &mut prices,
    )?);
    let is_cut =
        args.file.is_none() && args.model.partition == MatrixProductPartitionRule::Hierarchical;
    let cuts = is_cut
        .then(|| MatrixCutsAndTotalMovedBytes::new(&args.model))
        .transpose()?;
    let is_text = args.format == SubLayerScheduleFormat::Text;
    if let Some(cuts) = cuts.as_ref().filter(|_| is_text) {
        tables::print_matrix_product_cuts(cuts, out)?;
    }
    let mut columns = vec![
        left_aligned_column("TOPOLOGY", 18),
        right_aligned_column("chips", 6),
        right_aligned_column("steps", 6),
        right_aligned_column("mean distance", 14),
        right_aligned_column("communication", 15),
        right_aligned_column("processing", 13),
        right_aligned_column("in all", 13),
        right_aligned_column("energy", 13),
    ];
    if args.dispatch.is_some() {
        columns.insert(4, right_aligned_column("host", 13));
    }
    let table = TextTable::new(columns);
    if is_text {
        terminal::print_plain_table_heading(&table, out)?;
    }
    let rows = topologies::schedule_topologies(args, &work, &mut prices, |row| match is_text {
        true => tables::write_topology_row(&table, row, out),
        false => Ok(()),
    })?;
    let mapped = prices.table.is_some().then_some(prices.mapped);
    if let Some(mapped) = mapped.filter(|mapped| *mapped > 0) {
        let all = format_count_with_noun(prices.known.len() as u64, "layer");
        let lacking =
            format!("mapped on the accelerator, as the table lacks them: {mapped} of {all}");
        match args.format {
            SubLayerScheduleFormat::Text => writeln!(out, "{lacking}")?,
            SubLayerScheduleFormat::Json => {}
            SubLayerScheduleFormat::Csv => terminal::print_note(format_args!("{lacking}"))?,
        }
    }
    let text = match args.format {
        SubLayerScheduleFormat::Text => String::new(),
        SubLayerScheduleFormat::Json => document::render_json(&rows, cuts.as_ref(), mapped),
        SubLayerScheduleFormat::Csv if args.steps => document::csv_steps(&rows),
        SubLayerScheduleFormat::Csv if args.log => document::csv_data_need_and_eviction_log(&rows),
        SubLayerScheduleFormat::Csv => document::csv_topologies(&rows),
    };
    out.write_all(text.as_bytes())?;
    let only = |what: &str| match &rows[..] {
        [row] => Ok(row),
        _ => Err(format!(
            "{what} is for one topology, but there are {}",
            rows.len()
        )),
    };
    if args.steps && is_text {
        tables::print_steps(only("--steps")?, out)?;
    }
    if args.log && is_text {
        writeln!(out)?;
        for entry in &only("--log")?.totals.log {
            writeln!(out, "{entry}")?;
        }
    }
    if let Some(path) = &args.output {
        let row = only("-o")?;
        let mut outputs = OutputsAndProtectedInputs::default();
        args.file
            .iter()
            .for_each(|file| outputs.register_input(file));
        let mut file = outputs.create_file(path)?;
        file.write_all(format_schedule_file(&row.work.graph, &row.schedule).as_bytes())?;
        file.commit()?;
    }
    if let Some(prefix) = &args.traces {
        let row = only("--traces")?;
        let saved = write_traces(row, prefix, args)?;
        match is_text {
            true => writeln!(out, "\n{saved}")?,
            false => terminal::print_note(format_args!("{saved}"))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes one trace per chip.
fn write_traces(
    row: &TopologyScheduleResult,
    prefix: &std::path::Path,
    args: &MultiChipScheduleArgs,
) -> Result<String, Box<dyn Error>> {
    let mut outputs = JobBeingWritten::new(prefix, "", OutputsAndProtectedInputs::default())?;
    let job = ScheduleWithCosts {
        graph: &row.work.graph,
        schedule: &row.schedule,
        costs: &row.work.costs,
        totals: &row.totals,
        barriers: !args.without_barriers,
        accelerators: row.accelerators,
    };
    for chip in 0..row.chip_count() as u32 {
        let target = outputs.path_of_rank(chip);
        let mut writer = TraceWriter::new(outputs.start_trace(chip)?)?;
        let nodes = job.write_chip_nodes(chip, &mut writer);
        nodes.map_err(|error| error.fill_missing_output_path(&target))?;
        outputs.finish_trace(chip, writer.into_unflushed_sink())?;
    }
    traces::name_job_traces_and_note_others(&outputs.commit_job(JobTraceManifest::default())?)
}
