//! Graphs of a job, one for each shape of ranks, built by several threads.

use chakram_base::interrupt::inherited;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The least number of nodes for which threads are started: to build them takes a few milliseconds, and to start a thread a
/// tenth of one.
const LEAST_NODES: u64 = 10_000;

/// Applies `build` to each of `shapes`, of `nodes` together, and returns the results in their order, or the error of the
/// first that has one.
pub fn in_order<G: Send, E: Send>(
    shapes: &[u32],
    nodes: u64,
    build: impl Fn(u32) -> Result<G, E> + Sync,
) -> Result<Vec<G>, E> {
    let processors = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = if nodes < LEAST_NODES { 1 } else { processors() };
    over(threads, shapes, build)
}

fn over<G: Send, E: Send>(
    threads: usize,
    shapes: &[u32],
    build: impl Fn(u32) -> Result<G, E> + Sync,
) -> Result<Vec<G>, E> {
    let helpers = threads.min(shapes.len()).saturating_sub(1);
    if helpers == 0 {
        return shapes.iter().map(|&shape| build(shape)).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut built = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&shape) = shapes.get(at) else {
                return built;
            };
            built.push((at, build(shape)));
        }
    };
    let mut built = thread::scope(|scope| {
        let helpers: Vec<_> = (0..helpers).map(|_| scope.spawn(inherited(work))).collect();
        let mut built = work();
        for helper in helpers {
            match helper.join() {
                Ok(more) => built.extend(more),
                Err(cause) => std::panic::resume_unwind(cause),
            }
        }
        built
    });
    built.sort_unstable_by_key(|(at, _)| *at);
    built.into_iter().map(|(_, built)| built).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_shapes_for_any_number_of_threads() {
        let shapes: Vec<u32> = (0..50).map(|i| (i * 37) % 50).collect();
        for threads in [1, 2, 3, 64] {
            let built = over(threads, &shapes, |shape| Ok::<_, u32>(shape + 1));
            let expected: Vec<u32> = shapes.iter().map(|shape| shape + 1).collect();
            assert_eq!(built, Ok(expected));
            // 37 comes before all others that fail, whichever thread comes to it.
            let failed = over(threads, &shapes, |shape| {
                if shape % 10 == 7 { Err(shape) } else { Ok(()) }
            });
            assert_eq!(failed, Err(37));
        }
        assert_eq!(over(4, &[], |_| Err::<(), u32>(1)), Ok(Vec::new()));
    }
}
