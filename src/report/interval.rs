//! The interval of a prediction, and the shares of time by what their prices rest on.
//!
//! Prices of one class err together, since they share constants, and those of different classes independently. With the part
//! `p` of the time that rests on a class, its relative error `u`, and what is common to a step, 3 %:
//!
//! ```text
//! s^2 = sum of (p u)^2 + 0.03^2        90 % interval: prediction x exp(-1.645 s) to prediction x exp(1.645 s)
//! ```
//!
//! Where the machine's [correction](crate::machine::PriceCorrection) holds, `s` is the error that it leaves.
//!
//! Parts are those of the critical path, or of the mean NPU where no path was followed; waiting and idle time follow from
//! the others.

use super::breakdown::TimeCategory;
use super::summary::Report;
use super::text::share;
use crate::engine::{CommTiming, CompiledReplay};
use crate::units::Span;
use serde::{Deserialize, Serialize};

/// Relative errors, one standard deviation: of kernels by roofline at one efficiency, measured collectives, other transfers,
/// loads and stores, and what is recorded.
const ROOFLINE: f64 = 0.23;
const MEASURED_COLLECTIVE: f64 = 0.10;
const NETWORK: f64 = 0.30;
const MEMORY: f64 = 0.20;
const RECORDED: f64 = 0.04;
/// Standard errors that all prices of a step have in common.
const COMMON: f64 = 0.03;
/// Standard deviations on either side that leave out a tenth of a normal distribution.
const SIDE: f64 = 1.645;

/// Shares of the critical path by what the prices rest on, and the interval that holds the measured time in nine of ten cases.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PredictionInterval {
    /// Lower end of the 90 % interval.
    #[serde(rename = "low_ps")]
    pub low: Span,
    /// Its upper end.
    #[serde(rename = "high_ps")]
    pub high: Span,
    /// Kernels by curves.
    #[serde(rename = "kernels_by_curves_ps")]
    pub curves: Span,
    /// Kernels by roofline.
    #[serde(rename = "kernels_by_roofline_ps")]
    pub roofline: Span,
    /// Kernels and communication as recorded.
    #[serde(rename = "recorded_ps")]
    pub recorded: Span,
    /// Collectives as measured.
    #[serde(rename = "measured_collectives_ps")]
    pub measured: Span,
    /// Other communication, by the network.
    #[serde(rename = "network_ps")]
    pub network: Span,
    /// Host.
    #[serde(rename = "host_ps")]
    pub host: Span,
    /// Loads and stores.
    #[serde(rename = "memory_ps")]
    pub memory: Span,
    /// Waiting and idle time, which follow from the others.
    #[serde(rename = "follows_ps")]
    pub follows: Span,
}

impl PredictionInterval {
    /// Returns that of `report`, a replay of `prepared`; `None` unless kernels are priced by curves.
    pub(super) fn of(report: &Report, prepared: &CompiledReplay<'_>) -> Option<Self> {
        let basis = prepared.basis();
        if basis.by_curves == 0 {
            return None;
        }
        let parts = match &report.critical_path {
            Some(path) => path.parts,
            None => report.mean_parts,
        };
        let part = |category: TimeCategory| parts[category as usize];
        let compute = part(TimeCategory::Compute);
        let kernels = basis.curve_time + basis.roofline_time + basis.recorded_time;
        let of_kernels = |time: u128| fraction(compute, time as f64, kernels as f64);
        let (curves, roofline) = (
            of_kernels(basis.curve_time),
            of_kernels(basis.roofline_time),
        );
        let transferring = |measured: bool| -> f64 {
            let rows = report
                .collectives
                .iter()
                .filter(|row| row.measured == measured);
            rows.map(|row| row.charged.transferring.0 as f64).sum()
        };
        let measured = transferring(true);
        let others = transferring(false) + report.messages_charged.transferring.0 as f64;
        let communication = part(TimeCategory::Communication);
        let measured = fraction(communication, measured, measured + others);
        let as_recorded = compute - curves - roofline.min(compute - curves);
        let (network, recorded) = match prepared.comm() {
            CommTiming::Model => (communication - measured, as_recorded),
            _ => (Span::ZERO, as_recorded + communication - measured),
        };
        let (host, memory) = (part(TimeCategory::Host), part(TimeCategory::Memory));
        let curve_error = basis.curve_deviation as f64 / basis.curve_time.max(1) as f64;
        let host_error = prepared.machine().host().map_or(0.0, |host| host.error);
        let classes = [
            (curves, curve_error),
            (roofline, ROOFLINE),
            (recorded, RECORDED),
            (measured, MEASURED_COLLECTIVE),
            (network, NETWORK),
            (host, host_error),
            (memory, MEMORY),
        ];
        let known: f64 = classes.iter().map(|(part, _)| part.0 as f64).sum();
        let squares = classes.iter().map(|(part, error)| {
            let off = part.0 as f64 / known.max(1.0) * error;
            off * off
        });
        let deviation = match prepared.corrected_to() {
            Some(left) => left,
            None => (squares.sum::<f64>() + COMMON * COMMON).sqrt(),
        };
        let makespan = report.outcome.makespan;
        let end = |side: f64| Span::from_seconds(makespan.seconds() * libm::exp(side * deviation));
        let sum = classes.iter().map(|(part, _)| *part).sum::<Span>();
        Some(Self {
            low: end(-SIDE),
            high: end(SIDE),
            curves,
            roofline,
            recorded,
            measured,
            network,
            host,
            memory,
            follows: Span(makespan.0.saturating_sub(sum.0)),
        })
    }

    /// Says so: the interval, and the parts that are not zero at the precision of a share.
    pub(super) fn text(&self, makespan: Span) -> String {
        let parts = [
            (self.curves, "kernels by curves"),
            (self.roofline, "kernels by roofline"),
            (self.recorded, "as recorded"),
            (self.measured, "measured collectives"),
            (self.network, "transfers by the network"),
            (self.host, "host"),
            (self.memory, "memory"),
            (self.follows, "waiting and idle"),
        ];
        let shown = |(part, _): &&(Span, &str)| part.0 as f64 >= 0.0005 * makespan.0 as f64;
        let parts: Vec<_> = parts
            .iter()
            .filter(shown)
            .map(|(part, name)| format!("{name} {}", share(*part, makespan)))
            .collect();
        format!(
            "{makespan} (90 %: {} to {}); the critical path: {}",
            self.low,
            self.high,
            parts.join(", ")
        )
    }
}

/// `part / all` of `span`, rounded down.
fn fraction(span: Span, part: f64, all: f64) -> Span {
    if all > 0.0 {
        Span((span.0 as f64 * (part / all)) as u64).min(span)
    } else {
        Span::ZERO
    }
}
