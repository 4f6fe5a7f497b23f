//! Checks parsed chip graphs, and compares their statistics with results computed by hand.

use super::*;

fn parse_graph_shape(name: &str) -> ChipGraph {
    ChipGraph::parse_named_shape(name).unwrap()
}

/// The sample topology file of the DEAP paper (Agrawal and Xu, 2023), section IV.A.
const SAMPLE: &str = "{\n  Topology: 2D-torus\n  Size: 4\n  Dimension: 2\n};\n\
    {\n  Chip_id: 0\n  Connected_chip_id: {1, 3}\n  Connected_chip_distance: {1, 1}\n}\n\
    {\n  Chip_id: 1\n  Connected_chip_id: {0, 2}\n  Connected_chip_distance: {1, 1}\n}\n\
    {\n  Chip_id: 2\n  Connected_chip_id: {1, 3}\n  Connected_chip_distance: {1, 1}\n}\n\
    {\n  Chip_id: 3\n  Connected_chip_id: {0, 2}\n  Connected_chip_distance: {1, 1}\n}\n";

/// A ring of 4: each chip has two chips at 1 hop and one at 2, so the mean is (1 + 1 + 2) / 3 = 1.333.
#[test]
fn the_sample_is_a_ring_of_four() {
    let sample = ChipGraph::parse(SAMPLE, "sample").unwrap();
    let summary = sample.summarize();
    assert_eq!(
        (summary.links, summary.degrees, summary.diameter),
        (4, (2, 2), 2)
    );
    assert!((summary.mean_hops - 4.0 / 3.0).abs() < 1e-12);
    assert_eq!(summary.mean_distance, summary.mean_hops);
    assert_eq!(
        ChipGraph::parse(&sample.to_file_text(), "again").unwrap(),
        sample
    );
    let torus = parse_graph_shape("torus:2x2").summarize();
    assert_eq!(torus, summary);
}

/// The tori 2x4 and 2x2x2 are the cube, with 3 links per chip and 8 x 3 / 2 = 12 links. From each chip, 3 chips are 1
/// hop away, 3 chips are 2 hops away, and 1 chip is 3 hops away, so the mean is 12 / 7 hops. The mesh has 2 x 3 + 4 =
/// 10 links. The mean on the ring is (1 + 1 + 2 + 2 + 3 + 3 + 4) / 7 = 16 / 7 hops.
#[test]
fn graphs_of_eight_chips_have_the_published_numbers() {
    for (name, links, degrees, diameter, hops) in [
        ("torus:2x4", 12, (3, 3), 3, 12.0 / 7.0),
        ("torus:2x2x2", 12, (3, 3), 3, 12.0 / 7.0),
        ("mesh:2x4", 10, (2, 3), 4, 2.0),
        ("ring:8", 8, (2, 2), 4, 16.0 / 7.0),
    ] {
        let found = parse_graph_shape(name).summarize();
        assert_eq!(
            (found.links, found.degrees, found.diameter),
            (links, degrees, diameter),
            "{name}"
        );
        assert!(
            (found.mean_hops - hops).abs() < 1e-12,
            "{name}: {}",
            found.mean_hops
        );
    }
    // The graph equals the first graph if chips 0 to 7 are renumbered to 0, 1, 3, 2, 4, 5, 7, 6.
    let to = [0_u32, 1, 3, 2, 4, 5, 7, 6];
    let (flat, cube) = (
        parse_graph_shape("torus:2x4"),
        parse_graph_shape("torus:2x2x2"),
    );
    for chip in 0..8 {
        let renamed = flat
            .neighbours_of(chip)
            .iter()
            .map(|(other, _)| to[*other as usize]);
        let mut renamed: Vec<u32> = renamed.collect();
        renamed.sort_unstable();
        let other = cube
            .neighbours_of(to[chip as usize])
            .iter()
            .map(|(other, _)| *other);
        assert_eq!(renamed, other.collect::<Vec<_>>());
    }
}

/// All pairs of chips exchange equal messages. A mesh takes 2 / (12/7) = 1.167 times as long as a torus of the same
/// rate. The interface at 1 GB/s takes 64 / (12/7) = 37.3 times as long as the torus at 64 GB/s per link.
#[test]
fn communication_follows_hops_and_rates() {
    let technology = LinkRateByLinkCount::deap_table_three(RateInterpolationByLinkCount::None);
    let hops = |name: &str| parse_graph_shape(name).summarize().mean_hops;
    assert!((hops("mesh:2x4") / hops("torus:2x4") - 7.0 / 6.0).abs() < 1e-12);
    let torus = hops("torus:2x4") / technology.rate_per_link(3).unwrap();
    let interface = 1.0 / technology.rate_per_link(0).unwrap();
    assert!((interface / torus - 64.0 * 7.0 / 12.0).abs() < 1e-9);
    assert!((interface / torus - 37.3).abs() < 0.05);
}

/// Checks the mean hops of the best two-dimensional torus for several numbers of chips. A prime number of chips is an
/// outlier, because the torus is then a ring.
#[test]
fn best_torus_of_prime_chip_count_has_most_mean_hops() {
    let hops = |chips: u32| {
        ChipGraph::find_torus_with_fewest_mean_hops(chips)
            .summarize()
            .mean_hops
    };
    for (chips, expected) in [
        (4, 1.333),
        (6, 1.4),
        (8, 1.714),
        (9, 1.5),
        (11, 3.0),
        (12, 1.818),
        (13, 3.5),
        (16, 2.133),
        (17, 4.5),
        (25, 2.5),
        (31, 8.0),
        (36, 3.086),
    ] {
        assert!(
            (hops(chips) - expected).abs() < 5e-4,
            "{chips}: {}",
            hops(chips)
        );
    }
    for prime in [11, 13, 17, 19, 23, 29, 31] {
        assert!(
            hops(prime) > hops(prime - 1) && hops(prime) > hops(prime + 1),
            "{prime}"
        );
    }
    // Three-dimensional tori have a lower mean hop count than two-dimensional tori: 4 x 4 x 3 is below 7 x 7 and 6 x 8.
    let named = |name: &str| parse_graph_shape(name).summarize().mean_hops;
    assert!((named("torus:4x4x3") - 2.723).abs() < 5e-4);
    assert!((named("torus:7x7") - 3.5).abs() < 1e-12);
    assert!((named("torus:6x8") - 3.574).abs() < 5e-4);
}

#[test]
fn distances_are_sums_of_lengths() {
    // The link 0 - 1 has length 5, and the path 0 - 2 - 1 has length 1 + 1, so the chips are one hop apart at a
    // distance of 2.
    let links = vec![
        vec![(1, 5), (2, 1)],
        vec![(0, 5), (2, 1)],
        vec![(0, 1), (1, 1)],
    ];
    let triangle = ChipGraph::new("t".to_owned(), 1, links).unwrap();
    assert_eq!(triangle.shortest_link_length_sums_from_chip(0), [0, 2, 1]);
    assert_eq!(triangle.hops_from(0), [Some(0), Some(1), Some(1)]);
    assert_eq!(triangle.summarize().mean_distance, 8.0 / 6.0);
}

#[test]
fn what_is_not_symmetric_or_connected_is_refused() {
    let error = |from: &str, to: &str| {
        assert!(SAMPLE.contains(from), "{from}");
        ChipGraph::parse(&SAMPLE.replacen(from, to, 1), "t")
            .unwrap_err()
            .to_string()
    };
    let one_way = "chip 1 is linked to chip 0 at distance 1, but chip 0 has no link to chip 1; expected the same link in both directions";
    assert_eq!(
        error(
            "{1, 3}\n  Connected_chip_distance: {1, 1}",
            "{3}\n  Connected_chip_distance: {1}"
        ),
        one_way
    );
    let longer = "chip 0 is linked to chip 1 at distance 2, but chip 1 states distance 1; expected the same link in both directions";
    assert_eq!(error("{1, 1}", "{2, 1}"), longer);
    assert_eq!(
        error("{1, 1}", "{1}"),
        "t:9: found \"[1]\", expected 2 distances of at least 1, one for each connected chip"
    );
    assert_eq!(
        error("{1, 3}", "{1, 4}"),
        "t:8: found \"4\", expected a whole number up to 3"
    );
    assert_eq!(
        error("Chip_id: 3", "Chip_id: 1"),
        "t:21: found \"chip 1\", expected each chip once"
    );
    assert_eq!(
        error("Size: 4", "Size: 5"),
        "t:25: found \"no chip 4\", expected chips 0 to 4"
    );
    assert!(
        error("Size", "Sise")
            .starts_with("t:3: found \"Sise: 4\", expected one of Topology, Size, Dimension")
    );
    let apart = "{\nTopology: two\nSize: 2\nDimension: 1\n};\n{\nChip_id: 0\nConnected_chip_id: {}\n\
        Connected_chip_distance: {}\n}\n{\nChip_id: 1\nConnected_chip_id: {}\nConnected_chip_distance: {}\n}\n";
    let error = ChipGraph::parse(apart, "t").unwrap_err().to_string();
    assert_eq!(
        error,
        "chip 1 cannot be reached from chip 0; expected a connected topology"
    );
    for text in [
        "",
        "{",
        "}",
        "{\n}\n",
        "Size: 4",
        "{\n{\n",
        "{\nTopology: a\nSize: 0\nDimension: 1\n}",
    ] {
        assert!(ChipGraph::parse(text, "t").is_err(), "{text:?}");
    }
    for name in [
        "",
        "ring",
        "ring:0",
        "ring:2x2",
        "torus:99999x99999",
        "cube:8",
        "torus:2x",
    ] {
        assert!(ChipGraph::parse_named_shape(name).is_err(), "{name}");
    }
}

#[test]
fn rates_between_the_numbers_of_the_table_follow_a_stated_rule() {
    let rate = |interpolation, links| {
        LinkRateByLinkCount::deap_table_three(interpolation).rate_per_link(links)
    };
    assert_eq!(rate(RateInterpolationByLinkCount::None, 2), None);
    assert_eq!(rate(RateInterpolationByLinkCount::Step, 2), Some(64e9));
    assert_eq!(rate(RateInterpolationByLinkCount::Step, 13), None);
    // 180 GB/s x (64 / 180)^(ln 2 / ln 3) = 93.8 GB/s.
    let between = rate(RateInterpolationByLinkCount::Logarithmic, 2).unwrap();
    assert!((between / 1e9 - 93.77).abs() < 0.05, "{between}");
    for interpolation in [
        RateInterpolationByLinkCount::None,
        RateInterpolationByLinkCount::Step,
        RateInterpolationByLinkCount::Logarithmic,
    ] {
        assert_eq!(
            [0, 1, 3, 12].map(|links| rate(interpolation, links).unwrap() / 1e9),
            [1.0, 180.0, 64.0, 25.0]
        );
    }
}

/// Checks 250 random graphs of fewer than 50 chips: each is connected and symmetric, and equal seeds give equal graphs.
/// The number of links is at least the number of chips minus 1, and at most three per chip.
#[test]
fn random_graphs_are_connected_and_repeatable() {
    let draw = |seed: u64| {
        let mut state = seed;
        let mut random = move || {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            state ^ (state >> 29)
        };
        (0..250)
            .map(|_| {
                let chips = 2 + (random() >> 33) as u32 % 48;
                ChipGraph::create_random_connected_graph(chips, &mut random)
            })
            .collect::<Vec<_>>()
    };
    let graphs = draw(1);
    assert_eq!(graphs, draw(1));
    assert_ne!(graphs, draw(2));
    for graph in &graphs {
        assert!(graph.chip_count() < 50);
        let again = ChipGraph::new(graph.name.clone(), 1, graph.links.clone());
        assert_eq!(again.as_ref(), Ok(graph));
        let links = graph.summarize().links;
        assert!(
            links + 1 >= u64::from(graph.chip_count())
                && links <= 3 * u64::from(graph.chip_count())
        );
    }
}

#[test]
fn tables_of_rates_are_read() {
    let table = LinkRateByLinkCount::parse("3=64 GB/s, 1=180GB/s,interface=2 GB/s").unwrap();
    assert_eq!(table.links, [(1, 180e9), (3, 64e9)]);
    assert_eq!(
        (table.rate_per_link(0), table.rate_per_link(2)),
        (Some(2e9), None)
    );
    // If the text states no interface rate, the rate in DEAP's Table III is used.
    assert_eq!(
        LinkRateByLinkCount::parse("4=10GB/s").unwrap().interface,
        1e9
    );
    for wrong in ["", "3", "x=1GB/s", "0=1GB/s", "3=64", "3=1GB/s,3=2GB/s"] {
        assert!(LinkRateByLinkCount::parse(wrong).is_err(), "{wrong}");
    }
}
