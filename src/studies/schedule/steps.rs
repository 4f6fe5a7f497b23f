//! Steps with barriers: where data are, what moves, and what a step takes.
//!
//! A log has what each chip holds. A sub-layer needs the outputs of those that it depends on, its weights, and, at the head of
//! the model, the input. What is on its chip moves nothing; what is on no chip, as every input at first, comes from memory
//! through the network interface (section IV-C); what is on one or more chips comes from the one from which it takes the
//! least time. A transfer of m bytes over links at distance d takes (Eq. 2)
//!
//! t = m d / B,
//!
//! with B the rate of a link, by the most links that a chip has; through an interface m over its rate. A chip that takes in
//! several at once takes max t + Σ m / M with M the bandwidth of its memory, and a step
//!
//! T = max over chips of that + max over chips of the time of their sub-layers.
//!
//! Energy is the power of a connection times Σ t, and what sub-layers take. Where a chip's memory is full, what it has used
//! longest ago leaves: outputs that nobody else holds and somebody needs go to memory, the rest is dropped.
//!
//! A chip of several accelerators does a sub-layer on each. They share its memory and its connections, so data that two of them
//! need come once. A host that orchestrates issues a command for each transfer and each sub-layer of a step, one after
//! another; it learns from the barrier that the step before has ended, so with n commands of d seconds a step is n d longer.

use super::{ChipSchedule, TaskGraph};
use chakram_base::setting::SettingKey;
use chakram_hardware::compute::LayerTensor;
use chakram_hardware::topology::chip_graph::{ChipGraph, LinkTechnology};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A piece of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataName {
    /// Weights by their number.
    Weights(u32),
    /// A part of the model's input by its number.
    Input(u32),
    /// The output of a sub-layer.
    Output(u32),
    /// A piece of the output of a sub-layer that is taken in pieces.
    Piece(u32, u32),
}

impl DataName {
    /// The sub-layer whose output it is, or is of.
    pub fn task(self) -> Option<u32> {
        match self {
            Self::Weights(_) | Self::Input(_) => None,
            Self::Output(task) | Self::Piece(task, _) => Some(task),
        }
    }
}

/// A place that data are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// The chip itself.
    Own,
    /// Another chip.
    Chip(u32),
    /// Memory, through the network interface.
    Memory,
}

/// Chips, links, memories and what sub-layers cost on a chip.
#[derive(Clone, Debug)]
pub struct ChipMachine {
    /// Links between chips; `None` if they reach one another through interfaces alone.
    pub links: Option<ChipGraph>,
    /// Rates of links and of interfaces.
    pub technology: LinkTechnology,
    /// Bytes that a chip holds; any number if not said.
    pub capacity: Option<u64>,
    /// Bytes per second of a chip's memory; without limit if not said.
    pub memory_bandwidth: Option<f64>,
    /// Watts of a connection while it transfers.
    pub connection_power: f64,
    /// Bytes of a number.
    pub word: u64,
    /// Accelerators of a chip.
    pub accelerators: usize,
    /// Seconds that the host takes to issue a command.
    pub dispatch: f64,
}

/// Time and energy of a sub-layer on a chip.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskCost {
    /// Seconds.
    pub seconds: f64,
    /// Joules; `None` where they are not known.
    pub joules: Option<f64>,
    /// Cycles of the accelerator.
    pub cycles: u64,
}

/// Time and energy of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Seconds in which the host issues the commands of the step.
    pub dispatch: f64,
    /// Seconds of the stage of communication.
    pub communication: f64,
    /// Seconds of the stage of processing.
    pub processing: f64,
    /// Cycles of the longest sub-layer.
    pub cycles: u64,
    /// Joules of both; `None` where a sub-layer's are not known.
    pub joules: Option<f64>,
    /// Bytes that moved between chips.
    pub between_chips: u64,
    /// Bytes that came from memory, or went there.
    pub memory: u64,
}

/// Data that a chip needed in a step, or that left it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLog {
    /// The step.
    pub step: u32,
    /// The chip.
    pub chip: u32,
    /// What.
    pub data: DataName,
    /// Its bytes.
    pub bytes: u64,
    /// Its source; `None` if it left: to memory if `written`, else for good.
    pub from: Option<DataPlace>,
    /// Whether it went to memory.
    pub written: bool,
    /// Seconds of the transfer.
    pub seconds: f64,
}

/// All steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTotals {
    /// By step.
    pub steps: Vec<StepCost>,
    /// The log, in order.
    pub log: Vec<StepLog>,
}

impl StepTotals {
    /// Seconds of all steps.
    pub fn seconds(&self) -> f64 {
        self.steps
            .iter()
            .map(|step| step.dispatch + step.communication + step.processing)
            .sum()
    }

    /// Joules of all steps, where those of all are known.
    pub fn joules(&self) -> Option<f64> {
        self.steps.iter().map(|step| step.joules).sum()
    }
}

/// A chip's data, with the step in which each was last used.
type ChipStore = BTreeMap<DataName, (u32, u64)>;

/// A machine of too many links, or data that no chip holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The table has no rate.
    #[error(
        "the table has no rate for chips of {0} links\n  try: {interpolate} step or log", interpolate = SettingKey::Interpolate)]
    NoRate(u32),
    /// More chips are scheduled than there are.
    #[error("the schedule has {found} chips, and the graph {chips}")]
    Chips {
        /// Chips of the schedule.
        found: usize,
        /// Chips of the graph.
        chips: u32,
    },
    /// One sub-layer does not fit.
    #[error(
        "sub-layer {task} needs {needs} B on its chip at once, which holds {holds} B\n  try: a larger {}, or a larger {}",
        SettingKey::Tensor,
        SettingKey::Memory
    )]
    DoesNotFit {
        /// The sub-layer.
        task: u32,
        /// Bytes of its operands and its output.
        needs: u64,
        /// Bytes of a chip.
        holds: u64,
    },
}

impl TaskGraph {
    /// Bytes of the output of a sub-layer whose numbers have `word`.
    pub fn output_bytes(&self, task: u32, word: u64) -> u64 {
        let [n, k, _, p, q, ..] = self.tasks[task as usize].record.shape.sizes;
        n * k * p * q * word
    }

    /// The output of a sub-layer as it is taken, whole or in pieces, with their bytes.
    pub fn outputs(&self, task: u32, word: u64) -> Vec<(DataName, u64)> {
        let bytes = self.output_bytes(task, word);
        let pieces = u64::from(self.tasks[task as usize].pieces);
        if pieces <= 1 {
            return vec![(DataName::Output(task), bytes)];
        }
        let until =
            |piece: u64| (u128::from(bytes) * u128::from(piece) / u128::from(pieces)) as u64;
        (0..pieces)
            .map(|piece| {
                let name = DataName::Piece(task, piece as u32);
                (name, until(piece + 1) - until(piece))
            })
            .collect()
    }

    /// Data that a sub-layer needs, with their bytes.
    pub fn needs(&self, task: u32, word: u64) -> Vec<(DataName, u64)> {
        let of = &self.tasks[task as usize];
        let mut needs = Vec::new();
        for &one in &of.after {
            let all = self.outputs(one, word);
            match of.piece.and_then(|piece| all.get(piece as usize)) {
                Some(piece) => needs.push(*piece),
                None => needs.extend(all),
            }
        }
        let shape = &of.record.shape;
        let words = |tensor| shape.words(tensor, &shape.sizes) * word;
        if let Some(input) = of.input {
            needs.push((DataName::Input(input), words(LayerTensor::Inputs)));
        }
        if let Some(weights) = of.weights {
            needs.push((DataName::Weights(weights), words(LayerTensor::Weights)));
        }
        needs
    }
}

impl ChipMachine {
    /// Seconds of a transfer of `bytes` to `chip`.
    fn transfer(&self, rate: f64, distances: Option<&[u64]>, from: DataPlace, bytes: u64) -> f64 {
        match (from, distances) {
            (DataPlace::Own, _) => 0.0,
            (DataPlace::Chip(other), Some(distances)) => {
                bytes as f64 * distances[other as usize] as f64 / rate
            }
            _ => bytes as f64 / self.technology.interface,
        }
    }

    /// Follows `schedule` step by step; `costs` are those of sub-layers.
    ///
    /// # Errors
    ///
    /// Without a rate of links, with too many chips, or with a sub-layer that does not fit.
    pub fn steps(
        &self,
        graph: &TaskGraph,
        schedule: &ChipSchedule,
        costs: &[TaskCost],
    ) -> Result<StepTotals, StepError> {
        let chips = schedule.chips.len().div_ceil(self.accelerators.max(1));
        let tasks_of = |chip: usize, step: usize| -> Vec<u32> {
            let own = schedule.of_chip(chip, self.accelerators.max(1), step);
            own.map(|(_, task)| task).collect()
        };
        let rate = match &self.links {
            None => self.technology.interface,
            Some(links) if chips > links.chips() as usize => {
                return Err(StepError::Chips {
                    found: chips,
                    chips: links.chips(),
                });
            }
            Some(links) => {
                let most = links.most_links();
                self.technology.rate(most).ok_or(StepError::NoRate(most))?
            }
        };
        let distances: Option<Vec<Vec<u64>>> = self.links.as_ref().map(|links| {
            (0..chips as u32)
                .map(|chip| links.distances_from(chip))
                .collect()
        });
        let mut uses: BTreeMap<DataName, u32> = BTreeMap::new();
        for task in 0..graph.tasks.len() as u32 {
            for (data, _) in graph.needs(task, self.word) {
                *uses.entry(data).or_default() += 1;
            }
        }
        let mut stores: Vec<ChipStore> = vec![ChipStore::new(); chips];
        let mut in_memory: BTreeSet<DataName> = BTreeSet::new();
        let mut totals = StepTotals::default();
        for step in 0..schedule.steps() {
            let mut cost = StepCost::default();
            let mut joules = Some(0.0);
            let first = totals.log.len();
            let mut commands = 0;
            // Transfers of a step see what was where when it began.
            let before: Vec<BTreeSet<DataName>> = stores
                .iter()
                .map(|store| store.keys().copied().collect())
                .collect();
            for chip in 0..chips {
                let tasks = tasks_of(chip, step);
                let Some(&task) = tasks.first() else {
                    continue;
                };
                commands += tasks.len();
                let all_of = |of: &dyn Fn(u32) -> Vec<(DataName, u64)>| -> Vec<(DataName, u64)> {
                    tasks.iter().flat_map(|task| of(*task)).collect()
                };
                let outputs = all_of(&|task| graph.outputs(task, self.word));
                let mut held = BTreeSet::new();
                let mut needs = all_of(&|task| graph.needs(task, self.word));
                // What several accelerators need comes once.
                needs.retain(|(data, _)| held.insert(*data));
                held.extend(outputs.iter().map(|(data, _)| *data));
                let (mut longest, mut taken_in) = (0.0_f64, 0_u64);
                for &(data, bytes) in &needs {
                    let of_chip = distances.as_ref().map(|all| &all[chip][..]);
                    let from = if before[chip].contains(&data) {
                        DataPlace::Own
                    } else {
                        let holders = (0..chips).filter(|other| before[*other].contains(&data));
                        let far = |other: &usize| of_chip.map_or(0, |all| all[*other]);
                        let nearest = holders.min_by_key(far);
                        nearest.map_or(DataPlace::Memory, |other| DataPlace::Chip(other as u32))
                    };
                    let seconds = self.transfer(rate, of_chip, from, bytes);
                    if from != DataPlace::Own {
                        longest = longest.max(seconds);
                        taken_in += bytes;
                        joules = joules.map(|sum| sum + self.connection_power * seconds);
                        match from {
                            DataPlace::Memory => cost.memory += bytes,
                            _ => cost.between_chips += bytes,
                        }
                    }
                    totals.log.push(StepLog {
                        step: step as u32,
                        chip: chip as u32,
                        data,
                        bytes,
                        from: Some(from),
                        written: false,
                        seconds,
                    });
                    stores[chip].insert(data, (step as u32, bytes));
                }
                for (data, bytes) in outputs {
                    stores[chip].insert(data, (step as u32, bytes));
                }
                let (written, seconds) = self.evict(
                    (step, chip, task),
                    &held,
                    (&mut stores, &mut in_memory),
                    (&uses, &mut totals),
                )?;
                cost.memory += written;
                joules = joules.map(|sum| sum + self.connection_power * seconds);
                let stage = longest.max(seconds)
                    + self
                        .memory_bandwidth
                        .map_or(0.0, |rate| (taken_in + written) as f64 / rate);
                cost.communication = cost.communication.max(stage);
                for &task in &tasks {
                    let own = costs[task as usize];
                    cost.processing = cost.processing.max(own.seconds);
                    cost.cycles = cost.cycles.max(own.cycles);
                    joules = joules.zip(own.joules).map(|(sum, own)| sum + own);
                }
            }
            let moves = |entry: &&StepLog| {
                entry.written || entry.from.is_some_and(|from| from != DataPlace::Own)
            };
            commands += totals.log[first..].iter().filter(moves).count();
            cost.dispatch = self.dispatch * commands as f64;
            cost.joules = joules;
            for task in (0..chips).flat_map(|chip| tasks_of(chip, step)) {
                for (data, _) in graph.needs(task, self.word) {
                    let left = uses.entry(data).or_default();
                    *left = left.saturating_sub(1);
                }
            }
            // Outputs that nobody needs any more are dropped without a word; weights stay for the next time.
            for store in &mut stores {
                store.retain(|data, (used, _)| {
                    uses.get(data).is_some_and(|left| *left > 0)
                        || matches!(data, DataName::Weights(_))
                        || *used == step as u32
                });
            }
            totals.steps.push(cost);
        }
        Ok(totals)
    }

    /// Has data leave a chip until what is on it fits; returns bytes written to memory, and the seconds of it.
    fn evict(
        &self,
        (step, chip, task): (usize, usize, u32),
        held: &BTreeSet<DataName>,
        (stores, in_memory): (&mut [ChipStore], &mut BTreeSet<DataName>),
        (uses, totals): (&BTreeMap<DataName, u32>, &mut StepTotals),
    ) -> Result<(u64, f64), StepError> {
        let Some(capacity) = self.capacity else {
            return Ok((0, 0.0));
        };
        let mut written = 0;
        loop {
            let bytes: u64 = stores[chip].values().map(|(_, bytes)| bytes).sum();
            if bytes <= capacity {
                return Ok((written, written as f64 / self.technology.interface));
            }
            let leaves = stores[chip].iter().filter(|(data, _)| !held.contains(data));
            let oldest = leaves.min_by_key(|(data, (used, _))| (*used, **data));
            let Some((&data, &(_, size))) = oldest else {
                let holds = capacity;
                return Err(StepError::DoesNotFit {
                    task,
                    needs: bytes,
                    holds,
                });
            };
            stores[chip].remove(&data);
            let elsewhere = stores.iter().any(|store| store.contains_key(&data));
            let is_output = data.task().is_some();
            let needed = uses.get(&data).is_some_and(|left| *left > 0);
            let goes = is_output && needed && !elsewhere && in_memory.insert(data);
            written += if goes { size } else { 0 };
            totals.log.push(StepLog {
                step: step as u32,
                chip: chip as u32,
                data,
                bytes: size,
                from: None,
                written: goes,
                seconds: if goes {
                    size as f64 / self.technology.interface
                } else {
                    0.0
                },
            });
        }
    }
}

impl fmt::Display for DataName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weights(number) => f.pad(&format!("weights {number}")),
            Self::Input(number) => f.pad(&format!("input {number}")),
            Self::Output(task) => f.pad(&format!("output {task}")),
            Self::Piece(task, piece) => f.pad(&format!("output {task}.{piece}")),
        }
    }
}

/// `step 3 chip 1: output 5, 8192 B from chip 0`.
impl fmt::Display for StepLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            chip,
            data,
            bytes,
            ..
        } = self;
        write!(f, "step {step} chip {chip}: {data}, {bytes} B ")?;
        match self.from {
            Some(DataPlace::Own) => f.write_str("on it"),
            Some(DataPlace::Chip(other)) => write!(f, "from chip {other}"),
            Some(DataPlace::Memory) => f.write_str("from memory"),
            None if self.written => f.write_str("evicted to memory"),
            None => f.write_str("evicted"),
        }
    }
}
