//! Computes the FLOPs of attention from shapes and from scalars that limit which keys a query sees.
//!
//! One matrix multiplication over all pairs of a query and a key takes 2 · heads · pairs · width FLOPs. The forward
//! pass has two multiplications (Q·Kᵀ and P·V), and the backward pass has five (Dao, "FlashAttention-2", §3.1). For n
//! sequences with l_q queries and l_k keys each, the number of pairs is:
//!
//! ```text
//! pairs = n l_q l_k                            without a mask, or if the capture does not state one
//! pairs = n (l_q l_k − l_q (l_q − 1) / 2)      causal, l_q ≤ l_k
//! ```
//!
//! If sequences are packed in one tensor (varlen), the capture states two numbers: the number n of sequences (in the
//! offsets' shape), and the length of the longest sequence (a scalar). By the Cauchy-Schwarz inequality, packed
//! sequences with T_q queries and T_k keys in total have at least T_q T_k / n pairs. This bound is exact if all lengths
//! are equal. The packed sequences have at most T_q · longest pairs. The FLOPs count as known if there is one sequence,
//! or if the two bounds differ by no more than a tenth. If keys are in the pages of a cache, the FLOPs are unknown,
//! because no shape shows how many pages are read.

use super::arguments::{OperatorArguments, element_count};

/// Argument positions of an attention operator.
struct AttentionArgPositions {
    name: &'static str,
    /// Position of the query; keys and values follow it.
    query: usize,
    /// Number of matrix multiplications: 2 forward, 5 backward.
    products: u64,
    /// True if the length dimension precedes the heads.
    by_rows: bool,
    /// Argument positions of the key sequences' offsets, and of the length of the longest sequence.
    sequences: Option<(usize, usize)>,
    causal: usize,
    /// Argument position of the window size, which is the number of keys before its own position that a query sees.
    window: Option<usize>,
    /// Argument position of the page table, if the keys are in a paged cache.
    pages: Option<usize>,
}

const fn attention_arg_positions_by_heads(
    name: &'static str,
    causal: usize,
) -> AttentionArgPositions {
    AttentionArgPositions {
        name,
        query: 0,
        products: 2,
        by_rows: false,
        sequences: None,
        causal,
        window: None,
        pages: None,
    }
}

const fn signature_by_rows(name: &'static str, causal: usize) -> AttentionArgPositions {
    AttentionArgPositions {
        by_rows: true,
        ..attention_arg_positions_by_heads(name, causal)
    }
}

const fn backward_signature(forward: AttentionArgPositions) -> AttentionArgPositions {
    AttentionArgPositions {
        query: 1,
        products: 5,
        ..forward
    }
}

const fn add_sequence_args_to_signature(
    dense: AttentionArgPositions,
    offsets: usize,
    longest: usize,
) -> AttentionArgPositions {
    AttentionArgPositions {
        sequences: Some((offsets, longest)),
        ..dense
    }
}

const fn windowed_signature(whole: AttentionArgPositions, left: usize) -> AttentionArgPositions {
    AttentionArgPositions {
        window: Some(left),
        ..whole
    }
}

const fn add_pages_position_to_signature(
    whole: AttentionArgPositions,
    pages: usize,
) -> AttentionArgPositions {
    AttentionArgPositions {
        pages: Some(pages),
        ..whole
    }
}

/// Marks an argument that the operator does not have.
const NOWHERE: usize = usize::MAX;

/// Signatures, as the schemas state them in PyTorch's `native_functions.yaml`, and in FlashAttention 2 and 3, vLLM's
/// build of FlashAttention, and xFormers.
static SIGNATURES: [AttentionArgPositions; 28] = [
    attention_arg_positions_by_heads("scaled_dot_product_attention", 5),
    attention_arg_positions_by_heads("_scaled_dot_product_attention_math", 5),
    attention_arg_positions_by_heads("_scaled_dot_product_attention_math_for_mps", 5),
    attention_arg_positions_by_heads("_scaled_dot_product_flash_attention", 4),
    attention_arg_positions_by_heads("_scaled_dot_product_flash_attention_for_cpu", 4),
    attention_arg_positions_by_heads("_scaled_dot_product_efficient_attention", 6),
    attention_arg_positions_by_heads("_scaled_dot_product_cudnn_attention", 6),
    attention_arg_positions_by_heads("_scaled_dot_product_fused_attention_overrideable", 5),
    attention_arg_positions_by_heads("_cudnn_attention_forward", 10),
    backward_signature(attention_arg_positions_by_heads(
        "_scaled_dot_product_flash_attention_backward",
        11,
    )),
    backward_signature(attention_arg_positions_by_heads(
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        7,
    )),
    backward_signature(attention_arg_positions_by_heads(
        "_scaled_dot_product_efficient_attention_backward",
        11,
    )),
    backward_signature(attention_arg_positions_by_heads(
        "_scaled_dot_product_cudnn_attention_backward",
        14,
    )),
    backward_signature(attention_arg_positions_by_heads(
        "_scaled_dot_product_fused_attention_overrideable_backward",
        NOWHERE,
    )),
    windowed_signature(
        add_sequence_args_to_signature(signature_by_rows("_flash_attention_forward", 8), 4, 6),
        11,
    ),
    backward_signature(add_sequence_args_to_signature(
        signature_by_rows("_flash_attention_backward", 11),
        7,
        9,
    )),
    add_sequence_args_to_signature(signature_by_rows("_efficient_attention_forward", 9), 5, 7),
    backward_signature(add_sequence_args_to_signature(
        signature_by_rows("_efficient_attention_backward", 14),
        7,
        9,
    )),
    // Versions of FlashAttention that define no operators launch kernels directly from autograd functions, so the list
    // contains these functions' names.
    signature_by_rows("FlashAttnFunc", 5),
    add_sequence_args_to_signature(signature_by_rows("FlashAttnVarlenFunc", 9), 4, 6),
    windowed_signature(signature_by_rows("flash_attn::_flash_attn_forward", 5), 6),
    windowed_signature(
        backward_signature(signature_by_rows("flash_attn::_flash_attn_backward", 11)),
        12,
    ),
    add_pages_position_to_signature(
        windowed_signature(
            add_sequence_args_to_signature(
                signature_by_rows("flash_attn::_flash_attn_varlen_forward", 9),
                4,
                6,
            ),
            10,
        ),
        15,
    ),
    windowed_signature(
        backward_signature(add_sequence_args_to_signature(
            signature_by_rows("flash_attn::_flash_attn_varlen_backward", 15),
            10,
            12,
        )),
        16,
    ),
    add_pages_position_to_signature(
        windowed_signature(
            add_sequence_args_to_signature(signature_by_rows("flash_attn_3::fwd", 24), 8, 13),
            25,
        ),
        14,
    ),
    windowed_signature(
        backward_signature(add_sequence_args_to_signature(
            signature_by_rows("flash_attn_3::bwd", 16),
            10,
            14,
        )),
        17,
    ),
    add_pages_position_to_signature(
        windowed_signature(
            add_sequence_args_to_signature(signature_by_rows("_vllm_fa2_C::varlen_fwd", 15), 5, 11),
            16,
        ),
        8,
    ),
    windowed_signature(
        add_sequence_args_to_signature(signature_by_rows("xformers_flash::flash_fwd", 10), 4, 7),
        11,
    ),
];

fn find_signature(name: &str) -> Option<&'static AttentionArgPositions> {
    SIGNATURES.iter().find(|signature| signature.name == name)
}

/// Returns true if the operator's scalar values affect how much it computes.
pub(super) fn flops_depend_on_scalar_values(name: &str) -> bool {
    find_signature(name).is_some()
}

/// Returns the FLOPs of the operator `name`. The result is `Some(None)` if the FLOPs are unknown, and `None` if the
/// operator is not attention.
pub(super) fn attention_flops(name: &str, operands: &OperatorArguments) -> Option<Option<u64>> {
    Some(find_signature(name)?.count_flops(operands))
}

impl AttentionArgPositions {
    fn count_flops(&self, operands: &OperatorArguments) -> Option<u64> {
        let is_paged = |place| !operands.shape_at(place).is_empty();
        if self.pages.is_some_and(is_paged) {
            return None;
        }
        let [q, k, v] = [0, 1, 2].map(|i| operands.shape_at(self.query + i));
        let [.., heads_or_length, width] = *q else {
            return None;
        };
        let causal = operands.flag_at(self.causal).unwrap_or(false);
        let left = self.window.and_then(|place| operands.number_at(place));
        let window = match left.map(u64::try_from) {
            // Without a mask, a query also sees keys to its right. How many of those keys it sees depends on another
            // scalar, so the FLOPs are unknown.
            Some(Ok(_)) if !causal => return None,
            Some(Ok(left)) => left.checked_add(1)?,
            _ => u64::MAX,
        };
        let pairs = |queries, keys| match causal {
            true => count_query_key_pairs_in_causal_window(queries, keys, window),
            false => u64::checked_mul(queries, keys),
        };
        // Number of pairs per head, summed over the sequences.
        let (heads, pairs) = if self.by_rows {
            let heads = heads_or_length;
            let [.., keys_heads, keys_width] = *k else {
                return None;
            };
            let tokens = |shape: &[u64], row: u64| element_count(shape)?.checked_div(row);
            let queries = tokens(q, heads.checked_mul(width)?)?;
            let keys = tokens(k, keys_heads.checked_mul(keys_width)?)?;
            let offsets = self
                .sequences
                .map(|(offsets, _)| operands.shape_at(offsets));
            let sequences = match (offsets, q) {
                (Some(&[offsets]), _) => {
                    self.count_equal_sequences(operands, offsets, queries, keys)?
                }
                // Without offsets, a three-dimensional tensor does not show where sequences begin,
                // so accept only four-dimensional tensors.
                (_, &[batch, _, _, _]) => batch,
                _ => return None,
            };
            let length = |tokens: u64| tokens.checked_div(sequences);
            let one = pairs(length(queries)?, length(keys)?)?;
            (heads, one.checked_mul(sequences)?)
        } else {
            let ([batch @ .., queries, _], [.., keys, _]) = (q, k) else {
                return None;
            };
            (element_count(batch)?, pairs(*queries, *keys)?)
        };
        let product = pairs.checked_mul(heads)?.checked_mul(2)?;
        // In the forward pass, the second multiplication has the width of the values, which may
        // differ from the keys' width.
        let value_width = v.last().filter(|_| self.products == 2).copied();
        let widths = width
            .checked_mul(self.products - 1)?
            .checked_add(value_width.unwrap_or(width))?;
        product.checked_mul(widths)
    }

    /// Returns the number of sequences that the offsets' shape states, or `None` unless all lengths are equal or nearly
    /// so.
    fn count_equal_sequences(
        &self,
        operands: &OperatorArguments,
        offsets: u64,
        queries: u64,
        keys: u64,
    ) -> Option<u64> {
        let count = offsets.checked_sub(1).filter(|&count| count > 0)?;
        if count == 1 {
            return Some(1);
        }
        let (_, longest) = self.sequences?;
        let longest = u64::try_from(operands.number_at(longest)?).ok()?.min(keys);
        let least = queries.checked_mul(keys)? / count;
        let most = queries.checked_mul(longest)?;
        (most <= least.checked_add(least / 10)?).then_some(count)
    }
}

/// Returns the number of query-key pairs if each query sees the keys up to its own position, but at most `window` keys.
/// The last query is aligned with the last key.
fn count_query_key_pairs_in_causal_window(queries: u64, keys: u64, window: u64) -> Option<u64> {
    // Queries whose position is before the first key see no key.
    let queries = queries.min(keys);
    // The first query sees `first` keys, and each later query sees one more key until the window is full.
    let first = (keys - queries).checked_add(1)?;
    let growing = queries.min(window.saturating_sub(first));
    let sum = growing
        .checked_mul(first)?
        .checked_add(growing.checked_mul(growing.saturating_sub(1))? / 2)?;
    let filled = (queries - growing).checked_mul(window.min(keys))?;
    sum.checked_add(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_attention_flops(name: &str, shapes: &str, values: &str) -> Option<u64> {
        let operands = OperatorArguments::new(shapes, "[]", "[]", values);
        attention_flops(name, &operands).expect("it is attention")
    }

    const VARLEN: &str = "flash_attn::_flash_attn_varlen_forward";

    #[test]
    fn offsets_of_one_sequence_let_it_attend_to_all_tokens() {
        // One sequence of 8,192 queries and keys has 32 heads of width 128: 4 · 8192² · 32 · 128 =
        // 1.0995e12.
        let shapes = "[[8192, 32, 128], [8192, 8, 128], [8192, 8, 128], [2], [2], [], []]";
        let whole = 4 * 8192 * 8192 * 32 * 128;
        assert_eq!(count_attention_flops(VARLEN, shapes, "[]"), Some(whole));
        // A causal mask leaves 8192 · 8193 / 2 pairs.
        let causal = r#"["", "", "", "", "", "8192", "8192", "0.", "0.1", "True", "-1", "-1"]"#;
        let half = 4 * (8192 * 8193 / 2) * 32 * 128;
        assert_eq!(count_attention_flops(VARLEN, shapes, causal), Some(half));
    }

    #[test]
    fn sequences_count_only_if_they_are_equally_long() {
        // Four sequences of 2,048: 4 · 4 · 2048² · 2 · 64.
        let shapes = "[[8192, 2, 64], [8192, 2, 64], [8192, 2, 64], [5], [5], [], []]";
        let at = |longest: &str| {
            let values = format!(r#"["", "", "", "", "", "{longest}", "{longest}"]"#);
            count_attention_flops(VARLEN, shapes, &values)
        };
        let equal = Some(4 * 4 * 2048 * 2048 * 2 * 64);
        assert_eq!(at("2048"), equal);
        // The longest length is at most a tenth above the mean, then twice the mean, then missing.
        assert_eq!(at("2200"), equal);
        assert_eq!(at("4096"), None);
        assert_eq!(count_attention_flops(VARLEN, shapes, "[]"), None);
        // The keys are in the pages of a cache, so the FLOPs are unknown.
        let paged = r"[[8, 2, 64], [999, 16, 2, 64], [999, 16, 2, 64], [2], [2], [], [], [], [], [], [], [], [], [], [], [1, 40]]";
        assert_eq!(count_attention_flops(VARLEN, paged, "[]"), None);
    }

    #[test]
    fn queries_see_keys_up_to_their_own_place_and_within_a_window() {
        // By hand: 3 queries and 3 keys have 1 + 2 + 3 pairs; 2 queries and 5 keys have 4 + 5; 5 queries and 2 keys
        // have 1 + 2.
        assert_eq!(
            count_query_key_pairs_in_causal_window(3, 3, u64::MAX),
            Some(6)
        );
        assert_eq!(
            count_query_key_pairs_in_causal_window(2, 5, u64::MAX),
            Some(9)
        );
        assert_eq!(
            count_query_key_pairs_in_causal_window(5, 2, u64::MAX),
            Some(3)
        );
        // 4 queries and 4 keys in a window of 2 have 1 + 2 + 2 + 2 pairs; 2 queries and 5 keys in a window of 3 have
        // 3 + 3.
        assert_eq!(count_query_key_pairs_in_causal_window(4, 4, 2), Some(7));
        assert_eq!(count_query_key_pairs_in_causal_window(2, 5, 3), Some(6));
        for (queries, keys, window) in [(7_u64, 7_u64, 3_u64), (4, 9, 6), (9, 4, 2), (1, 1, 1)] {
            let seen = (0..queries.min(keys)).map(|i| {
                let place = keys - queries.min(keys) + i;
                (place + 1).min(window)
            });
            let expected: u64 = seen.sum();
            assert_eq!(
                count_query_key_pairs_in_causal_window(queries, keys, window),
                Some(expected)
            );
        }
    }

    #[test]
    fn the_backward_pass_has_five_products() {
        // 2 · 64 · 64 pairs in 8 heads of width 32 take five multiplications. The gradient is the
        // first argument.
        let shape = "[2, 64, 8, 32]";
        let shapes = format!("[{shape}, {shape}, {shape}, {shape}]");
        let name = "flash_attn::_flash_attn_backward";
        assert_eq!(
            count_attention_flops(name, &shapes, "[]"),
            Some(5 * 2 * 2 * 64 * 64 * 8 * 32)
        );
    }

    #[test]
    fn attention_forms_two_products_and_five_on_the_way_back() {
        // 2 batches · 8 heads, 64 queries, 64 keys, width 32: one product is 2·16·64·64·32 = 4,194,304.
        let shape = "[2, 8, 64, 32]";
        let forward = format!("[{shape}, {shape}, {shape}]");
        let name = "_scaled_dot_product_flash_attention_for_cpu";
        assert_eq!(
            count_attention_flops(name, &forward, "[]"),
            Some(2 * 4_194_304)
        );
        // This call has the same tensors, but its length dimension comes before the heads.
        let rows = format!("[{0}, {0}, {0}]", "[2, 64, 8, 32]");
        let found = count_attention_flops("_flash_attention_forward", &rows, "[]");
        assert_eq!(found, Some(2 * 4_194_304));
        let back = format!("[{shape}, {shape}, {shape}, {shape}]");
        let found = count_attention_flops(&format!("{name}_backward"), &back, "[]");
        assert_eq!(found, Some(5 * 4_194_304));
    }

    #[test]
    fn values_may_be_narrower_than_keys() {
        // 3 heads of 5 queries and 7 keys of width 8, and values of width 4: 2·3·5·7·(8 + 4) = 2,520.
        let shapes = "[[3, 5, 8], [3, 7, 8], [3, 7, 4]]";
        let found = count_attention_flops("scaled_dot_product_attention", shapes, "[]");
        assert_eq!(found, Some(2520));
    }
}
