//! Corrections of the durations of kernels, launches and collectives, derived from measured steps.

/// Factor on the durations of a pass, for models whose most frequent matrix products have given sizes.
///
/// The sizes of these products depend on the tokens of a micro-batch, the model's width and the members of a tensor
/// group. Steps that agree in these sizes share most of their errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceCorrection {
    /// Rows, columns and summed-over size of the most frequent and of the second most frequent product. `None` for all
    /// models whose products no other correction names.
    pub gemms: Option<[[u64; 3]; 2]>,
    /// Factor on three times: kernels by curves, launches, and measured collectives.
    pub factor: f64,
    /// Relative error that remains after the correction, one standard deviation.
    pub error: f64,
}
