//! Totals of operators with windows over an image.

use super::{AxisExtent, NO_INPUTS, OperatorAxis, OperatorTotals, WindowRows, biases, by, product};

/// Geometry of windows over the images of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageWindows {
    pub batch: u64,
    pub size: [u64; 2],
    pub kernel: [u64; 2],
    pub stride: u64,
    pub padding: u64,
}

impl ImageWindows {
    /// Windows along a side: `(size + 2 padding - kernel) / stride + 1`, none where one does not fit.
    fn count(&self, side: usize) -> u64 {
        let padded = u128::from(self.size[side]) + 2 * u128::from(self.padding);
        let windows = padded
            .checked_sub(self.kernel[side].into())
            .map_or(0, |free| free / u128::from(self.stride.max(1)) + 1);
        u64::try_from(windows).unwrap_or(u64::MAX)
    }

    /// Places of a channel of the output, over all samples.
    fn pixels(&self) -> u128 {
        product(&[self.batch, self.count(0), self.count(1)])
    }

    /// Numbers of shards that the rows of the image admit.
    fn image(&self) -> AxisExtent {
        AxisExtent::Divisors(vec![
            (self.count(0), "rows of the output"),
            (self.size[0], "rows of the input"),
        ])
    }

    fn rows(&self, channels: u64, cut: OperatorAxis) -> WindowRows {
        WindowRows {
            inputs: self.size[0],
            outputs: self.count(0),
            kernel: self.kernel[0],
            stride: self.stride,
            padding: self.padding,
            width: self.size[1],
            elements: product(&[self.batch, channels]),
            cut,
        }
    }

    /// A convolution from the first to the second number of channels.
    pub(super) fn convolution(
        &self,
        [inputs, outputs]: [u64; 2],
        groups: u64,
        bias: bool,
    ) -> OperatorTotals {
        let channels = inputs / groups.max(1);
        let filter = product(&self.kernel).saturating_mul(channels.into());
        let pixels = self.pixels();
        let cut = |count, what| match groups {
            0 | 1 => by(count, what),
            _ => AxisExtent::Whole("the channels of a grouped convolution belong together"),
        };
        OperatorTotals {
            letters: ["b", "m", "n", "k"],
            order: [
                OperatorAxis::B,
                OperatorAxis::K,
                OperatorAxis::M,
                OperatorAxis::N,
            ],
            extents: [
                by(self.batch, "samples"),
                self.image(),
                cut(outputs, "output channels"),
                cut(inputs, "input channels"),
            ],
            flops: pixels
                .saturating_mul(filter)
                .saturating_mul(product(&[2, outputs])),
            outputs: pixels.saturating_mul(outputs.into()),
            inputs: product(&[self.batch, self.size[0], self.size[1], inputs]),
            weights: filter.saturating_mul(outputs.into()),
            biases: biases(bias, outputs),
            rows: Some(self.rows(inputs, OperatorAxis::K)),
        }
    }

    /// A pooling of `channels`.
    pub(super) fn pool(&self, channels: u64) -> OperatorTotals {
        OperatorTotals {
            letters: ["b", "m", "n", "k"],
            order: [
                OperatorAxis::B,
                OperatorAxis::N,
                OperatorAxis::M,
                OperatorAxis::K,
            ],
            extents: [
                by(self.batch, "samples"),
                self.image(),
                by(channels, "channels"),
                NO_INPUTS,
            ],
            flops: self
                .pixels()
                .saturating_mul(product(&self.kernel))
                .saturating_mul(product(&[2, channels])),
            rows: Some(self.rows(channels, OperatorAxis::N)),
            ..OperatorTotals::none(self.batch)
        }
    }
}
