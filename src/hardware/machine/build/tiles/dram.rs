//! The `tiles.dram` table: memory ports at the edges of dies, or of the whole grid.

use super::super::{BANDWIDTH, LATENCY, parse_capacity};
use crate::memory::{MemoryAttachment, NpusWithMemoryPorts, RemoteMemory};
use crate::topology::Topology;
use chakram_base::config::{ConfigError, ConfigField, quote_and_truncate_for_message};
use chakram_base::ids::Npu;
use std::collections::BTreeSet;

/// The keys that the `tiles.dram` table may have.
const DRAM: &[&str] = &[
    "around",
    "left",
    "right",
    "top",
    "bottom",
    "bandwidth",
    "latency",
    "capacity",
];

/// Parses the ports at the edges, and their memory.
pub(super) fn parse_dram(
    field: &ConfigField<'_>,
    topology: &Topology,
) -> Result<RemoteMemory, ConfigError> {
    let table = field.read_table(Some(DRAM))?;
    let tiles = topology.tile_grid().expect("they are being built");
    let around = [(true, "die"), (false, "grid")];
    let each_die = table.read_or_default("around", true, |field| field.read_choice(&around))?;
    // Ports are at the edges of each die or of the whole grid. `count` is the number of dies or grids, and `size` is
    // the number of cores in each along x and y.
    let (count, size) = if each_die {
        (tiles.dies, tiles.cores)
    } else {
        (
            [1, 1],
            [
                tiles.cores_along_dimension(0),
                tiles.cores_along_dimension(1),
            ],
        )
    };
    let mut edges: Vec<[u32; 2]> = Vec::new();
    for (key, along, at) in [
        ("left", 1, 0),
        ("right", 1, size[0] - 1),
        ("top", 0, 0),
        ("bottom", 0, size[1] - 1),
    ] {
        let Some(field) = table.get(key) else {
            continue;
        };
        let expected = format!(
            "cores along the edge from 0 to {} such as \"1-2\"",
            size[along] - 1
        );
        for index in parse_row_list(&field, &expected, size[along])? {
            let mut place = [at; 2];
            place[along] = index;
            edges.push(place);
        }
    }
    if edges.is_empty() {
        return Err(table.invalid_table_error(
            "no port",
            "cores at left, right, top or bottom such as \"1-2\"",
        ));
    }
    let mut cores = Vec::new();
    for y in 0..count[1] {
        for x in 0..count[0] {
            let corner = [x * size[0], y * size[1]];
            let core = |[x, y]: &[u32; 2]| Npu(tiles.core_at([corner[0] + x, corner[1] + y]));
            cores.extend(edges.iter().map(core));
        }
    }
    let ports = NpusWithMemoryPorts::new(cores, topology);
    Ok(RemoteMemory {
        attachment: MemoryAttachment::Ports(ports),
        bandwidth: table.read_quantity("bandwidth", BANDWIDTH)?,
        latency: table.read_quantity("latency", LATENCY)?,
        capacity: Some(parse_capacity(&table, "capacity")?),
        whole_ns: false,
        through: None,
    })
}

/// Parses a list such as `"1-2,5"`, whose numbers must be distinct, ascending and below `size`.
fn parse_row_list(
    field: &ConfigField<'_>,
    expected: &str,
    size: u32,
) -> Result<Vec<u32>, ConfigError> {
    let text = field.read_text(expected)?;
    let ranges =
        super::super::class_assignment::parse_npu_ranges(text, 0, size).map_err(|piece| {
            field.invalid_value_error(quote_and_truncate_for_message(piece), expected)
        })?;
    let all: BTreeSet<u32> = ranges
        .iter()
        .flat_map(|range| range.first..=range.last)
        .collect();
    Ok(all.into_iter().collect())
}
