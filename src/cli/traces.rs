//! Traces in, traces out: where commands that make traces of traces read and write.

use super::convert::{CompressArg, FormatArg};
use super::load;
use crate::trace::TraceError;
use crate::trace::file::{Contents, Packer, RankFile};
use crate::trace::groups::{self, Declared};
use crate::trace::write::{ClosedFile, NewFile};
use clap::Args;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What stands for a pipe.
const PIPE: &str = "-";

/// Where the traces come from.
#[derive(Debug, Args)]
pub struct InputArgs {
    /// A folder of traces, the prefix of files named PREFIX.RANK.et, or files; - is one trace from a pipe,
    /// that of rank 0
    #[arg(required = true, value_name = "TRACES")]
    pub traces: Vec<PathBuf>,
}

/// Where the traces go.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Write the traces to PREFIX.0.et, PREFIX.1.et, …; into a folder as job.0.et, job.1.et, …; - writes
    /// a single trace to standard output
    #[arg(short, long, value_name = "PREFIX")]
    pub output: PathBuf,
    /// Compress the traces; ASTRA-sim reads plain ones only
    #[arg(short = 'z', long, value_enum, value_name = "FORMAT")]
    pub compress: Option<CompressArg>,
    /// How the summary is printed
    #[arg(long, value_enum, default_value_t = FormatArg::Text, value_name = "FORMAT")]
    pub format: FormatArg,
}

/// The traces of a job.
#[derive(Debug)]
pub struct Traces {
    /// The files, by rank.
    pub files: Vec<RankFile>,
    piped: Option<Contents>,
}

/// The contents of a trace.
#[derive(Debug)]
pub enum Opened<'t> {
    /// Of a file.
    File(Contents),
    /// Of the pipe.
    Pipe(&'t Contents),
}

impl Opened<'_> {
    fn contents(&self) -> &Contents {
        match self {
            Self::File(contents) => contents,
            Self::Pipe(contents) => contents,
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.contents().as_slice()
    }

    /// An error about the bytes as one about what they came from.
    pub fn blame(&self, error: TraceError) -> TraceError {
        self.contents().blame(error)
    }
}

impl Traces {
    /// Finds the files, or reads the pipe.
    pub fn find(args: &InputArgs) -> Result<Self, Box<dyn Error>> {
        let pipe = |path: &PathBuf| path == Path::new(PIPE);
        if !args.traces.iter().any(pipe) {
            let files = load::find(&args.traces)?;
            return Ok(Self { files, piped: None });
        }
        if args.traces.len() > 1 {
            return Err("- is one trace from a pipe, and no files can stand beside it".into());
        }
        Ok(Self {
            files: vec![RankFile {
                rank: 0,
                path: PathBuf::from(PIPE),
            }],
            piped: Some(Contents::from_pipe(io::stdin().lock())?),
        })
    }

    /// Opens one of the files.
    pub fn open(&self, file: &RankFile) -> Result<Opened<'_>, Box<dyn Error>> {
        Ok(match &self.piped {
            Some(contents) => Opened::Pipe(contents),
            None => Opened::File(Contents::open(&file.path)?),
        })
    }
}

/// Reads the groups that are declared beside the traces.
pub fn declared(path: Option<&PathBuf>) -> Result<Declared, Box<dyn Error>> {
    let Some(path) = path else {
        return Ok(Declared::new());
    };
    let text = load::read_text(path)?;
    Ok(groups::parse_file(&text).map_err(|e| e.in_file(path))?)
}

/// Traces on their way out: nothing appears before all are complete.
pub struct Outputs<'o> {
    args: &'o OutputArgs,
    pending: Vec<ClosedFile>,
    names: Vec<PathBuf>,
}

impl<'o> Outputs<'o> {
    /// Starts. `ranks` is how many there will be.
    pub fn new(args: &'o OutputArgs, ranks: usize) -> Result<Self, String> {
        if args.output == Path::new(PIPE) && ranks != 1 {
            return Err(format!(
                "-o - writes one trace, and these are {ranks}\n  try: -o PREFIX, or the file of one rank"
            ));
        }
        Ok(Self {
            args,
            pending: Vec::new(),
            names: Vec::new(),
        })
    }

    /// Whether the trace goes to standard output, so that nothing else may.
    pub fn is_pipe(&self) -> bool {
        self.args.output == Path::new(PIPE)
    }

    /// The name of the files without rank and ending.
    fn prefix(&self) -> PathBuf {
        prefix(&self.args.output)
    }

    fn path(&self, rank: u32) -> PathBuf {
        path(&self.prefix(), rank, self.args.compress)
    }

    /// Writes the trace of a rank, and says which of the written ones it is.
    pub fn write(
        &mut self,
        rank: u32,
        trace: &[u8],
        out: &mut dyn Write,
    ) -> Result<usize, Box<dyn Error>> {
        let ending = ending(self.args.compress).trim_start_matches('.');
        if self.is_pipe() {
            let mut packer = Packer::new(out, ending)?;
            packer.write_all(trace)?;
            packer.finish()?.flush()?;
            return Ok(0);
        }
        let to = self.path(rank);
        let file = BufWriter::with_capacity(1 << 18, NewFile::create(&to)?);
        let mut packer = Packer::new(file, ending)?;
        packer.write_all(trace)?;
        let file = packer.finish()?.into_inner();
        self.pending
            .push(file.map_err(io::IntoInnerError::into_error)?.close());
        self.names.push(to);
        Ok(self.pending.len() - 1)
    }

    /// Has `rank` share the `written` file.
    pub fn share(&mut self, rank: u32, written: usize) -> Result<(), Box<dyn Error>> {
        let to = self.path(rank);
        let file = self.pending[written].again(&to)?;
        self.pending.push(file);
        self.names.push(to);
        Ok(())
    }

    /// Writes groups beside the traces, and says where.
    pub fn groups(&mut self, declared: &Declared) -> Result<PathBuf, Box<dyn Error>> {
        let path = match self.is_pipe() {
            true => {
                return Err(
                    "--groups writes a file beside the traces; -o - has no place for it".into(),
                );
            }
            false => PathBuf::from(format!("{}.groups.json", self.prefix().display())),
        };
        let mut file = NewFile::create(&path)?;
        serde_json::to_writer(&mut file, declared)?;
        file.write_all(b"\n")?;
        self.pending.push(file.close());
        Ok(path)
    }

    /// Gives all files their names, and says what they are.
    pub fn commit(self) -> Result<String, Box<dyn Error>> {
        for file in self.pending {
            file.commit()?;
        }
        let mut said = String::new();
        match &self.names[..] {
            [] => {}
            [only] => write!(said, "{}", only.display())?,
            [first, .., last] => write!(said, "{} to {}", first.display(), last.display())?,
        }
        Ok(said)
    }
}

/// The ending of compressed files.
pub fn ending(compress: Option<CompressArg>) -> &'static str {
    match compress {
        None => "",
        Some(CompressArg::Zst) => ".zst",
        Some(CompressArg::Gz) => ".gz",
    }
}

/// What the names of all files begin with. A name that ends with a separator is a folder, whether it
/// is there or not.
pub fn prefix(output: &Path) -> PathBuf {
    match output.is_dir() || output.to_string_lossy().ends_with('/') {
        true => output.join("job"),
        false => output.to_owned(),
    }
}

/// The file of a rank.
pub fn path(prefix: &Path, rank: u32, compress: Option<CompressArg>) -> PathBuf {
    PathBuf::from(format!(
        "{}.{rank}.et{}",
        prefix.display(),
        ending(compress)
    ))
}
