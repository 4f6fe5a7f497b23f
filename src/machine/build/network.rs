//! The `dimension` tables: the topology, and an algorithm for each dimension.

use super::{BANDWIDTH, LATENCY};
use crate::collective::Algorithm;
use crate::machine::MachineError;
use crate::machine::config::{Table, quoted};
use crate::topology::{Dimension, Shape, Topology};

/// The keys that each table may have.
pub(super) const KEYS: &[&str] = &[
    "name",
    "shape",
    "size",
    "bandwidth",
    "latency",
    "algorithm",
    "scalable",
];

/// What the `dimension` tables say.
pub(super) struct Network {
    pub topology: Topology,
    pub algorithms: Vec<Algorithm>,
    pub scalable: bool,
}

/// Reads and checks all dimensions.
pub(super) fn network(root: &Table<'_>) -> Result<Network, MachineError> {
    let expected = "a table [[dimension]] for each dimension, innermost first";
    let field = root.need("dimension", expected)?;
    let tables = field.tables(KEYS)?;
    let mut dimensions: Vec<Dimension> = Vec::with_capacity(tables.len());
    let mut algorithms = Vec::with_capacity(tables.len());
    let mut scalable = false;
    let mut npus = 1;
    for (index, table) in tables.iter().enumerate() {
        let dimension = dimension(table)?;
        if dimensions.iter().any(|other| other.name == dimension.name) {
            let found = format!("the name {} twice", quoted(&dimension.name));
            return Err(table.refuse(found, "a name of its own for each dimension"));
        }
        let size = table.need("size", "the number of NPUs along this dimension")?;
        npus *= u64::from(dimension.size);
        if npus > u64::from(Topology::MAX_NPUS) {
            let most = Topology::MAX_NPUS;
            let found = format!("a size that makes {npus} NPUs");
            return Err(size.refuse(found, format_args!("at most {most} in all")));
        }
        if let Some(field) = table.get("scalable") {
            scalable = field.flag()?;
            if scalable && index + 1 < tables.len() {
                let found = "true on an inner dimension";
                return Err(field.refuse(found, "it on the outermost, the last, only"));
            }
        }
        algorithms.push(table.choice("algorithm", &Algorithm::ALL)?);
        dimensions.push(dimension);
    }
    let topology = Topology::new(dimensions);
    Ok(Network {
        topology: topology.ok_or_else(|| field.refuse("no dimension", expected))?,
        algorithms,
        scalable,
    })
}

fn dimension(table: &Table<'_>) -> Result<Dimension, MachineError> {
    let size = table.need("size", "the number of NPUs along this dimension")?;
    Ok(Dimension {
        name: table
            .need("name", "the dimension's name")?
            .line()?
            .to_owned(),
        shape: table.choice("shape", &Shape::ALL)?,
        size: size.count(Topology::MAX_NPUS)?,
        bandwidth: table.quantity("bandwidth", BANDWIDTH)?,
        latency: table.quantity("latency", LATENCY)?,
    })
}
