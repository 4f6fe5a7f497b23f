//! Tests what happens when each number of a machine file is doubled: which result changes, by how much, and which
//! errors occur.

use super::doubling::{ChangedMachineFileLineNumbers, MACHINE, assert_makespan_after_change};
use super::lines::{
    TestTraceNode, build_collective, build_kernel, build_node, build_receive, build_send,
};
use chakram::trace::{CollectiveKind, Dtype, MemoryLocation, Op};

fn build_compute_node(flops: u64, bytes: u64, dtype: Option<Dtype>) -> TestTraceNode {
    build_node(Op::Compute {
        flops,
        bytes,
        dtype,
    })
}

fn build_load(place: MemoryLocation<'static>, bytes: u64) -> TestTraceNode {
    build_node(Op::Memory {
        store: false,
        place,
        bytes,
        in_switch: false,
    })
}

fn one_rank_with_one_node(line: TestTraceNode) -> Vec<Vec<TestTraceNode>> {
    vec![vec![line]]
}

/// A peak of k TFLOP/s executes 1,000,000 k operations in 1 us, and twice the peak in 0.5 us.
fn check_peak_keys(keys: &mut ChangedMachineFileLineNumbers) {
    for (k, (dtype, name)) in (1..).zip(Dtype::ALL) {
        let entry = format!(
            "\n{name} = \"{k} TFLOP/s\" => \n{name} = \"{} TFLOP/s\"",
            2 * k
        );
        let ranks = one_rank_with_one_node(build_compute_node(1_000_000 * k, 8, Some(dtype)));
        assert_makespan_after_change(keys, &entry, &ranks, Ok(1_000_000), 500_000);
        // A kernel in another format takes the same time.
        let other = Dtype::ALL[k as usize % 8].0;
        let rate = k % 8 + 1;
        let ranks = one_rank_with_one_node(build_compute_node(1_000_000 * rate, 8, Some(other)));
        assert_makespan_after_change(keys, &entry, &ranks, Ok(1_000_000), 1_000_000);
    }
}

fn check_npu_memory_keys(keys: &mut ChangedMachineFileLineNumbers) {
    let local = |bytes| one_rank_with_one_node(build_load(MemoryLocation::Local, bytes));
    let entry = "memory_bandwidth = \"1000 => memory_bandwidth = \"2000";
    // 3,000,000 B take 3 us at 1 ps/B, and a load takes 300 ns more.
    assert_makespan_after_change(
        keys,
        entry,
        &one_rank_with_one_node(build_compute_node(8, 3_000_000, None)),
        Ok(3_000_000),
        1_500_000,
    );
    assert_makespan_after_change(keys, entry, &local(3_000_000), Ok(3_300_000), 1_800_000);
    let entry = "memory_latency = \"300 => memory_latency = \"600";
    assert_makespan_after_change(keys, entry, &local(3_000_000), Ok(3_300_000), 3_600_000);
    // A kernel streams its bytes, so latency does not count.
    assert_makespan_after_change(
        keys,
        entry,
        &one_rank_with_one_node(build_compute_node(8, 3_000_000, None)),
        Ok(3_000_000),
        3_000_000,
    );
    // 60 GB take 60 ms at 1 ps/B.
    let entry = "memory_capacity = \"40 => memory_capacity = \"80";
    let refused = Err("an NPU of class `a` has a capacity of 40.0 GB");
    assert_makespan_after_change(keys, entry, &local(60_000_000_000), refused, 60_000_300_000);
}

/// Each independent kernel of 1 us has its own stream or thread, so the number of lanes limits how many run at once.
fn check_lane_keys(keys: &mut ChangedMachineFileLineNumbers) {
    let kernels = |n: i64| {
        vec![
            (0..n)
                .map(|lane| build_kernel(1000).on_lane(lane))
                .collect::<Vec<_>>(),
        ]
    };
    // 4 kernels take two turns on 2 lanes, and one turn on 4 lanes.
    assert_makespan_after_change(
        keys,
        "\nlanes = 2 => \nlanes = 4",
        &kernels(4),
        Ok(2_000_000),
        1_000_000,
    );
    let host = |lane| TestTraceNode {
        ns: 1000,
        ..build_node(Op::Host).on_lane(lane)
    };
    let threads = vec![(0..6).map(host).collect::<Vec<_>>()];
    // 6 threads take two turns on 3 lanes, and one turn on 6 lanes.
    assert_makespan_after_change(
        keys,
        "\nhost_lanes = 3 => \nhost_lanes = 6",
        &threads,
        Ok(2_000_000),
        1_000_000,
    );
    // The number of lanes of one kind has no effect on the other kind.
    assert_makespan_after_change(
        keys,
        "\nlanes = 2 => \nlanes = 4",
        &threads,
        Ok(2_000_000),
        2_000_000,
    );
    assert_makespan_after_change(
        keys,
        "\nhost_lanes = 3 => \nhost_lanes = 6",
        &kernels(4),
        Ok(2_000_000),
        2_000_000,
    );
}

/// An all-reduce of 80,000 B runs among 2 x 2 NPUs. Inside, one message of 40,000 B takes 400 + 400
/// ns. Outside, one message of 20,000 B takes 3,000 + 800 ns. Each occurs twice, so the time is 2 x
/// (800 + 3,800) = 9,200 ns.
fn check_dimension_keys(keys: &mut ChangedMachineFileLineNumbers) {
    let world = |n| vec![vec![build_collective(CollectiveKind::AllReduce, 80_000)]; n];
    let all = Ok(9_200_000);
    // The doubled values change this by 2 x 200 ns less, 2 x 400 ns more, 2 x 400 ns less, and 2 x 3,000 ns more.
    assert_makespan_after_change(keys, "\"100 GB/s => \"200 GB/s", &world(4), all, 8_800_000);
    assert_makespan_after_change(keys, "\"400 ns => \"800 ns", &world(4), all, 10_000_000);
    assert_makespan_after_change(keys, "\"25 GB/s => \"50 GB/s", &world(4), all, 8_400_000);
    assert_makespan_after_change(keys, "\"1500 ns => \"3000 ns", &world(4), all, 15_200_000);
    // 8 ranks need twice the NPUs. In a ring of 4, 3 messages of 20,000 B take 400 + 200 ns each.
    // Then, with the remaining 20,000 B, one message of 10,000 B takes 3,000 + 400 ns. The sum is 2
    // x (1,800 + 3,400).
    let refused = Err("the job has 8 ranks, but machine `keys` has 4 NPUs");
    let inner = "\"ring\"\nsize = 2 => \"ring\"\nsize = 4";
    assert_makespan_after_change(keys, inner, &world(8), refused, 10_400_000);
    // In a switch of 4, a message takes 800 ns inside, and 3 messages of 10,000 B take 3,000 + 3 x
    // 400 ns. The sum is 2 x (800 + 4,200).
    let refused = Err("take a machine with at least 8 NPUs");
    let outer = "\"switch\"\nsize = 2 => \"switch\"\nsize = 4";
    assert_makespan_after_change(keys, outer, &world(8), refused, 10_000_000);
    // From 0 to 3, 20,000 B cross both dimensions, which takes 400 + 3,000 ns, and 800 ns at 25
    // GB/s.
    let mut ranks = vec![vec![build_kernel(0)]; 4];
    (ranks[0], ranks[3]) = (vec![build_send(3, 20_000)], vec![build_receive(0, 20_000)]);
    assert_makespan_after_change(
        keys,
        "\"100 GB/s => \"200 GB/s",
        &ranks,
        Ok(4_200_000),
        4_200_000,
    );
    assert_makespan_after_change(
        keys,
        "\"400 ns => \"800 ns",
        &ranks,
        Ok(4_200_000),
        4_600_000,
    );
    assert_makespan_after_change(
        keys,
        "\"25 GB/s => \"50 GB/s",
        &ranks,
        Ok(4_200_000),
        3_800_000,
    );
}

/// On a single channel, two loads of 100,000 B take 2,000 + 2,000 ns each, one after the other.
fn remote_memory(keys: &mut ChangedMachineFileLineNumbers) {
    let two = vec![vec![build_load(MemoryLocation::Remote, 100_000)]; 2];
    assert_makespan_after_change(
        keys,
        "\"50 GB/s => \"100 GB/s",
        &two,
        Ok(8_000_000),
        6_000_000,
    );
    assert_makespan_after_change(
        keys,
        "\"2000 ns => \"4000 ns",
        &two,
        Ok(8_000_000),
        12_000_000,
    );
    // 100 GB take 2 s at 20 ps/B.
    let large = one_rank_with_one_node(build_load(MemoryLocation::Remote, 100_000_000_000));
    let refused = Err("the remote memory has a capacity of 90.0 GB");
    assert_makespan_after_change(
        keys,
        "\"90 GB => \"180 GB",
        &large,
        refused,
        2_000_002_000_000,
    );
    // With one channel for each load, both end together.
    assert_makespan_after_change(
        keys,
        "\"pool\" => \"per_npu\"",
        &two,
        Ok(8_000_000),
        4_000_000,
    );
}

/// For every line of the file that has a number, one of the functions above doubles it.
#[test]
fn doubling_every_number_of_a_machine_file_changes_times_as_expected() {
    let mut keys = ChangedMachineFileLineNumbers::default();
    check_peak_keys(&mut keys);
    check_npu_memory_keys(&mut keys);
    check_lane_keys(&mut keys);
    check_dimension_keys(&mut keys);
    remote_memory(&mut keys);
    let has_number = |line: &&str| line.contains(|c: char| c.is_ascii_digit());
    let numbers = (0..)
        .zip(MACHINE.lines())
        .filter(|(_, line)| has_number(line));
    let left: Vec<_> = numbers
        .filter(|(number, _)| !keys.0.contains(number))
        .collect();
    assert!(left.is_empty(), "never doubled: {left:?}");
}
