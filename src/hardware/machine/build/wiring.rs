//! Links that a dimension's shape cannot describe: Clos networks, graphs, and links that differ from the others in the
//! dimension.

use super::super::class_assignment;
use super::{BANDWIDTH, LATENCY};
use crate::topology::chip_graph::{LinkRateByLinkCount, RateInterpolationByLinkCount};
use crate::topology::link_graph::{
    DimensionLinks, InvalidLinkGraphReason, LinkGraph, LinkRateAndLatencyChange, MOST_LINKS,
    MOST_NPUS, MOST_SWITCHES, ShortestPathChoice, UnmatchedLinkChangeError,
};
use crate::topology::{DimensionShape, Topology};
use chakram_base::config::{ConfigError, ConfigTable, quote_and_truncate_for_message};
use chakram_base::ids::Npu;
use chakram_base::units::Bandwidth;

mod own_links;

/// Keys of a `link` table, which changes links.
const LINK: &[&str] = &["npus", "between", "dimension", "bandwidth", "latency"];

/// Wiring of a dimension, by its name in machine files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DimensionWiringKeyword {
    Stacked(DimensionShape),
    Clos,
    Graph,
}

const WIRINGS: [(DimensionWiringKeyword, &str); 6] = [
    (
        DimensionWiringKeyword::Stacked(DimensionShape::Ring),
        "ring",
    ),
    (
        DimensionWiringKeyword::Stacked(DimensionShape::Mesh),
        "mesh",
    ),
    (
        DimensionWiringKeyword::Stacked(DimensionShape::FullyConnected),
        "fully_connected",
    ),
    (
        DimensionWiringKeyword::Stacked(DimensionShape::Switch),
        "switch",
    ),
    (DimensionWiringKeyword::Clos, "clos"),
    (DimensionWiringKeyword::Graph, "graph"),
];

/// Route policies with their names in machine files. The seed of hashed routes has its own key.
const ROUTES: [(ShortestPathChoice, &str); 3] = [
    (ShortestPathChoice::First, "first"),
    (ShortestPathChoice::Hashed(0), "hashed"),
    (ShortestPathChoice::Sprayed, "sprayed"),
];

/// Keys that only dimensions with explicit links accept, each with the wirings that allow it.
const OWN: [(&str, &[DimensionWiringKeyword]); 8] = [
    ("levels", &[DimensionWiringKeyword::Clos]),
    ("oversubscription", &[DimensionWiringKeyword::Clos]),
    ("fabric", &[DimensionWiringKeyword::Clos]),
    ("links", &[DimensionWiringKeyword::Graph]),
    ("link_rates", &[DimensionWiringKeyword::Graph]),
    ("interpolate", &[DimensionWiringKeyword::Graph]),
    (
        "routes",
        &[DimensionWiringKeyword::Clos, DimensionWiringKeyword::Graph],
    ),
    (
        "seed",
        &[DimensionWiringKeyword::Clos, DimensionWiringKeyword::Graph],
    ),
];

/// Parses the shape of a dimension. Collectives treat a dimension with explicit links as a switch, because each NPU has
/// a single path into it.
pub(super) fn parse_dimension_shape(
    table: &ConfigTable<'_>,
) -> Result<DimensionShape, ConfigError> {
    let wiring = table.read_choice("shape", &WIRINGS)?;
    for (key, shapes) in OWN {
        if let Some(field) = table.get(key).filter(|_| !shapes.contains(&wiring)) {
            let names = WIRINGS.iter().filter(|(shape, _)| shapes.contains(shape));
            let names: Vec<_> = names.map(|(_, name)| *name).collect();
            let expected = format!("this key only where shape is {}", names.join(" or "));
            return Err(field.invalid_value_error(format!("`{key}`"), expected));
        }
    }
    Ok(match wiring {
        DimensionWiringKeyword::Stacked(shape) => shape,
        DimensionWiringKeyword::Clos | DimensionWiringKeyword::Graph => DimensionShape::Switch,
    })
}

/// Rules for interpolating between the rows of a table of link rates, by name.
const INTERPOLATIONS: [(RateInterpolationByLinkCount, &str); 3] = [
    (RateInterpolationByLinkCount::None, "none"),
    (RateInterpolationByLinkCount::Step, "step"),
    (RateInterpolationByLinkCount::Logarithmic, "log"),
];

/// Parses the bandwidth of a dimension. A graph's links may take their bandwidth from a table that states the rate for
/// each number of links per NPU. All links use one technology, so the NPU with the most links determines all rates.
pub(super) fn parse_bandwidth_or_link_rates(
    table: &ConfigTable<'_>,
) -> Result<Bandwidth, ConfigError> {
    let Some(field) = table.get("link_rates") else {
        if let Some(field) = table.get("interpolate") {
            return Err(
                field.invalid_value_error("`interpolate`", "`interpolate` only with `link_rates`")
            );
        }
        return table.read_quantity("bandwidth", BANDWIDTH);
    };
    if let Some(field) = table.get("bandwidth") {
        return Err(field.invalid_value_error("`bandwidth` and `link_rates`", "one of them"));
    }
    let mut links = Vec::new();
    for (number, rate) in field.read_table(None)?.fields() {
        let count = number.parse::<u32>().ok().filter(|count| *count > 0);
        let expected = "the rate of a link for each number of links, such as { 1 = \"180 GB/s\", 3 = \"64 GB/s\" }";
        let count = count.ok_or_else(|| {
            rate.invalid_value_error(quote_and_truncate_for_message(number), expected)
        })?;
        let rate: Bandwidth = rate.read_quantity(BANDWIDTH)?;
        links.push((count, rate.bytes_per_second()));
    }
    links.sort_by_key(|(count, _)| *count);
    let none = RateInterpolationByLinkCount::None;
    let technology = LinkRateByLinkCount {
        interface: 0.0,
        links,
        interpolation: table.read_or_default("interpolate", none, |field| {
            field.read_choice(&INTERPOLATIONS)
        })?,
    };
    let size = table.require_field("size", "the number of NPUs along this dimension")?;
    let most =
        own_links::parse_dimension_graph(table, size.read_count(MOST_NPUS)?)?.max_links_per_chip();
    let rate = technology.rate_per_link(most).filter(|_| most > 0);
    rate.and_then(Bandwidth::new).ok_or_else(|| {
        field.invalid_value_error(
            format!("no rate for NPUs of {most} links"),
            "a rate for that number of links; or `interpolate` = \"step\" (rate of the next larger \
             number) or \"log\" (linear between logarithms)",
        )
    })
}

/// Returns `topology` with the explicit links of its dimensions, and with the changes that the `link` tables require.
pub(super) fn add_explicit_links_and_changes(
    root: &ConfigTable<'_>,
    dimensions: &[ConfigTable<'_>],
    topology: Topology,
) -> Result<Topology, ConfigError> {
    let links = dimensions.iter().enumerate().map(|(d, table)| {
        match table.read_choice("shape", &WIRINGS)? {
            DimensionWiringKeyword::Stacked(_) => Ok(DimensionLinks::OfShape),
            wiring => own_links::parse_clos_or_graph_links(table, (wiring, d), &topology),
        }
    });
    let links: Vec<_> = links.collect::<Result<_, _>>()?;
    let own = links
        .iter()
        .position(|links| *links != DimensionLinks::OfShape);
    let changes = root.get("link");
    let size;
    let field = match (own, &changes) {
        (Some(d), _) => {
            size =
                dimensions[d].require_field("size", "the number of NPUs along this dimension")?;
            &size
        }
        (None, Some(field)) => field,
        (None, None) => return Ok(topology),
    };
    let graph = LinkGraph::new(&topology, &links).map_err(|fault| match fault {
        InvalidLinkGraphReason::Npus => {
            let found = format!(
                "explicit links on a machine of {} NPUs",
                topology.npu_count()
            );
            field.invalid_value_error(
                found,
                format!("at most {MOST_NPUS} NPUs with explicit links"),
            )
        }
        InvalidLinkGraphReason::Links(d) => {
            let most = format!("at most {MOST_LINKS} links and {MOST_SWITCHES} switches");
            dimensions[d].invalid_table_error("too many links or switches", most)
        }
        InvalidLinkGraphReason::Apart(a, b) => field.invalid_value_error(
            format!("no route from NPU {a} to NPU {b}"),
            "links that join all NPUs",
        ),
    })?;
    let Some(field) = changes else {
        return Ok(topology.with_link_graph(graph));
    };
    let tables = field.read_tables(LINK)?;
    let changes = tables
        .iter()
        .map(|table| parse_link_change(table, &topology));
    let changes: Vec<_> = changes.collect::<Result<_, _>>()?;
    match graph.with_changes(&changes) {
        Ok(graph) => Ok(topology.with_link_graph(graph)),
        Err(UnmatchedLinkChangeError { change }) => Err(tables[change].invalid_table_error(
            "no link between these NPUs",
            "NPUs that a link of this dimension joins",
        )),
    }
}

/// Parses one `link` table.
fn parse_link_change(
    table: &ConfigTable<'_>,
    topology: &Topology,
) -> Result<LinkRateAndLatencyChange, ConfigError> {
    let npus = topology.npu_count();
    let (key, between) = match (table.get("npus"), table.get("between")) {
        (Some(_), None) => ("npus", false),
        (None, Some(_)) => ("between", true),
        _ => {
            let found = "`npus` and `between`, or neither";
            return Err(table.invalid_table_error(
                found,
                "either `npus`, whose links change, or `between`, two NPUs",
            ));
        }
    };
    let expected = format!("NPUs from 0 to {} such as \"0-3,6\"", npus - 1);
    let field = table.require_field(key, &expected)?;
    let text = field.read_text(&expected)?;
    let ranges = class_assignment::parse_npu_ranges(text, 0, npus);
    let ranges = ranges.map_err(|piece| {
        field.invalid_value_error(quote_and_truncate_for_message(piece), &expected)
    })?;
    let dimension = table.read_optional("dimension", |field| {
        let name = field.read_one_line_text()?;
        let names = topology.dimensions().iter();
        let found = names.map(|d| &d.name).position(|known| known == name);
        let number = found.map(|d| d as u32);
        number.ok_or_else(|| {
            field.invalid_value_error(
                quote_and_truncate_for_message(name),
                "the name of a dimension",
            )
        })
    })?;
    let bandwidth = table.read_optional("bandwidth", |field| field.read_quantity(BANDWIDTH))?;
    let latency = table.read_optional("latency", |field| field.read_quantity(LATENCY))?;
    if bandwidth.is_none() && latency.is_none() {
        return Err(table.invalid_table_error(
            "neither `bandwidth` nor `latency`",
            "at least one of `bandwidth` and `latency`",
        ));
    }
    Ok(LinkRateAndLatencyChange {
        npus: ranges
            .iter()
            .flat_map(|range| (range.first..=range.last).map(Npu))
            .collect(),
        between,
        dimension,
        bandwidth,
        latency,
    })
}
