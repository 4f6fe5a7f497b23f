//! Parses tensor shapes, which records store as nested lists of sizes.

/// The sizes of a tensor's dimensions.
pub(super) type TensorShape = Vec<u64>;

/// Parses the shapes in a string such as `[[8, 64], [[256], [256]], []]`. Each tensor in a list of tensors is returned
/// separately. Scalars and arguments other than tensors are skipped.
pub(super) fn parse_shapes(text: &str) -> Vec<TensorShape> {
    let mut shapes = Vec::new();
    let mut sizes = TensorShape::new();
    let mut number = None;
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' => {
                let digit = u64::from(byte - b'0');
                let before: u64 = number.unwrap_or(0);
                number = Some(before.saturating_mul(10).saturating_add(digit));
            }
            b'[' => sizes.clear(),
            b',' | b']' => {
                sizes.extend(number.take());
                if byte == b']' && !sizes.is_empty() {
                    shapes.push(std::mem::take(&mut sizes));
                }
            }
            _ => {}
        }
    }
    shapes
}

/// Parses the shape of each argument of a call. An argument without a shape has an empty shape. For a list of tensors,
/// the first shape stands for the whole list.
pub(super) fn parse_argument_shapes(text: &str) -> Vec<TensorShape> {
    let (mut depth, mut found, mut start) = (0_u32, Vec::new(), 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => {
                depth += 1;
                if depth == 2 {
                    start = at;
                }
            }
            b']' => {
                if depth == 2 {
                    let inner = &text[start..=at];
                    found.push(parse_shapes(inner).into_iter().next().unwrap_or_default());
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
    }
    found
}

/// Returns the number of elements in a tensor with this shape.
pub(super) fn count_elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |all, &size| all.saturating_mul(size))
}

/// Returns the sizes in ascending order, without ones. A matrix and its transpose therefore have the same normal
/// form.
pub(super) fn sort_sizes_without_ones(shape: &[u64]) -> TensorShape {
    let mut sizes: TensorShape = shape.iter().copied().filter(|&size| size != 1).collect();
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_nested_lists_are_found_and_scalars_have_none() {
        assert_eq!(
            parse_shapes("[[8, 64], [[256], [256, 4]], [], [[], []]]"),
            [vec![8, 64], vec![256], vec![256, 4]]
        );
        assert_eq!(
            parse_argument_shapes("[[1024], [512, 256], [], [[], []], [[3], [4]]]"),
            [vec![1024], vec![512, 256], vec![], vec![], vec![3]]
        );
        assert_eq!(sort_sizes_without_ones(&[1, 256, 8]), [8, 256]);
    }
}
