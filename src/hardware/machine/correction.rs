//! Corrections of the durations of kernels, launches and collectives, derived from measured steps.

/// Factor on the time of a pass, for models with certain most frequent matrix products.
///
/// The sizes of these products follow from the tokens of a micro-batch, the model's width and the
/// members of a tensor group. Steps that agree in these sizes share most of their errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceCorrection {
    /// Rows, columns and summed-over size of the most frequent product, and of the second most
    /// frequent product, or `None` for all models whose products no other correction names.
    pub gemms: Option<[[u64; 3]; 2]>,
    /// Factor on the times of kernels by curves, of launches and of measured collectives.
    pub factor: f64,
    /// Remaining relative error, one standard deviation.
    pub error: f64,
}
