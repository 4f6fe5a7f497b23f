//! A random network, system and memory, without a job.

use super::super::algorithms::{Algorithm, Style};
use super::super::config::{
    Attachment, Bus, Config, Dim, Kind, Memory, Network, Policy, Shape, System,
};
use super::Dice;
use std::collections::BTreeMap;

/// Usual maximum number of NPUs; `MANY` is a larger maximum that is used sometimes.
const MOST: usize = 16;
const MANY: usize = 64;

pub fn machine(dice: &mut Dice) -> Config {
    let network = dice.pick(&[Network::Aware, Network::Unaware, Network::Unaware]);
    let most = if dice.one_in(8) { MANY } else { MOST };
    let dims = dims(network, most, dice);
    let npus: usize = dims.iter().map(|d| d.n).product();
    let local_bw_aware = dice.one_in(2);
    let rules = Rules {
        tree: !(local_bw_aware && dims.len() > 1),
        npus,
    };
    let kinds = [
        Kind::AllReduce,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::AllToAll,
    ];
    let lists = kinds.map(|kind| (kind, rules.list(kind, &dims, dice)));
    Config {
        network,
        dims,
        system: System {
            policy: dice.pick(&[Policy::Lifo, Policy::Fifo, Policy::Explicit]),
            local_bw_aware,
            endpoint_delay: (!dice.one_in(10)).then(|| dice.between(1, 200)),
            active_chunks: dice.between(1, 8),
            // Jobs on many NPUs have few chunks, so that runs are short.
            splits: dice.between(1, if npus > MOST { 4 } else { 16 }),
            algorithms: BTreeMap::from(lists),
            custom: BTreeMap::new(),
            custom_nodes: BTreeMap::new(),
            local_mem_bw: dice.between(10, 3000) as f64,
            peak_perf: dice.between(10, 1000) as f64,
            roofline: dice.one_in(2),
            replay_only: dice.one_in(25),
            bus: dice.one_in(12).then(|| Bus {
                l: dice.between(0, 20),
                o: dice.between(1, 10),
                g: dice.between(0, 10),
                gap_per_byte: dice.between(1, 20) as f64 / 1000.0,
            }),
            reduction_delay: dice.between(1, 3),
        },
        memory: Memory {
            attachment: match dice.between(0, 3) {
                0 => Attachment::None,
                1 => Attachment::PerNpu,
                2 => Attachment::Pool,
                _ => Attachment::PerNode(dice.between(1, 4) as usize),
            },
            latency: dice.between(1, 1000),
            bw: dice.between(10, 200),
        },
        groups: BTreeMap::new(),
        rendezvous: dice.one_in(6),
        injection_scale: dice.pick(&[1.0, 1.0, 1.0, 2.0, 1.5]),
        queues_per_dim: dice.pick(&[1, 1, 2, 3, 4]),
        ranks: Vec::new(),
    }
}

fn dims(network: Network, most: usize, dice: &mut Dice) -> Vec<Dim> {
    let count = match network {
        Network::Aware => 1,
        Network::Unaware => dice.between(1, 3),
    };
    let mut dims: Vec<Dim> = Vec::new();
    for _ in 0..count {
        let room = most / dims.iter().map(|d| d.n).product::<usize>();
        if room < 2 {
            break;
        }
        let n = match count {
            1 => dice.between(2, most as u64) as usize,
            _ => dice.between(2, (room as u64).min(8)) as usize,
        };
        let n = if dice.one_in(2) { 1 << n.ilog2() } else { n };
        let mut shape = dice.pick(&[Shape::Ring, Shape::FullyConnected, Shape::Switch]);
        if network == Network::Aware && n == 2 {
            // ASTRA-sim does not support a ring of this size.
            shape = Shape::Switch;
        }
        let bw = dice.between(10, 400) as f64;
        let lat = dice.between(1, 8000) as f64 / 4.0 + 1.0;
        dims.push(Dim { shape, n, bw, lat });
    }
    dims
}

/// Properties of a configuration that determine which algorithms ASTRA-sim supports.
struct Rules {
    tree: bool,
    npus: usize,
}

impl Rules {
    fn list(&self, kind: Kind, dims: &[Dim], dice: &mut Dice) -> Vec<Algorithm> {
        if dice.one_in(8) {
            let style = self.style(kind, self.npus, false, dice);
            return vec![Algorithm { one: true, style }];
        }
        let one = |dim: &Dim| Algorithm {
            one: false,
            style: self.style(kind, dim.n, self.tree, dice),
        };
        let mut list: Vec<Algorithm> = dims.iter().map(one).collect();
        // Shorten the list: dimensions without an algorithm do not take part.
        let trees = list.iter().any(|a| a.style == Style::DoubleBinaryTree);
        if list.len() > 1 && !trees && dice.one_in(12) {
            list.pop();
        }
        list
    }

    fn style(&self, kind: Kind, n: usize, tree: bool, dice: &mut Dice) -> Style {
        let window = dice.between(1, n as u64) as usize;
        let mut styles = vec![
            Style::Ring,
            Style::Direct(None),
            Style::Direct(Some(window)),
        ];
        if n.is_power_of_two() && kind != Kind::AllToAll {
            styles.push(Style::HalvingDoubling);
            if tree && kind == Kind::AllReduce {
                styles.push(Style::DoubleBinaryTree);
            }
        }
        dice.pick(&styles)
    }
}
