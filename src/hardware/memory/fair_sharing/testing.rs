//! Helpers for the tests of all pool designs.

use super::*;
use crate::memory::{MemoryAttachment, RemoteMemory, RemoteMemorySimulation};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, Bytes};

/// Creates a pool whose memories have `gb` GB/s each and no latency.
pub(in crate::memory) fn create_pool(attachment: MemoryAttachment, gb: f64) -> RemoteMemory {
    RemoteMemory {
        attachment,
        bandwidth: Bandwidth::new(gb * 1e9).unwrap(),
        latency: Span::ZERO,
        capacity: Some(Bytes(1 << 40)),
        whole_ns: false,
        through: None,
    }
}

/// Returns the end times of the accesses in `begins`, each given as (begin in picoseconds, NPU).
fn simulate_ends_of_accesses(
    memory: &RemoteMemory,
    npus: u32,
    begins: &[(u64, u32)],
    (bytes, in_switch): (u64, bool),
) -> Vec<u64> {
    let mut remote = RemoteMemorySimulation::new(memory, npus, false);
    let mut ends = vec![0; begins.len()];
    let mut next = 0;
    let mut due: Option<(Time, u32)> = None;
    loop {
        let begin = begins.get(next).map(|&(at, _)| Time(at));
        let end = due.map(|(at, _)| at);
        let Some(now) = [begin, end].into_iter().flatten().min() else {
            return ends;
        };
        if let Some((_, settlement)) = due.filter(|&(at, _)| at == now) {
            remote.deliver_ends_of_finished_accesses(now, settlement, |end| {
                ends[end.token as usize] = end.at.0
            });
        }
        while let Some(&(at, npu)) = begins.get(next)
            && Time(at) == now
        {
            let access = RemoteMemoryAccess {
                npu: Npu(npu),
                bytes,
                store: false,
                in_switch,
                token: next as u64,
            };
            assert_eq!(remote.begin_access(now, access), None);
            next += 1;
        }
        assert!(remote.is_unsettled());
        due = remote.settle_rates(now);
        assert!(!remote.is_unsettled());
    }
}

/// Returns the end times of accesses that the given NPUs begin together.
pub(in crate::memory) fn simulate_end_of_each_access(
    memory: &RemoteMemory,
    npus: u32,
    who: &[u32],
    bytes: u64,
) -> Vec<u64> {
    let begins: Vec<_> = who.iter().map(|&npu| (0, npu)).collect();
    simulate_ends_of_accesses(memory, npus, &begins, (bytes, false))
}

/// Returns the time at which all accesses end together if all NPUs begin them together.
pub(in crate::memory) fn simulate_common_end(
    memory: &RemoteMemory,
    npus: u32,
    bytes: u64,
    in_switch: bool,
) -> u64 {
    let begins: Vec<_> = (0..npus).map(|npu| (0, npu)).collect();
    let ends = simulate_ends_of_accesses(memory, npus, &begins, (bytes, in_switch));
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    ends[0]
}

/// Returns the end time of a single access by NPU 0.
pub(in crate::memory) fn simulate_lone_end(memory: &RemoteMemory, npus: u32, bytes: u64) -> u64 {
    simulate_end_of_each_access(memory, npus, &[0], bytes)[0]
}

/// Returns the end times of two accesses. NPU 0's access begins at 0, and NPU 1's begins `later` picoseconds later.
pub(in crate::memory) fn simulate_two_staggered_accesses(
    memory: &RemoteMemory,
    npus: u32,
    bytes: u64,
    later: u64,
) -> Vec<u64> {
    simulate_ends_of_accesses(memory, npus, &[(0, 0), (later, 1)], (bytes, false))
}

#[test]
fn latency_is_added_even_to_an_empty_access() {
    let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
    let design = crate::memory::MultiLevelSwitchPool {
        groups: 1,
        npu_bandwidth: rate(1.0),
        levels: Vec::new(),
        chunk: Bytes(1000),
    };
    let mut memory = create_pool(MemoryAttachment::Switch(design), 10.0);
    memory.latency = Span::from_ns(700);
    // 1,000 B take 1 us at 1 GB/s. A chunk's share of 1,000 B takes 0.1 us at 10 GB/s. The latency is 0.7 us.
    assert_eq!(simulate_lone_end(&memory, 1, 1000), 1_800_000);
    assert_eq!(simulate_lone_end(&memory, 1, 0), 700_000);
}

#[test]
fn bandwidth_that_one_access_cannot_use_goes_to_another() {
    // Of the 4 busy NPUs, 3 are below one switch and 1 below another. Each switch has a link of 6 GB/s, and the
    // memories have 10 GB/s. Equal shares of the memories would be 2.5 GB/s each, but the link of the three NPUs gives
    // each of them only 2 GB/s. The memories then have 4 GB/s left for the fourth NPU. 12 kB take 6 us for the three
    // NPUs and 3 us for the fourth. Chunks are negligibly small.
    let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
    let level = crate::memory::MemoryPoolSwitchLevel {
        fan_in: 3,
        bandwidth: rate(6.0),
    };
    let design = crate::memory::MultiLevelSwitchPool {
        groups: 1,
        npu_bandwidth: rate(1e9),
        levels: vec![level],
        chunk: Bytes(6),
    };
    let memory = create_pool(MemoryAttachment::Switch(design), 10.0);
    // A chunk's share of 1 B takes 0.4 ns in the memories, 0.5 ns on the link that three NPUs share, and 0.17 ns on the
    // other link.
    let ends = simulate_end_of_each_access(&memory, 6, &[0, 1, 2, 3], 12_000);
    assert_eq!(ends, [6_000_400, 6_000_400, 6_000_400, 3_000_167]);
}
