//! Layers: parts of a step that are repeated as often in the forward as in the backward pass.

use super::EditCounts;
use super::grammar::LayerChange;
use super::gradients::TransferRates;
use super::program::Program;
use chakram_trace::format::TraceError;

pub(super) fn change(
    _program: &mut Program<'_>,
    _change: LayerChange,
    _rates: &TransferRates,
) -> Result<EditCounts, TraceError> {
    Err(super::refused("layers", "later"))
}
