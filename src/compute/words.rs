//! Compute models by the words that name them.

use super::{ComputeModel, RooflineEfficiency};

/// Reads `recorded`, `scaled:F`, `curves` or `roofline`, at the whole of the peak.
///
/// # Errors
///
/// The expected form.
pub fn parse_model(text: &str) -> Result<ComputeModel, String> {
    match text {
        "recorded" => Ok(ComputeModel::default()),
        "curves" => Ok(ComputeModel::Curves),
        "roofline" => Ok(ComputeModel::Roofline(RooflineEfficiency::default())),
        _ => {
            let factor = parse_scaled(text, "expected recorded, scaled:F, curves or roofline")?;
            Ok(ComputeModel::Scaled(factor, RooflineEfficiency::default()))
        }
    }
}

/// Reads `scaled:F`; `expected` describes what else there could be.
///
/// # Errors
///
/// `expected`, if `text` has another form.
pub fn parse_scaled(text: &str, expected: &str) -> Result<f64, String> {
    let factor = text.strip_prefix("scaled:").ok_or(expected)?;
    match factor.parse::<f64>() {
        Ok(factor) if factor >= 0.0 && factor.is_finite() => Ok(factor),
        _ => Err(format!(
            "`{factor}` is no factor; write for example scaled:0.5"
        )),
    }
}
