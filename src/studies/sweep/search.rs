//! Going over the points of a study: layers of strategies, answers in parallel, each found out once.
//!
//! Strategies are sequential; threads only find out ahead what a strategy asks for. So the rows do not depend on the
//! number of threads, nor on what was found out before.

use super::bound::PointBound;
use super::evaluate::{PointAnswer, PointEvaluator};
use super::journal::{JournalEntry, JournalError, SweepJournal};
use super::setting::{self, Settings};
use super::study::{SearchStrategy, Study, StudyLayer};
use chakram_base::interrupt::Interruption;
use chakram_base::setting::SettingKey;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

mod branch_and_bound;
mod draw;
mod knowledge;
mod rounds;

use draw::draw;
use knowledge::{PointKnowledge, PointQuestion};
pub use rounds::LayerTurn;

/// A sweep that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The journal cannot be written or read.
    #[error(transparent)]
    SweepJournal(#[from] JournalError),
    /// Interrupted from outside, or out of memory; the journal has all points that were answered before.
    #[error(transparent)]
    Interrupted(#[from] Interruption),
    /// Points are missing that nobody may replay.
    #[error(
        "{} of the points have no answer yet\n  try: the shards that are missing, or `chakram sweep … {:#}`",
        .0,
        SettingKey::Resume
    )]
    Missing(u64),
    /// The study's points cannot be dealt out.
    #[error(
        "{} is for studies of one layer whose strategy is grid, random or branch-and-bound",
        SettingKey::Shard
    )]
    NoShards,
}

/// A part of a study's points: those whose index leaves this remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudyShard {
    /// The remainder.
    pub index: u64,
    /// The number of shards.
    pub of: u64,
}

/// Options of a sweep's run.
#[derive(Clone, Copy, Debug)]
pub struct SweepOptions {
    /// Threads.
    pub threads: NonZeroUsize,
    /// The part of the points that is answered.
    pub shard: Option<StudyShard>,
    /// Whether only what is known already may be used.
    pub is_closed: bool,
}

/// Outcome of a point.
#[derive(Clone, Debug, PartialEq)]
pub enum RowOutcome {
    /// It was answered.
    Answered(PointAnswer),
    /// No replay of it is better than the best.
    Dominated(PointBound),
}

/// A point that was visited.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepRow {
    /// Its number: its index where all points can be listed, and otherwise in order of the first visit.
    pub number: u64,
    /// Values of the axes.
    pub point: Settings,
    /// Outcome of the point.
    pub outcome: RowOutcome,
}

/// Something that was just found out, for progress.
#[derive(Clone, Copy, Debug)]
pub struct SweepStep<'a> {
    /// Whether it is a bound.
    pub is_bound: bool,
    /// The best point so far, and its score in the first objective.
    pub best: Option<(&'a str, f64)>,
}

/// Counts of what was done, those that were known already not included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkDone {
    /// Bounds that were computed, and the seconds of all threads that they took.
    pub bounded: (u64, f64),
    /// Points that were replayed or refused, and the seconds that they took.
    pub replayed: (u64, f64),
}

/// Called with everything that was found out, from any thread.
pub type SweepWatcher<'w> = dyn Fn(&SweepStep<'_>) + Sync + 'w;

/// Goes over the points of a study.
pub struct StudyExplorer<'s> {
    study: &'s Study,
    evaluator: PointEvaluator<'s>,
    options: SweepOptions,
    journal: Option<SweepJournal>,
    watcher: &'s SweepWatcher<'s>,
    known: BTreeMap<String, PointKnowledge>,
    rows: Vec<SweepRow>,
    visited: BTreeSet<String>,
    done: WorkDone,
    missing: u64,
    turns: Vec<LayerTurn>,
}

impl<'s> StudyExplorer<'s> {
    /// Of `study`; what is found out is added to `journal`, whose entries are known.
    pub fn new(
        study: &'s Study,
        options: SweepOptions,
        journal: Option<SweepJournal>,
        entries: Vec<JournalEntry>,
        watcher: &'s SweepWatcher<'s>,
    ) -> Result<Self, SweepError> {
        let deals =
            study.layers.len() == 1 && study.layers[0].strategy != SearchStrategy::Coordinate;
        if options.shard.is_some() && !deals {
            return Err(SweepError::NoShards);
        }
        let mut known: BTreeMap<String, PointKnowledge> = BTreeMap::new();
        for entry in entries {
            let knowledge = known.entry(entry.point).or_default();
            match entry.bound {
                Some(bound) if bound.is_whole => knowledge.whole = Some(bound),
                Some(bound) => knowledge.quick = Some(bound),
                None => {}
            }
            knowledge.answer = entry.answer.or(knowledge.answer.take());
        }
        Ok(Self {
            study,
            evaluator: PointEvaluator::new(study),
            options,
            journal,
            watcher,
            known,
            rows: Vec::new(),
            visited: BTreeSet::new(),
            done: WorkDone::default(),
            missing: 0,
            turns: Vec::new(),
        })
    }

    /// Counts of finished work.
    pub fn work_done(&self) -> WorkDone {
        self.done
    }

    /// Visits all points and returns their rows, by number.
    ///
    /// # Errors
    ///
    /// If the journal cannot be written, or answers are missing that may not be found out.
    pub fn run(&mut self) -> Result<Vec<SweepRow>, SweepError> {
        match self.study.rounds {
            Some(rounds) => self.take_turns(rounds)?,
            None => drop(self.explore(0, &Settings::new())?),
        }
        if self.missing > 0 {
            return Err(SweepError::Missing(self.missing));
        }
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_by_key(|row| row.number);
        Ok(rows)
    }

    /// Visits the points of the layers from `depth` on, all of which have `fixed`, and returns the best score.
    fn explore(&mut self, depth: usize, fixed: &Settings) -> Result<Option<f64>, SweepError> {
        let study = self.study;
        let layer = &study.layers[depth];
        match layer.strategy {
            SearchStrategy::Grid | SearchStrategy::Random(_) => {
                let list = self.listing(depth, fixed);
                let scores = self.scores(depth, &list)?;
                Ok(least(scores))
            }
            SearchStrategy::Coordinate => self.descend(depth, fixed),
            SearchStrategy::BranchAndBound => self.branch_and_bound(depth, fixed),
        }
    }

    /// The points of a layer that can be listed, with their indices; of a sharded study those of the shard.
    fn listing(&self, depth: usize, fixed: &Settings) -> Vec<(u64, Settings)> {
        let layer = &self.study.layers[depth];
        let size = self.study.size(layer);
        let indices: Vec<u64> = match layer.strategy {
            SearchStrategy::Random(draws) => draw(self.study.seed, fixed, size, draws),
            _ => (0..size).collect(),
        };
        let shard = |number: &u64| {
            self.options
                .shard
                .is_none_or(|shard| number % shard.of == shard.index)
        };
        (0..)
            .zip(indices)
            .filter(|(number, _)| shard(number))
            .map(|(number, index)| (number, self.point(layer, index, fixed)))
            .collect()
    }

    fn point(&self, layer: &StudyLayer, index: u64, fixed: &Settings) -> Settings {
        let mut point = fixed.clone();
        point.extend(self.study.combination(layer, index));
        point
    }

    /// The score of each point of a list, in the last layer by its answer, and else by the best of the layers inside.
    fn scores(
        &mut self,
        depth: usize,
        list: &[(u64, Settings)],
    ) -> Result<Vec<Option<f64>>, SweepError> {
        let study = self.study;
        // Layers that take turns have none inside.
        let inner = match study.rounds {
            Some(_) => &[],
            None => &study.layers[depth + 1..],
        };
        if inner.is_empty() {
            self.ask(
                list.iter()
                    .map(|(_, point)| (PointQuestion::Answer, point.clone()))
                    .collect(),
            )?;
            let numbered = study.layers.len() == 1 && study.layers[0].strategy.lists();
            return Ok(list
                .iter()
                .map(|(number, point)| self.visit(numbered.then_some(*number), point))
                .collect());
        }
        if inner.iter().all(|layer| layer.strategy.lists()) {
            // All points of all layers inside at once, so that threads have enough to do.
            let mut leaves: Vec<(usize, Settings)> = list
                .iter()
                .enumerate()
                .map(|(of, (_, point))| (of, point.clone()))
                .collect();
            for deeper in depth + 1..study.layers.len() {
                let expand = |(of, point): &(usize, Settings)| {
                    let list = self.listing(deeper, point);
                    list.into_iter()
                        .map(|(_, point)| (*of, point))
                        .collect::<Vec<_>>()
                };
                leaves = leaves.iter().flat_map(expand).collect();
            }
            self.ask(
                leaves
                    .iter()
                    .map(|(_, point)| (PointQuestion::Answer, point.clone()))
                    .collect(),
            )?;
            let mut scores = vec![None; list.len()];
            for (of, point) in &leaves {
                let score = self.visit(None, point);
                scores[*of] = least([scores[*of], score]);
            }
            return Ok(scores);
        }
        list.iter()
            .map(|(_, point)| self.explore(depth + 1, point))
            .collect()
    }

    /// Changes one axis after another to its best value, from the first values on.
    fn descend(&mut self, depth: usize, fixed: &Settings) -> Result<Option<f64>, SweepError> {
        let study = self.study;
        let layer = &study.layers[depth];
        let sizes: Vec<u64> = layer
            .axes
            .iter()
            .map(|axis| study.axes[*axis].values.len() as u64)
            .collect();
        let mut at = vec![0_u64; sizes.len()];
        let mut best: Option<f64> = None;
        loop {
            let before = at.clone();
            for axis in 0..sizes.len() {
                let index = |value: u64| {
                    let digits = (0..sizes.len()).map(|i| if i == axis { value } else { at[i] });
                    digits
                        .zip(&sizes)
                        .fold(0, |sum, (digit, size)| sum * size + digit)
                };
                let list: Vec<(u64, Settings)> = (0..sizes[axis])
                    .map(|value| (0, self.point(layer, index(value), fixed)))
                    .collect();
                let scores = self.scores(depth, &list)?;
                for (value, score) in (0..).zip(scores) {
                    // Strictly better only, so that the descent ends.
                    if score.is_some_and(|score| best.is_none_or(|best| score < best)) {
                        (best, at[axis]) = (score, value);
                    }
                }
            }
            if at == before {
                return Ok(best);
            }
        }
    }

    /// Adds a row for a point that was answered, unless it has one or is missing, and returns its score.
    fn visit(&mut self, number: Option<u64>, point: &Settings) -> Option<f64> {
        let key = setting::line(point);
        let answer = self.known.get(&key).and_then(|known| known.answer.clone());
        let Some(answer) = answer else {
            self.missing += 1;
            return None;
        };
        let score = self.score(point, &answer);
        // Numbered points are all listed, whether or not another is equal.
        if self.visited.insert(key) || number.is_some() {
            let number = number.unwrap_or(self.rows.len() as u64);
            self.rows.push(SweepRow {
                number,
                point: point.clone(),
                outcome: RowOutcome::Answered(answer),
            });
        }
        score
    }

    fn score(&self, point: &Settings, answer: &PointAnswer) -> Option<f64> {
        score(self.study, point, answer)
    }

    /// The score of a row that has one.
    fn row_score(&self, row: &SweepRow) -> Option<f64> {
        match &row.outcome {
            RowOutcome::Answered(answer) => self.score(&row.point, answer),
            RowOutcome::Dominated(_) => None,
        }
    }
}

/// The score of an answer in a study's first objective.
fn score(study: &Study, point: &Settings, answer: &PointAnswer) -> Option<f64> {
    match answer {
        PointAnswer::Replayed(measures) => study.objectives[0].score(measures, &study.whole(point)),
        PointAnswer::Refused { .. } => None,
    }
}

/// The least of those that are known.
fn least(scores: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    scores.into_iter().flatten().min_by(f64::total_cmp)
}
