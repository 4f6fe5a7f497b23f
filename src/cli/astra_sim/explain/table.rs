//! Table of the effects of quirks: as text, CSV and JSON.

use super::{Corrected, Ended, Row};
use crate::report::json::Input;
use crate::units::Span;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

impl Row {
    fn name(&self) -> &'static str {
        match self.corrected {
            Corrected::Nothing => "(nothing)",
            Corrected::One(quirk) => quirk.name(),
            Corrected::Everything => "(everything)",
        }
    }

    fn says(&self) -> &'static str {
        match self.corrected {
            Corrected::Nothing => "as ASTRA-sim does",
            Corrected::One(quirk) => quirk.corrected(),
            Corrected::Everything => "all of the above",
        }
    }

    /// Returns the result in a word.
    fn status(&self) -> &'static str {
        match &self.ended {
            Ended::After(_) => "completed",
            Ended::NotApplicable => "does not apply",
            Ended::Failed { how, .. } => how,
        }
    }

    fn makespan(&self) -> Option<Span> {
        match self.ended {
            Ended::After(span) => Some(span),
            _ => None,
        }
    }
}

/// Returns the difference of `after` and `before`, in ps and in percent; no percent of zero.
fn change(before: Span, after: Span) -> (i128, Option<f64>) {
    let ps = i128::from(after.0) - i128::from(before.0);
    let percent = (before > Span::ZERO).then(|| ps as f64 / before.0 as f64 * 100.0);
    (ps, percent)
}

/// Formats ps as ns, with all three decimals.
fn ns(ps: i128) -> String {
    let sign = if ps < 0 { "-" } else { "" };
    let ps = ps.unsigned_abs();
    format!("{sign}{}.{:03}", ps / 1000, ps % 1000)
}

/// Renders text; a cycle is a ns.
pub fn text(rows: &[Row], before: Span) -> String {
    let header = [
        "corrected",
        "cycles (ns)",
        "change (ns)",
        "change (%)",
        "what is done instead",
    ];
    let mut cells = vec![header.map(str::to_owned)];
    for row in rows {
        let numbers = match row.makespan() {
            None => [row.status().to_owned(), String::new(), String::new()],
            Some(after) => {
                let (by, percent) = change(before, after);
                let (by, percent) = match (row.corrected, percent) {
                    (Corrected::Nothing, _) => (String::new(), String::new()),
                    (_, None) => (ns(by), String::new()),
                    (_, Some(percent)) => (ns(by), format!("{percent:.3}")),
                };
                [ns(after.0.into()), by, percent]
            }
        };
        let [cycles, by, percent] = numbers;
        cells.push([
            row.name().to_owned(),
            cycles,
            by,
            percent,
            row.says().to_owned(),
        ]);
    }
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let mut out = String::new();
    for [name, cycles, by, percent, says] in &cells {
        let [a, b, c, d] = widths;
        writeln!(
            out,
            "{name:a$}  {cycles:>b$}  {by:>c$}  {percent:>d$}  {says}"
        )
        .expect("a string grows as needed");
    }
    out
}

/// Renders CSV, a row for each replay; absent values are empty.
pub fn csv(rows: &[Row], before: Span) -> String {
    let mut out = "corrected,status,makespan_ps,change_ps,change_percent\n".to_owned();
    for row in rows {
        let numbers = row.makespan().map(|after| {
            let (by, percent) = change(before, after);
            let percent = percent.map(|percent| format!("{percent:.6}"));
            format!("{},{by},{}", after.0, percent.unwrap_or_default())
        });
        let numbers = numbers.unwrap_or_else(|| ",,".to_owned());
        writeln!(out, "{},{},{numbers}", row.name(), row.status())
            .expect("a string grows as needed");
    }
    out
}

/// Renders JSON, with the options and the hashes of the inputs.
pub fn json(rows: &[Row], before: Span, options: Map<String, Value>, inputs: &[Input]) -> Value {
    let input =
        |input: &Input| json!({"role": input.role, "name": input.name, "blake3": input.blake3});
    let row = |row: &Row| {
        let change = row.makespan().map(|after| change(before, after));
        let quirk = match row.corrected {
            Corrected::One(quirk) => Some(quirk),
            _ => None,
        };
        let why = match &row.ended {
            Ended::Failed { why, .. } => Some(why),
            _ => None,
        };
        json!({
            "corrected": match row.corrected {
                Corrected::Nothing => "nothing",
                Corrected::One(quirk) => quirk.name(),
                Corrected::Everything => "everything",
            },
            "quirks": row.corrected.quirks().to_string(),
            "status": row.status(),
            "why": why,
            "makespan_ps": row.makespan().map(|span| span.0),
            "change_ps": change.map(|(by, _)| by as i64),
            "change_percent": change.and_then(|(_, percent)| percent),
            "original": quirk.map(|quirk| quirk.original()),
            "instead": quirk.map(|quirk| quirk.corrected()),
        })
    };
    json!({
        "schema": "chakram.quirks.1",
        "tool_version": env!("CARGO_PKG_VERSION"),
        "options": options,
        "inputs": inputs.iter().map(input).collect::<Vec<_>>(),
        "replays": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::astra_sim::Quirk;

    #[test]
    fn changes_are_of_the_answer_before() {
        // 25 more than 100 is a quarter; 0.001 ns less than 2 ns.
        assert_eq!(change(Span(100), Span(125)), (25, Some(25.0)));
        assert_eq!(change(Span(0), Span(125)), (125, None));
        assert_eq!(ns(change(Span(2000), Span(1999)).0), "-0.001");
        assert_eq!(ns(1_234_567), "1234.567");
    }

    #[test]
    fn what_fails_or_does_not_apply_is_said() {
        let row = |corrected, ended| Row { corrected, ended };
        let how = Ended::Failed {
            how: "stuck",
            why: "a, b".to_owned(),
        };
        let rows = [
            row(Corrected::Nothing, Ended::After(Span(2000))),
            row(Corrected::One(Quirk::StoreAndForward), Ended::NotApplicable),
            row(Corrected::Everything, how),
        ];
        assert_eq!(
            csv(&rows, Span(2000)),
            "corrected,status,makespan_ps,change_ps,change_percent\n\
             (nothing),completed,2000,0,0.000000\n\
             store-and-forward,does not apply,,,\n\
             (everything),stuck,,,\n"
        );
        let json = json(&rows, Span(2000), Map::new(), &[]);
        assert_eq!(json["replays"][2]["why"], "a, b");
        assert_eq!(json["replays"][1]["makespan_ps"], Value::Null);
        assert_eq!(json["replays"][1]["quirks"], "all,-store-and-forward");
    }
}
