//! Derives the output shapes of operators if only their inputs were recorded.
//!
//! For matrix multiplications and convolutions, the output shapes follow exactly from the inputs. Outputs of reductions
//! are negligible. All other operators are assumed to produce a tensor shaped like their largest input, as element-wise
//! operators, normalizations and copies do.

use serde_json::Value;

/// Returns the output shape of the operator `name`, or `None` if the output is small or its shape is unknown. `dims`
/// are the input shapes, and `concrete` contains the scalar values in Python's notation.
pub(super) fn output_shape(name: &str, dims: &[Value], concrete: &[Value]) -> Option<Vec<u64>> {
    let plain = name.rsplit("::").next().unwrap_or(name);
    let shape = |place: usize| {
        dims.get(place)
            .and_then(parse_shape)
            .filter(|s| !s.is_empty())
    };
    match plain {
        "mm" | "bmm" | "_scaled_mm" | "_int_mm" | "matmul" => product_shape(&shape(0)?, &shape(1)?),
        "addmm" | "baddbmm" | "addmm_" | "_addmm_activation" => {
            product_shape(&shape(1)?, &shape(2)?)
        }
        "linear" => {
            let (mut out, weight) = (shape(0)?, shape(1)?);
            *out.last_mut()? = *weight.first()?;
            Some(out)
        }
        // `convolution_shape` receives the positions of padding, stride and dilation. cuDNN's operator has no bias
        // argument before them.
        "cudnn_convolution" => convolution_shape(&shape(0)?, &shape(1)?, concrete, (2, 3, 4)),
        "miopen_convolution" | "mkldnn_convolution" => {
            convolution_shape(&shape(0)?, &shape(1)?, concrete, (3, 4, 5))
        }
        "embedding" => {
            let (table, rows) = (shape(0)?, shape(1)?);
            Some(rows.into_iter().chain(table.last().copied()).collect())
        }
        // Tokens are multiplied by the weights of their group or of their chosen experts.
        "_grouped_mm" | "_scaled_grouped_mm" | "gmm" => product_shape(&shape(0)?, &shape(1)?),
        _ if plain.contains("fused_experts") || plain.contains("fused_moe") => shape(0),
        _ if REDUCTIONS.contains(&plain) => None,
        _ => {
            let all = dims.iter().filter_map(parse_shape);
            all.max_by_key(|shape| element_count(shape))
                .filter(|shape| !shape.is_empty())
        }
    }
}

/// Operators whose outputs are much smaller than their inputs.
const REDUCTIONS: [&str; 14] = [
    "all",
    "any",
    "argmax",
    "argmin",
    "item",
    "linalg_vector_norm",
    "max",
    "mean",
    "min",
    "norm",
    "prod",
    "sum",
    "nll_loss_forward",
    "_local_scalar_dense",
];

/// Parses a shape. Returns `None` unless all sizes are known.
fn parse_shape(dims: &Value) -> Option<Vec<u64>> {
    dims.as_array()?.iter().map(Value::as_u64).collect()
}

fn element_count(shape: &[u64]) -> u64 {
    shape
        .iter()
        .fold(1, |product, &n| product.saturating_mul(n))
}

fn product_shape(a: &[u64], b: &[u64]) -> Option<Vec<u64>> {
    let mut out = a.to_vec();
    *out.last_mut()? = *b.last()?;
    Some(out)
}

/// Returns a convolution's output shape. `places` are the positions of padding, stride and dilation.
fn convolution_shape(
    input: &[u64],
    weight: &[u64],
    concrete: &[Value],
    places: (usize, usize, usize),
) -> Option<Vec<u64>> {
    let list = |place: usize| -> Option<Vec<u64>> {
        let text = concrete.get(place)?.as_str()?;
        serde_json::from_str(text).ok()
    };
    let (padding, stride, dilation) = (list(places.0)?, list(places.1)?, list(places.2)?);
    let mut out = vec![*input.first()?, *weight.first()?];
    for (axis, (&size, &window)) in input.get(2..)?.iter().zip(weight.get(2..)?).enumerate() {
        // A list with a single value applies to all axes.
        let at = |list: &[u64]| list.get(axis).or(list.first()).copied();
        let covered = at(&dilation)?
            .checked_mul(window.checked_sub(1)?)?
            .checked_add(1)?;
        let padded = size.checked_add(at(&padding)?.checked_mul(2)?)?;
        out.push(padded.checked_sub(covered)?.checked_div(at(&stride)?)? + 1);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer_output_shape_from_json(name: &str, dims: &str, concrete: &str) -> Option<Vec<u64>> {
        let parse = |text: &str| serde_json::from_str::<Vec<Value>>(text).expect("it is JSON");
        output_shape(name, &parse(dims), &parse(concrete))
    }

    #[test]
    fn products_and_convolutions_follow_from_their_inputs() {
        assert_eq!(
            infer_output_shape_from_json("aten::mm", "[[4,5],[5,6]]", "[]"),
            Some(vec![4, 6])
        );
        assert_eq!(
            infer_output_shape_from_json("aten::addmm", "[[6],[4,5],[5,6]]", "[]"),
            Some(vec![4, 6])
        );
        // First layer of ResNet: (224 + 2·3 − 7) ÷ 2 + 1 = 112.
        let dims = "[[8,3,224,224],[64,3,7,7],[],[],[],[]]";
        let concrete = r#"["","","[3, 3]","[2, 2]","[1, 1]","1"]"#;
        assert_eq!(
            infer_output_shape_from_json("aten::cudnn_convolution", dims, concrete),
            Some(vec![8, 64, 112, 112])
        );
        assert_eq!(
            infer_output_shape_from_json("aten::cudnn_convolution", dims, "[]"),
            None
        );
    }

    #[test]
    fn element_wise_operators_yield_their_largest_input_and_reductions_nothing() {
        let yields = |name| infer_output_shape_from_json(name, "[[4,8],[8]]", "[]");
        assert_eq!(yields("aten::add"), Some(vec![4, 8]));
        assert_eq!(yields("_C::fused_add_rms_norm"), Some(vec![4, 8]));
        assert_eq!(yields("aten::sum"), None);
        assert_eq!(
            infer_output_shape_from_json("aten::embedding", "[[1000,16],[2,3]]", "[]"),
            Some(vec![2, 3, 16])
        );
    }
}
