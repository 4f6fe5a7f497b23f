//! Defines the matrix products and reductions that describe both captures and generated traces.

/// A matrix product, attention or a reduction, given by its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProductAttentionOrAllReduce {
    /// A matrix product: the sides of the result, smaller first, and the contracted dimension.
    Product([u64; 2], u64),
    /// Attention, by the shape of its queries.
    Attention { backward: bool, queries: Vec<u64> },
    /// An all-reduce of this many bytes.
    Reduction(u64),
}

impl ProductAttentionOrAllReduce {
    pub fn from_matrix_product_sizes(rows: u64, inner: u64, columns: u64) -> Self {
        Self::Product([rows.min(columns), rows.max(columns)], inner)
    }

    /// Returns the FLOPs, two for each multiplication. Attention counts the s (s + 1) / 2 causal pairs among s tokens,
    /// as the capture does.
    pub fn flops(&self) -> u64 {
        match self {
            Self::Product([one, other], inner) => 2 * one * other * inner,
            Self::Attention { backward, queries } => {
                let products = if *backward { 5 } else { 2 };
                products * queries.iter().product::<u64>() * (queries[2] + 1)
            }
            Self::Reduction(_) => 0,
        }
    }

    /// Parses a line of `captured.txt`.
    pub fn parse(line: &str) -> Self {
        let mut words = line.split(' ');
        let name = words.next().unwrap();
        let shapes = words.map(|shape| shape.split('x').map(|n| n.parse().unwrap()).collect());
        let shapes: Vec<Vec<u64>> = shapes.collect();
        match (name, &shapes[..]) {
            ("mm" | "addmm", [a, b]) => {
                assert_eq!(a[1], b[0], "{line}");
                Self::from_matrix_product_sizes(a[0], a[1], b[1])
            }
            ("attention" | "attention-backward", [queries]) => Self::Attention {
                backward: name == "attention-backward",
                queries: queries.clone(),
            },
            ("all-reduce", [bytes]) => Self::Reduction(bytes[0]),
            _ => panic!("{line}"),
        }
    }
}

pub fn parse_shapes(text: &str) -> Vec<Vec<u64>> {
    let all: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
    let shape = |one| serde_json::from_value(one).unwrap_or_default();
    all.into_iter().map(shape).collect()
}

/// Returns the line of `captured.txt` for an operator, or `None` if it multiplies nothing.
pub fn format_captured_line(name: &str, inputs: &str) -> Option<String> {
    let name = name.strip_prefix("aten::")?;
    let attention = "_scaled_dot_product_flash_attention_for_cpu";
    let (short, from, count) = match name {
        "mm" => ("mm", 0, 2),
        "addmm" => ("addmm", 1, 2),
        _ if name == attention => ("attention", 0, 1),
        _ if name.strip_prefix(attention) == Some("_backward") => ("attention-backward", 1, 1),
        _ => return None,
    };
    let mut line = short.to_owned();
    for shape in &parse_shapes(inputs)[from..from + count] {
        let sides: Vec<_> = shape.iter().map(u64::to_string).collect();
        line = format!("{line} {}", sides.join("x"));
    }
    Some(line)
}
