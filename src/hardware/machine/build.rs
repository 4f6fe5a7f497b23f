//! Builds a [`Machine`] from the tables of a machine file, and checks every rule of the format.

use super::class_assignment::{self, AssignmentFault, ClassAssignment};
use super::{Machine, NpuClass, with_memories};
use chakram_base::config::{ConfigDocument, ConfigError, ConfigField, ConfigTable, quoted};
use chakram_base::units::Bytes;

mod class;
mod collective_curves;
mod collectives;
mod corrections;
mod curves;
mod failures;
mod host;
mod measured;
mod network;
mod npu_rates;
mod products;
mod remote;
mod stack_prices;
mod tiles;
mod wiring;

/// The allowed keys of tables.
const ROOT: &[&str] = &[
    "name",
    "description",
    "relative_of",
    "price_per_npu_hour",
    "npu",
    "assign",
    "dimension",
    "tiles",
    "network",
    "collectives",
    "remote_memory",
    "remote_memories",
    "host",
    "correction",
    "measured_collective",
    "link",
    "failure",
];

/// An example of each quantity, for error messages.
const BANDWIDTH: &str = "450 GB/s";
const LATENCY: &str = "500 ns";
const SEGMENT: &str = "4 KiB";
const CAPACITY: &str = "80 GB";

/// Parses and checks the machine that `document` describes. If the file is an edit of another machine, `original` is
/// that machine.
pub(super) fn machine(
    document: &ConfigDocument<'_>,
    original: Option<&Machine>,
) -> Result<Machine, ConfigError> {
    let root = document.root(ROOT)?;
    let name = root.need("name", "the machine's name")?.line()?.to_owned();
    let description = root.or("description", "", |field| field.line())?.to_owned();
    let relative_of = root.optional("relative_of", |field| Ok(field.line()?.to_owned()))?;
    let price = |field: &ConfigField<'_>| field.positive(Machine::MAX_PRICE);
    let price_per_npu_hour = root.optional("price_per_npu_hour", price)?;
    let classes = class::classes(&root, original)?;
    let (network, edge) = match root.get("tiles") {
        Some(field) => tiles::tiles(&root, &field)?,
        None => (network::network(&root, original)?, None),
    };
    let class_of = class_of(&root, &classes, network.topology.npus())?;
    let remote = root
        .optional("remote_memory", |field| {
            remote::remote(field, &network.topology)
        })?
        .or(edge);
    let named_memories = remote::named(&root, &network.topology)?;
    let failures = failures::failures(&root, &network.topology)?;
    Ok(Machine {
        name,
        description,
        relative_of,
        price_per_npu_hour,
        topology: with_memories(network.topology, remote.as_ref(), &named_memories),
        network: network.settings,
        algorithms: network.algorithms,
        collective_curves: network.curves,
        collective_protocols: network.protocols,
        pipeline: collectives::pipeline(&root)?,
        scalable: network.scalable,
        rank_domain: network.rank_domain,
        classes,
        class_of,
        remote,
        named_memories,
        host: host::host(&root)?,
        corrections: corrections::corrections(&root)?,
        failures,
    })
}

pub(super) use stack_prices::stack_classes;

/// Returns two byte ranges in the text of `document`: the value of `name`, and the size of the outermost dimension.
pub(super) fn scale_spans(document: &ConfigDocument<'_>) -> Option<[std::ops::Range<usize>; 2]> {
    let root = document.root(ROOT).ok()?;
    let dimensions = root.get("dimension")?.tables(network::KEYS).ok()?;
    let size = dimensions.last()?.get("size")?.span();
    Some([root.get("name")?.span(), size])
}

fn class_of(
    root: &ConfigTable<'_>,
    classes: &[NpuClass],
    npus: u32,
) -> Result<ClassAssignment, ConfigError> {
    let Some(field) = root.get("assign") else {
        return match classes {
            [_] => Ok(ClassAssignment::uniform(npus)),
            _ => Err(root.missing("assign", "a table with the NPUs of each class")),
        };
    };
    let names: Vec<_> = classes.iter().map(|class| class.name.as_str()).collect();
    let table = field.table(Some(&names))?;
    let expected = format!("NPUs from 0 to {} such as \"0-3,6\"", npus - 1);
    let mut ranges = Vec::new();
    for (class, name) in (0..).zip(&names) {
        let field = table.need(name, &expected)?;
        let text = field.text(&expected)?;
        let more = class_assignment::ranges(text, class, npus);
        ranges.extend(more.map_err(|piece| field.refuse(quoted(piece), &expected))?);
    }
    ClassAssignment::new(ranges, npus).map_err(|fault| match fault {
        AssignmentFault::Never { first, last } if first == last => table.refuse(
            format_args!("no class for NPU {first}"),
            "each NPU in exactly one class",
        ),
        AssignmentFault::Never { first, last } => {
            let found = format!("no class for NPUs {first} to {last}");
            table.refuse(found, "each NPU in exactly one class")
        }
        AssignmentFault::Twice {
            npu,
            earlier,
            later,
        } => {
            let [earlier, later] = [earlier, later].map(|class| quoted(names[class as usize]));
            let found = format!("NPU {npu} in {earlier} and in {later}");
            table.refuse(found, "each NPU in exactly one class")
        }
    })
}

/// Parses the capacity at `key`.
fn capacity(table: &ConfigTable<'_>, key: &str) -> Result<Bytes, ConfigError> {
    size(table, key, CAPACITY)
}

/// Parses the capacity at `key`, or returns `None` if the table has no such key.
fn optional_capacity(table: &ConfigTable<'_>, key: &str) -> Result<Option<Bytes>, ConfigError> {
    table.get(key).map(|_| capacity(table, key)).transpose()
}

/// Parses the size at `key`, which must not be zero. Errors show `example` as a valid size.
fn size(table: &ConfigTable<'_>, key: &str, example: &str) -> Result<Bytes, ConfigError> {
    let size: Bytes = table.quantity(key, example)?;
    match size {
        Bytes(0) => Err(table
            .need(key, example)?
            .refuse("a size of zero", "more than zero bytes")),
        _ => Ok(size),
    }
}
