//! Loads and stores by memory: the NPU's own memory, unnamed memory outside the NPU, and named memories.

use super::Report;
use super::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
};
use super::table::{left_aligned_column, right_aligned_column};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Bytes, Span};
use chakram_engine::CompiledReplay;
use chakram_trace::graph::{Graph, NodeKind};
use serde::{Deserialize, Serialize};

/// Accesses to one memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct OneMemoryAccessesRow {
    /// `local`, `remote`, or `remote NAME` for a named memory.
    pub memory: String,
    /// Number of loads.
    pub loads: u64,
    /// Number of stores.
    pub stores: u64,
    /// Bytes loaded plus bytes stored.
    pub bytes: u64,
    /// Time from issue to completion, summed over the accesses; overlapping accesses each count in full.
    #[serde(rename = "total_ps")]
    pub total: Span,
}

/// Sums of loads and stores by memory, filled during a replay.
#[derive(Debug)]
pub(super) struct LoadStoreSumsByMemory {
    /// Order: local memory, unnamed remote memory, the machine's named memories.
    rows: Vec<OneMemoryAccessesRow>,
}

impl LoadStoreSumsByMemory {
    pub fn new(prepared: &CompiledReplay<'_>) -> Self {
        let named = prepared.machine().named_memories().iter();
        let named = named.map(|memory| format!("remote {}", memory.name));
        let names = ["local".to_owned(), "remote".to_owned()];
        let rows = names.into_iter().chain(named);
        let row = |memory| OneMemoryAccessesRow {
            memory,
            ..OneMemoryAccessesRow::default()
        };
        Self {
            rows: rows.map(row).collect(),
        }
    }

    /// Adds `count` identical accesses, one per represented rank, each of which takes `span`. `memory` is the index of
    /// the named memory; `None` for unnamed memory.
    pub fn add_access(
        &mut self,
        graph: &Graph,
        node: NodeIndex,
        memory: Option<u32>,
        span: Span,
        count: u64,
    ) {
        let at = match (graph.kind(node), memory) {
            (NodeKind::LocalMemory, _) => 0,
            (_, None) => 1,
            (_, Some(named)) => 2 + named as usize,
        };
        let row = &mut self.rows[at];
        if graph.is_store_node(node) {
            row.stores += count;
        } else {
            row.loads += count;
        }
        let bytes = graph.stated_bytes_of_node(node).saturating_mul(count);
        row.bytes = row.bytes.saturating_add(bytes);
        row.total += Span(span.0 * count);
    }

    /// Returns the rows of the memories that were accessed.
    pub fn into_rows(mut self) -> Vec<OneMemoryAccessesRow> {
        self.rows.retain(|row| row.loads + row.stores > 0);
        self.rows
    }
}

/// Returns the table of loads and stores by memory.
pub(super) fn build_memory_access_sections(
    report: &Report,
    _: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    if report.memory_accesses.is_empty() {
        return Vec::new();
    }
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::MemoryAccesses,
        [
            left_aligned_column("LOADS AND STORES", 24),
            right_aligned_column("loads", 10),
            right_aligned_column("stores", 10),
            right_aligned_column("bytes", 12),
            right_aligned_column("total", 12),
            right_aligned_column("mean", 12),
            right_aligned_column("GB/s each", 12),
        ],
    );
    for (i, row) in report.memory_accesses.iter().enumerate() {
        let at = |field: &str| format!("/memory_accesses/{i}/{field}");
        let count = row.loads + row.stores;
        let seconds = row.total.0 as f64 / 1e12;
        let rate = row.bytes as f64 / seconds / 1e9;
        let rate = match seconds > 0.0 {
            true => SectionCellWithValue::number_cell(rate, format!("{rate:.1}")),
            false => "-".into(),
        };
        section.push_row(vec![
            SectionCellWithValue::create_cell_with_input_name(&*row.memory),
            SectionCellWithValue::count_cell(row.loads).with_json_pointer(at("loads")),
            SectionCellWithValue::count_cell(row.stores).with_json_pointer(at("stores")),
            SectionCellWithValue::from(Bytes(row.bytes)).with_json_pointer(at("bytes")),
            SectionCellWithValue::from(row.total).with_json_pointer(at("total_ps")),
            Span(row.total.0 / count.max(1)).into(),
            rate,
        ]);
    }
    vec![section]
}
