//! Best first, until no bound is below the best answer.
//!
//! Every point has a bound: first a quick one, then, if that is the least of all that are left, the whole one, and if
//! that is still the least, its answer. The search ends when the least bound is no better than the best answer: what is
//! left cannot be better, and is never replayed. Threads find out what stands at the head of the queue; what they found
//! out ahead counts when its turn comes, so that rows are the same for any number of threads. A shard answers at
//! least those of its points that one run over all points would, because its own best is never better.

use super::knowledge::PointQuestion;
use super::{RowOutcome, StudyExplorer, SweepError, SweepRow};
use crate::sweep::evaluate::{PointAnswer, PointBound};
use crate::sweep::objective::PointMeasures;
use crate::sweep::setting::{self, Settings};
use std::collections::BTreeSet;

/// A point in the queue: its bound's score in an order of integers, whether it is the whole bound, and its index.
type QueueEntry = (u64, bool, usize);

/// Questions of a thread that are looked at together: a replay takes as long as many bounds.
const BOUNDS: usize = 8;

/// Maps numbers to integers of the same order.
fn ordered(score: f64) -> u64 {
    let bits = score.to_bits();
    if score.is_sign_negative() {
        !bits
    } else {
        bits | 1 << 63
    }
}

impl StudyExplorer<'_> {
    /// Finds the best of a layer's points.
    pub(super) fn branch_and_bound(
        &mut self,
        depth: usize,
        fixed: &Settings,
    ) -> Result<Option<f64>, SweepError> {
        let list = self.listing(depth, fixed);
        let numbered = self.study.layers.len() == 1;
        self.ask(
            list.iter()
                .map(|(_, point)| (PointQuestion::Quick, point.clone()))
                .collect(),
        )?;
        let mut queue: BTreeSet<QueueEntry> = BTreeSet::new();
        // What follows from a plan without its time.
        let mut amounts: Vec<PointMeasures> = vec![PointMeasures::default(); list.len()];
        for (i, (_, point)) in list.iter().enumerate() {
            match self.bound_of(point) {
                Some(bound) => {
                    amounts[i] = self
                        .evaluator
                        .bounded_measures(point, 0)
                        .unwrap_or_default();
                    queue.insert(self.entry(&amounts[i], point, bound, i));
                }
                None => self.take(numbered.then_some(list[i].0), point),
            }
        }
        let mut best: Option<f64> = None;
        while let Some(head) = queue.first().copied() {
            let least = best.map_or(u64::MAX, ordered);
            if head.0 >= least {
                break;
            }
            let next = |entry: &QueueEntry| {
                let question = if entry.1 {
                    PointQuestion::Answer
                } else {
                    PointQuestion::Whole
                };
                (question, list[entry.2].1.clone())
            };
            let (question, point) = next(&head);
            if !self.knows(&point, question) {
                self.ask(self.ahead(queue.iter().take_while(|entry| entry.0 < least).map(next)))?;
            }
            queue.pop_first();
            let number = numbered.then_some(list[head.2].0);
            let bound = self
                .known
                .get(&setting::line(&point))
                .and_then(|known| known.whole);
            match (head.1, bound) {
                (false, Some(bound)) => {
                    queue.insert(self.entry(&amounts[head.2], &point, bound, head.2));
                }
                // Refused on the way to its bound, or answered.
                _ => {
                    let score = self
                        .answer_of(&point)
                        .and_then(|answer| self.score(&point, &answer));
                    best = super::least([best, score]);
                    self.take(number, &point);
                }
            }
        }
        for (_, is_whole, i) in queue {
            let (number, point) = &list[i];
            let known = self.known.get(&setting::line(point));
            let bound = known.and_then(|known| {
                if is_whole {
                    known.whole
                } else {
                    known.quick.or(known.whole)
                }
            });
            let number = if numbered {
                *number
            } else {
                self.rows.len() as u64
            };
            self.rows.push(SweepRow {
                number,
                point: point.clone(),
                outcome: RowOutcome::Dominated(bound.expect("what is in the queue has a bound")),
            });
        }
        Ok(best)
    }

    /// Chooses among the questions of a queue those that threads find out together: as many replays as there are threads, and
    /// bounds for those that have ended. Bounds of what is below the best are all needed, and so are its replays, but for the last.
    fn ahead(
        &self,
        questions: impl Iterator<Item = (PointQuestion, Settings)>,
    ) -> Vec<(PointQuestion, Settings)> {
        let threads = self.options.threads.get();
        let unknown = questions.filter(|(question, point)| !self.knows(point, *question));
        let (mut replays, bounds): (Vec<_>, Vec<_>) = unknown
            .take(BOUNDS * threads)
            .partition(|(question, _)| *question == PointQuestion::Answer);
        replays.truncate(threads);
        replays.extend(bounds);
        replays
    }

    fn entry(
        &self,
        amounts: &PointMeasures,
        point: &Settings,
        bound: PointBound,
        index: usize,
    ) -> QueueEntry {
        let measures = PointMeasures {
            time_ps: bound.time_ps.max(1),
            ..amounts.clone()
        };
        let score = self.study.objectives[0].score(&measures, &self.study.whole(point));
        (
            ordered(score.unwrap_or(f64::NEG_INFINITY)),
            bound.is_whole,
            index,
        )
    }

    /// The quick bound of a point, or the whole one where no quick one was needed; `None` if it was refused.
    fn bound_of(&self, point: &Settings) -> Option<PointBound> {
        let known = self.known.get(&setting::line(point))?;
        known.quick.or(known.whole)
    }

    fn answer_of(&self, point: &Settings) -> Option<PointAnswer> {
        self.known.get(&setting::line(point))?.answer.clone()
    }

    fn knows(&self, point: &Settings, question: PointQuestion) -> bool {
        self.known
            .get(&setting::line(point))
            .is_some_and(|known| known.has(question))
    }

    /// Adds the row of a point that was answered.
    fn take(&mut self, number: Option<u64>, point: &Settings) {
        // Its score is not asked for here.
        let _ = self.visit(number, point);
    }
}

#[cfg(test)]
mod tests {
    use super::ordered;

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
                .all(|pair| ordered(pair[0]) < ordered(pair[1]))
        );
    }
}
