//! Compares routes and loads of link graphs with results computed by hand.

use super::*;
use crate::topology::TopologyDimension;
use crate::topology::chip_graph::ChipGraph;

impl LinkGraph {
    /// Builds the links of one dimension with this rate and latency per link.
    fn of_single_dimension(
        npus: u32,
        links: DimensionLinks,
        (bandwidth, latency): (Bandwidth, Span),
    ) -> Self {
        let dimension = TopologyDimension {
            name: "fabric".to_owned(),
            shape: DimensionShape::Switch,
            size: npus,
            bandwidth,
            latency,
        };
        let topology = Topology::new(vec![dimension]).unwrap();
        Self::new(&topology, &[links]).unwrap()
    }

    /// Builds a Clos network of a single dimension.
    pub fn clos(
        levels: &ChildrenAndUplinksByClosLevel,
        rate: (Bandwidth, Span),
        routes: ShortestPathChoice,
    ) -> Self {
        let links = DimensionLinks::Clos {
            levels: levels.clone(),
            fabric: ClosNetworkRailWiring::default(),
            routes,
        };
        Self::of_single_dimension(levels.npu_count().unwrap(), links, rate)
    }

    /// Builds a graph of chips as a single dimension.
    pub fn of_chips(
        chips: &ChipGraph,
        rate: (Bandwidth, Span),
        routes: ShortestPathChoice,
    ) -> Self {
        let chips = chips.clone();
        Self::of_single_dimension(
            chips.chip_count(),
            DimensionLinks::Chips { chips, routes },
            rate,
        )
    }
}

fn build_link_rate() -> (Bandwidth, Span) {
    (Bandwidth::new(12.5e9).unwrap(), Span::from_ns(1000))
}

fn build_clos_graph(children: &[u32], uplinks: &[u32], policy: ShortestPathChoice) -> LinkGraph {
    let levels = ChildrenAndUplinksByClosLevel {
        children: children.to_vec(),
        uplinks: uplinks.to_vec(),
    };
    LinkGraph::clos(&levels, build_link_rate(), policy)
}

/// The fat tree of switches with four ports has 16 hosts, 8 + 8 + 4 switches, and 16 upward links at each level.
#[test]
fn a_fat_tree_has_its_switches_and_paths() {
    let graph = build_clos_graph(&[2, 2, 4], &[2, 2], ShortestPathChoice::Sprayed);
    assert_eq!(graph.switches.len(), 8 + 8 + 4);
    // Each of three levels has 16 links, and each link has two directions.
    assert_eq!(graph.all_links().len(), 2 * 3 * 16);
    // Neighbours connect through their switch, hosts of one pod through a switch one level above, and hosts of
    // different pods through a switch of the highest level.
    assert_eq!(graph.hop_count(Npu(0), Npu(1)), 2);
    assert_eq!(graph.hop_count(Npu(0), Npu(3)), 4);
    assert_eq!(graph.hop_count(Npu(0), Npu(15)), 6);
    // A route to another pod has 1 link with the whole message, 2 links with halves and 4 links with quarters, followed
    // by the same links in reverse.
    let route = graph.route_between(Npu(0), Npu(15));
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
        let graph = build_clos_graph(&[2, 2, 4], &[2, 2], ShortestPathChoice::Hashed(seed));
        let all: Vec<_> = (4..16)
            .map(|to| graph.route_between(Npu(0), Npu(to)))
            .collect();
        assert!(all.iter().all(|route| route.links.len() == 6));
        all
    };
    assert_eq!(routes(1), routes(1));
    assert_ne!(routes(1), routes(2));
    // There are four switches at the highest level, and the 12 routes do not all use the same switch.
    let middle: BTreeSet<_> = routes(1).iter().map(|route| route.links[2].0).collect();
    assert!(middle.len() > 1);
}

#[test]
fn links_derived_from_shapes_match_their_dimensions() {
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
        let graph = LinkGraph::from_topology(&topology).unwrap();
        // Routes over explicit links take the same time as routes over dimensions.
        for (a, b) in (0..12).flat_map(|a| (0..12).map(move |b| (Npu(a), Npu(b)))) {
            assert_eq!(
                graph.path_latency_and_rates(a, b, SwitchingMode::IDEAL),
                topology.path_between_npus(a, b),
                "{inner} {a} {b}"
            );
        }
        let count = |d| {
            graph
                .all_links()
                .iter()
                .filter(|l| l.dimension == d)
                .count()
        };
        let own = match inner {
            DimensionShape::Mesh => 6,
            _ => 8,
        };
        assert_eq!((count(0), count(1)), (own * 3, 6 * 4), "{inner}");
    }
}

/// DEAP's mean hops are 12/7 = 1.714 for both tori of eight chips; for the mesh, they are 7/6 of this value, which is
/// 2. Routes have the same numbers of links.
#[test]
fn both_tori_of_eight_chips_have_equal_hops_and_the_mesh_a_sixth_more() {
    let sum = |name: &str| {
        let chips = ChipGraph::parse_named_shape(name).unwrap();
        let graph = LinkGraph::of_chips(&chips, build_link_rate(), ShortestPathChoice::Sprayed);
        let pairs = (0..8).flat_map(|a| (0..8).map(move |b| (Npu(a), Npu(b))));
        let paths =
            pairs.filter_map(|(a, b)| graph.path_latency_and_rates(a, b, SwitchingMode::IDEAL));
        // Each link takes 1 us, so latencies in us are numbers of links.
        paths.map(|path| path.latency.0).sum::<u64>() / 1_000_000
    };
    // The 56 pairs are 56 x 12 / 7 = 96 hops apart in all. On the mesh, they are 56 x 2 = 112 hops apart, which is 7/6
    // of 96.
    assert_eq!((sum("torus:2x4"), sum("torus:2x2x2")), (96, 96));
    assert_eq!(sum("mesh:2x4"), 112);
}

#[test]
fn changes_touch_the_links_that_they_name() {
    let half = Some(Bandwidth::new(6.25e9).unwrap());
    let change = |npus: &[u32], between| LinkRateAndLatencyChange {
        npus: npus.iter().copied().map(Npu).collect(),
        between,
        dimension: None,
        bandwidth: half,
        latency: None,
    };
    let chips = ChipGraph::parse_named_shape("ring:6").unwrap();
    let ring = || LinkGraph::of_chips(&chips, build_link_rate(), ShortestPathChoice::First);
    let slow = |graph: LinkGraph| {
        let links = graph.all_links().iter();
        let slow = links.filter(|link| Some(link.bandwidth) == half);
        slow.map(|link| (link.from, link.to)).collect::<Vec<_>>()
    };
    let one = ring().with_changes(&[change(&[2, 3], true)]).unwrap();
    assert_eq!(slow(one), [(2, 3), (3, 2)]);
    let all = ring().with_changes(&[change(&[2], false)]).unwrap();
    assert_eq!(slow(all), [(1, 2), (2, 1), (2, 3), (3, 2)]);
    let none = ring().with_changes(&[change(&[0], false), change(&[0, 3], true)]);
    assert_eq!(none, Err(UnmatchedLinkChangeError { change: 1 }));
}

/// Creates a dimension with a switch.
fn build_switch_dimension(name: &str, size: u32) -> TopologyDimension {
    TopologyDimension {
        name: name.to_owned(),
        shape: DimensionShape::Switch,
        size,
        bandwidth: build_link_rate().0,
        latency: build_link_rate().1,
    }
}

/// Builds switches of `inside` NPUs each and, above them, Clos networks over `outside` such switches. All links are
/// equal.
fn build_node_switches_under_clos(
    (inside, outside): (u32, u32),
    levels: (&[u32], &[u32]),
    (fabric, routes): (ClosNetworkRailWiring, ShortestPathChoice),
) -> LinkGraph {
    let dimensions = vec![
        build_switch_dimension("node", inside),
        build_switch_dimension("nics", outside),
    ];
    let topology = Topology::new(dimensions).unwrap();
    let clos = DimensionLinks::Clos {
        levels: ChildrenAndUplinksByClosLevel {
            children: levels.0.to_vec(),
            uplinks: levels.1.to_vec(),
        },
        fabric,
        routes,
    };
    LinkGraph::new(&topology, &[DimensionLinks::OfShape, clos]).unwrap()
}

/// Returns the dimension of each link on a route, starting at the sender.
fn list_crossed_dimensions(graph: &LinkGraph, a: u32, b: u32) -> Vec<u32> {
    let route = graph.route_between(Npu(a), Npu(b));
    let links = route.links.iter();
    links
        .map(|(link, _)| graph.all_links()[*link as usize].dimension)
        .collect()
}

/// There are four nodes of four NPUs. Each rail has four NICs below two switches with two upward links each. A message
/// to another rail first travels inside its node.
#[test]
fn messages_to_another_rail_first_travel_inside_their_node() {
    let policy = (ClosNetworkRailWiring::RailOnly, ShortestPathChoice::First);
    let graph = build_node_switches_under_clos((4, 4), (&[2, 2], &[2]), policy);
    // Each node has one switch, and each of the four rails has two first-level and two second-level switches.
    assert_eq!(graph.switches.len(), 4 + 4 * (2 + 2));
    // 16 NPUs have one link each to their node's switch; each rail has 4 links to NICs and 4 upward links. Each link
    // has two directions.
    assert_eq!(graph.all_links().len(), 2 * (16 + 4 * (4 + 4)));
    assert_eq!(list_crossed_dimensions(&graph, 0, 3), [0, 0]);
    // Nodes 0 and 1 are below the same switch; nodes 0 and 3 are not.
    assert_eq!(list_crossed_dimensions(&graph, 0, 4), [1, 1]);
    assert_eq!(list_crossed_dimensions(&graph, 0, 12), [1, 1, 1, 1]);
    assert_eq!(list_crossed_dimensions(&graph, 0, 13), [0, 0, 1, 1, 1, 1]);
    assert_eq!(graph.hop_count(Npu(0), Npu(13)), 6);
    // The last leg is on the receiver's rail; the first NPU of this rail is NPU 1.
    let route = graph.route_between(Npu(0), Npu(13));
    let up = graph.all_links()[route.links[3].0 as usize];
    assert_eq!(graph.vertex_name(up.from), "switch 0 of level 1 at 1");
    assert_eq!(
        (graph.explicit_links_label(0), graph.explicit_links_label(1)),
        (None, Some("clos 2x2"))
    );
    assert!(!graph.can_store_and_forward());
}

/// Four nodes of four NPUs share one fabric of sixteen NICs, four below each switch. Messages to another node use only
/// the fabric. Messages inside a node do not use the fabric, although the node's NICs are on one switch.
#[test]
fn one_fabric_joins_all_rails() {
    let levels: (&[u32], &[u32]) = (&[4, 4], &[4]);
    let graph = |fabric, routes| build_node_switches_under_clos((4, 4), levels, (fabric, routes));
    let racks = graph(ClosNetworkRailWiring::TopOfRack, ShortestPathChoice::First);
    let rails = graph(
        ClosNetworkRailWiring::RailOptimized,
        ShortestPathChoice::First,
    );
    for graph in [&racks, &rails] {
        // There are four switches in nodes, four at the first level and four above the first level. Nodes, NICs and
        // first-level switches have 16 links each, in both directions.
        assert_eq!(graph.switches.len(), 4 + 4 + 4);
        assert_eq!(graph.all_links().len(), 2 * (16 + 16 + 16));
        assert_eq!(list_crossed_dimensions(graph, 5, 6), [0, 0]);
    }
    // The routes lead to another node, either on the same rail or on a different rail. Two nodes are below one switch
    // if their NICs of a rail are below one switch.
    assert_eq!(list_crossed_dimensions(&racks, 0, 4), [1; 4]);
    assert_eq!(list_crossed_dimensions(&racks, 0, 5), [1; 4]);
    assert_eq!(list_crossed_dimensions(&rails, 0, 4), [1; 2]);
    assert_eq!(list_crossed_dimensions(&rails, 0, 12), [1; 2]);
    assert_eq!(list_crossed_dimensions(&rails, 0, 5), [1; 4]);
    // With any policy, routes have the same links, parts and order as in a single Clos network.
    for policy in [
        ShortestPathChoice::First,
        ShortestPathChoice::Hashed(7),
        ShortestPathChoice::Sprayed,
    ] {
        let both = [
            graph(ClosNetworkRailWiring::TopOfRack, policy),
            build_clos_graph(levels.0, levels.1, policy),
        ];
        for (a, b) in (0..16).flat_map(|a| (0..16).map(move |b| (a, b))) {
            if a / 4 == b / 4 {
                continue;
            }
            let [over, alone] = [0, 1].map(|i| {
                let graph: &LinkGraph = &both[i];
                let route = graph.route_between(Npu(a), Npu(b));
                let ends = |(link, part): &LinkMessageFraction| {
                    let of = graph.all_links()[*link as usize];
                    let end = |vertex| graph.vertex_name(vertex);
                    (end(of.from), end(of.to), *part)
                };
                (
                    route.links.iter().map(ends).collect::<Vec<_>>(),
                    route.latency,
                )
            });
            // Hashed routes may differ, because a hash depends on the device number and the nodes' switches shift these
            // numbers.
            if matches!(policy, ShortestPathChoice::Hashed(_)) {
                assert_eq!(over.0.len(), alone.0.len());
            } else {
                assert_eq!(over, alone, "{a} {b}");
            }
        }
    }
}

/// A Clos network of one level equals the switch shape, link by link, for any inner dimensions.
#[test]
fn a_clos_network_of_one_level_is_a_switch() {
    for inner in [
        DimensionShape::Ring,
        DimensionShape::Mesh,
        DimensionShape::FullyConnected,
    ] {
        let dimension = |name: &str, shape, size| TopologyDimension {
            name: name.to_owned(),
            shape,
            size,
            bandwidth: Bandwidth::new(100e9).unwrap(),
            latency: Span::from_ns(50),
        };
        let dimensions = vec![
            dimension("a", inner, 4),
            dimension("b", DimensionShape::Switch, 3),
        ];
        let topology = Topology::new(dimensions).unwrap();
        let levels = ChildrenAndUplinksByClosLevel {
            children: vec![3],
            uplinks: vec![],
        };
        let clos = DimensionLinks::Clos {
            levels,
            fabric: ClosNetworkRailWiring::RailOnly,
            routes: ShortestPathChoice::Sprayed,
        };
        let graph = LinkGraph::new(&topology, &[DimensionLinks::OfShape, clos]).unwrap();
        let stacked = LinkGraph::from_topology(&topology).unwrap();
        assert_eq!(graph.all_links(), stacked.all_links());
        for (a, b) in (0..12).flat_map(|a| (0..12).map(move |b| (Npu(a), Npu(b)))) {
            assert_eq!(
                graph.route_between(a, b),
                stacked.route_between(a, b),
                "{inner} {a} {b}"
            );
            assert_eq!(
                graph.path_latency_and_rates(a, b, SwitchingMode::IDEAL),
                topology.path_between_npus(a, b)
            );
        }
    }
}

/// 2 x 2 x 2 NPUs form nodes, with a fabric over the nodes of each pod and a switch over the pods. If sender and
/// receiver have different places in their pods, a message first travels over the fabric to the receiver's place, and
/// then from pod to pod.
#[test]
fn a_fabric_may_lie_between_dimensions() {
    let dimension = |name: &str| TopologyDimension {
        name: name.to_owned(),
        shape: DimensionShape::Switch,
        size: 2,
        bandwidth: build_link_rate().0,
        latency: build_link_rate().1,
    };
    let topology = Topology::new(["node", "nics", "pods"].map(dimension).to_vec()).unwrap();
    let clos = DimensionLinks::Clos {
        levels: ChildrenAndUplinksByClosLevel {
            children: vec![2, 2],
            uplinks: vec![2],
        },
        fabric: ClosNetworkRailWiring::RailOptimized,
        routes: ShortestPathChoice::First,
    };
    let links = [DimensionLinks::OfShape, clos, DimensionLinks::OfShape];
    let graph = LinkGraph::new(&topology, &links).unwrap();
    assert_eq!(list_crossed_dimensions(&graph, 0, 1), [0; 2]);
    assert_eq!(list_crossed_dimensions(&graph, 0, 2), [1; 2]);
    assert_eq!(list_crossed_dimensions(&graph, 0, 3), [1; 4]);
    assert_eq!(list_crossed_dimensions(&graph, 4, 7), [1; 4]);
    assert_eq!(list_crossed_dimensions(&graph, 0, 7), [1, 1, 1, 1, 2, 2]);
    assert_eq!(list_crossed_dimensions(&graph, 0, 5), [0, 0, 2, 2]);
}

/// Checks a switch over two boards of four chips in a square. Also checks the reverse: a switch for each pair of NPUs,
/// and a square that connects the NPUs at equal places in their pairs.
#[test]
fn chip_graphs_combine_with_inner_and_outer_switches() {
    let square = || DimensionLinks::Chips {
        chips: ChipGraph::parse_named_shape("ring:4").unwrap(),
        routes: ShortestPathChoice::First,
    };
    let of = |sizes: [u32; 2], links: [DimensionLinks; 2]| {
        let dimensions = vec![
            build_switch_dimension("a", sizes[0]),
            build_switch_dimension("b", sizes[1]),
        ];
        LinkGraph::new(&Topology::new(dimensions).unwrap(), &links).unwrap()
    };
    let boards = of([4, 2], [square(), DimensionLinks::OfShape]);
    // Two squares have 4 links each, and 4 switches have 2 links each; each link has two directions.
    assert_eq!(boards.all_links().len(), 2 * 8 + 2 * 4 * 2);
    assert_eq!(list_crossed_dimensions(&boards, 0, 2), [0, 0]);
    assert_eq!(list_crossed_dimensions(&boards, 0, 7), [0, 1, 1]);
    let pairs = of([2, 4], [DimensionLinks::OfShape, square()]);
    // The route from NPU 1 of the first pair to NPU 0 of the third pair goes through the switch, and then over two
    // sides of the square.
    assert_eq!(list_crossed_dimensions(&pairs, 1, 4), [0, 0, 1, 1]);
    assert_eq!(
        pairs.route_between(Npu(1), Npu(4)).latency,
        Span::from_ns(4000)
    );
    assert!(!pairs.can_store_and_forward());
}

#[test]
fn too_many_switches_are_refused_before_they_are_made() {
    let dimension = TopologyDimension {
        name: "fabric".to_owned(),
        shape: DimensionShape::Switch,
        size: 2048,
        bandwidth: build_link_rate().0,
        latency: build_link_rate().1,
    };
    let topology = Topology::new(vec![dimension]).unwrap();
    let refused = |children: &[u32], uplinks: &[u32]| {
        let levels = ChildrenAndUplinksByClosLevel {
            children: children.to_vec(),
            uplinks: uplinks.to_vec(),
        };
        let clos = DimensionLinks::Clos {
            levels,
            fabric: ClosNetworkRailWiring::RailOnly,
            routes: ShortestPathChoice::First,
        };
        LinkGraph::new(&topology, &[clos]).unwrap_err()
    };
    assert_eq!(
        refused(&[1, 1, 2048], &[2000, 1]),
        InvalidLinkGraphReason::Links(0)
    );
    assert_eq!(
        refused(&[1, 2048], &[2000]),
        InvalidLinkGraphReason::Links(0)
    );
    assert_eq!(
        refused(&[1, 2048], &[u32::MAX]),
        InvalidLinkGraphReason::Links(0)
    );
    // The graph and the topology have different numbers of NPUs.
    assert_eq!(refused(&[2, 2], &[2]), InvalidLinkGraphReason::Links(0));
}
