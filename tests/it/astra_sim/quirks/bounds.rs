//! With all quirks corrected, no collective is faster than the ports allow: the time is at least
//! the number of bytes that an NPU sends into a dimension, divided by the bandwidth.

use super::*;
use crate::astra_sim::product;
use testkit::astra_sim::random::RandomGenerator;

/// Returns the lower bound on the bytes that each NPU sends into each dimension. Of S bytes among
/// n_0 n_1 … NPUs, a scatter sends at least (n_d - 1) / n_d of the bytes that remain after the
/// inner dimensions.
fn min_sent_bytes_by_dimension(
    kind: CollectiveOperation,
    whole: bool,
    sizes: &[usize],
    bytes: f64,
) -> Vec<f64> {
    let share = |n: usize| (n - 1) as f64 / n as f64;
    let mut sent = Vec::new();
    for (d, &n) in sizes.iter().enumerate() {
        let inside: usize = sizes[..d].iter().product();
        let left = bytes / inside as f64;
        sent.push(match kind {
            AllReduce if whole => 2.0 * share(n) * bytes,
            AllReduce => 2.0 * share(n) * left,
            ReduceScatter => share(n) * left,
            // Each NPU has one shard. At the end, a line of n has the shards of its members, and of all NPUs outside
            // the line.
            AllGather => {
                let outside: usize = sizes[d + 1..].iter().product();
                (n - 1) as f64 * bytes * outside as f64
            }
            CollectiveOperation::AllToAll => share(n) * bytes,
        });
    }
    sent
}

/// Returns a few independent collectives on up to three dimensions, and their lower bound in ns.
fn draw_collectives_and_lower_bound(seed: u64) -> (WholeSimulationInput, f64) {
    let mut dice = RandomGenerator::new(seed);
    let shapes = [Ring, FullyConnected, Switch];
    let dims: Vec<_> = (0..dice.draw_between(1, 3))
        .map(|_| {
            let size = dice.pick_from(&[2, 4]);
            (
                dice.pick_from(&shapes),
                size,
                dice.draw_between(1, 100) as f64,
                100.0,
            )
        })
        .collect();
    let kind = dice.pick_from(&[
        AllReduce,
        AllGather,
        ReduceScatter,
        CollectiveOperation::AllToAll,
    ]);
    let names = ["ring", "direct", "direct2"];
    let names: Vec<&str> = dims.iter().map(|_| dice.pick_from(&names)).collect();
    let bytes = dice.draw_size(1, 1 << 22);
    let network = dice.pick_from(&[Aware, Unaware]);
    let mut config = with_zero_reduction_time(build_config_of_one_collective(
        network, &dims, kind, &names, bytes,
    ));
    config.system.local_bw_aware = dice.draw_one_in(2);
    config.system.active_chunks = dice.draw_between(1, 8);
    config.system.splits = dice.draw_between(1, 8);
    let count = dice.draw_between(1, 3);
    for rank in &mut config.ranks {
        for id in 2..=count {
            rank.push(TraceNode {
                id,
                ..rank[0].clone()
            });
        }
    }
    let sizes: Vec<usize> = dims.iter().map(|dim| dim.1).collect();
    let whole = !config.system.local_bw_aware;
    let sent = min_sent_bytes_by_dimension(kind, whole, &sizes, bytes as f64).into_iter();
    let bounds = sent.zip(&dims).map(|(bytes, &(shape, _, gbps, _))| {
        // In a ring of the aware network, each NPU has two separate links, one in each direction.
        let links = if network == Aware && shape == Ring {
            2.0
        } else {
            1.0
        };
        count as f64 * bytes / (links * gbps)
    });
    let bound = bounds.fold(0.0, f64::max);
    (config, bound)
}

#[test]
fn random_collectives_are_never_faster_than_the_ports() {
    let tight = std::sync::atomic::AtomicU32::new(0);
    product::run_on_all_cores(0..80, |seed| {
        let (config, bound) = draw_collectives_and_lower_bound(seed);
        let found = simulate_makespan_ps(&config, "none") as f64 / 1000.0;
        // Each message may be rounded down by half a ps.
        assert!(found + 1.0 > bound, "{seed}: {found} ns is below {bound}");
        let close = found < 1.5 * bound;
        tight.fetch_add(close.into(), std::sync::atomic::Ordering::Relaxed);
    });
    // Some results must be close to the bound, or the test would prove nothing.
    assert!(tight.into_inner() > 5);
}

/// An all-reduce of 1 GB runs on Conv-4D, which is Ring(2), FullyConnected(8), Ring(8) and
/// Switch(4) at 250, 200, 100 and 50 GB/s, with enough chunks in flight. The second dimension is
/// the bottleneck: 2 · 7/8 · 10^9 / 2 / 200 = 4,375,000 ns.
#[test]
#[ignore = "a million messages"]
fn a_large_machine_is_not_faster_than_its_ports() {
    let dims = [
        (Ring, 2, 250.0, 0.0),
        (FullyConnected, 8, 200.0, 0.0),
        (Ring, 8, 100.0, 0.0),
        (Switch, 4, 50.0, 0.0),
    ];
    let names = ["ring", "direct", "ring", "halvingDoubling"];
    let mut config = with_zero_reduction_time(build_config_of_one_collective(
        Unaware,
        &dims,
        AllReduce,
        &names,
        1_000_000_000,
    ));
    (config.system.splits, config.system.active_chunks) = (64, 64);
    config.system.endpoint_delay = Some(1);
    let free = simulate_makespan_ps(&config, "all") as f64 / 1e3;
    let found = simulate_makespan_ps(&config, "none") as f64 / 1e3;
    println!("{free} ns and {found} ns");
    assert!(free < 110_000.0 && (4_375_000.0..4_900_000.0).contains(&found));
}

/// The paper prints 4,392.85 and 2,212.60 us for its systems of 2, 8, 8 and 4 and of 4, 8, 8 and 4,
/// at 1000, 200, 100 and 50 GB/s. If the bandwidth is taken per link, the second dimension is seven
/// times too fast. 2 · 7/8 · 2^30 / 2 / (200 · 2^30) = 4,375 us for 64 chunks in succession, plus
/// the time until the first chunk reaches that dimension and the time of the last chunk after it.
#[test]
fn paper_times_fit_bandwidth_per_npu_and_not_per_link() {
    for (first, paper) in [(2, 4_392_850.0), (4, 2_212_600.0)] {
        let dims = [
            (Ring, first, 1000.0, 0.0),
            (FullyConnected, 8, 200.0, 0.0),
            (Ring, 8, 100.0, 0.0),
            (Switch, 4, 50.0, 0.0),
        ];
        let names = ["ring", "direct", "ring", "halvingDoubling"];
        let mut config = with_zero_reduction_time(build_config_of_one_collective(
            Unaware,
            &dims,
            AllReduce,
            &names,
            1 << 30,
        ));
        (config.system.splits, config.system.active_chunks) = (64, 1);
        config.system.endpoint_delay = Some(1);
        let off = |quirks| (simulate_makespan_ns(&config, quirks) as f64 / paper - 1.0).abs();
        assert!(off("all") > 0.2, "{}", simulate_makespan_ns(&config, "all"));
        let links = "all,-fully-connected-links";
        assert!(
            off(links) < 0.001,
            "{}",
            simulate_makespan_ns(&config, links)
        );
    }
}
