//! Tests times of chunks, computed by hand, at ports that are free or that are busy until a given time.

use crate::memory::fair_sharing::testing::create_pool;
use crate::memory::{
    MemoryAttachment, MemoryNetworkAttachment, MultiLevelSwitchPool, RemoteMemory,
    RemoteMemoryAccess, RemoteMemorySimulation,
};
use crate::topology::{DimensionShape, Topology, TopologyDimension};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, Bytes, Span, Time};

/// Returns a memory of `memory` GB/s that two NPUs reach through ports of 10 GB/s each. Accesses have chunks of 10 kB.
fn build_two_npu_memory(memory: f64) -> RemoteMemory {
    let port = Bandwidth::new(10e9).unwrap();
    let dimension = TopologyDimension {
        name: "d".to_owned(),
        shape: DimensionShape::Switch,
        size: 2,
        bandwidth: port,
        latency: Span::ZERO,
    };
    let topology = Topology::new(vec![dimension]).unwrap();
    let design = MultiLevelSwitchPool {
        groups: 1,
        npu_bandwidth: port,
        levels: Vec::new(),
        chunk: Bytes(20_000),
    };
    RemoteMemory {
        through: MemoryNetworkAttachment::new(&topology, 0, design.chunk),
        ..create_pool(MemoryAttachment::Switch(design), memory)
    }
}

/// Returns the end times, in ns, of accesses of 100 kB, each given as (begin, NPU, is a store), at ports that are busy
/// until `busy`.
fn simulate_access_ends(
    memory: &RemoteMemory,
    accesses: &[(u64, u32, bool)],
    busy: u64,
) -> Vec<f64> {
    let mut remote = RemoteMemorySimulation::new(memory, 2, true);
    let mut free = [[Time(busy * 1000); 2]; 2];
    let mut ends = vec![0.0; accesses.len()];
    let mut begun = 0;
    let mut due: Option<(Time, u32)> = None;
    loop {
        let begin = accesses.get(begun).map(|&(ns, ..)| Time(ns * 1000));
        let Some(now) = [begin, due.map(|(at, _)| at)].into_iter().flatten().min() else {
            return ends;
        };
        if let Some((_, settlement)) = due.filter(|&(at, _)| at == now) {
            remote.deliver_ends_of_finished_accesses(now, settlement, |end| {
                panic!("{end:?} at no port")
            });
        }
        while let Some(&(ns, npu, store)) = accesses.get(begun)
            && Time(ns * 1000) == now
        {
            let access = RemoteMemoryAccess {
                npu: Npu(npu),
                bytes: 100_000,
                store,
                in_switch: false,
                token: begun as u64,
            };
            assert_eq!(remote.begin_access(now, access), None);
            begun += 1;
        }
        let serve = |request: super::ChunkArrivalAtNpuPort| {
            let free = &mut free[request.npu.index()][usize::from(request.store)];
            let begin = now.max(*free);
            *free = begin + request.span;
            begin
        };
        remote.serve_due_chunks(now, serve, |end| {
            ends[end.token as usize] = end.at.0 as f64 / 1000.0;
        });
        due = remote.settle_rates(now);
    }
}

#[test]
fn a_load_waits_for_a_busy_port_at_its_end_and_a_store_at_its_beginning() {
    // An access has 10 chunks. A memory of 5 GB/s takes 2 us per chunk, and the port takes 1 us: 10 x 2 + 1 = 21 us.
    for store in [false, true] {
        assert_eq!(
            simulate_access_ends(&build_two_npu_memory(5.0), &[(0, 0, store)], 0),
            [21_000.0]
        );
    }
    // The port is busy until 6.5 us, and chunks 1 to 3 of a load have arrived by then. They leave the port by 9.5 us,
    // chunk 4 (arrived at 8 us) by 10.5 us, and chunk 5 (arrived at 10 us) by 11.5 us. Chunk 6 arrives at 12 us, when
    // the port is free, so it is not delayed.
    assert_eq!(
        simulate_access_ends(&build_two_npu_memory(5.0), &[(0, 0, false)], 6500),
        [21_000.0]
    );
    // A store's first chunk waits for 6.5 us. The memory is the slowest stage and cannot catch up, so the store ends
    // 6.5 us later.
    assert_eq!(
        simulate_access_ends(&build_two_npu_memory(5.0), &[(0, 0, true)], 6500),
        [27_500.0]
    );
    // A memory of 20 GB/s takes 0.5 us per chunk, and the port takes 10 us in all. If the port is busy until 6.5 us, it
    // serves the chunks from 6.5 to 16.5 us.
    for (store, behind) in [(false, 0.0), (true, 500.0)] {
        assert_eq!(
            simulate_access_ends(&build_two_npu_memory(20.0), &[(0, 0, store)], 0),
            [10_500.0]
        );
        assert_eq!(
            simulate_access_ends(&build_two_npu_memory(20.0), &[(0, 0, store)], 6500),
            [16_500.0 + behind]
        );
    }
}

#[test]
fn ports_go_both_ways_at_once() {
    // Two accesses share a memory of 10 GB/s. At 5 GB/s each, the 100 kB of an access take 20 us, and the last chunk
    // takes 1 us more in the port.
    for accesses in [[(0, 0, false), (0, 0, true)], [(0, 0, true), (0, 1, true)]] {
        assert_eq!(
            simulate_access_ends(&build_two_npu_memory(10.0), &accesses, 0),
            [21_000.0; 2]
        );
    }
    // Two accesses share one port, which passes only 10 of the memory's 20 GB/s. Both therefore take 20 us, plus 0.5 us
    // per access in the memory. Each chunk of the second access passes through the port 1 us after the same chunk of
    // the first.
    let both = [(0, 0, false), (0, 0, false)];
    assert_eq!(
        simulate_access_ends(&build_two_npu_memory(20.0), &both, 0),
        [20_000.0, 21_000.0]
    );
}

#[test]
fn access_rate_changes_when_another_access_begins_or_ends() {
    // A memory of 10 GB/s serves NPU 0 alone until 5 us (50 kB), and then each NPU at 5 GB/s. NPU 0's other 50 kB have
    // passed through the memory at 15 us, and its last chunk arrives 1 us later. By then, NPU 1 has received 50 kB, and
    // it receives the rest by 20 us.
    let late = [(0, 0, false), (5000, 1, false)];
    assert_eq!(
        simulate_access_ends(&build_two_npu_memory(10.0), &late, 0),
        [16_000.0, 21_000.0]
    );
    // A memory of 16 GB/s takes 0.625 us per chunk, so a chunk counts as streamed when 3.75 kB of it are left. NPU 0's
    // port is the limit until 5 us, when 50 kB have passed. Then NPU 0 gets 8 GB/s: the next 46.25 kB take 5.78125 us,
    // and the last chunk takes 1 us in the port. NPU 1 gets 8 GB/s until NPU 0's 50 kB have passed, at 11.25 us, and
    // then its port's 10 GB/s until 16.25 us.
    assert_eq!(
        simulate_access_ends(&build_two_npu_memory(16.0), &late, 0),
        [11_781.25, 17_250.0]
    );
}
