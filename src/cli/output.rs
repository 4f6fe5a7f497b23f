//! How a replay is asked for and its report printed, whatever the workload came from.

use super::compute::ComputeArgs;
use super::custom::{self, CustomArg};
use super::load::parse_map;
use crate::engine::{Comm, Options, Prepared, ReplayError};
use crate::ids::Npu;
use crate::machine::{Machine, source};
use crate::network::Model;
use crate::report::csv::Table;
use crate::report::json::Input;
use crate::report::{self, Comparison, Report, Timeline, text::Style};
use crate::trace::TraceError;
use crate::trace::file::Compressor;
use crate::trace::write::NewFile;
use crate::workload::{Absent, Workload};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How to replay, and how to print what comes out.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    compute: ComputeArgs,
    /// How long collectives and messages last
    #[arg(long, value_enum, default_value_t = CommArg::Model, value_name = "HOW")]
    pub comm: CommArg,
    /// What becomes of messages that meet; as the machine's file has it by default
    #[arg(long, value_enum, value_name = "MODEL")]
    pub network: Option<NetworkArg>,
    /// The NPUs of ranks 0, 1, …, for example 0-3,8-11; rank r sits on NPU r otherwise
    #[arg(long, value_name = "NPUS", value_parser = parse_placement)]
    pub map: Option<Placement>,
    /// Carry out every collective message by message, even where a closed form is proved
    #[arg(long)]
    pub stepwise: bool,
    /// Members play collectives of a kind from files PREFIX.0.et, PREFIX.1.et, …, one for each member, where a
    /// group has as many: KIND=PREFIX, for example all-reduce=ring8; for each kind once
    #[arg(long, value_name = "KIND=PREFIX", value_parser = custom::parse)]
    pub custom: Vec<CustomArg>,
    /// Draw the replay: a file for Perfetto (ui.perfetto.dev); a name that ends in .gz is compressed
    #[arg(long, value_name = "FILE.json.gz")]
    pub timeline: Option<PathBuf>,
    /// How to print the report
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    pub format: Format,
    /// What becomes of a replay whose ranks need more memory than their NPUs have, where traces say what nodes
    /// allocate and free: a warning, or exit code 3 as well
    #[arg(long, value_enum, default_value_t = Fit::Report, value_name = "HOW")]
    pub fit: Fit,
    /// Which table --format csv prints
    #[arg(long, value_enum, value_name = "TABLE")]
    pub table: Option<TableArg>,
}

/// A parsed `--map`, one value to the parser of arguments.
#[derive(Clone, Debug)]
pub struct Placement(Vec<Npu>);

fn parse_placement(text: &str) -> Result<Placement, String> {
    parse_map(text).map(Placement)
}

/// Where a report goes.
pub enum Destination<'a> {
    /// To standard output, through this.
    Stdout(&'a mut dyn Write),
    /// Into a file, which appears when it is complete.
    File(&'a Path),
}

/// How reports are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs; times in picoseconds
    Json,
    /// One table, for spreadsheets
    Csv,
}

/// How durations of communication are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CommArg {
    /// As the machine's network has it
    Model,
    /// As captured, waiting included, each rank by itself: what a conversion kept
    Captured,
    /// Transfers as recorded; who waits for whom comes out of the replay
    Recorded,
}

impl CommArg {
    fn policy(self) -> Comm {
        match self {
            Self::Model => Comm::Model,
            Self::Captured => Comm::Captured,
            Self::Recorded => Comm::Recorded,
        }
    }
}

/// Models of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArg {
    /// Operations do not slow one another
    ContentionFree,
    /// All operations share each NPU's port into a dimension
    Ports,
    /// All operations share every link of every route
    Links,
}

impl NetworkArg {
    fn model(self) -> Model {
        match self {
            Self::ContentionFree => Model::ContentionFree,
            Self::Ports => Model::Ports,
            Self::Links => Model::Links,
        }
    }
}

/// What becomes of a replay that does not fit into the memory of the NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fit {
    /// The report says so
    Report,
    /// The report says so, and the exit code is 3
    Require,
}

/// Tables of `--format csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableArg {
    /// Where the time of each NPU goes, and when its rank finished
    #[value(alias = "ranks")]
    Npus,
    /// Collectives by group and kind
    Collectives,
    /// Operators by name
    Operators,
    /// The peak memory of each NPU, by class, when and where
    Memory,
    /// A row per machine; what several machines print if nothing else is asked for
    Compare,
}

impl RunArgs {
    /// Whether the report names its inputs.
    pub fn wants_hashes(&self) -> bool {
        self.format == Format::Json
    }

    /// The same for traces in which nothing was recorded.
    pub fn unrecorded(&self) -> Self {
        Self {
            compute: self.compute.clone().unrecorded(),
            ..self.clone()
        }
    }

    /// Refuses options that would do nothing, of a command that replays on several machines or on one.
    pub fn check(&self, several: bool) -> Result<(), String> {
        if self.compares() && !several {
            return Err(
                "--table compare is for machines that `chakram replay` compares".to_owned(),
            );
        }
        if self.timeline.is_some() && several {
            return Err(
                "--timeline draws one replay, and here are several machines\n  \
                 try: one --machine at a time"
                    .to_owned(),
            );
        }
        if self.table.is_some() && self.format != Format::Csv {
            return Err("--table needs --format csv".to_owned());
        }
        if self.network.is_some() && self.comm != CommArg::Model {
            return Err(format!(
                "--network says what carries communication, and with --comm {} it lasts as {0}\n  \
                 try: leave one of the two out",
                self.comm.policy()
            ));
        }
        if self.stepwise && self.comm != CommArg::Model {
            return Err(format!(
                "--stepwise carries out collectives in messages, and with --comm {} they last as {0}\n  \
                 try: leave one of the two out",
                self.comm.policy()
            ));
        }
        if !self.custom.is_empty() && self.comm != CommArg::Model {
            return Err(format!(
                "--custom says how messages carry out collectives, and with --comm {} they last as {0}\n  \
                 try: leave one of the two out",
                self.comm.policy()
            ));
        }
        self.compute.check()?;
        custom::check(&self.custom)
    }

    /// The first option that was given and has no effect without a replay.
    pub fn first_given(&self) -> Option<&'static str> {
        let others = [
            (self.comm != CommArg::Model, "--comm"),
            (self.network.is_some(), "--network"),
            (self.map.is_some(), "--map"),
            (self.stepwise, "--stepwise"),
            (!self.custom.is_empty(), "--custom"),
            (self.timeline.is_some(), "--timeline"),
            (self.format != Format::Text, "--format"),
            (self.table.is_some(), "--table"),
            (self.fit != Fit::Report, "--fit"),
        ];
        let other = || {
            others
                .iter()
                .find_map(|(given, name)| given.then_some(*name))
        };
        self.compute.first_given().or_else(other)
    }

    /// What durations rest on, for people.
    fn basis_text(&self) -> String {
        match self.comm {
            CommArg::Model => self.compute.text(),
            other => format!(
                "{}, communication as {}",
                self.compute.text(),
                other.policy()
            ),
        }
    }

    /// Replays `workload` on `machine` and prints the report.
    pub fn replay(
        &self,
        workload: &Workload,
        name: &str,
        machine: &Machine,
        options: &Options,
        inputs: &[Input],
        to: &mut Destination<'_>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        self.check_fit(workload)?;
        let prepared = Prepared::new(workload, machine, options).map_err(ReplayError::from)?;
        let timeline = Drawing::start(self.timeline.as_deref(), &prepared)?;
        let (report, timeline) = report::replay(&prepared, timeline)?;
        Drawing::finish(timeline, self.timeline.as_deref())?;
        to.write(&self.render(&report, name, options.absent, inputs, to.style()))?;
        self.exit_code([&report])
    }

    /// Refuses to look whether `workload` fits where nothing is known of its memory.
    pub fn check_fit(&self, workload: &Workload) -> Result<(), String> {
        let graphs = workload.graphs();
        let silent = graphs.iter().all(|graph| graph.memory_changes().is_empty());
        if self.fit == Fit::Require && silent {
            return Err(
                "--fit require: no node says what it allocates, so nothing is known of memory\n  \
                 try: traces with `allocates.…` attributes, as `chakram generate` writes for models"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// How the program ends where these replays were completed; what does not fit and must is said on
    /// standard error.
    pub fn exit_code<'r>(
        &self,
        reports: impl IntoIterator<Item = &'r Report>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        let mut code = ExitCode::SUCCESS;
        for report in reports {
            if let (Fit::Require, Some(text)) = (self.fit, report.does_not_fit()) {
                writeln!(
                    anstream::stderr(),
                    "exceeded: on {}: {text}",
                    report.machine
                )?;
                code = ExitCode::from(3);
            }
        }
        Ok(code)
    }

    /// What the engine is asked for to replay `workload`; files that it takes join `inputs`, if their hashes
    /// are wanted.
    pub fn options(
        &self,
        absent: Absent,
        workload: &Workload,
        inputs: &mut Vec<Input>,
    ) -> Result<Options, Box<dyn Error>> {
        let hashed = self.wants_hashes().then_some(inputs);
        let custom = custom::load(&self.custom, hashed)?;
        for note in custom::notes(&custom, workload) {
            writeln!(anstream::stderr(), "note: {note}")?;
        }
        Ok(Options {
            custom,
            compute: self.compute.model(),
            comm: self.comm.policy(),
            absent,
            network: self.network.map(NetworkArg::model),
            map: self.map.clone().map(|map| map.0),
            stepwise: self.stepwise,
            lonely_messages: false,
        })
    }

    /// Whether the table that compares machines is asked for.
    pub fn compares(&self) -> bool {
        self.table == Some(TableArg::Compare)
    }

    fn render(
        &self,
        report: &Report,
        name: &str,
        absent: Absent,
        inputs: &[Input],
        style: Style,
    ) -> String {
        match self.format {
            Format::Text => {
                let mut basis = self.basis_text();
                if let Some(model) = report.shared_network() {
                    basis += &format!(", network model {model}");
                }
                report::text::render(report, name, &basis, style)
            }
            Format::Json => {
                let value = report::json::render(report, self.options_json(absent), inputs);
                format!("{value:#}\n")
            }
            Format::Csv => report::csv::render(report, self.table().unwrap_or_default()),
        }
    }

    /// Renders what several machines made of one job.
    pub fn render_comparison(
        &self,
        comparison: &Comparison<'_>,
        absent: Absent,
        inputs: &[Input],
        style: Style,
    ) -> String {
        match self.format {
            Format::Text => {
                let basis = match self.comm {
                    CommArg::Model => {
                        format!("{}, communication by the network", self.basis_text())
                    }
                    _ => self.basis_text(),
                };
                report::compare::text(comparison, &basis, &self.notes(), style)
            }
            Format::Json => {
                let options = self.options_json(absent);
                let value = report::compare::json(comparison, options, inputs);
                format!("{value:#}\n")
            }
            Format::Csv => report::compare::csv(comparison, self.table()),
        }
    }

    /// What is the same on all machines because it was asked for so.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.compute.model().computes() {
            notes.push(
                "kernels last equally long on all machines; --compute roofline prices them for each"
                    .to_owned(),
            );
        }
        if self.comm != CommArg::Model {
            notes.push(format!(
                "communication lasts as {} on all machines; --comm model asks the network of each",
                self.comm.policy()
            ));
        }
        notes
    }

    fn options_json(&self, absent: Absent) -> Map<String, Value> {
        let mut options = Map::new();
        self.compute.describe(&mut options);
        let comm = self.comm.policy().to_string();
        options.insert("comm".to_owned(), comm.into());
        if let Some(network) = self.network {
            let network = network.model().to_string();
            options.insert("network".to_owned(), network.into());
        }
        let absent = match absent {
            Absent::Refuse => "refuse",
            Absent::Mirror => "mirror",
        };
        options.insert("absent".to_owned(), absent.into());
        options.insert("stepwise".to_owned(), self.stepwise.into());
        if self.fit == Fit::Require {
            options.insert("fit".to_owned(), "require".into());
        }
        if !self.custom.is_empty() {
            let custom = self.custom.iter().map(CustomArg::json);
            options.insert("custom".to_owned(), custom.collect());
        }
        if let Some(map) = &self.map {
            let npus: Vec<Value> = map.0.iter().map(|npu| npu.0.into()).collect();
            options.insert("map".to_owned(), npus.into());
        }
        options
    }

    /// The table of single reports that is asked for.
    fn table(&self) -> Option<Table> {
        match self.table {
            None | Some(TableArg::Compare) => None,
            Some(TableArg::Npus) => Some(Table::Npus),
            Some(TableArg::Collectives) => Some(Table::Collectives),
            Some(TableArg::Operators) => Some(Table::Operators),
            Some(TableArg::Memory) => Some(Table::Memory),
        }
    }
}

impl Destination<'_> {
    /// What suits it.
    pub fn style(&self) -> Style {
        match self {
            Self::Stdout(_) if io::stdout().is_terminal() => Style::coloured(),
            _ => Style::default(),
        }
    }

    /// Writes all of a report.
    pub fn write(&mut self, text: &str) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Stdout(out) => {
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
            Self::File(path) => {
                let mut file = NewFile::create(path)?;
                file.write_all(text.as_bytes())?;
                file.commit()?;
            }
        }
        Ok(())
    }
}

/// Loads a machine, with its input description if wanted.
pub fn load_machine(name: &str, hash: bool) -> Result<(Machine, Option<Input>), Box<dyn Error>> {
    let machine = Machine::load(name)?;
    let input = match hash {
        false => None,
        true => {
            let source = source(name)?;
            Some(super::load::input(
                "machine",
                Path::new(name),
                source.text.as_bytes(),
            ))
        }
    };
    Ok((machine, input))
}

/// Timelines that go into files.
pub struct Drawing;

impl Drawing {
    /// Starts the timeline of `prepared` that will be the file `path`, if one is wanted.
    pub fn start<'a>(
        path: Option<&Path>,
        prepared: &'a Prepared<'a>,
    ) -> Result<Option<Timeline<'a, Picture>>, TraceError> {
        let picture = path.map(Picture::create).transpose()?;
        Ok(picture.map(|picture| Timeline::new(prepared, picture)))
    }

    /// Ends a timeline; the file appears.
    pub fn finish(
        timeline: Option<Timeline<'_, Picture>>,
        path: Option<&Path>,
    ) -> Result<(), TraceError> {
        let (Some(timeline), Some(path)) = (timeline, path) else {
            return Ok(());
        };
        let written = timeline.finish().and_then(Picture::finish);
        let file = written.map_err(|source| TraceError::io(path.to_owned(), "write", source))?;
        file.commit()
    }
}

/// A timeline's file, compressed if its name says so.
pub struct Picture(Form);

enum Form {
    Plain(io::BufWriter<NewFile>),
    Compressed(Compressor<io::BufWriter<NewFile>>),
}

impl Picture {
    fn create(path: &Path) -> Result<Self, TraceError> {
        let file = io::BufWriter::new(NewFile::create(path)?);
        let compressed = path.extension().is_some_and(|ending| ending == "gz");
        Ok(Self(match compressed {
            true => Form::Compressed(Compressor::new(file)),
            false => Form::Plain(file),
        }))
    }

    /// Everything written, not yet under its name.
    fn finish(self) -> io::Result<NewFile> {
        let file = match self.0 {
            Form::Plain(file) => file,
            Form::Compressed(compressor) => compressor.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl Write for Picture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Form::Plain(file) => file.write(bytes),
            Form::Compressed(compressor) => compressor.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Form::Plain(file) => file.flush(),
            Form::Compressed(compressor) => compressor.flush(),
        }
    }
}
