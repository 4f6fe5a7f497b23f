//! Derives a machine file from a known machine and the numbers of a datasheet.
//!
//! The derived file is the known machine's text, with the given numbers in place of the old values. A comment after
//! each number states its source. Kernel curves state fractions of the peaks and of the memory bandwidth, so kernel
//! times scale with these rates. A multiprocessor's constants are kept, because they vary little between machines. Even
//! H100 and B200, whose peaks differ by a factor of 2.3, have similar constants (`operands` 300 and 225 GB/s). Curves
//! of collectives state the links on which they were measured, and their times are converted to the new links. None of
//! the converted times was measured, so the stated errors are increased:
//!
//! ```text
//! error' = hypot(error, 0.23 (1 - q))
//! ```
//!
//! where 0.23 is the relative error of kernel times that the roofline predicts, and q is the smallest ratio, new ÷ old
//! or old ÷ new, of the rates that the curve depends on. For matrix products and attention, these rates are the peaks
//! of the curve's number formats and the memory bandwidth. For memory-bound kernels, it is only the memory bandwidth.

use super::preset_files::PRESETS;
use super::{Machine, MachineError, build, preset};
use crate::machine::PresetOrMachineFileText;
use chakram_base::config::{
    ConfigDocument, ConfigError, ConfigField, ConfigLiteral, ConfigTable, did_you_mean,
    find_most_similar_name, quote_and_truncate_for_message,
};
use chakram_base::dtype::Dtype;
use chakram_base::units::{Bandwidth, Bytes, FlopRate, Span};
use std::borrow::Cow;
use std::ops::Range;

/// Relative error (one standard deviation) of unmeasured kernel times, which equals the error of times predicted by the
/// roofline.
const NOT_MEASURED: f64 = 0.23;

/// Numbers from a datasheet; where one is missing, the known machine's value is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownMachineDatasheetOverrides {
    /// Dense peak rates by number format.
    pub peaks: Vec<(Dtype, FlopRate)>,
    /// Capacity of an NPU's memory.
    pub memory: Option<Bytes>,
    /// Bandwidth of an NPU's memory.
    pub bandwidth: Option<Bandwidth>,
    /// Bandwidth of an NPU's links inside a node, summed over both directions, as datasheets state it.
    pub link: Option<Bandwidth>,
    /// Latency of one link inside a node.
    pub link_latency: Option<Span>,
    /// Bandwidth of an NPU's port between nodes, in each direction, as datasheets state it.
    pub nic: Option<Bandwidth>,
    /// Number of NPUs in a node.
    pub npus_per_node: Option<u32>,
    /// Number of multiprocessors per NPU.
    pub multiprocessors: Option<u32>,
    /// Price of an NPU per hour, in dollars.
    pub price: Option<f64>,
}

/// Parses text such as `bf16=989TFLOP/s`; the unit may also be `TFLOPs` or `TOPS`.
///
/// # Errors
///
/// Fails if `text` is invalid; the error describes the expected form.
pub fn parse_number_format_and_peak_rate(text: &str) -> Result<(Dtype, FlopRate), String> {
    let names = Dtype::ALL.map(|(_, name)| name);
    let Some((format, rate)) = text.split_once('=') else {
        return Err("expected a number format with its rate such as bf16=989TFLOP/s".to_owned());
    };
    let format = format.trim().to_ascii_lowercase();
    let found = Dtype::ALL.iter().find(|(_, name)| *name == format);
    let Some((dtype, _)) = found else {
        let near = did_you_mean(find_most_similar_name(&format, names));
        return Err(format!("expected one of {}{near}", names.join(", ")));
    };
    let rate = rate.trim();
    let written = ["FLOPS", "FLOPs", "OPS", "OPs"].iter().find_map(|unit| {
        let number = rate.strip_suffix(unit)?;
        let unit = if unit.starts_with('F') {
            "FLOP/s"
        } else {
            "OP/s"
        };
        Some(format!("{number}{unit}"))
    });
    let rate = written.as_deref().unwrap_or(rate).parse();
    Ok((
        *dtype,
        rate.map_err(|error: chakram_base::units::QuantityError| error.to_string())?,
    ))
}

/// Finds a machine by `name`: a machine that [`preset::find_machine_text`] finds, or the first preset whose NPU has
/// this name (such as `h100`).
///
/// # Errors
///
/// Fails if there is no such machine.
pub fn find_source_by_machine_or_npu_name(
    name: &str,
) -> Result<PresetOrMachineFileText, MachineError> {
    let head = format!("\n[npu.{name}]");
    let mut presets = PRESETS.iter();
    match preset::find_machine_text(name) {
        Err(error @ MachineError::Unknown { .. }) => {
            let found = presets.find(|preset| preset.text.contains(&head));
            let found = found.map(|preset| PresetOrMachineFileText {
                file: preset.name.to_owned(),
                text: Cow::Borrowed(preset.text),
            });
            found.ok_or(error)
        }
        found => found,
    }
}

/// Returns the text of a machine called `name`, derived from `from` with the numbers of `sheet`.
///
/// # Errors
///
/// Fails if `from` is invalid, has several classes of NPUs, or lacks a value that a given number should replace.
pub fn derive_relative_machine(
    name: &str,
    from: &PresetOrMachineFileText,
    sheet: &KnownMachineDatasheetOverrides,
) -> Result<String, MachineError> {
    let document = ConfigDocument::parse(&from.text, &from.file)?;
    let old = build::build_machine(&document, None)?;
    let edited = MachineTextEditor::new(name, &from.text, &old).write_text(&document, sheet)?;
    Machine::parse(&edited, name)?;
    Ok(edited)
}

/// The text of a machine file and the edits to it.
struct MachineTextEditor<'a> {
    name: &'a str,
    text: &'a str,
    old: &'a Machine,
    /// The replacements, each with a byte range of the text and the new text for it.
    edits: Vec<(Range<usize>, String)>,
    /// The given numbers, as text for the machine's description.
    given: Vec<String>,
    /// True if the curves were measured on an NPU whose rates differ from this NPU's.
    is_carried: bool,
}

impl<'a> MachineTextEditor<'a> {
    fn new(name: &'a str, text: &'a str, old: &'a Machine) -> Self {
        Self {
            name,
            text,
            old,
            edits: Vec::new(),
            given: Vec::new(),
            is_carried: false,
        }
    }

    fn write_text(
        mut self,
        document: &ConfigDocument<'_>,
        sheet: &KnownMachineDatasheetOverrides,
    ) -> Result<String, ConfigError> {
        let root = document.unchecked_root();
        let label = root.require_field("name", "the machine's name")?;
        let literal = |text: &str| ConfigLiteral::Text(text.to_owned()).to_toml_text();
        self.edits.push((label.byte_range(), literal(self.name)));
        if let Some(price) = sheet.price {
            self.given.push(format!("{price} dollars for an NPU hour"));
            self.set_key(&root, "price_per_npu_hour", price.to_string(), &label);
        }
        let npus = match root.get("npu") {
            Some(field) => field.read_table(None)?.fields().collect(),
            None => Vec::new(),
        };
        match &npus[..] {
            [(class, field)] => {
                self.edit_npu_by_datasheet(class, &field.read_table(None)?, sheet)?
            }
            _ if sheet.has_npu_numbers() => {
                let found = format!("{} classes of NPUs", npus.len());
                return Err(
                    root.invalid_table_error(found, "one class, to which the given numbers apply")
                );
            }
            _ => {}
        }
        self.edit_network_by_datasheet(&root, sheet)?;
        if self.is_carried && root.get("relative_of").is_none() {
            let end = label.byte_range().end;
            let end = end + self.rest_of_line(end).len();
            let entry = format!(
                "\nrelative_of = {}  # curves of kernels were measured there",
                literal(self.old.name())
            );
            self.edits.push((end..end, entry));
        }
        let given = match self.given.is_empty() {
            true => "nothing".to_owned(),
            false => self.given.join(", "),
        };
        if let Some(description) = root.get("description") {
            // A description is a single line of at most 200 characters, so the old name is truncated.
            let old: String = self.old.name().chars().take(100).collect();
            let text = match self.given.is_empty() {
                true => format!("as {old}"),
                false => format!("relative of {old} with other rates, not measured"),
            };
            self.edits.push((description.byte_range(), literal(&text)));
        }
        let head = format!(
            "# {}: a relative of {} by `chakram machine new`, with {given}.\n# All else is of {}, comments included. \
             No time was measured on this machine: times go with the rates, and errors\n# are wider where these differ.\n",
            self.name,
            self.old.name(),
            self.old.name()
        );
        Ok(head + &self.apply_edits())
    }

    /// Returns the text of the machine file with all edits.
    fn apply_edits(mut self) -> String {
        self.edits
            .sort_by_key(|(range, _)| (range.start, range.end));
        let mut text = self.text.to_owned();
        for (range, with) in self.edits.into_iter().rev() {
            text.replace_range(range, &with);
        }
        text
    }

    /// Returns the text after `at` on its line.
    fn rest_of_line(&self, at: usize) -> &'a str {
        self.text[at..].lines().next().unwrap_or_default()
    }

    /// Replaces the value of `field` with `value`. Adds `comment` to the line unless it already has one.
    fn replace_value(&mut self, field: &ConfigField<'_>, value: String, comment: &str) {
        let span = field.byte_range();
        let rest = self.rest_of_line(span.end);
        let is_last = rest.trim_start().is_empty() || rest.trim_start().starts_with('#');
        self.edits.push(match is_last {
            true => (
                span.start..span.end + rest.len(),
                format!("{value}  # {comment}"),
            ),
            false => (span, value),
        });
    }

    /// Sets `key` of `table` to `value`. A missing key is inserted after `beside`.
    fn set_key(
        &mut self,
        table: &ConfigTable<'_>,
        key: &str,
        value: String,
        beside: &ConfigField<'_>,
    ) {
        if let Some(field) = table.get(key) {
            let was = format!(
                "given; {} has {}",
                self.old.name(),
                field.raw_text().trim_matches('"')
            );
            return self.replace_value(&field, value, &was);
        }
        let end = beside.byte_range().end;
        let rest = self.rest_of_line(end);
        let entry = match rest.trim_start().starts_with([',', '}']) {
            // An inline table is on one line, so the key is added there.
            true => (end..end, format!(", {key} = {value}")),
            false => {
                let end = end + rest.len();
                let comment = format!("given; {} has none", self.old.name());
                (end..end, format!("\n{key} = {value}  # {comment}"))
            }
        };
        self.edits.push(entry);
    }

    fn edit_npu_by_datasheet(
        &mut self,
        class: &str,
        table: &ConfigTable<'_>,
        sheet: &KnownMachineDatasheetOverrides,
    ) -> Result<(), ConfigError> {
        // Recorded kernels name their NPU class, so the derived class gets a new name.
        for head in [
            format!("[npu.{class}]"),
            format!("[npu.{class}."),
            format!("[[npu.{class}."),
        ] {
            let starts = self.text.match_indices(&head).map(|(at, _)| at);
            // Match only at the start of a line, because comments may contain the same text.
            let starts = starts.filter(|at| *at == 0 || self.text[..*at].ends_with('\n'));
            let starts: Vec<_> = starts.collect();
            for at in starts {
                let at = at + head.find("npu.").unwrap_or(0) + "npu.".len();
                self.edits
                    .push((at..at + class.len(), self.name.to_owned()));
            }
        }
        let beside = table.require_field("memory_bandwidth", "a bandwidth")?;
        let mut ratios = [1.0; Dtype::COUNT];
        let old = &self.old.npu_classes()[0];
        let mut bandwidth_ratio = 1.0;
        if let Some(bandwidth) = sheet.bandwidth {
            let before = old
                .memory_bandwidth()
                .map_or(f64::NAN, Bandwidth::bytes_per_second);
            bandwidth_ratio = bandwidth.bytes_per_second() / before;
            let shown = format_gigabytes_per_s(bandwidth);
            self.given.push(format!("memory at {shown}"));
            self.set_key(
                table,
                "memory_bandwidth",
                quote_and_truncate_for_message(&shown),
                &beside,
            );
        }
        if let Some(memory) = sheet.memory {
            let shown = format_capacity(memory);
            self.given.push(format!("{shown} of memory"));
            self.set_key(
                table,
                "memory_capacity",
                quote_and_truncate_for_message(&shown),
                &beside,
            );
        }
        if !sheet.peaks.is_empty() {
            let peaks = table
                .require_field("peak", "a table of rates")?
                .read_table(None)?;
            let last = peaks
                .fields()
                .map(|(_, field)| field)
                .max_by_key(|field| field.byte_range().end);
            for (dtype, rate) in &sheet.peaks {
                let (_, name) = Dtype::ALL[*dtype as usize];
                let before = old
                    .peaks
                    .peak_rate_if_supported(*dtype)
                    .map(|peak| peak.per_second());
                ratios[*dtype as usize] = before.map_or(1.0, |before| rate.per_second() / before);
                let shown = format!("{} TFLOP/s", rate.per_second() / 1e12);
                self.given.push(format!("{name} at {shown}"));
                if let Some(last) = &last {
                    self.set_key(&peaks, name, quote_and_truncate_for_message(&shown), last);
                }
            }
        }
        if let Some(count) = sheet.multiprocessors {
            self.given.push(format!("{count} multiprocessors"));
        }
        self.widen_curve_errors(table, sheet, &ratios, bandwidth_ratio)?;
        let changed = bandwidth_ratio != 1.0 || ratios.iter().any(|ratio| *ratio != 1.0);
        let is_measured = table.get("measured").is_some() || table.get("product").is_some();
        // Without `measured_at`, measured times would count as measured at the new rates, so state the old rates there.
        if changed && is_measured && table.get("measured_at").is_none() {
            let peaks = Dtype::ALL.iter().filter_map(|(dtype, name)| {
                let peak = old.peaks.peak_rate_if_supported(*dtype)?;
                Some(format!("{name} = \"{} TFLOP/s\"", peak.per_second() / 1e12))
            });
            let peaks: Vec<_> = peaks.collect();
            let bandwidth = old
                .memory_bandwidth()
                .map(format_gigabytes_per_s)
                .unwrap_or_default();
            let end = self.text.len();
            let section = format!(
                "\n# The rates that kernels above were measured at, those of {}.\n[npu.{}.measured_at]\nmemory_bandwidth = \"{bandwidth}\"\n\
                 peak = {{ {} }}\n",
                self.old.name(),
                self.name,
                peaks.join(", ")
            );
            self.edits.push((end..end, section));
        }
        Ok(())
    }

    /// Increases the errors of curves if the derived NPU's rates differ.
    fn widen_curve_errors(
        &mut self,
        table: &ConfigTable<'_>,
        sheet: &KnownMachineDatasheetOverrides,
        ratios: &[f64; Dtype::COUNT],
        bandwidth: f64,
    ) -> Result<(), ConfigError> {
        let list = "a list of tables";
        let mut counted = false;
        for (key, is_list) in [("gemm", true), ("attention", true), ("moving", false)] {
            let Some(field) = table.get(key) else {
                continue;
            };
            let curves = match is_list {
                true => field.read_array_items(list)?,
                false => vec![field],
            };
            for curve in curves {
                let curve = curve.read_table(None)?;
                let mut q = f64::min(bandwidth, 1.0 / bandwidth);
                if let Some(formats) = curve.get("formats") {
                    for format in formats.read_array_items(list)? {
                        let name = format.read_text("a number format")?;
                        let dtype = Dtype::ALL.iter().find(|(_, known)| *known == name);
                        let ratio = dtype.map_or(1.0, |(dtype, _)| ratios[*dtype as usize]);
                        q = q.min(ratio).min(1.0 / ratio);
                    }
                }
                if let Some(count) = sheet.multiprocessors {
                    for inner in ["decode", "waves"] {
                        let inner = curve
                            .get(inner)
                            .map(|field| field.read_table(None))
                            .transpose()?;
                        let field = inner.and_then(|inner| inner.get("multiprocessors"));
                        field.into_iter().for_each(|field| {
                            self.edits.push((field.byte_range(), count.to_string()))
                        });
                    }
                    if let Some(field) = curve.get("multiprocessors") {
                        let was = format!("given; {} has {}", self.old.name(), field.raw_text());
                        self.replace_value(&field, count.to_string(), &was);
                        counted = true;
                    }
                }
                if let (Some(field), true) = (curve.get("error"), q < 1.0) {
                    self.is_carried = true;
                    let error = field.read_positive(f64::MAX)?;
                    let wider = error.hypot(NOT_MEASURED * (1.0 - q));
                    let comment = format!(
                        "not measured: {error} of {}, and {NOT_MEASURED} x (1 - {q:.3}) for its rates",
                        self.old.name()
                    );
                    self.replace_value(&field, format!("{wider:.4}"), &comment);
                }
            }
        }
        match sheet.multiprocessors {
            Some(_) if !counted => Err(table.invalid_table_error(
                "no curve of matrix multiplications",
                "a curve, because the number of multiprocessors is part of it",
            )),
            _ => Ok(()),
        }
    }

    fn edit_network_by_datasheet(
        &mut self,
        root: &ConfigTable<'_>,
        sheet: &KnownMachineDatasheetOverrides,
    ) -> Result<(), ConfigError> {
        let (inside, between) = (sheet.has_node_network_numbers(), sheet.nic.is_some());
        if !inside && !between {
            return Ok(());
        }
        let dimensions = match root.get("dimension") {
            Some(field) => field.read_array_items("a table for each dimension")?,
            None => {
                return Err(root.invalid_table_error(
                    "a machine of tiles",
                    "dimensions, to which the given links and nodes apply",
                ));
            }
        };
        let tables = dimensions.iter().map(|field| field.read_table(None));
        let tables: Vec<_> = tables.collect::<Result<_, _>>()?;
        let (Some(inner), Some(outer)) = (tables.first(), tables.last()) else {
            return Err(root.invalid_table_error("no dimension", "one"));
        };
        if between && tables.len() < 2 {
            return Err(root.invalid_table_error(
                "one dimension",
                "two dimensions, where the outer one connects nodes",
            ));
        }
        if let Some(count) = sheet.npus_per_node {
            self.given.push(format!("{count} NPUs a node"));
            let beside = inner.require_field("shape", "a shape")?;
            self.set_key(inner, "size", count.to_string(), &beside);
        }
        // Datasheets state links as the sum of both directions, and ports in one direction.
        let link = sheet
            .link
            .map(|link| (link.bytes_per_second() / 2.0, format_gigabytes_per_s(link)));
        let nic = sheet
            .nic
            .map(|nic| (nic.bytes_per_second(), format_gigabytes_per_s(nic)));
        for (index, table, rate, latency, words) in [
            (
                0,
                inner,
                link,
                sheet.link_latency,
                "links in both directions",
            ),
            (tables.len() - 1, outer, nic, None, "a port between nodes"),
        ] {
            if rate.is_none() && latency.is_none() {
                continue;
            }
            let dimension = &self.old.topology().dimensions()[index];
            let bandwidth = table.require_field("bandwidth", "a bandwidth")?;
            let has_curves = table.get("curve").is_some() || table.get("protocol").is_some();
            if has_curves && table.get("measured_at").is_none() {
                let measured_at = format!(
                    "{{ bandwidth = \"{}\", latency = \"{} ps\" }}",
                    format_gigabytes_per_s(dimension.bandwidth),
                    dimension.latency.0
                );
                let end = bandwidth.byte_range().end;
                let end = end + self.rest_of_line(end).len();
                let entry = format!(
                    "\nmeasured_at = {measured_at}  # the links of {}",
                    self.old.name()
                );
                self.edits.push((end..end, entry));
            }
            if let Some((bytes_per_s, shown)) = rate {
                self.given.push(format!("{shown} of {words}"));
                let value = quote_and_truncate_for_message(&format!("{} GB/s", bytes_per_s / 1e9));
                let was = format!(
                    "given: {shown} of {words}; {} has {}",
                    self.old.name(),
                    bandwidth.raw_text().trim_matches('"')
                );
                self.replace_value(&bandwidth, value, &was);
            }
            if let Some(latency) = latency {
                self.given.push(format!("{latency} over a link"));
                let value = quote_and_truncate_for_message(&format!("{} ps", latency.0));
                self.set_key(table, "latency", value, &bandwidth);
            }
        }
        Ok(())
    }
}

impl KnownMachineDatasheetOverrides {
    fn has_npu_numbers(&self) -> bool {
        let rates = self.bandwidth.is_some() || !self.peaks.is_empty();
        rates || self.memory.is_some() || self.multiprocessors.is_some()
    }

    fn has_node_network_numbers(&self) -> bool {
        self.link.is_some() || self.link_latency.is_some() || self.npus_per_node.is_some()
    }
}

/// Formats a capacity, such as `141 GB` or `32 GiB`.
fn format_capacity(bytes: Bytes) -> String {
    let units = [(1_000_000_000, "GB"), (1 << 30, "GiB"), (1, "B")];
    let exact = units.iter().find(|(unit, _)| bytes.0.is_multiple_of(*unit));
    let (unit, name) = exact.unwrap_or(&(1, "B"));
    format!("{} {name}", bytes.0 / unit)
}

/// Formats a rate, such as `4800 GB/s`.
fn format_gigabytes_per_s(rate: Bandwidth) -> String {
    format!("{} GB/s", rate.bytes_per_second() / 1e9)
}

#[cfg(test)]
mod tests;
