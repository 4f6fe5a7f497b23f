//! Compares a capture with a schedule derived by hand, and tests that invalid options are rejected.

use super::*;

fn list_member_times(meeting: &CommunicationTrueTimes) -> Vec<[u64; 4]> {
    let of = |m: &CommunicationMemberTrueTimes| [m.start_ns, m.wait_ns, m.transfer_ns, m.end_ns];
    meeting.members.iter().map(of).collect()
}

fn list_member_waits(meeting: &CommunicationTrueTimes) -> Vec<(CommunicationWaiterKind, u64, u64)> {
    let of = |m: &CommunicationMemberTrueTimes| m.waited.map(|w| (w.by, w.from_ns, w.until_ns));
    meeting.members.iter().filter_map(of).collect()
}

#[test]
fn truth_of_a_layer_on_two_ranks_matches_hand_computed_times() {
    let options = Options {
        layers: 1,
        hidden: 1,
        tokens: 1,
        skew: 0,
        jitter: 0,
        stragglers: vec![(1, 2000)],
        ..Options::new(Device::Cpu, JobParallelism::Ddp, 2)
    };
    let truth = generate_capture(&options).unwrap().compute_truth();
    let [broadcast, reduce] = &truth.collectives[..] else {
        panic!("{:?}", truth.collectives);
    };
    // An operator takes 2 us before its first child and 1 us after its last. The next event comes 0.5 us later, and
    // Python takes 5 us. On rank 0, Python runs first, and `ProfilerStep` starts at 5,000 ns. `randn` starts at 12,000,
    // after the head of `ProfilerStep` and Python's time. `randn` contains `empty` from 14,000 to 17,000 and `normal_`
    // from 17,500 to 20,502 (which writes 12 bytes at 10 bytes/ns in 2 ns), and ends at 22,002. DDP's record starts at
    // 27,502, after another 0.5 us and Python's time. `broadcast_` starts at 34,502, after the head of DDP's record and
    // Python's time, and requests the collective at 36,502. The worker starts 20 us later. On rank 1, all these times
    // are twice as long, except the gaps between operators, so its request is at 71,504. The collective ends 20 us + 4
    // ns (4 bytes at 1 byte/ns) after the last member's start.
    assert_eq!(
        list_member_times(broadcast),
        [
            [56_502, 35_002, 20_004, 111_508],
            [91_504, 0, 20_004, 111_508]
        ]
    );
    // Both Python threads block 0.5 us after `broadcast_`, and continue 10 us after the end of the
    // collective.
    let until = 121_508;
    assert_eq!(
        list_member_waits(broadcast),
        [
            (CommunicationWaiterKind::Host, 38_002, until),
            (CommunicationWaiterKind::Host, 74_004, until)
        ]
    );
    // These operators run before the all-reduce is requested (the numbers include their children):
    //
    // | operators | started | ended |
    // |---|---|---|
    // | layer_norm 5, linear 11, gelu 1, linear 11, add 1, sum 1, ones_like 4, each after Python | 34 | 34 |
    // | SumBackward1 4, AddBackward0 2, GeluBackward0 3, NativeLayerNormBackward0 9 | 18 | 18 |
    // | AddmmBackward0 21 and TBackward0 5, each twice | 52 | 52 |
    // | AccumulateGrad 6, five times | 30 | 30 |
    // | the sixth AccumulateGrad | 6 | 5 |
    // | `allreduce_` started; DDP's record ended | 1 | 1 |
    // | sum | 141 | 140 |
    //
    // At 10 bytes/ns, the operators' work takes this long, rounded up:
    //
    // | work | bytes | ns |
    // |---|---|---|
    // | layer_norm | 8 | 1 |
    // | linear | 32 and 36 | 8 |
    // | gelu | 48 | 5 |
    // | linear | 8 and 36 | 5 |
    // | add | 12 | 2 |
    // | sum | 4 | 1 |
    // | fill_ | 12 | 2 |
    // | AddmmBackward0 | 36, 36 and 4 | 9 |
    // | AddmmBackward0 | 36, 36 and 16 | 10 |
    // | gelu_backward | | 5 |
    // | backward of layer_norm | 12 | 2 |
    // | the six `mul` | | 2 + 5 + 5 + 5 + 2 + 2 |
    // | sum | | 71 |
    let rank_0 = 141 * 2_000 + 140 * 1_500 + 7 * 5_000 + 71;
    let rank_1 = 141 * 4_000 + 140 * 2_500 + 7 * 10_000 + 142;
    let asked = [until + rank_0, until + rank_1];
    // The 15 parameters take 60 B. Each of two members sends and receives 60 B, which takes 60 ns.
    let end = asked[1] + 20_000 + 20_060;
    assert_eq!(
        list_member_times(reduce),
        [
            [asked[0] + 20_000, asked[1] - asked[0], 20_060, end],
            [asked[1] + 20_000, 0, 20_060, end],
        ]
    );
    assert_eq!(asked[0], 648_579);
    assert_eq!(end, 1_145_710);
    assert_eq!(
        list_member_waits(reduce),
        [
            (
                CommunicationWaiterKind::Host,
                asked[0] + 1_500,
                end + 10_000
            ),
            (
                CommunicationWaiterKind::Host,
                asked[1] + 2_500,
                end + 10_000
            ),
        ]
    );
    assert_eq!(truth.ranks[0].steps[0][0], 5_000);
    assert_eq!(truth.ranks[1].steps[0][0], 10_000);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let why = |change: fn(&mut Options)| {
        let mut options = Options::new(Device::Cpu, JobParallelism::Ddp, 4);
        change(&mut options);
        generate_capture(&options).unwrap_err().to_string()
    };
    for (text, part) in [
        (why(|o| o.ranks = 0), "`ranks` is 0; expected 1 or more"),
        (why(|o| o.tensor_parallel = 3), "a divisor of the 4 ranks"),
        (
            why(|o| (o.tensor_parallel, o.tokens) = (4, 6)),
            "a multiple of the 4 ranks that share a layer",
        ),
        (why(|o| o.stragglers = vec![(4, 1000)]), "a rank below 4"),
        (why(|o| o.stragglers = vec![(1, 0)]), "from 0.001 to 1000"),
        (why(|o| o.bandwidth = 0), "1 kB/s or more"),
        (why(|o| o.hidden = u32::MAX), "a smaller hidden size"),
        (why(|o| o.layers = u32::MAX), "fewer layers"),
        (why(|o| o.steps = 1 << 24), "fewer ranks, steps or layers"),
        (why(|o| o.clock_skew = u64::MAX), "three weeks at most"),
        (
            why(|o| (o.hidden, o.tokens, o.layers) = (1 << 20, 1 << 24, 20_000)),
            "fewer or smaller steps",
        ),
        (
            why(|o| (o.device, o.style) = (Device::Cuda, JobParallelism::Pipeline)),
            "ddp or functional on cuda",
        ),
        (
            why(|o| (o.style, o.layers) = (JobParallelism::Pipeline, 6)),
            "a multiple of the 4 stages",
        ),
    ] {
        assert!(text.contains(part), "{text}");
    }
}
