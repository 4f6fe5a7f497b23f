//! Renders differences between traces as text, JSON and CSV.

pub mod csv;
pub mod json;
pub mod text;
pub(super) mod words;

use super::tally::DiffTally;
use chakram_report::text::TextStyleWidthAndDetail;

/// The names of two jobs, and the options for rendering their differences.
#[derive(Clone, Copy, Debug)]
pub struct JobNamesAndDiffStyle<'t> {
    /// Names of the two jobs.
    pub names: [&'t str; 2],
    /// Maximum number of lines per list; `None` shows all lines.
    pub show: Option<usize>,
    /// Style of headings and warnings.
    pub style: TextStyleWidthAndDetail,
}

impl JobNamesAndDiffStyle<'_> {
    /// Returns how many of a list's `count` lines to show.
    pub(super) fn count_lines_to_show(&self, count: usize) -> usize {
        self.show.map_or(count, |show| show.min(count))
    }
}

/// Result of checking differences against thresholds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExceededThresholds {
    /// One sentence per violated threshold.
    pub exceeded: Vec<String>,
}

/// Thresholds that differences must not exceed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiffPercentLimitAndForbiddenAspects {
    /// Maximum percentage by which any total may increase or decrease.
    pub threshold: Option<f64>,
    /// Aspects that must not differ.
    pub aspects: Vec<super::StructureTimeOrBytesAspect>,
}

impl DiffPercentLimitAndForbiddenAspects {
    /// Checks that the changes of `totals` are within the threshold, and that the forbidden aspects do not differ.
    /// `differs` returns true if the jobs differ in an aspect.
    pub(super) fn find_exceeded_total_thresholds(
        &self,
        totals: &[(&str, super::AmountChange)],
        differs: impl Fn(super::StructureTimeOrBytesAspect) -> bool,
    ) -> ExceededThresholds {
        let mut exceeded = Vec::new();
        if let Some(threshold) = self.threshold {
            for (what, shift) in totals
                .iter()
                .filter(|(_, shift)| shift.exceeds_percent(threshold))
            {
                let by = words::format_percent_increase(shift)
                    .unwrap_or_else(|| "from nothing".to_owned());
                exceeded.push(format!("{what} changed by {by}, more than {threshold} %"));
            }
        }
        for &aspect in &self.aspects {
            if differs(aspect) {
                exceeded.push(format!("{} differs", words::name_of_aspect(aspect)));
            }
        }
        ExceededThresholds { exceeded }
    }

    /// Checks the differences between traces against these thresholds.
    pub fn find_exceeded_tally_thresholds(&self, tally: &DiffTally) -> ExceededThresholds {
        let totals = [
            ("time", tally.total.sum_duration_delay_and_wait()),
            ("bytes", tally.total.bytes),
        ];
        self.find_exceeded_total_thresholds(&totals, |aspect| tally.differs_in_aspect(aspect))
    }
}
