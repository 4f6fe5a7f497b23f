//! Computes the bytes that operators move when they read or write rows of a table.
//!
//! The operator receives the whole embedding table, key cache or logit matrix, but accesses only the rows that its
//! indices select:
//!
//! ```text
//! bytes = indices + rows · width · element, once for each time that rows are read or written
//! ```
//!
//! If the indices or widths are unknown, the bytes are unknown.

use super::arguments::{OperatorArgument, OperatorArguments};

/// How an operator accesses rows. The numbers in the variants are argument positions.
#[derive(Clone, Copy)]
enum LookupTableAccessKind {
    /// Reads one row of the table per index.
    Embedding,
    /// Reads one row of the table per index and sums the rows of each bag.
    Bag,
    /// Copies slices along one dimension to another tensor.
    Select,
    /// Reads one element per index. The result has the shape of the indices.
    Gather { index: usize },
    /// Reads the elements that index lists select. Their number follows from the result's shape.
    Index,
    /// Accesses rows of a table. Another tensor has one row for each accessed row. Each row counts several times,
    /// because it is read and written, or accumulated.
    Rows {
        index: usize,
        rows: usize,
        times: u64,
    },
    /// Reads one element per target from a table of log-probabilities.
    Target { table: usize, target: usize },
    /// Reads FBGEMM's tables, which are stored in one tensor.
    Batched,
    /// Backward pass of FBGEMM's tables. The operator receives only the gradients of the sums. The rows and indices are
    /// in the operator's saved arguments, which captures never record.
    BatchedBackward,
}

fn row_access_of_operator(name: &str) -> Option<LookupTableAccessKind> {
    use LookupTableAccessKind::{
        Bag, Batched, BatchedBackward, Embedding, Gather, Index, Rows, Select, Target,
    };
    let rows = |index, rows, times| Rows { index, rows, times };
    let plain = name.rsplit("::").next().unwrap_or(name);
    Some(match plain {
        "embedding" => Embedding,
        "_embedding_bag" | "_embedding_bag_forward_only" | "embedding_bag" => Bag,
        "index_select" => Select,
        "gather" => Gather { index: 2 },
        "take" | "take_along_dim" => Gather { index: 1 },
        "index" => Index,
        "index_put_" | "_index_put_impl_" | "index_put" => rows(1, 2, 2),
        "scatter_" | "scatter" => rows(2, 3, 2),
        "scatter_add_" | "scatter_add" | "scatter_reduce_" | "scatter_reduce" => rows(2, 3, 3),
        "index_copy_" | "index_copy" => rows(2, 3, 2),
        "index_add_" | "index_add" | "index_reduce_" | "index_reduce" => rows(2, 3, 3),
        // Each gradient row is read, and the row that accumulates the gradient is read and written. Therefore, each row
        // counts three times.
        "embedding_backward" | "embedding_dense_backward" => rows(1, 0, 3),
        "_embedding_bag_backward" | "_embedding_bag_dense_backward" => rows(1, 0, 3),
        "nll_loss" | "nll_loss_nd" | "nll_loss_forward" | "nll_loss2d_forward" => Target {
            table: 0,
            target: 1,
        },
        "nll_loss_backward" | "nll_loss2d_backward" => Target {
            table: 1,
            target: 2,
        },
        "reshape_and_cache" | "reshape_and_cache_flash" => rows(4, 0, 4),
        "concat_and_cache_mla" => rows(3, 0, 2),
        _ if plain.contains("embedding_codegen_lookup") => Batched,
        _ if plain.contains("LookupFunction_") => BatchedBackward,
        _ => return None,
    })
}

/// Returns true if an operator reads or writes rows of a table.
pub(in crate::pytorch) fn is_row_lookup(name: &str) -> bool {
    row_access_of_operator(name).is_some()
}

/// Returns true if the operator's scalar values affect how many bytes it moves.
pub(super) fn bytes_depend_on_scalar_values(name: &str) -> bool {
    matches!(
        row_access_of_operator(name),
        Some(LookupTableAccessKind::Select | LookupTableAccessKind::Batched)
    )
}

/// Returns the bytes that the operator `name` moves. The result is `Some(None)` if the bytes are unknown, and `None` if
/// the operator is not a lookup.
pub(super) fn lookup_bytes(name: &str, operands: &OperatorArguments) -> Option<Option<u64>> {
    Some(row_access_of_operator(name)?.count_bytes(operands))
}

impl LookupTableAccessKind {
    fn count_bytes(self, operands: &OperatorArguments) -> Option<u64> {
        let tensor = |place: usize| {
            let arg = operands.argument_at(place)?;
            arg.element.map(|size| (arg, size))
        };
        match self {
            Self::Embedding => {
                let ((table, size), (index, _)) = (tensor(0)?, tensor(1)?);
                let row = table.shape.last()?.checked_mul(size)?;
                let rows = index.element_count()?.checked_mul(row)?;
                index.byte_count()?.checked_add(rows.checked_mul(2)?)
            }
            Self::Bag => {
                let ((table, size), (index, _)) = (tensor(0)?, tensor(1)?);
                let row = table.shape.last()?.checked_mul(size)?;
                let offsets = operands.argument_at(2).filter(|arg| arg.integer);
                let bags = match (&index.shape[..], offsets) {
                    (&[bags, _], _) => bags,
                    (_, Some(offsets)) => offsets.element_count()?,
                    _ => return None,
                };
                let rows = index.element_count()?.checked_add(bags)?.checked_mul(row)?;
                let offsets = offsets.map_or(Some(0), OperatorArgument::byte_count)?;
                index.byte_count()?.checked_add(offsets)?.checked_add(rows)
            }
            Self::Select => {
                let ((table, size), (index, _)) = (tensor(0)?, tensor(2)?);
                let selected = match operands.outputs_recorded {
                    true => operands.element_count_of_first_output()?,
                    false => {
                        let dimensions = table.shape.len() as i64;
                        let dimension = match dimensions {
                            1 => 0,
                            _ => operands.number_at(1)?,
                        };
                        let dimension = usize::try_from(dimension.checked_rem_euclid(dimensions)?);
                        let along = *table.shape.get(dimension.ok()?)?;
                        let slice = table.element_count()?.checked_div(along)?;
                        slice.checked_mul(index.element_count()?)?
                    }
                };
                let selected = selected.checked_mul(size)?.checked_mul(2)?;
                index.byte_count()?.checked_add(selected)
            }
            Self::Gather { index } => {
                let ((_, size), (index, _)) = (tensor(0)?, tensor(index)?);
                let taken = index.element_count()?.checked_mul(size)?.checked_mul(2)?;
                index.byte_count()?.checked_add(taken)
            }
            Self::Index => {
                let (_, size) = tensor(0)?;
                let taken = match operands.outputs_recorded {
                    true => operands.element_count_of_first_output()?,
                    false => return None,
                };
                let indices = operands.argument_at(1)?.listed.checked_mul(INDEX)?;
                taken
                    .checked_mul(size)?
                    .checked_mul(2)?
                    .checked_add(indices)
            }
            Self::Rows { index, rows, times } => {
                let (rows, _) = tensor(rows)?;
                // A scalar in place of rows is broadcast to an unknown number of rows, so the bytes are unknown.
                if rows.shape.is_empty() {
                    return None;
                }
                let index = operands.argument_at(index)?;
                let indices = match index.element {
                    Some(_) => index.byte_count()?,
                    None => index.listed.checked_mul(INDEX)?,
                };
                rows.byte_count()?.checked_mul(times)?.checked_add(indices)
            }
            Self::Target { table, target } => {
                let ((_, size), (target, _)) = (tensor(table)?, tensor(target)?);
                let touched = target.element_count()?.checked_mul(size)?;
                target.byte_count()?.checked_add(touched)
            }
            Self::Batched => batched_lookup_bytes(operands),
            Self::BatchedBackward => None,
        }
    }
}

/// Bytes per index if the type of the index list is unknown; 64-bit integers are assumed.
const INDEX: u64 = 8;

/// Returns the bytes of a lookup in FBGEMM's tables, which reads one row per index and writes the
/// sum of each bag.
///
/// Searches for two pairs of arguments, because FBGEMM's versions differ in the arguments before and between them. The
/// first pair consists of the offsets of the tables' widths, and the sum of the widths (a number). The second pair
/// consists of the indices and the bag offsets, with a number before and after the pair.
fn batched_lookup_bytes(operands: &OperatorArguments) -> Option<u64> {
    let args = &operands.args;
    let is_list = |place: usize| {
        let arg = args.get(place);
        arg.is_some_and(|arg| arg.integer && arg.shape.len() == 1)
    };
    let is_number = |place: usize| args.get(place).is_some_and(|arg| arg.element.is_none());
    let widths_at = (0..args.len()).find(|&at| is_list(at) && is_number(at + 1))?;
    let indices_at = (widths_at + 2..args.len())
        .find(|&at| is_number(at - 1) && is_list(at) && is_list(at + 1) && is_number(at + 2))?;
    let (indices, offsets) = (args.get(indices_at)?, args.get(indices_at + 1)?);
    let tables = args.get(widths_at)?.element_count()?.checked_sub(1)?;
    let bags = offsets
        .element_count()?
        .checked_sub(1)?
        .checked_div(tables)?;
    // The sum of all tables' widths is the stated number, or else the width of the result.
    let stated = operands.number_at(widths_at + 1);
    let stated = stated.and_then(|sum| u64::try_from(sum).ok());
    let result = operands
        .outputs
        .first()
        .filter(|_| operands.outputs_recorded);
    let widths = stated.or_else(|| match result.map(Vec::as_slice) {
        Some(&[rows, width]) if rows == bags => Some(width),
        _ => None,
    })?;
    let size = args
        .iter()
        .filter(|arg| !arg.integer)
        .find_map(|arg| arg.element)?;
    // Tables may have different widths, so use their mean.
    let rows = indices
        .element_count()?
        .checked_mul(widths)?
        .checked_div(tables)?;
    let sums = bags.checked_mul(widths)?;
    let moved = rows.checked_add(sums)?.checked_mul(size)?;
    moved
        .checked_add(indices.byte_count()?)?
        .checked_add(offsets.byte_count()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_lookup_bytes(name: &str, shapes: &str, types: &str, values: &str) -> Option<u64> {
        let operands = OperatorArguments::new(shapes, types, "[]", values);
        lookup_bytes(name, &operands).expect("it looks rows up")
    }

    #[test]
    fn a_lookup_reads_the_rows_of_its_indices() {
        // 2·3 rows of 16 half-precision numbers, read and written, and 6 indices: 2·6·16·2 + 6·8 = 432. The table's
        // size does not matter.
        let types = "['Tensor(c10::Half)', 'Tensor(long int)']";
        let found = count_lookup_bytes("aten::embedding", "[[1000000, 16], [2, 3]]", types, "[]");
        assert_eq!(found, Some(432));
        // 6 rows and 2 bags of 16 half-precision numbers, 6 indices and 2 offsets: 8·16·2 + 8·8 = 320.
        let types = "['Tensor(c10::Half)', 'Tensor(long int)', 'Tensor(long int)']";
        let found = count_lookup_bytes(
            "aten::_embedding_bag",
            "[[1000000, 16], [6], [2]]",
            types,
            "[]",
        );
        assert_eq!(found, Some(320));
        // The gradients of 6 rows of 16 floats are read and accumulated, and there are 6 indices:
        // 3·6·16·4 + 6·8 = 1,200.
        let types = "['Tensor(float)', 'Tensor(long int)']";
        let found = count_lookup_bytes(
            "aten::embedding_dense_backward",
            "[[2, 3, 16], [2, 3]]",
            types,
            "[]",
        );
        assert_eq!(found, Some(1200));
    }

    #[test]
    fn index_select_counts_slices_along_its_dimension() {
        // 5 columns of a table of 100×7 floats: 2·100·5·4 + 5·8 = 4,040; 5 rows: 2·5·7·4 + 40 = 320.
        let types = "['Tensor(float)', 'Scalar', 'Tensor(long int)']";
        let at = |dimension: &str| {
            let values = format!(r#"["", "{dimension}", ""]"#);
            count_lookup_bytes("aten::index_select", "[[100, 7], [], [5]]", types, &values)
        };
        assert_eq!(
            (at("1"), at("-1"), at("0")),
            (Some(4040), Some(4040), Some(320))
        );
        assert_eq!(at(""), None);
        // A one-dimensional tensor needs no dimension argument.
        let found = count_lookup_bytes("aten::index_select", "[[4194304], [], [888]]", types, "[]");
        assert_eq!(found, Some(888 * (2 * 4 + 8)));
        let found = count_lookup_bytes("aten::gather", "[[100, 7], [], [100, 1]]", types, "[]");
        assert_eq!(found, Some(100 * (2 * 4 + 8)));
    }

    #[test]
    fn lookup_bytes_are_unknown_if_row_count_is_unknown() {
        assert_eq!(
            count_lookup_bytes(
                "aten::index",
                "[[888, 2880], []]",
                "['Tensor(float)', '']",
                "[]"
            ),
            None
        );
        let types = "['Tensor(float)', '', 'Tensor(float)', 'Bool']";
        let put = |values: &str| {
            count_lookup_bytes(
                "aten::index_put_",
                &format!("[[100, 7], [], {values}, []]"),
                types,
                "[]",
            )
        };
        assert_eq!((put("[5, 7]"), put("[]")), (Some(2 * 5 * 7 * 4), None));
    }

    #[test]
    fn tables_in_one_tensor_have_rows_of_their_mean_width() {
        // Three tables with widths that sum to 48: 768 rows of 16 floats, 128 bags of 48 floats, and 768 and 385
        // numbers of 8 bytes: (768·16 + 128·48)·4 + (768 + 385)·8 = 82,952.
        let shapes = "[[0], [640649648], [0], [0, 0], [3], [3], [4], [], [], [4], [], [768], [385], [], [], []]";
        let tensor = |name: &str| format!("'Tensor({name})'");
        let [float, int, long] = ["float", "int", "long int"].map(tensor);
        let types = [
            &*float, &float, &float, &float, &int, &long, &int, "'Int'", "'Int'", &long, "'Int'",
            &long, &long, "'Int'", "'None'", "'None'",
        ];
        let types = format!("[{}]", types.join(", "));
        let name = "fbgemm::split_embedding_codegen_lookup_adagrad_function";
        let mut operands = OperatorArguments::new(shapes, &types, "[[128, 48]]", "[]");
        assert_eq!(lookup_bytes(name, &operands), Some(None));
        operands.outputs_recorded = true;
        assert_eq!(lookup_bytes(name, &operands), Some(Some(82_952)));
        let values = r#"["", "", "", "", "", "", "", "48", "16", "", "26"]"#;
        assert_eq!(
            count_lookup_bytes(name, shapes, &types, values),
            Some(82_952)
        );
    }
}
