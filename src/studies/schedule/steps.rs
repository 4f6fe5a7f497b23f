//! Simulates steps with barriers: where the data are, what each step transfers, and how long it takes.
//!
//! The simulation tracks the data on each chip. A sub-layer needs its predecessors' outputs, its weights and, at the
//! beginning of the model, the input. Data already on its chip need no transfer. If no chip has the data, they come
//! from memory through the network interface (DEAP, section IV-C). At first, no chip has inputs. If several other chips
//! have the data, they come from the chip with the shortest transfer time. A transfer of m bytes over links at distance
//! d takes (DEAP's Eq. 2)
//!
//! t = m d / B,
//!
//! where B is the rate of one link. The rate depends on the largest number of links on any chip. A transfer through an
//! interface takes m divided by the interface's rate. Simultaneous transfers to a chip take max t + Σ m / M, where M is
//! the bandwidth of the chip's memory. A step takes
//!
//! T = (longest communication time of a chip) + (longest processing time of a chip).
//!
//! Energy is the power of a connection times Σ t, plus the energy of sub-layers. If a chip's memory is full, it evicts
//! the least recently used data. An evicted output is written to memory if a later step needs it and no other chip has
//! it. Other evicted data are dropped.
//!
//! If a chip has several accelerators, each runs a sub-layer. They share the chip's memory and connections, so data
//! that two of them need are transferred only once. A host that controls the chips issues a step's commands one after
//! another: one for each transfer and each sub-layer. It learns from the barrier that the previous step has ended. It
//! issues none of a step's commands earlier, so n commands of d seconds each lengthen the step by n d.

use super::{OrderedSubLayersOfModel, SubLayersByAcceleratorAndStep};
use chakram_base::setting::SettingKey;
use chakram_hardware::compute::LayerTensor;
use chakram_hardware::topology::chip_graph::{ChipGraph, LinkRateByLinkCount};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Identifies data that can be on a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChipDataId {
    /// The weights with this index.
    Weights(u32),
    /// The part of the model's input with this index.
    Input(u32),
    /// The output of the sub-layer with this index.
    Output(u32),
    /// A piece of a sub-layer's output that is read in pieces: the sub-layer, and the index of the piece.
    Piece(u32, u32),
}

impl ChipDataId {
    /// Returns the sub-layer that produces the data; `None` for weights and parts of the input.
    pub fn producing_task(self) -> Option<u32> {
        match self {
            Self::Weights(_) | Self::Input(_) => None,
            Self::Output(task) | Self::Piece(task, _) => Some(task),
        }
    }
}

/// Source of data that a chip needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferSource {
    /// The chip itself, so there is no transfer.
    Own,
    /// Another chip, by its index.
    Chip(u32),
    /// Memory, through the network interface.
    Memory,
}

/// Chips, links and memories, and the parameters that determine a step's time and energy.
#[derive(Clone, Debug)]
pub struct MultiChipMachine {
    /// The links between chips; `None` if chips are connected only through interfaces.
    pub links: Option<ChipGraph>,
    /// Rates of the links and of the interfaces.
    pub technology: LinkRateByLinkCount,
    /// Memory of a chip in bytes; `None` if it is unlimited.
    pub capacity: Option<u64>,
    /// Bandwidth of a chip's memory in bytes per second; `None` if it is unlimited.
    pub memory_bandwidth: Option<f64>,
    /// Power of a connection while it transfers data, in watts.
    pub connection_power: f64,
    /// Number of bytes per tensor element, the same for all tensors.
    pub word: u64,
    /// Number of accelerators per chip.
    pub accelerators: usize,
    /// Time that the host takes to issue one command, in seconds.
    pub dispatch: f64,
}

/// Time and energy that a sub-layer takes on a chip.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SubLayerTimeAndEnergy {
    /// Duration of the sub-layer, in seconds.
    pub seconds: f64,
    /// Energy of the sub-layer in joules; `None` if it is unknown.
    pub joules: Option<f64>,
    /// Clock cycles that the sub-layer takes on the accelerator.
    pub cycles: u64,
}

/// Time and energy that a step takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimeAndEnergy {
    /// Time that the host takes to issue the step's commands, in seconds.
    pub dispatch: f64,
    /// Time of the communication stage, in seconds.
    pub communication: f64,
    /// Time of the processing stage, in seconds.
    pub processing: f64,
    /// Clock cycles of the step's longest sub-layer.
    pub cycles: u64,
    /// Energy of both stages in joules; `None` if any sub-layer's energy is unknown.
    pub joules: Option<f64>,
    /// Bytes that the step moves between chips.
    pub between_chips: u64,
    /// Bytes moved between memory and chips, in both directions.
    pub memory: u64,
}

/// Log entry for data that a chip needed or evicted in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChipDataNeedOrEviction {
    /// Index of the step, counting from 0.
    pub step: u32,
    /// Index of the chip that needs or evicts the data.
    pub chip: u32,
    /// The data that were needed or evicted.
    pub data: ChipDataId,
    /// Size of the data in bytes.
    pub bytes: u64,
    /// Source of the needed data. `None` for evicted data, which the chip wrote to memory if `written` is true, and
    /// dropped otherwise.
    pub from: Option<TransferSource>,
    /// True if evicted data were written to memory.
    pub written: bool,
    /// Duration of the transfer, in seconds.
    pub seconds: f64,
}

/// Costs of all steps, and the log of transfers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepCostsAndTransferLog {
    /// Cost of each step, in order.
    pub steps: Vec<StepTimeAndEnergy>,
    /// Log of transfers and evictions, in order.
    pub log: Vec<ChipDataNeedOrEviction>,
}

impl StepCostsAndTransferLog {
    /// Returns the sum of all steps' durations in seconds.
    pub fn total_seconds(&self) -> f64 {
        self.steps
            .iter()
            .map(|step| step.dispatch + step.communication + step.processing)
            .sum()
    }

    /// Returns the energy of all steps in joules, or `None` if the energy of any step is unknown.
    pub fn total_joules(&self) -> Option<f64> {
        self.steps.iter().map(|step| step.joules).sum()
    }
}

/// The data on a chip, with their size in bytes and the step in which they were last used.
type ChipDataLastUseAndBytes = BTreeMap<ChipDataId, (u32, u64)>;

/// Reason why the schedule cannot run on the machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleRunError {
    /// The technology's table has no rate for chips with this number of links.
    #[error(
        "the table has no rate for chips of {0} links\n  try: {interpolate} step or log", interpolate = SettingKey::Interpolate)]
    NoRate(u32),
    /// The schedule uses more chips than the graph of links has.
    #[error("the schedule has {found} chips, but the graph has {chips}")]
    Chips {
        /// Number of chips in the schedule.
        found: usize,
        /// Number of chips in the graph of links.
        chips: u32,
    },
    /// A sub-layer needs more data at once than its chip's memory can store.
    #[error(
        "sub-layer {task} needs {needs} B on its chip at once, but the chip has {holds} B\n  try: a larger {}, or a larger {}",
        SettingKey::Tensor,
        SettingKey::Memory
    )]
    DoesNotFit {
        /// Index of the sub-layer that needs too much data.
        task: u32,
        /// Bytes of the sub-layer's operands and output.
        needs: u64,
        /// Memory capacity of a chip in bytes.
        holds: u64,
    },
}

impl OrderedSubLayersOfModel {
    /// Returns the size of a sub-layer's output in bytes, with `word` bytes per element.
    pub fn output_bytes(&self, task: u32, word: u64) -> u64 {
        let [n, k, _, p, q, ..] = self.tasks[task as usize].record.shape.sizes;
        n * k * p * q * word
    }

    /// Returns the parts of a sub-layer's output with their sizes in bytes. There are several parts if other sub-layers
    /// read the output in pieces.
    pub fn output_pieces_with_bytes(&self, task: u32, word: u64) -> Vec<(ChipDataId, u64)> {
        let bytes = self.output_bytes(task, word);
        let pieces = u64::from(self.tasks[task as usize].pieces);
        if pieces <= 1 {
            return vec![(ChipDataId::Output(task), bytes)];
        }
        // Round the cumulative sizes, so that the bytes of the pieces add up to those of the output.
        let until =
            |piece: u64| (u128::from(bytes) * u128::from(piece) / u128::from(pieces)) as u64;
        (0..pieces)
            .map(|piece| {
                let name = ChipDataId::Piece(task, piece as u32);
                (name, until(piece + 1) - until(piece))
            })
            .collect()
    }

    /// Returns the data that a sub-layer needs, with their sizes in bytes.
    pub fn data_needed_by(&self, task: u32, word: u64) -> Vec<(ChipDataId, u64)> {
        let of = &self.tasks[task as usize];
        let mut needs = Vec::new();
        for &one in &of.after {
            let all = self.output_pieces_with_bytes(one, word);
            match of.piece.and_then(|piece| all.get(piece as usize)) {
                Some(piece) => needs.push(*piece),
                None => needs.extend(all),
            }
        }
        let shape = &of.record.shape;
        let words = |tensor| shape.count_tensor_words(tensor, &shape.sizes) * word;
        if let Some(input) = of.input {
            needs.push((ChipDataId::Input(input), words(LayerTensor::Inputs)));
        }
        if let Some(weights) = of.weights {
            needs.push((ChipDataId::Weights(weights), words(LayerTensor::Weights)));
        }
        needs
    }
}

impl MultiChipMachine {
    /// Returns the duration of a transfer of `bytes` bytes to `chip`, in seconds.
    fn transfer_seconds(
        &self,
        rate: f64,
        distances: Option<&[u64]>,
        from: TransferSource,
        bytes: u64,
    ) -> f64 {
        match (from, distances) {
            (TransferSource::Own, _) => 0.0,
            (TransferSource::Chip(other), Some(distances)) => {
                bytes as f64 * distances[other as usize] as f64 / rate
            }
            _ => bytes as f64 / self.technology.interface,
        }
    }

    /// Simulates `schedule` step by step; `costs` contains one entry per sub-layer.
    ///
    /// # Errors
    ///
    /// Fails if the table has no rate for the number of links, if the schedule uses too many chips,
    /// or if a sub-layer's data do not fit on its chip.
    pub fn simulate_steps(
        &self,
        graph: &OrderedSubLayersOfModel,
        schedule: &SubLayersByAcceleratorAndStep,
        costs: &[SubLayerTimeAndEnergy],
    ) -> Result<StepCostsAndTransferLog, ScheduleRunError> {
        let chips = schedule.chips.len().div_ceil(self.accelerators.max(1));
        let tasks_of = |chip: usize, step: usize| -> Vec<u32> {
            let own = schedule.sub_layers_of_chip_at_step(chip, self.accelerators.max(1), step);
            own.map(|(_, task)| task).collect()
        };
        let rate = match &self.links {
            None => self.technology.interface,
            Some(links) if chips > links.chip_count() as usize => {
                return Err(ScheduleRunError::Chips {
                    found: chips,
                    chips: links.chip_count(),
                });
            }
            Some(links) => {
                let most = links.max_links_per_chip();
                self.technology
                    .rate_per_link(most)
                    .ok_or(ScheduleRunError::NoRate(most))?
            }
        };
        let distances: Option<Vec<Vec<u64>>> = self.links.as_ref().map(|links| {
            (0..chips as u32)
                .map(|chip| links.shortest_link_length_sums_from_chip(chip))
                .collect()
        });
        let mut uses: BTreeMap<ChipDataId, u32> = BTreeMap::new();
        for task in 0..graph.tasks.len() as u32 {
            for (data, _) in graph.data_needed_by(task, self.word) {
                *uses.entry(data).or_default() += 1;
            }
        }
        let mut stores: Vec<ChipDataLastUseAndBytes> = vec![ChipDataLastUseAndBytes::new(); chips];
        let mut in_memory: BTreeSet<ChipDataId> = BTreeSet::new();
        let mut totals = StepCostsAndTransferLog::default();
        for step in 0..schedule.step_count() {
            let mut cost = StepTimeAndEnergy::default();
            let mut joules = Some(0.0);
            let first = totals.log.len();
            let mut commands = 0;
            // All transfers of a step take the data from where they are when the step begins.
            let before: Vec<BTreeSet<ChipDataId>> = stores
                .iter()
                .map(|store| store.keys().copied().collect())
                .collect();
            for chip in 0..chips {
                let tasks = tasks_of(chip, step);
                let Some(&task) = tasks.first() else {
                    continue;
                };
                commands += tasks.len();
                let all_of =
                    |of: &dyn Fn(u32) -> Vec<(ChipDataId, u64)>| -> Vec<(ChipDataId, u64)> {
                        tasks.iter().flat_map(|task| of(*task)).collect()
                    };
                let outputs = all_of(&|task| graph.output_pieces_with_bytes(task, self.word));
                let mut held = BTreeSet::new();
                let mut needs = all_of(&|task| graph.data_needed_by(task, self.word));
                // Data that several accelerators of a chip need are transferred only once.
                needs.retain(|(data, _)| held.insert(*data));
                held.extend(outputs.iter().map(|(data, _)| *data));
                let (mut longest, mut taken_in) = (0.0_f64, 0_u64);
                for &(data, bytes) in &needs {
                    let of_chip = distances.as_ref().map(|all| &all[chip][..]);
                    let from = if before[chip].contains(&data) {
                        TransferSource::Own
                    } else {
                        let holders = (0..chips).filter(|other| before[*other].contains(&data));
                        let far = |other: &usize| of_chip.map_or(0, |all| all[*other]);
                        let nearest = holders.min_by_key(far);
                        nearest.map_or(TransferSource::Memory, |other| {
                            TransferSource::Chip(other as u32)
                        })
                    };
                    let seconds = self.transfer_seconds(rate, of_chip, from, bytes);
                    if from != TransferSource::Own {
                        longest = longest.max(seconds);
                        taken_in += bytes;
                        joules = joules.map(|sum| sum + self.connection_power * seconds);
                        match from {
                            TransferSource::Memory => cost.memory += bytes,
                            _ => cost.between_chips += bytes,
                        }
                    }
                    totals.log.push(ChipDataNeedOrEviction {
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
                let (written, seconds) = self.evict_until_fit(
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
            let moves = |entry: &&ChipDataNeedOrEviction| {
                entry.written || entry.from.is_some_and(|from| from != TransferSource::Own)
            };
            commands += totals.log[first..].iter().filter(moves).count();
            cost.dispatch = self.dispatch * commands as f64;
            cost.joules = joules;
            for task in (0..chips).flat_map(|chip| tasks_of(chip, step)) {
                for (data, _) in graph.data_needed_by(task, self.word) {
                    let left = uses.entry(data).or_default();
                    *left = left.saturating_sub(1);
                }
            }
            // Drop an output that no later step uses, but do not log this. Keep weights for later steps.
            for store in &mut stores {
                store.retain(|data, (used, _)| {
                    uses.get(data).is_some_and(|left| *left > 0)
                        || matches!(data, ChipDataId::Weights(_))
                        || *used == step as u32
                });
            }
            totals.steps.push(cost);
        }
        Ok(totals)
    }

    /// Evicts data from a chip until the rest fit into its memory. Returns the bytes that were written to memory, and
    /// the duration of the writes in seconds.
    fn evict_until_fit(
        &self,
        (step, chip, task): (usize, usize, u32),
        held: &BTreeSet<ChipDataId>,
        (stores, in_memory): (&mut [ChipDataLastUseAndBytes], &mut BTreeSet<ChipDataId>),
        (uses, totals): (&BTreeMap<ChipDataId, u32>, &mut StepCostsAndTransferLog),
    ) -> Result<(u64, f64), ScheduleRunError> {
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
                return Err(ScheduleRunError::DoesNotFit {
                    task,
                    needs: bytes,
                    holds,
                });
            };
            stores[chip].remove(&data);
            let elsewhere = stores.iter().any(|store| store.contains_key(&data));
            let is_output = data.producing_task().is_some();
            let needed = uses.get(&data).is_some_and(|left| *left > 0);
            let goes = is_output && needed && !elsewhere && in_memory.insert(data);
            written += if goes { size } else { 0 };
            totals.log.push(ChipDataNeedOrEviction {
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

impl fmt::Display for ChipDataId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weights(number) => f.pad(&format!("weights {number}")),
            Self::Input(number) => f.pad(&format!("input {number}")),
            Self::Output(task) => f.pad(&format!("output {task}")),
            Self::Piece(task, piece) => f.pad(&format!("output {task}.{piece}")),
        }
    }
}

/// Formats a log entry: `step 3 chip 1: output 5, 8192 B from chip 0`.
impl fmt::Display for ChipDataNeedOrEviction {
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
            Some(TransferSource::Own) => f.write_str("on it"),
            Some(TransferSource::Chip(other)) => write!(f, "from chip {other}"),
            Some(TransferSource::Memory) => f.write_str("from memory"),
            None if self.written => f.write_str("evicted to memory"),
            None => f.write_str("evicted"),
        }
    }
}
