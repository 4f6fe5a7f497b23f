//! Times of the kernels that compute a matrix product for all experts of a block, as measured in engines.

use super::super::rules::ExpertKernelLibrary;
use crate::error::ServeError;
use chakram_base::config::ConfigDocument;
use chakram_base::dtype::Dtype;
use chakram_base::units::Span;

/// Number of columns of a tile.
const TILE_COLUMNS: u64 = 128;
/// Number of multiprocessors of an H100.
const MULTIPROCESSORS: u64 = 132;

/// Constants of an engine's kernels for experts, on one class of NPUs and for one format of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ExpertKernelTimingConstants {
    /// Time of the shortest product in seconds.
    start: f64,
    /// Fraction of the peak rate that full tiles reach.
    efficiency: f64,
    /// Fraction of the memory bandwidth that reads and writes reach.
    memory: f64,
    /// Smallest and largest number of rows that a tile may have; both are powers of two. A kernel uses the smallest
    /// tile that contains all rows of an expert or, if none does, the largest tile.
    rows: [u64; 2],
    /// True if the kernels compute in BF16 on all NPUs.
    converts: bool,
}

/// Rates of an NPU, and bytes per element.
#[derive(Clone, Copy, Debug)]
pub(super) struct NpuRatesForExpertKernels {
    /// Peak FLOP/s in the format in which products are computed.
    pub(super) peak: f64,
    /// Memory bandwidth in bytes per second.
    pub(super) bandwidth: f64,
    /// Bytes per weight.
    pub(super) weight: f64,
    /// Bytes per element of the input.
    pub(super) input: f64,
}

impl ExpertKernelTimingConstants {
    /// Returns the curve of `kernels` for weights in the format `weights` on NPUs of the class `npu`; `None` if the
    /// kernels were not measured.
    pub(super) fn load(
        kernels: ExpertKernelLibrary,
        npu: &str,
        weights: Dtype,
    ) -> Result<Option<Self>, ServeError> {
        let text = include_str!("../engine_experts.toml");
        let document = ConfigDocument::parse(text, "engine_experts.toml")?;
        let root = document.root_table_with_allowed_keys(&["curve"])?;
        let keys = [
            "kernels",
            "weights",
            "npus",
            "start",
            "efficiency",
            "memory",
            "rows",
        ];
        for curve in root.require_field("curve", "curves")?.read_tables(&keys)? {
            let lists = |key: &str, name: &str| {
                let items = curve
                    .require_field(key, "names")?
                    .read_array_items("names")?;
                let mut found = false;
                for item in items {
                    found |= item.read_text("a name")? == name;
                }
                Ok::<_, ServeError>(found)
            };
            let of = curve.read_choice("kernels", ExpertKernelLibrary::NAMES)?;
            if of != kernels
                || !lists("weights", super::name_of_format(weights))?
                || !lists("npus", npu)?
            {
                continue;
            }
            let start: Span = curve
                .require_field("start", "a time")?
                .read_quantity("4 us")?;
            let [least, most] = curve
                .require_field("rows", "rows of tiles")?
                .read_array_of_exact_length(
                    "numbers",
                    "the least and the greatest rows of a tile",
                )?;
            let fraction = |key| curve.require_field(key, "a fraction")?.read_positive(1.0);
            return Ok(Some(Self {
                start: start.as_seconds(),
                efficiency: fraction("efficiency")?,
                memory: fraction("memory")?,
                rows: [
                    least.read_count(1 << 10)?.into(),
                    most.read_count(1 << 10)?.into(),
                ],
                converts: kernels == ExpertKernelLibrary::Marlin,
            }));
        }
        Ok(None)
    }

    /// Returns how many seconds a product of `experts` experts takes. Each expert has `rows` rows, `columns` columns of
    /// results, and sums over `inputs` columns.
    pub(super) fn product_seconds(
        &self,
        [experts, rows, columns, inputs]: [u64; 4],
        rates: NpuRatesForExpertKernels,
    ) -> f64 {
        let [least, most] = self.rows;
        let tile = rows.next_power_of_two().clamp(least, most);
        let tiles = experts * rows.div_ceil(tile) * columns.div_ceil(TILE_COLUMNS);
        let flops = 2 * tiles.div_ceil(MULTIPROCESSORS) * tile * TILE_COLUMNS * inputs;
        let of_each = rates.peak * self.efficiency / MULTIPROCESSORS as f64;
        let compute = flops as f64 / of_each;
        let read = rates.weight * (columns * inputs) as f64 + rates.input * (rows * inputs) as f64;
        let bytes = experts as f64 * (read + 2.0 * (rows * columns) as f64);
        let memory = bytes / (self.memory * rates.bandwidth);
        let [compute, memory] = [compute, memory].map(|time| time * time);
        self.start + (compute * compute + memory * memory).sqrt().sqrt()
    }

    /// Returns true if the kernels convert weights and compute in BF16, even on NPUs that can compute in the weights'
    /// format.
    pub(super) fn converts_weights(&self) -> bool {
        self.converts
    }

    /// Returns the fraction of the memory bandwidth, and the fraction of the peak rate.
    pub(super) fn memory_and_peak_fractions(&self) -> [f64; 2] {
        [self.memory, self.efficiency]
    }
}
