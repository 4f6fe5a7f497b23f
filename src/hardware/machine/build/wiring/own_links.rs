//! Explicit links of a dimension: Clos networks and graphs.

use super::{DimensionWiringKeyword, ROUTES};
use crate::topology::Topology;
use crate::topology::chip_graph::ChipGraph;
use crate::topology::link_graph::{
    ChildrenAndUplinksByClosLevel, ClosNetworkRailWiring, DimensionLinks, MOST_NPUS,
    ShortestPathChoice,
};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quote_and_truncate_for_message};

/// Parses the explicit links of dimension `d`: a Clos network or a graph.
pub(super) fn parse_clos_or_graph_links(
    table: &ConfigTable<'_>,
    (wiring, d): (DimensionWiringKeyword, usize),
    topology: &Topology,
) -> Result<DimensionLinks, ConfigError> {
    let routes = parse_route_policy(table, wiring)?;
    if wiring != DimensionWiringKeyword::Clos {
        let size = topology.dimensions()[d].size;
        let chips = parse_dimension_graph(table, size)?;
        return Ok(DimensionLinks::Chips { chips, routes });
    }
    let fabric = match table.get("fabric") {
        Some(field) if d == 0 => {
            let expected = "`fabric` only on a dimension that has inner dimensions";
            return Err(field.invalid_value_error("`fabric` of the innermost dimension", expected));
        }
        Some(field) => field.read_choice(&ClosNetworkRailWiring::ALL)?,
        None => ClosNetworkRailWiring::default(),
    };
    let (levels, npus) = (
        parse_clos_levels(table)?,
        fabric.npus_per_network(topology, d),
    );
    if levels.npu_count() != Some(npus) {
        let found = match levels.npu_count() {
            Some(other) => format!("levels for {other} NPUs"),
            None => format!("levels for more than {MOST_NPUS} NPUs, the limit of explicit links"),
        };
        let all = ClosNetworkRailWiring::TopOfRack.npus_per_network(topology, d);
        let expected = match fabric {
            ClosNetworkRailWiring::RailOnly if all > npus => format!(
                "levels whose product is the size, {npus}, for each rail; or {all} if `fabric` is \
                 \"rail_optimized\" or \"top_of_rack\""
            ),
            ClosNetworkRailWiring::RailOnly => format!("levels whose product is the size, {npus}"),
            _ => format!("levels whose product is the number of NPUs of all rails, {npus}"),
        };
        let field = table.require_field("levels", "the sizes of levels")?;
        return Err(field.invalid_value_error(found, expected));
    }
    Ok(DimensionLinks::Clos {
        levels,
        fabric,
        routes,
    })
}

/// Parses the rule that selects one of several shortest paths.
fn parse_route_policy(
    table: &ConfigTable<'_>,
    wiring: DimensionWiringKeyword,
) -> Result<ShortestPathChoice, ConfigError> {
    let usual = match wiring {
        DimensionWiringKeyword::Clos => ShortestPathChoice::Sprayed,
        _ => ShortestPathChoice::First,
    };
    let policy = table.read_or_default("routes", usual, |field| field.read_choice(&ROUTES))?;
    let Some(field) = table.get("seed") else {
        return Ok(policy);
    };
    let seed = field.read_integer_between(0, u64::from(u32::MAX))?;
    match policy {
        ShortestPathChoice::Hashed(_) => Ok(ShortestPathChoice::Hashed(seed)),
        _ => Err(field.invalid_value_error("a seed", "`seed` only with hashed routes")),
    }
}

/// Parses `levels = "2x2x4"`, and `oversubscription`, which is one number for all levels or a list with a number for
/// each level except the highest.
fn parse_clos_levels(
    table: &ConfigTable<'_>,
) -> Result<ChildrenAndUplinksByClosLevel, ConfigError> {
    let expected = "the number of NPUs or switches below a switch of each level, lowest level first, such as \"4x4\"";
    let field = table.require_field("levels", expected)?;
    let text = field.read_text(expected)?;
    let sizes = text.split('x').map(|part| {
        let size = part.trim().parse::<u32>().ok();
        size.filter(|size| *size > 0)
    });
    let children = sizes.collect::<Option<Vec<_>>>();
    let children = children
        .ok_or_else(|| field.invalid_value_error(quote_and_truncate_for_message(text), expected))?;
    let mut uplinks = Vec::new();
    let over = table.read_or_default("oversubscription", 1.0, |field| field.read_positive(1e6))?;
    for &below in &children[..children.len() - 1] {
        let up = f64::from(below) / over;
        if up < 1.0 || up.fract() != 0.0 {
            let field = table.get("oversubscription").unwrap_or(field);
            let found = format!("{up} uplinks of a switch with {below} links below");
            return Err(field.invalid_value_error(found, "a whole number of uplinks"));
        }
        uplinks.push(up as u32);
    }
    Ok(ChildrenAndUplinksByClosLevel { children, uplinks })
}

/// Parses the graph of a dimension that has `npus` NPUs.
pub(super) fn parse_dimension_graph(
    table: &ConfigTable<'_>,
    npus: u32,
) -> Result<ChipGraph, ConfigError> {
    let expected = "links such as \"0-1,1-2,2-0\", or a graph such as \"torus:2x4\"";
    let field = table.require_field("links", expected)?;
    let chips = parse_chip_graph(&field, npus, expected)?;
    if chips.chip_count() != npus {
        let found = format!("a graph with {} NPUs", chips.chip_count());
        return Err(field.invalid_value_error(
            found,
            format!("a graph with {npus} NPUs, the size of the dimension"),
        ));
    }
    Ok(chips)
}

/// Parses a graph that is written as a name or as a list of links. In the list, a colon and a length may follow each
/// link; the default length is 1.
fn parse_chip_graph(
    field: &ConfigField<'_>,
    npus: u32,
    expected: &str,
) -> Result<ChipGraph, ConfigError> {
    let text = field.read_text(expected)?;
    if text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return ChipGraph::parse_named_shape(text)
            .map_err(|error| field.invalid_value_error(error, expected));
    }
    let mut links = vec![Vec::new(); npus as usize];
    for piece in text.split(',').map(str::trim) {
        let (ends, distance) = piece.split_once(':').unwrap_or((piece, "1"));
        let numbers = ends.split_once('-').and_then(|(a, b)| {
            let end = |text: &str| text.trim().parse().ok().filter(|npu| *npu < npus);
            Some((end(a)?, end(b)?, distance.trim().parse::<u32>().ok()?))
        });
        match numbers {
            Some((a, b, distance)) if a != b && distance > 0 => {
                links[a as usize].push((b, distance));
                links[b as usize].push((a, distance));
            }
            _ => {
                let expected =
                    format!("two NPUs below {npus} such as 0-1, or with a distance, 0-1:3");
                return Err(
                    field.invalid_value_error(quote_and_truncate_for_message(piece), expected)
                );
            }
        }
    }
    let name = format!("graph of {npus}");
    ChipGraph::new(name, 1, links)
        .map_err(|error| field.invalid_value_error(error, "a connected graph"))
}
