//! Chains of kernels: a benchmark of dependencies and lanes, without communication.

use super::{
    MOST_WORK, PatternOptionError, TraceEmitter, TraceGenerator, check_at_least, check_limit,
    check_rank_count, check_whole_ns, refused_option_value_error,
};
use chakram_base::units::Span;
use chakram_trace::format::{Dtype, Op, TraceError};

/// Chains of kernels that are the same on every rank. Node `i` of a rank (from 0) belongs to chain `i % chains` and
/// waits for node `i - chains`; chain `c` uses lane `c`.
#[derive(Clone, Debug, PartialEq)]
pub struct ParallelKernelChainsPattern {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of kernels per rank, summed over its chains.
    pub nodes: u32,
    /// Number of chains per rank, from 1 to `nodes`.
    pub chains: u32,
    /// Recorded duration of each kernel, a whole number of nanoseconds.
    pub duration: Span,
    /// FLOPs per kernel.
    pub flops: u64,
    /// Bytes that each kernel reads and writes.
    pub bytes: u64,
    /// The kernels' number format; `None` if the trace names none.
    pub dtype: Option<Dtype>,
}

impl ParallelKernelChainsPattern {
    /// Returns one chain per rank with `nodes` kernels, each of which takes 1 us and has no FLOPs
    /// or bytes.
    pub fn new(ranks: u32, nodes: u32) -> Self {
        Self {
            ranks,
            nodes,
            chains: 1,
            duration: Span::from_us(1),
            flops: 0,
            bytes: 0,
            dtype: None,
        }
    }

    pub(super) fn prepare_generator(
        self,
    ) -> Result<ParallelKernelChainsGenerator, PatternOptionError> {
        check_rank_count(self.ranks, 1)?;
        check_at_least("nodes", self.nodes, 1)?;
        check_whole_ns("duration", self.duration)?;
        if self.chains == 0 || self.chains > self.nodes {
            let expected = format!("1 to {}, with at least one node per chain", self.nodes);
            return Err(refused_option_value_error("chains", self.chains, expected));
        }
        check_limit("FLOPs of a kernel", self.flops.into(), MOST_WORK, "fewer")?;
        check_limit("bytes of a kernel", self.bytes.into(), MOST_WORK, "fewer")?;
        Ok(ParallelKernelChainsGenerator(self))
    }
}

/// Generator of chains of kernels, with checked options.
#[derive(Debug)]
pub(super) struct ParallelKernelChainsGenerator(ParallelKernelChainsPattern);

impl TraceGenerator for ParallelKernelChainsGenerator {
    fn suggest_smaller(&self) -> &'static str {
        "fewer nodes"
    }

    fn rank_count(&self) -> u32 {
        self.0.ranks
    }

    fn shape_class_of_rank(&self, _: u32) -> u32 {
        0
    }

    fn node_count_of_rank(&self, _: u32) -> u64 {
        self.0.nodes.into()
    }

    fn emit_nodes(&self, _: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError> {
        let chains = u64::from(self.0.chains);
        let op = Op::Compute {
            flops: self.0.flops,
            bytes: self.0.bytes,
            dtype: self.0.dtype,
        };
        for i in 0..u64::from(self.0.nodes) {
            let (chain, place) = (i % chains, i / chains);
            out.set_name(format_args!("chain{chain}/{place}"));
            // Ids count from 1, so this is the id of node i - chains.
            let before = (i + 1).checked_sub(chains).filter(|id| *id != 0);
            out.emit_node(op, Some(chain as i64), self.0.duration, before.as_slice())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::WorkloadPattern;
    use super::super::testing::{check_and_record_every_rank, rejection_message};
    use super::*;

    #[test]
    fn nodes_take_turns_among_the_chains() {
        // With 7 nodes in 3 chains, lane 0 has the ids 1, 4 and 7, lane 1 has the ids 2 and 5, and
        // lane 2 has the ids 3 and 6.
        let mut options = ParallelKernelChainsPattern::new(2, 7);
        options.chains = 3;
        options.flops = 5;
        let ranks = check_and_record_every_rank(WorkloadPattern::Chain(options));
        assert_eq!((ranks.len(), ranks[0].len()), (2, 7));
        let data: Vec<_> = ranks[0].iter().map(|node| &node.data[..]).collect();
        assert_eq!(data, [&[][..], &[], &[], &[1], &[2], &[3], &[4]]);
        let lanes: Vec<_> = ranks[0].iter().map(|node| node.lane.unwrap()).collect();
        assert_eq!(lanes, [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(ranks[0][6].name, "chain0/2");
        assert_eq!(ranks[1][6].recorded, Span::from_us(1));
    }

    #[test]
    fn a_single_chain_is_a_line() {
        let ranks = check_and_record_every_rank(WorkloadPattern::Chain(
            ParallelKernelChainsPattern::new(1, 4),
        ));
        let data: Vec<_> = ranks[0].iter().map(|node| &node.data[..]).collect();
        assert_eq!(data, [&[][..], &[1], &[2], &[3]]);
    }

    #[test]
    fn chains_without_nodes_are_refused() {
        let mut options = ParallelKernelChainsPattern::new(1, 2);
        options.chains = 3;
        let why = rejection_message(WorkloadPattern::Chain(options.clone()));
        assert_eq!(
            why,
            "`chains` is 3; expected 1 to 2, with at least one node per chain"
        );
        options.chains = 1;
        options.duration = Span(1500);
        let why = rejection_message(WorkloadPattern::Chain(options));
        assert!(why.contains("`duration` is 1500 ps"), "{why}");
    }
}
