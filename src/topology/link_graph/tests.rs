//! Routes and loads of graphs of links, by hand.

use super::*;
use crate::topology::TopologyDimension;
use crate::topology::chip_graph::ChipGraph;

fn rate() -> (Bandwidth, Span) {
    (Bandwidth::new(12.5e9).unwrap(), Span::from_ns(1000))
}

fn clos(children: &[u32], uplinks: &[u32], policy: RoutePolicy) -> LinkGraph {
    let levels = ClosLevels {
        children: children.to_vec(),
        uplinks: uplinks.to_vec(),
    };
    LinkGraph::clos(&levels, rate(), policy).unwrap()
}

/// The fat tree of switches with four ports: 16 hosts, 8 + 8 + 4 switches, and as many links up as hosts at each level.
#[test]
fn a_fat_tree_has_its_switches_and_paths() {
    let graph = clos(&[2, 2, 4], &[2, 2], RoutePolicy::Sprayed);
    assert_eq!(graph.switches.len(), 8 + 8 + 4);
    // Both directions of 16 at each of three levels.
    assert_eq!(graph.links().len(), 2 * 3 * 16);
    // Neighbours by their switch, a pod by one above it, other pods by the highest.
    assert_eq!(graph.hops(Npu(0), Npu(1)), 2);
    assert_eq!(graph.hops(Npu(0), Npu(3)), 4);
    assert_eq!(graph.hops(Npu(0), Npu(15)), 6);
    // To another pod: 1 link, 2 halves, 4 quarters, and the same back.
    let route = graph.route(Npu(0), Npu(15));
    let mut parts: Vec<_> = route.links.iter().map(|(_, part)| *part).collect();
    assert_eq!(parts.iter().sum::<f64>(), 6.0);
    parts.sort_by(f64::total_cmp);
    let expected = [[0.25; 8].as_slice(), &[0.5; 4], &[1.0; 2]].concat();
    assert_eq!(parts, expected);
    assert_eq!(route.latency, Span::from_ns(6000));
}

#[test]
fn hashed_routes_are_shortest_paths_that_differ_by_seed() {
    let routes = |seed| {
        let graph = clos(&[2, 2, 4], &[2, 2], RoutePolicy::Hashed(seed));
        let all: Vec<_> = (4..16).map(|to| graph.route(Npu(0), Npu(to))).collect();
        assert!(all.iter().all(|route| route.links.len() == 6));
        all
    };
    assert_eq!(routes(1), routes(1));
    assert_ne!(routes(1), routes(2));
    // Over the four highest switches: of 12 routes not all take one.
    let middle: std::collections::BTreeSet<_> =
        routes(1).iter().map(|route| route.links[2].0).collect();
    assert!(middle.len() > 1);
}

#[test]
fn links_of_dimensions_are_theirs() {
    let dimension = |name: &str, shape, size| TopologyDimension {
        name: name.to_owned(),
        shape,
        size,
        bandwidth: Bandwidth::new(100e9).unwrap(),
        latency: Span::from_ns(50),
    };
    for inner in [
        DimensionShape::Ring,
        DimensionShape::Mesh,
        DimensionShape::FullyConnected,
        DimensionShape::Switch,
    ] {
        let dimensions = vec![
            dimension("a", inner, 4),
            dimension("b", DimensionShape::Switch, 3),
        ];
        let topology = Topology::new(dimensions).unwrap();
        let graph = LinkGraph::stacked(&topology).unwrap();
        // The way over links costs what the way over dimensions does.
        for (a, b) in (0..12).flat_map(|a| (0..12).map(move |b| (Npu(a), Npu(b)))) {
            assert_eq!(
                graph.path(a, b, SwitchingMode::IDEAL),
                topology.path(a, b),
                "{inner} {a} {b}"
            );
        }
        let count = |d| graph.links().iter().filter(|l| l.dimension == d).count();
        let own = match inner {
            DimensionShape::Mesh => 6,
            _ => 8,
        };
        assert_eq!((count(0), count(1)), (own * 3, 6 * 4), "{inner}");
    }
}

/// DEAP's mean hops: 12/7 = 1.714 for both tori of eight, 2 for the mesh, 7/6 as many. Routes have as many links.
#[test]
fn tori_that_are_one_graph_are_equal_and_a_mesh_is_a_sixth_longer() {
    let sum = |name: &str| {
        let chips = ChipGraph::named(name).unwrap();
        let graph = LinkGraph::of_chips(&chips, rate(), RoutePolicy::Sprayed).unwrap();
        let pairs = (0..8).flat_map(|a| (0..8).map(move |b| (Npu(a), Npu(b))));
        let paths = pairs.filter_map(|(a, b)| graph.path(a, b, SwitchingMode::IDEAL));
        // In links of 1 us.
        paths.map(|path| path.latency.0).sum::<u64>() / 1_000_000
    };
    // 56 pairs: 56 x 12 / 7 = 96, and 56 x 2 = 112, which is 7/6 of it.
    assert_eq!((sum("torus:2x4"), sum("torus:2x2x2")), (96, 96));
    assert_eq!(sum("mesh:2x4"), 112);
}

#[test]
fn changes_touch_the_links_that_they_name() {
    let half = Some(Bandwidth::new(6.25e9).unwrap());
    let change = |npus: &[u32], between| LinkChange {
        npus: npus.iter().copied().map(Npu).collect(),
        between,
        dimension: None,
        bandwidth: half,
        latency: None,
    };
    let chips = ChipGraph::named("ring:6").unwrap();
    let ring = || LinkGraph::of_chips(&chips, rate(), RoutePolicy::First).unwrap();
    let slow = |graph: LinkGraph| {
        let links = graph.links().iter();
        let slow = links.filter(|link| Some(link.bandwidth) == half);
        slow.map(|link| (link.from, link.to)).collect::<Vec<_>>()
    };
    let one = ring().with_changes(&[change(&[2, 3], true)]).unwrap();
    assert_eq!(slow(one), [(2, 3), (3, 2)]);
    let all = ring().with_changes(&[change(&[2], false)]).unwrap();
    assert_eq!(slow(all), [(1, 2), (2, 1), (2, 3), (3, 2)]);
    let none = ring().with_changes(&[change(&[0], false), change(&[0, 3], true)]);
    assert_eq!(none, Err(LinkChangeFault { change: 1 }));
}
