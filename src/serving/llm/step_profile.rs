//! Computes step times from a table of measured operations.
//!
//! A table has the columns `op` and `us`, and four sizes in the columns `a` to `d`. The size `a` is the number of
//! tokens in the step. For operations whose name ends in `@seq`, `a` is the number of requests that produce a token.
//! `attention` is measured for a batch of one prompt chunk and `c` other requests. The chunk has `a` tokens, preceded
//! by `b` earlier tokens. Each other request computes one token and reads `d` tokens. Operations outside blocks are
//! `embedding`, `final_layernorm`, and all operations with `@seq`; `layernorm` occurs twice in each block, and every
//! other operation once. `moe` is the time of all experts of a block on one NPU, for `a` tokens and for `b` experts
//! that receive at least one token. Times are interpolated linearly along each size.

use super::super::error::ServeError;
use super::super::tables::{CsvTableRowReader, InterpolatedDurationCurve};
use super::step_cost::expected_active_experts;
use super::step_load::{LinearStepTimeCoefficients, StepTimeInputs};
use chakram_base::units::Span;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A table of measured operations that a scenario names, and how to read it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfileReadOptions {
    /// Path of the table.
    pub path: PathBuf,
    /// Pairs (column, value). Only rows that match all pairs are read.
    pub rows: Vec<(String, String)>,
    /// Number of blocks in the model.
    pub layers: u32,
    /// Number of experts per block, and number of experts per token; required if the table has
    /// `moe` operations.
    pub experts: Option<[u32; 2]>,
    /// Weight of the longest context in the attention time: 0 means that only the mean context counts, 1 that only the
    /// longest does. A kernel whose contexts differ in length waits for the longest.
    pub skew: f64,
    /// How much time per step a captured graph saves over separately measured operations.
    pub graph_saving: Span,
    /// Maximum number of tokens in a step that runs as a captured graph.
    pub graph_tokens: u32,
}

/// Computes step times from measured operations.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledStepTimeModel {
    choice: StepProfileReadOptions,
    /// Times of all operations, by the number of tokens in the step. For an operation inside blocks, the time is summed
    /// over all blocks.
    of_tokens: Vec<InterpolatedDurationCurve>,
    /// Times of `@seq` operations, by the number of requests that produce a token.
    of_rows: Vec<InterpolatedDurationCurve>,
    attention: AttentionTimeGrid,
    /// Time of all experts in a block, by the number of tokens and by the number of experts that
    /// receive tokens.
    experts: AttentionTimeGrid,
    ranks: u32,
    layers: u64,
    /// Times from the scenario that are added to each step.
    besides: LinearStepTimeCoefficients,
}

/// Attention times for all measured combinations of sizes.
///
/// If combinations around a point are missing, its time is the weighted mean over those that exist.
#[derive(Clone, Debug, Default, PartialEq)]
struct AttentionTimeGrid {
    times: BTreeMap<[u32; 4], f64>,
    /// Measured sizes for each of four kinds of batches. These are batches with and without prompt tokens, each with
    /// and without decoding requests.
    axes: [[Vec<u32>; 4]; 4],
}

impl AttentionTimeGrid {
    fn batch_kind_index([prompts, singles]: [bool; 2]) -> usize {
        2 * usize::from(prompts) + usize::from(singles)
    }

    fn add_attention_time(&mut self, point: [u32; 4], seconds: f64) {
        self.times.insert(point, seconds);
        let axes = &mut self.axes[Self::batch_kind_index([point[0] > 0, point[2] > 0])];
        for (axis, size) in axes.iter_mut().zip(point) {
            if let Err(at) = axis.binary_search(&size) {
                axis.insert(at, size);
            }
        }
    }

    /// Returns the seconds at `place`, interpolated linearly along each axis between batches of the same kind.
    fn interpolate_seconds(&self, place: [f64; 4]) -> f64 {
        let kind = Self::batch_kind_index([place[0] > 0.0, place[2] > 0.0]);
        self.interpolate_between_grid_points(&self.axes[kind], place)
    }

    fn interpolate_between_grid_points(&self, axes: &[Vec<u32>; 4], place: [f64; 4]) -> f64 {
        let mut corners = [([0_u32; 4], 1.0_f64); 16];
        let mut count = 1;
        for (k, axis) in axes.iter().enumerate() {
            let Some((low, high, part)) = measured_sizes_around(axis, place[k]) else {
                return 0.0;
            };
            for i in 0..count {
                let (point, weight) = corners[i];
                corners[i].0[k] = low;
                corners[i].1 = weight * (1.0 - part);
                if part != 0.0 {
                    let mut other = point;
                    other[k] = high;
                    corners[count + i] = (other, weight * part);
                } else {
                    corners[count + i] = (corners[i].0, 0.0);
                }
            }
            count *= 2;
        }
        let known = corners
            .iter()
            .filter_map(|(point, weight)| Some((self.times.get(point)?, *weight)));
        let (sum, weights) = known.fold((0.0, 0.0), |(sum, all), (time, weight)| {
            (sum + time * weight, all + weight)
        });
        if weights != 0.0 {
            (sum / weights).max(0.0)
        } else {
            0.0
        }
    }
}

/// Returns the two measured sizes around `x`, and the relative position of `x` between them. Beyond the last size, `x`
/// is extrapolated from the last two sizes.
fn measured_sizes_around(axis: &[u32], x: f64) -> Option<(u32, u32, f64)> {
    let (first, last) = (*axis.first()?, *axis.last()?);
    if axis.len() == 1 || x <= f64::from(first) {
        return Some((first, first, 0.0));
    }
    let above = axis
        .partition_point(|size| f64::from(*size) < x)
        .min(axis.len() - 1);
    let (low, high) = (
        axis[above - 1],
        if above == axis.len() - 1 {
            last
        } else {
            axis[above]
        },
    );
    let part = (x - f64::from(low)) / f64::from(high - low);
    Some((low, high, part))
}

impl ProfiledStepTimeModel {
    /// Loads the table that `choice` names, for engines of `ranks` ranks in lockstep.
    ///
    /// # Errors
    ///
    /// Fails if the table cannot be read, or if it has no token operations, no `@seq` operations,
    /// or no attention.
    pub fn load_chosen_table(
        choice: &StepProfileReadOptions,
        besides: LinearStepTimeCoefficients,
        ranks: u32,
    ) -> Result<Self, ServeError> {
        let mut reader = CsvTableRowReader::open_table(&choice.path)?;
        for (column, value) in &choice.rows {
            reader.skip_rows_unless_column_equals(column, value)?;
        }
        let columns = ["op", "a", "b", "c", "d", "us"];
        let mut at = [0; 6];
        for (place, name) in at.iter_mut().zip(columns) {
            *place = reader.column_index(name)?;
        }
        let mut of_tokens: BTreeMap<String, Vec<(f64, Span)>> = BTreeMap::new();
        let mut of_rows: BTreeMap<String, Vec<(f64, Span)>> = BTreeMap::new();
        let mut attention = AttentionTimeGrid::default();
        let mut experts = AttentionTimeGrid::default();
        while reader.advance_to_next_matching_row()? {
            let op = reader.cell_text(at[0]).to_owned();
            let seconds = reader.number_in_column(at[5])? * 1e-6;
            if op == "attention" {
                let mut point = [0; 4];
                for (size, column) in point.iter_mut().zip(&at[1..5]) {
                    *size = reader.number_in_column(*column)? as u32;
                }
                attention.add_attention_time(point, seconds);
                continue;
            }
            if op == "moe" {
                if choice.experts.is_none() {
                    return Err(reader.invalid_row_error(
                        "an operation moe",
                        "operations of models without experts, or `experts` in [step]",
                    ));
                }
                let [tokens, touched] = [
                    reader.number_in_column(at[1])?,
                    reader.number_in_column(at[2])?,
                ];
                experts.add_attention_time([tokens as u32, touched as u32, 0, 0], seconds);
                continue;
            }
            let size = reader.number_in_column(at[1])?;
            if let Some(name) = op.strip_suffix("@seq") {
                of_rows
                    .entry(name.to_owned())
                    .or_default()
                    .push((size, Span::from_seconds_saturating(seconds)));
                continue;
            }
            let times = match op.as_str() {
                "embedding" | "final_layernorm" => 1.0,
                "layernorm" => 2.0 * f64::from(choice.layers),
                _ => f64::from(choice.layers),
            };
            let span = Span::from_seconds_saturating(seconds * times);
            of_tokens.entry(op).or_default().push((size, span));
        }
        let curves = |all: BTreeMap<String, Vec<(f64, Span)>>| -> Vec<InterpolatedDurationCurve> {
            all.into_values()
                .filter_map(InterpolatedDurationCurve::from_averaged_measurements)
                .collect()
        };
        let (of_tokens, of_rows) = (curves(of_tokens), curves(of_rows));
        if of_tokens.is_empty() || of_rows.is_empty() || attention.times.is_empty() {
            let rows = choice
                .rows
                .iter()
                .map(|(column, value)| format!("{column} = {value}"));
            let rows: Vec<String> = rows.collect();
            return Err(ServeError::Unfit(format!(
                "{}: found no operations of tokens, of requests (`@seq`) or of attention in rows with {}, expected all of them",
                choice.path.display(),
                if rows.is_empty() {
                    "any value".to_owned()
                } else {
                    rows.join(", ")
                }
            )));
        }
        if choice.experts.is_some() && experts.times.is_empty() {
            return Err(ServeError::Unfit(format!(
                "{}: found no operation moe, expected one, as [step] has `experts`",
                choice.path.display()
            )));
        }
        Ok(Self {
            choice: choice.clone(),
            of_tokens,
            of_rows,
            attention,
            experts,
            ranks,
            layers: choice.layers.into(),
            besides,
        })
    }

    /// Returns the time of a step.
    pub fn step_time(&self, load: &StepTimeInputs) -> Span {
        let of = |curves: &[InterpolatedDurationCurve], x: u64| -> Span {
            curves.iter().map(|curve| curve.duration_at(x as f64)).sum()
        };
        let rows = match load.sampled {
            0 => Span::ZERO,
            sampled => of(&self.of_rows, sampled),
        };
        let (chunk, past) = merge_prompt_chunks(&load.chunks);
        let decodes = load.decodes as f64;
        let context = load.decode_context as f64 / decodes.max(1.0);
        let attention_at = |context: f64| {
            let context = if decodes > 0.0 { context } else { 0.0 };
            self.attention
                .interpolate_seconds([chunk, past, decodes, context])
        };
        let mut attention = attention_at(context);
        if self.choice.skew > 0.0 && load.decodes > 1 {
            let longest = attention_at(load.longest_context as f64);
            attention += self.choice.skew * (longest - attention).max(0.0);
        }
        let experts = self.choice.experts.map_or(0.0, |[experts, chosen]| {
            // Ranks in lockstep divide the experts equally, and each rank computes its experts for
            // the tokens of all ranks.
            let touched = expected_active_experts(experts.into(), chosen.into(), load.all_tokens);
            let share = f64::from(self.ranks);
            let place = [load.all_tokens as f64 / share, touched as f64 / share];
            self.experts
                .interpolate_seconds([place[0], place[1], 0.0, 0.0])
        });
        let blocks = Span::from_seconds_saturating((attention + experts) * self.layers as f64);
        let all =
            of(&self.of_tokens, load.wave_tokens) + rows + blocks + self.besides.step_time(load);
        match load.wave_tokens <= self.choice.graph_tokens.into() {
            true => Span(all.0.saturating_sub(self.choice.graph_saving.0)),
            false => all,
        }
    }

    /// Describes the profile.
    pub fn describe_basis(&self) -> Vec<String> {
        let rows = self
            .choice
            .rows
            .iter()
            .map(|(column, value)| format!("{column} = {value}"));
        let rows: Vec<String> = rows.collect();
        let mut all = vec![format!(
            "measured operations of {} ({}), {} blocks",
            self.choice.path.display(),
            rows.join(", "),
            self.layers
        )];
        if let Some([experts, chosen]) = self.choice.experts {
            all.push(format!(
                "{experts} experts a block, {chosen} of them for each token, equally likely"
            ));
        }
        if self.choice.skew > 0.0 {
            all.push(format!(
                "attention of different contexts: {} of the way from their mean to the longest",
                chakram_base::units::format_percent(self.choice.skew)
            ));
        }
        if self.choice.graph_saving > Span::ZERO {
            all.push(format!(
                "captured graphs save {} in steps of at most {} tokens",
                self.choice.graph_saving, self.choice.graph_tokens
            ));
        }
        if self.besides != LinearStepTimeCoefficients::default() {
            all.push(format!(
                "besides, as the scenario states: {} a step, {} a token, {} a request, {} a token that is read",
                self.besides.base, self.besides.token, self.besides.request, self.besides.context
            ));
        }
        all
    }
}

/// Replaces several prompt chunks with one that has the same numbers of tokens and of query-key pairs. The chunk has
/// `a` tokens after `b` earlier tokens, so that `a (b + a / 2)` equals the sum of this product over the chunks; `b` is
/// at least 0.
fn merge_prompt_chunks(chunks: &[(u32, u32)]) -> (f64, f64) {
    let tokens: f64 = chunks.iter().map(|(tokens, _)| f64::from(*tokens)).sum();
    let pairs = chunks
        .iter()
        .map(|&(tokens, past)| f64::from(tokens) * (f64::from(past) + f64::from(tokens) / 2.0));
    let past = pairs.sum::<f64>() / tokens.max(1.0) - tokens / 2.0;
    (tokens, past.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The measured times are 3 us + 2 ns per query-key pair, which is linear along each axis, so
    /// interpolation and extrapolation are exact.
    #[test]
    fn grids_are_linear_along_each_axis() {
        let time = |a: f64, b: f64, c: f64, d: f64| 3e-6 + 1e-9 * a * (b + 1.0) + 2e-9 * c * d;
        let mut grid = AttentionTimeGrid::default();
        for a in [0, 16, 64] {
            for b in [0, 16, 256] {
                for c in [0, 1, 8] {
                    for d in [16, 128] {
                        let point = [a, if a > 0 { b } else { 0 }, c, if c > 0 { d } else { 0 }];
                        let at = point.map(f64::from);
                        grid.add_attention_time(point, time(at[0], at[1], at[2], at[3]));
                    }
                }
            }
        }
        for place in [
            [30.0, 100.0, 3.0, 77.0],
            [64.0, 256.0, 8.0, 128.0],
            [0.0, 0.0, 5.0, 20.0],
            [20.0, 7.0, 0.0, 0.0],
            [100.0, 16.0, 16.0, 300.0],
        ] {
            let found = grid.interpolate_seconds(place);
            let expected = time(place[0], place[1], place[2], place[3]);
            assert!(
                (found / expected - 1.0).abs() < 1e-9,
                "{place:?}: {found} and {expected}"
            );
        }
        assert_eq!(merge_prompt_chunks(&[(100, 50)]), (100.0, 50.0));
        // Two chunks of 100 tokens, each after 250 tokens, become one chunk of 200 tokens: 2 x 100
        // x 300 = 200 x (b + 100).
        assert_eq!(
            merge_prompt_chunks(&[(100, 250), (100, 250)]),
            (200.0, 200.0)
        );
    }
}
