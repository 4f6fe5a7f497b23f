//! Renders reports in the requested format, and describes the options that affected them.

use super::ReplayAndReportArgs;
use super::args::{MemoryOverflowAction, ReportFormatArg, ReportTableArg};
use crate::custom_algorithm;
use crate::terminal;
use chakram_base::setting::EnumeratedSetting;
use chakram_engine::CommunicationDurationSource;
use chakram_report::report_csv::ReportCsvTable;
use chakram_report::summary::{HashedInput, KernelCountsByDurationMethod, Provenance};
use chakram_report::{self as report, MachineComparison, Report, text::TextStyleWidthAndDetail};
use chakram_trace::workload::MissingRankPolicy;
use serde_json::{Map, Value};
use std::io::{self, Write};

impl ReplayAndReportArgs {
    /// Describes where the durations of kernels and communication come from.
    fn describe_duration_basis(&self, kernels: &KernelCountsByDurationMethod) -> String {
        let kernels = self.timing.describe_durations(kernels);
        match self
            .timing
            .parsed_settings()
            .options_without_files_and_efficiency()
            .comm
        {
            CommunicationDurationSource::Model => kernels,
            other => format!("{kernels}, communication as {}", other),
        }
    }

    /// Writes the report in the requested format.
    #[allow(
        clippy::too_many_arguments,
        reason = "each is one thing that a report says"
    )]
    pub(super) fn render_report(
        &self,
        report: &mut Report,
        name: &str,
        absent: MissingRankPolicy,
        inputs: &[HashedInput],
        style: TextStyleWidthAndDetail,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if self.sums_micro_batches() {
            report.merge_micro_batch_operators();
        }
        let text = match self.format {
            ReportFormatArg::Text => {
                let mut text = report::report_text::render_text(
                    report,
                    name,
                    &self.describe_basis_with_network(report),
                    style,
                );
                for other in &report.beside {
                    let basis = self.describe_basis_with_network(&other.report);
                    text.push('\n');
                    text +=
                        &report::report_text::render_text(&other.report, &other.job, &basis, style);
                }
                text
            }
            ReportFormatArg::Json => {
                let mut options = self.options_json(absent);
                // Keep the options about launches that the command stored in the report, because only the command knows
                // these options.
                options.extend(report.provenance.take().unwrap_or_default().options);
                report.provenance = Some(Provenance::new(options, inputs));
                return report::json::write_indented_json(
                    &mut terminal::EscapingWriter::new_for_json(out),
                    report,
                );
            }
            ReportFormatArg::Csv => report::report_csv::render_report_table(
                report,
                self.requested_table().unwrap_or_default(),
            ),
        };
        out.write_all(text.as_bytes())
    }

    /// Describes where durations come from, including the network model.
    fn describe_basis_with_network(&self, report: &Report) -> String {
        let mut basis = self.describe_duration_basis(&report.kernels);
        if let Some(model) = report.contention_network_model() {
            basis += &format!(", network model {model}");
        }
        basis
    }

    /// Renders the HTML page of a report, with the same facts as the report's JSON.
    pub(super) fn render_page(
        &self,
        report: &Report,
        name: &str,
        absent: MissingRankPolicy,
        inputs: &[HashedInput],
    ) -> String {
        let mut shown = report.clone();
        if !self.all_operators {
            shown.merge_micro_batch_operators();
        }
        let mut options = self.options_json(absent);
        options.extend(shown.provenance.take().unwrap_or_default().options);
        shown.provenance = Some(Provenance::new(options, inputs));
        report::html::render_html(&shown, name, &self.describe_basis_with_network(report))
    }

    /// Returns true if each operator has one row, which sums all micro-batches.
    fn sums_micro_batches(&self) -> bool {
        let lists = self.format == ReportFormatArg::Json
            || self.requested_table() == Some(ReportCsvTable::Operators);
        lists && !self.all_operators
    }

    /// Writes the comparison of one job on several machines. `trace_options` are the options for reading the traces.
    pub fn render_comparison(
        &self,
        comparison: &mut MachineComparison<'_>,
        absent: MissingRankPolicy,
        trace_options: &Map<String, Value>,
        inputs: &[HashedInput],
        style: TextStyleWidthAndDetail,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if self.sums_micro_batches() {
            let columns = comparison.columns.iter_mut();
            let reports = columns.filter_map(|column| column.result.as_mut().ok());
            reports.for_each(Report::merge_micro_batch_operators);
        }
        let text = match self.format {
            ReportFormatArg::Text => {
                let basis = self.describe_duration_sources_on_all_machines(comparison);
                report::compare::text(
                    comparison,
                    &basis,
                    &self.notes_on_options_equalizing_times(comparison),
                    style,
                )
            }
            ReportFormatArg::Json => {
                let mut options = self.options_json(absent);
                options.extend(trace_options.clone());
                let provenance = Provenance::new(options, inputs);
                let document = report::compare::json(comparison, provenance);
                return report::json::write_indented_json(
                    &mut terminal::EscapingWriter::new_for_json(out),
                    &document,
                );
            }
            ReportFormatArg::Csv => report::compare::csv(comparison, self.requested_table()),
        };
        out.write_all(text.as_bytes())
    }

    /// Describes where the durations on all machines come from.
    fn describe_duration_sources_on_all_machines(
        &self,
        comparison: &MachineComparison<'_>,
    ) -> String {
        let kernels = comparison
            .reference_machine()
            .map(|(_, report)| report.kernels);
        let mut basis = self.describe_duration_basis(&kernels.unwrap_or_default());
        if self
            .timing
            .parsed_settings()
            .options_without_files_and_efficiency()
            .comm
            == CommunicationDurationSource::Model
        {
            basis += ", communication by the network";
        }
        basis
    }

    /// Renders the HTML page of a comparison.
    pub fn render_machine_comparison_page(&self, comparison: &MachineComparison<'_>) -> String {
        let basis = self.describe_duration_sources_on_all_machines(comparison);
        report::compare::html(
            comparison,
            &basis,
            &self.notes_on_options_equalizing_times(comparison),
        )
    }

    /// Returns a note for each option that makes certain times the same on all machines.
    fn notes_on_options_equalizing_times(&self, comparison: &MachineComparison<'_>) -> Vec<String> {
        let mut notes = Vec::new();
        let Some((column, report)) = comparison.reference_machine() else {
            return notes;
        };
        if report.kernels.priced > 0 && !self.timing.compute_model().ignores_recorded_durations() {
            let some = if report.kernels.estimated > 0 {
                "recorded kernels"
            } else {
                "kernels"
            };
            notes.push(format!(
                "{some} last equally long on all machines; --compute roofline prices them for each"
            ));
        }
        if let Some((_, text)) = report.describe_machine_dependence() {
            notes.push(format!("on {}: {text}", column.name));
        }
        let reports = comparison.columns.iter();
        let bounds = reports.filter(|column| {
            let report = column.result.as_ref();
            report.is_ok_and(Report::is_lower_bound)
        });
        let bounds: Vec<&str> = bounds.map(|column| &*column.name).collect();
        if !bounds.is_empty() {
            notes.push(format!(
                "the makespan is a lower bound on {}: some nodes have neither a price nor a duration",
                bounds.join(", ")
            ));
        }
        if self
            .timing
            .parsed_settings()
            .options_without_files_and_efficiency()
            .comm
            != CommunicationDurationSource::Model
        {
            notes.push(format!(
                "communication lasts as {} on all machines; --comm model asks the network of each",
                self.timing
                    .parsed_settings()
                    .options_without_files_and_efficiency()
                    .comm
            ));
        }
        notes
    }

    fn options_json(&self, absent: MissingRankPolicy) -> Map<String, Value> {
        let mut options = Map::new();
        let settings = self.timing.parsed_settings();
        let replay = settings.options_without_files_and_efficiency();
        self.timing.add_duration_sources_to_json(&mut options);
        let comm = replay.comm.to_string();
        options.insert("comm".to_owned(), comm.into());
        if let Some(network) = replay.network {
            let network = network.to_string();
            options.insert("network".to_owned(), network.into());
        }
        options.insert("absent".to_owned(), absent.choice_name().into());
        options.insert("stepwise".to_owned(), replay.stepwise.into());
        if replay.aggregate {
            options.insert("aggregate".to_owned(), true.into());
        }
        if replay.lower_bound {
            options.insert("lower_bound".to_owned(), true.into());
        }
        if self.links {
            options.insert("links".to_owned(), true.into());
        }
        if let Some(price) = self.price {
            options.insert("price".to_owned(), price.into());
        }
        if let Some(tokens) = self.total_tokens {
            options.insert("total_tokens".to_owned(), tokens.into());
        }
        if settings.fill_domains {
            options.insert("fill_domains".to_owned(), true.into());
        }
        if self.fit == MemoryOverflowAction::Require {
            options.insert("fit".to_owned(), "require".into());
        }
        if self.all_operators {
            options.insert("all_operators".to_owned(), true.into());
        }
        if !settings.custom.is_empty() {
            let custom = settings
                .custom
                .iter()
                .map(custom_algorithm::custom_algorithm_kind_and_prefix_to_json);
            options.insert("custom".to_owned(), custom.collect());
        }
        if let Some(map) = &replay.map {
            let npus: Vec<Value> = map.iter().map(|npu| npu.0.into()).collect();
            options.insert("map".to_owned(), npus.into());
        }
        self.timing.add_given_options_to_json(&mut options);
        options
    }

    /// Returns the requested CSV table of a single report.
    fn requested_table(&self) -> Option<ReportCsvTable> {
        self.table.and_then(ReportTableArg::to_single_report_table)
    }
}
