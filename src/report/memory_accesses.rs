//! Loads and stores by memory: the NPU's own memory, memory outside the NPU, and named memories.

use super::Report;
use super::section::{ReportMedium, ReportSection, SectionCell, SectionId};
use super::table::{left, right};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Bytes, Span};
use chakram_engine::CompiledReplay;
use chakram_trace::graph::{Graph, NodeKind};
use serde::{Deserialize, Serialize};

/// Loads and stores of one memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MemoryAccessRow {
    /// `local`, `remote`, or `remote NAME` for a named memory.
    pub memory: String,
    /// Number of loads from the memory.
    pub loads: u64,
    /// Number of stores to the memory.
    pub stores: u64,
    /// Bytes loaded and stored.
    pub bytes: u64,
    /// Total time of the accesses from issue to completion; overlapping accesses are each counted in full.
    #[serde(rename = "total_ps")]
    pub total: Span,
}

/// Running sums of loads and stores by memory.
#[derive(Debug)]
pub(super) struct MemoryAccessSums {
    /// Rows: local memory, unnamed remote memory, then the machine's named memories.
    rows: Vec<MemoryAccessRow>,
}

impl MemoryAccessSums {
    pub fn new(prepared: &CompiledReplay<'_>) -> Self {
        let named = prepared.machine().named_memories().iter();
        let named = named.map(|memory| format!("remote {}", memory.name));
        let names = ["local".to_owned(), "remote".to_owned()];
        let rows = names.into_iter().chain(named);
        let row = |memory| MemoryAccessRow {
            memory,
            ..MemoryAccessRow::default()
        };
        Self {
            rows: rows.map(row).collect(),
        }
    }

    /// Adds an access that took `span`; `memory` is the index of the named memory, or `None` for other memory.
    pub fn add(&mut self, graph: &Graph, node: NodeIndex, memory: Option<u32>, span: Span) {
        let at = match (graph.kind(node), memory) {
            (NodeKind::LocalMemory, _) => 0,
            (_, None) => 1,
            (_, Some(named)) => 2 + named as usize,
        };
        let row = &mut self.rows[at];
        if graph.stores(node) {
            row.stores += 1;
        } else {
            row.loads += 1;
        }
        row.bytes = row.bytes.saturating_add(graph.bytes(node));
        row.total += span;
    }

    /// Returns the rows of memories that were accessed.
    pub fn finish(mut self) -> Vec<MemoryAccessRow> {
        self.rows.retain(|row| row.loads + row.stores > 0);
        self.rows
    }
}

/// Returns the table of loads and stores.
pub(super) fn sections(report: &Report, _: ReportMedium) -> Vec<ReportSection> {
    if report.memory_accesses.is_empty() {
        return Vec::new();
    }
    let mut section = ReportSection::aligned(
        SectionId::MemoryAccesses,
        [
            left("LOADS AND STORES", 24),
            right("loads", 10),
            right("stores", 10),
            right("bytes", 12),
            right("total", 12),
            right("mean", 12),
            right("GB/s each", 12),
        ],
    );
    for (i, row) in report.memory_accesses.iter().enumerate() {
        let at = |field: &str| format!("/memory_accesses/{i}/{field}");
        let count = row.loads + row.stores;
        let seconds = row.total.0 as f64 / 1e12;
        let rate = row.bytes as f64 / seconds / 1e9;
        let rate = match seconds > 0.0 {
            true => SectionCell::number(rate, format!("{rate:.1}")),
            false => "-".into(),
        };
        section.row(vec![
            SectionCell::name(&*row.memory),
            SectionCell::count(row.loads).at(at("loads")),
            SectionCell::count(row.stores).at(at("stores")),
            SectionCell::from(Bytes(row.bytes)).at(at("bytes")),
            SectionCell::from(row.total).at(at("total_ps")),
            Span(row.total.0 / count.max(1)).into(),
            rate,
        ]);
    }
    vec![section]
}
