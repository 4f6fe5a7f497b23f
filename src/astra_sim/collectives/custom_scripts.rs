//! Custom algorithms from a system file, for kinds of collectives and for single nodes.

use crate::{AstraInputs, PerCollectiveKind};
use chakram_hardware::collective::{ScriptExecutor, ScriptedAlgorithm};
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeMap;
use std::path::Path;

/// Custom algorithms, and the members that execute them.
#[derive(Clone, Debug, Default)]
pub(super) struct CustomCollectiveAlgorithms {
    /// Custom algorithms, by algorithm index.
    algorithms: Vec<ScriptedAlgorithm>,
    of_kind: PerCollectiveKind<Option<u16>>,
    of_node: BTreeMap<u64, u16>,
    players: ScriptExecutor,
}

impl CustomCollectiveAlgorithms {
    /// Adds an algorithm, whose files begin with `prefix`, for the collectives that `inputs` name.
    pub fn add_algorithm(
        &mut self,
        inputs: &AstraInputs,
        prefix: &Path,
        algorithm: ScriptedAlgorithm,
    ) {
        let number = self.algorithms.len() as u16;
        self.algorithms.push(algorithm);
        let (own, files) = (&mut self.of_kind, &inputs.system.custom);
        for (own, file) in [
            (&mut own.all_reduce, &files.all_reduce),
            (&mut own.all_gather, &files.all_gather),
            (&mut own.reduce_scatter, &files.reduce_scatter),
            (&mut own.all_to_all, &files.all_to_all),
        ] {
            if file.as_deref() == Some(prefix) {
                *own = Some(number);
            }
        }
        let nodes = inputs.per_node.iter().filter(|(_, path)| *path == prefix);
        self.of_node.extend(nodes.map(|(id, _)| (id, number)));
    }

    /// Returns the index of a collective's algorithm. An algorithm for the collective's node takes precedence over one
    /// for the collective's kind.
    pub fn script_index_of_collective(&self, kind: CollectiveKind, node: u64) -> Option<u16> {
        let of_kind = match kind {
            CollectiveKind::AllReduce => self.of_kind.all_reduce,
            CollectiveKind::AllGather => self.of_kind.all_gather,
            CollectiveKind::ReduceScatter => self.of_kind.reduce_scatter,
            CollectiveKind::AllToAll => self.of_kind.all_to_all,
            _ => None,
        };
        self.of_node.get(&node).copied().or(of_kind)
    }

    /// Returns the algorithm with index `number`.
    pub fn algorithm_by_index(&self, number: u16) -> &ScriptedAlgorithm {
        &self.algorithms[number as usize]
    }

    /// Returns the algorithm with index `number`, and the state of the members that execute custom algorithms.
    pub fn algorithm_at_index_with_executor(
        &mut self,
        number: u16,
    ) -> (&ScriptedAlgorithm, &mut ScriptExecutor) {
        (&self.algorithms[number as usize], &mut self.players)
    }
}
