//! The `tiles` table: a wafer or chip of many cores, which replaces dimensions.

use super::network::{NetworkSection, traffic};
use super::{BANDWIDTH, LATENCY};
use crate::collective::{AlgorithmChoice, CollectiveAlgorithm};
use crate::memory::RemoteMemory;
use crate::network::NetworkKind;
use crate::topology::tile_grid::{DieBorders, shown};
use crate::topology::{DimensionShape, TileGrid, Topology};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable};
use std::collections::BTreeSet;

mod dram;

/// The allowed keys of the table.
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

/// Parses and checks the table and the network table. The default network model is exclusive.
pub(super) fn tiles(
    root: &ConfigTable<'_>,
    field: &ConfigField<'_>,
) -> Result<(NetworkSection, Option<RemoteMemory>), ConfigError> {
    for (key, what) in [("dimension", "dimensions"), ("remote_memory", "a pool")] {
        // The DRAM of a grid is its remote memory, so a second remote memory is an error.
        let allowed = key == "remote_memory" && field.table(Some(KEYS))?.get("dram").is_none();
        if let Some(other) = root.get(key).filter(|_| !allowed) {
            let found = format!("both {what} and [tiles]");
            return Err(other.refuse(
                found,
                "one of the two; tiles have the dimensions x and y, and their memory is [tiles.dram]",
            ));
        }
    }
    let table = field.table(Some(KEYS))?;
    let (grid, shape) = grid(&table)?;
    let inside = table.quantity("link_bandwidth", BANDWIDTH)?;
    let latency = table.quantity("link_latency", LATENCY)?;
    // By default a ring in the order of the group, as in PALM.
    let ring = AlgorithmChoice::Named(CollectiveAlgorithm::Ring);
    let algorithm = table.or("algorithm", ring, |field| {
        field.choice(&AlgorithmChoice::ALL)
    })?;
    let topology = Topology::tiled(grid, shape, inside, latency)
        .ok_or_else(|| table.refuse("a bandwidth too large to count", "a smaller bandwidth"))?;
    let settings = traffic(root, NetworkKind::Exclusive)?;
    let topology = settings.apply(topology);
    let dram = table.optional("dram", |field| dram::dram(field, &topology))?;
    let section = NetworkSection {
        topology,
        settings,
        algorithms: vec![algorithm; 2],
        curves: vec![Vec::new(); 2],
        protocols: vec![Vec::new(); 2],
        scalable: false,
        rank_domain: None,
    };
    Ok((section, dram))
}

/// Parses dies, cores, borders, faults, and the wiring.
fn grid(table: &ConfigTable<'_>) -> Result<(TileGrid, DimensionShape), ConfigError> {
    let pair = |key: &str, expected: &str| -> Result<[u32; 2], ConfigError> {
        let [x, y] = table.need(key, expected)?.array("numbers", expected)?;
        Ok([x.count(Topology::MAX_NPUS)?, y.count(Topology::MAX_NPUS)?])
    };
    let dies = pair("dies", "dies along x and y, such as [5, 4]")?;
    let cores = pair("cores", "cores of a die along x and y, such as [4, 4]")?;
    let along = [0, 1].map(|d| u64::from(dies[d]) * u64::from(cores[d]));
    let all = along[0].saturating_mul(along[1]);
    if all > u64::from(Topology::MAX_NPUS) {
        let (found, most) = (format!("{all} cores"), Topology::MAX_NPUS);
        return Err(table.refuse(found, format_args!("at most {most}")));
    }
    let several = dies != [1, 1];
    let (bandwidth, latency) = if several {
        ("die_bandwidth", "die_latency")
    } else {
        ("link_bandwidth", "link_latency")
    };
    for key in ["die_bandwidth", "die_latency"] {
        if let Some(field) = table.get(key).filter(|_| !several) {
            return Err(field.refuse(
                "links between dies",
                "no key for links between dies on a machine of one die",
            ));
        }
    }
    let mut grid = TileGrid {
        dies,
        cores,
        borders: DieBorders {
            bandwidth: table.quantity(bandwidth, BANDWIDTH)?,
            latency: table.quantity(latency, LATENCY)?,
        },
        half_duplex: table.or("duplex", false, |field| field.choice(&DUPLEX))?,
        barrier: table.optional("barrier", |field| field.quantity(LATENCY))?,
        faulty_cores: BTreeSet::new(),
        faulty_links: BTreeSet::new(),
    };
    let shape = table.or("shape", DimensionShape::Mesh, |field| field.choice(&SHAPES))?;
    if let Some(field) = table.get("faulty_cores") {
        for item in field.items("places of cores, such as [[0, 3], [7, 2]]")? {
            let [x, y] = places(&item, &grid, "the place of a core, such as [0, 3]")?;
            grid.faulty_cores.insert(grid.core([x, y]));
        }
    }
    if let Some(field) = table.get("faulty_links") {
        let example = "the places of two neighbours, such as [3, 0, 4, 0]";
        for item in field.items("links, each as the places of two neighbours: [[3, 0, 4, 0]]")? {
            let [ax, ay, bx, by] = places(&item, &grid, example)?;
            let link = neighbours(&grid, shape, [ax, ay], [bx, by]);
            let found = || format!("{} and {}", shown([ax, ay]), shown([bx, by]));
            grid.faulty_links
                .insert(link.ok_or_else(|| item.refuse(found(), example))?);
        }
    }
    Ok((grid, shape))
}

/// Parses `N` coordinates, x and y of `N` / 2 cores of the grid.
fn places<const N: usize>(
    field: &ConfigField<'_>,
    grid: &TileGrid,
    expected: &str,
) -> Result<[u32; N], ConfigError> {
    let items = field.items(expected)?;
    let numbers = items.iter().enumerate().map(|(i, item)| {
        let last = u64::from(grid.dies[i % 2]) * u64::from(grid.cores[i % 2]) - 1;
        item.between(0, last).map(|number| number as u32)
    });
    let numbers: Vec<u32> = numbers.collect::<Result<_, _>>()?;
    let count = numbers.len();
    numbers
        .try_into()
        .map_err(|_| field.refuse(format_args!("{count} numbers"), expected))
}

/// Returns the link between two cores, as (core at its lower end, dimension), or `None`.
fn neighbours(
    grid: &TileGrid,
    shape: DimensionShape,
    a: [u32; 2],
    b: [u32; 2],
) -> Option<(u32, usize)> {
    let d = (0..2).find(|&d| a[d] != b[d] && a[1 - d] == b[1 - d])?;
    let size = grid.size(d);
    if shape.hops(size, a[d], b[d]) != 1 {
        return None;
    }
    // The link that closes a ring begins at the last coordinate.
    let closes = a[d].abs_diff(b[d]) > 1;
    let lower = if (a[d] < b[d]) != closes { a } else { b };
    Some((grid.core(lower), d))
}
