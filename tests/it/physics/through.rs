//! Remote memory through the ports of the network: alone as the pipeline has it, and with messages and
//! collectives by hand, and at random against a simulator of servers one after another (`random`).

use super::lines::{Line, call, kernel, line, receive, send};
use super::loads::{self, load};
use super::rig::{Replay, job, replay_with};
use chakram::engine::{CommTiming, CompiledReplay, NetworkModel, ReplayOptions};
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

/// A dimension `d` for `npus` NPUs, of so many ps per byte and so much latency, and this remote memory.
fn machine(npus: u32, (shape, ps, ns): (&str, u64, u64), remote: &str) -> Machine {
    at_rate(npus, (shape, 1_000_000_000_000 / ps, ns), remote)
}

/// The same, of so many bytes per second.
fn at_rate(npus: u32, (shape, rate, ns): (&str, u64, u64), remote: &str) -> Machine {
    loads::machine(
        npus,
        (shape, rate, ns, "direct"),
        &[("remote_memory", remote)],
    )
}

/// One memory of `ps` per byte behind the ports of `d`, which sends each of `npus` NPUs 10 kB at once.
fn pool(npus: u32, ps: u64) -> String {
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

fn access(store: bool, bytes: u64) -> Line {
    loads::access(MemoryLocation::Remote, store, bytes)
}

fn options(network: NetworkModel, stepwise: bool) -> ReplayOptions {
    ReplayOptions::with(|o| {
        o.network = Some(network);
        o.stepwise = stepwise;
    })
}

/// Completions by time; closed forms or not, they are the same.
#[track_caller]
fn run(workload: &Workload, machine: &Machine, network: NetworkModel) -> Replay {
    let events = |replay: &Replay| {
        let mut events = replay.log.events.clone();
        events.sort_unstable();
        events
    };
    let folded = replay_with(workload, machine, &options(network, false));
    let stepped = replay_with(workload, machine, &options(network, true));
    assert_eq!(events(&folded), events(&stepped), "{network}");
    folded
}

/// An all-reduce of 40 kB by two NPUs at 10 ps/B with 100 ns a link: 20 kB to the other at 0, which leave in
/// 200 ns and come in from 200 to 400; then its sum back, until 800 ns. Loads of 80 kB in chunks of 10 kB,
/// which take 50 ns of a memory of 5 ps/B and 100 ns of a port: chunk k comes to the fabric at 50 ns +
/// (k − 1) 100, and to the port 100 ns later; alone the last is in at 950 ns.
///
/// With `ports`, in ns: chunk 1 is there at 150 and in at 250. The message is there at 200 and in at 450; chunks
/// 2 to 5 at 250, 350, 450 and 550: in until 850. NPU 1, to whom nothing came in between, had its half at 400 and
/// sent its sum, which is there at 600: in until 1,050. Chunks 6 to 8 follow until 1,350. NPU 0 sends its sum at
/// 450: NPU 1 has it at 850.
///
/// With `links` the server is the switch's link down, which the message comes to at 100: until 300, and is there at
/// 400, as if alone. Chunks 1 to 4 came at 150 to 450: until 700. NPU 1's sum left at 400 and is there at 500: until
/// 900, at NPU 0 at 1,000. Chunks 5 to 8: until 1,300. NPU 0 sent its sum at 400: NPU 1 has it at 800.
#[test]
fn a_load_and_an_all_reduce_share_a_port() {
    let machine = machine(2, ("switch", 10, 100), &pool(2, 5));
    let reduce = call(K::AllReduce, 40_000).on(1);
    let both = job(
        &[
            vec![reduce.clone(), load(80_000).on(2)],
            vec![reduce.clone()],
        ],
        &[],
    );
    for (network, expected) in [
        (NetworkModel::ContentionFree, [950, 800, 800]),
        (NetworkModel::Ports, [1350, 1050, 850]),
        (NetworkModel::Links, [1300, 1000, 800]),
    ] {
        let replay = run(&both, &machine, network);
        let ends = [replay.end(0, 2), replay.end(0, 1), replay.end(1, 1)];
        assert_eq!(ends, expected.map(|ns| ns * 1000), "{network}");
    }
    // Half way, at 300 ns: what was answered at once has to be taken back. The load's chunks come to the port at 450
    // and on, until 600 with nobody before them: chunk 1 is in at 550, chunk 2 at 650. The sum, there at 600, at 850;
    // chunks 3 to 8 until 1,450. With `links` the sum comes to the link at 500: chunk 1 is through at 550,
    // it at 750 and there at 850, and the rest until 1,450.
    let late = [kernel(300).on(3), load(80_000).on(2).after(&[2])];
    let late = job(
        &[[vec![reduce.clone()], late.to_vec()].concat(), vec![reduce]],
        &[],
    );
    for network in SHARED {
        let replay = run(&late, &machine, network);
        let outcome = &replay.outcome;
        assert_eq!((outcome.closed, outcome.unfolded), (0, 1));
        let ends = [replay.end(0, 3), replay.end(0, 1), replay.end(1, 1)];
        assert_eq!(ends, [1_450_000, 850_000, 800_000], "{network}");
    }
}

/// A collective that begins while a load is under way goes message by message; one that begins at its end is
/// answered at once. The load of 80 kB above ends at 950 ns.
#[test]
fn a_load_under_way_keeps_closed_forms_off_its_port() {
    let machine = machine(2, ("switch", 10, 100), &pool(2, 5));
    for network in SHARED {
        for (ns, closed) in [(949, 0), (950, 1)] {
            let reduce = [
                kernel(ns).on(3),
                call(K::AllReduce, 40_000).after(&[1]).on(1),
            ];
            let mut ranks = vec![reduce.to_vec(); 2];
            ranks[0].push(load(80_000).on(2));
            let replay = run(&job(&ranks, &[]), &machine, network);
            assert_eq!(replay.outcome.closed, closed, "{network} {ns}");
            let ends = [replay.end(0, 3), replay.end(0, 2)];
            assert_eq!(ends, [950_000, (ns + 800) * 1000]);
        }
    }
}

/// 40 kB in 4 chunks and a message of 30 kB, both out of NPU 0 at 0: the message has the port until 300 ns.
///
/// A memory of 5 ps/B: chunks come to the port 100 ns apart, as it could take them, and wait 300 ns each: the
/// last is out at 700, and after 50 ns of the memory and 100 ns of latency stored at 850 ns; alone at 550.
/// A memory of 20 ps/B: chunks come 200 ns apart, and are out at 400, 500, 600 and 700; from the first on the memory
/// has 200 ns for each, until 1,200, and 100 ns: 1,300; alone 1,000.
#[test]
fn a_store_waits_for_a_send() {
    for (ps, alone, expected) in [(5, 550, 850), (20, 1000, 1300)] {
        let machine = machine(2, ("switch", 10, 100), &pool(2, ps));
        for network in MODELS {
            let ranks = [
                vec![send(1, 30_000).on(1), access(true, 40_000).on(2)],
                vec![receive(0, 30_000)],
            ];
            let replay = run(&job(&ranks, &[]), &machine, network);
            let expected = match network {
                NetworkModel::ContentionFree => alone,
                _ => expected,
            };
            assert_eq!(replay.end(0, 2), expected * 1000, "{network}");
            // The message was there first.
            assert_eq!(replay.end(1, 1), 500_000);
            // Traffic that comes in has another server.
            let ranks = [
                vec![send(1, 30_000).on(1), load(40_000).on(2)],
                vec![receive(0, 30_000)],
            ];
            let replay = run(&job(&ranks, &[]), &machine, network);
            assert_eq!(replay.end(0, 2), alone * 1000);
        }
    }
}

/// A store of 20 kB whose second chunk comes to the port at 100 ns. At that instant a kernel ends, then a node that takes no
/// time, and then 10 kB are sent: they leave first, until 200 ns, and are there at 400. The chunk waits for 100 ns: out
/// at 300, and 50 ns of the memory and 100 of latency.
#[test]
fn chunks_come_last_of_an_instant() {
    let machine = machine(2, ("switch", 10, 100), &pool(2, 5));
    let ranks = [
        vec![
            access(true, 20_000).on(1),
            kernel(100).on(2),
            line(Op::NoOp).after(&[2]),
            send(1, 10_000).after(&[3]).on(3),
        ],
        vec![receive(0, 10_000)],
    ];
    for network in SHARED {
        let replay = run(&job(&ranks, &[]), &machine, network);
        assert_eq!([replay.end(0, 1), replay.end(1, 1)], [450_000, 400_000]);
    }
}

/// Both NPUs load 80 kB from a memory of 5 ps/B, which has 100 ns for a chunk each, as the ports do: chunk k is at
/// the fabric at k 100 ns and at the port 100 ns later; alone the last is in at 1,000.
///
/// With `ports` the message of the all-reduce and chunk 1 are there at 200: the message is first, in until 400. Chunks 1
/// to 4 came until 500: in until 800. The sums left at 400 and come at 600, before chunk 5: in until 1,000. Chunks 5 to
/// 8: until 1,400. With `links` the link down has the message from 100 on, before chunk 1 (comes at 200), until 300; it is
/// there at 400. Chunks 1 to 3 came until 400: until 600. The sums come at 500, before chunk 4: until 800, and are
/// there at 900. Chunks 4 to 8: until 1,300.
///
/// Where wires go from each to each, a message has one link less to cross, and comes to its receiver's end of it at 100,
/// by `links` as well: in until 300. The sum comes at 400, before chunk 3, and is in from 500 until 700; chunks 3 to 8
/// until 1,300.
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
        let machine = machine(2, (shape, 10, 100), &pool(2, 5));
        let rank = vec![call(K::AllReduce, 40_000).on(1), load(80_000).on(2)];
        let replay = run(&job(&[rank.clone(), rank], &[]), &machine, network);
        for rank in 0..2 {
            let ends = [replay.end(rank, 2), replay.end(rank, 1)];
            assert_eq!(ends, expected.map(|ns| ns * 1000), "{shape} {network}");
        }
    }
}

/// 4 NPUs gather 10 kB each, so 40 kB come in at each: 4 chunks of 10 kB of the pool's are 4 x 2.5 kB of an access,
/// which a port of 10 ps/B has 100 ns for. The memory gives 10 kB of each chunk once, at 2 ps/B: 20 ns. Alone:
/// 20 + 4 x 100 ns, and 100 ns of the link.
///
/// An all-to-all of 20 kB, 5 kB to each other: 50 ns a message, which leave from 0, 50 and 100 on. With `ports`
/// they come at 200, 250 and 300. Chunk 1 is there at 120 and in at 220, then the first message until 270; chunk 2, there at
/// 220, until 370; messages 2 and 3 until 470; chunks 3 and 4, there at 320 and 420, until 670. With `links`
/// they come at 100, 150 and 200: the first until 150, chunk 1 until 250, the others until 350, chunks 2 to 4 until 650.
/// Stores: the messages leave first, until 150 ns; chunks until 550, and 20 + 100 ns.
#[test]
fn what_switches_gather_comes_to_the_ports() {
    let text = pool(4, 2).replace("40 kB", "10 kB");
    let machine = machine(4, ("switch", 10, 100), &text);
    for store in [false, true] {
        let gather = line(Op::Memory {
            store,
            place: MemoryLocation::Remote,
            bytes: 10_000,
            in_switch: true,
        });
        let alone = job(&vec![vec![gather.clone()]; 4], &[]);
        for network in MODELS {
            assert_eq!(run(&alone, &machine, network).ps(), 520_000, "{network}");
        }
        let rank = vec![call(K::AllToAll, 20_000).on(1), gather.on(2)];
        let met = job(&vec![rank; 4], &[]);
        for network in SHARED {
            let expected = match (store, network) {
                (false, NetworkModel::Links) => 650_000,
                _ => 670_000,
            };
            let replay = run(&met, &machine, network);
            for rank in 0..4 {
                assert_eq!(replay.end(rank, 2), expected, "{network} {store}");
            }
        }
    }
}

/// A channel of 20 ps/B and a port of 10, or of 40; chunks of 10 kB, 7 ns of the channel and 100 ns of the link.
/// 35 kB are 3 chunks and a half. By the pipeline: 700 ns + 100 of a chunk in the port, or 1,400 + 200 in the
/// channel. At the ports the last chunk has its own times only. Behind the channel, 50 ns of the port; but where the port is
/// slower, the chunk waits there for those before, so that nothing is gained. A store has 100 ns of the channel then.
/// A second access waits for the channel, which is held 707 ns, or 1,407.
#[test]
fn channels_come_through_ports_too() {
    for (ps, shared, formula, held) in [(10, [750, 750], 800, 707), (40, [1600, 1500], 1600, 1407)]
    {
        for name in ["per_npu", "pool"] {
            let remote = format!(
                "attachment = \"{name}\"\nbandwidth = \"50 GB/s\"\nthrough = \"d\"\nchunk = \"10 kB\"\n\
                 latency = \"7 ns\""
            );
            let machine = machine(2, ("fully_connected", ps, 100), &remote);
            for (network, store) in MODELS.into_iter().flat_map(|m| [(m, false), (m, true)]) {
                let access = access(store, 35_000);
                let ranks = vec![vec![access.clone().on(1), access.on(2)], Vec::new()];
                let replay = run(&job(&ranks, &[]), &machine, network);
                let one = 107
                    + match network {
                        NetworkModel::ContentionFree => formula,
                        _ => shared[usize::from(store)],
                    };
                let ends = [replay.end(0, 1), replay.end(0, 2)];
                assert_eq!(
                    ends,
                    [one, one + held].map(|ns| ns * 1000),
                    "{network} {ps} {store}"
                );
            }
        }
    }
}

/// Where collectives last as recorded, nothing comes to the network, and loads take what they take alone.
#[test]
fn where_messages_are_not_carried_loads_are_alone() {
    let machine = machine(2, ("switch", 10, 100), &pool(2, 5));
    let rank = |access: Line| vec![call(K::AllReduce, 40_000).lasts(500).on(1), access.on(2)];
    let options = ReplayOptions::with(|o| {
        *o = options(NetworkModel::Ports, false);
        o.comm = CommTiming::Recorded;
    });
    let ranks = [rank(load(80_000)), rank(access(true, 80_000))];
    let replay = replay_with(&job(&ranks, &[]), &machine, &options);
    // Both share the memory: 100 ns for a chunk of each: 100 + 8 x 100 and 100 ns.
    let ends = [replay.end(0, 2), replay.end(1, 2), replay.end(0, 1)];
    assert_eq!(ends, [1_000_000, 1_000_000, 500_000]);
}

#[test]
fn too_many_chunks_are_refused_where_they_would_be_carried_out() {
    let text = pool(2, 5).replace("20 kB", "2 B");
    let machine = machine(2, ("switch", 10, 100), &text);
    let workload = |bytes| job(&[vec![load(bytes)], Vec::new()], &[]);
    let prepared = |bytes, model| {
        CompiledReplay::new(&workload(bytes), &machine, &options(model, false))
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    // A byte a chunk: 2^20 and one more.
    assert_eq!(prepared(1 << 20, NetworkModel::Links), Ok(()));
    assert_eq!(
        prepared((1 << 20) + 1, NetworkModel::ContentionFree),
        Ok(())
    );
    let error = prepared((1 << 20) + 1, NetworkModel::Links).unwrap_err();
    for piece in [
        "rank 0 node 1",
        "1048577 chunks",
        "more than 1048576",
        "larger `chunk`",
    ] {
        assert!(error.contains(piece), "{error}");
    }
}
