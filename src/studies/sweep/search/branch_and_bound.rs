//! Best-first search that ends when no remaining point has a bound below the best answer.
//!
//! At first, every point gets a quick bound. The search then takes the remaining point with the smallest bound, and
//! computes its full bound. If the full bound is still the smallest, the search computes the point's *answer*: it
//! replays the point or rejects it as impossible. It ends when the smallest bound is no better than the best answer,
//! because no remaining point can then be better. Idle threads answer the first open questions in the queue in advance.
//! An open question is a missing bound or answer. An answer is used only when its turn comes, so rows are the same for
//! any number of threads. A shard's best point is never better than the best point of all. A shard therefore answers
//! every one of its points that a single run would answer.

use super::knowledge::{
    KnownPoints, PointAnswerOrBoundKind, UnansweredPointQuestion, is_point_question_answered,
};
use super::{StudyExplorer, SweepError, SweepRow, VisitedPointOutcome, score_of_answer};
use crate::sweep::bound::PointTimeAndMemoryBounds;
use crate::sweep::objective::PointMeasures;
use crate::sweep::setting::{self, Settings};
use crate::sweep::study::Study;
use std::collections::BTreeSet;

/// A point in the queue. The fields are the score of its bound (as an order-preserving integer), whether this is the
/// full bound, and the point's index.
type PointBoundQueueEntry = (u64, bool, usize);

/// Maps a number to an integer, preserving order.
fn to_ordered_bits(score: f64) -> u64 {
    let bits = score.to_bits();
    if score.is_sign_negative() {
        !bits
    } else {
        bits | 1 << 63
    }
}

/// A point in the searched layer.
struct SearchPointWithTimelessMeasures {
    number: u64,
    point: Settings,
    key: String,
    /// Measures of the plan that do not depend on a step's time.
    amounts: PointMeasures,
}

/// State of the best-first search.
struct BestFirstSearch<'s> {
    study: &'s Study,
    points: Vec<SearchPointWithTimelessMeasures>,
    queue: BTreeSet<PointBoundQueueEntry>,
    best: Option<f64>,
    /// Points that were replayed or rejected, in the order in which the search took them.
    taken: Vec<usize>,
}

impl BestFirstSearch<'_> {
    /// Takes points from the front of the queue as long as their questions are answered. Returns true when the search
    /// ends.
    fn drop_answered_points_from_queue_head(&mut self, known: &KnownPoints) -> bool {
        while let Some((head, is_whole, index)) = self.queue.first().copied() {
            if head >= self.score_limit() {
                return true;
            }
            let queued = &self.points[index];
            if !is_point_question_answered(
                known,
                &queued.key,
                next_question_of_queued_point(is_whole),
            ) {
                return false;
            }
            self.queue.pop_first();
            let knowledge = &known[&queued.key];
            match knowledge.whole {
                Some(bound) if !is_whole => self.queue_point_by_bound(index, bound),
                // The point was replayed, or rejected when its bound was computed.
                _ => {
                    let answer = knowledge.answer.as_ref();
                    let score = answer
                        .and_then(|answer| score_of_answer(self.study, &queued.point, answer));
                    self.best = super::least_score_ignoring_unknown([self.best, score]);
                    self.taken.push(index);
                }
            }
        }
        true
    }

    /// Returns the best answer's score as the limit on bounds. The search continues while some bound is below it.
    fn score_limit(&self) -> u64 {
        self.best.map_or(u64::MAX, to_ordered_bits)
    }

    /// Returns the queue's first question that is neither answered nor in progress.
    fn next_open_question(
        &mut self,
        known: &KnownPoints,
        in_flight: &BTreeSet<String>,
    ) -> Option<UnansweredPointQuestion> {
        if self.drop_answered_points_from_queue_head(known) {
            return None;
        }
        let limit = self.score_limit();
        let needed = self.queue.iter().take_while(|entry| entry.0 < limit);
        needed
            .map(|(_, is_whole, index)| {
                (
                    next_question_of_queued_point(*is_whole),
                    &self.points[*index],
                )
            })
            .find(|(question, queued)| {
                !in_flight.contains(&queued.key)
                    && !is_point_question_answered(known, &queued.key, *question)
            })
            .map(|(question, queued)| (queued.key.clone(), question, queued.point.clone()))
    }

    fn queue_point_by_bound(&mut self, index: usize, bound: PointTimeAndMemoryBounds) {
        let queued = &self.points[index];
        let measures = PointMeasures {
            // Use at least 1 ps to avoid division by zero in objectives.
            time_ps: bound.time_ps.max(1),
            ..queued.amounts.clone()
        };
        let score = self.study.objectives[0].score_to_minimise(
            &measures,
            &self.study.merge_with_base_settings(&queued.point),
        );
        // Put a point without a score first in the queue, because no bound can exclude it.
        let score = to_ordered_bits(score.unwrap_or(f64::NEG_INFINITY));
        self.queue.insert((score, bound.is_whole, index));
    }
}

/// Returns the question about a point in the queue: its full bound if only the quick bound is known, otherwise its
/// answer.
fn next_question_of_queued_point(is_whole: bool) -> PointAnswerOrBoundKind {
    if is_whole {
        PointAnswerOrBoundKind::Answer
    } else {
        PointAnswerOrBoundKind::Whole
    }
}

impl StudyExplorer<'_> {
    /// Visits a layer's points until the best one is found.
    pub(super) fn branch_and_bound(
        &mut self,
        depth: usize,
        fixed: &Settings,
    ) -> Result<Option<f64>, SweepError> {
        let list = self.list_layer_points_of_shard(depth, fixed);
        let numbered = self.study.layers.len() == 1;
        self.evaluate_points_of_open_questions(
            list.iter()
                .map(|(_, point)| (PointAnswerOrBoundKind::Quick, point.clone()))
                .collect(),
        )?;
        let mut search = BestFirstSearch {
            study: self.study,
            points: Vec::with_capacity(list.len()),
            queue: BTreeSet::new(),
            best: None,
            taken: Vec::new(),
        };
        for (number, point) in list {
            let key = setting::format_settings(&point);
            let known = self.known.get(&key);
            let Some(bound) = known.and_then(|known| known.quick.or(known.whole)) else {
                // A point without a bound was rejected, or its answer is missing. In both cases, the search needs no
                // score.
                let _ = self.score_and_record_answered_point(numbered.then_some(number), &point);
                continue;
            };
            let amounts = self.evaluator.compute_measures_without_replay(&point, 0);
            search.points.push(SearchPointWithTimelessMeasures {
                number,
                point,
                key,
                amounts: amounts.unwrap_or_default(),
            });
            search.queue_point_by_bound(search.points.len() - 1, bound);
        }
        self.answer_questions_until_none_remain(|known, in_flight| {
            search.next_open_question(known, in_flight)
        })?;
        while !search.drop_answered_points_from_queue_head(&self.known) {
            // New answers are not allowed and the first point has none, so skip it.
            if let Some((_, _, index)) = search.queue.pop_first() {
                search.taken.push(index);
            }
        }
        for index in &search.taken {
            let queued = &search.points[*index];
            let _ = self
                .score_and_record_answered_point(numbered.then_some(queued.number), &queued.point);
        }
        for (_, is_whole, index) in &search.queue {
            let queued = &search.points[*index];
            let known = &self.known[&queued.key];
            let bound = if *is_whole {
                known.whole
            } else {
                known.quick.or(known.whole)
            };
            let number = if numbered {
                queued.number
            } else {
                self.rows.len() as u64
            };
            self.rows.push(SweepRow {
                number,
                point: queued.point.clone(),
                outcome: VisitedPointOutcome::Dominated(
                    bound.expect("what is in the queue has a bound"),
                ),
            });
        }
        Ok(search.best)
    }
}

#[cfg(test)]
mod tests {
    use super::to_ordered_bits;

    #[test]
    fn integers_keep_the_order_of_numbers() {
        let all = [
            f64::NEG_INFINITY,
            -2.5,
            -0.5,
            0.0,
            1e-300,
            0.5,
            2.5,
            f64::INFINITY,
        ];
        assert!(
            all.windows(2)
                .all(|pair| to_ordered_bits(pair[0]) < to_ordered_bits(pair[1]))
        );
    }
}
