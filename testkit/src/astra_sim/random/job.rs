//! Random jobs: steps in which all NPUs communicate in the same order, with other work in between.

use super::super::algorithms::Style;
use super::super::config::{Attachment, Config, Kind, Node, Work};
use super::Dice;

/// A job under construction.
pub(super) struct Job<'c> {
    pub(super) config: &'c mut Config,
    /// For each NPU, the last communication node, and another node on which the next communication node
    /// depends.
    pub(super) last: Vec<Vec<u64>>,
    tag: u64,
}

/// Adds a job of collectives in which only some NPUs take part to the configuration.
pub fn overlaps(config: &mut Config, dice: &mut Dice) {
    let npus = config.npus();
    config.ranks = vec![Vec::new(); npus];
    let mut job = Job {
        config,
        last: vec![Vec::new(); npus],
        tag: 0,
    };
    for _ in 0..dice.between(1, 4) {
        job.compute(dice);
        match dice.between(0, 11) {
            10 | 11 => job.unordered(dice),
            0..=5 => job.some(dice),
            6 | 7 => job.part(dice),
            8 => job.exchange(dice),
            _ => job.everywhere(dice),
        }
    }
}

/// Adds a job, and the groups that it needs, to the configuration.
pub fn job(config: &mut Config, dice: &mut Dice) {
    let npus = config.npus();
    config.ranks = vec![Vec::new(); npus];
    let mut job = Job {
        config,
        last: vec![Vec::new(); npus],
        tag: 0,
    };
    for _ in 0..dice.between(1, 6) {
        job.compute(dice);
        match dice.between(0, 14) {
            0..=4 => job.world(dice),
            5 | 6 => job.groups(dice),
            7 => job.everyone(dice),
            8 => job.messages(dice),
            9 | 10 => job.memory(dice),
            11 => job.exchange(dice),
            12 => job.sizes(dice),
            13 => job.crowd(dice),
            _ => job.idle(dice),
        }
    }
    for npu in 0..npus {
        if job.config.ranks[npu].is_empty() || dice.one_in(4) {
            job.kernel(npu, dice);
        }
    }
}

impl Job<'_> {
    pub(super) fn add(&mut self, npu: usize, deps: Vec<u64>, work: Work, dice: &mut Dice) -> u64 {
        let trace = &mut self.config.ranks[npu];
        let id = trace.last().map_or(1, |n| n.id) + dice.pick(&[1, 1, 1, 7]);
        trace.push(Node {
            id,
            deps,
            cpu: match work {
                Work::Compute { .. } => dice.one_in(8),
                Work::Memory { .. } | Work::Nothing => false,
                // ASTRA-sim supports communication on the host only if it replays recorded durations.
                _ => self.config.system.replay_only && dice.one_in(8),
            },
            micros: dice.between(0, 60),
            work,
        });
        id
    }

    pub(super) fn kernel(&mut self, npu: usize, dice: &mut Dice) -> u64 {
        let deps = self.last[npu].clone();
        let ops = dice.size(1 << 30, 1 << 36);
        let bytes = dice.size(1 << 16, 1 << 26);
        self.add(npu, deps, Work::Compute { ops, bytes }, dice)
    }

    /// Adds kernels on some NPUs, before or during their next communication.
    fn compute(&mut self, dice: &mut Dice) {
        for npu in 0..self.last.len() {
            if dice.one_in(2) {
                continue;
            }
            let id = self.kernel(npu, dice);
            if !dice.one_in(3) {
                self.last[npu] = vec![id];
            }
        }
    }

    /// Adds a node for which the next communication waits.
    pub(super) fn next(&mut self, npu: usize, work: Work, dice: &mut Dice) {
        let deps = self.last[npu].clone();
        let id = self.add(npu, deps, work, dice);
        self.last[npu] = vec![id];
    }

    pub(super) fn kind(dice: &mut Dice) -> Kind {
        dice.pick(&[
            Kind::AllReduce,
            Kind::AllReduce,
            Kind::AllGather,
            Kind::ReduceScatter,
            Kind::AllToAll,
        ])
    }

    /// Returns a size for a collective. In ASTRA-sim, all-gathers of less than a byte per chunk never end, so such
    /// sizes are avoided.
    pub(super) fn bytes(&self, kind: Kind, dice: &mut Dice) -> u64 {
        match kind {
            Kind::AllGather => dice.size(self.config.system.splits, 1 << 20),
            _ => dice.size(1, 8 << 20),
        }
    }

    /// Adds a collective of all NPUs, in all or in some dimensions.
    fn world(&mut self, dice: &mut Dice) {
        let kind = Self::kind(dice);
        let bytes = self.bytes(kind, dice);
        let list = &self.config.system.algorithms[&kind];
        let one = list.iter().any(|a| a.one);
        // At least one dimension with an algorithm must take part, otherwise the collective never ends.
        let count = list.len() as u64;
        let mut dims = None;
        if count > 1 && !one && dice.one_in(3) {
            let mask = dice.between(1, (1 << count) - 1);
            let rest = self.config.dims.len() as u64;
            let takes_part = |d| match d < count {
                true => mask >> d & 1 == 1,
                false => dice.one_in(2),
            };
            dims = Some((0..rest).map(takes_part).collect());
        }
        let work = Work::Collective {
            kind,
            bytes,
            group: 0,
            dims,
            priority: dice.between(0, 3) as i64,
        };
        for npu in 0..self.last.len() {
            self.next(npu, work.clone(), dice);
        }
    }

    /// Adds the same collective in each of several groups that together contain all NPUs.
    fn groups(&mut self, dice: &mut Dice) {
        let npus = self.last.len();
        let kind = Self::kind(dice);
        let list = &self.config.system.algorithms[&kind];
        let style = match list[..] {
            [only] => only.style,
            _ => Style::Ring,
        };
        let legal = |size: &usize| match style {
            Style::DoubleBinaryTree => false,
            Style::HalvingDoubling => size.is_power_of_two(),
            _ => true,
        };
        let divides = |size: &usize| npus.is_multiple_of(*size);
        let sizes: Vec<usize> = (2..npus).filter(divides).filter(legal).collect();
        if sizes.is_empty() {
            return self.world(dice);
        }
        let size = dice.pick(&sizes);
        let mut order: Vec<usize> = (0..npus).collect();
        match dice.between(0, 2) {
            0 => {}
            1 => order.sort_by_key(|npu| npu % (npus / size)),
            _ => order.sort_by_cached_key(|_| dice.roll()),
        }
        let bytes = self.bytes(kind, dice);
        for members in order.chunks(size) {
            let group = self.group(members, dice);
            let work = Work::Collective {
                kind,
                bytes,
                group,
                dims: None,
                priority: 0,
            };
            for &npu in members {
                self.next(npu, work.clone(), dice);
            }
        }
    }

    /// Returns the id of a group with these members; adds the group if there is none.
    pub(super) fn group(&mut self, members: &[usize], dice: &mut Dice) -> u64 {
        let known = self.config.groups.iter().find(|(_, m)| **m == members);
        match known {
            Some((&group, _)) if !dice.one_in(3) => group,
            _ => {
                let group =
                    self.config.groups.keys().max().copied().unwrap_or(0) + dice.between(1, 3);
                self.config.groups.insert(group, members.to_vec());
                group
            }
        }
    }

    /// Adds a collective of a group of all NPUs in random order.
    fn everyone(&mut self, dice: &mut Dice) {
        let mut members: Vec<usize> = (0..self.last.len()).collect();
        if dice.one_in(2) {
            members.sort_by_cached_key(|_| dice.roll());
        }
        let group = self.group(&members, dice);
        let kind = Self::kind(dice);
        let bytes = self.bytes(kind, dice);
        let dims = dice.one_in(4).then(|| vec![false, true, false, true]);
        let one = self.config.system.algorithms[&kind].iter().any(|a| a.one);
        let work = Work::Collective {
            kind,
            bytes,
            group,
            dims: dims.filter(|_| !one),
            priority: dice.between(0, 3) as i64,
        };
        for npu in 0..self.last.len() {
            self.next(npu, work.clone(), dice);
        }
    }

    /// Adds several equal, independent collectives, each preceded by its own kernel.
    fn crowd(&mut self, dice: &mut Dice) {
        let kind = Self::kind(dice);
        let bytes = self.bytes(kind, dice).min(1 << 18);
        let count = dice.between(2, 4);
        for npu in 0..self.last.len() {
            let before = self.last[npu].clone();
            let mut ends = Vec::new();
            for _ in 0..count {
                let mut deps = before.clone();
                if dice.one_in(2) {
                    deps.push(self.kernel(npu, dice));
                }
                let work = Work::Collective {
                    kind,
                    bytes,
                    group: 0,
                    dims: None,
                    priority: dice.between(0, 3) as i64,
                };
                ends.push(self.add(npu, deps, work, dice));
            }
            self.last[npu] = ends;
        }
    }

    /// Adds messages of several sizes with one tag, which are received in a different order than they
    /// are sent.
    fn sizes(&mut self, dice: &mut Dice) {
        let npus = self.last.len() as u64;
        let src = dice.between(0, npus - 1) as usize;
        let dst = (src + dice.between(1, npus - 1) as usize) % npus as usize;
        let (_, tag) = self.message(dice);
        let mut sizes: Vec<u64> = (0..dice.between(2, 5))
            .map(|_| dice.size(1000, 1 << 21))
            .collect();
        sizes.push(sizes[0]);
        for &bytes in &sizes {
            self.next(src, Work::Send { dst, bytes, tag }, dice);
        }
        sizes.sort_by_cached_key(|_| dice.roll());
        let before = self.last[dst].clone();
        let mut receive =
            |bytes| self.add(dst, before.clone(), Work::Receive { src, bytes, tag }, dice);
        self.last[dst] = sizes.into_iter().map(&mut receive).collect();
    }

    /// Adds nodes that do nothing or only take time. ASTRA-sim issues the dependents of a node that does nothing
    /// only when another node ends.
    fn idle(&mut self, dice: &mut Dice) {
        for npu in 0..self.last.len() {
            let deps = self.last[npu].clone();
            match dice.between(0, 20) {
                0 => {
                    self.add(npu, deps, Work::Nothing, dice);
                }
                1 => self.next(npu, Work::Nothing, dice),
                2 | 3 => {
                    let nothing = self.add(npu, deps, Work::Nothing, dice);
                    let kernel = self.kernel(npu, dice);
                    self.last[npu] = vec![nothing, kernel];
                }
                4 => self.next(npu, Work::Broadcast, dice),
                5 => self.next(
                    npu,
                    Work::Compute {
                        ops: 1 << 30,
                        bytes: 0,
                    },
                    dice,
                ),
                _ => {}
            }
        }
    }

    /// Adds messages between some NPUs.
    fn messages(&mut self, dice: &mut Dice) {
        let npus = self.last.len() as u64;
        for _ in 0..dice.between(1, 6) {
            let src = dice.between(0, npus - 1) as usize;
            let dst = (src + dice.between(1, npus - 1) as usize) % npus as usize;
            let (bytes, tag) = self.message(dice);
            self.next(src, Work::Send { dst, bytes, tag }, dice);
            self.next(dst, Work::Receive { src, bytes, tag }, dice);
        }
    }

    /// Adds an exchange, in which each NPU sends over the same distance and receives at the same time.
    fn exchange(&mut self, dice: &mut Dice) {
        let npus = self.last.len();
        let distance = dice.between(1, npus as u64 - 1) as usize;
        let (bytes, tag) = self.message(dice);
        for npu in 0..npus {
            let deps = self.last[npu].clone();
            let dst = (npu + distance) % npus;
            let src = (npu + npus - distance) % npus;
            let works = [
                Work::Send { dst, bytes, tag },
                Work::Receive { src, bytes, tag },
            ];
            self.last[npu] = works
                .into_iter()
                .map(|work| self.add(npu, deps.clone(), work, dice))
                .collect();
        }
    }

    /// Returns the size and tag of a message. The size is large enough to take time; tags may repeat.
    fn message(&mut self, dice: &mut Dice) -> (u64, u64) {
        if dice.one_in(2) {
            self.tag += 1;
        }
        (dice.size(1000, 1 << 21), self.tag)
    }

    /// Adds loads or stores.
    fn memory(&mut self, dice: &mut Dice) {
        if self.config.memory.attachment == Attachment::None {
            return self.world(dice);
        }
        for npu in 0..self.last.len() {
            for _ in 0..dice.between(0, 2) {
                let store = dice.one_in(2);
                let bytes = dice.size(1000, 1 << 24);
                self.next(npu, Work::Memory { store, bytes }, dice);
            }
        }
    }
}
