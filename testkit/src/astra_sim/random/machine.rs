//! Creates a random network, system and memory, without a job.

use super::super::algorithms::{AlgorithmStyle, NativeAlgorithmWithOneRingFlag};
use super::super::config::{
    CollectiveOperation, DimensionTopology, LogGpBusParameters, MemoryConfig,
    MemoryServerAssignment, NetworkDimension, NetworkModel, PriorityPolicy, SystemConfig,
    WholeSimulationInput,
};
use super::RandomGenerator;
use std::collections::BTreeMap;

/// Usual maximum number of NPUs; a few configurations have up to `MANY` NPUs.
const MOST: usize = 16;
const MANY: usize = 64;

pub fn draw_machine(dice: &mut RandomGenerator) -> WholeSimulationInput {
    let network = dice.pick_from(&[
        NetworkModel::Aware,
        NetworkModel::Unaware,
        NetworkModel::Unaware,
    ]);
    let most = if dice.draw_one_in(8) { MANY } else { MOST };
    let dims = draw_dimensions(network, most, dice);
    let npus: usize = dims.iter().map(|d| d.n).product();
    let local_bw_aware = dice.draw_one_in(2);
    let rules = ConfigPropertiesLimitingAlgorithms {
        tree: !(local_bw_aware && dims.len() > 1),
        npus,
    };
    let kinds = [
        CollectiveOperation::AllReduce,
        CollectiveOperation::AllGather,
        CollectiveOperation::ReduceScatter,
        CollectiveOperation::AllToAll,
    ];
    let lists = kinds.map(|kind| (kind, rules.draw_algorithms(kind, &dims, dice)));
    WholeSimulationInput {
        network,
        dims,
        system: SystemConfig {
            policy: dice.pick_from(&[
                PriorityPolicy::Lifo,
                PriorityPolicy::Fifo,
                PriorityPolicy::Explicit,
            ]),
            local_bw_aware,
            endpoint_delay: (!dice.draw_one_in(10)).then(|| dice.draw_between(1, 200)),
            active_chunks: dice.draw_between(1, 8),
            // Use few chunks if there are many NPUs, so that runs are short.
            splits: dice.draw_between(1, if npus > MOST { 4 } else { 16 }),
            algorithms: BTreeMap::from(lists),
            custom: BTreeMap::new(),
            custom_nodes: BTreeMap::new(),
            local_mem_bw: dice.draw_between(10, 3000) as f64,
            peak_perf: dice.draw_between(10, 1000) as f64,
            roofline: dice.draw_one_in(2),
            replay_only: dice.draw_one_in(25),
            bus: dice.draw_one_in(12).then(|| LogGpBusParameters {
                l: dice.draw_between(0, 20),
                o: dice.draw_between(1, 10),
                g: dice.draw_between(0, 10),
                gap_per_byte: dice.draw_between(1, 20) as f64 / 1000.0,
            }),
            reduction_delay: dice.draw_between(1, 3),
        },
        memory: MemoryConfig {
            attachment: match dice.draw_between(0, 3) {
                0 => MemoryServerAssignment::None,
                1 => MemoryServerAssignment::PerNpu,
                2 => MemoryServerAssignment::Pool,
                _ => MemoryServerAssignment::PerNode(dice.draw_between(1, 4) as usize),
            },
            latency: dice.draw_between(1, 1000),
            bw: dice.draw_between(10, 200),
        },
        groups: BTreeMap::new(),
        rendezvous: dice.draw_one_in(6),
        injection_scale: dice.pick_from(&[1.0, 1.0, 1.0, 2.0, 1.5]),
        queues_per_dim: dice.pick_from(&[1, 1, 2, 3, 4]),
        ranks: Vec::new(),
    }
}

fn draw_dimensions(
    network: NetworkModel,
    most: usize,
    dice: &mut RandomGenerator,
) -> Vec<NetworkDimension> {
    let count = match network {
        NetworkModel::Aware => 1,
        NetworkModel::Unaware => dice.draw_between(1, 3),
    };
    let mut dims: Vec<NetworkDimension> = Vec::new();
    for _ in 0..count {
        let room = most / dims.iter().map(|d| d.n).product::<usize>();
        if room < 2 {
            break;
        }
        let n = match count {
            1 => dice.draw_between(2, most as u64) as usize,
            _ => dice.draw_between(2, (room as u64).min(8)) as usize,
        };
        let n = if dice.draw_one_in(2) {
            1 << n.ilog2()
        } else {
            n
        };
        let mut shape = dice.pick_from(&[
            DimensionTopology::Ring,
            DimensionTopology::FullyConnected,
            DimensionTopology::Switch,
        ]);
        if network == NetworkModel::Aware && n == 2 {
            // ASTRA-sim does not support rings of this size.
            shape = DimensionTopology::Switch;
        }
        let bw = dice.draw_between(10, 400) as f64;
        let lat = dice.draw_between(1, 8000) as f64 / 4.0 + 1.0;
        dims.push(NetworkDimension { shape, n, bw, lat });
    }
    dims
}

/// Properties of a configuration that decide which algorithms it supports.
struct ConfigPropertiesLimitingAlgorithms {
    tree: bool,
    npus: usize,
}

impl ConfigPropertiesLimitingAlgorithms {
    fn draw_algorithms(
        &self,
        kind: CollectiveOperation,
        dims: &[NetworkDimension],
        dice: &mut RandomGenerator,
    ) -> Vec<NativeAlgorithmWithOneRingFlag> {
        if dice.draw_one_in(8) {
            let style = self.draw_collective_algorithm(kind, self.npus, false, dice);
            return vec![NativeAlgorithmWithOneRingFlag { one: true, style }];
        }
        let one = |dim: &NetworkDimension| NativeAlgorithmWithOneRingFlag {
            one: false,
            style: self.draw_collective_algorithm(kind, dim.n, self.tree, dice),
        };
        let mut list: Vec<NativeAlgorithmWithOneRingFlag> = dims.iter().map(one).collect();
        // Shorten the list, because dimensions without an algorithm do not take part.
        let trees = list
            .iter()
            .any(|a| a.style == AlgorithmStyle::DoubleBinaryTree);
        if list.len() > 1 && !trees && dice.draw_one_in(12) {
            list.pop();
        }
        list
    }

    fn draw_collective_algorithm(
        &self,
        kind: CollectiveOperation,
        n: usize,
        tree: bool,
        dice: &mut RandomGenerator,
    ) -> AlgorithmStyle {
        let window = dice.draw_between(1, n as u64) as usize;
        let mut styles = vec![
            AlgorithmStyle::Ring,
            AlgorithmStyle::Direct(None),
            AlgorithmStyle::Direct(Some(window)),
        ];
        if n.is_power_of_two() && kind != CollectiveOperation::AllToAll {
            styles.push(AlgorithmStyle::HalvingDoubling);
            if tree && kind == CollectiveOperation::AllReduce {
                styles.push(AlgorithmStyle::DoubleBinaryTree);
            }
        }
        dice.pick_from(&styles)
    }
}
