//! Interruption of work from outside: on request, or because memory ran over its limit.
//!
//! A [`StopToken`] belongs to a task, such as one call of a library's user. Whoever runs the task makes it current on its
//! threads ([`within`], [`inherited`]), and code that may take long calls [`check`] now and then. Interruptions never change a
//! result: there is none.

use crate::bounds::{self, MemoryLimitError, allocator};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reason for which a task ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interruption {
    /// Its owner asked for it.
    #[error("interrupted")]
    Requested,
    /// It used more memory than it may.
    #[error(transparent)]
    Memory(#[from] MemoryLimitError),
}

/// Handle with which a task is stopped from another thread.
#[derive(Clone, Debug, Default)]
pub struct StopToken(Arc<TokenState>);

#[derive(Debug, Default)]
struct TokenState {
    is_requested: AtomicBool,
    is_out_of_memory: AtomicBool,
    /// The first interruption that a check found; later checks find the same.
    found: OnceLock<Interruption>,
}

impl StopToken {
    /// Asks the task to stop at its next check.
    pub fn stop(&self) {
        self.0.is_requested.store(true, Ordering::Relaxed);
    }

    /// Returns the interruption that ended the task, if one did.
    pub fn interruption(&self) -> Option<&Interruption> {
        self.0.found.get()
    }

    /// Whether the system had no more memory for the task: its thread has been abandoned.
    pub fn is_out_of_memory(&self) -> bool {
        self.0.is_out_of_memory.load(Ordering::Relaxed)
    }
}

thread_local! {
    static CURRENT: RefCell<Option<StopToken>> = const { RefCell::new(None) };
}

/// Returns the token of this thread's task.
pub fn current() -> Option<StopToken> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs `work` as the task of `token`.
pub fn within<R>(token: Option<StopToken>, work: impl FnOnce() -> R) -> R {
    /// Restores the token of before, also when `work` panics.
    struct Restored(Option<StopToken>);
    impl Drop for Restored {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _before = Restored(CURRENT.replace(token));
    work()
}

/// Returns `work` for another thread, as part of this thread's task.
pub fn inherited<R>(work: impl FnOnce() -> R) -> impl FnOnce() -> R {
    let token = current();
    move || within(token, work)
}

/// Checks that the task of this thread may go on: two loads and a look at a variable of the thread.
///
/// # Errors
///
/// Fails if it was asked to stop, if memory is over its limit, and ever after.
pub fn check() -> Result<(), Interruption> {
    CURRENT.with_borrow(|token| {
        let memory = || bounds::check_held().map_err(Interruption::from);
        let Some(StopToken(state)) = token else {
            return memory();
        };
        if let Some(found) = state.found.get() {
            return Err(found.clone());
        }
        let result = match state.is_requested.load(Ordering::Relaxed) {
            true => Err(Interruption::Requested),
            false => memory(),
        };
        result.map_err(|found| state.found.get_or_init(|| found).clone())
    })
}

/// Makes the process go on when a task exceeds the memory limit: [`check`] ends the task. Where the system itself has no more,
/// the thread of the task is abandoned with all that it has, and [`StopToken::is_out_of_memory`] tells its owner.
pub fn keep_process() {
    allocator::only_count(abandon);
}

/// Marks the task of this thread as out of memory and stops the thread for good, since an allocation can neither fail nor
/// unwind. Returns only if the thread has no task.
fn abandon() {
    let is_task = CURRENT.try_with(|current| {
        let current = current.try_borrow().ok()?;
        let StopToken(state) = current.as_ref()?;
        state.is_out_of_memory.store(true, Ordering::Relaxed);
        Some(())
    });
    while let Ok(Some(())) = is_task {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_stops_on_all_its_threads_and_no_other_does() {
        let token = StopToken::default();
        let other = StopToken::default();
        let checked = |token: &StopToken| within(Some(token.clone()), check);
        assert_eq!(checked(&token), Ok(()));
        token.stop();
        let on_a_thread = within(Some(token.clone()), || {
            std::thread::scope(|scope| scope.spawn(inherited(check)).join().unwrap())
        });
        assert_eq!(on_a_thread, Err(Interruption::Requested));
        assert_eq!(token.interruption(), Some(&Interruption::Requested));
        assert_eq!(checked(&other), Ok(()));
        assert_eq!((check(), other.interruption()), (Ok(()), None));
    }
}
