//! Writes rows as CSV and JSON Lines, computes the Pareto front, and renders the table of the best
//! rows.

use super::evaluate::{PointEvaluator, PointRefusalOrMeasures};
use super::objective::{PointMeasures, SweepObjective};
use super::search::{SearchLayerTurnRecord, SweepRow, VisitedPointOutcome};
use super::setting;
use super::study::Study;
use super::without_effect::keys_without_effect_by_row;
use chakram_base::units::{Span, format_count_with_noun};
use chakram_jobs::MAX_REPEATED_NODES;
use chakram_report::NpuTimeCategory;
use chakram_report::csv::neutralize_formulas;
use chakram_report::document::VersionedDocument;
use chakram_report::settings::SettingWithoutEffect;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, write_paragraph};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A column's heading, and the function that formats the column's value for a point.
type PointColumnHeadingAndFormatter = (&'static str, fn(&PointMeasures) -> String);

/// Number of top-ranked rows that get intervals. The same number of front rows get intervals. The number is constant,
/// so that files do not depend on the number of printed rows.
const ROWS_WITH_INTERVAL: usize = 10;

/// Formats a number. Empty for an unknown number.
fn format_optional<T: ToString>(value: Option<T>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

/// The rows of a study, and data derived from them.
#[derive(Clone, Debug)]
pub struct SweepTable<'s> {
    /// The study of these rows.
    pub study: &'s Study,
    /// The study's rows, sorted by number.
    pub rows: Vec<SweepRow>,
    /// Turns of the layers, if the study is searched in rounds. Empty otherwise.
    turns: Vec<SearchLayerTurnRecord>,
    /// Values of each row by the study's objectives; `None` if one of the values is unknown.
    values: Vec<Option<Vec<f64>>>,
    /// 90 % intervals of the time, by row index. Only rows that users see have intervals.
    intervals: BTreeMap<usize, [Span; 2]>,
    /// Keys that have no effect on a row, by row index.
    pub without_effect: Vec<Vec<SettingWithoutEffect>>,
}

impl<'s> SweepTable<'s> {
    /// Creates the table of `rows`. `turns` contains the layers' turns if the study is searched in rounds; otherwise,
    /// it is empty.
    pub fn new(study: &'s Study, rows: Vec<SweepRow>, turns: &[SearchLayerTurnRecord]) -> Self {
        let values = rows.iter().map(|row| {
            let measures = measures_of_replayed_row(row)?;
            let settings = study.merge_with_base_settings(&row.point);
            let objectives = study.objectives.iter();
            objectives
                .map(|objective| objective.value_of_point(measures, &settings))
                .collect()
        });
        let values: Vec<_> = values.collect();
        Self {
            study,
            without_effect: keys_without_effect_by_row(study, &rows, &values),
            rows,
            turns: turns.to_vec(),
            values,
            intervals: BTreeMap::new(),
        }
    }

    /// Computes intervals for the best rows, the first rows of the front, and the best row by each objective. Omits
    /// them if replays are too large.
    pub fn compute_intervals_of_best_rows(&mut self, evaluator: &PointEvaluator<'_>) {
        let mut rows: Vec<usize> = self
            .ranked_rows()
            .into_iter()
            .take(ROWS_WITH_INTERVAL)
            .collect();
        rows.extend(self.pareto_front().into_iter().take(ROWS_WITH_INTERVAL));
        rows.extend(
            self.best_row_by_each_objective()
                .into_iter()
                .map(|(_, row)| row),
        );
        let mut left = MAX_REPEATED_NODES;
        for row in rows {
            if self.intervals.contains_key(&row) {
                continue;
            }
            // The size of the work is known only after it is built, so stop at the first row that is too large.
            let Some(report) =
                evaluator.report_point_within_node_limit(&self.rows[row].point, left)
            else {
                break;
            };
            left = left.saturating_sub(report.outcome.nodes);
            if let Some(interval) = &report.interval {
                self.intervals.insert(row, [interval.low, interval.high]);
            }
        }
    }

    /// Returns the ends of the 90 % interval for a row's value by an objective, the smaller end first; `None` if
    /// unknown.
    pub fn interval_of_objective(&self, row: usize, objective: SweepObjective) -> Option<[f64; 2]> {
        let measures = measures_of_replayed_row(&self.rows[row])?;
        let settings = self.study.merge_with_base_settings(&self.rows[row].point);
        let at = |time: Span| {
            let measures = PointMeasures {
                time_ps: time.0,
                ..measures.clone()
            };
            objective.value_of_point(&measures, &settings)
        };
        let [a, b] = self.intervals.get(&row)?.map(at);
        let (a, b) = (a?, b?);
        (a != b).then_some([a.min(b), a.max(b)])
    }

    /// Formats the interval for a row's value by an objective. Empty for an unknown interval.
    pub fn interval_text(&self, row: usize, objective: SweepObjective) -> String {
        let ends = self.interval_of_objective(row, objective);
        ends.map_or(String::new(), |ends| {
            let [low, high] = ends.map(|end| objective.format_value(end));
            format!("{low} to {high}")
        })
    }

    /// Returns the best row by each objective. With ties, returns the first.
    pub fn best_row_by_each_objective(&self) -> Vec<(SweepObjective, usize)> {
        let scores: Vec<_> = (0..self.rows.len())
            .filter_map(|row| Some((row, self.minimised_scores(row)?)))
            .collect();
        let best = |i: usize| {
            let rows = scores.iter();
            rows.min_by(|a, b| a.1[i].total_cmp(&b.1[i]).then(a.0.cmp(&b.0)))
        };
        let objectives = self.study.objectives.iter().enumerate();
        objectives
            .filter_map(|(i, objective)| Some((*objective, best(i)?.0)))
            .collect()
    }

    /// Compares the interval of `best`, the best row by `objective`, with the values of all other rows. Rows that were
    /// not replayed count by their bounds. `None` if the interval is unknown.
    pub fn describe_rows_within_interval_of_best(
        &self,
        objective: SweepObjective,
        best: usize,
    ) -> Option<String> {
        let [low, high] = self.interval_of_objective(best, objective)?;
        let place = self
            .study
            .objectives
            .iter()
            .position(|one| *one == objective)?;
        let inside = (0..self.rows.len())
            .filter(|row| *row != best)
            .filter_map(|row| Some(self.all_objective_values_of_row(row)?[place]))
            .filter(|value| (low..=high).contains(value))
            .count();
        let open = self.count_unreplayed_possibly_in_interval(objective, [low, high]);
        let number = self.rows[best].number;
        let interval = self.interval_text(best, objective);
        let inside_rows = match inside {
            1 => "1 other row is".to_owned(),
            _ => format!(
                "{} other rows are",
                chakram_base::units::format_thousands(inside as u64)
            ),
        };
        let open_rows = match open {
            0 => String::new(),
            1 => "1 row that was not replayed may be within it, because its bound is not beyond it"
                .to_owned(),
            _ => format!(
                "{} rows that were not replayed may be within it, because their bounds are not beyond it",
                chakram_base::units::format_thousands(open as u64)
            ),
        };
        Some(match (inside, open) {
            (0, 0) => format!("row {number} leads by more than its interval (90 %: {interval})"),
            (0, _) => format!(
                "row {number} leads the other replayed rows by more than its interval (90 %: {interval}), but {open_rows}"
            ),
            _ => format!(
                "{inside_rows} within the interval of row {number} (90 %: {interval}): in measurements \
                 another row may lead, but errors that rows share do not change their order{}{open_rows}",
                if open > 0 { "; " } else { "" }
            ),
        })
    }

    /// Returns the number of rows that were not replayed and whose values may be within an interval, because their
    /// bounds are not beyond its worse end.
    fn count_unreplayed_possibly_in_interval(
        &self,
        objective: SweepObjective,
        [low, high]: [f64; 2],
    ) -> usize {
        let evaluator = PointEvaluator::new(self.study);
        let best_possible = |row: &SweepRow, time_ps: u64| {
            let measures = evaluator
                .compute_measures_without_replay(&row.point, time_ps)
                .ok()?;
            let settings = self.study.merge_with_base_settings(&row.point);
            objective.value_of_point(&measures, &settings)
        };
        let may_be_within = |row: &&SweepRow| match &row.outcome {
            VisitedPointOutcome::Dominated(bound) => {
                best_possible(row, bound.time_ps).is_none_or(|value| {
                    if objective.is_maximised() {
                        value >= low
                    } else {
                        value <= high
                    }
                })
            }
            VisitedPointOutcome::Answered(_) => false,
        };
        self.rows.iter().filter(may_be_within).count()
    }

    /// Returns a row's values by the objectives, in the study's order; `None` if one of the values is unknown.
    pub fn all_objective_values_of_row(&self, row: usize) -> Option<&[f64]> {
        self.values[row].as_deref()
    }

    /// Returns a row's values by the objectives. Values are negated if larger is better, so that smaller results are
    /// always better.
    fn minimised_scores(&self, row: usize) -> Option<Vec<f64>> {
        let signs = self
            .study
            .objectives
            .iter()
            .map(|one| if one.is_maximised() { -1.0 } else { 1.0 });
        Some(
            self.all_objective_values_of_row(row)?
                .iter()
                .zip(signs)
                .map(|(value, sign)| value * sign)
                .collect(),
        )
    }

    /// Returns the indices of the rows whose values by all objectives are known. They are sorted by the first
    /// objective, best first. Rows with equal values keep their order.
    pub fn ranked_rows(&self) -> Vec<usize> {
        let mut ranked: Vec<(f64, usize)> = (0..self.rows.len())
            .filter_map(|row| Some((self.minimised_scores(row)?[0], row)))
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ranked.into_iter().map(|(_, row)| row).collect()
    }

    /// Returns the indices of the Pareto-optimal rows, sorted by the first objective, best first. If several rows are
    /// equal in all objectives, returns only the first.
    pub fn pareto_front(&self) -> Vec<usize> {
        let mut front: Vec<(usize, Vec<f64>)> = Vec::new();
        let mut ranked: Vec<(Vec<f64>, usize)> = (0..self.rows.len())
            .filter_map(|row| Some((self.minimised_scores(row)?, row)))
            .collect();
        let order = |a: &[f64], b: &[f64]| {
            let differing = a
                .iter()
                .zip(b)
                .map(|(a, b)| a.total_cmp(b))
                .find(|order| order.is_ne());
            differing.unwrap_or(std::cmp::Ordering::Equal)
        };
        // After this lexicographic sort, no row can dominate an earlier row.
        ranked.sort_by(|a, b| order(&a.0, &b.0).then(a.1.cmp(&b.1)));
        for (scores, row) in ranked {
            let dominated = front
                .iter()
                .any(|(_, other)| other.iter().zip(&scores).all(|(a, b)| a <= b));
            if !dominated {
                front.push((row, scores));
            }
        }
        front.into_iter().map(|(row, _)| row).collect()
    }

    /// Returns the axes' keys in the study's order.
    pub fn axis_keys(&self) -> Vec<&str> {
        let axes = self.study.axes.iter();
        axes.flat_map(|axis| axis.keys.iter().map(String::as_str))
            .collect()
    }

    /// Returns one row as JSON.
    fn row_json(&self, index: usize) -> Value {
        let row = &self.rows[index];
        let mut out = Map::new();
        out.insert("row".to_owned(), row.number.into());
        let values = row
            .point
            .iter()
            .map(|(key, value)| (key.clone(), literal_to_json(value)));
        out.insert("point".to_owned(), Value::Object(values.collect()));
        match &row.outcome {
            VisitedPointOutcome::Answered(PointRefusalOrMeasures::Replayed(measures)) => {
                out.insert("outcome".to_owned(), "replayed".into());
                let measures = serde_json::to_value(measures).expect("its keys are texts");
                let Value::Object(measures) = measures else {
                    unreachable!("measures are a table")
                };
                out.extend(measures);
                if let Some([low, high]) = self.intervals.get(&index) {
                    out.insert("interval_ps".to_owned(), vec![low.0, high.0].into());
                }
                for (objective, value) in self
                    .study
                    .objectives
                    .iter()
                    .zip(self.all_objective_values_of_row(index).unwrap_or_default())
                {
                    out.insert(objective.column_name().to_owned(), (*value).into());
                }
                for objective in self.unoptimised_objectives() {
                    let value = self.objective_value_of_row(index, objective);
                    out.extend(
                        value.map(|value| (objective.column_name().to_owned(), value.into())),
                    );
                }
            }
            VisitedPointOutcome::Answered(PointRefusalOrMeasures::Refused { reason, detail }) => {
                out.insert("outcome".to_owned(), "infeasible".into());
                out.insert("reason".to_owned(), reason.clone().into());
                out.insert("detail".to_owned(), detail.clone().into());
            }
            VisitedPointOutcome::Dominated(bound) => {
                out.insert("outcome".to_owned(), "dominated".into());
                out.insert("bound_ps".to_owned(), bound.time_ps.into());
            }
        }
        let without_effect = &self.without_effect[index];
        if !without_effect.is_empty() {
            let settings = serde_json::to_value(without_effect).expect("its keys are texts");
            out.insert("without_effect".to_owned(), settings);
        }
        Value::Object(out)
    }

    /// Returns the study, all rows, and the indices of the front as one JSON document.
    pub fn to_json_document(&self) -> String {
        #[derive(Serialize)]
        struct SweepRowsAndFrontDocument<'d> {
            study: &'d str,
            objectives: Vec<&'static str>,
            front: Vec<u64>,
            rows: Vec<Value>,
        }
        let objectives = self.study.objectives.iter();
        let document = SweepRowsAndFrontDocument {
            study: &self.study.name,
            objectives: objectives
                .map(|objective| objective.column_name())
                .collect(),
            front: (self.pareto_front().into_iter())
                .map(|row| self.rows[row].number)
                .collect(),
            rows: (0..self.rows.len()).map(|row| self.row_json(row)).collect(),
        };
        VersionedDocument::new("chakram.sweep.1", document).to_json_text()
    }

    /// Returns all rows as JSON Lines.
    pub fn json_lines(&self) -> String {
        let rows = (0..self.rows.len()).map(|row| format!("{}\n", self.row_json(row)));
        rows.collect()
    }

    /// Returns columns for the busy times of links and memory ports, if any row has them.
    fn busy_time_columns_of_links_and_ports(&self) -> Vec<PointColumnHeadingAndFormatter> {
        let all: [PointColumnHeadingAndFormatter; 4] = [
            ("links_busy_ps", |m| format_optional(m.links_busy_ps)),
            ("links_busy_share", |m| {
                format_optional(m.share_of_makespan(m.links_busy_ps))
            }),
            ("ports_busy_ps", |m| format_optional(m.ports_busy_ps)),
            ("ports_busy_share", |m| {
                format_optional(m.share_of_makespan(m.ports_busy_ps))
            }),
        ];
        let mut known = self.rows.iter().filter_map(measures_of_replayed_row);
        let is_shared = known.any(|m| m.links_busy_ps.is_some());
        all.into_iter().filter(|_| is_shared).collect()
    }

    /// Returns the objectives that the study does not optimise but for which some row has a value.
    pub(super) fn unoptimised_objectives(&self) -> Vec<SweepObjective> {
        let others = SweepObjective::STATED.into_iter();
        let others = others.filter(|one| !self.study.objectives.contains(one));
        let is_known = |one: &SweepObjective| {
            (0..self.rows.len()).any(|row| self.objective_value_of_row(row, *one).is_some())
        };
        others.filter(is_known).collect()
    }

    /// Returns a replayed row's value by the objective; `None` if unknown.
    pub(super) fn objective_value_of_row(
        &self,
        index: usize,
        objective: SweepObjective,
    ) -> Option<f64> {
        let row = &self.rows[index];
        objective.value_of_point(
            measures_of_replayed_row(row)?,
            &self.study.merge_with_base_settings(&row.point),
        )
    }

    /// Returns `rows` as CSV.
    pub fn rows_csv(&self, rows: impl Iterator<Item = usize>) -> String {
        let keys = self.axis_keys();
        let mut heads: Vec<String> = vec!["row".to_owned(), "outcome".to_owned()];
        heads.extend(keys.iter().map(|key| (*key).to_owned()));
        heads.extend(
            self.study
                .objectives
                .iter()
                .map(|one| one.column_name().to_owned()),
        );
        let busy = self.busy_time_columns_of_links_and_ports();
        heads.extend(["time_ps", "low_ps", "high_ps", "npus", "memory_bytes"].map(str::to_owned));
        heads.extend(busy.iter().map(|(head, _)| (*head).to_owned()));
        let stated = self.unoptimised_objectives();
        heads.extend(stated.iter().map(|one| one.column_name().to_owned()));
        let last = [
            "limited_by",
            "bound_ps",
            "reason",
            "detail",
            "without_effect",
        ];
        heads.extend(last.map(str::to_owned));
        let mut csv = csv::Writer::from_writer(Vec::new());
        let grows = "memory takes what is written";
        csv.write_record(&heads).expect(grows);
        for index in rows {
            let row = &self.rows[index];
            let mut cells = vec![row.number.to_string()];
            cells.push(outcome_word(row).to_owned());
            cells.extend(keys.iter().map(|key| {
                row.point
                    .get(*key)
                    .map_or(String::new(), ToString::to_string)
            }));
            let values = self.all_objective_values_of_row(index);
            cells.extend(
                (0..self.study.objectives.len())
                    .map(|i| values.map_or(String::new(), |all| all[i].to_string())),
            );
            let measures = measures_of_replayed_row(row);
            let of =
                |value: &dyn Fn(&PointMeasures) -> String| measures.map_or(String::new(), value);
            cells.push(of(&|m| m.time_ps.to_string()));
            let ends = self.intervals.get(&index);
            cells.extend([0, 1].map(|end| format_optional(ends.map(|ends| ends[end].0))));
            cells.push(of(&|m| m.npus.to_string()));
            cells.push(of(&|m| format_optional(m.memory_bytes)));
            cells.extend(busy.iter().map(|(_, value)| of(&|m| value(m))));
            let stated = stated
                .iter()
                .map(|one| self.objective_value_of_row(index, *one));
            cells.extend(stated.map(format_optional));
            cells.push(of(&PointMeasures::describe_largest_part));
            let [bound, reason, detail] = match &row.outcome {
                VisitedPointOutcome::Dominated(bound) => {
                    [bound.time_ps.to_string(), String::new(), String::new()]
                }
                VisitedPointOutcome::Answered(PointRefusalOrMeasures::Refused {
                    reason,
                    detail,
                }) => [String::new(), reason.clone(), detail.clone()],
                VisitedPointOutcome::Answered(_) => [String::new(), String::new(), String::new()],
            };
            let settings = self.without_effect[index].iter();
            let settings = settings.map(|one| format!("{}: {}", one.key, one.reason));
            let settings = settings.collect::<Vec<_>>().join("; ");
            cells.extend([bound, reason, detail, settings]);
            let cells = cells
                .iter()
                .map(|cell| neutralize_formulas(cell).into_owned());
            csv.write_record(cells.collect::<Vec<_>>()).expect(grows);
        }
        let bytes = csv.into_inner().expect(grows);
        String::from_utf8(bytes).expect("cells are texts")
    }

    /// Describes how many rows have each outcome, and why rows are impossible.
    pub fn describe_counts(&self) -> String {
        let of = |name: &str| {
            self.rows
                .iter()
                .filter(|row| outcome_word(row) == name)
                .count() as u64
        };
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        for row in &self.rows {
            if let VisitedPointOutcome::Answered(PointRefusalOrMeasures::Refused {
                reason, ..
            }) = &row.outcome
            {
                *reasons.entry(reason).or_default() += 1;
            }
        }
        let mut text = format!(
            "{}: {}, {} replayed",
            self.study.name,
            format_count_with_noun(self.rows.len() as u64, "point"),
            chakram_base::units::format_thousands(of("replayed"))
        );
        if of("dominated") > 0 {
            text += &format!(
                ", {} excluded by their bounds",
                chakram_base::units::format_thousands(of("dominated"))
            );
        }
        if !reasons.is_empty() {
            let reasons: Vec<_> = reasons
                .iter()
                .map(|(reason, count)| format!("{reason} {count}"))
                .collect();
            text += &format!(
                ", {} infeasible: {}",
                chakram_base::units::format_thousands(of("infeasible")),
                reasons.join(", ")
            );
        }
        text
    }

    /// Returns the best rows and the front as text for users.
    pub fn render_text(&self, most: usize, style: TextStyleWidthAndDetail) -> String {
        let mut text = String::new();
        let plain = anstyle::Style::new();
        write_paragraph(&mut text, &self.describe_counts(), "", 2, plain)
            .expect("a string grows as needed");
        let ranked = self.ranked_rows();
        if ranked.is_empty() {
            text += "\nno point has a result\n";
            return text;
        }
        text += &self.render_best_point_of_each_round(style);
        let first = self.study.objectives[0];
        let proved = self
            .rows
            .iter()
            .any(|row| matches!(row.outcome, VisitedPointOutcome::Dominated(_)));
        let heading = format!("BEST BY {}", first.column_name().to_uppercase());
        text += &self.render_rows_under_heading(&heading, ranked.iter().copied().take(most), style);
        if ranked.len() > most {
            text += &format!(
                "  … and {} more\n",
                chakram_base::units::format_thousands((ranked.len() - most) as u64)
            );
        }
        if proved {
            text += "  no unreplayed point is better by the model: all bounds of such points are above the best\n";
        }
        if let Some(lead) = self.describe_rows_within_interval_of_best(first, ranked[0]) {
            write_paragraph(&mut text, &lead, "  ", 2, plain).expect("a string grows as needed");
        }
        if self.study.objectives.len() > 1 {
            let front = self.pareto_front();
            let names: Vec<_> = self
                .study
                .objectives
                .iter()
                .map(|one| one.column_name())
                .collect();
            let heading = format!("PARETO FRONT ({})", front.len());
            text += &self.render_rows_under_heading(
                &heading,
                front.iter().copied().take(most.max(10)),
                style,
            );
            let among = if proved {
                ", among the points that were replayed"
            } else {
                ""
            };
            text += &format!("  of {}{among}\n", names.join(", "));
        }
        let mut legend = "limited by: the largest part of the time of NPUs".to_owned();
        for (part, words) in [
            ("exposed communication", NpuTimeCategory::EXPOSED),
            ("pipeline bubble", NpuTimeCategory::BUBBLE),
        ] {
            if text.contains(part) {
                legend += &format!("; {words}");
            }
        }
        write_paragraph(&mut text, &legend, "  ", 2, plain).expect("a string grows as needed");
        for note in self.describe_keys_without_effect() {
            write_paragraph(&mut text, &note, "  ! ", 4, style.warning)
                .expect("a string grows as needed");
        }
        text
    }

    /// Returns a sentence for each key that has no effect on some rows.
    pub fn describe_keys_without_effect(&self) -> Vec<String> {
        let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for one in self.without_effect.iter().flatten() {
            *counts.entry((&one.key, &one.reason)).or_default() += 1;
        }
        let all = self.rows.len() as u64;
        let notes = counts.into_iter().map(|((key, reason), count)| {
            let rows = match count {
                count if count == all => "all rows".to_owned(),
                count => format!(
                    "{} of {}",
                    chakram_base::units::format_thousands(count),
                    format_count_with_noun(all, "row")
                ),
            };
            format!("`{key}` has no effect in {rows}: {reason}")
        });
        notes.collect()
    }

    /// Describes the best point after each layer's turn, with the values that the layer set.
    fn render_best_point_of_each_round(&self, style: TextStyleWidthAndDetail) -> String {
        if self.turns.is_empty() {
            return String::new();
        }
        let objectives = &self.study.objectives;
        let mut columns = vec![
            left_aligned_column("ROUND", 7),
            right_aligned_column("new points", 11),
            right_aligned_column("best", 10),
        ];
        for objective in objectives {
            columns.push(right_aligned_column(
                objective.column_name(),
                objective.column_name().len().max(11) + 1,
            ));
        }
        let table = TextTable::new(columns);
        let mut text = table.render_empty_line_and_headings(style);
        for turn in &self.turns {
            let found = turn.best.as_ref();
            let row = found.and_then(|best| self.rows.iter().position(|row| row.point == *best));
            let values = row
                .and_then(|row| self.all_objective_values_of_row(row))
                .unwrap_or_default();
            let mut cells = vec![
                turn.round.to_string(),
                chakram_base::units::format_thousands(turn.new_points),
                match row {
                    Some(row) if turn.is_better => format!("row {}", self.rows[row].number),
                    Some(_) => "as before".to_owned(),
                    None => "none".to_owned(),
                },
            ];
            let shown = objectives.iter().zip(values);
            cells.extend(shown.map(|(objective, value)| objective.format_value(*value)));
            cells.resize(3 + objectives.len(), "-".to_owned());
            let cells: Vec<&dyn std::fmt::Display> = cells.iter().map(|cell| cell as _).collect();
            text += &table.render_line(&cells, anstyle::Style::new());
            let axes = &self.study.layers[turn.layer].axes;
            let keys = axes.iter().flat_map(|axis| &self.study.axes[*axis].keys);
            let keys: Vec<&str> = keys.map(String::as_str).collect();
            let chosen = match found {
                Some(best) => setting::format_settings_short(best, keys),
                None => keys.join(", "),
            };
            write_paragraph(&mut text, &chosen, "    ", 4, anstyle::Style::new())
                .expect("a string grows as needed");
        }
        text
    }

    fn render_rows_under_heading(
        &self,
        heading: &str,
        rows: impl Iterator<Item = usize>,
        style: TextStyleWidthAndDetail,
    ) -> String {
        let objectives = &self.study.objectives;
        let mut columns = vec![left_aligned_column(heading, 24)];
        for objective in objectives {
            columns.push(right_aligned_column(
                objective.column_name(),
                objective.column_name().len().max(11) + 1,
            ));
        }
        let first = objectives[0];
        let rows: Vec<usize> = rows.collect();
        let interval_widths = rows
            .iter()
            .map(|row| self.interval_text(*row, first).chars().count());
        let interval_width = interval_widths.max().unwrap_or(0);
        let has_intervals = interval_width > 0;
        let interval_heading = format!("{}, 90 %", first.column_name());
        if has_intervals {
            columns.push(right_aligned_column(
                &interval_heading,
                interval_width.max(interval_heading.len()) + 2,
            ));
        }
        columns.push(left_aligned_column("  limited by", 28));
        let table = TextTable::new(columns);
        let mut text = table.render_empty_line_and_headings(style);
        for index in rows {
            let row = &self.rows[index];
            let values = self.all_objective_values_of_row(index).unwrap_or_default();
            let shown: Vec<String> = objectives
                .iter()
                .zip(values)
                .map(|(o, value)| o.format_value(*value))
                .collect();
            let limit = measures_of_replayed_row(row)
                .map(|m| format!("  {}", m.describe_largest_part()))
                .unwrap_or_default();
            let number = format!("row {}", row.number);
            let mut cells: Vec<&dyn std::fmt::Display> = vec![&number];
            cells.extend(shown.iter().map(|cell| cell as &dyn std::fmt::Display));
            let interval = self.interval_text(index, first);
            if has_intervals {
                cells.push(&interval);
            }
            cells.push(&limit);
            text += &table.render_line(&cells, anstyle::Style::new());
            let point = setting::format_settings_short(&row.point, self.axis_keys());
            write_paragraph(&mut text, &point, "    ", 4, anstyle::Style::new())
                .expect("a string grows as needed");
        }
        text
    }
}

/// Returns the measures of a replayed row.
pub fn measures_of_replayed_row(row: &SweepRow) -> Option<&PointMeasures> {
    match &row.outcome {
        VisitedPointOutcome::Answered(PointRefusalOrMeasures::Replayed(measures)) => Some(measures),
        _ => None,
    }
}

/// Returns a word for the outcome of a row.
fn outcome_word(row: &SweepRow) -> &'static str {
    match &row.outcome {
        VisitedPointOutcome::Answered(PointRefusalOrMeasures::Replayed(_)) => "replayed",
        VisitedPointOutcome::Answered(PointRefusalOrMeasures::Refused { .. }) => "infeasible",
        VisitedPointOutcome::Dominated(_) => "dominated",
    }
}

fn literal_to_json(value: &chakram_base::config::ConfigLiteral) -> Value {
    use chakram_base::config::ConfigLiteral;
    match value {
        ConfigLiteral::Text(text) => text.clone().into(),
        ConfigLiteral::Whole(number) => (*number).into(),
        ConfigLiteral::Number(number) => (*number).into(),
        ConfigLiteral::Flag(flag) => (*flag).into(),
        ConfigLiteral::List(items) => items.iter().map(literal_to_json).collect(),
    }
}

/// Returns, for each replayed row in order, the best value so far by the objective.
pub fn list_best_values_so_far(
    table: &SweepTable<'_>,
    objective: SweepObjective,
    index: usize,
) -> Vec<(u64, f64)> {
    let mut curve: Vec<(u64, f64)> = Vec::new();
    for (i, row) in table.rows.iter().enumerate() {
        let Some(value) = table.all_objective_values_of_row(i).map(|all| all[index]) else {
            continue;
        };
        let better = |best: f64| {
            if objective.is_maximised() {
                value > best
            } else {
                value < best
            }
        };
        if curve.last().is_none_or(|(_, best)| better(*best)) {
            curve.push((row.number, value));
        }
    }
    curve
}
