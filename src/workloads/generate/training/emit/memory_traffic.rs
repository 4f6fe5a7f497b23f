//! Loads and stores of operands that are not kept in SRAM.

use super::{MEMORY_LANE, RankEmitter};
use crate::generate::plan::OffloadedState;
use chakram_trace::format::{
    MemoryLocation, NodeMemoryChanges, NodePhaseStageLayerAndShapes, Op, TraceError, TrainingPhase,
};

impl RankEmitter<'_, '_> {
    /// Emits loads and stores that run in parallel with node `own` and have its name and dependencies. Also emits a
    /// node that waits for all of them. Returns the id of this waiting node.
    pub(super) fn emit_parallel_loads_stores_and_wait(
        &mut self,
        own: u64,
        moved: [u64; 2],
        labels: NodePhaseStageLayerAndShapes<'_>,
    ) -> Result<u64, TraceError> {
        let name = self.out.name.clone();
        let labels = NodePhaseStageLayerAndShapes {
            inputs: "",
            outputs: "",
            ..labels
        };
        let mut all = vec![own];
        for (store, (word, bytes)) in [("load", moved[0]), ("store", moved[1])]
            .into_iter()
            .enumerate()
        {
            for (piece, bytes) in self.split_bytes_into_access_sizes(bytes).enumerate() {
                match piece {
                    0 => self.out.set_name(format_args!("{name}/{word}")),
                    _ => self.out.set_name(format_args!("{name}/{word}.{piece}")),
                }
                let op = create_remote_access(store == 1, bytes, false);
                let lane = Some(MEMORY_LANE);
                let none = NodeMemoryChanges::default();
                all.push(self.out.emit_node_with_memory_and_labels(
                    (op, None),
                    lane,
                    none,
                    labels,
                    &self.data,
                )?);
            }
        }
        self.out.set_name(format_args!("{name}/done"));
        self.out.emit_node_with_memory_and_labels(
            (Op::NoOp, None),
            None,
            NodeMemoryChanges::default(),
            labels,
            &all,
        )
    }

    /// Emits the optimizer's load or store, with `bytes` bytes in total. Emits nothing if weights
    /// and state stay in SRAM, or if no state is in remote memory.
    pub(super) fn emit_optimizer_state_access(
        &mut self,
        store: bool,
        bytes: u64,
    ) -> Result<(), TraceError> {
        let is_kept = self
            .sram
            .is_none_or(|(_, kept)| kept.keeps_weights_in_sram());
        let is_remote = self.plan.plan.offload != OffloadedState::None;
        if is_kept && !is_remote || bytes == 0 {
            return Ok(());
        }
        let name = if store {
            "optimizer/store"
        } else {
            "optimizer/load"
        };
        for piece in self.split_bytes_into_access_sizes(bytes) {
            self.emit_step_end_node(
                name,
                create_remote_access(store, piece, false),
                MEMORY_LANE,
                TrainingPhase::Synchronize,
            )?;
        }
        Ok(())
    }

    /// Returns the sizes of the accesses that together move `bytes` bytes.
    fn split_bytes_into_access_sizes(&self, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        split_into_fewest_equal_accesses(bytes, self.plan.plan.largest_access.unwrap_or(u64::MAX))
    }
}

/// Maximum number of accesses in place of one load or store.
pub(in crate::generate::training) const MOST_PIECES: u64 = 64;

/// Returns the sizes of the fewest equal accesses that together move `bytes` bytes. Each has at most `most` bytes,
/// unless this would require more than `MOST_PIECES` accesses. An operand of I bytes may be loaded once for each part
/// of the other operand, which has W bytes in parts of C bytes. These loads count as one of ⌈W/C⌉ I bytes, although
/// the memory stores only I bytes.
fn split_into_fewest_equal_accesses(bytes: u64, most: u64) -> impl Iterator<Item = u64> {
    let count = bytes.div_ceil(most.max(1)).min(MOST_PIECES);
    let (each, rest) = (bytes / count.max(1), bytes % count.max(1));
    (0..count).map(move |piece| each + u64::from(piece < rest))
}

/// Returns a load from or a store to remote memory. With `in_switch`, switches gather the loaded
/// bytes or reduce the stored bytes.
pub(super) fn create_remote_access(store: bool, bytes: u64, in_switch: bool) -> Op<'static> {
    Op::Memory {
        store,
        place: MemoryLocation::Remote,
        bytes,
        in_switch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An SRAM of 3.75 MB divides the weights (3 x 12288² / 8 values of 2 bytes) into 31 parts, so an input of 58 x
    /// 2048 x 12288 values is loaded 31 times. Together with one load of the weights, this moves 90.6 GB, so two
    /// accesses of at most 64 GB are needed.
    #[test]
    fn accesses_are_split_into_the_fewest_equal_parts_within_the_limit() {
        let (input, weights) = (58 * 2048 * 12_288 * 2_u64, 3 * 12_288 * 12_288 / 8 * 2_u64);
        assert_eq!(weights.div_ceil(3_750_000), 31);
        let all = weights + 31 * input;
        assert_eq!(all, 90_609_549_312);
        let half = all / 2;
        assert!(split_into_fewest_equal_accesses(all, 64_000_000_000).eq([half, half]));
        assert!(split_into_fewest_equal_accesses(all, all).eq([all]));
        assert!(split_into_fewest_equal_accesses(all, all - 1).eq([half, half]));
        assert!(split_into_fewest_equal_accesses(11, 4).eq([4, 4, 3]));
        assert_eq!(split_into_fewest_equal_accesses(0, 4).count(), 0);
        // A load or store is split into at most 64 accesses. If an access is still larger than the memory, the replay
        // rejects it with an error that names it.
        assert_eq!(split_into_fewest_equal_accesses(1000, 1).count(), 64);
        assert_eq!(split_into_fewest_equal_accesses(1000, 1).sum::<u64>(), 1000);
    }
}
