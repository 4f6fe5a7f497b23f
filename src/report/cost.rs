//! Cost of a replayed job. Also computes the time, NPU hours, dollars and energy to process a given number of tokens.
//!
//! ```text
//! NPU hours      = NPUs of the job x makespan / 3600 s
//! dollars        = NPU hours x price of an NPU for an hour
//! per 1e6 tokens = dollars / tokens of the job x 1e6
//! a run of T     = T / (tokens per second) seconds, on the same NPUs
//! ```
//!
//! Time, NPU hours, dollars and energy are proportional to the makespan, so its 90 % interval applies to them too. A
//! value that depends on an unknown price or an unknown kernel energy is left out.

use super::Report;
use super::csv::{CsvCell, CsvColumn};
use super::summary::format_thousands;
use chakram_base::units::{format_joules, format_token_count};
use serde::{Deserialize, Serialize};

const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;

/// Cost of the job's NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct JobNpuCost {
    /// Price of one NPU per hour, in dollars.
    pub dollars_per_npu_hour: f64,
    /// Makespan in hours times the number of NPUs.
    pub npu_hours: f64,
    /// Price of all NPUs during the makespan, in dollars.
    pub dollars: f64,
    /// Ends of the 90 % interval of `dollars`, if the makespan has an interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars_90: Option<[f64; 2]>,
    /// Dollars per million tokens, if the job's token count is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars_per_million_tokens: Option<f64>,
    /// Ends of the 90 % interval of `dollars_per_million_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars_per_million_tokens_90: Option<[f64; 2]>,
}

/// Time and cost to process a given number of tokens, if every step takes as long as the replayed step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TimeAndCostForTokens {
    /// Number of tokens that the run processes.
    pub tokens: u64,
    /// Duration of the run, in days.
    pub days: f64,
    /// Ends of the 90 % interval of `days`, if the makespan has an interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days_90: Option<[f64; 2]>,
    /// Duration of the run in hours, times the number of NPUs.
    pub npu_hours: f64,
    /// Price of the run in dollars, if the price of an NPU is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars: Option<f64>,
    /// Ends of the 90 % interval of `dollars`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars_90: Option<[f64; 2]>,
    /// Energy that all kernels of the run consume, in joules. Unknown if the energy of any kernel is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_energy_j: Option<f64>,
}

/// Inputs for computing costs.
#[derive(Clone, Copy, Debug)]
struct ReplayFiguresForCosts {
    npus: f64,
    /// Makespan, in seconds.
    makespan: f64,
    tokens_per_s: Option<f64>,
    /// Lower and upper end of the makespan's 90 % interval, each divided by the makespan.
    ends: Option<[f64; 2]>,
    /// Sum of the mean power of all kernels, in watts. Unknown if the energy of any kernel is
    /// unknown.
    watts: Option<f64>,
}

impl ReplayFiguresForCosts {
    fn scale_relative_interval_by_value(&self, value: f64) -> Option<[f64; 2]> {
        self.ends.map(|ends| ends.map(|end| end * value))
    }

    /// Returns the cost at `price` dollars per NPU hour.
    fn cost_at_price(&self, price: f64) -> JobNpuCost {
        let npu_hours = self.npus * self.makespan / HOUR;
        let per_million = self
            .tokens_per_s
            .map(|rate| price * self.npus / HOUR / rate * 1e6);
        JobNpuCost {
            dollars_per_npu_hour: price,
            npu_hours,
            dollars: price * npu_hours,
            dollars_90: self.scale_relative_interval_by_value(price * npu_hours),
            dollars_per_million_tokens: per_million,
            dollars_per_million_tokens_90: per_million
                .and_then(|dollars| self.scale_relative_interval_by_value(dollars)),
        }
    }

    /// Returns the time and cost of processing `tokens` tokens, or `None` if the replayed job has no token count.
    fn time_and_cost_for_tokens(
        &self,
        tokens: u64,
        price: Option<f64>,
    ) -> Option<TimeAndCostForTokens> {
        let seconds = tokens as f64 / self.tokens_per_s?;
        let npu_hours = self.npus * seconds / HOUR;
        let dollars = price.map(|price| price * npu_hours);
        Some(TimeAndCostForTokens {
            tokens,
            days: seconds / DAY,
            days_90: self.scale_relative_interval_by_value(seconds / DAY),
            npu_hours,
            dollars,
            dollars_90: dollars.and_then(|dollars| self.scale_relative_interval_by_value(dollars)),
            kernel_energy_j: self.watts.map(|watts| watts * seconds),
        })
    }
}

impl Report {
    /// Adds the cost of the replay at `price` dollars per NPU hour, and the time and cost of processing `tokens`
    /// tokens. The latter are omitted if the job's token count is unknown.
    pub fn add_replay_and_token_costs(&mut self, price: Option<f64>, tokens: Option<u64>) {
        let makespan = self.outcome.makespan.as_seconds();
        let ends = self.interval.filter(|_| makespan > 0.0);
        let launch = makespan / self.launches.len().max(1) as f64;
        let energy = self.kernel_energy.filter(|energy| energy.without == 0);
        // An extrapolated step has unknown energy, because only the simulated micro-batches were counted.
        let energy = energy.filter(|_| self.extrapolation.is_none() && launch > 0.0);
        let basis = ReplayFiguresForCosts {
            npus: f64::from(self.ranks),
            makespan,
            tokens_per_s: self.tokens_per_s(),
            ends: ends.map(|ends| [ends.low, ends.high].map(|end| end.as_seconds() / makespan)),
            watts: energy.map(|energy| energy.energy * 1e-12 / launch),
        };
        self.cost = price.map(|price| basis.cost_at_price(price));
        self.run = tokens.and_then(|tokens| basis.time_and_cost_for_tokens(tokens, price));
    }

    /// Returns the tokens per second; `None` if unknown.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let rate = self.throughput?.tokens_per_s;
        rate.filter(|rate| *rate > 0.0)
    }
}

/// Formats an amount, such as `$1,234,567`, `$12.35` or `$0.0123`.
pub fn format_dollars(amount: f64) -> String {
    match amount {
        1000.0.. => format!("${}", format_thousands(amount.round() as u64)),
        1.0.. => format!("${amount:.2}"),
        0.0 => "$0".to_owned(),
        _ => {
            // Amounts below a dollar get three significant digits.
            let digits = (2.0 - amount.log10().floor()).clamp(2.0, 12.0) as usize;
            format!("${amount:.digits$}")
        }
    }
}

fn format_number(amount: f64) -> String {
    match amount {
        100.0.. => format_thousands(amount.round() as u64),
        _ => format!("{amount:.1}"),
    }
}

fn format_90_percent_interval(ends: Option<[f64; 2]>, shown: fn(f64) -> String) -> String {
    ends.map_or(String::new(), |[low, high]| {
        format!(" (90 %: {} to {})", shown(low), shown(high))
    })
}

/// Returns the lines about cost in the report's text.
pub(super) fn describe_cost_lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(cost) = &report.cost {
        let (amount, ends, what) = match cost.dollars_per_million_tokens {
            Some(amount) => (
                amount,
                cost.dollars_per_million_tokens_90,
                "per million tokens",
            ),
            None => (cost.dollars, cost.dollars_90, "for the makespan"),
        };
        lines.push(format!(
            "{} {what}{}, at {} for an NPU hour",
            format_dollars(amount),
            format_90_percent_interval(ends, format_dollars),
            format_dollars(cost.dollars_per_npu_hour)
        ));
    }
    if let Some(run) = &report.run {
        let mut parts = vec![
            format!(
                "{} days{}",
                format_number(run.days),
                format_90_percent_interval(run.days_90, format_number)
            ),
            format!("{} NPU hours", format_number(run.npu_hours)),
        ];
        parts.extend(run.dollars.map(|amount| {
            format!(
                "{}{}",
                format_dollars(amount),
                format_90_percent_interval(run.dollars_90, format_dollars)
            )
        }));
        parts.extend(
            run.kernel_energy_j
                .map(|energy| format!("{} of kernels", format_joules(energy))),
        );
        lines.push(format!(
            "{} tokens: {}",
            format_token_count(run.tokens),
            parts.join(", ")
        ));
    }
    lines
}

/// Formats an amount with nine decimals, which is enough for prices of single tokens.
fn csv_cell_with_nine_decimals<'r>(amount: Option<f64>) -> CsvCell<'r> {
    amount.map_or(CsvCell::Empty, |amount| CsvCell::Decimal(amount, 9))
}

/// Columns of the cost table, also used in comparisons.
pub(super) const CSV: &[CsvColumn<Report, Report>] = &[
    ("tokens_per_s", |_, report| {
        csv_cell_with_nine_decimals(report.tokens_per_s())
    }),
    ("dollars_per_npu_hour", |_, report| {
        csv_cell_with_nine_decimals(report.cost.map(|cost| cost.dollars_per_npu_hour))
    }),
    ("dollars", |_, report| {
        csv_cell_with_nine_decimals(report.cost.map(|cost| cost.dollars))
    }),
    ("dollars_per_million_tokens", |_, report| {
        csv_cell_with_nine_decimals(report.cost.and_then(|cost| cost.dollars_per_million_tokens))
    }),
    ("run_tokens", |_, report| {
        report.run.map(|run| run.tokens).into()
    }),
    ("run_days", |_, report| {
        csv_cell_with_nine_decimals(report.run.map(|run| run.days))
    }),
    ("run_npu_hours", |_, report| {
        csv_cell_with_nine_decimals(report.run.map(|run| run.npu_hours))
    }),
    ("run_dollars", |_, report| {
        csv_cell_with_nine_decimals(report.run.and_then(|run| run.dollars))
    }),
    ("run_kernel_energy_j", |_, report| {
        csv_cell_with_nine_decimals(report.run.and_then(|run| run.kernel_energy_j))
    }),
];

/// A figure on a page: its label, its path in the report, its value, the displayed value, and a note
/// next to the value.
pub(super) type LabelledCostFigure = (String, &'static str, f64, String, String);

/// Returns the figures about cost for pages.
pub(super) fn collect_cost_figures(report: &Report) -> Vec<LabelledCostFigure> {
    let mut all = Vec::new();
    let mut add =
        |name: String, path, amount: Option<f64>, shown: fn(f64) -> String, beside: String| {
            all.extend(amount.map(|amount| (name, path, amount, shown(amount), beside)));
        };
    if let Some(cost) = &report.cost {
        let rate = format!(
            "at {} for an NPU hour",
            format_dollars(cost.dollars_per_npu_hour)
        );
        let per_million = cost.dollars_per_million_tokens;
        let name = "Per million tokens".to_owned();
        add(
            name,
            "/cost/dollars_per_million_tokens",
            per_million,
            format_dollars,
            rate.clone(),
        );
        let whole = Some(cost.dollars).filter(|_| per_million.is_none());
        add(
            "Money".to_owned(),
            "/cost/dollars",
            whole,
            format_dollars,
            rate,
        );
    }
    if let Some(run) = &report.run {
        let tokens = format_token_count(run.tokens);
        let hours = format!("{} NPU hours", format_number(run.npu_hours));
        add(
            format!("Days for {tokens} tokens"),
            "/run/days",
            Some(run.days),
            format_number,
            hours,
        );
        let ends = format_90_percent_interval(run.dollars_90, format_dollars);
        add(
            format!("Money for {tokens} tokens"),
            "/run/dollars",
            run.dollars,
            format_dollars,
            ends,
        );
    }
    all
}

/// A row of the comparison table: its name, and a function that formats the figure of a report.
pub(super) type CostRowDefinition = (&'static str, fn(&Report) -> Option<String>);

/// Rows about cost in the comparison table, in order of display.
pub(super) const ROWS: [CostRowDefinition; 6] = [
    ("money per million tokens", |report| {
        report.cost?.dollars_per_million_tokens.map(format_dollars)
    }),
    ("money for the makespan", |report| {
        let cost = report.cost?;
        let is_all = cost.dollars_per_million_tokens.is_none();
        is_all.then(|| format_dollars(cost.dollars))
    }),
    ("run", |report| {
        Some(format!("{} tokens", format_token_count(report.run?.tokens)))
    }),
    ("  days", |report| Some(format_number(report.run?.days))),
    ("  NPU hours", |report| {
        Some(format_number(report.run?.npu_hours))
    }),
    ("  money", |report| report.run?.dollars.map(format_dollars)),
];

#[cfg(test)]
mod tests;
