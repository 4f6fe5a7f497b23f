//! `chakram archive list`, `show` and `extract`.

use super::ArchivedWorkloadPath;
use crate::progress::ProgressDisplay;
use crate::terminal::plain_style;
use chakram_archive::{
    Archive, ArchiveListingReader, MetadataQuery, QueryableWorkload, RankOrNodeRange,
    RanksAndNodesToExtract, WorkloadEntry, WorkloadListingRow,
};
use chakram_base::units::{Bytes, format_count_with_noun, format_thousands};
use chakram_report::csv::CsvRows;
use chakram_report::document::VersionedDocument;
use chakram_report::text::clip_middle;
use chakram_trace::format::escape_and_shorten_name;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Output format of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// Aligned columns
    Text,
    /// One document
    Json,
    /// A row for each workload and a column for each metadata key
    Csv,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram archive list corpus.etz
  chakram archive list corpus.etz --where 'gpu = h100 and framework >= 2.5'
  chakram archive list corpus.etz --where 'not (owner = me or ranks < 8)' --format json

Conditions: KEY = VALUE, or !=, <, <=, >, >=, and ~ for `contains`; and, or, not, parentheses; values with blanks in
quotes. The keys are name, ranks and the keys of `archive add --set`. Versions are compared part by part (2.10 >
2.9), and text is compared without regard to case.

Exit codes: 0 all workloads were searched, 2 the end of the archive is damaged, so some workloads are missing")]
pub struct ListArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Select only workloads that satisfy this condition
    #[arg(long = "where", value_name = "QUESTION", value_parser = parse_metadata_query)]
    filter: Option<MetadataQuery>,
    /// Format of the list
    #[arg(long, value_enum, default_value_t = ListFormat::Text, value_name = "FORMAT")]
    format: ListFormat,
}

impl ListArgs {
    fn matches_query(&self, workload: &impl QueryableWorkload) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|query| query.matches(workload))
    }
}

/// Parses a condition of `--where`.
pub fn parse_metadata_query(text: &str) -> Result<MetadataQuery, String> {
    MetadataQuery::parse(text).map_err(|error| error.to_string())
}

/// Renders workloads as CSV. A cell is empty if the workload lacks the column's metadata key.
fn render_workloads_csv(found: &[&WorkloadListingRow<'_>]) -> String {
    let keys = found.iter().flat_map(|row| &row.metadata.0);
    let keys: BTreeSet<&str> = keys.map(|(key, _)| &key[..]).collect();
    let mut rows = CsvRows::without_header();
    rows.add_row_of_cells(
        ["name", "ranks", "trace_bytes"]
            .into_iter()
            .chain(keys.iter().copied()),
    );
    for row in found {
        let own = [
            row.name.to_string(),
            row.amounts.ranks.to_string(),
            row.amounts.bytes.to_string(),
        ];
        let value = |key: &&str| row.metadata_value(key).map(ToString::to_string);
        rows.add_row_of_cells(
            own.into_iter()
                .chain(keys.iter().map(|key| value(key).unwrap_or_default())),
        );
    }
    rows.into_text()
}

/// JSON document that `archive list` prints.
#[derive(Serialize)]
struct WorkloadListDocument<'a> {
    workloads: Vec<&'a WorkloadEntry>,
}

/// Prints the workloads that satisfy the condition.
pub fn print_workloads_matching_query(
    args: &ListArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    if args.format == ListFormat::Json {
        let archive = super::open_archive_and_warn_of_tail(&args.archive)?;
        let holds = |entry: &&WorkloadEntry| args.matches_query(*entry);
        let listed = WorkloadListDocument {
            workloads: archive.workloads().values().filter(holds).collect(),
        };
        VersionedDocument::new("chakram.archive.1", listed).print_to(out)?;
        return Ok(super::exit_code_for_archive_tail(
            archive.uncommitted_tail(),
        ));
    }
    let listing = ArchiveListingReader::open_listing(&args.archive)?;
    super::warn_of_archive_tail(listing.uncommitted_tail())?;
    let all = listing.list_workloads()?;
    let found: Vec<_> = all
        .values()
        .filter(|row| args.matches_query(*row))
        .collect();
    if args.format == ListFormat::Csv {
        out.write_all(render_workloads_csv(&found).as_bytes())?;
        return Ok(super::exit_code_for_archive_tail(
            listing.uncommitted_tail(),
        ));
    }
    // The columns of numbers and the spaces between columns are 26 characters wide. Reserve another 26 characters for
    // the metadata, and give the remaining width to the names.
    let columns = plain_style().width;
    let longest = columns.saturating_sub(52);
    let names = found.iter().map(|row| clip_middle(&row.name, longest));
    let names: Vec<_> = names.collect();
    let width = names.iter().map(|name| name.chars().count()).max();
    let width = width.unwrap_or(0);
    let (mut line, mut words) = (String::new(), String::new());
    for (row, name) in found.iter().zip(&names) {
        words.clear();
        for (key, value) in &row.metadata.0 {
            write!(words, " {key}={value}")?;
        }
        let amounts = row.amounts;
        let bytes = Bytes(amounts.bytes).to_string();
        line.clear();
        write!(
            line,
            "{name:<width$}  {:>12}  {bytes:>9} {}",
            format_count_with_noun(amounts.ranks, "rank"),
            clip_middle(&words, columns.saturating_sub(width + 26))
        )?;
        writeln!(out, "{}", line.trim_end())?;
    }
    let mut count = format_count_with_noun(all.len() as u64, "workload");
    if found.len() < all.len() {
        count = format!("{} of {count}", format_thousands(found.len() as u64));
    }
    writeln!(out, "{count}, {}", Bytes(listing.total_segment_bytes()))?;
    drop((found, names));
    // Do not free the memory: the program ends here, and freeing ten thousand workloads takes a tenth of its time.
    std::mem::forget(all);
    Ok(super::exit_code_for_archive_tail(
        listing.uncommitted_tail(),
    ))
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  chakram archive show corpus.etz::llama3/step-7")]
pub struct ShowArgs {
    /// The workload
    #[arg(value_name = "ARCHIVE::WORKLOAD", value_parser = ArchivedWorkloadPath::parse)]
    workload: ArchivedWorkloadPath,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = ListFormat::Text, value_name = "FORMAT")]
    format: ListFormat,
}

/// Prints a workload's metadata, files and baselines.
pub fn show_workload_details(
    args: &ShowArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let archive = super::open_archive_and_warn_of_tail(&args.workload.archive)?;
    let entry = archive.find_workload(&args.workload.workload)?;
    if args.format == ListFormat::Json {
        VersionedDocument::new("chakram.workload.1", entry).print_to(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{}: {}, {} of traces",
        escape_and_shorten_name(&entry.name),
        format_count_with_noun(entry.rank_count(), "rank"),
        Bytes(entry.trace_bytes())
    )?;
    for (key, value) in &entry.metadata {
        writeln!(
            out,
            "  {:<12} {}",
            escape_and_shorten_name(key),
            escape_and_shorten_name(&value.to_string())
        )?;
    }
    let provenance = &entry.provenance;
    writeln!(
        out,
        "  added by     chakram {} from {}",
        escape_and_shorten_name(&provenance.tool_version),
        escape_and_shorten_name(&provenance.sources.join(", "))
    )?;
    for from in &provenance.merged_from {
        writeln!(out, "  merged from  {}", escape_and_shorten_name(from))?;
    }
    writeln!(
        out,
        "TRACES                       bytes     packed  blake3                nodes"
    )?;
    for row in &entry.traces {
        let ranks = match row.ranks {
            1 => format!("{}.{}{}", entry.prefix, row.rank, row.ending),
            n => format!(
                "{}.{}-{}{}",
                entry.prefix,
                row.rank,
                row.rank + (n - 1),
                row.ending
            ),
        };
        let line = format_archive_file_line(&archive, &ranks, row.bytes, &row.blake3)?;
        let nodes = archive
            .object_node_count(&row.blake3)?
            .map_or_else(String::new, |n| n.to_string());
        writeln!(out, "{}", format!("{line}  {nodes:>9}").trim_end())?;
    }
    if !entry.files.is_empty() {
        writeln!(out, "FILES                        bytes     packed  blake3")?;
        for row in &entry.files {
            let line = format_archive_file_line(&archive, &row.name, row.bytes, &row.blake3)?;
            writeln!(out, "{line}")?;
        }
    }
    for baseline in &entry.baselines {
        let machine = escape_and_shorten_name(&baseline.machine);
        let makespan = chakram_base::units::Time(baseline.makespan_ps);
        writeln!(
            out,
            "BASELINE  {machine}: {makespan}, chakram {}",
            escape_and_shorten_name(&baseline.tool_version)
        )?;
        writeln!(out, "  {}", escape_and_shorten_name(&baseline.reason))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn format_archive_file_line(
    archive: &Archive,
    name: &str,
    bytes: u64,
    hash: &str,
) -> Result<String, Box<dyn Error>> {
    let packed = Bytes(archive.packed_object_size_or_zero(hash)?).to_string();
    let (name, bytes) = (escape_and_shorten_name(name), Bytes(bytes).to_string());
    let hash = &hash[..16];
    Ok(format!("  {name:<22} {bytes:>9}  {packed:>9}  {hash}"))
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram archive extract corpus.etz::llama3/step-7 -o step-7
  chakram archive extract corpus.etz::llama3/step-7 -o step-7 --ranks 0-7
  chakram archive extract corpus.etz::llama3/step-7 -o part --ranks 3 --nodes 10000-19999

Only the bytes of these ranks and nodes are read and unpacked. Nodes keep their dependencies on omitted nodes, so
use the part only for inspection: chakram inspect part")]
pub struct ExtractArgs {
    /// The workload
    #[arg(value_name = "ARCHIVE::WORKLOAD", value_parser = ArchivedWorkloadPath::parse)]
    workload: ArchivedWorkloadPath,
    /// Folder for the files, created if it does not exist
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Extract only these ranks, such as 3 or 0-7, without the job's file
    #[arg(long, value_name = "RANKS", value_parser = parse_rank_or_node_range)]
    ranks: Option<RankOrNodeRange>,
    /// Extract only these nodes of each rank, by index in its trace (0-999 for the first thousand), without the job's
    /// file
    #[arg(long, value_name = "NODES", value_parser = parse_rank_or_node_range)]
    nodes: Option<RankOrNodeRange>,
}

fn parse_rank_or_node_range(text: &str) -> Result<RankOrNodeRange, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(RankOrNodeRange { first, last }),
        _ => Err(format!(
            "`{text}` is not a range; write for example 3, or 0-7"
        )),
    }
}

/// Writes the files of a workload into the output folder, or only the chosen ranks and nodes.
pub fn extract_workload(
    args: &ExtractArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let archive = super::open_archive_and_warn_of_tail(&args.workload.archive)?;
    let entry = archive.find_workload(&args.workload.workload)?;
    let part = RanksAndNodesToExtract {
        ranks: args.ranks,
        nodes: args.nodes,
    };
    if let Some(ranks) = args.ranks
        && !(entry.ranks_with_trace_rows())
            .any(|(rank, _)| (ranks.first..=ranks.last).contains(&rank.into()))
    {
        return Err(format!(
            "--ranks {}: the workload has ranks 0 to {}, but none in this range",
            match ranks.first == ranks.last {
                true => ranks.first.to_string(),
                false => format!("{}-{}", ranks.first, ranks.last),
            },
            entry.rank_count().saturating_sub(1)
        )
        .into());
    }
    let all = entry.rank_count() + entry.files.len() as u64;
    let progress = ProgressDisplay::start_counting("extracting", "files", all);
    let files = archive.extract_workload(entry, &args.output, part, &|| progress.count_one())?;
    drop(progress);
    let count = format_count_with_noun(files.len() as u64, "file");
    writeln!(out, "{count} in {}", args.output.display())?;
    Ok(ExitCode::SUCCESS)
}
