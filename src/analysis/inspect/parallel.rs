//! Processes items, such as files, in parallel, and passes the results on in the order of the items.

use chakram_base::interrupt::wrap_with_current_token;
use std::collections::BTreeMap;
use std::panic;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

/// Progress of the work, shared by all threads.
struct OrderedWorkProgress<R> {
    /// Index of the next item to process.
    next: usize,
    /// Number of results that the consumer has taken.
    taken: usize,
    /// Results that the consumer has not received yet, by index.
    done: BTreeMap<usize, R>,
    /// True if no further item may be started.
    over: bool,
}

/// Calls `work` for each of `items` on up to `threads` threads, and `take` for each result in the order of the items.
/// At most two results per thread exist at any time. If `take` fails, the work stops and returns the error of `take`.
pub fn for_each_in_order<T: Sync, R: Send, E>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
    mut take: impl FnMut(&T, R) -> Result<(), E>,
) -> Result<(), E> {
    let threads = threads.clamp(1, items.len().max(1));
    if threads == 1 {
        return items.iter().try_for_each(|item| take(item, work(item)));
    }
    let state = Mutex::new(OrderedWorkProgress {
        next: 0,
        taken: 0,
        done: BTreeMap::new(),
        over: false,
    });
    // Workers and the consumer share one condition variable, because they all wait for changes in the same state.
    let changed = Condvar::new();
    // Ignore poisoning: `work` runs without the lock, so a panic leaves the state consistent.
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = |guard| changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(wrap_with_current_token(|| {
                loop {
                    let mut guard = lock();
                    while !guard.over && guard.next >= guard.taken + 2 * threads {
                        guard = wait(guard);
                    }
                    if guard.over || guard.next == items.len() {
                        return;
                    }
                    let index = guard.next;
                    guard.next += 1;
                    drop(guard);
                    let result =
                        panic::catch_unwind(panic::AssertUnwindSafe(|| work(&items[index])));
                    let mut guard = lock();
                    match result {
                        Ok(result) => {
                            guard.done.insert(index, result);
                            changed.notify_all();
                        }
                        Err(cause) => {
                            // Without this flag, the consumer would wait forever for the missing result.
                            guard.over = true;
                            changed.notify_all();
                            drop(guard);
                            panic::resume_unwind(cause);
                        }
                    }
                }
            }));
        }
        for (index, item) in items.iter().enumerate() {
            let mut guard = lock();
            let result = loop {
                match guard.done.remove(&index) {
                    Some(result) => break result,
                    None if guard.over => return Ok(()),
                    None => guard = wait(guard),
                }
            };
            drop(guard);
            let outcome = take(item, result);
            let mut guard = lock();
            guard.taken = index + 1;
            guard.over |= outcome.is_err();
            drop(guard);
            changed.notify_all();
            outcome?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn results_come_in_order_and_few_at_a_time() {
        let items: Vec<u32> = (0..200).collect();
        for threads in [1, 2, 7] {
            let (alive, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let mut taken = Vec::new();
            let work = |&item: &u32| {
                most.fetch_max(alive.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // The first of every five items takes longest, so items do not end in order.
                (0..(200 - item % 5 * 40) * 100).for_each(|i| {
                    std::hint::black_box(i);
                });
                item
            };
            let done = for_each_in_order(&items, threads, work, |_, item| {
                alive.fetch_sub(1, Ordering::SeqCst);
                taken.push(item);
                Ok::<_, ()>(())
            });
            assert_eq!((done, &taken), (Ok(()), &items));
            assert!(most.load(Ordering::SeqCst) <= 2 * threads);
        }
    }

    #[test]
    fn an_error_ends_the_work_and_a_panic_is_handed_on() {
        let items: Vec<u32> = (0..100).collect();
        let stop = |_: &u32, item: u32| if item == 3 { Err(item) } else { Ok(()) };
        for threads in [1, 4] {
            assert_eq!(
                for_each_in_order(&items, threads, |&item| item, stop),
                Err(3)
            );
            let panicked = panic::catch_unwind(|| {
                for_each_in_order(
                    &items,
                    threads,
                    |&item| assert_ne!(item, 50),
                    |_, ()| Ok::<_, ()>(()),
                )
            });
            assert!(panicked.is_err());
        }
    }
}
