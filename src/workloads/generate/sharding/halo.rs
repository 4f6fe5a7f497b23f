//! Halo of an image that is sharded by rows: the rows of other devices that a device's windows
//! cover.

use std::ops::Range;

/// Geometry of a window that slides over the rows of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlidingWindowGeometry {
    /// Number of rows of the input image.
    pub inputs: u64,
    /// Number of rows of the output; each position of the window computes one row.
    pub outputs: u64,
    /// Number of rows in a window.
    pub kernel: u64,
    /// Number of rows between the starts of neighbouring windows.
    pub stride: u64,
    /// Number of rows of padding before the first row.
    pub padding: u64,
}

impl SlidingWindowGeometry {
    /// Returns the input rows that belong to part `part` of `parts`.
    pub(super) fn input_rows_owned_by_shard(&self, part: u32, parts: u32) -> Range<u64> {
        let each = self.inputs / u64::from(parts);
        u64::from(part) * each..(u64::from(part) + 1) * each
    }

    /// Returns the input rows that the windows of part `part` of `parts` cover: all rows from the first to the last,
    /// including gaps between windows. The range is empty if all these windows are in the padding.
    pub(super) fn input_row_range_of_windows(&self, part: u32, parts: u32) -> Range<u64> {
        let [inputs, kernel, stride, padding] =
            [self.inputs, self.kernel, self.stride.max(1), self.padding].map(u128::from);
        let each = u128::from(self.outputs) / u128::from(parts);
        let start = u128::from(part) * each;
        // Window o covers the rows from o stride - padding onwards, so it can be entirely outside the image. Find the
        // first window that ends inside or after the image, and the last window that starts inside or before the image.
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
