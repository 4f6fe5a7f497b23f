//! Operators that are sharded over several NPUs, each with its own degrees (PALM, Table III).
//!
//! [`OperatorAxisShardCounts`] split an operator's samples, rows, outputs and inputs into equal shards. Each device
//! computes the product for one combination of shards. If a result is a sum over a sharded axis, each device has only a
//! partial sum.
//!
//! | pass | result | sharded by | summed over |
//! |---|---|---|---|
//! | forward (FD) | output `B M N` | b, m, n | k |
//! | backward (BD) | gradient of the input `B M K` | b, m, k | n |
//! | update (GU) | gradient of the weights `N K` | n, k | b and m |
//!
//! An all-reduce of one device's shard of the result then adds up the partial sums. PALM's text gives the input as `N x
//! K`. The table above and the code use `B M K`, as tests with small matrix products confirm. A bias adds `N / n`
//! elements to the update; Table III omits biases.
//!
//! A convolution `(b, c, i, k)` is sharded in the same way, except that m divides the rows of its output (see
//! [`OperatorAxisShardCounts`]). PALM's table computes FLOPs from the input's size. The table assumes that windows have
//! no padding and do not cover rows beyond a device's border. This module computes FLOPs from the output's size, which
//! depends on stride and padding. If a device's windows cover rows of neighbouring devices, the device receives these
//! rows ([`OperatorShardWorkAndSums::stored_and_covered_image_rows`]). The gradients of the received rows are sent back
//! before the sum over k, so that each device sums only its own rows. The input's gradient has the channels of the
//! input (`B H W C`; PALM prints `B H W K`).
//!
//! All shards are equal, so degrees that do not divide the sizes are rejected.

use super::{MOST_WORK, PatternOptionError, check_limit, refused_option_value_error};
use crate::model::{OperatorAxesAndTensorsSpec, OperatorKind};
use chakram_base::ids::Rank;
use std::ops::Range;

mod grid;
mod halo;
mod layout;
mod sizes;
#[cfg(test)]
mod tests;

use grid::OperatorShardGrid;
use sizes::{LETTERS, TotalsOfOneUnshardedOperator};

pub use crate::model::OperatorShardAxis;
pub use layout::{
    EqualSizedMemberGroups, MemberNumberDigit, Redistribution, SampleRowColumnSharding,
    ShardMessage, plan_redistribution, reduce_scatter_groups,
};

/// Number of equal shards into which each axis of an operator is divided.
///
/// | axis | linear | convolution | pooling | attention |
/// |---|---|---|---|---|
/// | `b` | samples: `b` | samples: `b` | samples: `b` | samples |
/// | `m` | rows: `m` | rows of pixels: `i` | rows of pixels: `i` | |
/// | `n` | outputs: `n` | output channels: `k` | channels: `c` | heads |
/// | `k` | inputs: `k` | input channels: `c` | | |
///
/// The letters in the table come from PALM's Table III, where one letter can mean two axes. Plans and error messages
/// therefore use b, m, n and k for all operators. Devices are numbered in the order in which PALM's table lists the
/// degrees: `(b, m, n, k)`, `(b, c, i, k)` and `(b, c, i)`. The index along the last degree changes fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorAxisShardCounts {
    /// Number of shards along the sample axis.
    pub b: u32,
    /// Number of shards along the row axis.
    pub m: u32,
    /// Number of shards along the output axis.
    pub n: u32,
    /// Number of shards along the input axis; matrix products sum over this axis.
    pub k: u32,
}

impl OperatorAxisShardCounts {
    /// Creates the sharding degrees of a convolution from the order in PALM's Table III: samples, input channels, image
    /// rows, output channels.
    pub fn of_convolution(b: u32, c: u32, i: u32, k: u32) -> Self {
        Self {
            b,
            m: i,
            n: k,
            k: c,
        }
    }

    /// Creates the degrees of a pooling from the order in PALM's Table III: samples, channels,
    /// image rows.
    pub fn of_pooling(b: u32, c: u32, i: u32) -> Self {
        Self {
            b,
            m: i,
            n: c,
            k: 1,
        }
    }

    /// Number of shards along `axis`.
    pub fn degree_along(&self, axis: OperatorShardAxis) -> u32 {
        match axis {
            OperatorShardAxis::B => self.b,
            OperatorShardAxis::M => self.m,
            OperatorShardAxis::N => self.n,
            OperatorShardAxis::K => self.k,
        }
    }

    /// Number of devices: the product of the degrees.
    pub fn device_count(&self) -> u128 {
        OperatorShardAxis::ALL
            .iter()
            .map(|&axis| u128::from(self.degree_along(axis)))
            .product()
    }
}

/// A result of which each device in a group has only a partial sum, so that a collective must add up these sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardReduction {
    /// Number of elements of the result on one device; 0 if the operator has no such result.
    pub elements: u64,
    /// Number of devices that add up their sums together; 1 if no communication is needed.
    pub size: u32,
    /// Axes along which the summing devices have different indices. Along all other axes, they have the same index.
    pub over: &'static [OperatorShardAxis],
}

/// How one operator is sharded: the work of each device, and the sums over devices.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorShardWorkAndSums {
    grid: OperatorShardGrid,
    degrees: OperatorAxisShardCounts,
    rows: Option<halo::SlidingWindowGeometry>,
    /// FLOPs of a device's forward pass, two per multiplication, including multiplications by padding. Like
    /// [`OperatorKind::multiplication_count`], this counts the multiplications of matrix products. As in PALM's Table
    /// III, comparisons in pooling windows count too.
    pub flops: u64,
    /// Sum of the output after a forward pass.
    pub forward: ShardReduction,
    /// Sum of the input's gradient after a backward pass.
    pub backward: ShardReduction,
    /// Sum of the weights' gradient before the weights are updated.
    pub update: ShardReduction,
}

impl OperatorShardWorkAndSums {
    /// Shards the operator `work`, with `batch` samples, by the given `degrees` over `devices` devices. The error
    /// message lists possible degrees.
    pub fn new(
        work: &OperatorKind,
        batch: u64,
        degrees: OperatorAxisShardCounts,
        devices: u32,
    ) -> Result<Self, PatternOptionError> {
        Self::from_spec(&work.to_axes_and_tensors(), batch, degrees, devices)
    }

    /// Like `new`, but takes an operator that is already a spec.
    pub(super) fn from_spec(
        spec: &OperatorAxesAndTensorsSpec,
        batch: u64,
        degrees: OperatorAxisShardCounts,
        devices: u32,
    ) -> Result<Self, PatternOptionError> {
        let sizes = TotalsOfOneUnshardedOperator::new(spec, batch);
        let named: Vec<String> = sizes
            .order
            .iter()
            .map(|&axis| format!("{} {}", LETTERS[axis as usize], degrees.degree_along(axis)))
            .collect();
        for axis in OperatorShardAxis::ALL {
            if degrees.degree_along(axis) == 0 {
                return Err(refused_option_value_error(
                    LETTERS[axis as usize],
                    0,
                    "1 or more",
                ));
            }
        }
        if degrees.device_count() != devices.into() {
            let product = degrees.device_count();
            let all = named.join(", ");
            let expected = format!("{product}, the product of the degrees {all}");
            return Err(refused_option_value_error("devices", devices, expected));
        }
        for axis in OperatorShardAxis::ALL {
            sizes.check_axis_degree(axis, degrees.degree_along(axis))?;
        }
        // These divisions leave no remainder, because degrees that do not divide the sizes are rejected. No degree is
        // greater than the number of devices.
        let [b, m, n, k] = [degrees.b, degrees.m, degrees.n, degrees.k].map(u128::from);
        let limit = |what, amount| check_limit(what, amount, MOST_WORK, "smaller sizes");
        let reduction = |amount, over: &'static [OperatorShardAxis]| {
            let elements = limit("elements of a device", amount)?;
            // An operator without such a result has nothing to sum.
            let over = if elements == 0 { &[] } else { over };
            Ok(ShardReduction {
                elements,
                size: over
                    .iter()
                    .map(|&axis| degrees.degree_along(axis))
                    .product(),
                over,
            })
        };
        let weights = sizes.weights.iter().map(|&(count, [by_n, by_k])| {
            count / if by_n { n } else { 1 } / if by_k { k } else { 1 }
        });
        let weights = weights.fold(0, u128::saturating_add);
        Ok(Self {
            grid: OperatorShardGrid::new(
                sizes.order.map(|axis| (axis, degrees.degree_along(axis))),
            ),
            degrees,
            rows: sizes.rows,
            flops: limit("FLOPs of a device", sizes.flops / (b * m * n * k))?,
            forward: reduction(sizes.outputs / (b * m * n), &[OperatorShardAxis::K])?,
            backward: reduction(sizes.inputs / (b * m * k), &[OperatorShardAxis::N])?,
            update: reduction(weights, &[OperatorShardAxis::B, OperatorShardAxis::M])?,
        })
    }

    /// Returns the index of the shard that the device at `position` has along `axis`.
    pub fn shard_index(&self, position: u32, axis: OperatorShardAxis) -> u32 {
        self.position_digit_of_axis(axis).shard_of_member(position)
    }

    /// Returns the digit of a device's position that states the index of its shard along `axis`.
    pub fn position_digit_of_axis(&self, axis: OperatorShardAxis) -> MemberNumberDigit {
        self.grid.position_digit_for_operator_axis(axis)
    }

    /// Returns the groups that sum `reduction`. `devices` contains all devices, in order of position. Groups are in
    /// order of their first members, and members in order of position.
    ///
    /// # Panics
    /// Panics if the number of `devices` differs from the number of positions.
    pub fn reduction_groups(&self, reduction: &ShardReduction, devices: &[Rank]) -> Vec<Vec<Rank>> {
        assert_eq!(devices.len() as u128, self.degrees.device_count());
        let groups = self.grid.groups_along_axes(reduction.over);
        let of = |positions: Vec<u32>| positions.iter().map(|&p| devices[p as usize]).collect();
        (0..groups.group_count())
            .map(|group| of(groups.members_of(group)))
            .collect()
    }

    /// Returns the image rows that the device at `position` stores, and the image rows that its windows cover. Returns
    /// `None` if the operator has no windows.
    pub fn stored_and_covered_image_rows(&self, position: u32) -> Option<[Range<u64>; 2]> {
        self.stored_and_covered_rows_of_part(self.shard_index(position, OperatorShardAxis::M))
    }

    /// Like `stored_and_covered_image_rows`, but for all devices that have shard `part` of the rows.
    pub fn stored_and_covered_rows_of_part(&self, part: u32) -> Option<[Range<u64>; 2]> {
        let rows = self.rows?;
        Some([
            rows.input_rows_owned_by_shard(part, self.degrees.m),
            rows.input_row_range_of_windows(part, self.degrees.m),
        ])
    }
}
