//! Draws networks as nodes and links, coloured by load. Groups of nodes are drawn as circles, tiles as
//! a grid.

use super::WIDTH;
use super::svg::{DrawingRect, SvgDrawing, TextAnchor};
use std::f64::consts::TAU;

/// Width and height, in drawing units, of a group drawn as a circle.
const SIDE: f64 = 240.0;
const ABREAST: usize = 4;
const HEAD: f64 = 22.0;
/// Height, in drawing units, of a group drawn as a line.
const LINE: f64 = 70.0;
/// Maximum number of node names drawn in a circle; more names would overlap.
const NAMED: usize = 36;

/// A node in the drawing of a network.
#[derive(Clone, Debug)]
pub struct NetworkNode {
    /// Name of the node, as drawn.
    pub name: String,
    /// Tooltip text.
    pub title: String,
    /// True for a switch or a memory, which is drawn in the middle of its group.
    pub is_hub: bool,
    /// Shade, from 0 to 10, for the load of the node itself, not of its links; `None` if this load is unknown.
    pub shade: Option<u32>,
}

/// A directed link.
#[derive(Clone, Debug)]
pub struct NetworkLink {
    /// Index of the source in the group's nodes.
    pub from: usize,
    /// Index of the destination in the group's nodes.
    pub to: usize,
    /// Shade of the link's load, from 0 to 10.
    pub shade: u32,
    /// Tooltip text.
    pub title: String,
}

/// Nodes and their links, drawn as one picture.
#[derive(Clone, Debug, Default)]
pub struct NetworkPicture {
    /// Title above the group.
    pub title: String,
    /// Nodes of the group. Nodes other than hubs are placed around the circle in this order.
    pub nodes: Vec<NetworkNode>,
    /// Links between nodes of the group.
    pub links: Vec<NetworkLink>,
}

impl NetworkPicture {
    /// Returns true if the group is drawn as a line: it has no hub and few nodes, and links connect only adjacent
    /// nodes.
    fn is_drawn_as_line(&self) -> bool {
        let has_hub = self.nodes.iter().any(|node| node.is_hub);
        let mut links = self.links.iter();
        !has_hub && self.nodes.len() <= 12 && links.all(|link| link.from.abs_diff(link.to) == 1)
    }
}

/// Draws each group as a circle with its hubs in the middle, or as a line if links connect only adjacent nodes.
pub fn draw_network_groups_as_circles_or_lines(name: &str, groups: &[NetworkPicture]) -> String {
    let rows = groups.len().div_ceil(ABREAST);
    let side = match groups.iter().all(NetworkPicture::is_drawn_as_line) {
        true => LINE,
        false => SIDE,
    };
    let mut svg = SvgDrawing::new(WIDTH, rows as f64 * (side + HEAD));
    for (i, group) in groups.iter().enumerate() {
        let left = (i % ABREAST) as f64 * SIDE;
        let top = (i / ABREAST) as f64 * (side + HEAD) + HEAD;
        let middle = (left + SIDE / 2.0, top + side / 2.0);
        svg.add_text(
            (middle.0, top - 6.0),
            TextAnchor::Middle,
            "label",
            &group.title,
        );
        let hubs = group.nodes.iter().filter(|node| node.is_hub).count();
        let around = group.nodes.len() - hubs;
        let radius = SIDE / 2.0 - if around <= NAMED { 26.0 } else { 10.0 };
        let is_line = group.is_drawn_as_line();
        let (mut hub, mut out) = (0, 0);
        let places = group.nodes.iter().map(|node| {
            if is_line {
                let along = (f64::from(out) + 0.5) / around as f64;
                out += 1;
                return (left + 14.0 + along * (SIDE - 28.0), middle.1);
            }
            let (at, of, radius) = match node.is_hub {
                true => (&mut hub, hubs, if hubs > 1 { radius / 2.5 } else { 0.0 }),
                false => (&mut out, around, radius),
            };
            let angle = TAU * f64::from(*at) / of.max(1) as f64;
            *at += 1;
            point_on_circle(middle, radius, angle)
        });
        let places: Vec<(f64, f64)> = places.collect();
        for link in &group.links {
            draw_link(&mut svg, places[link.from], places[link.to], link);
        }
        let small = if around <= NAMED { 5.0 } else { 2.5 };
        for (node, place) in group.nodes.iter().zip(&places) {
            let half = if node.is_hub { 7.0 } else { small };
            draw_node(&mut svg, *place, half, node);
            if !node.is_hub && around <= NAMED {
                let (dx, dy) = (place.0 - middle.0, place.1 - middle.1);
                let far = (radius + 14.0) / radius;
                let at = match is_line {
                    true => (place.0, place.1 + 22.0),
                    false => (middle.0 + dx * far, middle.1 + dy * far + 4.0),
                };
                svg.add_text(at, TextAnchor::Middle, "axis", &node.name);
            }
        }
    }
    svg.into_element(name)
}

/// Draws the nodes of `group` at `places` (column, row) on a grid of `size` (columns, rows). A link between the two
/// ends of a row or column is drawn as a short stub at each end.
pub fn draw_network_grid(
    name: &str,
    group: &NetworkPicture,
    places: &[[u32; 2]],
    size: [u32; 2],
) -> String {
    let pitch = ((WIDTH - 60.0) / f64::from(size[0].max(1))).clamp(10.0, 54.0);
    let place = |[x, y]: [u32; 2]| {
        let along = |at: u32| 40.0 + f64::from(at) * pitch;
        (along(x), along(y))
    };
    let height = 60.0 + f64::from(size[1]) * pitch;
    let mut svg = SvgDrawing::new(WIDTH, height);
    for link in &group.links {
        let (a, b) = (places[link.from], places[link.to]);
        let (from, to) = (place(a), place(b));
        let is_near = a[0].abs_diff(b[0]) + a[1].abs_diff(b[1]) <= 1;
        if is_near {
            draw_link(&mut svg, from, to, link);
            continue;
        }
        let length = (to.0 - from.0).hypot(to.1 - from.1).max(1.0);
        let step = (
            (to.0 - from.0) / length * pitch / 2.2,
            (to.1 - from.1) / length * pitch / 2.2,
        );
        draw_link(&mut svg, from, (from.0 - step.0, from.1 - step.1), link);
        draw_link(&mut svg, (to.0 + step.0, to.1 + step.1), to, link);
    }
    let half = (pitch / 6.0).clamp(2.0, 7.0);
    for (node, at) in group.nodes.iter().zip(places) {
        draw_node(&mut svg, place(*at), half, node);
    }
    svg.into_element(name)
}

fn point_on_circle(middle: (f64, f64), radius: f64, angle: f64) -> (f64, f64) {
    // Nodes are placed clockwise from the top.
    let (sin, cos) = (libm::sin(angle), libm::cos(angle));
    (middle.0 + radius * sin, middle.1 - radius * cos)
}

fn draw_node(svg: &mut SvgDrawing, at: (f64, f64), half: f64, node: &NetworkNode) {
    let frame = DrawingRect {
        x: at.0 - half,
        y: at.1 - half,
        width: 2.0 * half,
        height: 2.0 * half,
    };
    let class = match node.shade {
        Some(shade) => format!("m{shade} edge"),
        None if node.is_hub => "hub".to_owned(),
        None => "node".to_owned(),
    };
    svg.add_rect(frame, &class, &node.title, &[]);
}

/// Draws a link on the right-hand side of the line between its nodes, so that both directions are visible.
fn draw_link(svg: &mut SvgDrawing, from: (f64, f64), to: (f64, f64), link: &NetworkLink) {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy).max(1e-9);
    let (x, y) = (-dy / length * 2.4, dx / length * 2.4);
    let ends = [(from.0 + x, from.1 + y), (to.0 + x, to.1 + y)];
    svg.add_polyline(&ends, &format!("link m{}", link.shade), &link.title);
}
