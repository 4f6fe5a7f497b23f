//! Tests remote memory that is accessed through the network's ports. Compares single accesses with the pipeline's
//! formula, accesses with messages and collectives with sums by hand, and random jobs with a simulator of successive
//! servers (`random`).

use super::lines::{
    TestTraceNode, build_collective, build_kernel, build_node, build_receive, build_send,
};
use super::loads::{self, build_remote_load};
use super::rig::{ReplayOutcomeAndLog, build_job_from_rank_nodes, replay_with};
use chakram::engine::{CommunicationDurationSource, CompiledReplay, NetworkModel, ReplayOptions};
use chakram::machine::Machine;
use chakram::trace::{CollectiveKind as K, MemoryLocation, Op};
use chakram::workload::Workload;

mod random;

const MODELS: [NetworkModel; 3] = [
    NetworkModel::ContentionFree,
    NetworkModel::Ports,
    NetworkModel::Links,
];
const SHARED: [NetworkModel; 2] = [NetworkModel::Ports, NetworkModel::Links];

/// Returns a machine with one dimension `d` of `npus` NPUs, with these ps per byte and this
/// latency, and this remote memory.
fn build_remote_memory_machine(
    npus: u32,
    (shape, ps, ns): (&str, u64, u64),
    remote: &str,
) -> Machine {
    build_remote_memory_machine_at_rate(npus, (shape, 1_000_000_000_000 / ps, ns), remote)
}

/// Returns such a machine with the rate in bytes per second.
fn build_remote_memory_machine_at_rate(
    npus: u32,
    (shape, rate, ns): (&str, u64, u64),
    remote: &str,
) -> Machine {
    loads::build_memory_machine(
        npus,
        (shape, rate, ns, "direct"),
        &[("remote_memory", remote)],
    )
}

/// Returns a memory with `ps` per byte that is reached through the ports of `d` and sends 10 kB to each of `npus` NPUs
/// concurrently.
fn format_pool_through_ports(npus: u32, ps: u64) -> String {
    let (rate, chunk) = (1000 / ps, 10 * npus);
    format!(
        r#"attachment = "switch"
level = []
groups = 1
group_bandwidth = "{rate} GB/s"
through = "d"
chunk = "{chunk} kB"
latency = "0""#
    )
}

fn make_remote_memory_node(store: bool, bytes: u64) -> TestTraceNode {
    loads::build_memory_access(MemoryLocation::Remote, store, bytes)
}

fn make_network_options(network: NetworkModel, stepwise: bool) -> ReplayOptions {
    ReplayOptions::default_with_changes(|o| {
        o.network = Some(network);
        o.stepwise = stepwise;
    })
}

/// Returns the completions in order of time, and requires that they are the same with and without
/// closed forms.
#[track_caller]
fn replay_with_and_without_closed_forms(
    workload: &Workload,
    machine: &Machine,
    network: NetworkModel,
) -> ReplayOutcomeAndLog {
    let events = |replay: &ReplayOutcomeAndLog| {
        let mut events = replay.log.events.clone();
        events.sort_unstable();
        events
    };
    let folded = replay_with(workload, machine, &make_network_options(network, false));
    let stepped = replay_with(workload, machine, &make_network_options(network, true));
    assert_eq!(events(&folded), events(&stepped), "{network}");
    folded
}

/// Two NPUs all-reduce 40 kB at 10 ps/B with 100 ns per link. Each sends 20 kB at 0, which leave in 200 ns and enter
/// from 200 to 400, and then its reduced half, until 800 ns. The loads move 80 kB in chunks of 10 kB, each of which
/// takes 50 ns in a memory of 5 ps/B and 100 ns in a port. Chunk k reaches the fabric at 50 ns + (k − 1) 100, and the
/// port 100 ns later; alone, the last chunk has entered at 950 ns.
///
/// With `ports`, in nanoseconds, chunk 1 reaches the port at 150 and has entered at 250. The
/// message reaches it at 200 and has entered at 450; chunks 2 to 5 reach it at 250, 350, 450 and
/// 550 and have entered by 850. NPU 1, which receives no load, had its half at 400 and sent its
/// sum, which reaches the port at 600 and has entered by 1,050. Chunks 6 to 8 have entered by
/// 1,350. NPU 0 sends its sum at 450, and NPU 1 has this sum at 850.
///
/// With `links` the server is the switch's downward link. The message reaches it at 100, occupies
/// it until 300, and arrives at 400, as it would alone. Chunks 1 to 4 reach it from 150 to 450 and
/// occupy it until 700. NPU 1's sum left at 400, reaches it at 500, occupies it until 900 and
/// reaches NPU 0 at 1,000. Chunks 5 to 8 occupy it until 1,300. NPU 0 sent its sum at 400, and NPU
/// 1 has this sum at 800.
#[test]
fn a_load_and_an_all_reduce_share_a_port() {
    let machine =
        build_remote_memory_machine(2, ("switch", 10, 100), &format_pool_through_ports(2, 5));
    let reduce = build_collective(K::AllReduce, 40_000).on_lane(1);
    let both = build_job_from_rank_nodes(
        &[
            vec![reduce.clone(), build_remote_load(80_000).on_lane(2)],
            vec![reduce.clone()],
        ],
        &[],
    );
    for (network, expected) in [
        (NetworkModel::ContentionFree, [950, 800, 800]),
        (NetworkModel::Ports, [1350, 1050, 850]),
        (NetworkModel::Links, [1300, 1000, 800]),
    ] {
        let replay = replay_with_and_without_closed_forms(&both, &machine, network);
        let ends = [
            replay.node_end_ps(0, 2),
            replay.node_end_ps(0, 1),
            replay.node_end_ps(1, 1),
        ];
        assert_eq!(ends, expected.map(|ns| ns * 1000), "{network}");
    }
    // A load that starts in the middle of the collective, at 300 ns, invalidates the closed form. The load's chunks
    // reach the port from 450 on, and find it free until 600: chunk 1 has entered at 550, and chunk 2 at 650. The sum
    // reaches it at 600 and has entered at 850; chunks 3 to 8 enter until 1,450. With `links` the sum reaches the link
    // at 500. Chunk 1 has passed the link at 550, the sum at 750, to arrive at 850, and the other chunks pass until
    // 1,450.
    let late = [
        build_kernel(300).on_lane(3),
        build_remote_load(80_000).on_lane(2).after(&[2]),
    ];
    let late = build_job_from_rank_nodes(
        &[[vec![reduce.clone()], late.to_vec()].concat(), vec![reduce]],
        &[],
    );
    for network in SHARED {
        let replay = replay_with_and_without_closed_forms(&late, &machine, network);
        let outcome = &replay.outcome;
        assert_eq!((outcome.closed, outcome.unfolded), (0, 1));
        let ends = [
            replay.node_end_ps(0, 3),
            replay.node_end_ps(0, 1),
            replay.node_end_ps(1, 1),
        ];
        assert_eq!(ends, [1_450_000, 850_000, 800_000], "{network}");
    }
}

/// A collective that begins during a load is simulated with messages; one that begins when the load ends uses its
/// closed form. The load of 80 kB above ends at 950 ns.
#[test]
fn a_load_under_way_keeps_closed_forms_off_its_port() {
    let machine =
        build_remote_memory_machine(2, ("switch", 10, 100), &format_pool_through_ports(2, 5));
    for network in SHARED {
        for (ns, closed) in [(949, 0), (950, 1)] {
            let reduce = [
                build_kernel(ns).on_lane(3),
                build_collective(K::AllReduce, 40_000)
                    .after(&[1])
                    .on_lane(1),
            ];
            let mut ranks = vec![reduce.to_vec(); 2];
            ranks[0].push(build_remote_load(80_000).on_lane(2));
            let replay = replay_with_and_without_closed_forms(
                &build_job_from_rank_nodes(&ranks, &[]),
                &machine,
                network,
            );
            assert_eq!(replay.outcome.closed, closed, "{network} {ns}");
            let ends = [replay.node_end_ps(0, 3), replay.node_end_ps(0, 2)];
            assert_eq!(ends, [950_000, (ns + 800) * 1000]);
        }
    }
}

/// 40 kB in 4 chunks and a message of 30 kB both leave NPU 0 at 0. The message occupies the port
/// until 300 ns.
///
/// With a memory of 5 ps/B, chunks reach the port 100 ns apart, at the port's own rate, and wait for 300 ns each. The
/// last chunk has left at 700, and is stored at 850, after 50 ns in the memory and 100 ns of latency; alone it is
/// stored at 550. With a memory of 20 ps/B, chunks come 200 ns apart, and have left at 400, 500, 600 and 700. After the
/// first chunk, the memory takes 200 ns for each, until 1,200, and with 100 ns of latency the end is 1,300; alone it is
/// 1,000.
#[test]
fn a_store_waits_for_a_send() {
    for (ps, alone, expected) in [(5, 550, 850), (20, 1000, 1300)] {
        let machine =
            build_remote_memory_machine(2, ("switch", 10, 100), &format_pool_through_ports(2, ps));
        for network in MODELS {
            let ranks = [
                vec![
                    build_send(1, 30_000).on_lane(1),
                    make_remote_memory_node(true, 40_000).on_lane(2),
                ],
                vec![build_receive(0, 30_000)],
            ];
            let replay = replay_with_and_without_closed_forms(
                &build_job_from_rank_nodes(&ranks, &[]),
                &machine,
                network,
            );
            let expected = match network {
                NetworkModel::ContentionFree => alone,
                _ => expected,
            };
            assert_eq!(replay.node_end_ps(0, 2), expected * 1000, "{network}");
            // The message reached the port first.
            assert_eq!(replay.node_end_ps(1, 1), 500_000);
            // Incoming traffic uses another server.
            let ranks = [
                vec![
                    build_send(1, 30_000).on_lane(1),
                    build_remote_load(40_000).on_lane(2),
                ],
                vec![build_receive(0, 30_000)],
            ];
            let replay = replay_with_and_without_closed_forms(
                &build_job_from_rank_nodes(&ranks, &[]),
                &machine,
                network,
            );
            assert_eq!(replay.node_end_ps(0, 2), alone * 1000);
        }
    }
}

/// The second chunk of a store of 20 kB reaches the port at 100 ns. At that instant a kernel ends, then a node that
/// takes no time, and then a message of 10 kB is sent. The message leaves first, until 200 ns, and arrives at 400. The
/// chunk waits for 100 ns and has left at 300, followed by 50 ns in the memory and 100 ns of latency.
#[test]
fn memory_chunks_enter_a_port_after_other_events_of_an_instant() {
    let machine =
        build_remote_memory_machine(2, ("switch", 10, 100), &format_pool_through_ports(2, 5));
    let ranks = [
        vec![
            make_remote_memory_node(true, 20_000).on_lane(1),
            build_kernel(100).on_lane(2),
            build_node(Op::NoOp).after(&[2]),
            build_send(1, 10_000).after(&[3]).on_lane(3),
        ],
        vec![build_receive(0, 10_000)],
    ];
    for network in SHARED {
        let replay = replay_with_and_without_closed_forms(
            &build_job_from_rank_nodes(&ranks, &[]),
            &machine,
            network,
        );
        assert_eq!(
            [replay.node_end_ps(0, 1), replay.node_end_ps(1, 1)],
            [450_000, 400_000]
        );
    }
}

/// Both NPUs load 80 kB from a memory of 5 ps/B, which takes 100 ns for one chunk of each, as the
/// ports do. Chunk k reaches the fabric at k 100 ns and the port 100 ns later; alone, the last
/// chunk has entered at 1,000.
///
/// With `ports` the message of the all-reduce and chunk 1 reach the port at 200; the message is
/// first and enters until 400. Chunks 1 to 4 reach the port until 500 and enter until 800. The
/// sums left at 400 and reach the port at 600, before chunk 5; they enter until 1,000. Chunks 5 to
/// 8 enter until 1,400. With `links` the message occupies the downward link from 100 on, before
/// chunk 1 (at 200), until 300, and arrives at 400. Chunks 1 to 3 reach the link until 400 and
/// occupy it until 600. The sums reach the link at 500, before chunk 4, occupy it until 800, and
/// arrive at 900. Chunks 4 to 8 occupy the link until 1,300.
///
/// If NPUs are fully connected, a message crosses one link less. With `links`, too, it reaches the receiver's end of
/// the link at 100, and enters until 300. The sum reaches it at 400, before chunk 3, and enters from 500 until 700;
/// chunks 3 to 8 enter until 1,300.
#[test]
fn two_loads_and_a_collective_share_their_ports() {
    for (shape, network, expected) in [
        ("switch", NetworkModel::ContentionFree, [1000, 800]),
        ("switch", NetworkModel::Ports, [1400, 1000]),
        ("switch", NetworkModel::Links, [1300, 900]),
        ("fully_connected", NetworkModel::ContentionFree, [1000, 600]),
        ("fully_connected", NetworkModel::Ports, [1300, 700]),
        ("fully_connected", NetworkModel::Links, [1300, 700]),
    ] {
        let machine =
            build_remote_memory_machine(2, (shape, 10, 100), &format_pool_through_ports(2, 5));
        let rank = vec![
            build_collective(K::AllReduce, 40_000).on_lane(1),
            build_remote_load(80_000).on_lane(2),
        ];
        let replay = replay_with_and_without_closed_forms(
            &build_job_from_rank_nodes(&[rank.clone(), rank], &[]),
            &machine,
            network,
        );
        for rank in 0..2 {
            let ends = [replay.node_end_ps(rank, 2), replay.node_end_ps(rank, 1)];
            assert_eq!(ends, expected.map(|ns| ns * 1000), "{shape} {network}");
        }
    }
}

/// Each of 4 NPUs gathers 10 kB, so each receives 40 kB. The pool's 4 chunks of 10 kB consist of
/// 2.5 kB for each of the 4 accesses, and a port of 10 ps/B takes 100 ns for one chunk. The memory
/// reads each chunk of 10 kB once, at 2 ps/B: 20 ns. Alone, the access takes 20 + 4 x 100 ns, and
/// 100 ns for the link.
///
/// In an all-to-all of 20 kB, with 5 kB to each other NPU, messages take 50 ns and leave at 0, 50
/// and 100. With `ports` they reach the port at 200, 250 and 300. Chunk 1 reaches the port at 120
/// and enters until 220, then the first message until 270; chunk 2, at the port at 220, until 370;
/// messages 2 and 3 until 470; chunks 3 and 4, at the port at 320 and 420, until 670. With `links`
/// the messages reach the link at 100, 150 and 200. The first occupies it until 150, chunk 1 until
/// 250, the other messages until 350, and chunks 2 to 4 until 650. With stores, the messages
/// leave first, until 150 ns, and then the chunks until 550, plus 20 + 100 ns.
#[test]
fn data_gathered_in_switches_passes_the_ports() {
    let text = format_pool_through_ports(4, 2).replace("40 kB", "10 kB");
    let machine = build_remote_memory_machine(4, ("switch", 10, 100), &text);
    for store in [false, true] {
        let gather = build_node(Op::Memory {
            store,
            place: MemoryLocation::Remote,
            bytes: 10_000,
            in_switch: true,
        });
        let alone = build_job_from_rank_nodes(&vec![vec![gather.clone()]; 4], &[]);
        for network in MODELS {
            assert_eq!(
                replay_with_and_without_closed_forms(&alone, &machine, network).makespan_ps(),
                520_000,
                "{network}"
            );
        }
        let rank = vec![
            build_collective(K::AllToAll, 20_000).on_lane(1),
            gather.on_lane(2),
        ];
        let met = build_job_from_rank_nodes(&vec![rank; 4], &[]);
        for network in SHARED {
            let expected = match (store, network) {
                (false, NetworkModel::Links) => 650_000,
                _ => 670_000,
            };
            let replay = replay_with_and_without_closed_forms(&met, &machine, network);
            for rank in 0..4 {
                assert_eq!(replay.node_end_ps(rank, 2), expected, "{network} {store}");
            }
        }
    }
}

/// The machine has a channel of 20 ps/B and a port of 10 or 40 ps/B, chunks of 10 kB, and latencies of 7 ns for the
/// channel and 100 ns for the link. 35 kB are 3.5 chunks. The pipeline's formula gives 700 ns + 100 for a chunk in the
/// port, or 1,400 + 200 for a chunk in the channel. With ports, the last chunk, which is only half full, takes only its
/// own time: 50 ns of the port after the channel. If the port is slower, this chunk waits there for the earlier chunks
/// and saves nothing; a store then takes 100 ns of the channel. A second access waits for the channel, which is
/// occupied for 707 ns or 1,407 ns.
#[test]
fn remote_memory_accesses_by_channel_also_cross_npu_ports() {
    for (ps, shared, formula, held) in [(10, [750, 750], 800, 707), (40, [1600, 1500], 1600, 1407)]
    {
        for name in ["per_npu", "pool"] {
            let remote = format!(
                "attachment = \"{name}\"\nbandwidth = \"50 GB/s\"\nthrough = \"d\"\nchunk = \"10 kB\"\n\
                 latency = \"7 ns\""
            );
            let machine = build_remote_memory_machine(2, ("fully_connected", ps, 100), &remote);
            for (network, store) in MODELS.into_iter().flat_map(|m| [(m, false), (m, true)]) {
                let access = make_remote_memory_node(store, 35_000);
                let ranks = vec![
                    vec![access.clone().on_lane(1), access.on_lane(2)],
                    Vec::new(),
                ];
                let replay = replay_with_and_without_closed_forms(
                    &build_job_from_rank_nodes(&ranks, &[]),
                    &machine,
                    network,
                );
                let one = 107
                    + match network {
                        NetworkModel::ContentionFree => formula,
                        _ => shared[usize::from(store)],
                    };
                let ends = [replay.node_end_ps(0, 1), replay.node_end_ps(0, 2)];
                assert_eq!(
                    ends,
                    [one, one + held].map(|ns| ns * 1000),
                    "{network} {ps} {store}"
                );
            }
        }
    }
}

/// Collectives that last as long as recorded do not use the network, so loads take as long as they do alone.
#[test]
fn loads_last_as_alone_if_communication_is_not_simulated() {
    let machine =
        build_remote_memory_machine(2, ("switch", 10, 100), &format_pool_through_ports(2, 5));
    let rank = |access: TestTraceNode| {
        vec![
            build_collective(K::AllReduce, 40_000).lasts(500).on_lane(1),
            access.on_lane(2),
        ]
    };
    let options = ReplayOptions::default_with_changes(|o| {
        *o = make_network_options(NetworkModel::Ports, false);
        o.comm = CommunicationDurationSource::Recorded;
    });
    let ranks = [
        rank(build_remote_load(80_000)),
        rank(make_remote_memory_node(true, 80_000)),
    ];
    let replay = replay_with(&build_job_from_rank_nodes(&ranks, &[]), &machine, &options);
    // Both share the memory, which takes 100 ns for a chunk of each: 100 + 8 x 100 and 100 ns.
    let ends = [
        replay.node_end_ps(0, 2),
        replay.node_end_ps(1, 2),
        replay.node_end_ps(0, 1),
    ];
    assert_eq!(ends, [1_000_000, 1_000_000, 500_000]);
}

#[test]
fn loads_of_too_many_chunks_are_refused_where_chunks_are_simulated() {
    let text = format_pool_through_ports(2, 5).replace("20 kB", "2 B");
    let machine = build_remote_memory_machine(2, ("switch", 10, 100), &text);
    let workload =
        |bytes| build_job_from_rank_nodes(&[vec![build_remote_load(bytes)], Vec::new()], &[]);
    let prepared = |bytes, model| {
        CompiledReplay::new(
            &workload(bytes),
            &machine,
            &make_network_options(model, false),
        )
        .map(|_| ())
        .map_err(|e| e.to_string())
    };
    // One byte per chunk gives 2^20 chunks, the maximum, and then one chunk more.
    assert_eq!(prepared(1 << 20, NetworkModel::Links), Ok(()));
    assert_eq!(
        prepared((1 << 20) + 1, NetworkModel::ContentionFree),
        Ok(())
    );
    let error = prepared((1 << 20) + 1, NetworkModel::Links).unwrap_err();
    for piece in [
        "rank 0 node 1",
        "1048577 chunks",
        "at most 1048576",
        "larger `chunk`",
    ] {
        assert!(error.contains(piece), "{error}");
    }
}
