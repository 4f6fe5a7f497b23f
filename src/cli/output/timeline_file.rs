//! Writes a timeline file, and selects the part of the replay that it shows.

use super::ReportDestinationAndOutputs;
use crate::terminal;
use chakram_base::units::{Span, Time};
use chakram_engine::CompiledReplay;
use chakram_report::TimelineWriter;
use chakram_report::timeline::{TimelineFormat, TimelineSelection};
use chakram_trace::files::{OutputFile, OutputsAndProtectedInputs};
use chakram_trace::format::TraceError;
use chakram_trace::format::file::GzipWriter;
use clap::Args;
use std::error::Error;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Arguments about the timeline.
#[derive(Clone, Debug, Default, Args)]
pub struct TimelineArgs {
    /// Write a timeline: FILE.pftrace for ui.perfetto.dev, or FILE.json for any viewer; add .gz to compress it
    #[arg(long, help_heading = super::REPORT, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Ranks in the timeline, such as 0-3,8
    #[arg(long, help_heading = super::REPORT, hide_short_help = true, value_name = "RANKS", requires = "timeline", value_parser = parse_ranks)]
    timeline_ranks: Option<TimelineRankRanges>,
    /// Start of the timeline, such as 1.5ms
    #[arg(long, help_heading = super::REPORT, hide_short_help = true, value_name = "TIME", requires = "timeline")]
    timeline_from: Option<Span>,
    /// End of the timeline
    #[arg(long, help_heading = super::REPORT, hide_short_help = true, value_name = "TIME", requires = "timeline")]
    timeline_to: Option<Span>,
}

/// The parsed value of `--timeline-ranks`. The option has its own type, because clap treats a `Vec`
/// as a repeated option.
#[derive(Clone, Debug)]
struct TimelineRankRanges(Vec<RangeInclusive<u32>>);

/// Parses ranks and ranges of ranks: `0-3,8`.
fn parse_ranks(text: &str) -> Result<TimelineRankRanges, String> {
    let range = |part: &str| {
        let wrong =
            || format!("`{part}` is neither a rank nor a range of ranks; write for example 0-3,8");
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let range = number(first)?..=number(last)?;
        if range.is_empty() {
            Err(wrong())
        } else {
            Ok(range)
        }
    };
    text.split(',')
        .map(range)
        .collect::<Result<_, _>>()
        .map(TimelineRankRanges)
}

impl TimelineArgs {
    /// Returns the path of the file, if the user wants a timeline.
    pub fn file_path(&self) -> Option<&Path> {
        self.timeline.as_deref()
    }

    /// Returns the part of `prepared` that the timeline shows.
    fn timeline_selection(
        &self,
        prepared: &CompiledReplay<'_>,
    ) -> Result<TimelineSelection, String> {
        let ranks = self
            .timeline_ranks
            .clone()
            .map_or(Vec::new(), |ranks| ranks.0);
        let all = prepared
            .workload_with_added_launches()
            .rank_count_including_untraced();
        if let Some(beyond) = ranks.iter().find(|range| *range.end() >= all) {
            return Err(format!(
                "--timeline-ranks: there is no rank {}; the job has ranks 0-{}",
                beyond.end(),
                all.saturating_sub(1)
            ));
        }
        let at = |span: Span| Time::ZERO + span;
        let selection = TimelineSelection {
            ranks,
            from: self.timeline_from.map_or(Time::ZERO, at),
            to: self.timeline_to.map_or(Time::END, at),
        };
        if let (Some(from), Some(to)) = (self.timeline_from, self.timeline_to)
            && from >= to
        {
            return Err(format!(
                "--timeline-from {from} is not before --timeline-to {to}\n  try: leave one of the two out"
            ));
        }
        Ok(selection)
    }
}

/// Creates and completes timeline files.
pub struct TimelineFileCreator;

impl TimelineFileCreator {
    /// Starts the timeline of `prepared`, if the user wants one.
    pub fn start_timeline<'a>(
        args: &TimelineArgs,
        prepared: &'a CompiledReplay<'a>,
        to: &mut ReportDestinationAndOutputs<'_>,
    ) -> Result<Option<TimelineWriter<'a, TimelineOutputFile>>, Box<dyn Error>> {
        let Some(path) = args.file_path() else {
            return Ok(None);
        };
        let path = &*to.path_of_additional_output("--timeline", path)?;
        let selection = args.timeline_selection(prepared)?;
        let format = perfetto_or_else_chrome_format(path)?;
        let sink = TimelineOutputFile::create_sink(path, to.other_outputs())?;
        Ok(Some(TimelineWriter::new(prepared, sink, format, selection)))
    }

    /// Completes a timeline, and then renames the temporary file to its final name.
    pub fn finish_timeline(
        timeline: Option<TimelineWriter<'_, TimelineOutputFile>>,
        path: Option<&Path>,
    ) -> Result<(), TraceError> {
        let (Some(timeline), Some(path)) = (timeline, path) else {
            return Ok(());
        };
        if let Some(empty) = timeline.describe_if_empty() {
            terminal::print_note(format_args!("--timeline {}: {empty}", path.display()))
                .map_err(|source| TraceError::from_io("", "write", source))?;
        }
        let written = timeline
            .finish_timeline()
            .and_then(TimelineOutputFile::into_file);
        let file =
            written.map_err(|source| TraceError::from_io(path.to_owned(), "write", source))?;
        file.commit()
    }
}

/// Endings of the names of files in Perfetto's format.
const PERFETTO: [&str; 3] = [".pftrace", ".perfetto-trace", ".perfetto"];

/// Returns the format for a file name: Perfetto's if the name has [one of its endings](PERFETTO), and Chrome's if the
/// name ends in `.json` or has no ending.
///
/// # Errors
///
/// Fails if the name has another ending.
fn perfetto_or_else_chrome_format(path: &Path) -> Result<TimelineFormat, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    if PERFETTO.iter().any(|ending| name.ends_with(ending)) {
        return Ok(TimelineFormat::Perfetto);
    }
    match Path::new(name).extension() {
        None => Ok(TimelineFormat::Chrome),
        Some(ending) if ending == "json" => Ok(TimelineFormat::Chrome),
        Some(_) => Err(format!(
            "--timeline {}: the ending selects the format, but it is neither Perfetto's nor JSON's\n  try: FILE.pftrace or \
             FILE.json, also with .gz",
            path.display()
        )),
    }
}

/// The file of a timeline, compressed if its name ends with `.gz`.
pub struct TimelineOutputFile(PlainOrGzipTimelineWriter);

enum PlainOrGzipTimelineWriter {
    Plain(io::BufWriter<OutputFile>),
    Compressed(GzipWriter<io::BufWriter<OutputFile>>),
}

impl TimelineOutputFile {
    fn create_sink(
        path: &Path,
        outputs: &mut OutputsAndProtectedInputs,
    ) -> Result<Self, TraceError> {
        let file = io::BufWriter::new(outputs.create_file(path)?);
        let compressed = path.extension().is_some_and(|ending| ending == "gz");
        Ok(Self(if compressed {
            PlainOrGzipTimelineWriter::Compressed(GzipWriter::new(file))
        } else {
            PlainOrGzipTimelineWriter::Plain(file)
        }))
    }

    /// Returns the complete file, which still has a temporary name.
    fn into_file(self) -> io::Result<OutputFile> {
        let file = match self.0 {
            PlainOrGzipTimelineWriter::Plain(file) => file,
            PlainOrGzipTimelineWriter::Compressed(compressor) => compressor.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl Write for TimelineOutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            PlainOrGzipTimelineWriter::Plain(file) => file.write(bytes),
            PlainOrGzipTimelineWriter::Compressed(compressor) => compressor.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            PlainOrGzipTimelineWriter::Plain(file) => file.flush(),
            PlainOrGzipTimelineWriter::Compressed(compressor) => compressor.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_determine_timeline_formats() {
        for (name, is_perfetto) in [
            ("run.perfetto", true),
            ("run.pftrace.gz", true),
            ("run.perfetto-trace", true),
            ("run.json", false),
            ("perfetto/run.json.gz", false),
            ("/dev/stdout", false),
        ] {
            let found = perfetto_or_else_chrome_format(Path::new(name)).expect(name);
            assert_eq!(found == TimelineFormat::Perfetto, is_perfetto, "{name}");
        }
        for name in ["t.foo", "t.json.txt", "t.pftrace.zst"] {
            let error = perfetto_or_else_chrome_format(Path::new(name)).expect_err(name);
            assert!(error.contains("FILE.pftrace or FILE.json"), "{error}");
        }
    }
}
