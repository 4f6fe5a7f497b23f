//! Halo of an image sharded by rows: rows that a device has, and rows that its windows reach.

use std::ops::Range;

/// Geometry of windows over the rows of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowRows {
    /// Rows of the input.
    pub inputs: u64,
    /// Rows of the output.
    pub outputs: u64,
    /// Rows of a window.
    pub kernel: u64,
    /// Rows from one window to the next.
    pub stride: u64,
    /// Rows added in front.
    pub padding: u64,
}

impl WindowRows {
    /// The rows of the input that part `part` of `parts` has.
    pub(super) fn own(&self, part: u32, parts: u32) -> Range<u64> {
        let each = self.inputs / u64::from(parts);
        u64::from(part) * each..(u64::from(part) + 1) * each
    }

    /// The rows of the input that the windows of part `part` of `parts` reach, from the first to the last one, with
    /// those in gaps between windows; none if all windows lie in the padding.
    pub(super) fn needed(&self, part: u32, parts: u32) -> Range<u64> {
        let [inputs, kernel, stride, padding] =
            [self.inputs, self.kernel, self.stride.max(1), self.padding].map(u128::from);
        let each = u128::from(self.outputs) / u128::from(parts);
        let start = u128::from(part) * each;
        // Window o covers rows o stride - padding and on; the first that is not all in front of the image, and the
        // last that is not all behind it.
        let first = start.max((padding + 1).saturating_sub(kernel).div_ceil(stride));
        let last = (start + each - 1).min((inputs + padding - 1) / stride);
        if first > last {
            return 0..0;
        }
        let clip = |row: u128| {
            let row = row.saturating_sub(padding).min(inputs);
            u64::try_from(row).unwrap_or(u64::MAX)
        };
        clip(first * stride)..clip(last * stride + kernel)
    }
}
