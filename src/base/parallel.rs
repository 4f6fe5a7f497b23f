//! Runs work on several threads, with results that do not depend on the number of threads.

use crate::interrupt::wrap_with_current_token;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Returns the number of threads that the machine can run at the same time.
pub fn processor_count() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Applies `f` to each of `items` on up to `threads` threads, and returns the results in item order.
///
/// # Errors
///
/// Returns the error of the first failing item in the list, whatever the timing of the threads. Items after the first
/// failing item may be skipped.
pub fn map_in_order<T: Sync, R: Send, E: Send>(
    threads: usize,
    items: &[T],
    f: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let helpers = threads.min(items.len()).saturating_sub(1);
    if helpers == 0 {
        return items.iter().map(f).collect();
    }
    let (next, first_error) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let item = items.get(at);
            let Some(item) = item.filter(|_| at < first_error.load(Ordering::Relaxed)) else {
                return done;
            };
            let result = f(item);
            if result.is_err() {
                first_error.fetch_min(at, Ordering::Relaxed);
            }
            done.push((at, result));
        }
    };
    let mut done = thread::scope(|scope| {
        let helpers: Vec<_> = (0..helpers)
            .map(|_| scope.spawn(wrap_with_current_token(work)))
            .collect();
        let mut done = work();
        for helper in helpers {
            match helper.join() {
                Ok(more) => done.extend(more),
                Err(cause) => std::panic::resume_unwind(cause),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_items_for_any_number_of_threads() {
        let items: Vec<u32> = (0..50).map(|i| (i * 37) % 50).collect();
        for threads in [1, 2, 3, 64] {
            let done = map_in_order(threads, &items, |item| Ok::<_, u32>(item + 1));
            let expected: Vec<u32> = items.iter().map(|item| item + 1).collect();
            assert_eq!(done, Ok(expected));
            // Item 37 is the first failing item in the list, whichever thread processes it.
            let failed = map_in_order(threads, &items, |item| {
                if item % 10 == 7 { Err(*item) } else { Ok(()) }
            });
            assert_eq!(failed, Err(37));
        }
        assert_eq!(
            map_in_order(4, &[], |_: &u32| Err::<(), u32>(1)),
            Ok(Vec::new())
        );
    }
}
