//! Links that dimensions cannot say: Clos networks, graphs, and links that differ from the others of their dimension.

use super::super::class_assignment;
use super::{BANDWIDTH, LATENCY};
use crate::config::{ConfigError, ConfigField, ConfigTable, quoted};
use crate::ids::Npu;
use crate::topology::chip_graph::{ChipGraph, LinkInterpolation, LinkTechnology};
use crate::topology::link_graph::{
    ClosLevels, LinkChange, LinkChangeFault, LinkGraph, MOST_NPUS, RoutePolicy,
};
use crate::topology::{DimensionShape, Topology};
use crate::units::{Bandwidth, Span};

/// The keys of a change of links.
const LINK: &[&str] = &["npus", "between", "dimension", "bandwidth", "latency"];

/// Wiring of a dimension, as files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DimensionWiring {
    Stacked(DimensionShape),
    Clos,
    Graph,
}

const WIRINGS: [(DimensionWiring, &str); 6] = [
    (DimensionWiring::Stacked(DimensionShape::Ring), "ring"),
    (DimensionWiring::Stacked(DimensionShape::Mesh), "mesh"),
    (
        DimensionWiring::Stacked(DimensionShape::FullyConnected),
        "fully_connected",
    ),
    (DimensionWiring::Stacked(DimensionShape::Switch), "switch"),
    (DimensionWiring::Clos, "clos"),
    (DimensionWiring::Graph, "graph"),
];

/// Which of the shortest paths a message takes, by name; the seed is a key of its own.
const ROUTES: [(RoutePolicy, &str); 3] = [
    (RoutePolicy::First, "first"),
    (RoutePolicy::Hashed(0), "hashed"),
    (RoutePolicy::Sprayed, "sprayed"),
];

/// Keys that only dimensions with links of their own have, with the shapes that take them.
const OWN: [(&str, &[DimensionWiring]); 7] = [
    ("levels", &[DimensionWiring::Clos]),
    ("oversubscription", &[DimensionWiring::Clos]),
    ("links", &[DimensionWiring::Graph]),
    ("link_rates", &[DimensionWiring::Graph]),
    ("interpolate", &[DimensionWiring::Graph]),
    ("routes", &[DimensionWiring::Clos, DimensionWiring::Graph]),
    ("seed", &[DimensionWiring::Clos, DimensionWiring::Graph]),
];

/// Reads the shape of a dimension. To collectives, one with links of its own is a switch: an NPU has one way into it.
pub(super) fn shape(table: &ConfigTable<'_>) -> Result<DimensionShape, ConfigError> {
    let wiring = table.choice("shape", &WIRINGS)?;
    for (key, shapes) in OWN {
        if let Some(field) = table.get(key).filter(|_| !shapes.contains(&wiring)) {
            let names = WIRINGS.iter().filter(|(shape, _)| shapes.contains(shape));
            let names: Vec<_> = names.map(|(_, name)| *name).collect();
            let expected = format!("it where shape is {}", names.join(" or "));
            return Err(field.refuse(format!("`{key}`"), expected));
        }
    }
    Ok(match wiring {
        DimensionWiring::Stacked(shape) => shape,
        DimensionWiring::Clos | DimensionWiring::Graph => DimensionShape::Switch,
    })
}

/// Rules between the rows of a table of rates, by name.
const INTERPOLATIONS: [(LinkInterpolation, &str); 3] = [
    (LinkInterpolation::None, "none"),
    (LinkInterpolation::Step, "step"),
    (LinkInterpolation::Logarithmic, "log"),
];

/// Reads the bandwidth of a dimension. A graph may have it of a table of rates by the number of links of an NPU, in which
/// the most that any NPU has counts, as all links are of one technology.
pub(super) fn bandwidth(table: &ConfigTable<'_>) -> Result<Bandwidth, ConfigError> {
    let Some(field) = table.get("link_rates") else {
        if let Some(field) = table.get("interpolate") {
            return Err(field.refuse("`interpolate`", "it beside `link_rates`"));
        }
        return table.quantity("bandwidth", BANDWIDTH);
    };
    if let Some(field) = table.get("bandwidth") {
        return Err(field.refuse("`bandwidth` and `link_rates`", "one of them"));
    }
    let mut links = Vec::new();
    for (number, rate) in field.table(None)?.fields() {
        let count = number.parse::<u32>().ok().filter(|count| *count > 0);
        let expected =
            "numbers of links with the rate of each, such as { 1 = \"180 GB/s\", 3 = \"64 GB/s\" }";
        let count = count.ok_or_else(|| rate.refuse(quoted(number), expected))?;
        let rate: Bandwidth = rate.quantity(BANDWIDTH)?;
        links.push((count, rate.bytes_per_second()));
    }
    links.sort_by_key(|(count, _)| *count);
    let interpolation = table
        .get("interpolate")
        .map(|field| field.choice(&INTERPOLATIONS));
    let technology = LinkTechnology {
        interface: 0.0,
        links,
        interpolation: interpolation
            .transpose()?
            .unwrap_or(LinkInterpolation::None),
    };
    let size = table.need("size", "the number of NPUs along this dimension")?;
    let most = chips_of(table, size.count(MOST_NPUS)?)?.most_links();
    let rate = technology.rate(most).filter(|_| most > 0);
    rate.and_then(Bandwidth::new).ok_or_else(|| {
        field.refuse(
            format!("no rate for NPUs of {most} links"),
            "a row for them, or `interpolate` as \"step\", the next larger number's rate, or \"log\", a line between \
             logarithms",
        )
    })
}

/// Returns `topology` with the links that its dimensions and the tables `link` say.
pub(super) fn wired(
    root: &ConfigTable<'_>,
    dimensions: &[ConfigTable<'_>],
    topology: Topology,
) -> Result<Topology, ConfigError> {
    let mut graph = None;
    for table in dimensions {
        let wiring = table.choice("shape", &WIRINGS)?;
        if matches!(wiring, DimensionWiring::Stacked(_)) {
            continue;
        }
        if dimensions.len() > 1 {
            let field = table.need("shape", "the dimension's shape")?;
            return Err(field.refuse("another dimension beside it", "it alone"));
        }
        graph = Some(own_links(table, wiring, &topology)?);
    }
    let Some(field) = root.get("link") else {
        return Ok(match graph {
            Some(graph) => topology.with_graph(graph),
            None => topology,
        });
    };
    let tables = field.tables(LINK)?;
    let graph = match graph {
        Some(graph) => graph,
        None => LinkGraph::stacked(&topology).ok_or_else(|| {
            let found = format!("links of {} NPUs", topology.npus());
            field.refuse(found, format!("at most {MOST_NPUS} NPUs"))
        })?,
    };
    let changes = tables.iter().map(|table| change(table, &topology));
    let changes: Vec<_> = changes.collect::<Result<_, _>>()?;
    match graph.with_changes(&changes) {
        Ok(graph) => Ok(topology.with_graph(graph)),
        Err(LinkChangeFault { change }) => {
            Err(tables[change].refuse("no such link", "NPUs that a link of that dimension joins"))
        }
    }
}

/// Reads the links of a Clos network or a graph.
fn own_links(
    table: &ConfigTable<'_>,
    wiring: DimensionWiring,
    topology: &Topology,
) -> Result<LinkGraph, ConfigError> {
    let npus = topology.npus();
    let rate: (Bandwidth, Span) = (
        topology.dimensions()[0].bandwidth,
        table.quantity("latency", LATENCY)?,
    );
    let routes = table.get("routes").map(|field| field.choice(&ROUTES));
    let usual = match wiring {
        DimensionWiring::Clos => RoutePolicy::Sprayed,
        _ => RoutePolicy::First,
    };
    let mut policy = routes.transpose()?.unwrap_or(usual);
    if let Some(field) = table.get("seed") {
        let seed = field.between(0, u64::from(u32::MAX))?;
        match policy {
            RoutePolicy::Hashed(_) => policy = RoutePolicy::Hashed(seed),
            _ => return Err(field.refuse("a seed", "one where routes are hashed")),
        }
    }
    let size = table.need("size", "the number of NPUs along this dimension")?;
    let too_many = || size.refuse(format!("{npus} NPUs"), format!("at most {MOST_NPUS}"));
    if npus > MOST_NPUS {
        return Err(too_many());
    }
    match wiring {
        DimensionWiring::Clos => {
            let levels = levels(table)?;
            if levels.npus() != Some(npus) {
                let found = match levels.npus() {
                    Some(other) => format!("levels for {other} NPUs"),
                    None => "levels for too many NPUs".to_owned(),
                };
                let field = table.need("levels", "the sizes of levels")?;
                return Err(
                    field.refuse(found, format!("levels whose product is {npus}, the size"))
                );
            }
            LinkGraph::clos(&levels, rate, policy).ok_or_else(|| {
                let field = table.need("levels", "the sizes of levels");
                field.map_or_else(
                    |error| error,
                    |field| field.refuse("too many switches", "fewer uplinks"),
                )
            })
        }
        _ => {
            let chips = chips_of(table, npus)?;
            LinkGraph::of_chips(&chips, rate, policy).ok_or_else(too_many)
        }
    }
}

/// Reads `levels = "2x2x4"` and `oversubscription`, one number for all levels or one for each but the highest.
fn levels(table: &ConfigTable<'_>) -> Result<ClosLevels, ConfigError> {
    let expected = "NPUs or switches below a switch of each level, lowest first, such as \"4x4\"";
    let field = table.need("levels", expected)?;
    let text = field.text(expected)?;
    let sizes = text.split('x').map(|part| {
        let size = part.trim().parse::<u32>().ok();
        size.filter(|size| *size > 0)
    });
    let children = sizes.collect::<Option<Vec<_>>>();
    let children = children.ok_or_else(|| field.refuse(quoted(text), expected))?;
    let mut uplinks = Vec::new();
    let over = match table.get("oversubscription") {
        Some(field) => field.positive(1e6)?,
        None => 1.0,
    };
    for &below in &children[..children.len() - 1] {
        let up = f64::from(below) / over;
        if up < 1.0 || up.fract() != 0.0 {
            let field = table.get("oversubscription").unwrap_or(field);
            let found = format!("{up} links up from a switch with {below} below");
            return Err(field.refuse(found, "a whole number of them"));
        }
        uplinks.push(up as u32);
    }
    Ok(ClosLevels { children, uplinks })
}

/// Reads the graph of a dimension of `npus`.
fn chips_of(table: &ConfigTable<'_>, npus: u32) -> Result<ChipGraph, ConfigError> {
    let expected = "links such as \"0-1,1-2,2-0\", or a graph such as \"torus:2x4\"";
    let field = table.need("links", expected)?;
    let chips = chips(&field, npus, expected)?;
    if chips.chips() != npus {
        let found = format!("a graph of {} NPUs", chips.chips());
        return Err(field.refuse(found, format!("one of {npus}, the size")));
    }
    Ok(chips)
}

/// Reads a graph: by its name, or link by link, each with its distance behind a colon if that is not 1.
fn chips(field: &ConfigField<'_>, npus: u32, expected: &str) -> Result<ChipGraph, ConfigError> {
    let text = field.text(expected)?;
    if text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return ChipGraph::named(text).map_err(|error| field.refuse(error, expected));
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
                return Err(field.refuse(quoted(piece), expected));
            }
        }
    }
    let name = format!("graph of {npus}");
    ChipGraph::new(name, 1, links).map_err(|error| field.refuse(error, "a connected graph"))
}

/// Reads a change of links.
fn change(table: &ConfigTable<'_>, topology: &Topology) -> Result<LinkChange, ConfigError> {
    let npus = topology.npus();
    let (key, between) = match (table.get("npus"), table.get("between")) {
        (Some(_), None) => ("npus", false),
        (None, Some(_)) => ("between", true),
        _ => {
            let found = "`npus` and `between`, or neither";
            return Err(table.refuse(found, "one of them: whose links, or between which NPUs"));
        }
    };
    let expected = format!("NPUs from 0 to {} such as \"0-3,6\"", npus - 1);
    let field = table.need(key, &expected)?;
    let text = field.text(&expected)?;
    let ranges = class_assignment::ranges(text, 0, npus);
    let ranges = ranges.map_err(|piece| field.refuse(quoted(piece), &expected))?;
    let dimension = table.get("dimension").map(|field| {
        let name = field.line()?;
        let names = topology.dimensions().iter();
        let found = names.map(|d| &d.name).position(|known| known == name);
        let number = found.map(|d| d as u32);
        number.ok_or_else(|| field.refuse(quoted(name), "the name of a dimension"))
    });
    let bandwidth = table
        .get("bandwidth")
        .map(|field| field.quantity(BANDWIDTH));
    let latency = table.get("latency").map(|field| field.quantity(LATENCY));
    if bandwidth.is_none() && latency.is_none() {
        return Err(table.refuse("nothing to change", "`bandwidth` or `latency`"));
    }
    Ok(LinkChange {
        npus: ranges
            .iter()
            .flat_map(|range| (range.first..=range.last).map(Npu))
            .collect(),
        between,
        dimension: dimension.transpose()?,
        bandwidth: bandwidth.transpose()?,
        latency: latency.transpose()?,
    })
}
