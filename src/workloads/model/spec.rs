//! Describes operators as data: their axes, the tensors over these axes, the matrix products, and the
//! tensors that are saved for the backward pass.
//!
//! Letters name axes, and sequences of letters name tensors, as in `einsum`: a linear operator multiplies `mk` by `kn`
//! to `mn`. An operator is one entry of [`OperatorKind::to_axes_and_tensors`]. From this entry, other modules compute
//! parameters, multiplications, elements, saved bytes, the volumes of PALM's Table III, shards, layouts and kernels.
//!
//! | operator | input | weights | output | products, and the axes summed over | kept |
//! |---|---|---|---|---|---|
//! | linear | `mk` | `n`, `kn` | `mn` | `mn` over `k` | input |
//! | convolution | `kij` | `nkrs`, `n` | `nhw` | `nhw` over `krs` | input |
//! | attention | `mnw`, `mgw`, `mgw` | norms: `w`, `w` | `mnw` | `nmt` over `w`, `nmw` over `t` | input, also of norms; `nmt` of scores, or `nm` of row sums |
//! | shaped attention | `mnw`, `mgw`, `mgu` | norms as above, sinks `n` | `mnu` | `nmt` over `w`, `nmu` over `t` | the same |
//! | linear attention | `mqw`, `mqw`, `mnu`, `mnu`, `mn`, `mn` | convolutions `qwr`, `qwr`, `nur`; decay `n`, `n`; norm `u` | `mnu` | convolutions over `r`; `mns` over `w` twice, `mnw`, `mnu`, `mnu` over `s` in chunks; `mnu`, `mnu` over `w`, `mnw` over `u` with the state | input; `mns` of a chunk |
//! | latent up | `mk`, `mc` | `kni`, `cnj` | `mni`, `mnj` | `mni` over `k`, `mnj` over `c` | inputs |
//! | expert dispatch | `mn` | `ne` | `cn` | `me` over `n` | input; `me` of scores |
//! | expert linear | `mk` | `en`, `ekn` | `mn` | `mn` over `k` | input |
//! | expert combine | `cn` | | `mn` | | input |
//! | norm | `mn` | `n`, `n` | `mn` | | input |
//! | activation | `mn`, a gate twice | | `mn` | | input, unless the output suffices |
//! | residual | `mn` | | `mn` | | a mask of dropout |
//! | embedding | indices `m` | `kn` | `mn` | | |
//! | embedding bag | indices `l` | `kn` | `n` | | |
//! | loss | `mn` | | `m` | | `mn` in single precision |
//! | pool | `nij` | | `nhw` | none; windows compare `nhw` over `rs` | input |
//! | interaction | `vu` | | `p`, `u` | `p` over `u` | input |
//!
//! Every input and output also has the sample axis `b`, which the table omits. Degrees exist only for the axes `b`,
//! `m`, `n` and `k`. Any other axis either stays whole, or is divided by the degree of one of these axes. The degree of
//! m divides the rows `h` of an image's output, the rows `i` of its input, and the copies `c` of tokens. The degree of
//! n divides the KV heads `g` and, in linear attention, the query and key heads `q`. In a grouped convolution, a filter
//! processes `c` channels instead of all `k`.

mod kernels;
mod operators;

pub use kernels::{
    FormatDependentElementBytes, MemoryBoundKernelSpec, MemoryBoundKernelsByPass,
    OperatorKernelSpec,
};
pub use operators::DELTA_CHUNK;

/// An axis along which an operator can be sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorShardAxis {
    /// Samples of a batch.
    B,
    /// Rows of a sample: tokens, or rows of pixels.
    M,
    /// Columns of the output: features, channels or heads.
    N,
    /// Columns of the input; matrix products sum over these columns.
    K,
}

impl OperatorShardAxis {
    /// All axes, in the order of degrees.
    pub const ALL: [Self; 4] = [Self::B, Self::M, Self::N, Self::K];
}

/// An axis of an operator's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorAxis {
    /// Letter for the axis in the names of tensors.
    pub letter: char,
    /// Size of the axis for one sample.
    pub extent: u64,
    /// The degree that divides the axis, if any.
    pub cut: DividingDegreeOrReason,
}

/// The degree that divides an axis, or the reason why none does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DividingDegreeOrReason {
    /// The degree of the given operator axis also divides this axis. The string is a plural noun for the units along
    /// this axis, for error messages.
    By(OperatorShardAxis, &'static str),
    /// The degree of the given operator axis must be 1, because this axis must stay whole. The string is the reason,
    /// for error messages.
    Whole(OperatorShardAxis, &'static str),
    /// No degree divides the axis.
    Never,
}

/// Weights of an operator that have one gradient tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightsOfOneGradientTensor {
    /// Letters of the tensor's axes.
    pub axes: &'static str,
    /// True if the weights belong to another operator, which counts them.
    pub tied: bool,
}

/// A product of tensors, summed over axes. Its number of multiplications is the product of the sizes of all axes, both
/// the result's axes and the summed axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorContraction {
    /// Letters of the result's axes.
    pub result: &'static str,
    /// Letters of the summed axes.
    pub over: &'static str,
    /// Axes of the multiplications that a kernel for causal attention skips; empty if it skips
    /// none.
    pub skipped: &'static str,
    /// False if the product compares instead of multiplying; only PALM's Table III counts
    /// comparisons.
    pub multiplies: bool,
}

/// A tensor that is saved for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorKeptForBackward {
    /// Letters of the tensor's axes.
    pub axes: &'static str,
    /// Bytes per element; `None` for the model's number format.
    pub bytes: Option<u64>,
    /// Kinds of attention kernels that save the tensor.
    pub with: WhichAttentionKernelsSaveTensor,
}

/// Kinds of attention kernels that save a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichAttentionKernelsSaveTensor {
    /// All attention kernels save the tensor.
    Any,
    /// Only fused attention saves the tensor.
    Fused,
    /// Only unfused attention saves the tensor; selective recomputation recomputes it instead.
    Unfused,
}

/// Sizes of sliding windows over an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageWindowStrideAndPadding {
    /// Number of rows in a window.
    pub kernel: u64,
    /// Distance in pixels between neighbouring windows.
    pub stride: u64,
    /// Number of rows of padding on each side.
    pub padding: u64,
}

/// Results that an operator uses, from its layer's chain or from outside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorInputSource {
    /// The previous operator's output.
    Next,
    /// The previous operator's output, and a result outside the chain: the skip path's result, or
    /// the tables' results.
    Join,
    /// The previous operator's output, and all results outside the chain.
    Collect,
    /// No earlier result, because the operator looks up a table. The operator starts a new chain. The previous chain's
    /// result waits outside the chain until an operator uses it.
    Table,
    /// No earlier result, because the operator looks up embedding bags. Its own result waits outside the chain.
    Beside,
}

/// Side of an operator (before or after it) on which ranks with different experts exchange tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorTokenExchangeSide {
    /// After the operator: copies of tokens are sent to their experts.
    Dispatch,
    /// Before the operator: results return from the experts to the ranks that have the tokens.
    Combine,
}

/// Description of an operator: its axes, tensors, matrix products and kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorAxesAndTensorsSpec {
    /// Name of the operator in model files.
    pub name: &'static str,
    /// Axes of all tensors that the operator has.
    pub axes: Vec<TensorAxis>,
    /// Inputs, each as the letters of its axes. They are outputs of earlier operators or of the previous layer.
    pub inputs: Vec<&'static str>,
    /// Outputs, each as the letters of its axes.
    pub outputs: Vec<&'static str>,
    /// Weights, in the order in which the backward pass computes their gradients.
    pub weights: Vec<WeightsOfOneGradientTensor>,
    /// Matrix products of the forward pass.
    pub products: Vec<TensorContraction>,
    /// Tensors that are saved for the backward pass.
    pub kept: Vec<TensorKeptForBackward>,
    /// Letters of the axes that count as rows (tokens or pixels); all others count as columns (or channels).
    pub rows: &'static str,
    /// Sliding windows over an image, if the operator has them.
    pub windows: Option<ImageWindowStrideAndPadding>,
    /// Results that the operator uses.
    pub role: OperatorInputSource,
    /// Kernels of the forward pass and of the backward pass.
    pub kernels: OperatorKernelSpec,
    /// The token exchange before or after the operator, if expert parallelism needs one.
    pub exchange: Option<OperatorTokenExchangeSide>,
}

impl OperatorAxesAndTensorsSpec {
    /// Returns true if the operator has an axis with the letter `letter`.
    pub fn has_axis(&self, letter: char) -> bool {
        self.axes.iter().any(|axis| axis.letter == letter)
    }

    /// Size of the axis with the letter `letter`; 0 if there is no such axis.
    pub fn extent_of_axis(&self, letter: char) -> u64 {
        let found = self.axes.iter().find(|axis| axis.letter == letter);
        found.map_or(0, |axis| axis.extent)
    }

    /// Number of elements of a tensor over `axes`; saturates.
    pub fn tensor_element_count(&self, axes: &str) -> u128 {
        axes.chars().fold(1, |all: u128, letter| {
            all.saturating_mul(self.extent_of_axis(letter).into())
        })
    }

    /// Total number of elements in `tensors`; saturates.
    pub fn sum_tensor_volumes<'a>(
        &self,
        tensors: impl IntoIterator<Item = &'a &'static str>,
    ) -> u128 {
        let each = tensors
            .into_iter()
            .map(|axes| self.tensor_element_count(axes));
        each.fold(0, u128::saturating_add)
    }

    /// Returns true if the degree of `axis` divides the tensor with the axes `axes`.
    pub fn is_tensor_divided_along_axis(&self, axis: OperatorShardAxis, axes: &str) -> bool {
        let cut =
            |one: &&TensorAxis| matches!(one.cut, DividingDegreeOrReason::By(by, _) if by == axis);
        let mut all = self.axes.iter().filter(cut);
        all.any(|one| axes.contains(one.letter))
    }

    /// Returns the sizes that the degree of `axis` must divide, each with a noun for its units.
    pub fn sizes_that_axis_degree_must_divide(
        &self,
        axis: OperatorShardAxis,
    ) -> impl Iterator<Item = (u64, &'static str)> {
        self.axes.iter().filter_map(move |one| match one.cut {
            DividingDegreeOrReason::By(by, what) if by == axis => Some((one.extent, what)),
            _ => None,
        })
    }

    /// Returns true if `axis` can be divided into `parts` equal parts.
    pub fn can_divide_axis(&self, axis: OperatorShardAxis, parts: u64) -> bool {
        let mut sizes = self.sizes_that_axis_degree_must_divide(axis).peekable();
        sizes.peek().is_some() && sizes.all(|(size, _)| size.is_multiple_of(parts.max(1)))
    }

    /// Returns true if the operator's products sum over its input's columns.
    pub fn sums_over_input_columns(&self) -> bool {
        self.inputs.iter().any(|axes| axes.contains('k'))
    }

    /// Returns true for a matrix product, but not for a product over sliding windows.
    pub fn is_matrix_product_without_windows(&self) -> bool {
        self.sums_over_input_columns() && self.windows.is_none()
    }

    /// Returns the number of experts that have their own weights; 0 for operators without experts.
    pub fn expert_weights(&self) -> u64 {
        let own = self.weights.iter().any(|one| one.axes.starts_with('e'));
        if own { self.extent_of_axis('e') } else { 0 }
    }

    /// Returns true for attention, in which tokens multiply tokens.
    pub fn is_attention(&self) -> bool {
        self.axes.iter().any(|axis| axis.letter == 'g')
    }

    /// Returns true if each row of the input becomes a single value, as in a loss over classes.
    pub fn reduces_rows_to_numbers(&self) -> bool {
        let has = |tensors: &[&'static str]| tensors.iter().any(|axes| axes.contains('n'));
        has(&self.inputs) && !has(&self.outputs)
    }

    /// Returns true for operators on the chain that process each row or element independently:
    /// norms and activations.
    pub fn is_norm_or_activation_on_chain(&self) -> bool {
        self.computes_columns_independently()
            && self.products.is_empty()
            && self.role == OperatorInputSource::Next
    }

    /// Number of the operator's weights that belong to another operator; `None` if there are none.
    pub fn tied_weight_count(&self) -> Option<u64> {
        let tied = self.weights.iter().find(|one| one.tied);
        tied.map(|one| saturate_to_u64(self.tensor_element_count(one.axes)))
    }

    /// Returns true if the operator looks up rows of a table.
    pub fn looks_up_table_rows(&self) -> bool {
        matches!(
            self.role,
            OperatorInputSource::Table | OperatorInputSource::Beside
        )
    }

    /// Returns true if each column of the output (a head or a channel) depends only on the same column of the input.
    pub fn computes_columns_independently(&self) -> bool {
        let has = |tensors: &[&'static str]| tensors.iter().any(|axes| axes.contains('n'));
        has(&self.inputs) && has(&self.outputs)
    }

    /// Number of columns of the output; for an image, the number of channels.
    pub fn output_column_count(&self) -> u64 {
        let each = |axes: &&'static str| {
            let columns = axes.chars().filter(|letter| !self.rows.contains(*letter));
            columns.fold(1, |all: u64, one| {
                all.saturating_mul(self.extent_of_axis(one))
            })
        };
        self.outputs.iter().map(each).fold(0, u64::saturating_add)
    }

    /// Number of rows per sample that a degree can divide, which are tokens. Returns `None` for rows of images.
    pub fn divisible_token_rows_per_sample(&self) -> Option<u64> {
        let mut sizes = self.sizes_that_axis_degree_must_divide(OperatorShardAxis::M);
        sizes
            .next()
            .filter(|_| self.windows.is_none())
            .map(|(size, _)| size)
    }

    /// Allows degrees to divide columns that are computed independently, as in a norm over the channels of images.
    pub fn allow_column_division(mut self) -> Self {
        let alone = self.computes_columns_independently();
        for axis in &mut self.axes {
            if let (DividingDegreeOrReason::Whole(OperatorShardAxis::N, _), true) =
                (axis.cut, alone)
            {
                axis.cut = DividingDegreeOrReason::By(OperatorShardAxis::N, "columns");
            }
        }
        self
    }

    /// Returns the number of elements in each weight tensor's gradient. If `tied`, weights that
    /// belong to other operators are included.
    pub fn weight_gradient_element_counts(&self, tied: bool) -> impl Iterator<Item = u128> {
        let own = self.weights.iter().filter(move |one| tied || !one.tied);
        own.map(|one| self.tensor_element_count(one.axes))
    }

    /// Returns the bytes per sample of all saved tensors, and the bytes of the tensors that selective recomputation
    /// recomputes.
    pub fn kept_bytes(&self, element: u64, fused: bool) -> [u64; 2] {
        let bytes = |one: &TensorKeptForBackward| {
            let each = one.bytes.unwrap_or(element);
            saturate_to_u64(
                self.tensor_element_count(one.axes)
                    .saturating_mul(each.into()),
            )
        };
        let mut sums = [0_u64; 2];
        for one in &self.kept {
            match (one.with, fused) {
                (WhichAttentionKernelsSaveTensor::Fused, false)
                | (WhichAttentionKernelsSaveTensor::Unfused, true) => continue,
                (WhichAttentionKernelsSaveTensor::Unfused, false) => {
                    sums[1] = sums[1].saturating_add(bytes(one))
                }
                _ => {}
            }
            sums[0] = sums[0].saturating_add(bytes(one));
        }
        sums
    }
}

/// Number of positions of a window of length `kernel` on a side of `size` pixels, with `padding`
/// pixels at both ends.
pub(in crate::model) fn window_position_count(
    size: u64,
    kernel: u64,
    stride: u64,
    padding: u64,
) -> u64 {
    let padded = size.saturating_add(padding.saturating_mul(2));
    match padded.checked_sub(kernel) {
        // Strides in model files are at least 1, but models built in code may have the stride 0. `max` then avoids a
        // division by zero.
        Some(free) => free / stride.max(1) + 1,
        None => 0,
    }
}

/// Converts to 64 bits; larger counts become `u64::MAX`.
pub(in crate::model) fn saturate_to_u64(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
