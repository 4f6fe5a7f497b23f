//! A platform's processors have equal cores, with a clock and a datapath latency. A platform may also have measured
//! model latencies.
//!
//! A platform file has these keys (defaults in parentheses):
//!
//! - `name`, `source`, and optionally `description`;
//! - `cores` and `clock`, for models that consist of vector products: each core does one multiplication per cycle;
//! - `datapath` (0): the time from a request's arrival to its first job, once per request; `datapath_per_layer` (0):
//!   additional time per layer of the model; `datapath_by_model`, a table with datapath latencies of individual
//!   models, which replace both keys above;
//! - `[[measured]]`: `model`, `batch` (1), `concurrency` (1), the measured times `datapath` (0),
//!   `queue` (0) and `compute`, and `rows`, the number of averaged measurements (1);
//! - `machine`, a preset or file: the machine that replays traces.
//!
//! A machine file can also serve as a platform, which then has neither cores nor datapath latency.

use super::error::ServeError;
use super::presets::PRESETS;
use chakram_base::config::{
    ConfigDocument, ConfigError, ConfigTable, STANDARD_INPUT, find_most_similar_name,
    quote_and_truncate_for_message, read_file_or_standard_input,
};
use chakram_base::units::{Frequency, Span};
use chakram_hardware::machine::{self, Machine, MachineError};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of cores on a platform.
const MOST_CORES: u32 = 1 << 27;

/// Properties of a processor that serves requests; a scenario may use several such processors.
#[derive(Clone, Debug, PartialEq)]
pub struct Platform {
    /// Name that reports show.
    pub name: String,
    /// One-line description of the platform; may be empty.
    pub description: String,
    /// Publication or measurement from which the numbers come.
    pub source: String,
    /// Number of cores and their clock; `None` if only measured latencies are known.
    pub cores: Option<CoreCountAndClock>,
    datapath: Span,
    datapath_per_layer: Span,
    datapath_by_model: Vec<(String, Span)>,
    /// Measured latencies, in the file's order.
    pub measured: Vec<MeasuredModelMeanLatencies>,
    /// The machine on which the platform replays traces.
    pub machine: Option<Arc<Machine>>,
}

/// Number of cores, and their clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoreCountAndClock {
    /// Number of cores.
    pub cores: u32,
    /// Clock of a core, which does one multiplication per cycle.
    pub clock: Frequency,
}

/// Mean latencies measured for one model.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredModelMeanLatencies {
    /// Name of the measured model.
    pub model: String,
    /// Number of inferences in a request.
    pub batch: u32,
    /// Number of requests in flight at the same time.
    pub concurrency: u32,
    /// Time outside the server's queue and outside the computation.
    pub datapath: Span,
    /// Time in the queue of the measured server.
    pub queue: Span,
    /// Compute time.
    pub compute: Span,
    /// Number of averaged measurements.
    pub rows: u32,
}

const ROOT: &[&str] = &[
    "name",
    "description",
    "source",
    "cores",
    "clock",
    "datapath",
    "datapath_per_layer",
    "datapath_by_model",
    "measured",
    "machine",
];

const MEASURED: &[&str] = &[
    "model",
    "batch",
    "concurrency",
    "datapath",
    "queue",
    "compute",
    "rows",
];

/// Returns the text of a platform. A `name` that contains a `/` or ends in `.toml` is a file; any
/// other name is a preset.
///
/// # Errors
///
/// Fails if no preset has this name, or if the file cannot be read.
pub fn read_platform_text(name: &str) -> Result<Cow<'static, str>, ServeError> {
    if name.contains('/') || name.ends_with(".toml") || name == STANDARD_INPUT {
        return match read_file_or_standard_input(name) {
            Ok(text) => Ok(Cow::Owned(text)),
            Err(source) => Err(ServeError::Read {
                file: name.to_owned(),
                source,
            }),
        };
    }
    match PRESETS.iter().find(|preset| preset.name == name) {
        Some(preset) => Ok(Cow::Borrowed(preset.text)),
        None => Err(ServeError::Platform {
            name: name.chars().take(80).collect(),
            closest: find_most_similar_name(name, PRESETS.iter().map(|preset| preset.name)),
        }),
    }
}

/// Returns the name or path of a machine to which the platform's `file` refers. Relative paths are
/// relative to `file`.
fn resolve_machine_path_from_file(name: &str, file: &str) -> String {
    match Path::new(file).parent() {
        Some(folder) if machine::is_machine_file_path(name) => {
            folder.join(name).display().to_string()
        }
        _ => name.to_owned(),
    }
}

/// Parses the duration at `key`; zero if absent.
fn parse_duration_zero_if_absent(table: &ConfigTable<'_>, key: &str) -> Result<Span, ConfigError> {
    table.read_or_default(key, Span::ZERO, |field| field.read_quantity("344 ns"))
}

impl Platform {
    /// Loads a platform or a machine from a preset or a file.
    ///
    /// # Errors
    ///
    /// Fails if no preset or file has this name, or if its text is invalid.
    pub fn load_by_name(name: &str) -> Result<Self, ServeError> {
        if machine::is_inline_machine_notation(name) {
            return Ok(Self::of_machine(Machine::load_by_name(name)?));
        }
        match read_platform_text(name) {
            Ok(text) => Self::parse(&text, name),
            Err(error @ ServeError::Platform { .. }) => match Machine::load_by_name(name) {
                Ok(machine) => Ok(Self::of_machine(machine)),
                Err(MachineError::Unknown { .. }) => Err(error),
                Err(other) => Err(other.into()),
            },
            Err(error) => Err(error),
        }
    }

    /// Creates a platform that only replays traces on a machine.
    pub fn of_machine(machine: Machine) -> Self {
        Self {
            name: machine.name().to_owned(),
            description: machine.description().to_owned(),
            source: "a machine".to_owned(),
            cores: None,
            datapath: Span::ZERO,
            datapath_per_layer: Span::ZERO,
            datapath_by_model: Vec::new(),
            measured: Vec::new(),
            machine: Some(Arc::new(machine)),
        }
    }

    /// Parses the text of a platform or a machine. Error messages call the file `file`, and a
    /// machine's path in `text` is relative to `file`.
    ///
    /// # Errors
    ///
    /// Fails if the text is invalid.
    pub fn parse(text: &str, file: &str) -> Result<Self, ServeError> {
        let document = ConfigDocument::parse(text, file)?;
        if document.unchecked_root().get("npu").is_some() {
            return Ok(Self::of_machine(Machine::parse(text, file)?));
        }
        let root = document.root_table_with_allowed_keys(ROOT)?;
        let line = |key: &str, expected: &str| {
            let field = root.require_field(key, expected)?;
            field.read_one_line_text().map(str::to_owned)
        };
        let cores = root.read_optional("cores", |field| {
            Ok(CoreCountAndClock {
                cores: field.read_count(MOST_CORES)?,
                clock: root.read_quantity("clock", "1.41 GHz")?,
            })
        })?;
        let mut by_model = Vec::new();
        if let Some(field) = root.get("datapath_by_model") {
            for (model, latency) in field.read_table(None)?.fields() {
                by_model.push((model.to_owned(), latency.read_quantity("581 us")?));
            }
        }
        let measured =
            root.read_or_default("measured", Vec::new(), |field| field.read_tables(MEASURED))?;
        let measured: Result<Vec<_>, ConfigError> =
            measured.iter().map(parse_measured_latency).collect();
        let platform = Self {
            name: line("name", "the platform's name")?,
            description: root
                .read_or_default("description", "", |field| field.read_one_line_text())?
                .to_owned(),
            source: line("source", "where the numbers come from")?,
            cores,
            datapath: parse_duration_zero_if_absent(&root, "datapath")?,
            datapath_per_layer: parse_duration_zero_if_absent(&root, "datapath_per_layer")?,
            datapath_by_model: by_model,
            measured: measured?,
            machine: root
                .get("machine")
                .map(|field| {
                    let name = field.read_one_line_text()?;
                    let machine =
                        Machine::load_by_name(&resolve_machine_path_from_file(name, file));
                    machine.map_err(|source| ServeError::Machine {
                        place: Box::new(field.invalid_value_error(
                            quote_and_truncate_for_message(name),
                            "a machine that can be read",
                        )),
                        source: Box::new(source),
                    })
                })
                .transpose()?
                .map(Arc::new),
        };
        if platform.cores.is_none() && platform.measured.is_empty() && platform.machine.is_none() {
            let expected =
                "`cores` and `clock`, measured latencies under [[measured]], or a `machine`";
            return Err(root.missing_entry_error("cores", expected).into());
        }
        Ok(platform)
    }

    /// Describes the platform's datapath latencies.
    pub fn describe_datapath_latencies(&self) -> String {
        if !self.datapath_by_model.is_empty() {
            "by model".to_owned()
        } else if self.datapath_per_layer > Span::ZERO {
            format!("{} a layer", self.datapath_per_layer)
        } else {
            self.datapath.to_string()
        }
    }

    /// Returns the datapath latency of a request to `model`, which has `layers` layers.
    pub fn datapath_latency(&self, model: &str, layers: u32) -> Span {
        let own = self
            .datapath_by_model
            .iter()
            .find(|(name, _)| name == model);
        match own {
            Some((_, latency)) => *latency,
            None => self.datapath + self.datapath_per_layer.times(layers.into()),
        }
    }

    /// Returns the latencies of `model` that were measured with one request in flight, in ascending order of batch
    /// size.
    pub fn measured_latencies_with_least_concurrency(
        &self,
        model: &str,
    ) -> Vec<&MeasuredModelMeanLatencies> {
        let rows = self.measured.iter();
        let mut rows: Vec<_> = rows.filter(|row| row.model == model).collect();
        let least = rows.iter().map(|row| row.concurrency).min();
        rows.retain(|row| Some(row.concurrency) == least);
        rows.sort_by_key(|row| row.batch);
        rows
    }

    /// Returns the distinct names of models with measured latencies.
    pub fn names_of_measured_models(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.measured.iter().map(|row| row.model.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn parse_measured_latency(
    table: &ConfigTable<'_>,
) -> Result<MeasuredModelMeanLatencies, ConfigError> {
    let count = |key: &str| table.read_or_default(key, 1, |field| field.read_count(1 << 30));
    Ok(MeasuredModelMeanLatencies {
        model: table
            .require_field("model", "a model's name")?
            .read_one_line_text()?
            .to_owned(),
        batch: count("batch")?,
        concurrency: count("concurrency")?,
        datapath: parse_duration_zero_if_absent(table, "datapath")?,
        queue: parse_duration_zero_if_absent(table, "queue")?,
        compute: table.read_quantity("compute", "581 us")?,
        rows: count("rows")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_printed_figures() {
        // For each platform: name, cores, clock in GHz, and datapath latency in ns without the additions for layers and
        // models.
        let figures = [
            ("a100x", 56_592, 1.41, 344),
            ("brainwave", 96_000, 0.6, 344),
            ("a100", 56_592, 1.41, 1_549_000),
            ("p4", 20_480, 1.114, 1_549_000),
            ("lightning", 200, 100.0, 344),
            ("a100x-sigcomm23", 6912, 1.41, 0),
            ("brainwave-sigcomm23", 96_000, 0.25, 0),
            ("a100-sigcomm23", 6912, 1.41, 0),
            ("p4-sigcomm23", 2560, 1.114, 0),
            ("lightning-sigcomm23", 576, 97.0, 0),
        ];
        for (name, cores, ghz, datapath) in figures {
            let platform = Platform::load_by_name(name).unwrap();
            assert_eq!(platform.name, name);
            let clock = platform.cores.unwrap();
            assert_eq!(clock.cores, cores, "{name}");
            assert!((clock.clock.as_hertz() / 1e9 - ghz).abs() < 1e-9, "{name}");
            assert_eq!(platform.datapath, Span::from_ns(datapath), "{name}");
        }
        // LIGHTSPEED's thesis counts cores as 6912 x 8 + 432 x 3 and 2560 x 8.
        assert_eq!(6912 * 8 + 432 * 3, 56_592);
        assert_eq!(2560 * 8, 20_480);
        let successor = Platform::load_by_name("lightning-sigcomm23").unwrap();
        assert_eq!(
            successor.datapath_latency("vgg-16", 16),
            Span::from_ns(16 * 115)
        );
        let a100 = Platform::load_by_name("a100-sigcomm23").unwrap();
        assert_eq!(a100.datapath_latency("gpt2-xl", 49), Span::from_us(6605));
        for preset in PRESETS {
            let loaded = Platform::load_by_name(preset.name).unwrap();
            assert!(loaded.source.contains('('), "{}", preset.name);
        }
    }

    #[test]
    fn wrong_files_are_refused_with_key_and_line() {
        let error = |text: &str| Platform::parse(text, "p.toml").unwrap_err().to_string();
        let text = error("name = \"x\"\nsource = \"y\"\ncores = 4\nclok = \"1 GHz\"");
        assert!(
            text.contains("p.toml:4: key `clok`") && text.contains("did you mean `clock`?"),
            "{text}"
        );
        assert!(error("name = \"x\"\nsource = \"y\"").contains("key `cores`"));
        assert!(
            error("name = \"x\"\nsource = \"y\"\ncores = 0\nclock=\"1 GHz\"").contains("p.toml:3")
        );
        let text = Platform::load_by_name("lightnin").unwrap_err().to_string();
        assert!(text.contains("did you mean `lightning`?"), "{text}");
    }
}
