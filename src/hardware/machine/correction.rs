//! Factors that correct the durations of kernels, launches and collectives; they are derived from measured steps.

/// Factor that corrects the kernel times of a pass. It applies to models whose most frequent matrix multiplications
/// have the sizes `gemms`.
///
/// The sizes of these multiplications depend on the micro-batch's tokens, the model's width and the size of a tensor
/// group. Steps in which these sizes are equal therefore have similar errors in their predicted times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassKernelTimeCorrection {
    /// Sizes (rows, columns, inner size) of the two most frequent matrix multiplications, starting with the most
    /// frequent. `None` if the correction applies to all models that no other correction covers.
    pub gemms: Option<[[u64; 3]; 2]>,
    /// Factor that multiplies launch times, times of measured collectives, and kernel times from curves.
    pub factor: f64,
    /// Relative error that remains after the factor is applied, one standard deviation.
    pub error: f64,
}
