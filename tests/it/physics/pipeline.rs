//! Compares collectives in chunks, in closed form and with messages, with a plain pipeline.

use super::rig::{
    Dim, build_machine_from_dims, make_dim_with_fixed_link_speed, make_proptest_config,
    make_stepwise_options, replay_and_log, replay_with,
};
use chakram::engine::{CompiledReplay, ReplayOptions};
use chakram::generate::{CheckedWorkloadPattern, CollectivePattern, WorkloadPattern};
use chakram::machine::{
    ChunkCountOrderAndOverlap, CollectiveAlgorithm, DimensionVisitOrder, Machine,
    WaitingChunkPriority,
};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use chakram::units::Span;
use chakram::workload::Workload;
use proptest::prelude::*;
use std::num::NonZeroU32;

fn make_nonzero_u32(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

pub fn make_chunking_settings(
    chunks: u32,
    active: u32,
    inter: DimensionVisitOrder,
    intra: WaitingChunkPriority,
) -> ChunkCountOrderAndOverlap {
    ChunkCountOrderAndOverlap {
        chunks: Some(make_nonzero_u32(chunks)),
        active: make_nonzero_u32(active),
        inter,
        intra,
    }
}

pub fn build_skewed_collective(kind: K, bytes: u64, ranks: u32, skew_ns: u64) -> Workload {
    let mut options = CollectivePattern::new(kind, bytes, ranks);
    options.skew = Span::from_ns(skew_ns);
    let job = CheckedWorkloadPattern::new(WorkloadPattern::Collective(options)).unwrap();
    job.build_workload().unwrap()
}

/// Returns a switch of `size` NPUs without latency.
pub fn make_switch_dim_without_latency(size: u32, ps_per_byte: u64) -> Dim {
    Dim {
        ps_per_byte,
        link_ns: 0,
        ..make_dim_with_fixed_link_speed(DimensionShape::Switch, size, CollectiveAlgorithm::Direct)
    }
}

/// Returns the visits of a chunk of `bytes`, each with its dimension and its time in picoseconds. Every share is a
/// whole number of bytes. A ring takes n - 1 times the latency plus the time of a share; a direct exchange takes the
/// latency only once.
fn list_dimension_times_of_collective_chunk(
    dims: &[Dim],
    kind: K,
    bytes: u64,
    order: &[usize],
) -> Vec<(usize, u64)> {
    let stage = |d: usize, bytes: u64| {
        let Dim { size, .. } = dims[d];
        let hops = if dims[d].shape == DimensionShape::Switch {
            2
        } else {
            1
        };
        let latency = hops * dims[d].link_ns * 1000;
        let (others, share) = (u64::from(size) - 1, bytes / u64::from(size));
        assert_eq!(share * u64::from(size), bytes, "shares are whole");
        let share = share * dims[d].ps_per_byte;
        match dims[d].algorithm {
            CollectiveAlgorithm::Ring => (d, others * (latency + share)),
            _ => (d, latency + others * share),
        }
    };
    let mut left = bytes;
    let mut out = Vec::new();
    for &d in order {
        out.push(stage(d, left));
        left /= u64::from(dims[d].size);
    }
    let back: Vec<_> = out.iter().rev().copied().collect();
    match kind {
        K::AllReduce => out.into_iter().chain(back).collect(),
        K::ReduceScatter => out,
        K::AllGather => back,
        _ => unreachable!("not asked for"),
    }
}

/// Returns the orders that Themis's greedy rule chooses, in exact fractions over a common
/// denominator, and the size of each chunk in 256ths of an equal chunk. The sizes differ only if
/// `equal` asks for chunks that make the loads equal.
fn plan_themis_orders(dims: &[Dim], chunks: u32, equal: bool) -> Vec<(u64, Vec<usize>)> {
    let product: u64 = dims.iter().map(|d| u64::from(d.size)).product();
    let mut loads = vec![0_u64; dims.len()];
    let mut all = Vec::new();
    let mut left = 256 * u64::from(chunks);
    while left > 0 {
        let mut order: Vec<usize> = (0..dims.len()).collect();
        for i in 0..order.len() {
            for j in i + 1..order.len() {
                let (a, b) = (order[i], order[j]);
                if (loads[b], b) < (loads[a], a) {
                    order.swap(i, j);
                }
            }
        }
        // A chunk has `256 product` parts, so a sixteenth of it has `16 product`.
        let load = |d: usize, parts: u64| {
            parts * (u64::from(dims[d].size) - 1) * dims[d].ps_per_byte / u64::from(dims[d].size)
        };
        let gap = loads[order[order.len() - 1]] - loads[order[0]];
        let mut grains = 256;
        if gap < load(order[0], 16 * product) {
            order.sort_unstable();
        } else if equal {
            // Computes the time of one grain in that dimension, and the nearest number of grains.
            let one = load(order[0], product);
            grains = ((2 * gap + one) / (2 * one)).min(256);
        }
        let grains = grains.min(left);
        left -= grains;
        let mut parts = grains * product;
        for &d in &order {
            loads[d] += load(d, parts);
            parts /= u64::from(dims[d].size);
        }
        all.push((grains, order));
    }
    all
}

/// Returns the end of the last chunk if each dimension takes one chunk at a time. Whenever a visit ends, searches the
/// list of chunks for the next one.
fn compute_last_chunk_end(
    visits: &[Vec<(usize, u64)>],
    dims: usize,
    kind: K,
    intra: WaitingChunkPriority,
) -> u64 {
    // `true` if a chunk's current or next visit is an all-gather. Also keeps the direction that began last.
    let back = |done: usize, all: usize| match kind {
        K::AllReduce => 2 * done >= all,
        other => other == K::AllGather,
    };
    let mut last = vec![false; dims];
    // For each chunk: its finished visits, the start of its wait with a counter, and the end of its current visit.
    let mut done = vec![0_usize; visits.len()];
    let mut since: Vec<u64> = (0..visits.len() as u64).collect();
    let mut ends: Vec<Option<u64>> = vec![None; visits.len()];
    let mut begun = vec![0_u64; visits.len()];
    let mut clock = visits.len() as u64;
    let mut now = 0;
    loop {
        for (d, last) in last.iter_mut().enumerate() {
            let here = |c: &usize| done[*c] < visits[*c].len() && visits[*c][done[*c]].0 == d;
            if (0..visits.len()).any(|c| here(&c) && ends[c].is_some()) {
                continue;
            }
            let waiting = (0..visits.len()).filter(|c| here(c) && ends[*c].is_none());
            let next = waiting.min_by_key(|&c| match intra {
                WaitingChunkPriority::Fifo => (0, since[c]),
                WaitingChunkPriority::SmallestFirst => (visits[c][done[c]].1, since[c]),
                WaitingChunkPriority::FewestLeft => ((visits[c].len() - done[c]) as u64, since[c]),
                WaitingChunkPriority::Alternate => {
                    let same = back(done[c], visits[c].len()) == *last;
                    (u64::from(same), since[c])
                }
            });
            if let Some(c) = next {
                *last = back(done[c], visits[c].len());
                ends[c] = Some(now + visits[c][done[c]].1);
                clock += 1;
                begun[c] = clock;
            }
        }
        let running = (0..visits.len()).filter(|&c| ends[c].is_some());
        let Some(first) = running.min_by_key(|&c| (ends[c], begun[c])) else {
            return now;
        };
        now = ends[first].take().unwrap();
        done[first] += 1;
        clock += 1;
        since[first] = clock;
    }
}

pub fn dims_strategy() -> impl Strategy<Value = Vec<Dim>> {
    let one = (
        prop::sample::select(vec![
            DimensionShape::Ring,
            DimensionShape::FullyConnected,
            DimensionShape::Switch,
        ]),
        2_u32..5,
        1_u64..40,
        0_u64..3,
        any::<bool>(),
    );
    let one = one.prop_map(|(shape, size, ps_per_byte, link_ns, ring)| Dim {
        ps_per_byte: [1, 2, 4, 5, 8, 10, 20, 25, 40, 50][ps_per_byte as usize % 10],
        link_ns: 100 * link_ns,
        ..make_dim_with_fixed_link_speed(
            shape,
            size,
            match ring || shape == DimensionShape::Ring {
                true => CollectiveAlgorithm::Ring,
                false => CollectiveAlgorithm::Direct,
            },
        )
    });
    prop::collection::vec(one, 1..4)
}

fn dimension_and_chunk_order_strategy()
-> impl Strategy<Value = (DimensionVisitOrder, WaitingChunkPriority)> {
    (
        prop::sample::select(DimensionVisitOrder::ALL.map(|(inter, _)| inter).to_vec()),
        prop::sample::select(WaitingChunkPriority::ALL.map(|(intra, _)| intra).to_vec()),
    )
}

/// Returns the buffer size for `kind` at which each of `chunks` chunks is `chunk` bytes of the whole buffer.
fn buffer_size_for_chunk_size(kind: K, chunk: u64, chunks: u32, npus: u32) -> u64 {
    let whole = chunk * u64::from(chunks);
    match kind {
        K::AllGather | K::Gather => whole / u64::from(npus),
        _ => whole,
    }
}

const KINDS: [K; 6] = [
    K::AllReduce,
    K::ReduceScatter,
    K::AllGather,
    K::AllToAll,
    K::Broadcast,
    K::Gather,
];

proptest! {
    #![proptest_config(make_proptest_config(200))]

    /// If all members start together, the closed form is used, and both the closed form and the
    /// messages agree with a plain pipeline. Chunks that balance loads lead to near ties, so all
    /// their loads are exact in binary.
    #[test]
    fn chunks_take_the_time_of_a_plain_pipeline(
        dims in dims_strategy(),
        (inter, intra) in dimension_and_chunk_order_strategy(),
        chunks in 2_u32..12,
        kind in prop::sample::select(vec![K::AllReduce, K::ReduceScatter, K::AllGather]),
        factor in 1_u64..50,
    ) {
        let flexible = inter == DimensionVisitOrder::ThemisFlex;
        let binary = |d: Dim| Dim {
            size: if flexible { d.size & !1 } else { d.size },
            ps_per_byte: if flexible { d.ps_per_byte.next_power_of_two() } else { d.ps_per_byte },
            ..d
        };
        let dims: Vec<Dim> = dims.into_iter().map(binary).collect();
        let npus: u32 = dims.iter().map(|d| d.size).product();
        let chunk = 256 * u64::from(npus) * factor;
        let workload = build_skewed_collective(kind, buffer_size_for_chunk_size(kind, chunk, chunks, npus), npus, 0);
        let machine = build_machine_from_dims(&dims).with_chunking(make_chunking_settings(chunks, 1, inter, intra));
        let orders = match inter {
            DimensionVisitOrder::Themis | DimensionVisitOrder::ThemisFlex => plan_themis_orders(&dims, chunks, flexible),
            _ => (0..chunks as usize).map(|c| {
                let turn = if inter == DimensionVisitOrder::RoundRobin { c } else { 0 };
                (256, (0..dims.len()).map(|d| (d + turn) % dims.len()).collect())
            }).collect(),
        };
        let visits = orders.iter().map(|(grains, order)| list_dimension_times_of_collective_chunk(&dims, kind, chunk / 256 * grains, order));
        let visits: Vec<_> = visits.collect();
        let want = compute_last_chunk_end(&visits, dims.len(), kind, intra);
        let closed = replay_and_log(&workload, &machine);
        prop_assert_eq!((closed.outcome.closed, closed.outcome.messages), (1, 0));
        let stepped = replay_with(&workload, &machine, &make_stepwise_options());
        prop_assert_eq!(stepped.outcome.stepwise, 1);
        prop_assert_eq!((closed.makespan_ps(), stepped.makespan_ps()), (want, want));
    }

    /// If members are late, no member waits for ever, none ends too early, and neighbours on a ring
    /// are never later than if all had started with the last member.
    #[test]
    fn late_members_neither_wait_forever_nor_end_too_early(
        dims in dims_strategy(),
        (inter, intra) in dimension_and_chunk_order_strategy(),
        chunks in 2_u32..9,
        active in 1_u32..4,
        kind in prop::sample::select(KINDS.to_vec()),
        algorithm in prop::sample::select(CollectiveAlgorithm::ALL.to_vec()),
        skew in 1_u64..3000,
    ) {
        let (algorithm, _) = algorithm;
        let dims: Vec<Dim> = dims.into_iter().map(|d| Dim { algorithm, ..d }).collect();
        let npus: u32 = dims.iter().map(|d| d.size).product();
        let bytes = buffer_size_for_chunk_size(kind, 48 * u64::from(npus), chunks, npus);
        let machine = build_machine_from_dims(&dims).with_chunking(make_chunking_settings(chunks, active, inter, intra));
        let together = replay_with(&build_skewed_collective(kind, bytes, npus, 0), &machine, &make_stepwise_options()).makespan_ps();
        let late = replay_and_log(&build_skewed_collective(kind, bytes, npus, skew), &machine);
        prop_assert_eq!((late.outcome.closed, late.outcome.stepwise), (0, 1));
        prop_assert_eq!(late.outcome.nodes, 2 * u64::from(npus) - 1);
        let last = u64::from(npus - 1) * skew * 1000;
        prop_assert!(late.makespan_ps() >= last);
        // Ring times are sums and maxima of earlier times, so a later start never makes an end earlier.
        if active == 1 && algorithm == CollectiveAlgorithm::Ring {
            prop_assert!(late.makespan_ps() >= together);
            prop_assert!(late.makespan_ps() <= last + together, "{} > {last} + {together}", late.makespan_ps());
        }
    }
}

/// Returns two dimensions of size 2 with 10 and 20 ps/B, without latency, with direct exchanges.
/// The tests send 8,000 B in 4 chunks of 2,000 B. The reduce-scatter of a chunk takes 1,000 B · 10
/// = 10 ns, then 500 B · 20 = 10 ns, and the all-gather takes the same.
fn build_two_dim_machine_with_chunks(chunks: u32, active: u32) -> Machine {
    let dims = [10, 20].map(|ps_per_byte| make_switch_dim_without_latency(2, ps_per_byte));
    build_machine_from_dims(&dims).with_chunking(make_chunking_settings(
        chunks,
        active,
        DimensionVisitOrder::Ascending,
        WaitingChunkPriority::Fifo,
    ))
}

#[test]
fn four_chunks_take_the_time_computed_by_hand() {
    let workload = build_skewed_collective(K::AllReduce, 8000, 4, 0);
    // One chunk takes 40 + 40 + 40 + 40 ns.
    assert_eq!(
        replay_and_log(&workload, &build_two_dim_machine_with_chunks(1, 1)).makespan_ps(),
        160_000
    );
    // Dimension 0 sends the chunks out at 0-10, 10-20, 20-30 and 30-40. Dimension 1 serves first
    // come, first served. Chunk 0 goes out at 10-20. Chunk 0's way back and chunk 1's way out both
    // arrive at 20, and the chunk that began earlier goes first: 0 back 20-30, 1 out 30-40, 2 out
    // 40-50, 1 back 50-60, 3 out 60-70, 2 back 70-80, 3 back 80-90, or an equivalent order. These
    // are 8 stages of 10 ns without a gap, 10-90. The last chunk goes back in dimension 0 at
    // 90-100.
    assert_eq!(
        replay_and_log(&workload, &build_two_dim_machine_with_chunks(4, 1)).makespan_ps(),
        100_000
    );
    assert_eq!(
        replay_with(
            &workload,
            &build_two_dim_machine_with_chunks(4, 1),
            &make_stepwise_options()
        )
        .makespan_ps(),
        100_000
    );
    // Two concurrent chunks share a port's rate: each dimension has 8 stages of 10 ns, plus at least 10 ns while the
    // pipeline fills and drains.
    let two = replay_and_log(&workload, &build_two_dim_machine_with_chunks(4, 2));
    assert_eq!(two.outcome.stepwise, 1);
    assert!(
        (100_000..=120_000).contains(&two.makespan_ps()),
        "{}",
        two.makespan_ps()
    );
}

#[test]
fn a_collective_of_fewer_bytes_than_chunks_has_as_many_chunks_as_bytes() {
    // 3 bytes in 3 chunks of 1 B over two dimensions of size 2 move halves and quarters of bytes: 1/2 · 10 and 1/4 · 20
    // = 5 ps each way. From 5 ps on, dimension 1 is busy for 6 stages, and then the last chunk goes back: 5 + 30 + 5.
    let workload = build_skewed_collective(K::AllReduce, 3, 4, 0);
    assert_eq!(
        replay_and_log(&workload, &build_two_dim_machine_with_chunks(64, 1)).makespan_ps(),
        40
    );
    // An empty buffer is one chunk.
    assert_eq!(
        replay_and_log(
            &build_skewed_collective(K::Barrier, 0, 4, 0),
            &build_two_dim_machine_with_chunks(64, 1)
        )
        .makespan_ps(),
        0
    );
}

/// Eight members are on a switch without latency, and S = 640,000 B at 20 ps/B takes t = 12,800 ns. In one tree, an
/// inner member receives S from each of two children and S from its parent, so its port is occupied for 3t. Two trees
/// halve the data. As an inner member of one tree, a member receives S/2 three times; as a leaf of the other tree, it
/// receives S/2 once. Each member sends as much as it receives, so the collective takes 2t. Chunks add the time to fill
/// and drain the trees: at most the time that a chunk of S/64 takes for a few levels. Without chunks, the levels follow
/// one another.
#[test]
fn tree_collectives_are_faster_with_chunks() {
    let t = 12_800_000;
    let time = |algorithm, chunks| {
        let flat = Dim {
            link_ns: 0,
            ..make_dim_with_fixed_link_speed(DimensionShape::Switch, 8, algorithm)
        };
        let machine = build_machine_from_dims(&[flat]);
        let machine = machine.with_chunking(make_chunking_settings(
            chunks,
            1,
            DimensionVisitOrder::Ascending,
            WaitingChunkPriority::Fifo,
        ));
        let replay = replay_and_log(
            &build_skewed_collective(K::AllReduce, 640_000, 8, 0),
            &machine,
        );
        assert_eq!(replay.outcome.stepwise, 1);
        replay.makespan_ps()
    };
    use CollectiveAlgorithm::{DoubleBinaryTree, MemberMessageTree};
    let (one, two) = (time(MemberMessageTree, 64), time(DoubleBinaryTree, 64));
    assert!((3 * t..3 * t + t / 2).contains(&one), "{one}");
    assert!((2 * t..2 * t + t / 2).contains(&two), "{two}");
    assert!(time(MemberMessageTree, 1) > one && time(DoubleBinaryTree, 1) > one);
}

/// If a collective must be simulated and its messages would not fit in memory, this is an error; the closed form needs
/// no memory.
#[test]
fn collectives_whose_messages_exceed_memory_are_refused() {
    let ranks = 1 << 17;
    let workload = build_skewed_collective(K::AllReduce, 1 << 30, ranks, 0);
    let flat = |algorithm| {
        let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
            DimensionShape::Switch,
            ranks,
            algorithm,
        )]);
        machine.with_chunking(make_chunking_settings(
            4096,
            1,
            DimensionVisitOrder::Ascending,
            WaitingChunkPriority::Fifo,
        ))
    };
    assert_eq!(
        replay_and_log(&workload, &flat(CollectiveAlgorithm::Direct))
            .outcome
            .closed,
        1
    );
    let machine = flat(CollectiveAlgorithm::MemberMessageTree);
    let prepared = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap();
    let error = prepared.run(()).unwrap_err().to_string();
    assert!(error.contains("131072 members in 4096 chunks"), "{error}");
}
