//! Legs of a route, one for each dimension that the route crosses.

use super::Topology;

/// A part of a route, over the links of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SingleDimensionRouteLeg {
    /// Index of the dimension whose links the leg uses.
    pub dimension: usize,
    /// Index of the NPU at which the leg ends.
    pub end: u32,
}

/// Sizes and strides of the dimensions, which determine the legs of routes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RouteDimensionStrides {
    dimensions: Vec<DimensionSizeAndStride>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct DimensionSizeAndStride {
    stride: u32,
    size: u32,
    /// True if the dimension's links also connect NPUs with different coordinates in the inner dimensions.
    joins_inner: bool,
}

impl RouteDimensionStrides {
    /// Creates the legs for the dimensions of `topology`. `joins_inner(d)` must be true if the links of dimension d
    /// also connect NPUs with different coordinates in the inner dimensions.
    pub fn new(topology: &Topology, joins_inner: impl Fn(usize) -> bool) -> Self {
        let dimensions = topology.dimensions().iter().zip(&topology.strides);
        let dimensions =
            dimensions
                .enumerate()
                .map(|(d, (dimension, &stride))| DimensionSizeAndStride {
                    stride,
                    size: dimension.size,
                    joins_inner: joins_inner(d),
                });
        Self {
            dimensions: dimensions.collect(),
        }
    }

    /// Returns the NPUs that the links of dimension `d` connect with `npu`, including `npu`, in ascending order.
    pub fn npus_connected_along_dimension(
        &self,
        npu: u32,
        d: usize,
    ) -> impl Iterator<Item = u32> + Clone {
        let DimensionSizeAndStride {
            stride,
            size,
            joins_inner,
        } = self.dimensions[d];
        let npus = stride * size;
        let (first, step) = match joins_inner {
            true => (npu / npus * npus, 1),
            false => (npu / npus * npus + npu % stride, stride as usize),
        };
        (first..npu / npus * npus + npus).step_by(step)
    }

    /// Returns the first leg from one NPU to another, or `None` if both are the same NPU.
    pub fn first_leg(&self, from: u32, to: u32) -> Option<SingleDimensionRouteLeg> {
        let place = |npu: u32, d: usize| npu / self.dimensions[d].stride % self.dimensions[d].size;
        let differs = |d: &usize| place(from, *d) != place(to, *d);
        let mut from_outside = (0..self.dimensions.len()).rev();
        let joined = from_outside.find(|d| self.dimensions[*d].joins_inner && differs(d));
        if let Some(dimension) = joined {
            // The leg also moves the message to its final inner coordinates. Outer coordinates do not change.
            let DimensionSizeAndStride { stride, size, .. } = self.dimensions[dimension];
            let npus = stride * size;
            let end = from / npus * npus + to % npus;
            return Some(SingleDimensionRouteLeg { dimension, end });
        }
        let dimension = (0..self.dimensions.len()).find(differs)?;
        let stride = self.dimensions[dimension].stride;
        let end = from - place(from, dimension) * stride + place(to, dimension) * stride;
        Some(SingleDimensionRouteLeg { dimension, end })
    }
}
