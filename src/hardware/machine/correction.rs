//! Corrections of the durations of kernels, launches and collectives, derived from measured steps.

/// Factor on the kernel times of a pass, for models whose most frequent matrix multiplications have given sizes.
///
/// The sizes of these multiplications depend on the micro-batch's tokens, the model's width and the size of a tensor
/// group. The predicted times of steps with equal sizes therefore have similar errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceCorrection {
    /// Rows, columns and summed-over size of the most frequent and of the second most frequent product. `None` if the
    /// correction applies to all models that no other correction covers.
    pub gemms: Option<[[u64; 3]; 2]>,
    /// Factor on the times of kernels by curves, of launches, and of measured collectives.
    pub factor: f64,
    /// Relative error that remains after the factor is applied, one standard deviation.
    pub error: f64,
}
