//! Arguments of a replay and the printing of its report, for every source of workloads.

use super::compute::ComputeArgs;
use super::custom_algorithm;
use super::load::parse_map;
use super::terminal;
use crate::engine::{CompiledReplay, ReplayError, ReplayOptions};
use crate::files::OutputSet;
use crate::ids::Npu;
use crate::job::{self, CustomFiles};
use crate::machine::{Machine, source};
use crate::report::summary::HashedInput;
use crate::report::{self, Report};
use crate::workload::{MissingRankPolicy, Workload};
use clap::Args;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod args;
mod destination;
mod render;
mod timeline_file;

pub use args::{CommArg, NetworkArg, OnMemoryOverflow, ReportFormatArg, ReportTableArg};
pub use destination::ReportDestination;
pub use timeline_file::TimelineFile;

/// Arguments of a replay and of its report.
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
    pub map: Option<RankMapArg>,
    /// Carry out every collective message by message, even where a closed form is proved
    #[arg(long)]
    pub stepwise: bool,
    /// Members play collectives of a kind from files PREFIX.0.et, PREFIX.1.et, …, one for each member, where a
    /// group has as many: KIND=PREFIX, for example all-reduce=ring8; for each kind once
    #[arg(long, value_name = "KIND=PREFIX", value_parser = custom_algorithm::parse)]
    pub custom: Vec<CustomFiles>,
    /// Draw the replay: a file for Perfetto (ui.perfetto.dev); a name that ends in .gz is compressed
    #[arg(long, value_name = "FILE.json.gz")]
    pub timeline: Option<PathBuf>,
    /// How to print the report
    #[arg(long, value_enum, default_value_t = ReportFormatArg::Text, value_name = "FORMAT")]
    pub format: ReportFormatArg,
    /// What becomes of a replay whose ranks need more memory than their NPUs have, where traces say what nodes
    /// allocate and free: a warning, or exit code 3 as well
    #[arg(long, value_enum, default_value_t = OnMemoryOverflow::Report, value_name = "HOW")]
    pub fit: OnMemoryOverflow,
    /// Which table --format csv prints
    #[arg(long, value_enum, value_name = "TABLE")]
    pub table: Option<ReportTableArg>,
    /// List each micro-batch's operators by themselves, in JSON and the table of operators; a row otherwise stands for
    /// all micro-batches, mb*/…
    #[arg(long)]
    pub all_operators: bool,
}

/// A parsed `--map`, one value to the parser of arguments.
#[derive(Clone, Debug)]
pub struct RankMapArg(Vec<Npu>);

fn parse_placement(text: &str) -> Result<RankMapArg, String> {
    parse_map(text).map(RankMapArg)
}

impl RunArgs {
    /// Whether the report names its inputs.
    pub fn wants_hashes(&self) -> bool {
        self.format == ReportFormatArg::Json
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
        if self.table.is_some() && self.format != ReportFormatArg::Csv {
            return Err("--table needs --format csv".to_owned());
        }
        let lists =
            self.format == ReportFormatArg::Json || self.table == Some(ReportTableArg::Operators);
        if self.all_operators && !lists {
            return Err(
                "--all-operators needs --format json, or --format csv --table operators".to_owned(),
            );
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
        custom_algorithm::check(&self.custom)
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
            (self.format != ReportFormatArg::Text, "--format"),
            (self.table.is_some(), "--table"),
            (self.all_operators, "--all-operators"),
            (self.fit != OnMemoryOverflow::Report, "--fit"),
        ];
        let other = || {
            others
                .iter()
                .find_map(|(given, name)| given.then_some(*name))
        };
        self.compute.first_given().or_else(other)
    }

    /// Replays `workload` on `machine` and prints the report.
    pub fn replay(
        &self,
        workload: &Workload,
        name: &str,
        machine: &Machine,
        options: &ReplayOptions,
        inputs: &[HashedInput],
        to: &mut ReportDestination<'_>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        self.check_machine(machine)?;
        self.check_fit(workload)?;
        let prepared =
            CompiledReplay::new(workload, machine, options).map_err(ReplayError::from)?;
        let timeline = TimelineFile::start(self.timeline.as_deref(), &prepared, to.outputs())?;
        let (mut report, timeline) = report::replay(&prepared, timeline)?;
        TimelineFile::finish(timeline, self.timeline.as_deref())?;
        let style = to.style();
        to.fill(|out| self.render(&mut report, name, options.missing_ranks, inputs, style, out))?;
        self.exit_code([&report])
    }

    /// Refuses measured prices on a machine that has none.
    pub fn check_machine(&self, machine: &Machine) -> Result<(), String> {
        self.compute.check_machine(machine)
    }

    /// Refuses to look whether `workload` fits where nothing is known of its memory.
    pub fn check_fit(&self, workload: &Workload) -> Result<(), String> {
        let graphs = workload.graphs();
        let silent = graphs.iter().all(|graph| graph.memory_changes().is_empty());
        if self.fit == OnMemoryOverflow::Require && silent {
            return Err(
                "--fit require: no node says what it allocates, so nothing is known of memory\n  \
                 try: traces with `allocates.…` attributes, as `chakram generate` writes for models"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the exit code after these replays were completed; what does not fit and must is printed on
    /// standard error.
    pub fn exit_code<'r>(
        &self,
        reports: impl IntoIterator<Item = &'r Report>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        let mut code = ExitCode::SUCCESS;
        for report in reports {
            if let (OnMemoryOverflow::Require, Some(text)) = (self.fit, report.does_not_fit()) {
                terminal::say(format_args!("exceeded: on {}: {text}", report.machine.name))?;
                code = ExitCode::from(3);
            }
        }
        Ok(code)
    }

    /// Tells `outputs` which files these options read.
    pub fn reads(&self, outputs: &mut OutputSet) {
        for arg in &self.custom {
            custom_algorithm::mark_read(arg, outputs);
        }
    }

    /// Returns the engine's options to replay `workload`; files that they take join `inputs`, if their hashes
    /// are wanted.
    pub fn options(
        &self,
        absent: MissingRankPolicy,
        workload: &Workload,
        inputs: &mut Vec<HashedInput>,
    ) -> Result<ReplayOptions, Box<dyn Error>> {
        self.compute.check(workload)?;
        let hashed = self.wants_hashes().then_some(inputs);
        let custom = job::load_custom(&self.custom, hashed)?;
        for note in custom_algorithm::notes(&custom, workload) {
            terminal::note(format_args!("{note}"))?;
        }
        Ok(ReplayOptions {
            custom,
            compute: self.compute.model(),
            host: self.compute.host(),
            launch: self.compute.launch(),
            measured_collectives: self.compute.measures_collectives(),
            comm: self.comm.policy(),
            missing_ranks: absent,
            network: self.network.map(NetworkArg::model),
            map: self.map().map(<[Npu]>::to_vec),
            stepwise: self.stepwise,
            allow_unmatched: false,
        })
    }

    /// The NPU of each rank, where they are said.
    pub fn map(&self) -> Option<&[Npu]> {
        self.map.as_ref().map(|map| &map.0[..])
    }

    /// Whether the table that compares machines is asked for.
    pub fn compares(&self) -> bool {
        self.table == Some(ReportTableArg::Compare)
    }
}

/// Loads a machine, with its input description if wanted.
pub fn load_machine(
    name: &str,
    hash: bool,
) -> Result<(Machine, Option<HashedInput>), Box<dyn Error>> {
    let machine = Machine::load(name)?;
    let input = if hash {
        let source = source(name)?;
        let (path, text) = (Path::new(name), source.text.as_bytes());
        Some(job::hashed_input("machine", path, text))
    } else {
        None
    };
    Ok((machine, input))
}
