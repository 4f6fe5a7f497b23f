//! Tests convolutions and poolings with stride and padding: each device has its own image rows, and
//! receives exactly the announced halo.

use super::*;

const SAMPLES: u64 = 2;
const INPUTS: u64 = 6;
const OUTPUTS: u64 = 4;

/// Returns a 3 x 3 convolution with 6 input channels and 4 output channels.
pub(super) fn build_3x3_convolution(size: [u64; 2], stride: u64, padding: u64) -> OperatorKind {
    build_convolution(size, [3, 3], stride, padding)
}

fn build_convolution(size: [u64; 2], kernel: [u64; 2], stride: u64, padding: u64) -> OperatorKind {
    OperatorKind::Convolution {
        inputs: INPUTS,
        outputs: OUTPUTS,
        size,
        kernel,
        stride,
        padding,
        groups: 1,
        bias: false,
    }
}

/// Different image sizes, window sizes, strides and paddings. Windows overlap, are adjacent, leave gaps, or extend past
/// the neighbours' rows. If the padding exceeds the window, a device may use only rows of other devices.
const IMAGES: [([u64; 2], [u64; 2], u64, u64); 9] = [
    ([4, 3], [3, 3], 1, 1),
    ([6, 4], [5, 3], 1, 2),
    ([8, 5], [3, 3], 2, 1),
    ([8, 4], [2, 2], 2, 0),
    ([8, 6], [1, 1], 2, 0),
    ([8, 3], [7, 2], 2, 3),
    ([4, 4], [3, 2], 1, 2),
    ([6, 3], [6, 3], 1, 3),
    ([8, 2], [1, 1], 3, 8),
];

fn generate_input_value(b: u64, c: u64, h: u64, w: u64) -> i64 {
    generate_small_value(((b * 8 + c) * 16 + h) * 16 + w)
}

fn generate_filter_value(k: u64, c: u64, r: u64, s: u64) -> i64 {
    generate_small_value(10_000 + ((k * 8 + c) * 8 + r) * 8 + s)
}

fn generate_output_gradient(b: u64, k: u64, h: u64, w: u64) -> i64 {
    generate_small_value(20_000 + ((b * 8 + k) * 16 + h) * 16 + w)
}

/// Windows over an image: the sizes of the image and of the window, the stride and the padding.
#[derive(Clone, Copy, Debug)]
struct ImageWindowGeometry {
    size: [u64; 2],
    kernel: [u64; 2],
    stride: u64,
    padding: u64,
}

impl ImageWindowGeometry {
    /// Counts, one by one, the windows along one side of the image.
    fn count_windows_along_side(&self, side: usize) -> u64 {
        let mut count = 0;
        while count * self.stride + self.kernel[side] <= self.size[side] + 2 * self.padding {
            count += 1;
        }
        count
    }

    /// Returns the pixel that window `window` covers at offset `at`, or `None` if it is padding.
    fn pixel_at_window_offset(&self, side: usize, window: u64, at: u64) -> Option<u64> {
        let pixel = (window * self.stride + at).checked_sub(self.padding)?;
        (pixel < self.size[side]).then_some(pixel)
    }

    /// Calls `visit` with (output, offset, pixel) for each offset of each window in the output rows
    /// `rows`.
    fn visit_each_window_offset(
        &self,
        rows: Range<u64>,
        mut visit: impl FnMut([u64; 2], [u64; 2], Option<[u64; 2]>),
    ) {
        for h in rows {
            for w in 0..self.count_windows_along_side(1) {
                for r in 0..self.kernel[0] {
                    for s in 0..self.kernel[1] {
                        let pixel = self
                            .pixel_at_window_offset(0, h, r)
                            .zip(self.pixel_at_window_offset(1, w, s));
                        visit([h, w], [r, s], pixel.map(|(h, w)| [h, w]));
                    }
                }
            }
        }
    }
}

/// Rows that a device uses in the test. They are compared with the announced own and received rows.
struct DeviceRowsUsed {
    own: Range<u64>,
    rows: Option<(u64, u64)>,
}

impl DeviceRowsUsed {
    fn record_used_row(&mut self, row: u64) {
        let (first, last) = self.rows.unwrap_or((row, row));
        self.rows = Some((first.min(row), last.max(row)));
    }

    /// Returns the device's own rows, and the range from the first to the last used row.
    fn own_and_used_rows(&self) -> [Range<u64>; 2] {
        let used = self.rows.map_or(0..0, |(first, last)| first..last + 1);
        [self.own.clone(), used]
    }

    /// Returns how many rows the device receives before its own rows, and how many after them. Assumes that it receives
    /// all rows between the first and the last row that it uses.
    fn halo_row_counts_before_and_after(&self) -> [u64; 2] {
        let Some((first, last)) = self.rows else {
            return [0, 0];
        };
        let outside = |row: &u64| !self.own.contains(row);
        let (front, behind): (Vec<u64>, Vec<u64>) = (first..=last)
            .filter(outside)
            .partition(|&row| row < self.own.start);
        [front.len() as u64, behind.len() as u64]
    }
}

#[test]
fn every_cut_of_a_convolution_sums_to_the_whole() {
    let mut cuts = 0;
    for (size, kernel, stride, padding) in IMAGES {
        let windows = ImageWindowGeometry {
            size,
            kernel,
            stride,
            padding,
        };
        let whole = convolve_on_one_device(windows);
        let parts = list_divisors(windows.count_windows_along_side(0)).into_iter();
        for i in parts.filter(|&i| size[0].is_multiple_of(u64::from(i))) {
            for (b, c, k) in [(1, 1, 1), (2, 1, 2), (1, 3, 1), (2, 2, 4)] {
                check_sharded_convolution(windows, &whole, [b, c, i, k]);
                cuts += usize::from(i > 1);
            }
        }
    }
    // The factor in brackets has one term per image: the number of row degrees above 1 that divide the number of rows
    // of both its output (4, 6, 4, 4, 4, 4, 6, 7 and 8) and its input (4, 6, 8, 8, 8, 8, 4, 6 and 8).
    assert_eq!(cuts, 4 * (2 + 3 + 2 + 2 + 2 + 2 + 1 + 3));
}

/// Computes the output, the input gradient and the filter gradient on a single device.
fn convolve_on_one_device(windows: ImageWindowGeometry) -> [Values; 3] {
    let all = 0..windows.count_windows_along_side(0);
    let [mut y, mut dx, mut dw] = [(); 3].map(|()| Values::new());
    for b in 0..SAMPLES {
        for c in 0..INPUTS {
            for k in 0..OUTPUTS {
                windows.visit_each_window_offset(all.clone(), |[h, w], [r, s], pixel| {
                    let Some([row, column]) = pixel else { return };
                    let output =
                        generate_input_value(b, c, row, column) * generate_filter_value(k, c, r, s);
                    *y.entry([b, k, h, w]).or_default() += output;
                    let gradient =
                        generate_output_gradient(b, k, h, w) * generate_filter_value(k, c, r, s);
                    *dx.entry([b, c, row, column]).or_default() += gradient;
                    let weight = generate_output_gradient(b, k, h, w)
                        * generate_input_value(b, c, row, column);
                    *dw.entry([k, c, r, s]).or_default() += weight;
                });
            }
        }
    }
    [y, dx, dw]
}

fn check_sharded_convolution(
    windows: ImageWindowGeometry,
    whole: &[Values; 3],
    [b, c, i, k]: [u32; 4],
) {
    let ImageWindowGeometry {
        size,
        kernel,
        stride,
        padding,
    } = windows;
    let case = format!("{windows:?} {:?}", [b, c, i, k]);
    let work = build_convolution(size, kernel, stride, padding);
    let count = b * c * i * k;
    let degrees = OperatorAxisShardCounts::of_convolution(b, c, i, k);
    let sharding = OperatorShardWorkAndSums::new(&work, SAMPLES, degrees, count).unwrap();
    let [mut y, mut dx, mut dw] = [
        PartialSumsByElementAndDevice::new(),
        PartialSumsByElementAndDevice::new(),
        PartialSumsByElementAndDevice::new(),
    ];
    // Gradients of other devices' rows, as (device, element, value), which must be sent to these devices.
    let mut sent = Vec::new();
    let mut device = 0;
    for ib in 0..b {
        for ic in 0..c {
            for ii in 0..i {
                for ik in 0..k {
                    let own = compute_part_range(size[0], ii, i);
                    let mut used = DeviceRowsUsed {
                        own: own.clone(),
                        rows: None,
                    };
                    let [mut outputs, mut gradients, mut weights] = [(); 3].map(|()| Values::new());
                    let mut products = 0;
                    let channels = compute_part_range(INPUTS, ic, c);
                    for b in compute_part_range(SAMPLES, ib, b) {
                        for c in channels.clone() {
                            for h in own.clone() {
                                for w in 0..size[1] {
                                    gradients.insert([b, c, h, w], 0);
                                }
                            }
                            for k in compute_part_range(OUTPUTS, ik, k) {
                                let rows =
                                    compute_part_range(windows.count_windows_along_side(0), ii, i);
                                windows.visit_each_window_offset(rows, |[h, w], [r, s], pixel| {
                                    products += 1;
                                    let y = outputs.entry([b, k, h, w]).or_default();
                                    let weight = weights.entry([k, c, r, s]).or_default();
                                    let Some([row, column]) = pixel else { return };
                                    used.record_used_row(row);
                                    *y += generate_input_value(b, c, row, column)
                                        * generate_filter_value(k, c, r, s);
                                    *weight += generate_input_value(b, c, row, column)
                                        * generate_output_gradient(b, k, h, w);
                                    let element = [b, c, row, column];
                                    let value = generate_output_gradient(b, k, h, w)
                                        * generate_filter_value(k, c, r, s);
                                    *gradients.entry(element).or_default() += value;
                                });
                            }
                        }
                    }
                    assert_eq!(sharding.flops, 2 * products, "{case}");
                    let row =
                        size[1] * SAMPLES / u64::from(degrees.b) * INPUTS / u64::from(degrees.k);
                    let halo = used
                        .halo_row_counts_before_and_after()
                        .map(|rows| rows * row);
                    assert_eq!(
                        sharding.stored_and_covered_image_rows(device),
                        Some(used.own_and_used_rows()),
                        "{case}: {device}"
                    );
                    // A device returns gradients only of received rows. If windows leave gaps between columns, some
                    // elements of these rows have no gradient.
                    let others = gradients
                        .keys()
                        .filter(|element| !own.contains(&element[2]));
                    assert!(
                        others.count() as u64 <= halo[0] + halo[1],
                        "{case}: {device}"
                    );
                    record_partial_sums_of_device(&mut y, device, outputs);
                    record_partial_sums_of_device(&mut dw, device, weights);
                    for (element, value) in gradients {
                        if own.contains(&element[2]) {
                            dx.entry(element).or_default().push((device, value));
                        } else {
                            // The device with the border row has the same samples and channels as `device`.
                            let each = size[0] / u64::from(degrees.m);
                            let to = (element[2] / each) as u32;
                            let owner = ((ib * c + ic) * i + to) * degrees.n + ik;
                            sent.push((owner, element, value));
                        }
                    }
                    device += 1;
                }
            }
        }
    }
    for (owner, element, value) in sent {
        let who = dx.get_mut(&element).expect("somebody has it");
        let found = who.iter_mut().find(|(device, _)| *device == owner);
        found.expect("the owner has it").1 += value;
    }
    // Elements that windows do not cover, or cover only with padding, are 0.
    let of = |values: &Values, e: &TensorElementIndex| values.get(e).copied().unwrap_or(0);
    check_partial_sums(&case, &sharding, &sharding.forward, &y, |e| {
        of(&whole[0], e)
    });
    check_partial_sums(&case, &sharding, &sharding.backward, &dx, |e| {
        of(&whole[1], e)
    });
    check_partial_sums(&case, &sharding, &sharding.update, &dw, |e| {
        of(&whole[2], e)
    });
}

#[test]
fn a_pooling_sums_nothing() {
    for (size, kernel, stride, padding) in IMAGES {
        let windows = ImageWindowGeometry {
            size,
            kernel,
            stride,
            padding,
        };
        for (b, c, i) in [(1, 1, 1), (2, 3, 1), (1, 2, 2), (2, 1, 2)] {
            let rows = windows.count_windows_along_side(0);
            if !rows.is_multiple_of(i.into()) || !size[0].is_multiple_of(i.into()) {
                continue;
            }
            let case = format!("{windows:?} {:?}", [b, c, i]);
            let work = OperatorKind::Pool {
                channels: INPUTS,
                size,
                kernel,
                stride,
                padding,
            };
            let sharding = OperatorShardWorkAndSums::new(
                &work,
                SAMPLES,
                OperatorAxisShardCounts::of_pooling(b, c, i),
                b * c * i,
            )
            .unwrap();
            let mut device = 0;
            for _ in 0..b * c {
                for ii in 0..i {
                    let mut places = 0;
                    let mut used = DeviceRowsUsed {
                        own: compute_part_range(size[0], ii, i),
                        rows: None,
                    };
                    windows.visit_each_window_offset(
                        compute_part_range(rows, ii, i),
                        |_, _, pixel| {
                            places += 1;
                            if let Some([row, _]) = pixel {
                                used.record_used_row(row);
                            }
                        },
                    );
                    // All samples and channels on a device need the same work.
                    let planes = SAMPLES * INPUTS / u64::from(b * c);
                    assert_eq!(sharding.flops, 2 * places * planes, "{case}");
                    assert_eq!(
                        sharding.stored_and_covered_image_rows(device),
                        Some(used.own_and_used_rows()),
                        "{case}: {device}"
                    );
                    device += 1;
                }
            }
            let sums = [sharding.forward, sharding.backward, sharding.update];
            assert_eq!(
                sums.map(|one| (one.elements, one.size)),
                [(0, 1); 3],
                "{case}"
            );
        }
    }
}
