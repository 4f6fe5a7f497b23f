//! Builds a [`Machine`] from the tables of a machine file, and checks every rule of the format.

use super::class_assignment::{self, NpuClassAssignment, NpuClassAssignmentFault};
use super::{Machine, NpuClass, add_memories_as_endpoints};
use chakram_base::config::{
    ConfigDocument, ConfigError, ConfigField, ConfigTable, quote_and_truncate_for_message,
};
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

/// Keys that the top level of a machine file may have.
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

/// An example of a bandwidth, for error messages.
const BANDWIDTH: &str = "450 GB/s";
const LATENCY: &str = "500 ns";
const SEGMENT: &str = "4 KiB";
const CAPACITY: &str = "80 GB";

/// Parses and checks the machine that `document` describes. For an edited file, `original` is the machine before the
/// edit.
pub(super) fn build_machine(
    document: &ConfigDocument<'_>,
    original: Option<&Machine>,
) -> Result<Machine, ConfigError> {
    let root = document.root_table_with_allowed_keys(ROOT)?;
    let name = root
        .require_field("name", "the machine's name")?
        .read_one_line_text()?
        .to_owned();
    let description = root
        .read_or_default("description", "", |field| field.read_one_line_text())?
        .to_owned();
    let relative_of = root.read_optional("relative_of", |field| {
        Ok(field.read_one_line_text()?.to_owned())
    })?;
    let price = |field: &ConfigField<'_>| field.read_positive(Machine::MAX_PRICE);
    let price_per_npu_hour = root.read_optional("price_per_npu_hour", price)?;
    let classes = class::parse_classes(&root, original)?;
    let (network, edge) = match root.get("tiles") {
        Some(field) => tiles::parse_tile_network_and_memory(&root, &field)?,
        None => (network::parse_network(&root, original)?, None),
    };
    let class_of = parse_class_assignment(&root, &classes, network.topology.npu_count())?;
    let remote = root
        .read_optional("remote_memory", |field| {
            remote::parse_remote_memory(field, &network.topology)
        })?
        .or(edge);
    let named_memories = remote::parse_named_memories(&root, &network.topology)?;
    let failures = failures::parse_failures(&root, &network.topology)?;
    Ok(Machine {
        name,
        description,
        relative_of,
        price_per_npu_hour,
        topology: add_memories_as_endpoints(network.topology, remote.as_ref(), &named_memories),
        network: network.settings,
        algorithms: network.algorithms,
        collective_curves: network.curves,
        collective_protocols: network.protocols,
        across_nodes: network.across_nodes,
        pipeline: collectives::parse_chunk_count_order_and_overlap(&root)?,
        scalable: network.scalable,
        rank_domain: network.rank_domain,
        classes,
        class_of,
        remote,
        named_memories,
        host: host::parse_host(&root)?,
        corrections: corrections::parse_pass_kernel_time_corrections(&root)?,
        failures,
        stated_npu_memory: None,
    })
}

pub(super) use stack_prices::parse_software_stack_curves_by_npu_class;

/// Returns the byte ranges of two values in the text of `document`: the machine's `name`, and the size of its outermost
/// dimension.
pub(super) fn byte_ranges_of_name_and_outermost_size(
    document: &ConfigDocument<'_>,
) -> Option<[std::ops::Range<usize>; 2]> {
    let root = document.root_table_with_allowed_keys(ROOT).ok()?;
    let dimensions = root.get("dimension")?.read_tables(network::KEYS).ok()?;
    let size = dimensions.last()?.get("size")?.byte_range();
    Some([root.get("name")?.byte_range(), size])
}

fn parse_class_assignment(
    root: &ConfigTable<'_>,
    classes: &[NpuClass],
    npus: u32,
) -> Result<NpuClassAssignment, ConfigError> {
    let Some(field) = root.get("assign") else {
        return match classes {
            [_] => Ok(NpuClassAssignment::with_uniform_class(npus)),
            _ => Err(root.missing_entry_error("assign", "a table with the NPUs of each class")),
        };
    };
    let names: Vec<_> = classes.iter().map(|class| class.name.as_str()).collect();
    let table = field.read_table(Some(&names))?;
    let expected = format!("NPUs from 0 to {} such as \"0-3,6\"", npus - 1);
    let mut ranges = Vec::new();
    for (class, name) in (0..).zip(&names) {
        let field = table.require_field(name, &expected)?;
        let text = field.read_text(&expected)?;
        let more = class_assignment::parse_npu_ranges(text, class, npus);
        ranges.extend(more.map_err(|piece| {
            field.invalid_value_error(quote_and_truncate_for_message(piece), &expected)
        })?);
    }
    NpuClassAssignment::new(ranges, npus).map_err(|fault| match fault {
        NpuClassAssignmentFault::Never { first, last } if first == last => table
            .invalid_table_error(
                format_args!("no class for NPU {first}"),
                "each NPU in exactly one class",
            ),
        NpuClassAssignmentFault::Never { first, last } => {
            let found = format!("no class for NPUs {first} to {last}");
            table.invalid_table_error(found, "each NPU in exactly one class")
        }
        NpuClassAssignmentFault::Twice {
            npu,
            earlier,
            later,
        } => {
            let [earlier, later] =
                [earlier, later].map(|class| quote_and_truncate_for_message(names[class as usize]));
            let found = format!("NPU {npu} in {earlier} and in {later}");
            table.invalid_table_error(found, "each NPU in exactly one class")
        }
    })
}

fn parse_capacity(table: &ConfigTable<'_>, key: &str) -> Result<Bytes, ConfigError> {
    parse_size(table, key, CAPACITY)
}

/// Parses the capacity at `key`, or returns `None` if the table has no such key.
fn parse_optional_capacity(
    table: &ConfigTable<'_>,
    key: &str,
) -> Result<Option<Bytes>, ConfigError> {
    table
        .get(key)
        .map(|_| parse_capacity(table, key))
        .transpose()
}

/// Parses the size at `key`, which must not be zero. Errors show `example` as a valid size.
fn parse_size(table: &ConfigTable<'_>, key: &str, example: &str) -> Result<Bytes, ConfigError> {
    let size: Bytes = table.read_quantity(key, example)?;
    match size {
        Bytes(0) => Err(table
            .require_field(key, example)?
            .invalid_value_error("a size of zero", "more than zero bytes")),
        _ => Ok(size),
    }
}
