//! Classes and shapes of kernels, and their notation in files. The class and the shape of a kernel determine its
//! duration.
//!
//! ```text
//! gemm batch=16 m=1024 n=1024 k=64
//! attention batch=2 heads=16 kv=16 queries=1024 keys=1024 width=64 causal backward
//! softmax
//! ```

use std::fmt;
use std::str::FromStr;

/// Class of a kernel that is limited by memory traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MemoryBoundKernelClass {
    /// Independent operations on elements: activations, residual sums, dropout.
    ElementWise,
    /// Normalization of rows to mean 0 and variance 1, or to length 1.
    Normalization,
    /// Softmax of rows, with scale and mask.
    Softmax,
    /// Reads rows from a table, or adds rows to it.
    Embedding,
    /// Cross entropy of logits.
    CrossEntropy,
    /// The optimizer's update of weights.
    Optimizer,
    /// Copy of bytes, with or without a transposition.
    Copy,
    /// Copy of a few bytes to the host, which waits for them.
    HostCopy,
}

impl MemoryBoundKernelClass {
    /// All classes of kernels with their names in files.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::ElementWise, "element-wise"),
        (Self::Normalization, "normalization"),
        (Self::Softmax, "softmax"),
        (Self::Embedding, "embedding"),
        (Self::CrossEntropy, "cross-entropy"),
        (Self::Optimizer, "optimizer"),
        (Self::Copy, "copy"),
        (Self::HostCopy, "host-copy"),
    ];

    /// Name of the class in files.
    pub fn class_name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Class and shape of a kernel. The number format is not included, because the node states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelShape {
    /// `batch` multiplications of an `m x k` by a `k x n` matrix.
    Gemm {
        /// Number of matrix multiplications in the batch.
        batch: u64,
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// Size of the summed dimension: the columns of the first matrix and the rows of the second.
        k: u64,
    },
    /// Attention that is computed in a single kernel.
    Attention {
        /// Number of sequences.
        batch: u64,
        /// Number of query heads.
        heads: u64,
        /// Number of KV heads (heads for keys and values).
        kv_heads: u64,
        /// Number of queries per sequence.
        queries: u64,
        /// Number of keys per sequence.
        keys: u64,
        /// Number of columns per head.
        width: u64,
        /// True if queries attend only to earlier keys.
        causal: bool,
        /// True if the kernel computes gradients.
        backward: bool,
    },
    /// A kernel limited by memory traffic. The node states the number of bytes.
    Moving(MemoryBoundKernelClass),
}

impl KernelShape {
    /// Returns the name of the kernel's class, which is also the first word of the shape's text.
    pub fn class_name(&self) -> &'static str {
        match self {
            Self::Gemm { .. } => "gemm",
            Self::Attention { .. } => "attention",
            Self::Moving(class) => class.class_name(),
        }
    }
}

impl fmt::Display for KernelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gemm { batch, m, n, k } => write!(f, "gemm batch={batch} m={m} n={n} k={k}"),
            Self::Attention {
                batch,
                heads,
                kv_heads,
                queries,
                keys,
                width,
                causal,
                backward,
            } => {
                write!(
                    f,
                    "attention batch={batch} heads={heads} kv={kv_heads} queries={queries} keys={keys} width={width}"
                )?;
                f.write_str(if *causal { " causal" } else { "" })?;
                f.write_str(if *backward { " backward" } else { "" })
            }
            Self::Moving(class) => f.write_str(class.class_name()),
        }
    }
}

/// Error about text that is not a class and shape of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelShapeError;

/// Extracts the values of the `NAME=VALUE` words with the given names, in the order of these names. Returns the
/// extracted values, and the words without `=`.
fn parse_named_numbers_and_other_words<'t, const N: usize>(
    words: impl Iterator<Item = &'t str>,
    names: [&str; N],
) -> Result<([u64; N], Vec<&'t str>), KernelShapeError> {
    let (mut found, mut rest) = ([None; N], Vec::new());
    for word in words {
        let Some((name, number)) = word.split_once('=') else {
            rest.push(word);
            continue;
        };
        let place = names
            .iter()
            .position(|n| *n == name)
            .ok_or(KernelShapeError)?;
        let number = number.parse().map_err(|_| KernelShapeError)?;
        if found[place].replace(number).is_some() {
            return Err(KernelShapeError);
        }
    }
    let mut all = [0; N];
    for (number, found) in all.iter_mut().zip(found) {
        *number = found.ok_or(KernelShapeError)?;
    }
    Ok((all, rest))
}

impl FromStr for KernelShape {
    type Err = KernelShapeError;

    fn from_str(text: &str) -> Result<Self, KernelShapeError> {
        let mut words = text.split_ascii_whitespace();
        let class = words.next().ok_or(KernelShapeError)?;
        match class {
            "gemm" => match parse_named_numbers_and_other_words(words, ["batch", "m", "n", "k"])? {
                ([batch, m, n, k], rest) if rest.is_empty() => Ok(Self::Gemm { batch, m, n, k }),
                _ => Err(KernelShapeError),
            },
            "attention" => {
                let names = ["batch", "heads", "kv", "queries", "keys", "width"];
                let ([batch, heads, kv_heads, queries, keys, width], rest) =
                    parse_named_numbers_and_other_words(words, names)?;
                let (causal, backward) = match rest[..] {
                    [] => (false, false),
                    ["causal"] => (true, false),
                    ["backward"] => (false, true),
                    ["causal", "backward"] => (true, true),
                    _ => return Err(KernelShapeError),
                };
                Ok(Self::Attention {
                    batch,
                    heads,
                    kv_heads,
                    queries,
                    keys,
                    width,
                    causal,
                    backward,
                })
            }
            _ => {
                let found = MemoryBoundKernelClass::ALL
                    .iter()
                    .find(|(_, name)| *name == class);
                match (found, words.next()) {
                    (Some((class, _)), None) => Ok(Self::Moving(*class)),
                    _ => Err(KernelShapeError),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_shapes_parse_back_from_their_text() {
        let gemm = KernelShape::Gemm {
            batch: 16,
            m: 1024,
            n: 512,
            k: 64,
        };
        let attention = |causal, backward| KernelShape::Attention {
            batch: 2,
            heads: 16,
            kv_heads: 4,
            queries: 1,
            keys: 4096,
            width: 128,
            causal,
            backward,
        };
        let moving = MemoryBoundKernelClass::ALL.map(|(class, _)| KernelShape::Moving(class));
        let flags = [(false, false), (true, false), (false, true), (true, true)];
        let attentions = flags.map(|(causal, backward)| attention(causal, backward));
        for shape in [gemm].into_iter().chain(attentions).chain(moving) {
            assert_eq!(shape.to_string().parse(), Ok(shape), "{shape}");
        }
        assert_eq!(gemm.to_string(), "gemm batch=16 m=1024 n=512 k=64");
    }

    #[test]
    fn invalid_kernel_shape_texts_are_refused() {
        for text in [
            "",
            "gemm",
            "gemm m=1 n=2 k=3",
            "gemm batch=1 m=1 n=2 k=3 k=3",
            "gemm batch=1 m=1 n=2 k=-3",
            "gemm batch=1 m=1 n=2 k=3 causal",
            "softmax 3",
            "convolution",
            "attention batch=1 heads=1 kv=1 queries=1 keys=1 width=1 backward causal",
        ] {
            assert_eq!(text.parse::<KernelShape>(), Err(KernelShapeError), "{text}");
        }
    }
}
