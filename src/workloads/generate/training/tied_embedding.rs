//! Weights that an embedding and a matrix product share.

use super::dataflow::ShardedOperator;
use super::shard_spec::OperatorShardingByMemberDigits;
use crate::generate::{PatternOptionError, refused_option_value_error};
use crate::model::OperatorInputSource;

/// The table with the shared weights, which is the embedding's first table.
#[derive(Debug, Default)]
pub(super) struct TiedEmbeddingTable {
    table: Option<(String, OperatorShardingByMemberDigits)>,
}

impl TiedEmbeddingTable {
    /// Records the table if `operator` looks up the shared weights. Rejects a tied matrix product if some member has
    /// different shards of its weights and of the table. The table's rows (sharded by k) are the product's outputs
    /// (sharded by n). The table's columns (sharded by n) are the product's inputs (sharded by k).
    pub fn record_table_or_check_tied_product(
        &mut self,
        layer: &str,
        step: &ShardedOperator<'_>,
    ) -> Result<(), PatternOptionError> {
        let (name, cutting) = (&step.operator.name, step.cutting);
        let spec = step.operator.work.to_axes_and_tensors();
        match (spec.tied_weight_count(), &self.table) {
            (None, None) if spec.role == OperatorInputSource::Table => {
                self.table = Some((format!("{layer}/{name}"), cutting));
                Ok(())
            }
            (Some(_), Some((table, of)))
                if (of.inputs, of.outputs) != (cutting.outputs, cutting.inputs) =>
            {
                let found = format!(
                    "n = {}, k = {}",
                    cutting.outputs.parts, cutting.inputs.parts
                );
                let expected = format!(
                    "equal shards of {layer}/{name} and of {table}, whose weights it shares: the degree of n of one \
                     is the degree of k of the other, here n = {} and k = {} of {table}, and at most one of n and k \
                     is sharded",
                    of.outputs.parts, of.inputs.parts
                );
                Err(refused_option_value_error("operator", found, expected))
            }
            _ => Ok(()),
        }
    }
}
