//! What `bandwidth` means, as laws over machines and messages, and by hand.

use super::flows::{any_dim, arrivals, bytes, ends, flow};
use super::lines::{kernel, receive, send};
use super::rig::{Dim, cases, job, machine, over, replay_with};
use super::wires::{Busy, Wiring, alone};
use chakram::machine::Machine;
use chakram::network::Model::{self, ContentionFree, Links, Ports};
use proptest::prelude::*;

const ALL: [Model; 3] = [ContentionFree, Ports, Links];

/// Up to three dimensions of any shape.
fn stack() -> impl Strategy<Value = Vec<Dim>> {
    prop::collection::vec(any_dim(5), 1..=3)
}

fn npus(dims: &[Dim]) -> u32 {
    dims.iter().map(|dim| dim.size).product()
}

proptest! {
    #![proptest_config(cases(200))]

    /// One message has left and arrived when the slowest link lets it, in every model.
    #[test]
    fn one_message_takes_the_same_in_all_models(
        dims in stack(), size in bytes(), pick in any::<(u32, u32)>(),
    ) {
        let n = npus(&dims);
        let (from, apart) = (pick.0 % n, 1 + pick.1 % (n - 1));
        let to = (from + apart) % n;
        let machine = machine(&dims);
        for model in ALL {
            let found = ends(&machine, model, &[flow(0, from, to, size)]);
            prop_assert_eq!(found, [alone(&dims, from, to, size)], "{}", model);
        }
    }

    /// No port and no link carries more than its rate, wherever on the way it lies.
    #[test]
    fn no_server_carries_more_than_its_rate(
        dims in stack(),
        drawn in prop::collection::vec((0..2000_u64, any::<u32>(), any::<u32>(), bytes()), 1..40),
        few in any::<bool>(),
    ) {
        let n = npus(&dims);
        // To any NPU, or all to one.
        let flows = drawn.into_iter().filter_map(|(ns, a, b, bytes)| {
            let (from, to) = (a % n, if few { n - 1 } else { b % n });
            (from != to).then_some(flow(ns, from, to, bytes))
        });
        let flows: Vec<_> = flows.collect();
        let machine = machine(&dims);
        for (model, wiring) in [(Ports, Wiring::Ports), (Links, Wiring::Links)] {
            let mut busy = Busy::default();
            for flow in &flows {
                busy.carry(wiring, &dims, (flow.from, flow.to), (flow.bytes, 1));
            }
            let found = arrivals(&machine, model, &flows).into_iter().max();
            prop_assert!(found.unwrap_or(0) >= busy.most(), "{model}: {found:?} < {}", busy.most());
        }
    }
}

/// Two dimensions: 400 GB/s inside, 16 GB/s outside, no latency.
const STEEP: &str = r#"name = "steep"
[npu.a]
memory_bandwidth = "1000 GB/s"
memory_latency = "0 ns"
memory_capacity = "40 GB"
lanes = 2
host_lanes = 1
[npu.a.peak]
fp32 = "1 TFLOP/s"
[[dimension]]
name = "inner"
shape = "switch"
size = 2
bandwidth = "400 GB/s"
latency = "0 ns"
algorithm = "direct"
[[dimension]]
name = "outer"
shape = "switch"
size = 2
bandwidth = "16 GB/s"
latency = "0 ns"
algorithm = "direct"
"#;

/// From NPU 0 to NPU 3 over both dimensions: the last of 800 kB has left after 50 us at 16 GB/s, not after the 2 us
/// that the inner port needs. Then the sender computes for 40 us.
#[test]
fn a_send_is_over_when_the_way_has_taken_its_last_byte() {
    let machine = Machine::parse(STEEP, "steep.toml").unwrap();
    let ranks = [
        vec![send(3, 800_000), kernel(40_000).after(&[1])],
        vec![kernel(0)],
        vec![kernel(0)],
        vec![receive(0, 800_000)],
    ];
    for model in ALL {
        let replay = replay_with(&job(&ranks, &[]), &machine, &over(model));
        assert_eq!(
            (replay.end(0, 1), replay.ps()),
            (50_000_000, 90_000_000),
            "{model}"
        );
    }
}

/// NPU a of node 0 sends 100 MB to each of the 8 of node a + 1. A message first goes to the NPU inside whose number
/// its receiver has, and out through its NIC of 50 GB/s: 8 x 100 MB through each take 16 ms. The NIC's own NPU
/// begins at once; of those that come through NVLink, 0.22 ms each, some always wait. Two links of 1.35 us. What
/// comes to a NIC is one message, and an NPU sends 7 x 100 MB over NVLink in 1.56 ms.
#[test]
fn what_leaves_a_node_passes_its_nics() {
    let machine = Machine::preset("dgx-h100x9").unwrap();
    let pairs = (0..8).flat_map(|a| (0..8).map(move |b| flow(0, a, 8 * (a + 1) + b, 100_000_000)));
    let flows: Vec<_> = pairs.collect();
    for model in [Ports, Links] {
        let found = arrivals(&machine, model, &flows).into_iter().max();
        assert_eq!(found, Some(16_002_700_000), "{model}");
    }
}
