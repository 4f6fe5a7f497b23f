//! Bytes and busy time of links. They show which dimension and which link limit the job.
//!
//! Bytes of messages, loads and stores are counted if requested, with any network model. A transfer is counted on every
//! link of its route ([`LinkTrafficBytes`](chakram_hardware::parse_network::LinkTrafficBytes)). A load or store also
//! counts on the link between the memory and its NPU. The *load* of a link is the time that its bytes take at the
//! link's rate, divided by the makespan. If several jobs share a machine, the first job's report contains the sum of
//! all jobs' bytes. Loads are then relative to the end of the last job instead of the makespan.

use super::Report;
use super::csv::{CsvCell, CsvColumn};
use super::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
    SectionNote,
};
use super::table::{left_aligned_column, right_aligned_column};
use chakram_base::units::{Bytes, Span, format_percent_of};
use chakram_hardware::machine::Machine;
use chakram_hardware::network::{BytesOverOneLink, DimensionOrMemoryOfLink};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::ops::Range;

/// Maximum number of links in a text report, busiest first.
const ROWS: usize = 8;

/// Traffic on a machine's links during a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct LinkReport {
    /// One row per dimension, innermost first, then one row per memory outside the NPUs.
    pub dimensions: Vec<DimensionTrafficRow>,
    /// One row per link that carried bytes, sorted by dimension.
    pub links: Vec<LinkTrafficRow>,
    /// If several jobs share the machine, loads are relative to this time, when the last job ends. Zero if there is
    /// only one job; its loads are relative to the makespan.
    #[serde(
        rename = "until_ps",
        default,
        skip_serializing_if = "LinkReport::is_of_one_job"
    )]
    pub until: Span,
}

/// Traffic on all links of a dimension, or of a memory outside the NPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct DimensionTrafficRow {
    /// Name of the dimension; `remote` or `remote NAME` for a memory outside the NPUs.
    pub name: String,
    /// Number of links; the two directions of a connection are two links.
    pub links: u64,
    /// Bytes summed over the links: a message that crosses three links counts three times.
    pub bytes: u64,
    /// Mean bytes per NPU sent over these links; for a memory, the bytes loaded and stored.
    pub bytes_per_npu: u64,
    /// Mean busy time of a link.
    #[serde(rename = "mean_busy_ps")]
    pub mean_busy: Span,
    /// Busy time of the busiest link.
    #[serde(rename = "most_busy_ps")]
    pub most_busy: Span,
}

/// Traffic on one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct LinkTrafficRow {
    /// Name of the dimension or memory that the link belongs to.
    pub dimension: String,
    /// Name of the link's source, such as `NPU 3`. For the link between a memory and an NPU, this is `memory`; loads
    /// and stores share the link.
    pub from: String,
    /// Name of the link's destination, such as `NPU 3`.
    pub to: String,
    /// Bytes that the link carried.
    pub bytes: u64,
    /// Time that these bytes take at the link's rate.
    #[serde(rename = "busy_ps")]
    pub busy: Span,
}

/// Links whose traffic is summed in one row.
enum SummedLinkGroup {
    Dimension(u32),
    /// Links of a memory, one at each of its endpoints.
    Memory(Range<u32>),
}

impl SummedLinkGroup {
    fn contains_link(&self, place: DimensionOrMemoryOfLink) -> bool {
        match (self, place) {
            (Self::Dimension(own), DimensionOrMemoryOfLink::Dimension(of)) => *own == of,
            (Self::Memory(own), DimensionOrMemoryOfLink::Memory(of)) => own.contains(&of.0),
            _ => false,
        }
    }

    fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}

/// Returns the groups of links, each with its name: first the machine's dimensions, then its memories outside the
/// NPUs.
fn named_link_groups(machine: &Machine) -> Vec<(SummedLinkGroup, String)> {
    let dimensions = (0..).zip(machine.topology().dimensions());
    let dimensions = dimensions.map(|(d, of)| (SummedLinkGroup::Dimension(d), of.name.clone()));
    let named = machine.named_memories().iter();
    let named = named.map(|memory| format!("remote {}", memory.name));
    let names = std::iter::once("remote".to_owned()).chain(named);
    let memories = machine
        .remote_memories_with_first_endpoints()
        .zip(names)
        .map(|((memory, first), name)| {
            let ports = memory.map_or(0, |memory| {
                memory.list_memory_endpoints_in_network().len() as u32
            });
            (SummedLinkGroup::Memory(first.0..first.0 + ports), name)
        });
    dimensions.chain(memories).collect()
}

impl LinkReport {
    /// Summarizes the traffic `loads` on the links of `machine`.
    pub fn new(loads: &[BytesOverOneLink], machine: &Machine) -> Self {
        let topology = machine.topology();
        let npus = u64::from(topology.npu_count()).max(1);
        let names = named_link_groups(machine);
        let dimensions = names.iter().filter_map(|(group, name)| {
            let of: Vec<_> = loads
                .iter()
                .filter(|load| group.contains_link(load.place))
                .collect();
            let count = of.len() as u64;
            if count == 0 && group.is_memory() {
                return None;
            }
            let own = of.iter().filter(|load| load.from_npu || group.is_memory());
            let busy: u64 = of.iter().map(|load| load.busy.0).sum();
            Some(DimensionTrafficRow {
                name: name.clone(),
                links: count,
                bytes: of.iter().map(|load| load.bytes).sum(),
                bytes_per_npu: own.map(|load| load.bytes).sum::<u64>() / npus,
                mean_busy: Span(busy / count.max(1)),
                most_busy: of.iter().map(|load| load.busy).max().unwrap_or(Span::ZERO),
            })
        });
        let rows = loads.iter().filter(|load| load.bytes > 0);
        let name = |place| names.iter().find(|(group, _)| group.contains_link(place));
        let links = rows.map(|load| LinkTrafficRow {
            dimension: name(load.place).map_or_else(String::new, |(_, name)| name.clone()),
            from: load.from.clone(),
            to: load.to.clone(),
            bytes: load.bytes,
            busy: load.busy,
        });
        Self {
            dimensions: dimensions.collect(),
            links: links.collect(),
            until: Span::ZERO,
        }
    }

    fn is_of_one_job(until: &Span) -> bool {
        *until == Span::ZERO
    }

    /// Returns the denominator of the loads in a job's report: a load is a busy time divided by this span.
    pub(crate) fn load_denominator(&self, report: &Report) -> Span {
        report.outcome.makespan.max(self.until)
    }

    /// Returns the link with the longest busy time; in a tie, the first one.
    pub fn bottleneck_link(&self) -> Option<&LinkTrafficRow> {
        self.links.iter().rev().max_by_key(|row| row.busy)
    }
}

/// Formats a link's load: its busy time as a percentage of the makespan.
fn format_busy_share(busy: Span, makespan: Span) -> String {
    match makespan {
        Span::ZERO => "-".to_owned(),
        _ => format_percent_of(busy.as_seconds(), makespan.as_seconds()),
    }
}

/// Columns of the CSV table of links.
pub(super) const CSV: &[CsvColumn<Report, LinkTrafficRow>] = &[
    ("dimension", |_, row| row.dimension.as_str().into()),
    ("from", |_, row| row.from.as_str().into()),
    ("to", |_, row| row.to.as_str().into()),
    ("bytes", |_, row| row.bytes.into()),
    ("busy_ps", |_, row| row.busy.into()),
    ("load", |report, row| {
        let links = report.links.as_ref();
        let over = links.map_or(Span::ZERO, |links| links.load_denominator(report));
        let makespan = over.as_seconds();
        let load = (makespan > 0.0).then(|| row.busy.as_seconds() / makespan);
        load.map_or(CsvCell::Empty, |load| CsvCell::Decimal(load, 6))
    }),
];

/// Returns the table of dimensions, and the table of the busiest links. Empty if bytes were not counted.
pub(crate) fn build_link_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    let Some(links) = &report.links else {
        return Vec::new();
    };
    let makespan = links.load_denominator(report);
    let load_of = |busy: Span| match makespan {
        Span::ZERO => SectionCellWithValue::from("-"),
        _ => SectionCellWithValue::number_cell(
            busy.as_seconds() / makespan.as_seconds(),
            format_busy_share(busy, makespan),
        ),
    };
    let mut dimensions = ReportTableWithNotes::new(
        ReportTableSubject::Dimensions,
        [
            left_aligned_column("DIMENSIONS", 34),
            right_aligned_column("links", 8),
            right_aligned_column("bytes", 11),
            right_aligned_column("per NPU", 11),
            right_aligned_column("mean load", 14),
            right_aligned_column("most", 14),
        ],
    );
    for (i, row) in links.dimensions.iter().enumerate() {
        let at = |field: &str| format!("/links/dimensions/{i}/{field}");
        dimensions.push_row(vec![
            SectionCellWithValue::create_cell_with_input_name(&*row.name),
            SectionCellWithValue::number_cell(row.links, row.links).with_json_pointer(at("links")),
            SectionCellWithValue::from(Bytes(row.bytes)).with_json_pointer(at("bytes")),
            SectionCellWithValue::from(Bytes(row.bytes_per_npu))
                .with_json_pointer(at("bytes_per_npu")),
            load_of(row.mean_busy),
            load_of(row.most_busy),
        ]);
    }
    let Some(bottleneck) = links.bottleneck_link() else {
        dimensions.push_note(SectionNote::from_one_line_sentence(
            "no bytes passed a link",
        ));
        return vec![dimensions];
    };
    let (from, to) = (&bottleneck.from, &bottleneck.to);
    let part = match links.until {
        Span::ZERO => "of the makespan".to_owned(),
        until => format!("of the {until} until the last job ends"),
    };
    dimensions.push_note(SectionNote::from_one_line_sentence(format!(
        "bottleneck: {}, the link from {from} to {to}, busy {} {part}",
        bottleneck.dimension,
        format_busy_share(bottleneck.busy, makespan)
    )));
    let mut section = ReportTableWithNotes::new(
        ReportTableSubject::Links,
        [
            left_aligned_column("LINKS", 46),
            right_aligned_column("bytes", 18),
            right_aligned_column("busy", 18),
            right_aligned_column("load", 14),
        ],
    );
    let mut rows: Vec<_> = links.links.iter().enumerate().collect();
    rows.sort_by_key(|(_, row)| Reverse(row.busy));
    let shown = medium.rows_shown_or_all_in_details(ROWS);
    for (i, row) in rows.iter().take(shown) {
        let at = |field: &str| format!("/links/links/{i}/{field}");
        section.push_row(vec![
            SectionCellWithValue::create_cell_with_input_name(format!(
                "{}: {} to {}",
                row.dimension, row.from, row.to
            )),
            SectionCellWithValue::from(Bytes(row.bytes)).with_json_pointer(at("bytes")),
            SectionCellWithValue::from(row.busy).with_json_pointer(at("busy_ps")),
            load_of(row.busy),
        ]);
    }
    section.left_out = (rows.len() > shown).then(|| {
        let more = rows.len() - shown;
        format!("… and {more} more links; JSON and CSV have each")
    });
    vec![dimensions, section]
}
