//! Renders the table of quirks' effects as text, CSV and JSON.

use super::{QuirkCorrectionResult, QuirkReplayResult, QuirksCorrectedInReplay};
use crate::terminal::plain_style;
use chakram_base::units::Span;
use chakram_report::csv::CsvRows;
use chakram_report::document::VersionedDocument;
use chakram_report::summary::HashedInput;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use serde::Serialize;
use serde_json::{Map, Value};

impl QuirkCorrectionResult {
    fn row_name(&self) -> &'static str {
        match self.corrected {
            QuirksCorrectedInReplay::Nothing => "(nothing)",
            QuirksCorrectedInReplay::One(quirk) => quirk.quirk_name(),
            QuirksCorrectedInReplay::Everything => "(everything)",
        }
    }

    fn corrected_behaviour_text(&self) -> &'static str {
        match self.corrected {
            QuirksCorrectedInReplay::Nothing => "as ASTRA-sim does",
            QuirksCorrectedInReplay::One(quirk) => quirk.corrected_behaviour(),
            QuirksCorrectedInReplay::Everything => "all of the above",
        }
    }

    fn word_completed_failed_or_not_applicable(&self) -> &'static str {
        match &self.ended {
            QuirkReplayResult::After(_) => "completed",
            QuirkReplayResult::NotApplicable => "does not apply",
            QuirkReplayResult::Failed { how, .. } => how,
        }
    }

    fn known_makespan(&self) -> Option<Span> {
        match self.ended {
            QuirkReplayResult::After(span) => Some(span),
            _ => None,
        }
    }
}

/// Returns `after` - `before` in ps and in percent. The percentage is `None` if `before` is zero.
fn makespan_change(before: Span, after: Span) -> (i128, Option<f64>) {
    let ps = i128::from(after.0) - i128::from(before.0);
    let percent = (before > Span::ZERO).then(|| ps as f64 / before.0 as f64 * 100.0);
    (ps, percent)
}

/// Formats a time in ps as ns with three decimals.
fn format_ps_as_ns(ps: i128) -> String {
    let sign = if ps < 0 { "-" } else { "" };
    let ps = ps.unsigned_abs();
    format!("{sign}{}.{:03}", ps / 1000, ps % 1000)
}

/// Renders the table as text. The text calls a time of 1 ns a cycle.
pub fn render_quirk_correction_table(rows: &[QuirkCorrectionResult], before: Span) -> String {
    let mut table = TextTable::new([
        left_aligned_column("corrected", 0),
        right_aligned_column("cycles (ns)", 0),
        right_aligned_column("change (ns)", 0),
        right_aligned_column("change (%)", 0),
        left_aligned_column("what is done instead", 0),
    ])
    .with_indent(0)
    // Limit the width so that sentences wrap; otherwise the table would shorten them as it shortens names.
    .wrap_cells_to_width(u16::try_from(plain_style().width).unwrap_or(u16::MAX));
    for row in rows {
        let [cycles, by, percent] = match row.known_makespan() {
            None => [
                row.word_completed_failed_or_not_applicable().to_owned(),
                String::new(),
                String::new(),
            ],
            Some(after) => {
                let (by, percent) = makespan_change(before, after);
                let (by, percent) = match (row.corrected, percent) {
                    (QuirksCorrectedInReplay::Nothing, _) => (String::new(), String::new()),
                    (_, None) => (format_ps_as_ns(by), String::new()),
                    (_, Some(percent)) => (format_ps_as_ns(by), format!("{percent:.3}")),
                };
                [format_ps_as_ns(after.0.into()), by, percent]
            }
        };
        table.add_row(&[
            &row.row_name(),
            &cycles,
            &by,
            &percent,
            &row.corrected_behaviour_text(),
        ]);
    }
    table.to_text(plain_style())
}

/// Renders the table as CSV, with one row per replay. A cell is empty if its replay lacks the value.
pub fn render_csv(rows: &[QuirkCorrectionResult], before: Span) -> String {
    let mut out = CsvRows::new("corrected,status,makespan_ps,change_ps,change_percent");
    for row in rows {
        let numbers = row.known_makespan().map(|after| {
            let (by, percent) = makespan_change(before, after);
            let percent = percent.map(|percent| format!("{percent:.6}"));
            [
                after.0.to_string(),
                by.to_string(),
                percent.unwrap_or_default(),
            ]
        });
        let [after, by, percent] = numbers.unwrap_or_default();
        out.add_row(&[
            &row.row_name(),
            &row.word_completed_failed_or_not_applicable(),
            &after,
            &by,
            &percent,
        ]);
    }
    out.into_text()
}

/// JSON document of the quirks' effects.
#[derive(Debug, Serialize)]
pub struct QuirkEffectsDocument<'a> {
    options: Map<String, Value>,
    inputs: &'a [HashedInput],
    replays: Vec<QuirkReplayRow<'a>>,
}

#[derive(Debug, Serialize)]
struct QuirkReplayRow<'a> {
    corrected: &'static str,
    quirks: String,
    status: &'static str,
    why: Option<&'a str>,
    makespan_ps: Option<u64>,
    change_ps: Option<i64>,
    change_percent: Option<f64>,
    original: Option<&'static str>,
    instead: Option<&'static str>,
}

impl<'a> QuirkReplayRow<'a> {
    fn from_row(row: &'a QuirkCorrectionResult, before: Span) -> Self {
        let change = row
            .known_makespan()
            .map(|after| makespan_change(before, after));
        let (corrected, quirk) = match row.corrected {
            QuirksCorrectedInReplay::Nothing => ("nothing", None),
            QuirksCorrectedInReplay::One(quirk) => (quirk.quirk_name(), Some(quirk)),
            QuirksCorrectedInReplay::Everything => ("everything", None),
        };
        Self {
            corrected,
            quirks: row.corrected.reproduced_quirks().to_string(),
            status: row.word_completed_failed_or_not_applicable(),
            why: match &row.ended {
                QuirkReplayResult::Failed { why, .. } => Some(why),
                _ => None,
            },
            makespan_ps: row.known_makespan().map(|span| span.0),
            change_ps: change.map(|(by, _)| by as i64),
            change_percent: change.and_then(|(_, percent)| percent),
            original: quirk.map(|quirk| quirk.original_behaviour()),
            instead: quirk.map(|quirk| quirk.corrected_behaviour()),
        }
    }
}

/// Returns the JSON document, with the options and the hashes of the inputs.
pub fn build_quirk_effects_document<'a>(
    rows: &'a [QuirkCorrectionResult],
    before: Span,
    options: Map<String, Value>,
    inputs: &'a [HashedInput],
) -> VersionedDocument<QuirkEffectsDocument<'a>> {
    let replays = rows.iter().map(|row| QuirkReplayRow::from_row(row, before));
    let body = QuirkEffectsDocument {
        options,
        inputs,
        replays: replays.collect(),
    };
    VersionedDocument::new("chakram.quirks.1", body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_astra_sim::Quirk;

    #[test]
    fn makespan_change_is_percent_of_time_before() {
        // From 100 to 125 ps, the change is 25 %; from 0 ps, there is no percentage.
        assert_eq!(makespan_change(Span(100), Span(125)), (25, Some(25.0)));
        assert_eq!(makespan_change(Span(0), Span(125)), (125, None));
        assert_eq!(
            format_ps_as_ns(makespan_change(Span(2000), Span(1999)).0),
            "-0.001"
        );
        assert_eq!(format_ps_as_ns(1_234_567), "1234.567");
    }

    #[test]
    fn failed_and_inapplicable_quirks_are_listed_with_their_status() {
        let row = |corrected, ended| QuirkCorrectionResult { corrected, ended };
        let how = QuirkReplayResult::Failed {
            how: "deadlocked",
            why: "a, b".to_owned(),
        };
        let rows = [
            row(
                QuirksCorrectedInReplay::Nothing,
                QuirkReplayResult::After(Span(2000)),
            ),
            row(
                QuirksCorrectedInReplay::One(Quirk::StoreAndForward),
                QuirkReplayResult::NotApplicable,
            ),
            row(QuirksCorrectedInReplay::Everything, how),
        ];
        assert_eq!(
            render_csv(&rows, Span(2000)),
            "corrected,status,makespan_ps,change_ps,change_percent\n\
             (nothing),completed,2000,0,0.000000\n\
             store-and-forward,does not apply,,,\n\
             (everything),deadlocked,,,\n"
        );
        let document = build_quirk_effects_document(&rows, Span(2000), Map::new(), &[]);
        let json = serde_json::to_value(document).unwrap();
        assert_eq!(json["replays"][2]["why"], "a, b");
        assert_eq!(json["replays"][1]["makespan_ps"], Value::Null);
        assert_eq!(json["replays"][1]["quirks"], "all,-store-and-forward");
    }
}
