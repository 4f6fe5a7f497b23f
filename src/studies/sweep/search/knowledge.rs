//! Stores what is known about points: their answers and bounds. All threads that compute these share the store.

use super::{
    NewAnswerOrBoundEvent, NewBoundAndReplayCounts, StudyExplorer, SweepError, VisitedPointOutcome,
};
use crate::sweep::bound::PointTimeAndMemoryBounds;
use crate::sweep::evaluate::{PointEvaluator, PointRefusalOrMeasures};
use crate::sweep::journal::JournaledBoundOrAnswer;
use crate::sweep::point::PointRefusal;
use crate::sweep::setting::{self, Settings};
use chakram_base::interrupt::{self, wrap_with_current_token};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, PoisonError};

/// Facts known about a point: its answer and its bounds.
#[derive(Clone, Debug, Default)]
pub(super) struct PointKnowledge {
    pub quick: Option<PointTimeAndMemoryBounds>,
    pub whole: Option<PointTimeAndMemoryBounds>,
    pub answer: Option<PointRefusalOrMeasures>,
}

/// A fact about a point that the search needs: the point's answer, or one of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PointAnswerOrBoundKind {
    Quick,
    Whole,
    Answer,
}

impl PointKnowledge {
    pub fn answers_question(&self, question: PointAnswerOrBoundKind) -> bool {
        // An answered point needs no bound, and a rejected point has none.
        self.answer.is_some()
            || match question {
                PointAnswerOrBoundKind::Quick => self.quick.is_some() || self.whole.is_some(),
                PointAnswerOrBoundKind::Whole => self.whole.is_some(),
                PointAnswerOrBoundKind::Answer => false,
            }
    }
}

impl PointKnowledge {
    /// Adds newer results, which replace older ones of the same kind.
    fn extend(&mut self, found: Self) {
        self.quick = found.quick.or(self.quick);
        self.whole = found.whole.or(self.whole);
        self.answer = found.answer.or(self.answer.take());
    }

    /// Returns the journal entry with these results.
    fn to_journal_entry(&self, key: &str) -> JournaledBoundOrAnswer {
        JournaledBoundOrAnswer {
            point: key.to_owned(),
            bound: self.whole.or(self.quick),
            answer: self.answer.clone(),
        }
    }
}

/// Returns true if a question about the point `key` is answered.
pub(super) fn is_point_question_answered(
    known: &KnownPoints,
    key: &str,
    question: PointAnswerOrBoundKind,
) -> bool {
    known
        .get(key)
        .is_some_and(|known| known.answers_question(question))
}

/// All points of a study for which an answer or a bound is known, keyed by [`setting::format_settings`].
pub(super) type KnownPoints = BTreeMap<String, PointKnowledge>;

/// An open question: the point's key, the question, and the point's settings.
pub(super) type UnansweredPointQuestion = (String, PointAnswerOrBoundKind, Settings);

/// State shared by all threads, protected by a lock.
struct SharedSearchState<N> {
    known: KnownPoints,
    /// Keys of points that a thread is evaluating.
    in_flight: BTreeSet<String>,
    next: N,
    best: Option<(String, f64)>,
    failed: Option<SweepError>,
    done: NewBoundAndReplayCounts,
}

impl StudyExplorer<'_> {
    /// Answers the `questions` that are still open.
    pub(super) fn evaluate_points_of_open_questions(
        &mut self,
        questions: Vec<(PointAnswerOrBoundKind, Settings)>,
    ) -> Result<(), SweepError> {
        let mut open: BTreeMap<String, (PointAnswerOrBoundKind, Settings)> = BTreeMap::new();
        for (question, point) in questions {
            let key = setting::format_settings(&point);
            if !is_point_question_answered(&self.known, &key, question) {
                open.insert(key, (question, point));
            }
        }
        let mut open: Vec<UnansweredPointQuestion> = (open.into_iter())
            .map(|(key, (question, point))| (key, question, point))
            .collect();
        // Put points with the same work next to each other, so that the work is built only once.
        open.sort_by_cached_key(|(_, _, point)| PointEvaluator::work_key(point));
        let mut open = open.into_iter();
        self.answer_questions_until_none_remain(move |_, _| open.next())
    }

    /// Answers the questions that `next` returns, several at a time, until `next` returns none and
    /// all questions are answered.
    ///
    /// `next` receives the known results and the keys of points in progress. It is called again after each answer.
    pub(super) fn answer_questions_until_none_remain(
        &mut self,
        next: impl FnMut(&KnownPoints, &BTreeSet<String>) -> Option<UnansweredPointQuestion> + Send,
    ) -> Result<(), SweepError> {
        if self.options.is_closed {
            return Ok(());
        }
        let shared = Mutex::new(SharedSearchState {
            known: std::mem::take(&mut self.known),
            in_flight: BTreeSet::new(),
            next,
            best: self.best_point_so_far(),
            failed: None,
            done: NewBoundAndReplayCounts::default(),
        });
        let answered = Condvar::new();
        let this = &*self;
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.get() {
                scope.spawn(wrap_with_current_token(|| {
                    this.run_answer_worker(&shared, &answered)
                }));
            }
        });
        let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.known = shared.known;
        self.done.bounded.0 += shared.done.bounded.0;
        self.done.bounded.1 += shared.done.bounded.1;
        self.done.replayed.0 += shared.done.replayed.0;
        self.done.replayed.1 += shared.done.replayed.1;
        shared.failed.map_or(Ok(()), Err)
    }

    /// Answers questions until none are left; each thread runs this function.
    fn run_answer_worker<N>(&self, shared: &Mutex<SharedSearchState<N>>, answered: &Condvar)
    where
        N: FnMut(&KnownPoints, &BTreeSet<String>) -> Option<UnansweredPointQuestion>,
    {
        let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
        while state.failed.is_none() {
            let now = &mut *state;
            let Some((key, question, point)) = (now.next)(&now.known, &now.in_flight) else {
                if state.in_flight.is_empty() {
                    break;
                }
                state = (answered.wait(state)).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let is_bounded = (state.known.get(&key)).is_some_and(|known| known.whole.is_some());
            state.in_flight.insert(key.clone());
            drop(state);
            let start = std::time::Instant::now();
            let find_out = || self.compute_answer_to_question(is_bounded, question, &point);
            let found = catch_unwind(AssertUnwindSafe(find_out)).unwrap_or_else(|panic| {
                // If the computation panics, first wake the other threads, which would otherwise wait for this answer
                // forever.
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                state.in_flight.remove(&key);
                answered.notify_all();
                drop(state);
                resume_unwind(panic)
            });
            let seconds = start.elapsed().as_secs_f64();
            let entry = found.to_journal_entry(&key);
            // Record no answer for the point if the run was interrupted.
            let written = interrupt::fail_if_stopped_or_out_of_memory()
                .map_err(SweepError::from)
                .and_then(|()| {
                    let journal = self.journal.as_ref();
                    Ok(journal.map_or(Ok(()), |journal| journal.append_entry(&entry))?)
                });
            let answer = found.answer.as_ref();
            let score = answer.and_then(|answer| self.score_answer(&point, answer));

            state = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let now = &mut *state;
            let count = match question {
                PointAnswerOrBoundKind::Answer => &mut now.done.replayed,
                _ => &mut now.done.bounded,
            };
            count.0 += 1;
            count.1 += seconds;
            let is_less = |score: &f64| now.best.as_ref().is_none_or(|(_, best)| score < best);
            if let Some(score) = score.filter(is_less) {
                now.best = Some((key.clone(), score));
            }
            (self.watcher)(&NewAnswerOrBoundEvent {
                is_bound: question != PointAnswerOrBoundKind::Answer,
                best: now.best.as_ref().map(|(key, score)| (key.as_str(), *score)),
            });
            now.in_flight.remove(&key);
            now.known.entry(key).or_default().extend(found);
            now.failed = written.err().or(now.failed.take());
            answered.notify_all();
        }
        answered.notify_all();
    }

    /// Returns the best point so far and its score.
    fn best_point_so_far(&self) -> Option<(String, f64)> {
        let scored = self.rows.iter().filter_map(|row| match &row.outcome {
            VisitedPointOutcome::Answered(answer) => Some((
                setting::format_settings(&row.point),
                self.score_answer(&row.point, answer)?,
            )),
            VisitedPointOutcome::Dominated(_) => None,
        });
        scored.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// Computes the answer to one question about a point; `is_bounded` is true if the point's full
    /// bound is already known.
    fn compute_answer_to_question(
        &self,
        is_bounded: bool,
        question: PointAnswerOrBoundKind,
        point: &Settings,
    ) -> PointKnowledge {
        let refused = |refusal: PointRefusal| PointKnowledge {
            answer: Some(refusal.into()),
            ..PointKnowledge::default()
        };
        match question {
            PointAnswerOrBoundKind::Answer => PointKnowledge {
                answer: Some(self.evaluator.answer_by_replay(point, is_bounded)),
                ..PointKnowledge::default()
            },
            PointAnswerOrBoundKind::Quick | PointAnswerOrBoundKind::Whole => {
                match self
                    .evaluator
                    .bound_point(point, question == PointAnswerOrBoundKind::Whole)
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
