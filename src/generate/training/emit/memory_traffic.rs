//! Loads and stores of what does not stay in SRAM.

use super::{MEMORY_LANE, RankEmitter};
use crate::trace::{MemoryChanges, MemoryLocation, NodeLabels, Op, TraceError, TrainingPhase};

impl RankEmitter<'_, '_> {
    /// Emits loads and stores beside the node `own`, whose name and dependencies are at hand, and the node that waits for
    /// all of them.
    pub(super) fn stream(
        &mut self,
        own: u64,
        moved: [u64; 2],
        labels: NodeLabels<'_>,
    ) -> Result<u64, TraceError> {
        let name = self.out.name.clone();
        let labels = NodeLabels {
            inputs: "",
            outputs: "",
            ..labels
        };
        let mut all = vec![own];
        for (store, (word, bytes)) in [("load", moved[0]), ("store", moved[1])]
            .into_iter()
            .enumerate()
        {
            if bytes > 0 {
                self.out.name(format_args!("{name}/{word}"));
                let op = remote(store == 1, bytes);
                let lane = Some(MEMORY_LANE);
                let none = MemoryChanges::default();
                all.push(
                    self.out
                        .emit_with((op, None), lane, none, labels, &self.data)?,
                );
            }
        }
        self.out.name(format_args!("{name}/done"));
        self.out.emit_with(
            (Op::NoOp, None),
            None,
            MemoryChanges::default(),
            labels,
            &all,
        )
    }

    /// Emits what the optimizer loads and stores of `bytes` that it moves, or nothing if weights and state stay.
    pub(super) fn stream_state(&mut self, store: bool, bytes: u64) -> Result<(), TraceError> {
        let Some((_, kept)) = self.sram else {
            return Ok(());
        };
        if kept.keeps_weights() || bytes == 0 {
            return Ok(());
        }
        let name = if store {
            "optimizer/store"
        } else {
            "optimizer/load"
        };
        self.last(
            name,
            remote(store, bytes),
            MEMORY_LANE,
            TrainingPhase::Synchronize,
        )
    }
}

/// A load or store of memory beyond SRAM.
fn remote(store: bool, bytes: u64) -> Op<'static> {
    Op::Memory {
        store,
        place: MemoryLocation::Remote,
        bytes,
        in_switch: false,
    }
}
