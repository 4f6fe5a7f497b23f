//! Explores a study's points layer by layer. Each layer has its own strategy. Each answer is computed only once, in
//! parallel with others.
//!
//! Strategies run sequentially, while threads compute in advance the answers that the strategies will need. The rows
//! therefore do not depend on the number of threads or on answers from earlier runs.

use super::bound::PointTimeAndMemoryBounds;
use super::evaluate::{PointEvaluator, PointRefusalOrMeasures};
use super::journal::{JournalError, JournaledBoundOrAnswer, SweepJournal};
use super::setting::{self, Settings};
use super::study::{AxisSubsetWithSearchStrategy, SearchStrategy, Study};
use chakram_base::interrupt::StopOrMemoryInterruption;
use chakram_base::setting::SettingKey;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

mod branch_and_bound;
mod draw;
mod knowledge;
mod rounds;

use draw::draw_indices;
use knowledge::{PointAnswerOrBoundKind, PointKnowledge};
pub use rounds::SearchLayerTurnRecord;

/// Reason why a sweep cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The journal of the sweep cannot be written or read.
    #[error(transparent)]
    SweepJournal(#[from] JournalError),
    /// The sweep was interrupted or ran out of memory. The journal contains all points answered
    /// before the interruption.
    #[error(transparent)]
    Interrupted(#[from] StopOrMemoryInterruption),
    /// Some points have no answer, and new replays are not allowed.
    #[error(
        "{} of the points have no result yet\n  try: the missing shards, or `chakram sweep … {:#}`",
        .0,
        SettingKey::Resume
    )]
    Missing(u64),
    /// The study's points cannot be divided into shards.
    #[error(
        "{} is for studies of one layer whose strategy is grid, random or branch-and-bound",
        SettingKey::Shard
    )]
    NoShards,
}

/// A shard: the points of a study whose index modulo `of` equals `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudyShard {
    /// Index modulo `of` that all points of this shard have.
    pub index: u64,
    /// Number of shards into which the study is divided.
    pub of: u64,
}

/// Options for running a sweep once.
#[derive(Clone, Copy, Debug)]
pub struct SweepThreadAndShardOptions {
    /// Number of threads that answer points.
    pub threads: NonZeroUsize,
    /// The shard to compute; `None` computes all points.
    pub shard: Option<StudyShard>,
    /// True if no new answers may be computed.
    pub is_closed: bool,
}

/// Outcome of visiting a point.
#[derive(Clone, Debug, PartialEq)]
pub enum VisitedPointOutcome {
    /// The point was replayed, or rejected.
    Answered(PointRefusalOrMeasures),
    /// The point was not replayed, because its bound is no better than the best point.
    Dominated(PointTimeAndMemoryBounds),
}

/// A visited point of the sweep, with its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepRow {
    /// Index of the point if the study's points can be listed. Otherwise, its number in the order of first visits.
    pub number: u64,
    /// Values that the study's axes set at this point.
    pub point: Settings,
    /// Outcome of visiting the point.
    pub outcome: VisitedPointOutcome,
}

/// A new answer or bound, for progress reports.
#[derive(Clone, Copy, Debug)]
pub struct NewAnswerOrBoundEvent<'a> {
    /// True for a bound, and false for an answer.
    pub is_bound: bool,
    /// The best point so far, and its value of the first objective.
    pub best: Option<(&'a str, f64)>,
}

/// Counts of what this run computed. Excludes answers that were already in the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NewBoundAndReplayCounts {
    /// How many bounds were computed, and how many seconds they took, summed over threads.
    pub bounded: (u64, f64),
    /// How many points were replayed or rejected, and how many seconds they took, summed over threads.
    pub replayed: (u64, f64),
}

/// Function that receives each new answer or bound, on any thread.
pub type SweepAnswerOrBoundCallback<'w> = dyn Fn(&NewAnswerOrBoundEvent<'_>) + Sync + 'w;

/// Explores the points of a study, and answers them on several threads.
pub struct StudyExplorer<'s> {
    study: &'s Study,
    evaluator: PointEvaluator<'s>,
    options: SweepThreadAndShardOptions,
    journal: Option<SweepJournal>,
    watcher: &'s SweepAnswerOrBoundCallback<'s>,
    known: BTreeMap<String, PointKnowledge>,
    rows: Vec<SweepRow>,
    visited: BTreeSet<String>,
    done: NewBoundAndReplayCounts,
    missing: u64,
    turns: Vec<SearchLayerTurnRecord>,
}

impl<'s> StudyExplorer<'s> {
    /// Creates an explorer of `study`. Entries of `journal` are known answers. New answers are appended to it.
    pub fn new(
        study: &'s Study,
        options: SweepThreadAndShardOptions,
        journal: Option<SweepJournal>,
        entries: Vec<JournaledBoundOrAnswer>,
        watcher: &'s SweepAnswerOrBoundCallback<'s>,
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
            done: NewBoundAndReplayCounts::default(),
            missing: 0,
            turns: Vec::new(),
        })
    }

    /// Returns the counts of new work so far.
    pub fn count_new_work_so_far(&self) -> NewBoundAndReplayCounts {
        self.done
    }

    /// Visits all points, and returns the rows sorted by number.
    ///
    /// # Errors
    ///
    /// Fails if the journal cannot be written, or if an answer is missing and new answers are not
    /// allowed.
    pub fn visit_points_and_return_rows(&mut self) -> Result<Vec<SweepRow>, SweepError> {
        match self.study.rounds {
            Some(rounds) => self.search_layers_in_turns(rounds)?,
            None => drop(self.explore_search_layers_from_depth(0, &Settings::new())?),
        }
        if self.missing > 0 {
            return Err(SweepError::Missing(self.missing));
        }
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_by_key(|row| row.number);
        Ok(rows)
    }

    /// Explores the layers from `depth` inward; `fixed` contains the settings of outer layers.
    /// Returns the best score.
    fn explore_search_layers_from_depth(
        &mut self,
        depth: usize,
        fixed: &Settings,
    ) -> Result<Option<f64>, SweepError> {
        let study = self.study;
        let layer = &study.layers[depth];
        match layer.strategy {
            SearchStrategy::Grid | SearchStrategy::Random(_) => {
                let list = self.list_layer_points_of_shard(depth, fixed);
                let scores = self.score_points(depth, &list)?;
                Ok(least_score_ignoring_unknown(scores))
            }
            SearchStrategy::Coordinate => self.descend_coordinates(depth, fixed),
            SearchStrategy::BranchAndBound => self.branch_and_bound(depth, fixed),
        }
    }

    /// Returns the points of a layer, each with its index. The points must be listable. If this run computes a shard,
    /// returns only its points.
    fn list_layer_points_of_shard(&self, depth: usize, fixed: &Settings) -> Vec<(u64, Settings)> {
        let layer = &self.study.layers[depth];
        let size = self.study.combination_count_of_layer(layer);
        let indices: Vec<u64> = match layer.strategy {
            SearchStrategy::Random(draws) => draw_indices(self.study.seed, fixed, size, draws),
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
            .map(|(number, index)| (number, self.point_at(layer, index, fixed)))
            .collect()
    }

    fn point_at(
        &self,
        layer: &AxisSubsetWithSearchStrategy,
        index: u64,
        fixed: &Settings,
    ) -> Settings {
        let mut point = fixed.clone();
        point.extend(self.study.layer_settings_at_index(layer, index));
        point
    }

    /// Returns the score of each point of `list`. In the last layer, this is the score of the point's answer. In outer
    /// layers, it is the best score of the inner layers.
    fn score_points(
        &mut self,
        depth: usize,
        list: &[(u64, Settings)],
    ) -> Result<Vec<Option<f64>>, SweepError> {
        let study = self.study;
        // Layers that take turns are not nested, so they have no inner layers.
        let inner = match study.rounds {
            Some(_) => &[],
            None => &study.layers[depth + 1..],
        };
        if inner.is_empty() {
            self.evaluate_points_of_open_questions(
                list.iter()
                    .map(|(_, point)| (PointAnswerOrBoundKind::Answer, point.clone()))
                    .collect(),
            )?;
            let numbered = study.layers.len() == 1 && study.layers[0].strategy.can_list_points();
            return Ok(list
                .iter()
                .map(|(number, point)| {
                    self.score_and_record_answered_point(numbered.then_some(*number), point)
                })
                .collect());
        }
        if inner.iter().all(|layer| layer.strategy.can_list_points()) {
            // Collect the points of all inner layers first, so that threads have enough work.
            let mut leaves: Vec<(usize, Settings)> = list
                .iter()
                .enumerate()
                .map(|(of, (_, point))| (of, point.clone()))
                .collect();
            for deeper in depth + 1..study.layers.len() {
                let expand = |(of, point): &(usize, Settings)| {
                    let list = self.list_layer_points_of_shard(deeper, point);
                    list.into_iter()
                        .map(|(_, point)| (*of, point))
                        .collect::<Vec<_>>()
                };
                leaves = leaves.iter().flat_map(expand).collect();
            }
            self.evaluate_points_of_open_questions(
                leaves
                    .iter()
                    .map(|(_, point)| (PointAnswerOrBoundKind::Answer, point.clone()))
                    .collect(),
            )?;
            let mut scores = vec![None; list.len()];
            for (of, point) in &leaves {
                let score = self.score_and_record_answered_point(None, point);
                scores[*of] = least_score_ignoring_unknown([scores[*of], score]);
            }
            return Ok(scores);
        }
        list.iter()
            .map(|(_, point)| self.explore_search_layers_from_depth(depth + 1, point))
            .collect()
    }

    /// Coordinate descent: starts with the first values of all axes, and sets one axis after another to its best value.
    fn descend_coordinates(
        &mut self,
        depth: usize,
        fixed: &Settings,
    ) -> Result<Option<f64>, SweepError> {
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
                    .map(|value| (0, self.point_at(layer, index(value), fixed)))
                    .collect();
                let scores = self.score_points(depth, &list)?;
                for (value, score) in (0..).zip(scores) {
                    // Accept only strict improvements; otherwise the descent might never end.
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

    /// Returns the score of an answered point. Adds a row for it, unless it already has one or has no answer.
    fn score_and_record_answered_point(
        &mut self,
        number: Option<u64>,
        point: &Settings,
    ) -> Option<f64> {
        let key = setting::format_settings(point);
        let answer = self.known.get(&key).and_then(|known| known.answer.clone());
        let Some(answer) = answer else {
            self.missing += 1;
            return None;
        };
        let score = self.score_answer(point, &answer);
        // Every point with an index gets a row, even if an equal point already has one.
        if self.visited.insert(key) || number.is_some() {
            let number = number.unwrap_or(self.rows.len() as u64);
            self.rows.push(SweepRow {
                number,
                point: point.clone(),
                outcome: VisitedPointOutcome::Answered(answer),
            });
        }
        score
    }

    fn score_answer(&self, point: &Settings, answer: &PointRefusalOrMeasures) -> Option<f64> {
        score_of_answer(self.study, point, answer)
    }

    /// Returns the score of a row; `None` if it has none.
    fn row_score(&self, row: &SweepRow) -> Option<f64> {
        match &row.outcome {
            VisitedPointOutcome::Answered(answer) => self.score_answer(&row.point, answer),
            VisitedPointOutcome::Dominated(_) => None,
        }
    }
}

/// Returns the score of an answer: its value by the study's first objective.
fn score_of_answer(
    study: &Study,
    point: &Settings,
    answer: &PointRefusalOrMeasures,
) -> Option<f64> {
    match answer {
        PointRefusalOrMeasures::Replayed(measures) => {
            study.objectives[0].score_to_minimise(measures, &study.merge_with_base_settings(point))
        }
        PointRefusalOrMeasures::Refused { .. } => None,
    }
}

fn least_score_ignoring_unknown(scores: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    scores.into_iter().flatten().min_by(f64::total_cmp)
}
