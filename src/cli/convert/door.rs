//! `chakram convert --list` and `chakram convert auto`: lists the sources, and detects the source
//! of the given files.

use super::{ConvertArgs, SummaryFormatArg, run};
use crate::flags::replace_keys_by_flags;
use crate::traces::PIPE;
use chakram_converters::sources::TraceSource;
use chakram_report::table::{TextTable, left_aligned_column};
use chakram_report::text::TextStyleWidthAndDetail;
use clap::{Args, Command, FromArgMatches};
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Convert files of any source, detected from their contents
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram convert auto capture/ -o job
  chakram convert auto workload.txt -o job -- --npus 8    options of the source follow --
  chakram convert --list")]
pub struct ConvertAutoArgs {
    /// Files, folders or prefixes of traces, all of one source
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// Write to OUT.0.et, …, and OUT.job.json; to OUT itself if the input is a single trace
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Format of the summary, for sources that print one
    #[arg(long, value_enum, default_value_t = SummaryFormatArg::Text, value_name = "FORMAT")]
    format: SummaryFormatArg,
    /// Options of the source's own command, after --
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<OsString>,
}

/// Detects the source of the inputs, and runs its command.
pub fn convert_detected(
    args: &ConvertAutoArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    if args.inputs.iter().any(|path| path == Path::new(PIPE)) {
        return Err(
            "-: the source of standard input must be named, because standard input can be read only \
             once\n  try: chakram convert pytorch -, or chakram convert trace -"
                .into(),
        );
    }
    let source = TraceSource::detect_common_source(&args.inputs)?;
    let mut words = vec![
        OsString::from(source.source_command_word()),
        OsString::from("--output"),
        args.output.clone().into(),
    ];
    words.extend(args.options.iter().cloned());
    // Add `--`, because an input's name may begin with a dash.
    words.push("--".into());
    words.extend(args.inputs.iter().map(|path| path.clone().into_os_string()));
    let command = Command::new("chakram convert").no_binary_name(true);
    let command = ConvertArgs::augment_args(command);
    let own = command.find_subcommand(source.source_command_word());
    let has_format = own.is_some_and(|own| {
        own.get_arguments()
            .any(|arg| arg.get_long() == Some("format"))
    });
    if has_format && args.format == SummaryFormatArg::Json {
        words.insert(1, "--format=json".into());
    }
    let matches = command.try_get_matches_from(words)?;
    run(&ConvertArgs::from_arg_matches(&matches)?, out)
}

/// Fails with a suggestion if the first word is not a file but resembles the name of a source. For example, `chakram
/// convert nvprof profile -o job` fails.
pub fn refuse_first_word_if_no_file_or_source(
    args: &ConvertAutoArgs,
) -> Result<(), Box<dyn Error>> {
    let first = args.inputs[0].to_string_lossy();
    let is_word = !first.is_empty() && first.chars().all(|c| c.is_ascii_alphanumeric());
    if !is_word
        || args.inputs[0].exists()
        || TraceSource::detect_common_source(&args.inputs).is_ok()
    {
        return Ok(());
    }
    let sources: Vec<_> = TraceSource::ALL.iter().map(|source| source.word).collect();
    Err(format!(
        "'{first}' is neither a file nor a source; the sources are {}\n  try: chakram convert --list, which \
         describes the files of each source",
        sources.join(", ")
    )
    .into())
}

/// Width of the list of sources, in columns.
const WIDTH: u16 = 100;

/// Prints the sources.
pub fn print_source_table(out: &mut dyn Write) -> io::Result<()> {
    let columns = [
        left_aligned_column("SOURCE", 0),
        left_aligned_column("FILES", 0),
        left_aligned_column("KEPT", 0),
    ];
    let mut table = TextTable::new(columns)
        .with_indent(0)
        .wrap_cells_to_width(WIDTH);
    for source in TraceSource::ALL {
        table.add_row(&[
            &source.word,
            &source.files,
            &replace_keys_by_flags(source.kept),
        ]);
    }
    out.write_all(table.to_text(TextStyleWidthAndDetail::default()).as_bytes())
}
