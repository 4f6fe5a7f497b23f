//! The `dimension` tables and the `network` table: topology, an algorithm for each dimension, network model and
//! switching.

use super::super::{NetworkSettings, NpuLimitPerSpannedDomain};
use super::{LATENCY, SEGMENT, collective_curves, wiring};
use crate::collective::{
    CollectiveCurve, CrossNodeNcclRingAndTreeModel, DimensionAlgorithmChoice,
    FittedCollectiveProtocol,
};
use crate::machine::Machine;
use crate::network::{NetworkModelKind, SendCompletionRule};
use crate::topology::{SwitchingMode, Topology, TopologyDimension};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quote_and_truncate_for_message};
use chakram_base::setting::EnumeratedSetting;
use chakram_base::units::Bytes;

/// Keys that each `dimension` table may have.
pub(super) const KEYS: &[&str] = &[
    "name",
    "shape",
    "size",
    "ranks",
    "bandwidth",
    "latency",
    "algorithm",
    "scalable",
    "curve",
    "protocol",
    "across_share",
    "measured_at",
    "levels",
    "oversubscription",
    "fabric",
    "links",
    "routes",
    "seed",
    "link_rates",
    "interpolate",
];

/// Keys that the `network` table may have.
const NETWORK: &[&str] = &["model", "switching", "segment", "send_completion"];

/// Contents of the `dimension` tables and the `network` table.
pub(super) struct NetworkBuiltFromTables {
    pub topology: Topology,
    pub settings: NetworkSettings,
    pub algorithms: Vec<DimensionAlgorithmChoice>,
    /// Time curves of measured collectives, by dimension.
    pub curves: Vec<Vec<CollectiveCurve>>,
    /// Protocols for collectives in each dimension.
    pub protocols: Vec<Vec<FittedCollectiveProtocol>>,
    /// The library's rings and trees over several nodes, by dimension.
    pub across_nodes: Vec<Option<CrossNodeNcclRingAndTreeModel>>,
    pub scalable: bool,
    /// The dimension along which large jobs use only some of the NPUs, or `None` if jobs use all NPUs.
    pub rank_domain: Option<NpuLimitPerSpannedDomain>,
}

/// Parses and checks all `dimension` tables and the `network` table. For an edited file, `original` is the machine
/// before the edit.
pub(super) fn parse_network(
    root: &ConfigTable<'_>,
    original: Option<&Machine>,
) -> Result<NetworkBuiltFromTables, ConfigError> {
    let expected = "a table [[dimension]] for each dimension, innermost first, or a table [tiles]";
    let field = root.require_field("dimension", expected)?;
    let tables = field.read_tables(KEYS)?;
    let mut dimensions: Vec<TopologyDimension> = Vec::with_capacity(tables.len());
    let mut algorithms = Vec::with_capacity(tables.len());
    let mut curves = Vec::with_capacity(tables.len());
    let mut protocols = Vec::with_capacity(tables.len());
    let mut across_nodes = Vec::with_capacity(tables.len());
    let mut scalable = false;
    let mut rank_domain = None;
    let mut npus = 1;
    for (index, table) in tables.iter().enumerate() {
        let dimension = parse_dimension(table)?;
        if dimensions.iter().any(|other| other.name == dimension.name) {
            let found = format!(
                "the name {} twice",
                quote_and_truncate_for_message(&dimension.name)
            );
            return Err(table.invalid_table_error(found, "a different name for each dimension"));
        }
        let size = table.require_field("size", "the number of NPUs along this dimension")?;
        // u64 cannot overflow here: the product of the inner sizes is at most MAX_NPUS.
        npus *= u64::from(dimension.size);
        if npus > u64::from(Topology::MAX_NPUS) {
            let most = Topology::MAX_NPUS;
            let found = format!("a size with which the machine has {npus} NPUs");
            return Err(size.invalid_value_error(found, format_args!("at most {most} in all")));
        }
        if let Some(field) = table.get("ranks") {
            if index + 1 == tables.len() {
                let found = "`ranks` on the outermost dimension, which has no further domains";
                return Err(field.invalid_value_error(found, "`ranks` on an inner dimension"));
            }
            if rank_domain.is_some() {
                return Err(
                    field.invalid_value_error("a second one", "`ranks` in one dimension only")
                );
            }
            rank_domain = Some(parse_npu_limit_per_domain(
                &field,
                index,
                dimension.size,
                npus as u32,
            )?);
        }
        if let Some(field) = table.get("scalable") {
            scalable = field.read_flag()?;
            // `NAMExN` replaces the size in the last `dimension` table, so only the last dimension can be scalable.
            if scalable && index + 1 < tables.len() {
                let found = "true on an inner dimension";
                return Err(field.invalid_value_error(
                    found,
                    "`scalable` only on the outermost dimension, which is the last table",
                ));
            }
        }
        algorithms.push(table.read_choice("algorithm", &DimensionAlgorithmChoice::ALL)?);
        let measured_at = collective_curves::measured_at(table)?;
        let before = || collective_curves::link_rates_before_edit(original, &dimension.name);
        let measured_at = measured_at.or_else(before);
        curves.push(collective_curves::parse_collective_time_curves(
            table,
            measured_at,
        )?);
        protocols.push(collective_curves::parse_protocols(table, measured_at)?);
        across_nodes.push(collective_curves::parse_across_nodes_rate_share(
            table,
            measured_at,
        )?);
        dimensions.push(dimension);
    }
    collective_curves::add_measured_collectives(root, &dimensions, original, &mut curves)?;
    let topology = Topology::new(dimensions)
        .ok_or_else(|| field.invalid_value_error("no dimension", expected))?;
    let topology = wiring::add_explicit_links_and_changes(root, &tables, topology)?;
    let own = topology.explicit_links().is_some();
    let usual = if own {
        NetworkModelKind::FairSharing
    } else {
        NetworkModelKind::default()
    };
    let settings = parse_network_settings(root, usual)?;
    if let Some(graph) = topology.explicit_links() {
        // Store-and-forward is impossible in two cases. First, if a message takes several paths, a device where the
        // paths meet would receive its parts separately. Second, if links are derived from shapes, the devices between
        // links are not modelled.
        let switching = settings.switching;
        let stores = switching == SwitchingMode::StoreAndForward && graph.can_store_and_forward();
        if settings.model != usual || !stores && switching != SwitchingMode::IDEAL {
            let found = "a network model or switching that does not support explicit links";
            let expected = "fair_sharing with cut_through, which [[link]], clos and graph need; or with \
                            store_and_forward if every dimension is clos or graph and routes are first or hashed";
            return Err(root
                .require_field("network", expected)?
                .invalid_value_error(found, expected));
        }
    }
    Ok(NetworkBuiltFromTables {
        topology: settings.apply_to_topology(topology),
        settings,
        algorithms,
        curves,
        protocols,
        across_nodes,
        scalable,
        rank_domain,
    })
}

/// Parses how many NPUs of each domain run ranks if a job spans several domains. A domain has `npus` NPUs, along
/// dimension `index` and all inner dimensions.
fn parse_npu_limit_per_domain(
    field: &ConfigField<'_>,
    index: usize,
    size: u32,
    npus: u32,
) -> Result<NpuLimitPerSpannedDomain, ConfigError> {
    let ranks = field.read_count(size)?;
    Ok(NpuLimitPerSpannedDomain {
        dimension: index,
        npus,
        used: npus / size * ranks,
    })
}

/// Parses the network table, in which every key is optional. `default` is the network model that applies if the table
/// states none.
pub(super) fn parse_network_settings(
    root: &ConfigTable<'_>,
    default: NetworkModelKind,
) -> Result<NetworkSettings, ConfigError> {
    let Some(field) = root.get("network") else {
        return Ok(NetworkSettings {
            model: default,
            ..NetworkSettings::default()
        });
    };
    let table = field.read_table(Some(NETWORK))?;
    let models = NetworkModelKind::CHOICES.iter();
    let models: Vec<_> = models.map(|(model, word, _)| (*model, *word)).collect();
    let model = table.read_or_default("model", default, |field| field.read_choice(&models))?;
    let names = [
        (SwitchingMode::IDEAL, "cut_through"),
        (SwitchingMode::StoreAndForward, "store_and_forward"),
    ];
    let ideal = SwitchingMode::IDEAL;
    let mut switching =
        table.read_or_default("switching", ideal, |field| field.read_choice(&names))?;
    if let Some(field) = table.get("segment") {
        let segment: Bytes = field.read_quantity(SEGMENT)?;
        if switching == SwitchingMode::StoreAndForward {
            return Err(field.invalid_value_error(
                "a segment",
                "no `segment` with switching = store_and_forward",
            ));
        }
        switching = SwitchingMode::CutThrough { segment };
    }
    let sends = table.read_optional("send_completion", |field| {
        field.read_choice(&SendCompletionRule::ALL)
    })?;
    Ok(NetworkSettings {
        model,
        switching,
        send_completion: sends.unwrap_or_default(),
    })
}

fn parse_dimension(table: &ConfigTable<'_>) -> Result<TopologyDimension, ConfigError> {
    let size = table.require_field("size", "the number of NPUs along this dimension")?;
    Ok(TopologyDimension {
        name: table
            .require_field("name", "the dimension's name")?
            .read_one_line_text()?
            .to_owned(),
        shape: wiring::parse_dimension_shape(table)?,
        size: size.read_count(Topology::MAX_NPUS)?,
        bandwidth: wiring::parse_bandwidth_or_link_rates(table)?,
        latency: table.read_quantity("latency", LATENCY)?,
    })
}
