//! Known results of points, shared by several threads that find more.

use super::{RowOutcome, StudyExplorer, SweepError, SweepStep, WorkDone};
use crate::sweep::evaluate::{PointAnswer, PointBound, PointEvaluator};
use crate::sweep::journal::JournalEntry;
use crate::sweep::point::PointRefusal;
use crate::sweep::setting::{self, Settings};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All that is known of a point.
#[derive(Clone, Debug, Default)]
pub(super) struct PointKnowledge {
    pub quick: Option<PointBound>,
    pub whole: Option<PointBound>,
    pub answer: Option<PointAnswer>,
}

/// Question about a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PointQuestion {
    Quick,
    Whole,
    Answer,
}

impl PointKnowledge {
    pub fn has(&self, question: PointQuestion) -> bool {
        // Who is refused has no bound.
        self.answer.is_some()
            || match question {
                PointQuestion::Quick => self.quick.is_some() || self.whole.is_some(),
                PointQuestion::Whole => self.whole.is_some(),
                PointQuestion::Answer => false,
            }
    }
}

impl PointKnowledge {
    /// The line of the journal that says so.
    fn entry(&self, key: &str) -> JournalEntry {
        JournalEntry {
            point: key.to_owned(),
            bound: self.whole.or(self.quick),
            answer: self.answer.clone(),
        }
    }
}

impl StudyExplorer<'_> {
    /// Finds out what is asked and not known, several at once.
    pub(super) fn ask(
        &mut self,
        questions: Vec<(PointQuestion, Settings)>,
    ) -> Result<(), SweepError> {
        if self.options.is_closed {
            return Ok(());
        }
        let mut open: BTreeMap<String, (PointQuestion, Settings)> = BTreeMap::new();
        for (question, point) in questions {
            let key = setting::line(&point);
            if !self
                .known
                .get(&key)
                .is_some_and(|known| known.has(question))
            {
                open.insert(key, (question, point));
            }
        }
        let mut open: Vec<(String, (PointQuestion, Settings))> = open.into_iter().collect();
        // Points of one work follow one another, so that it is built once.
        // Replays come first, as threads end together if what is left is short.
        open.sort_by_cached_key(|(_, (question, point))| {
            (
                *question != PointQuestion::Answer,
                PointEvaluator::work_key(point),
            )
        });
        let best = self.best();
        let (next, shared) = (
            AtomicUsize::new(0),
            Mutex::new((Vec::new(), best, None, WorkDone::default())),
        );
        let lock =
            || -> MutexGuard<'_, _> { shared.lock().unwrap_or_else(PoisonError::into_inner) };
        let threads = self.options.threads.get().min(open.len().max(1));
        let this = &*self;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((key, (question, point))) =
                        open.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let start = std::time::Instant::now();
                        let found = this.find_out(key, *question, point);
                        let seconds = start.elapsed().as_secs_f64();
                        let entry = found.entry(key);
                        let written = this
                            .journal
                            .as_ref()
                            .map_or(Ok(()), |journal| journal.add(&entry));
                        let mut shared = lock();
                        let (all, best, failed, done) = &mut *shared;
                        let count = match question {
                            PointQuestion::Answer => &mut done.replayed,
                            _ => &mut done.bounded,
                        };
                        count.0 += 1;
                        count.1 += seconds;
                        let score = found
                            .answer
                            .as_ref()
                            .and_then(|answer| this.score(point, answer));
                        if let Some(score) =
                            score.filter(|score| best.as_ref().is_none_or(|(_, b)| score < b))
                        {
                            *best = Some((key.clone(), score));
                        }
                        (this.watcher)(&SweepStep {
                            is_bound: *question != PointQuestion::Answer,
                            best: best.as_ref().map(|(key, score)| (key.as_str(), *score)),
                        });
                        all.push((key.clone(), found));
                        if let Err(error) = written {
                            *failed = Some(error);
                            next.store(usize::MAX / 2, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let (all, _, failed, done) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (key, found) in all {
            let known = self.known.entry(key).or_default();
            known.quick = found.quick.or(known.quick);
            known.whole = found.whole.or(known.whole);
            known.answer = found.answer.or(known.answer.take());
        }
        self.done.bounded.0 += done.bounded.0;
        self.done.bounded.1 += done.bounded.1;
        self.done.replayed.0 += done.replayed.0;
        self.done.replayed.1 += done.replayed.1;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The best of the rows.
    fn best(&self) -> Option<(String, f64)> {
        let scored = self.rows.iter().filter_map(|row| match &row.outcome {
            RowOutcome::Answered(answer) => {
                Some((setting::line(&row.point), self.score(&row.point, answer)?))
            }
            RowOutcome::Dominated(_) => None,
        });
        scored.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    fn find_out(&self, key: &str, question: PointQuestion, point: &Settings) -> PointKnowledge {
        let refused = |refusal: PointRefusal| PointKnowledge {
            answer: Some(refusal.into()),
            ..PointKnowledge::default()
        };
        match question {
            PointQuestion::Answer => {
                let is_bounded = self
                    .known
                    .get(key)
                    .is_some_and(|known| known.whole.is_some());
                PointKnowledge {
                    answer: Some(self.evaluator.answer(point, is_bounded)),
                    ..PointKnowledge::default()
                }
            }
            PointQuestion::Quick | PointQuestion::Whole => {
                match self
                    .evaluator
                    .bound(point, question == PointQuestion::Whole)
                {
                    Err(refusal) => refused(refusal),
                    Ok(bound) if bound.is_whole => PointKnowledge {
                        whole: Some(bound),
                        ..PointKnowledge::default()
                    },
                    Ok(bound) => PointKnowledge {
                        quick: Some(bound),
                        ..PointKnowledge::default()
                    },
                }
            }
        }
    }
}
