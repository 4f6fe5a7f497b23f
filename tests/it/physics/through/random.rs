//! Tests random loads and stores through ports, alone and with messages and collectives.

use super::{
    MODELS, SHARED, build_remote_memory_machine, build_remote_memory_machine_at_rate,
    format_pool_through_ports, make_remote_memory_node, replay_with_and_without_closed_forms,
};
use crate::physics::lines::{
    TestTraceNode, build_collective, build_kernel, build_receive, build_send,
};
use crate::physics::rig::{build_job_from_rank_nodes, make_proptest_config};
use chakram::engine::NetworkModel;
use chakram::machine::ChunkCountOrderAndOverlap;
use chakram::trace::CollectiveKind as K;
use proptest::prelude::*;
use std::num::NonZeroU32;
use testkit::port_chunks::{self, NpuLoadOrStore, PortMessage, PortTestMessagesAndAccesses};

/// Returns rates in ps per byte that correspond to whole bytes per second.
fn ps_per_byte_strategy() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1_u64, 2, 4, 5, 8, 10, 16, 20, 25, 32, 40, 50])
}

proptest! {
    #![proptest_config(make_proptest_config(400))]

    /// NPUs in nodes share `groups` memories behind `switches`. Each NPU has one or two equal accesses, and random NPUs
    /// exchange messages at random times.
    #[test]
    fn memory_access_chunks_and_messages_take_turns_as_in_a_plain_simulator(
        shape in (1_u64..4, 1_u64..4, 1_u64..3, 1_u64..3),
        rates in (ps_per_byte_strategy(), ps_per_byte_strategy(), ps_per_byte_strategy()),
        pattern in prop::sample::select(vec![
            vec![false], vec![true], vec![false, true], vec![false, false], vec![true, true],
        ]),
        sides in prop::collection::vec(any::<bool>(), 16),
        (chunk, chunks) in (1_u64..40, 1_u64..12),
        latencies in (0_u64..3, 0_u64..3),
        messages in prop::collection::vec((0_u64..3000, any::<u64>(), 1_u64..400), 0..24),
    ) {
        let (nodes, per_node, groups, switches) = shape;
        let (memory, node, port) = rates;
        let npus = nodes * per_node;
        prop_assume!(npus > 1);
        // Each NPU's single access may be a load or a store.
        let ways = |npu: u64| match pattern.len() {
            1 => vec![sides[npu as usize]],
            _ => pattern.clone(),
        };
        let all: Vec<NpuLoadOrStore> = (0..npus)
            .flat_map(|npu| ways(npu).into_iter().map(move |store| NpuLoadOrStore { npu: npu as usize, store }))
            .collect();
        // A piece is a chunk of every access: all groups send `chunk` bytes to all NPUs over each
        // of their links.
        let piece = chunk * 1000 * groups * switches;
        let times = [
            piece * all.len() as u64 * memory / groups,
            piece * (all.len() as u64 / nodes) * node,
        ];
        let alike = if pattern.len() == 2 && pattern[0] == pattern[1] { 2 } else { 1 };
        let apart = times[0].max(times[1]).max(alike * piece * port);
        let (pool_ns, link_ns) = (latencies.0 * 300, latencies.1 * 70);
        let rate = |ps: u64| 1_000_000_000_000 / ps;
        let text = format!(
            "attachment = \"hierarchical\"\ngroups = {groups}\ngroup_bandwidth = \"{} B/s\"\n\
             out_switches = {switches}\nnpus_per_node = {per_node}\nnode_bandwidth = \"{} B/s\"\n\
             through = \"d\"\nchunk = \"{} B\"\nlatency = \"{pool_ns} ns\"",
            rate(memory), rate(node), chunk * 1000 * npus
        );
        let machine = build_remote_memory_machine(npus as u32, ("switch", port, link_ns), &text);
        let messages: Vec<PortMessage> = messages
            .into_iter()
            .map(|(at, ends, kb)| {
                let from = ends % npus;
                let to = (from + 1 + ends / npus % (npus - 1)) % npus;
                // Messages often start at the same time as a chunk.
                let at = at * 1000 * if ends & 1 << 40 > 0 { (apart / 3000).max(1) } else { 1 };
                PortMessage { at, from: from as usize, to: to as usize, takes: kb * 100 * port }
            })
            .collect();
        let mut ranks = vec![Vec::new(); npus as usize];
        for of in &all {
            let lane = 1 + ranks[of.npu].len() as i64;
            ranks[of.npu].push(make_remote_memory_node(of.store, piece * chunks).on_lane(lane));
        }
        let mut ids = Vec::new();
        for (tag, message) in messages.iter().enumerate() {
            let lane = 10 + tag as i64;
            let bytes = message.takes / port;
            ranks[message.from].push(build_send(message.to as u32, bytes).tag(tag as i32).delayed(message.at / 1000).on_lane(lane));
            ranks[message.to].push(build_receive(message.from as u32, bytes).tag(tag as i32));
            ids.push(ranks[message.to].len() as u32);
        }
        let workload = build_job_from_rank_nodes(&ranks, &[]);
        let quiet = {
            let lines: Vec<Vec<TestTraceNode>> = ranks.iter().map(|r| r[..pattern.len()].to_vec()).collect();
            build_job_from_rank_nodes(&lines, &[])
        };
        // The pipeline's formula adds the time of the stream and one chunk's time in all stages except the longest.
        let fill = times[0] + times[1] + alike * piece * port - apart;
        let formula = (pool_ns + link_ns) * 1000 + chunks * apart + fill;
        prop_assert_eq!(replay_with_and_without_closed_forms(&quiet, &machine, NetworkModel::ContentionFree).makespan_ps(), formula);
        for network in SHARED {
            prop_assert_eq!(replay_with_and_without_closed_forms(&quiet, &machine, network).makespan_ps(), formula, "{}", network);
            let expected = port_chunks::access_and_message_end_times(&PortTestMessagesAndAccesses {
                npus: npus as usize,
                latency: link_ns * 1000,
                last_link_first: network == NetworkModel::Ports,
                accesses: all.clone(),
                messages: messages.clone(),
                pool_latency: pool_ns * 1000,
                stages: times.to_vec(),
                port: piece * port,
                apart,
                chunks,
            });
            let replay = replay_with_and_without_closed_forms(&workload, &machine, network);
            let mut seen = vec![0; npus as usize];
            let found: Vec<u64> = all
                .iter()
                .map(|access| {
                    seen[access.npu] += 1;
                    replay.node_end_ps(access.npu as u32, seen[access.npu])
                })
                .collect();
            prop_assert_eq!(found, expected.0, "{}", network);
            let arrived: Vec<u64> = messages.iter().zip(&ids).map(|(m, &id)| replay.node_end_ps(m.to as u32, id)).collect();
            prop_assert_eq!(arrived, expected.1, "{}", network);
        }
    }

    /// For all rates, sizes and start times, an access by a single NPU without contention ends when the pipeline's
    /// formula says. The exceptions are a last chunk that is smaller in the port, and two roundings.
    #[test]
    fn an_uncontended_access_ends_as_the_pipeline_formula_says(
        rates in (1_u64..900, 1_u64..900, 1_u64..900),
        (chunk, bytes) in (1_u64..100_000, 0_u64..3_000_000),
        at in 0_u64..1000,
        store: bool,
        fully: bool,
    ) {
        let (memory, node, port) = rates;
        let text = format!(
            "attachment = \"switch\"\nlevel = [{{ fan_in = 2, bandwidth = \"{node} GB/s\" }}]\ngroups = 1\n\
             group_bandwidth = \"{memory} GB/s\"\nthrough = \"d\"\nchunk = \"{} B\"\nlatency = \"9 ns\"",
            2 * chunk
        );
        prop_assume!(bytes / chunk < 20_000);
        let shape = if fully { "fully_connected" } else { "switch" };
        let machine = build_remote_memory_machine_at_rate(2, (shape, port * 1_000_000_000, 3), &text);
        let ranks = [vec![make_remote_memory_node(store, bytes).delayed(at)], Vec::new()];
        let [alone, ports, links] = MODELS.map(|m| replay_with_and_without_closed_forms(&build_job_from_rank_nodes(&ranks, &[]), &machine, m).makespan_ps() - at * 1000);
        let piece = chunk.min(bytes) as f64;
        let times = [memory, node, port].map(|gb| piece * 1000.0 / gb as f64);
        let longest = times.iter().copied().fold(0.0, f64::max);
        let slowest = memory.min(node).min(port) as f64;
        let formula = 12_000.0 + bytes as f64 * 1000.0 / slowest + times.iter().sum::<f64>() - longest;
        prop_assert!((alone as f64 - formula).abs() <= 1.01, "{alone} {formula}");
        prop_assert_eq!(ports, links);
        let lacks = (chunk - 1 - (bytes + chunk - 1) % chunk) as f64 * 1000.0 / port as f64;
        let off = formula - ports as f64;
        let most = if bytes < chunk { 0.0 } else { lacks };
        prop_assert!(-2.0 <= off && off <= most + 2.0, "{ports}, off by {off} of {most}");
    }
}

/// If collectives, messages, loads and stores often coincide, all ends are the same with and without closed forms. Some
/// closed forms are used and others are invalidated.
#[test]
fn closed_forms_beside_loads_change_no_result() {
    let mut dice = Dice(11);
    let (mut closed, mut unfolded) = (0, 0);
    for case in 0..300 {
        let npus = 2 + dice.below(5) as u32;
        let shape = ["switch", "fully_connected"][dice.below(2) as usize];
        let port = [1, 10, 20][dice.below(3) as usize];
        let text = match dice.below(3) {
            0 => "attachment = \"pool\"\nbandwidth = \"50 GB/s\"\nthrough = \"d\"\nchunk = \"3 kB\"\nlatency = \"0\"".to_owned(),
            _ => format_pool_through_ports(npus, [1, 5, 10, 20][dice.below(4) as usize]),
        };
        let machine = build_remote_memory_machine(npus, (shape, port, 100 * dice.below(3)), &text);
        let chunks = [1, 1, 3][dice.below(3) as usize];
        let machine = machine.with_chunking(ChunkCountOrderAndOverlap {
            chunks: NonZeroU32::new(chunks),
            ..ChunkCountOrderAndOverlap::default()
        });
        let mut ranks = vec![Vec::new(); npus as usize];
        for lane in 0..1 + dice.below(3) as i64 {
            let bytes = 240 * (1 + dice.below(40)) * u64::from(npus);
            let kind = [K::AllReduce, K::AllGather, K::AllToAll][dice.below(3) as usize];
            let at = 100 * dice.below(60);
            for lines in &mut ranks {
                lines.push(build_kernel(at).on_lane(20 + lane));
                let after = [lines.len() as u64];
                lines.push(
                    build_collective(kind, bytes)
                        .after(&after)
                        .on_lane(40 + lane),
                );
            }
        }
        for lane in 0..dice.below(4) as i64 {
            let lines = &mut ranks[dice.below(npus.into()) as usize];
            let (bytes, at) = (1000 * dice.below(100), 100 * dice.below(80));
            lines.push(
                make_remote_memory_node(dice.below(2) > 0, bytes)
                    .delayed(at)
                    .on_lane(60 + lane),
            );
        }
        let from = dice.below(npus.into()) as u32;
        let to = (from + 1) % npus;
        ranks[from as usize].push(
            build_send(to, 20_000)
                .delayed(100 * dice.below(60))
                .on_lane(80),
        );
        ranks[to as usize].push(build_receive(from, 20_000));
        for network in SHARED {
            let workload = build_job_from_rank_nodes(&ranks, &[]);
            let outcome =
                replay_with_and_without_closed_forms(&workload, &machine, network).outcome;
            assert!(outcome.nodes > 0, "{case}");
            closed += outcome.closed;
            unfolded += outcome.unfolded;
        }
    }
    assert!(
        closed > 100 && unfolded > 50,
        "{closed} closed, {unfolded} unfolded"
    );
}

/// A simple random number generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }
}
