//! Renders the summary as text of at most 100 columns.

use super::labels::{describe_time_basis, format_rejected_and_repaired_faults};
use super::{OmissionHints, SummaryTableKind};
use crate::inspect::{JobInspectionSummary, UnfilteredRankTraceTotals};
use chakram_base::ids::format_numbers_as_ranges;
use chakram_base::units::format_count_with_noun;
use chakram_base::units::{Bytes, Span, Time};
use chakram_report::summary::format_thousands;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, write_paragraph};
use std::collections::BTreeMap;
use std::fmt::{Display, Result, Write as _};

mod tables;

/// Maximum number of rows in a table; JSON and CSV contain all rows.
const ROWS: usize = 16;
/// Maximum number of shown faults, and of notes.
const FAULT_ROWS: usize = 8;

/// Renders the summary of `job` below `title`; `filter` is the filter that selected its nodes.
pub fn render_summary_as_text(
    job: &JobInspectionSummary,
    title: &str,
    filter: &str,
    hints: &OmissionHints,
    style: TextStyleWidthAndDetail,
) -> String {
    let mut view = SummaryWriter {
        job,
        hints,
        style,
        out: String::new(),
        ranks: job.ranks.len() as u64,
    };
    view.write_summary(title, filter)
        .expect("a string grows as needed");
    view.out
}

struct SummaryWriter<'a> {
    job: &'a JobInspectionSummary,
    hints: &'a OmissionHints,
    style: TextStyleWidthAndDetail,
    out: String,
    ranks: u64,
}

impl SummaryWriter<'_> {
    fn write_summary(&mut self, title: &str, filter: &str) -> Result {
        self.write_head(title, filter)?;
        self.write_faults()?;
        self.write_ranks()?;
        self.write_types()?;
        self.write_lanes()?;
        self.write_collectives()?;
        self.write_messages()?;
        self.write_operators()?;
        self.write_attributes()
    }

    fn write_heading(&mut self, text: &str) -> Result {
        let (h, text) = (self.style.heading, text.trim_end());
        writeln!(self.out, "\n{h}{text}{h:#}")
    }

    fn write_fact(&mut self, name: &str, text: &str) -> Result {
        let lead = format!("  {name:<13} ");
        write_paragraph(&mut self.out, text, &lead, 16, anstyle::Style::new())
    }

    fn write_head(&mut self, title: &str, filter: &str) -> Result {
        let job = self.job;
        let sum = |of: fn(&UnfilteredRankTraceTotals) -> u64| job.ranks.iter().map(of).sum::<u64>();
        let members: Vec<u32> = job.ranks.iter().map(|rank| rank.rank).collect();
        let line = format!(
            "{title}: {} ({}), {}, {} data and {} control dependencies",
            format_count_with_noun(self.ranks, "rank"),
            format_numbers_as_ranges(&members),
            format_count_with_noun(sum(|rank| rank.nodes), "node"),
            format_thousands(sum(|rank| rank.data)),
            format_thousands(sum(|rank| rank.control)),
        );
        writeln!(self.out, "{}", self.style.clip_line(&line, 0))?;
        if !filter.is_empty() {
            let chosen = format_thousands(sum(|rank| rank.selected));
            let text = format!(
                "{}: {chosen} of {}",
                self.style.clip_to_width(filter, 60),
                format_count_with_noun(sum(|r| r.nodes), "node")
            );
            self.write_fact("filter", &text)?;
        }
        let (file, contents) = (sum(|rank| rank.file_bytes), sum(|rank| rank.contents_bytes));
        let packed = if file == contents {
            String::new()
        } else {
            format!(", unpacked {}", Bytes(contents))
        };
        let (depth, width) = (
            self.format_count_or_range(|rank| rank.depth),
            self.format_count_or_range(|rank| rank.width),
        );
        let text = format!(
            "{}{packed}; longest dependency chain {depth}, maximum width {width}",
            Bytes(file)
        );
        self.write_fact("size", &text)?;
        self.write_run_time_facts()?;
        self.write_groups()?;
        self.write_metadata()
    }

    /// If a count is the same on all ranks, formats it as `7`; otherwise formats a range such as `7
    /// to 9`.
    fn format_count_or_range(&self, of: fn(&UnfilteredRankTraceTotals) -> u32) -> String {
        let values = || self.job.ranks.iter().map(of);
        match (values().min().unwrap_or(0), values().max().unwrap_or(0)) {
            (least, most) if least == most => format_thousands(most.into()),
            (least, most) => format!(
                "{} to {}",
                format_thousands(least.into()),
                format_thousands(most.into())
            ),
        }
    }

    fn write_run_time_facts(&mut self) -> Result {
        let job = self.job;
        let end = job
            .ranks
            .iter()
            .map(|rank| rank.end)
            .max()
            .unwrap_or(Time::ZERO);
        self.write_fact("recorded run", &Span(end.0).to_string())?;
        let mut bases: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for rank in &job.ranks {
            let text = describe_time_basis(
                rank.basis,
                rank.whole_micros,
                Span(rank.end.0),
                rank.captured,
            );
            bases.entry(text).or_default().push(rank.rank);
        }
        let several = bases.len() > 1;
        for (text, ranks) in bases.iter().take(ROWS) {
            let who = if several {
                format!(
                    "ranks {}: ",
                    self.style
                        .clip_to_width(&format_numbers_as_ranges(ranks), 30)
                )
            } else {
                String::new()
            };
            self.write_fact("times", &format!("{who}{text}"))?;
        }
        let partly = job
            .ranks
            .iter()
            .filter(|r| r.given_starts > 0 && r.basis.name_of_basis() != "given");
        let partly = partly.map(|rank| rank.given_starts).sum::<u64>();
        if partly > 0 {
            let text = format!(
                "{}: only some nodes have a value, so it is not used",
                format_count_with_noun(partly, "start")
            );
            self.write_fact("", &text)?;
        }
        Ok(())
    }

    fn write_groups(&mut self) -> Result {
        let groups = &self.job.groups;
        if groups.is_empty() {
            return Ok(());
        }
        let texts = groups
            .iter()
            .take(ROWS)
            .map(|(name, members)| match &members[..] {
                [] => format!("{name}: all ranks"),
                members => format!(
                    "{name}: ranks {}",
                    self.style
                        .clip_to_width(&format_numbers_as_ranges(members), 40)
                ),
            });
        let mut text = texts.collect::<Vec<_>>().join("; ");
        if groups.len() > ROWS {
            text += &format!("; … {} more: {}", groups.len() - ROWS, self.hints.all);
        }
        let text = self.style.clip_to_width(&text, 2000);
        self.write_fact("groups", &text)
    }

    fn write_metadata(&mut self) -> Result {
        let mut texts = Vec::new();
        for (version, ranks) in &self.job.versions {
            let who = if u64::from(*ranks) == self.ranks {
                String::new()
            } else {
                format!(" on {}", format_count_with_noun(u64::from(*ranks), "rank"))
            };
            if version.is_empty() {
                texts.push(format!("no version{who}"))
            } else {
                texts.push(format!(
                    "version {}{who}",
                    self.style.clip_to_width(version, 20)
                ))
            }
        }
        for ((name, _), (value, _, same)) in self.job.metadata.iter().take(ROWS) {
            let value = if *same {
                self.style.clip_to_width(value, 48)
            } else {
                "differs".to_owned()
            };
            texts.push(format!("{} {value}", self.style.clip_to_width(name, 30)));
        }
        self.write_fact("metadata", &texts.join("; "))
    }

    fn write_faults(&mut self) -> Result {
        let job = self.job;
        let (mut faults, notes) = format_rejected_and_repaired_faults(
            job.ranks.iter().map(|rank| (rank.rank, &rank.faults)),
        );
        let lost = job
            .unreadable
            .iter()
            .map(|(rank, _, why)| format!("rank {rank}: {why}"));
        let torn = job
            .conflicting_groups
            .iter()
            .map(|name| format!("group {name}: ranks declare different members"));
        faults = lost.chain(torn).chain(faults).collect();
        if !faults.is_empty() {
            let count = match job.fault_count() {
                1 => "1 FAULT".to_owned(),
                n => format!("{} FAULTS", format_thousands(n)),
            };
            let text = format!("{count}: only the readable part is shown");
            self.write_heading(&text)?;
            self.write_warning_lines(&faults)?;
        }
        if !notes.is_empty() {
            self.write_heading("NOTES")?;
            self.write_warning_lines(&notes)?;
        }
        Ok(())
    }

    fn write_warning_lines(&mut self, lines: &[String]) -> Result {
        for line in lines.iter().take(FAULT_ROWS) {
            let line = self.style.clip_to_width(line, 400);
            write_paragraph(&mut self.out, &line, "  ! ", 4, self.style.warning)?;
        }
        self.write_omitted_count(lines.len(), FAULT_ROWS, self.hints.all)
    }

    fn write_omitted_rows(&mut self, rows: usize, shown: usize, table: SummaryTableKind) -> Result {
        self.write_omitted_count(rows, shown, &(self.hints.table)(table))
    }

    fn write_omitted_count(&mut self, rows: usize, shown: usize, how: &str) -> Result {
        match rows.checked_sub(shown) {
            None | Some(0) => Ok(()),
            Some(more) => writeln!(
                self.out,
                "  … {} more: {how}",
                format_thousands(more as u64)
            ),
        }
    }

    fn write_ranks(&mut self) -> Result {
        if self.ranks < 2 {
            return Ok(());
        }
        let table = TextTable::new([
            left_aligned_column("RANKS", 16),
            right_aligned_column("nodes", 12),
            right_aligned_column("data deps", 12),
            right_aligned_column("control", 12),
            right_aligned_column("depth", 9),
            right_aligned_column("width", 9),
            right_aligned_column("start", 15),
            right_aligned_column("end", 15),
        ]);
        table.write_heading(&mut self.out, self.style)?;
        // Adjacent ranks with equal facts share a line.
        let facts = |r: &UnfilteredRankTraceTotals| {
            (r.nodes, r.data, r.control, r.depth, r.width, r.start, r.end)
        };
        let runs: Vec<_> = self
            .job
            .ranks
            .chunk_by(|a, b| facts(a) == facts(b) && a.rank + 1 == b.rank)
            .collect();
        for run in runs.iter().take(ROWS) {
            let ranks: Vec<u32> = run.iter().map(|rank| rank.rank).collect();
            let first = &run[0];
            let cells: [&dyn Display; 8] = [
                &format_numbers_as_ranges(&ranks),
                &format_thousands(first.nodes),
                &format_thousands(first.data),
                &format_thousands(first.control),
                &format_thousands(first.depth.into()),
                &format_thousands(first.width.into()),
                &first.start,
                &first.end,
            ];
            table.write_row(&mut self.out, &cells)?;
        }
        self.write_omitted_rows(runs.len(), ROWS, SummaryTableKind::Ranks)
    }
}
