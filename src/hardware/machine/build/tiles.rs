//! The `tiles` table: a wafer or chip of many cores, which replaces dimensions.

use super::network::{NetworkBuiltFromTables, parse_network_settings};
use super::{BANDWIDTH, LATENCY};
use crate::collective::{CollectiveAlgorithm, DimensionAlgorithmChoice};
use crate::memory::RemoteMemory;
use crate::network::NetworkModelKind;
use crate::topology::tile_grid::{DieBorderLinks, format_coordinates};
use crate::topology::{DieAndCoreLayout, DimensionShape, Topology};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable};
use std::collections::BTreeSet;

mod dram;

/// The keys that the `tiles` table may have.
const KEYS: &[&str] = &[
    "dies",
    "cores",
    "shape",
    "duplex",
    "link_bandwidth",
    "link_latency",
    "die_bandwidth",
    "die_latency",
    "algorithm",
    "barrier",
    "faulty_cores",
    "faulty_links",
    "dram",
];

const SHAPES: [(DimensionShape, &str); 2] = [
    (DimensionShape::Mesh, "mesh"),
    (DimensionShape::Ring, "torus"),
];
const DUPLEX: [(bool, &str); 2] = [(false, "full"), (true, "half")];

/// Parses and checks the `tiles` table and the `network` table. The default network model is exclusive.
pub(super) fn parse_tile_network_and_memory(
    root: &ConfigTable<'_>,
    field: &ConfigField<'_>,
) -> Result<(NetworkBuiltFromTables, Option<RemoteMemory>), ConfigError> {
    for (key, what) in [("dimension", "dimensions"), ("remote_memory", "a pool")] {
        // The DRAM of a grid counts as its remote memory, so a second remote memory is an error.
        let allowed = key == "remote_memory" && field.read_table(Some(KEYS))?.get("dram").is_none();
        if let Some(other) = root.get(key).filter(|_| !allowed) {
            let found = format!("both {what} and [tiles]");
            return Err(other.invalid_value_error(
                found,
                "one of the two; tiles have the dimensions x and y, and their memory is [tiles.dram]",
            ));
        }
    }
    let table = field.read_table(Some(KEYS))?;
    let (grid, shape) = parse_die_layout_and_wiring(&table)?;
    let inside = table.read_quantity("link_bandwidth", BANDWIDTH)?;
    let latency = table.read_quantity("link_latency", LATENCY)?;
    // The default algorithm is a ring in the order of the group, as in PALM.
    let ring = DimensionAlgorithmChoice::Named(CollectiveAlgorithm::Ring);
    let algorithm = table.read_or_default("algorithm", ring, |field| {
        field.read_choice(&DimensionAlgorithmChoice::ALL)
    })?;
    let topology = Topology::from_tile_grid(grid, shape, inside, latency).ok_or_else(|| {
        table.invalid_table_error("a bandwidth too large to count", "a smaller bandwidth")
    })?;
    let settings = parse_network_settings(root, NetworkModelKind::Exclusive)?;
    let topology = settings.apply_to_topology(topology);
    let dram = table.read_optional("dram", |field| dram::parse_dram(field, &topology))?;
    let section = NetworkBuiltFromTables {
        topology,
        settings,
        algorithms: vec![algorithm; 2],
        curves: vec![Vec::new(); 2],
        protocols: vec![Vec::new(); 2],
        across_nodes: vec![None; 2],
        scalable: false,
        rank_domain: None,
    };
    Ok((section, dram))
}

/// Parses dies, cores, borders, faults, and the wiring.
fn parse_die_layout_and_wiring(
    table: &ConfigTable<'_>,
) -> Result<(DieAndCoreLayout, DimensionShape), ConfigError> {
    let pair = |key: &str, expected: &str| -> Result<[u32; 2], ConfigError> {
        let [x, y] = table
            .require_field(key, expected)?
            .read_array_of_exact_length("numbers", expected)?;
        Ok([
            x.read_count(Topology::MAX_NPUS)?,
            y.read_count(Topology::MAX_NPUS)?,
        ])
    };
    let dies = pair("dies", "dies along x and y, such as [5, 4]")?;
    let cores = pair("cores", "cores of a die along x and y, such as [4, 4]")?;
    let along = [0, 1].map(|d| u64::from(dies[d]) * u64::from(cores[d]));
    let all = along[0].saturating_mul(along[1]);
    if all > u64::from(Topology::MAX_NPUS) {
        let (found, most) = (format!("{all} cores"), Topology::MAX_NPUS);
        return Err(table.invalid_table_error(found, format_args!("at most {most}")));
    }
    let several = dies != [1, 1];
    let (bandwidth, latency) = if several {
        ("die_bandwidth", "die_latency")
    } else {
        ("link_bandwidth", "link_latency")
    };
    for key in ["die_bandwidth", "die_latency"] {
        if let Some(field) = table.get(key).filter(|_| !several) {
            return Err(field.invalid_value_error(
                "links between dies",
                "no key for links between dies on a machine of one die",
            ));
        }
    }
    let mut grid = DieAndCoreLayout {
        dies,
        cores,
        borders: DieBorderLinks {
            bandwidth: table.read_quantity(bandwidth, BANDWIDTH)?,
            latency: table.read_quantity(latency, LATENCY)?,
        },
        half_duplex: table.read_or_default("duplex", false, |field| field.read_choice(&DUPLEX))?,
        barrier: table.read_optional("barrier", |field| field.read_quantity(LATENCY))?,
        faulty_cores: BTreeSet::new(),
        faulty_links: BTreeSet::new(),
    };
    let shape = table.read_or_default("shape", DimensionShape::Mesh, |field| {
        field.read_choice(&SHAPES)
    })?;
    if let Some(field) = table.get("faulty_cores") {
        for item in field.read_array_items("places of cores, such as [[0, 3], [7, 2]]")? {
            let [x, y] =
                parse_core_coordinates(&item, &grid, "the place of a core, such as [0, 3]")?;
            grid.faulty_cores.insert(grid.core_at([x, y]));
        }
    }
    if let Some(field) = table.get("faulty_links") {
        let example = "the places of two neighbours, such as [3, 0, 4, 0]";
        for item in
            field.read_array_items("links, each as the places of two neighbours: [[3, 0, 4, 0]]")?
        {
            let [ax, ay, bx, by] = parse_core_coordinates(&item, &grid, example)?;
            let link = find_link_between_cores(&grid, shape, [ax, ay], [bx, by]);
            let found = || {
                format!(
                    "{} and {}",
                    format_coordinates([ax, ay]),
                    format_coordinates([bx, by])
                )
            };
            grid.faulty_links
                .insert(link.ok_or_else(|| item.invalid_value_error(found(), example))?);
        }
    }
    Ok((grid, shape))
}

/// Parses `N` coordinates: the x and y of each of `N` / 2 cores in the grid.
fn parse_core_coordinates<const N: usize>(
    field: &ConfigField<'_>,
    grid: &DieAndCoreLayout,
    expected: &str,
) -> Result<[u32; N], ConfigError> {
    let items = field.read_array_items(expected)?;
    let numbers = items.iter().enumerate().map(|(i, item)| {
        let last = u64::from(grid.dies[i % 2]) * u64::from(grid.cores[i % 2]) - 1;
        item.read_integer_between(0, last)
            .map(|number| number as u32)
    });
    let numbers: Vec<u32> = numbers.collect::<Result<_, _>>()?;
    let count = numbers.len();
    numbers
        .try_into()
        .map_err(|_| field.invalid_value_error(format_args!("{count} numbers"), expected))
}

/// Returns the link between two cores as (core at its lower end, dimension), or `None` if they are not neighbours.
fn find_link_between_cores(
    grid: &DieAndCoreLayout,
    shape: DimensionShape,
    a: [u32; 2],
    b: [u32; 2],
) -> Option<(u32, usize)> {
    let d = (0..2).find(|&d| a[d] != b[d] && a[1 - d] == b[1 - d])?;
    let size = grid.cores_along_dimension(d);
    if shape.hop_count(size, a[d], b[d]) != 1 {
        return None;
    }
    // The link that closes a ring begins at the last coordinate.
    let closes = a[d].abs_diff(b[d]) > 1;
    let lower = if (a[d] < b[d]) != closes { a } else { b };
    Some((grid.core_at(lower), d))
}
