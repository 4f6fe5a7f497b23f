//! `chakram sweep`: explores the design space of a study.

use super::progress::ProgressDisplay;
use super::terminal;
use chakram_report::report_text::render_text as render_text_report;
use chakram_studies::sweep::{
    JournaledBoundOrAnswer, NewAnswerOrBoundEvent, NewBoundAndReplayCounts, PointEvaluator,
    RESULTS, StudyExplorer, StudyShard, SweepJournal, SweepTable, SweepThreadAndShardOptions,
    compare_row_with_neighbours, load_study_with_hash, render_sweep_page,
};
use chakram_trace::files::OutputsAndProtectedInputs;
use clap::{Args, Subcommand, ValueEnum};
use std::error::Error;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

mod command;

use command::equivalent_command;

/// Find the best machine, plan or schedule of a study
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  chakram sweep study.toml
  chakram sweep study.toml -o results                     rows.csv, rows.jsonl, front.csv, index.html
  chakram sweep study.toml -o results --resume            go on after Ctrl-C
  chakram sweep study.toml -o results --resume --explain 17
  chakram sweep study.toml -o part2 --shard 2/8           one of 8 jobs of an array
  chakram sweep merge study.toml part0 part1 -o results   put shards together")]
pub struct SweepArgs {
    #[command(subcommand)]
    merge: Option<SweepShardMergeCommand>,
    /// The study: settings that all points share, axes, limits, objectives and strategies
    #[arg(value_name = "STUDY.toml", required = true)]
    study: Option<PathBuf>,
    /// Write the journal, the result rows, the Pareto front and an HTML page into this folder
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Continue the study in the output folder
    #[arg(long, requires = "output")]
    resume: bool,
    /// Only compute the points whose number has remainder I when divided by N
    #[arg(long, value_name = "I/N", requires = "output", value_parser = parse_shard)]
    shard: Option<StudyShard>,
    /// Print the full report of this row, and compare the row with its neighbours
    #[arg(long, value_name = "ROW", conflicts_with = "shard")]
    explain: Option<u64>,
    /// How many points to compute at the same time; one per core by default
    #[arg(long, value_name = "N", value_parser = crate::parse_number)]
    threads: Option<NonZeroUsize>,
    /// Maximum number of rows in the text output
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Output format
    #[arg(long, value_enum, default_value_t = SweepFormat::Text, conflicts_with = "explain", value_name = "FORMAT")]
    format: SweepFormat,
}

/// Output format of `sweep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SweepFormat {
    /// The best rows, as readable text
    Text,
    /// JSON with all rows and the front
    Json,
    /// All rows as comma-separated values
    Csv,
}

#[derive(Debug, Subcommand)]
enum SweepShardMergeCommand {
    Merge(ShardMergeArgs),
}

/// Merge the shards of a study
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  chakram sweep merge study.toml part0 part1 part2 -o results")]
struct ShardMergeArgs {
    /// The study
    #[arg(value_name = "STUDY.toml")]
    study: PathBuf,
    /// Folders of the shards
    #[arg(value_name = "FOLDER", required = true)]
    shards: Vec<PathBuf>,
    /// Write the rows, the front and the page into this folder
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Maximum number of rows in the text output
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
}

fn parse_shard(text: &str) -> Result<StudyShard, String> {
    let parts = text.split_once('/');
    let parts = parts.and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
    match parts {
        Some((index, of)) if index < of => Ok(StudyShard { index, of }),
        _ => Err("expected I/N with I from 0 to N - 1, for example 2/8".to_owned()),
    }
}

/// Explores the points of a study, or merges the shards of a study.
///
/// # Errors
///
/// Fails if the study is invalid, or if output cannot be written.
pub fn run(args: &SweepArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(SweepShardMergeCommand::Merge(args)) = &args.merge {
        return merge_shards(args, out);
    }
    let path = args.study.as_deref().unwrap_or(Path::new(""));
    let (study, hash) = load_study_with_hash(path)?;
    let (journal, known) = match &args.output {
        None => (None, Vec::new()),
        Some(folder) if args.resume => {
            let (journal, known) = SweepJournal::resume_or_create_in(folder, &hash)?;
            (Some(journal), known)
        }
        Some(folder) => (Some(SweepJournal::create_in(folder, &hash)?), Vec::new()),
    };
    let threads = args
        .threads
        .or_else(|| std::thread::available_parallelism().ok());
    let options = SweepThreadAndShardOptions {
        threads: threads.unwrap_or(NonZeroUsize::MIN),
        shard: args.shard,
        is_closed: false,
    };
    let start = Instant::now();
    let (rows, turns, done) = {
        let shards = args.shard.map_or(1, |shard| shard.of);
        let progress = ProgressDisplay::start_counting(
            "sweeping",
            "points",
            study.point_count().unwrap_or(0) / shards,
        );
        let answered = |step: &NewAnswerOrBoundEvent<'_>| {
            if !step.is_bound {
                progress.count_one();
            }
            if let Some((_, score)) = step.best {
                let objective = study.objectives[0];
                let value = if objective.is_maximised() {
                    -score
                } else {
                    score
                };
                progress.set_note(format!("best {}", objective.format_value(value)));
            }
        };
        let mut explorer = StudyExplorer::new(&study, options, journal, known, &answered)?;
        let rows = explorer.visit_points_and_return_rows()?;
        (
            rows,
            explorer.list_turns_so_far().to_vec(),
            explorer.count_new_work_so_far(),
        )
    };
    print_counts_and_rates_of_bounds_and_points(start, done)?;
    let mut table = SweepTable::new(&study, rows, &turns);
    let style = terminal::text_style(true);
    if let Some(number) = args.explain {
        let found = table.rows.iter().position(|row| row.number == number);
        let index = found.ok_or_else(|| {
            format!(
                "--explain {number}: the study has only rows 0 to {}",
                table.rows.len().saturating_sub(1)
            )
        })?;
        let point = &table.rows[index].point;
        let mut report = PointEvaluator::new(&study)
            .report_point(point)
            .map_err(|refusal| format!("--explain {number}: {}", refusal.detail))?;
        report
            .settings
            .without_effect
            .clone_from(&table.without_effect[index]);
        let title = format!("{}, row {number}", study.name);
        out.write_all(
            render_text_report(&report, &title, "as the study has it", style).as_bytes(),
        )?;
        out.write_all(compare_row_with_neighbours(&table, index, style).as_bytes())?;
        writeln!(
            out,
            "\n{}",
            equivalent_command(&study, point, &explain_command_of_sweep_row(args, number))
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    table.compute_intervals_of_best_rows(&PointEvaluator::new(&study));
    if let Some(folder) = &args.output {
        write_rows_front_and_page_files(&table, folder, path)?;
    }
    let text = match args.format {
        SweepFormat::Text => table.render_text(args.top, style),
        SweepFormat::Json => table.to_json_document(),
        SweepFormat::Csv => table.rows_csv(0..table.rows.len()),
    };
    out.write_all(text.as_bytes())?;
    // Another shard may have points with results.
    if args.shard.is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    error_exit_code_if_no_point_has_result(&table)
}

/// Returns exit code 3 if no point of `table` has a result, and then also prints to standard error what became of the
/// points.
fn error_exit_code_if_no_point_has_result(
    table: &SweepTable<'_>,
) -> Result<ExitCode, Box<dyn Error>> {
    if !table.ranked_rows().is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    terminal::print_or_capture_stderr_line(format_args!(
        "error: no point of the study has a result: {}\n  try: other values on the study's axes, or --explain ROW for \
         the reason of a row",
        table.describe_counts()
    ))?;
    Ok(ExitCode::from(3))
}

/// Prints to standard error how many bounds and points were computed, and at what rates.
fn print_counts_and_rates_of_bounds_and_points(
    start: Instant,
    done: NewBoundAndReplayCounts,
) -> io::Result<()> {
    let rate = |(count, seconds): (u64, f64), what: &str| {
        let rate = if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        };
        format!("{count} {what} in {seconds:.2} s of all threads, {rate:.1}/s")
    };
    let (bounded, replayed) = (
        rate(done.bounded, "bounds"),
        rate(done.replayed, "points answered"),
    );
    terminal::print_detail_with_elapsed_time(start, format_args!("{bounded}; {replayed}"))
}

/// Returns the `chakram sweep` command that explains a row.
fn explain_command_of_sweep_row(args: &SweepArgs, number: u64) -> String {
    let study = args.study.as_deref().unwrap_or(Path::new("")).display();
    match &args.output {
        Some(folder) => format!(
            "chakram sweep {study} -o {} --resume --explain {number}",
            folder.display()
        ),
        None => format!("chakram sweep {study} --explain {number}"),
    }
}

/// Writes the rows, the front and the page into `folder`. Writes either all files or none.
fn write_rows_front_and_page_files(
    table: &SweepTable<'_>,
    folder: &Path,
    study: &Path,
) -> Result<(), Box<dyn Error>> {
    let mut outputs = OutputsAndProtectedInputs::default();
    outputs.register_input(study);
    let explain = |index: usize| {
        let row = &table.rows[index];
        let (study, folder) = (study.display(), folder.display());
        let own = format!(
            "chakram sweep {study} -o {folder} --resume --explain {}",
            row.number
        );
        equivalent_command(table.study, &row.point, &own)
    };
    let texts = [
        table.json_lines(),
        table.rows_csv(0..table.rows.len()),
        table.rows_csv(table.pareto_front().into_iter()),
        render_sweep_page(table, &explain),
    ];
    for (name, text) in RESULTS.iter().zip(texts) {
        let mut file = outputs.create_file(&folder.join(name))?;
        file.write_all(text.as_bytes())?;
        outputs.close_file_and_queue_for_commit(file)?;
    }
    outputs.commit_all()?;
    Ok(())
}

fn merge_shards(args: &ShardMergeArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let (study, hash) = load_study_with_hash(&args.study)?;
    let mut known: Vec<JournaledBoundOrAnswer> = Vec::new();
    for folder in &args.shards {
        known.extend(SweepJournal::read_entries(folder, &hash)?);
    }
    let options = SweepThreadAndShardOptions {
        threads: NonZeroUsize::MIN,
        shard: None,
        is_closed: true,
    };
    let quiet = |_: &NewAnswerOrBoundEvent<'_>| {};
    let mut explorer = StudyExplorer::new(&study, options, None, known.clone(), &quiet)?;
    let rows = explorer.visit_points_and_return_rows()?;
    // Write the journal only after the run, so that a failed merge leaves no journal. The journal makes it possible to
    // resume the merged sweep and to explain its rows.
    let mut table = SweepTable::new(&study, rows, explorer.list_turns_so_far());
    table.compute_intervals_of_best_rows(&PointEvaluator::new(&study));
    let journal = SweepJournal::create_in(&args.output, &hash)?;
    known
        .iter()
        .try_for_each(|entry| journal.append_entry(entry))?;
    write_rows_front_and_page_files(&table, &args.output, &args.study)?;
    out.write_all(
        table
            .render_text(args.top, terminal::text_style(true))
            .as_bytes(),
    )?;
    error_exit_code_if_no_point_has_result(&table)
}
