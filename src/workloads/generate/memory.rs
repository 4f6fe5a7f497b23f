//! Memory loads, kernels that wait for them, and stores: a benchmark of memory alone.

use super::{
    MOST_WORK, PatternOptionError, TraceEmitter, TraceGenerator, check_at_least, check_limit,
    check_rank_count, check_whole_ns, refused_option_value_error,
};
use chakram_base::units::Span;
use chakram_trace::format::{MemoryLocation, Op, TraceError};

/// Rounds of a load, a kernel and an optional store, which are the same on every rank. Without `prefetch`, each node
/// waits for the one before it. With `prefetch`, a load waits only for the previous load. Loads are on lane 0, kernels
/// on lane 1 and stores on lane 2.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadKernelStorePattern {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of rounds.
    pub loads: u32,
    /// Number of bytes per load and per store. With `in_switch`, the number of bytes in this rank's
    /// part of the shared access.
    pub bytes: u64,
    /// True for the NPU's own memory, false for remote memory.
    pub local: bool,
    /// Name of the remote memory; `None` if it has none.
    pub memory: Option<String>,
    /// Recorded duration of each kernel, in whole nanoseconds; zero if there are no kernels.
    pub kernel: Span,
    /// True if each round ends with a store.
    pub store: bool,
    /// True if switches gather the data of loads and reduce the data of stores; valid only for remote memory.
    pub in_switch: bool,
    /// True if a load waits only for the previous load, so that loads run ahead of kernels.
    pub prefetch: bool,
}

impl LoadKernelStorePattern {
    /// Returns a pattern with `loads` loads of `bytes` from remote memory per rank, without kernels
    /// or stores.
    pub fn new(ranks: u32, loads: u32, bytes: u64) -> Self {
        Self {
            ranks,
            loads,
            bytes,
            local: false,
            memory: None,
            kernel: Span::ZERO,
            store: false,
            in_switch: false,
            prefetch: false,
        }
    }

    pub(super) fn prepare_generator(self) -> Result<LoadKernelStoreGenerator, PatternOptionError> {
        check_rank_count(self.ranks, 1)?;
        check_at_least("loads", self.loads, 1)?;
        check_whole_ns("kernel", self.kernel)?;
        check_limit("bytes", self.bytes.into(), MOST_WORK, "fewer bytes")?;
        if self.in_switch && self.local {
            let expected = "remote memory, because local memory has no switch";
            return Err(refused_option_value_error(
                "place",
                "local, with in_switch",
                expected,
            ));
        }
        if self.memory.is_some() && self.local {
            let expected = "no name, because the NPU's own memory has none";
            return Err(refused_option_value_error(
                "memory",
                "a name, with local",
                expected,
            ));
        }
        Ok(LoadKernelStoreGenerator(self))
    }
}

/// Generator of memory accesses, with checked options.
#[derive(Debug)]
pub(super) struct LoadKernelStoreGenerator(LoadKernelStorePattern);

impl LoadKernelStoreGenerator {
    fn create_access_op(&self, store: bool) -> Op<'_> {
        Op::Memory {
            store,
            place: match &self.0.memory {
                _ if self.0.local => MemoryLocation::Local,
                None => MemoryLocation::Remote,
                Some(name) => MemoryLocation::Named(name),
            },
            bytes: self.0.bytes,
            in_switch: self.0.in_switch,
        }
    }

    fn nodes_per_round(&self) -> u64 {
        1 + u64::from(self.0.kernel > Span::ZERO) + u64::from(self.0.store)
    }
}

impl TraceGenerator for LoadKernelStoreGenerator {
    fn suggest_smaller(&self) -> &'static str {
        "fewer loads"
    }

    fn rank_count(&self) -> u32 {
        self.0.ranks
    }

    fn shape_class_of_rank(&self, _: u32) -> u32 {
        0
    }

    fn node_count_of_rank(&self, _: u32) -> u64 {
        u64::from(self.0.loads) * self.nodes_per_round()
    }

    fn emit_nodes(&self, _: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError> {
        let kernel = Op::Compute {
            flops: 0,
            bytes: 0,
            dtype: None,
        };
        let (mut last, mut load): (Option<u64>, Option<u64>) = (None, None);
        for round in 0..self.0.loads {
            // Prefetched loads depend only on the previous load, so that they overlap kernels.
            let before = if self.0.prefetch { load } else { last };
            out.set_name(format_args!("load/{round}"));
            let id = out.emit_node(
                self.create_access_op(false),
                Some(0),
                Span::ZERO,
                before.as_slice(),
            )?;
            (last, load) = (Some(id), Some(id));
            if self.0.kernel > Span::ZERO {
                out.set_name(format_args!("kernel/{round}"));
                last = Some(out.emit_node(kernel, Some(1), self.0.kernel, last.as_slice())?);
            }
            if self.0.store {
                out.set_name(format_args!("store/{round}"));
                last = Some(out.emit_node(
                    self.create_access_op(true),
                    Some(2),
                    Span::ZERO,
                    last.as_slice(),
                )?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::WorkloadPattern;
    use super::super::testing::{check_and_record_every_rank, rejection_message};
    use super::*;

    fn generate_and_list_node_dependencies(options: LoadKernelStorePattern) -> Vec<Vec<u64>> {
        let ranks = check_and_record_every_rank(WorkloadPattern::Memory(options));
        ranks[0].iter().map(|node| node.data.clone()).collect()
    }

    #[test]
    fn rounds_follow_one_another_unless_loads_run_ahead() {
        assert_eq!(
            generate_and_list_node_dependencies(LoadKernelStorePattern::new(2, 3, 8)),
            [vec![], vec![1], vec![2]]
        );
        let mut options = LoadKernelStorePattern::new(2, 2, 8);
        (options.kernel, options.store) = (Span::from_us(1), true);
        // Ids 1 and 4 are loads, ids 2 and 5 are kernels, and ids 3 and 6 are stores.
        let line = [vec![], vec![1], vec![2], vec![3], vec![4], vec![5]];
        assert_eq!(generate_and_list_node_dependencies(options.clone()), line);
        options.prefetch = true;
        let ahead = [vec![], vec![1], vec![2], vec![1], vec![4], vec![5]];
        assert_eq!(generate_and_list_node_dependencies(options.clone()), ahead);
        let ranks = check_and_record_every_rank(WorkloadPattern::Memory(options));
        let lanes: Vec<_> = ranks[1].iter().map(|node| node.lane.unwrap()).collect();
        assert_eq!(lanes, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn switches_gather_loads_and_reduce_stores() {
        let mut options = LoadKernelStorePattern::new(1, 1, 8);
        (options.in_switch, options.store) = (true, true);
        let ranks = check_and_record_every_rank(WorkloadPattern::Memory(options.clone()));
        let ops: Vec<_> = ranks[0].iter().map(|node| &node.op[..]).collect();
        let what = |store| {
            format!("Memory {{ store: {store}, place: Remote, bytes: 8, in_switch: true }}")
        };
        assert_eq!(ops, [what(false), what(true)]);
        options.local = true;
        let why = rejection_message(WorkloadPattern::Memory(options.clone()));
        assert!(why.contains("local memory has no switch"), "{why}");
        options.loads = 0;
        let why = rejection_message(WorkloadPattern::Memory(options));
        assert!(why.starts_with("`loads` is 0"), "{why}");
    }
}
