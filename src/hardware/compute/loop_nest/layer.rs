//! Layers as seven loops, and the tensor words that they touch.

/// A loop of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoopDimension {
    /// Images of a batch.
    N,
    /// Output channels, or columns of a product.
    K,
    /// Input channels, or the inner dimension of a product.
    C,
    /// Outputs along a row, or rows of a product.
    P,
    /// Outputs along a column.
    Q,
    /// Weights along a row.
    R,
    /// Weights along a column.
    S,
}

impl LoopDimension {
    /// Every dimension with its letter.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::N, "N"),
        (Self::K, "K"),
        (Self::C, "C"),
        (Self::P, "P"),
        (Self::Q, "Q"),
        (Self::R, "R"),
        (Self::S, "S"),
    ];
}

/// A tensor of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LayerTensor {
    /// Weights, with the dimensions k, c, r and s.
    Weights,
    /// Inputs, with the dimensions n and c, and with windows over p and r and over q and s.
    Inputs,
    /// Outputs, with the dimensions n, k, p and q.
    Outputs,
}

impl LayerTensor {
    /// Every tensor with its name.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Weights, "weights"),
        (Self::Inputs, "inputs"),
        (Self::Outputs, "outputs"),
    ];

    /// Returns true if the tensor's words depend on `dimension`.
    pub fn depends_on(self, dimension: LoopDimension) -> bool {
        use LoopDimension::{C, K, N, P, Q, R, S};
        match self {
            Self::Weights => matches!(dimension, K | C | R | S),
            Self::Inputs => matches!(dimension, N | C | P | Q | R | S),
            Self::Outputs => matches!(dimension, N | K | P | Q),
        }
    }
}

/// A convolution, or a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Size of each loop, by [`LoopDimension`], at least 1.
    pub sizes: [u64; 7],
    /// Distance between neighbouring windows along a row and along a column, in inputs.
    pub stride: [u64; 2],
    /// Distance between neighbouring weights along a row and along a column, in inputs.
    pub dilation: [u64; 2],
}

/// Maximum size of a loop, so that a product of two sizes does not overflow.
const MOST: u64 = 1 << 31;

impl LayerShape {
    /// Creates a layer with these loop sizes and stride 1. Returns `None` if a size is zero or too large, or if the
    /// number of multiplications would overflow.
    pub fn new(sizes: [u64; 7]) -> Option<Self> {
        let fit = sizes.iter().all(|size| (1..=MOST).contains(size));
        let mut all = sizes.iter();
        let macs = all.try_fold(1_u64, |macs, size| macs.checked_mul(*size));
        // The limit leaves room for loops that cover more than the layer.
        (fit && macs.is_some_and(|macs| macs < 1 << 56)).then_some(Self {
            sizes,
            stride: [1; 2],
            dilation: [1; 2],
        })
    }

    /// Creates the layer of a matrix product, `m` x `k` by `k` x `n`.
    pub fn from_matrix_product([m, n, k]: [u64; 3]) -> Option<Self> {
        Self::new([1, n, k, m, 1, 1, 1])
    }

    /// Returns the number of a loop's iterations.
    pub fn loop_iteration_count(&self, dimension: LoopDimension) -> u64 {
        self.sizes[dimension as usize]
    }

    /// Returns the layer's number of multiply-accumulate operations.
    pub fn mac_count(&self) -> u64 {
        self.sizes.iter().product()
    }

    /// Returns the number of words of `tensor` that are accessed if each loop runs for as many iterations as `extents`
    /// states.
    pub fn count_tensor_words(&self, tensor: LayerTensor, extents: &[u64; 7]) -> u64 {
        let [n, k, c, p, q, r, s] = *extents;
        match tensor {
            LayerTensor::Weights => k * c * r * s,
            LayerTensor::Inputs => {
                n * c
                    * self.input_extent_of_windows(0, p, r)
                    * self.input_extent_of_windows(1, q, s)
            }
            LayerTensor::Outputs => n * k * p * q,
        }
    }

    /// Returns the number of inputs along a row (0) or a column (1) that `outputs` windows of `weights` weights cover.
    pub fn input_extent_of_windows(&self, along: usize, outputs: u64, weights: u64) -> u64 {
        (outputs - 1) * self.stride[along] + (weights - 1) * self.dilation[along] + 1
    }

    /// Returns the bytes of all tensors in memory, with each word counted once; `word` contains the bytes per word of
    /// each tensor.
    pub fn bytes_of_all_tensors(&self, word: [u64; 3]) -> u64 {
        let all = LayerTensor::ALL.iter();
        all.map(|&(tensor, _)| self.count_tensor_words(tensor, &self.sizes) * word[tensor as usize])
            .sum()
    }
}
