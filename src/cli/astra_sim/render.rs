//! Renders the output as ASTRA-sim's lines, as a table, or as a JSON report.

use chakram_astra_sim::{AstraInputs, RankWorkKindsAndKernelTime};
use chakram_base::units::Span;
use chakram_report::csv::CsvRows;
use chakram_report::summary::{HashedInput, Provenance};
use chakram_report::{RankBusyTime, Report};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Statistics of a rank that finished, with times in ns.
#[derive(Clone, Copy, Debug)]
pub struct RankStatistics {
    /// Index of the rank in the job.
    pub rank: u32,
    finish: u64,
    /// Wall time minus the recorded times of the rank's nodes. The difference is negative if nodes overlap, which is
    /// possible in a pure replay.
    exposed: i64,
    time: RankBusyTime,
    work: RankWorkKindsAndKernelTime,
    /// Peak memory of tensors, in bytes; `None` unless the inputs request memory tracking.
    pub peak_memory: Option<u64>,
}

impl RankStatistics {
    /// Creates the statistics of a rank from its busy times `time` and its work `work`. Returns
    /// `None` if the rank did not finish.
    pub fn new(rank: u32, time: RankBusyTime, work: RankWorkKindsAndKernelTime) -> Option<Self> {
        let finish = time.finish?.0 / 1000;
        Some(Self {
            rank,
            finish,
            exposed: finish as i64 - as_ns(work.busy) as i64,
            time,
            work,
            peak_memory: None,
        })
    }
}

impl RankStatistics {
    /// Returns true if the rank has nodes that are neither kernels nor communication. ASTRA-sim then throws an
    /// exception when it prints the rank's statistics.
    pub fn makes_astra_sim_throw_when_printed(&self) -> bool {
        self.work.host || self.work.memory || self.work.nothing
    }

    /// Replaces the overlap with ASTRA-sim's value: kernel time plus communication time minus total time.
    pub fn with_astra_sim_overlap(mut self) -> Self {
        let both = self.time.kernels.0 / 1000 + self.time.communication.0 / 1000;
        self.time.overlap = Span::from_ns(both.saturating_sub(self.finish));
        self
    }
}

fn as_ns(span: Span) -> u64 {
    span.0 / 1000
}

/// Renders the lines that ASTRA-sim prints, in its words, rank by rank.
pub fn render_text(rows: &[RankStatistics]) -> String {
    let mut out = String::new();
    for row in rows {
        out += &render_rank_end(row);
        out.push('\n');
        out += &render_rank_statistics(row, true);
    }
    out
}

/// Renders the line that ASTRA-sim prints when a rank finishes.
pub fn render_rank_end(row: &RankStatistics) -> String {
    format!(
        "sys[{}] finished, {} cycles, exposed communication {} cycles.",
        row.rank, row.finish, row.exposed
    )
}

/// Renders the lines of a rank's statistics. Omits the line about overlap if kernels and communication do not overlap,
/// unless `always` is true.
pub fn render_rank_statistics(row: &RankStatistics, always: bool) -> String {
    let mut out = String::new();
    append_rank_statistics_lines(&mut out, row, always).expect("a string grows as needed");
    out
}

fn append_rank_statistics_lines(
    out: &mut String,
    row: &RankStatistics,
    always: bool,
) -> std::fmt::Result {
    let (rank, time, work) = (row.rank, &row.time, &row.work);
    writeln!(out, "sys[{rank}], Wall time: {}", row.finish)?;
    for (any, name, span) in [
        (work.host, "CPU", time.host),
        (work.kernels, "GPU", time.kernels),
        (work.communication, "Comm", time.communication),
        (work.memory, "Remote mem", time.memory),
        (work.nothing, "Invalid", time.nothing),
    ] {
        if any {
            writeln!(out, "sys[{rank}], {name} time: {}", as_ns(span))?;
        }
    }
    let overlap = as_ns(time.overlap);
    if always || overlap > 0 {
        writeln!(
            out,
            "sys[{rank}], Total compute-communication overlap: {overlap}"
        )?;
    }
    if let Some(roofline) = &work.roofline {
        for (name, share) in [
            ("Compute bound percentage", roofline.compute_bound),
            ("Average compute utilization", roofline.compute),
            ("Average memory utilization", roofline.memory),
        ] {
            writeln!(out, "sys[{rank}], {name}: {:.3}%", share * 100.0)?;
        }
        let intensity = roofline.intensity;
        writeln!(
            out,
            "sys[{rank}], Average operation intensity: {intensity:.3}"
        )?;
    }
    if let Some(peak) = row.peak_memory {
        let (value, unit) = scale_bytes(peak);
        writeln!(out, "sys[{rank}] peak memory usage: {value:.2} {unit}")?;
    }
    Ok(())
}

/// Converts bytes to a unit as ASTRA-sim does: in single precision, with 1024 bytes per KB.
fn scale_bytes(bytes: u64) -> (f32, &'static str) {
    let mut value = bytes as f32;
    let mut left = bytes;
    for unit in ["B", "KB", "MB", "GB"] {
        if left < 1024 {
            return (value, unit);
        }
        value /= 1024.0;
        left /= 1024;
    }
    (value, "TB")
}

const HEADER: &str = "rank,finish_ns,exposed_communication_ns,cpu_ns,gpu_ns,communication_ns,\
                      remote_memory_ns,overlap_ns,compute_bound,compute_utilization,\
                      memory_utilization,flops_per_byte,peak_memory_bytes\n";

/// Renders a table with one row per rank. A cell is empty if its value was not requested.
pub fn render_csv(rows: &[RankStatistics]) -> String {
    let mut out = CsvRows::new(HEADER.trim_end());
    for row in rows {
        let time = &row.time;
        let spans = [time.host, time.kernels, time.communication, time.memory];
        let spans = spans.into_iter().chain([time.overlap]);
        let roofline = row.work.roofline;
        let uses = roofline.map(|r| [r.compute_bound, r.compute, r.memory, r.intensity]);
        let uses = uses.map_or([const { String::new() }; 4], |uses| {
            uses.map(|value| format!("{value:.6}"))
        });
        let peak = row.peak_memory.map(|peak| peak.to_string());
        let mut fields = vec![
            row.rank.to_string(),
            row.finish.to_string(),
            row.exposed.to_string(),
        ];
        fields.extend(spans.map(|span| as_ns(span).to_string()));
        fields.extend(uses);
        fields.push(peak.unwrap_or_default());
        out.add_row_of_cells(fields);
    }
    out.into_text()
}

/// JSON document: a report with ASTRA-sim's statistics.
#[derive(Debug, Serialize)]
pub struct AstraSimReportDocument {
    #[serde(flatten)]
    report: Report,
    astra_sim: AstraOnlyReportFields,
}

/// Settings and results that only ASTRA-sim's reports have.
#[derive(Debug, Serialize)]
struct AstraOnlyReportFields {
    network_model: String,
    understood: BTreeMap<String, String>,
    notes: Vec<String>,
    ranks: Vec<AstraRankDocument>,
}

#[derive(Debug, Serialize)]
struct AstraRankDocument {
    rank: u32,
    finish_ns: u64,
    exposed_communication_ns: i64,
    cpu_ns: u64,
    gpu_ns: u64,
    communication_ns: u64,
    remote_memory_ns: u64,
    overlap_ns: u64,
    roofline: Option<RooflineUtilization>,
    peak_memory_bytes: Option<u64>,
}

/// JSON object with utilizations relative to the roofline.
#[derive(Debug, Serialize)]
struct RooflineUtilization {
    compute_bound: f64,
    compute_utilization: f64,
    memory_utilization: f64,
    flops_per_byte: f64,
}

impl AstraSimReportDocument {
    /// Adds ASTRA-sim's settings and statistics to `report`.
    pub fn new(
        mut report: Report,
        rows: &[RankStatistics],
        inputs: &AstraInputs,
        options: Map<String, Value>,
        notes: Vec<String>,
        files: &[HashedInput],
    ) -> Self {
        report.merge_micro_batch_operators();
        report.provenance = Some(Provenance::new(options, files));
        let understood = inputs.summarize_inputs().into_iter();
        let understood = understood.map(|(section, line)| (section.to_owned(), line));
        Self {
            report,
            astra_sim: AstraOnlyReportFields {
                network_model: inputs.model.to_string(),
                understood: understood.collect(),
                notes,
                ranks: rows.iter().map(rank_document).collect(),
            },
        }
    }
}

fn rank_document(row: &RankStatistics) -> AstraRankDocument {
    let time = &row.time;
    AstraRankDocument {
        rank: row.rank,
        finish_ns: row.finish,
        exposed_communication_ns: row.exposed,
        cpu_ns: as_ns(time.host),
        gpu_ns: as_ns(time.kernels),
        communication_ns: as_ns(time.communication),
        remote_memory_ns: as_ns(time.memory),
        overlap_ns: as_ns(time.overlap),
        roofline: row.work.roofline.map(|roofline| RooflineUtilization {
            compute_bound: roofline.compute_bound,
            compute_utilization: roofline.compute,
            memory_utilization: roofline.memory,
            flops_per_byte: roofline.intensity,
        }),
        peak_memory_bytes: row.peak_memory,
    }
}

#[cfg(test)]
mod tests {
    use super::scale_bytes;

    #[test]
    fn bytes_are_scaled_by_1024() {
        assert_eq!(scale_bytes(0), (0.0, "B"));
        assert_eq!(scale_bytes(1023), (1023.0, "B"));
        assert_eq!(scale_bytes(1536), (1.5, "KB"));
        assert_eq!(scale_bytes(3 << 20), (3.0, "MB"));
        // A size that is one byte less than a MB is printed in KB, although it rounds to 1024.00.
        assert_eq!(scale_bytes((1 << 20) - 1).1, "KB");
        assert_eq!(scale_bytes(5 << 29), (2.5, "GB"));
        assert_eq!(scale_bytes(1 << 50), (1024.0, "TB"));
    }
}
