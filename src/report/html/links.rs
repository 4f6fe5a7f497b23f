//! Pictures of links, coloured by load, for any topology.

use super::page::{escape_html, render_figure_with_scale};
use crate::Report;
use crate::draw::network::{self, NetworkLink, NetworkNode, NetworkPicture};
use crate::links::{LinkReport, LinkTrafficRow};
use crate::tiles::TileLinkAndPortUse;
use chakram_base::units::{Bytes, Span, format_percent};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of groups of connected links to draw per dimension.
const GROUPS: usize = 8;
const LINKS: usize = 512;
/// Name of memory as an endpoint of links.
const MEMORY: &str = "memory";
/// Number of shades for nonzero loads.
pub(super) const SHADES: u32 = 10;

/// Returns the pictures of links. If bytes on links were counted, there is one picture per dimension. If the machine
/// has tiles, there is one picture of the grid.
pub fn render_link_pictures(report: &Report) -> String {
    let tiles = report.tiles.as_ref();
    let tiles = tiles.map_or(String::new(), |tiles| {
        render_tile_grid(tiles, report.outcome.makespan)
    });
    let counted = report.links.as_ref().map_or(String::new(), |links| {
        render_dimension_pictures(links, links.load_denominator(report), !tiles.is_empty())
    });
    tiles + &counted
}

/// Returns the shade of `value`, from 0 to [`SHADES`]; a value equal to `most` gets the darkest shade.
pub(super) fn shade_of(value: f64, most: f64) -> u32 {
    match most > 0.0 {
        // Round up, so that the smallest nonzero load is visible.
        true => (value / most * f64::from(SHADES)).ceil() as u32,
        false => 0,
    }
}

/// Formats a fraction as a percentage.
fn format_load_percent(load: f64) -> String {
    format_percent(load)
}

/// Returns one picture per dimension. On a machine of tiles, only dimensions with memories are drawn, because the grid
/// shows the other links.
fn render_dimension_pictures(links: &LinkReport, over: Span, of_tiles: bool) -> String {
    let load =
        |row: &LinkTrafficRow| row.busy.as_seconds() / over.as_seconds().max(f64::MIN_POSITIVE);
    let most = links.bottleneck_link().map_or(0.0, load);
    let mut out = String::new();
    for dimension in &links.dimensions {
        let rows = links
            .links
            .iter()
            .filter(|row| row.dimension == dimension.name);
        let rows: Vec<&LinkTrafficRow> = rows.collect();
        let groups = group_links_by_connected_component(&rows);
        let is_memory = rows.iter().any(|row| row.from == MEMORY);
        if groups.is_empty() || (of_tiles && !is_memory) {
            continue;
        }
        let drawn = groups.iter().take(GROUPS).map(|group| {
            let mut rows = group.clone();
            rows.sort_by_key(|row| Reverse(row.busy));
            let left_out = rows.len().saturating_sub(LINKS);
            rows.truncate(LINKS);
            build_network_picture(&rows, left_out, |row| {
                (load(row), shade_of(load(row), most))
            })
        });
        let drawn: Vec<_> = drawn.collect();
        let picture = network::draw_network_groups_as_circles_or_lines(
            &format!("Links of {}", dimension.name),
            &drawn,
        );
        let of = match groups.len() > drawn.len() {
            true => format!(
                "{} of {} groups of links with bytes are drawn, the busiest. ",
                drawn.len(),
                groups.len()
            ),
            false => String::new(),
        };
        let caption = format!(
            "{of}A line for each direction; the colour is the part of the time for which its bytes take the link. Links \
             without bytes are left out."
        );
        out += &format!(
            "<h3>{}: {} links</h3>{}",
            escape_html(&dimension.name),
            dimension.links,
            render_figure_with_scale(&picture, &shade_scale_labels(most), &caption)
        );
    }
    out
}

/// Returns the labels of a shade scale for loads from 0 to `most`.
fn shade_scale_labels(most: f64) -> [String; 3] {
    [0.0, most / 2.0, most].map(format_load_percent)
}

/// Groups links by connected component. The component with the busiest link comes first.
fn group_links_by_connected_component<'r>(
    rows: &[&'r LinkTrafficRow],
) -> Vec<Vec<&'r LinkTrafficRow>> {
    let mut number: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        for end in [&row.from, &row.to] {
            let next = number.len();
            number.entry(end).or_insert(next);
        }
    }
    let mut leader: Vec<usize> = (0..number.len()).collect();
    fn find_component_root(leader: &mut [usize], mut at: usize) -> usize {
        while leader[at] != at {
            leader[at] = leader[leader[at]];
            at = leader[at];
        }
        at
    }
    for row in rows {
        let ends = [&row.from, &row.to].map(|end| find_component_root(&mut leader, number[&**end]));
        leader[ends[0].max(ends[1])] = ends[0].min(ends[1]);
    }
    let mut groups: BTreeMap<usize, Vec<&LinkTrafficRow>> = BTreeMap::new();
    for row in rows {
        let of = find_component_root(&mut leader, number[&*row.from]);
        groups.entry(of).or_default().push(row);
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|rows| Reverse(rows.iter().map(|row| row.busy).max()));
    groups
}

/// Returns the number in an NPU's name, such as `NPU 3`.
fn parse_npu_name(name: &str) -> Option<u32> {
    name.strip_prefix("NPU ")?.parse().ok()
}

fn build_network_picture(
    rows: &[&LinkTrafficRow],
    left_out: usize,
    load: impl Fn(&LinkTrafficRow) -> (f64, u32),
) -> NetworkPicture {
    let mut names: Vec<&str> = rows.iter().flat_map(|row| [&*row.from, &*row.to]).collect();
    names.sort_by_key(|name| (parse_npu_name(name).is_none(), parse_npu_name(name), *name));
    names.dedup();
    let place = |end: &str| names.iter().position(|name| *name == end).unwrap_or(0);
    let links = rows.iter().map(|row| {
        let (load, shade) = load(row);
        NetworkLink {
            from: place(&row.from),
            to: place(&row.to),
            shade,
            title: format!(
                "{} to {}: {}, busy {}, {}",
                row.from,
                row.to,
                Bytes(row.bytes),
                row.busy,
                format_load_percent(load)
            ),
        }
    });
    let nodes = names.iter().map(|name| NetworkNode {
        name: parse_npu_name(name).map_or_else(String::new, |npu| npu.to_string()),
        title: (*name).to_owned(),
        is_hub: parse_npu_name(name).is_none(),
        shade: None,
    });
    let npus: Vec<u32> = names
        .iter()
        .filter_map(|name| parse_npu_name(name))
        .collect();
    let title = match (npus.first(), npus.last()) {
        (Some(first), Some(last)) if npus.len() == 2 => format!("NPUs {first} and {last}"),
        (Some(first), Some(last)) if first != last => format!("NPUs {first} … {last}"),
        (Some(first), _) => format!("NPU {first}"),
        _ => String::new(),
    };
    let cut = match left_out {
        0 => String::new(),
        more => format!("; {more} links less busy are left out"),
    };
    NetworkPicture {
        title: title + &cut,
        nodes: nodes.collect(),
        links: links.collect(),
    }
}

/// Draws the grid of tiles with their links and memory ports.
fn render_tile_grid(tiles: &TileLinkAndPortUse, makespan: Span) -> String {
    if tiles.links.is_empty() && tiles.ports.is_empty() {
        return String::new();
    }
    let part = |busy: Span| busy.as_seconds() / makespan.as_seconds().max(f64::MIN_POSITIVE);
    let busy = tiles.links.iter().map(|link| link.busy);
    let busy = busy.chain(tiles.ports.iter().map(|port| port.busy));
    let most = busy.max().map_or(0.0, part);
    let ends = tiles.links.iter().flat_map(|link| [link.from, link.to]);
    let mut places: Vec<_> = ends
        .chain(tiles.ports.iter().map(|port| port.core))
        .collect();
    places.sort_unstable_by_key(|[x, y]| (*y, *x));
    places.dedup();
    let along = |d: usize| 1 + places.iter().map(|place| place[d]).max().unwrap_or(0);
    let size = [along(0), along(1)];
    if u64::from(size[0]) * u64::from(size[1]) > 1 << 14 {
        return String::new();
    }
    let find = |place: [u32; 2]| places.iter().position(|known| *known == place).unwrap_or(0);
    let shown = |[x, y]: [u32; 2]| format!("({x}, {y})");
    let nodes = places.iter().map(|place| {
        let port = tiles.ports.iter().find(|port| port.core == *place);
        let of_port = port.map_or_else(String::new, |port| {
            format!(
                ": memory port busy {}, {}",
                port.busy,
                format_load_percent(part(port.busy))
            )
        });
        NetworkNode {
            name: String::new(),
            title: format!("core {}{of_port}", shown(*place)),
            is_hub: false,
            shade: port.map(|port| shade_of(part(port.busy), most)),
        }
    });
    let links = tiles.links.iter().map(|link| NetworkLink {
        from: find(link.from),
        to: find(link.to),
        shade: shade_of(part(link.busy), most),
        title: format!(
            "{} to {}: busy {}, {}",
            shown(link.from),
            shown(link.to),
            link.busy,
            format_load_percent(part(link.busy))
        ),
    });
    let group = NetworkPicture {
        title: String::new(),
        nodes: nodes.collect(),
        links: links.collect(),
    };
    let picture = network::draw_network_grid("Links of tiles", &group, &places, size);
    let caption = "Cores with links and memory ports that were busy. A coloured square is a core with a memory port; a line is \
                   a link in one direction. The colour is the part of the makespan for which it was busy.";
    format!(
        "<h3>Tiles</h3>{}",
        render_figure_with_scale(&picture, &shade_scale_labels(most), caption)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_test_link_traffic_row(from: &str, to: &str, busy: u64) -> LinkTrafficRow {
        LinkTrafficRow {
            dimension: "x".to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            bytes: busy,
            busy: Span(busy),
        }
    }

    /// NPUs 0 to 2, in a line, form one group, and 8 NPUs at a switch form another. The group with the switch comes
    /// first, because the busiest link is in it.
    #[test]
    fn links_of_a_connected_component_form_one_group() {
        let rows = [
            build_test_link_traffic_row("NPU 0", "NPU 1", 5),
            build_test_link_traffic_row("NPU 2", "NPU 1", 4),
            build_test_link_traffic_row("NPU 8", "x switch at 8", 9),
        ];
        let found = group_links_by_connected_component(&rows.iter().collect::<Vec<_>>());
        let found: Vec<Vec<u64>> = found
            .iter()
            .map(|rows| rows.iter().map(|row| row.busy.0).collect())
            .collect();
        assert_eq!(found, [vec![9], vec![5, 4]]);
        let drawn = build_network_picture(&[&rows[2]], 0, |_| (0.5, 5));
        // The switch is drawn in the middle, although it is sorted after the NPUs.
        assert_eq!(
            (drawn.nodes[0].is_hub, drawn.nodes[1].is_hub),
            (false, true)
        );
        assert_eq!((drawn.links[0].from, drawn.links[0].to), (0, 1));
    }

    /// There are ten shades above zero; the smallest nonzero load has the first shade.
    #[test]
    fn shades_are_tenths_of_the_most() {
        assert_eq!(
            [0.0, 1e-9, 0.5, 0.51, 1.0].map(|load| shade_of(load, 1.0)),
            [0, 1, 5, 6, 10]
        );
        assert_eq!(shade_of(0.0, 0.0), 0);
    }
}
