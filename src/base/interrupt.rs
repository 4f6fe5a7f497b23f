//! Interrupts work from outside, either on request or because the memory limit is exceeded.
//!
//! A [`StopToken`] belongs to a task, such as one call into the library. The caller makes it current on the task's
//! threads ([`run_with_token`], [`wrap_with_current_token`]), and long-running code calls
//! [`fail_if_stopped_or_out_of_memory`] regularly. An interruption never changes a result, because an interrupted task
//! has no result.

use crate::bounds::{self, MemoryLimitError, allocator};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reason why a task ended before it had a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopOrMemoryInterruption {
    /// The task's owner requested the interruption.
    #[error("interrupted")]
    Requested,
    /// The task exceeded the memory limit.
    #[error(transparent)]
    Memory(#[from] MemoryLimitError),
}

/// Handle to stop a task from another thread.
#[derive(Clone, Debug, Default)]
pub struct StopToken(Arc<StopAndOutOfMemoryFlags>);

#[derive(Debug, Default)]
struct StopAndOutOfMemoryFlags {
    is_requested: AtomicBool,
    is_out_of_memory: AtomicBool,
    /// The first interruption that a check found. Later checks return the same interruption.
    found: OnceLock<StopOrMemoryInterruption>,
}

impl StopToken {
    /// Asks the task to stop at its next check.
    pub fn request_stop(&self) {
        self.0.is_requested.store(true, Ordering::Relaxed);
    }

    /// Returns the interruption that ended the task, or `None` if no check has found one.
    pub fn interruption_found_by_check(&self) -> Option<&StopOrMemoryInterruption> {
        self.0.found.get()
    }

    /// Returns true if the system had no memory left for the task. The task's thread is then blocked forever.
    pub fn is_out_of_memory(&self) -> bool {
        self.0.is_out_of_memory.load(Ordering::Relaxed)
    }
}

thread_local! {
    static CURRENT: RefCell<Option<StopToken>> = const { RefCell::new(None) };
}

/// Returns the token of this thread's task, or `None` if the thread has no task.
pub fn current_token() -> Option<StopToken> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs `work` with `token` as the current token.
pub fn run_with_token<R>(token: Option<StopToken>, work: impl FnOnce() -> R) -> R {
    /// Restores the previous token, even if `work` panics.
    struct StopTokenRestoreGuard(Option<StopToken>);
    impl Drop for StopTokenRestoreGuard {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _before = StopTokenRestoreGuard(CURRENT.replace(token));
    work()
}

/// Wraps `work` so that another thread can run it as part of this thread's task.
pub fn wrap_with_current_token<R>(work: impl FnOnce() -> R) -> impl FnOnce() -> R {
    let token = current_token();
    move || run_with_token(token, work)
}

/// Checks whether the task of this thread may continue. A check is cheap: it reads two variables and one thread-local
/// variable.
///
/// # Errors
///
/// Fails if a stop was requested or the memory limit is exceeded. After the first failure, all later calls also fail.
pub fn fail_if_stopped_or_out_of_memory() -> Result<(), StopOrMemoryInterruption> {
    CURRENT.with_borrow(|token| {
        let memory =
            || bounds::check_process_memory_within_limit().map_err(StopOrMemoryInterruption::from);
        let Some(StopToken(state)) = token else {
            return memory();
        };
        if let Some(found) = state.found.get() {
            return Err(found.clone());
        }
        let result = match state.is_requested.load(Ordering::Relaxed) {
            true => Err(StopOrMemoryInterruption::Requested),
            false => memory(),
        };
        result.map_err(|found| state.found.get_or_init(|| found).clone())
    })
}

/// Keeps the process alive when a task exceeds the memory limit; [`fail_if_stopped_or_out_of_memory`] then ends only
/// the task. If the system itself has no memory left, the task's thread is abandoned with all its memory, and
/// [`StopToken::is_out_of_memory`] returns true.
pub fn keep_process_alive_at_memory_limit() {
    allocator::disable_exit_at_limit(block_out_of_memory_task);
}

/// Marks this thread's task as out of memory, and blocks the thread forever, because an allocation can neither return
/// an error nor unwind. Returns only if the thread has no task.
fn block_out_of_memory_task() {
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
        let checked = |token: &StopToken| {
            run_with_token(Some(token.clone()), fail_if_stopped_or_out_of_memory)
        };
        assert_eq!(checked(&token), Ok(()));
        token.request_stop();
        let on_a_thread = run_with_token(Some(token.clone()), || {
            std::thread::scope(|scope| {
                scope
                    .spawn(wrap_with_current_token(fail_if_stopped_or_out_of_memory))
                    .join()
                    .unwrap()
            })
        });
        assert_eq!(on_a_thread, Err(StopOrMemoryInterruption::Requested));
        assert_eq!(
            token.interruption_found_by_check(),
            Some(&StopOrMemoryInterruption::Requested)
        );
        assert_eq!(checked(&other), Ok(()));
        assert_eq!(
            (
                fail_if_stopped_or_out_of_memory(),
                other.interruption_found_by_check()
            ),
            (Ok(()), None)
        );
    }
}
