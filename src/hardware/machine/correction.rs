//! Corrections: what measured steps say of the prices of kernels, launches and collectives.

/// Factor on what a pass costs, of models with some most frequent products.
///
/// Their sizes follow from the tokens of a micro-batch, the model's width and the members of a tensor group, and errors of
/// prices are mostly common to steps that agree in these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceCorrection {
    /// Rows, columns and summed-over size of the most frequent product, and of the next; `None` for all models whose products no
    /// other correction names.
    pub gemms: Option<[[u64; 3]; 2]>,
    /// Factor on the times of kernels by curves, of launches and of measured collectives.
    pub factor: f64,
    /// Relative error that is left, one standard deviation.
    pub error: f64,
}
