//! Orders of passes, read from a file in the format of PyTorch's pipelining: each line is a stage, and commas separate
//! its steps.
//!
//! | cell | |
//! |---|---|
//! | `2F0` | forward pass of micro-batch 0 through part 2 of the model |
//! | `2B0` | its backward pass, including the gradients of weights |
//! | `2I0`, `2W0` | the gradients of its inputs, and separately the gradients of its weights |
//! | `(0F4;3B0)OVERLAP_F_B` | a forward pass that overlaps a backward pass |
//! | nothing | the stage waits; ignored, because the replay determines waiting |
//!
//! A stage has the parts of the model that occur in its line. Every part must be on exactly one stage.

use super::{PassKind, PassOrOverlappingPair, PipelinePass, mark_last_step_of_each_chunk};
use std::collections::BTreeMap;
use std::fmt;

/// The order of passes on each stage, read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagePassOrders {
    /// Steps of each stage, in execution order.
    steps: Vec<Vec<PassOrOverlappingPair>>,
    /// Parts of the model on each stage, in ascending order.
    parts: Vec<Vec<u32>>,
    /// Stage and chunk of each part of the model.
    places: Vec<(u32, u32)>,
    micro_batches: u32,
    trains: bool,
}

/// An invalid cell, line or file of pass orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassOrderFileError {
    /// Number of the invalid line, counting from 1. If the file as a whole is invalid, this is the number of lines.
    pub line: usize,
    /// Number of the invalid cell in its line, from 1; `None` if no single cell is invalid.
    pub cell: Option<usize>,
    /// The invalid text.
    pub found: String,
    /// Description of valid text.
    pub expected: String,
}

impl fmt::Display for PassOrderFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(cell) = self.cell {
            write!(f, ", step {cell}")?;
        }
        write!(f, ": found {}, expected {}", self.found, self.expected)
    }
}

impl std::error::Error for PassOrderFileError {}

/// Valid cells, for error messages.
const CELLS: &str = "a part, one of F, B, I and W, and a micro-batch, such as 2F0; or a pair such as \
                     (0F4;3B0)OVERLAP_F_B; messages, gathers and reductions follow from the plan";

/// Maximum number of parts, of micro-batches, and of steps per stage.
const MOST: usize = 1 << 24;

/// Kind, part and micro-batch of a pass. It has a part instead of a chunk, because the chunk is unknown while cells are
/// parsed.
type ModelPartPass = (PassKind, u32, u32);

/// Index of a cell in its line (from 1), the cell's pass, and the pass that overlaps it.
type OrderFilePassCell = (usize, (ModelPartPass, Option<ModelPartPass>));

fn parse_pass(text: &str) -> Option<ModelPartPass> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let (part, rest) = text.split_at(at);
    let mut rest = rest.chars();
    let kind = match rest.next()? {
        'F' => PassKind::Forward,
        'B' => PassKind::Backward,
        'I' => PassKind::InputGradient,
        'W' => PassKind::WeightGradient,
        _ => return None,
    };
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| is_number);
        number.filter(|n: &u32| (*n as usize) < MOST)
    };
    Some((kind, number(part)?, number(rest.as_str())?))
}

/// Parses a cell: a pass, and an optional overlapping pass.
fn parse_pass_or_overlapping_pair(text: &str) -> Option<(ModelPartPass, Option<ModelPartPass>)> {
    let Some(pair) = text.strip_prefix('(') else {
        return Some((parse_pass(text)?, None));
    };
    let (first, second) = pair.strip_suffix(")OVERLAP_F_B")?.split_once(';')?;
    let (first, second) = (parse_pass(first.trim())?, parse_pass(second.trim())?);
    let is_pair = first.0 == PassKind::Forward && second.0 != PassKind::Forward;
    is_pair.then_some((first, Some(second)))
}

impl StagePassOrders {
    /// Parses a file in which the first line is the first stage.
    ///
    /// # Errors
    ///
    /// Fails if a cell is not a valid pass; if a pass is missing, occurs twice, or precedes its
    /// inputs; if two stages have the same part; or if stages wait for one another in a cycle.
    pub fn parse(text: &str) -> Result<Self, PassOrderFileError> {
        let lines: Vec<&str> = text.lines().collect();
        // Trailing empty lines are ignored.
        let blank = |line: &&&str| line.trim().is_empty();
        let count = lines.len() - lines.iter().rev().take_while(blank).count();
        Self::parse_stage_lines(&lines[..count])
    }

    /// Parses one line per stage.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`StagePassOrders::parse`].
    pub fn parse_stage_lines<L: AsRef<str>>(lines: &[L]) -> Result<Self, PassOrderFileError> {
        let whole = |found: String, expected: String| PassOrderFileError {
            line: lines.len(),
            cell: None,
            found,
            expected,
        };
        let mut cells = Vec::new();
        let mut parts: Vec<Vec<u32>> = Vec::new();
        for (row, line) in (1..).zip(lines) {
            let mut own = Vec::new();
            for (column, text) in (1..).zip(line.as_ref().split(',')) {
                // PyTorch does not quote cells, but other writers may.
                let text = text.trim().trim_matches('"').trim();
                if text.is_empty() {
                    continue;
                }
                let cell =
                    parse_pass_or_overlapping_pair(text).ok_or_else(|| PassOrderFileError {
                        line: row,
                        cell: Some(column),
                        found: format!("{text:?}"),
                        expected: CELLS.to_owned(),
                    })?;
                own.push((column, cell));
            }
            let mut of_line: Vec<u32> = own
                .iter()
                .flat_map(|(_, (first, second))| [Some(first.1), second.map(|pass| pass.1)])
                .flatten()
                .collect();
            of_line.sort_unstable();
            of_line.dedup();
            parts.push(of_line);
            cells.push(own);
        }
        let chunks = parts.first().map_or(0, Vec::len);
        if chunks == 0 {
            return Err(whole(
                "no passes".to_owned(),
                "a line of passes for each stage".to_owned(),
            ));
        }
        for (row, own) in (1..).zip(&parts) {
            if own.len() != chunks {
                return Err(PassOrderFileError {
                    line: row,
                    cell: None,
                    found: format!("{} parts of the model", own.len()),
                    expected: format!("{chunks}, as many as the first stage has"),
                });
            }
        }
        let mut places = vec![None; parts.len() * chunks];
        for (stage, own) in parts.iter().enumerate() {
            for (chunk, part) in own.iter().enumerate() {
                let all = places.len();
                let place = places
                    .get_mut(*part as usize)
                    .ok_or_else(|| PassOrderFileError {
                        line: stage + 1,
                        cell: None,
                        found: format!("part {part}"),
                        expected: format!("parts 0 to {}, {chunks} in each stage", all - 1),
                    })?;
                if let Some((other, _)) = place.replace((stage as u32, chunk as u32)) {
                    return Err(PassOrderFileError {
                        line: stage + 1,
                        cell: None,
                        found: format!("part {part}"),
                        expected: format!(
                            "each part on one stage; line {} has the same part",
                            other + 1
                        ),
                    });
                }
            }
        }
        // Every part has a stage by now, so `flatten` drops no part.
        let places: Vec<(u32, u32)> = places.into_iter().flatten().collect();
        let mut steps = Vec::with_capacity(cells.len());
        for own in &cells {
            let pass = |(kind, part, micro_batch): ModelPartPass| PipelinePass {
                kind,
                micro_batch,
                chunk: places[part as usize].1,
            };
            let mut own: Vec<PassOrOverlappingPair> = own
                .iter()
                .map(|(_, (first, second))| PassOrOverlappingPair {
                    beside: second.map(pass),
                    ..PassOrOverlappingPair::from_single_pass(pass(*first))
                })
                .collect();
            mark_last_step_of_each_chunk(&mut own);
            steps.push(own);
        }
        let all = || cells.iter().flatten();
        let passes = all().flat_map(|(_, (first, second))| [Some(*first), *second]);
        let (mut micro_batches, mut trains) = (0, false);
        for (kind, _, micro_batch) in passes.flatten() {
            micro_batches = micro_batches.max(micro_batch + 1);
            trains |= kind != PassKind::Forward;
        }
        let orders = Self {
            steps,
            parts,
            places,
            micro_batches,
            trains,
        };
        for (stage, cells) in cells.iter().enumerate() {
            orders.check_stage_order(stage, cells)?;
        }
        orders.check_no_waiting_cycle(&cells)?;
        Ok(orders)
    }

    /// Checks that a stage runs each of its passes once, and that each pass comes after the passes on the same stage on
    /// which it depends.
    fn check_stage_order(
        &self,
        stage: usize,
        cells: &[OrderFilePassCell],
    ) -> Result<(), PassOrderFileError> {
        // For each part and micro-batch, states which of its passes are complete: forward, input gradients, weight
        // gradients.
        let mut done: BTreeMap<(u32, u32), [bool; 3]> = BTreeMap::new();
        // Check the backward pass of a pair first: it must not use the pair's forward pass, because the two run at the
        // same time.
        let passes = cells.iter().flat_map(|(column, (first, second))| {
            [second.map(|pass| (*column, pass)), Some((*column, *first))]
        });
        for (column, (kind, part, micro_batch)) in passes.flatten() {
            let state = done.entry((part, micro_batch)).or_default();
            let (needs, makes): (&[usize], &[usize]) = match kind {
                PassKind::Forward => (&[], &[0]),
                PassKind::Backward => (&[0], &[1, 2]),
                PassKind::InputGradient => (&[0], &[1]),
                PassKind::WeightGradient => (&[0, 1], &[2]),
            };
            let again = makes.iter().any(|one| state[*one]);
            if again || !needs.iter().all(|one| state[*one]) {
                return Err(PassOrderFileError {
                    line: stage + 1,
                    cell: Some(column),
                    found: format!("{part}{}{micro_batch}", pass_letter(kind)),
                    expected: match again {
                        true => "each pass once".to_owned(),
                        false => "each pass after the pass of the same micro-batch that it needs"
                            .to_owned(),
                    },
                });
            }
            makes.iter().for_each(|one| state[*one] = true);
        }
        for part in &self.parts[stage] {
            for micro_batch in 0..self.micro_batches {
                let state = done.get(&(*part, micro_batch)).copied().unwrap_or_default();
                let missing = match state {
                    [false, ..] => "F",
                    [_, false, _] if self.trains => "B",
                    [_, _, false] if self.trains => "W",
                    _ => continue,
                };
                return Err(PassOrderFileError {
                    line: stage + 1,
                    cell: None,
                    found: format!("no {part}{missing}{micro_batch}"),
                    expected: "the forward passes of every micro-batch through every part of the stage, and all backward passes if there are any".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Checks that stages do not wait for one another in a cycle. A pair starts when the inputs of both passes are
    /// ready.
    fn check_no_waiting_cycle(
        &self,
        cells: &[Vec<OrderFilePassCell>],
    ) -> Result<(), PassOrderFileError> {
        let mut next = vec![0; cells.len()];
        // Passes that have ended, so that their results are available.
        let mut over: BTreeMap<(bool, u32, u32), ()> = BTreeMap::new();
        let last = self.places.len() as u32 - 1;
        loop {
            let mut moved = false;
            for (stage, own) in cells.iter().enumerate() {
                while let Some((_, (first, second))) = own.get(next[stage]) {
                    let both = [Some(*first), *second];
                    let ready = both
                        .iter()
                        .flatten()
                        .all(|(kind, part, micro_batch)| match kind {
                            PassKind::Forward if *part > 0 => {
                                over.contains_key(&(true, part - 1, *micro_batch))
                            }
                            PassKind::Backward | PassKind::InputGradient if *part < last => {
                                over.contains_key(&(false, part + 1, *micro_batch))
                            }
                            _ => true,
                        });
                    if !ready {
                        break;
                    }
                    for (kind, part, micro_batch) in both.into_iter().flatten() {
                        // No pass depends on weight gradients.
                        if kind != PassKind::WeightGradient {
                            over.insert((kind == PassKind::Forward, part, micro_batch), ());
                        }
                    }
                    next[stage] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let stuck = cells
            .iter()
            .zip(&next)
            .position(|(own, at)| *at < own.len());
        let Some(stage) = stuck else { return Ok(()) };
        let (column, ((kind, part, micro_batch), _)) = cells[stage][next[stage]];
        Err(PassOrderFileError {
            line: stage + 1,
            cell: Some(column),
            found: format!("{part}{}{micro_batch}", pass_letter(kind)),
            expected: "an order without a deadlock; here stages wait for one another".to_owned(),
        })
    }

    /// Number of stages, one per line.
    pub fn stage_count(&self) -> u32 {
        self.steps.len() as u32
    }

    /// Number of micro-batches per step.
    pub fn micro_batches(&self) -> u32 {
        self.micro_batches
    }

    /// Number of parts on each stage, which is the same for all stages.
    pub fn chunk_count(&self) -> u32 {
        self.parts[0].len() as u32
    }

    /// Returns true if there are backward passes.
    pub fn has_training(&self) -> bool {
        self.trains
    }

    /// The stages that have the first and the last part.
    pub(super) fn stages_of_first_and_last_part(&self) -> [u32; 2] {
        let ends = [self.places.first(), self.places.last()];
        ends.map(|place| place.map_or(0, |(stage, _)| *stage))
    }

    pub(super) fn steps_of_stage(&self, stage: u32) -> Vec<PassOrOverlappingPair> {
        self.steps[stage as usize].clone()
    }

    /// Returns the index of the model part that a stage runs as chunk `chunk`.
    pub(super) fn part_of_chunk(&self, stage: u32, chunk: u32) -> u32 {
        self.parts[stage as usize][chunk as usize]
    }

    pub(super) fn stage_and_chunk_of_part(&self, part: u32) -> (u32, u32) {
        self.places[part as usize]
    }
}

fn pass_letter(kind: PassKind) -> char {
    match kind {
        PassKind::Forward => 'F',
        PassKind::Backward => 'B',
        PassKind::InputGradient => 'I',
        PassKind::WeightGradient => 'W',
    }
}

/// Formats a step as a cell; `part` maps a chunk to its part of the model.
pub(super) fn format_order_cell(step: &PassOrOverlappingPair, part: impl Fn(u32) -> u32) -> String {
    let one = |pass: &PipelinePass| {
        format!(
            "{}{}{}",
            part(pass.chunk),
            pass_letter(pass.kind),
            pass.micro_batch
        )
    };
    match &step.beside {
        Some(beside) => format!("({};{})OVERLAP_F_B", one(&step.pass), one(beside)),
        None => one(&step.pass),
    }
}
