//! Runs two independent computations over the nodes of a run, on two threads if the run is large.

use chakram_base::interrupt::wrap_with_current_token;
use std::thread;

/// Minimum number of nodes for which a run starts a second thread. Summing over so many nodes takes a millisecond;
/// starting a thread takes a tenth of a millisecond.
const LEAST_NODES: usize = 50_000;

/// Computes the results of `here` and `beside`. Each of them iterates over the run's `nodes` nodes. With many nodes,
/// `beside` runs on a second thread.
pub fn run_on_second_thread_if_many_nodes<A, B: Send>(
    nodes: usize,
    here: impl FnOnce() -> A,
    beside: impl FnOnce() -> B + Send,
) -> (A, B) {
    if nodes < LEAST_NODES {
        return (here(), beside());
    }
    thread::scope(|scope| {
        let beside = scope.spawn(wrap_with_current_token(beside));
        let first = here();
        match beside.join() {
            Ok(second) => (first, second),
            Err(cause) => std::panic::resume_unwind(cause),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_do_not_depend_on_threads() {
        for nodes in [0, LEAST_NODES] {
            let numbers: Vec<usize> = (0..100).collect();
            let sums = run_on_second_thread_if_many_nodes(
                nodes,
                || numbers.iter().sum::<usize>(),
                || numbers.len(),
            );
            assert_eq!(sums, (4950, 100));
        }
    }
}
