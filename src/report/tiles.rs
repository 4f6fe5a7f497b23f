//! Busy times of links and memory ports on a machine of tiles.

use super::Observer;
use super::Report;
use super::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
};
use super::table::{left_aligned_column, right_aligned_column};
use crate::CollectiveRecord;
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time, format_percent_of};
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_hardware::machine::Machine;
use chakram_hardware::network::LinkAndPortBusyTimes;
use chakram_trace::graph::NodeKind;
use serde::{Deserialize, Serialize};

/// A link between adjacent cores: one direction of it, or both if the link is half-duplex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct AdjacentCoreLinkBusyTime {
    /// Position (x, y) of the core at the link's source.
    pub from: [u32; 2],
    /// Position (x, y) of the core at the link's destination.
    pub to: [u32; 2],
    /// Time during which the link was busy.
    #[serde(rename = "busy_ps")]
    pub busy: Span,
}

/// A memory port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MemoryPortBusyTime {
    /// Position (x, y) of the core at the port.
    pub core: [u32; 2],
    /// Time during which the port was busy.
    #[serde(rename = "busy_ps")]
    pub busy: Span,
}

/// Busy times of links and ports. Only links and ports with traffic are listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TileLinkAndPortUse {
    /// Number of links on the machine, excluding faulty links.
    pub links_of_machine: u64,
    /// Number of memory ports on the machine.
    pub ports_of_machine: u64,
    /// Links with traffic.
    pub links: Vec<AdjacentCoreLinkBusyTime>,
    /// Ports with traffic.
    pub ports: Vec<MemoryPortBusyTime>,
}

impl TileLinkAndPortUse {
    /// Returns the mean busy times of all links and of all memory ports.
    pub fn mean_link_and_port_busy_times(&self) -> [Span; 2] {
        let mean = |busy: u128, of: u64| Span((busy / u128::from(of.max(1))) as u64);
        let links = self.links.iter().map(|link| u128::from(link.busy.0));
        let ports = self.ports.iter().map(|port| u128::from(port.busy.0));
        [
            mean(links.sum(), self.links_of_machine),
            mean(ports.sum(), self.ports_of_machine),
        ]
    }
}

/// Stores the busy times that the network model reports when a replay ends.
#[derive(Clone, Debug, Default)]
pub struct TileNetworkBusyTimesObserver(Option<LinkAndPortBusyTimes>);

impl Observer for TileNetworkBusyTimesObserver {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
    fn on_link_and_memory_port_busy_times(&mut self, occupancy: &LinkAndPortBusyTimes) {
        self.0 = Some(occupancy.clone());
    }
}

impl TileNetworkBusyTimesObserver {
    /// Returns the busy times on the machine of `prepared`; `None` if the machine has no tiles, or if its network model
    /// reports no busy times.
    pub fn summarize_tile_link_and_port_use(
        self,
        prepared: &CompiledReplay<'_>,
    ) -> Option<TileLinkAndPortUse> {
        let machine = prepared.machine();
        let (occupancy, tiles) = (self.0?, machine.topology().tile_grid()?);
        let links = occupancy.links.iter().map(|link| AdjacentCoreLinkBusyTime {
            from: tiles.coordinates_of_core(link.from.0),
            to: tiles.coordinates_of_core(link.to.0),
            busy: link.busy,
        });
        let cores = machine
            .unnamed_remote_memory()
            .map_or(&[][..], |memory| memory.list_npus_with_ports());
        let used = cores.iter().zip(&occupancy.ports);
        let used = used.filter(|(_, busy)| **busy > Span::ZERO);
        Some(TileLinkAndPortUse {
            links_of_machine: count_links_between_cores(machine),
            ports_of_machine: cores.len() as u64,
            links: links.collect(),
            ports: used
                .map(|(core, busy)| MemoryPortBusyTime {
                    core: tiles.coordinates_of_core(core.0),
                    busy: *busy,
                })
                .collect(),
        })
    }
}

/// Returns the number of links between cores, excluding faulty links.
fn count_links_between_cores(machine: &Machine) -> u64 {
    let topology = machine.topology();
    let Some(tiles) = topology.tile_grid() else {
        return 0;
    };
    let [x, y] = [0, 1].map(|d| u64::from(tiles.cores_along_dimension(d)));
    let along = |d: usize, size: u64, lines: u64| {
        let closes = !topology.dimensions()[d].shape.is_open_line() && size > 2;
        (size - 1 + u64::from(closes)) * lines
    };
    let wires = along(0, x, y) + along(1, y, x) - tiles.faulty_links.len() as u64;
    wires * if tiles.half_duplex { 1 } else { 2 }
}

/// Returns the table of busy times of links and ports.
pub(super) fn build_link_and_port_busy_sections(
    report: &Report,
    _: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    let used = report.tiles.as_ref();
    let used = used.filter(|tiles| !(tiles.links.is_empty() && tiles.ports.is_empty()));
    let Some(tiles) = used else {
        return Vec::new();
    };
    let mut section = ReportTableWithNotes::new(
        ReportTableSubject::Tiles,
        [
            left_aligned_column("LINKS AND PORTS", 17),
            right_aligned_column("of machine", 11),
            right_aligned_column("in use", 9),
            right_aligned_column("mean busy", 11),
            right_aligned_column("most busy", 11),
            left_aligned_column("", 0).with_gap_before(3),
        ],
    );
    let makespan = report.outcome.makespan.as_seconds().max(f64::MIN_POSITIVE);
    let mut row = |name: &str, field: &str, all: u64, busy: Vec<Span>, most: (Span, String)| {
        let sum: f64 = busy.iter().map(|busy| busy.as_seconds()).sum();
        let share = |busy: f64| {
            SectionCellWithValue::number_cell(busy / makespan, format_percent_of(busy, makespan))
        };
        section.push_row(vec![
            name.into(),
            SectionCellWithValue::count_cell(all).with_json_pointer(format!("/tiles/{field}")),
            SectionCellWithValue::count_cell(busy.len() as u64),
            share(sum / all.max(1) as f64),
            share(most.0.as_seconds()),
            most.1.into(),
        ]);
    };
    let shown = |[x, y]: [u32; 2]| format!("({x}, {y})");
    // Iterate in reverse: of equal maxima, `max_by_key` returns the last, but the text names the first such link.
    if let Some(most) = tiles.links.iter().rev().max_by_key(|link| link.busy) {
        let place = format!("{} to {}", shown(most.from), shown(most.to));
        let busy = tiles.links.iter().map(|link| link.busy).collect();
        let all = tiles.links_of_machine;
        row("links", "links_of_machine", all, busy, (most.busy, place));
    }
    if let Some(most) = tiles.ports.iter().rev().max_by_key(|port| port.busy) {
        let most = (most.busy, format!("at {}", shown(most.core)));
        let busy = tiles.ports.iter().map(|port| port.busy).collect();
        let all = tiles.ports_of_machine;
        row("memory ports", "ports_of_machine", all, busy, most);
    }
    vec![section]
}
