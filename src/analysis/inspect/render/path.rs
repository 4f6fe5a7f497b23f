//! Renders the critical path of a job, or the critical paths of its ranks.

use super::OmissionHints;
use super::json::{NamedViewDocument, build_view_document};
use super::labels::describe_time_basis;
use crate::inspect::{
    CriticalPath, InspectedNodeType, NodeStartTimesSource, PathDelayWaitWorkTotals, PathSegment,
    RankTimesForCriticalPath, sum_path_time_by_key,
};
use chakram_base::ids::format_numbers_as_ranges;
use chakram_base::units::format_count_with_noun;
use chakram_base::units::{Span, Time};
use chakram_report::csv::CsvRows;
use chakram_report::document::VersionedDocument;
use chakram_report::summary::format_thousands;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, format_share, write_paragraph};
use chakram_trace::format::append_name_family;
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::{Display, Result, Write as _};

/// Maximum number of rows in a table.
const ROWS: usize = 12;
/// Title of the table with the path's longest parts.
const LONGEST: &str = "LONGEST NODES";
/// Maximum number of paths shown if each rank has its own.
const PATHS: usize = 8;

/// A critical path, and the tracks (ranks) that it may use.
pub struct CriticalPathAndRankInputs<'a> {
    /// Ranks that the path may visit.
    pub tracks: &'a [RankTimesForCriticalPath],
    /// The path; its indices refer to `tracks`.
    pub path: CriticalPath,
}

/// Returns the paths to show: a single path if all ranks measure time from one origin, otherwise one path per rank.
pub fn find_job_or_per_rank_critical_paths(
    tracks: &[RankTimesForCriticalPath],
    find: fn(&[RankTimesForCriticalPath], bool) -> Option<CriticalPath>,
) -> Vec<CriticalPathAndRankInputs<'_>> {
    let parts: Vec<&[RankTimesForCriticalPath]> = if is_clock_shared_by_ranks(tracks) {
        // Only if the ranks share a clock may a path change ranks.
        vec![tracks]
    } else {
        tracks.chunks(1).collect()
    };
    let found = parts
        .into_iter()
        .map(|tracks| (tracks, find(tracks, tracks.len() > 1)));
    found
        .filter_map(|(tracks, path)| {
            Some(CriticalPathAndRankInputs {
                tracks,
                path: path?,
            })
        })
        .collect()
}

/// Returns true if all ranks measure time from one origin.
fn is_clock_shared_by_ranks(tracks: &[RankTimesForCriticalPath]) -> bool {
    let kept = |track: &RankTimesForCriticalPath| {
        track.basis == NodeStartTimesSource::Kept && track.captured.is_some()
    };
    tracks.len() == 1 || tracks.iter().all(kept)
}

/// Data that rendering paths needs.
pub struct CriticalPathRenderInput<'a> {
    /// Title of the job.
    pub title: &'a str,
    /// Tracks of all ranks.
    pub tracks: &'a [RankTimesForCriticalPath],
    /// Maximum number of nodes to list per path; `None` for no list.
    pub list: Option<usize>,
    /// Hints on how to show omitted content.
    pub hints: OmissionHints,
}

impl CriticalPathRenderInput<'_> {
    /// Renders the critical paths as text.
    pub fn render_text(
        &self,
        paths: &[CriticalPathAndRankInputs<'_>],
        style: TextStyleWidthAndDetail,
    ) -> String {
        let mut out = String::new();
        self.write_text(&mut out, paths, style)
            .expect("a string grows as needed");
        out
    }

    fn write_text(
        &self,
        out: &mut String,
        paths: &[CriticalPathAndRankInputs<'_>],
        style: TextStyleWidthAndDetail,
    ) -> Result {
        let nodes = self.tracks.iter().map(|track| track.ran as u64).sum();
        let title = format!(
            "{}: {}, {}",
            self.title,
            format_count_with_noun(self.tracks.len() as u64, "rank"),
            format_count_with_noun(nodes, "node")
        );
        writeln!(out, "{}", style.clip_line(&title, 0))?;
        let stuck: u64 = self.tracks.iter().map(|track| track.stuck as u64).sum();
        if stuck > 0 {
            let text = format!(
                "{} left out, which are on a dependency cycle or depend on one",
                format_count_with_noun(stuck, "node")
            );
            write_paragraph(out, &text, "  ! ", 4, style.warning)?;
        }
        if !is_clock_shared_by_ranks(self.tracks) {
            let text = "the files do not state a common clock of the ranks: one path for each rank";
            write_paragraph(out, text, "  ", 2, anstyle::Style::new())?;
        }
        let mut distinct: Vec<(&CriticalPathAndRankInputs<'_>, Vec<u32>)> = Vec::new();
        for path in paths {
            match distinct
                .iter_mut()
                .find(|(other, _)| path.is_equal_single_rank_path(other))
            {
                Some((_, ranks)) => ranks.extend(path.tracks.iter().map(|track| track.rank)),
                None => distinct.push((path, Vec::new())),
            }
        }
        for (path, others) in distinct.iter().take(PATHS) {
            path.write_text(out, others, self, style)?;
        }
        if distinct.len() > PATHS {
            writeln!(
                out,
                "\n… {} more: {}",
                distinct.len() - PATHS,
                self.hints.all_paths
            )?;
        }
        if paths.is_empty() {
            writeln!(out, "  no node runs")?;
        }
        Ok(())
    }

    /// Returns the critical paths as a JSON document.
    pub fn build_paths_document<'p>(
        &self,
        paths: &'p [CriticalPathAndRankInputs<'_>],
    ) -> VersionedDocument<NamedViewDocument<JobCriticalPathsDocument<'p>>> {
        let body = JobCriticalPathsDocument {
            shared_clock: is_clock_shared_by_ranks(self.tracks),
            paths: paths
                .iter()
                .map(|path| path.build_path_document(self.list))
                .collect(),
        };
        build_view_document("critical_path", body)
    }

    /// Renders the critical paths as CSV, one row per part of a path.
    pub fn render_csv(&self, paths: &[CriticalPathAndRankInputs<'_>]) -> String {
        let mut rows = CsvRows::new("path,rank,id,from_ps,delay_ps,wait_ps,work_ps,type,name");
        for (i, path) in paths.iter().enumerate() {
            for piece in path
                .path
                .pieces
                .iter()
                .take(self.list.unwrap_or(usize::MAX))
            {
                let track = path.rank_times_of_segment(piece);
                rows.add_row(&[
                    &i,
                    &track.rank,
                    &piece.id_of_node(path.tracks),
                    &piece.from.0,
                    &piece.delay.0,
                    &piece.wait.0,
                    &piece.work.0,
                    &piece.class_of_node(path.tracks),
                    &track.name_of_node(piece.node),
                ]);
            }
        }
        rows.into_text()
    }
}

impl CriticalPathAndRankInputs<'_> {
    fn rank_times_of_segment(&self, piece: &PathSegment) -> &RankTimesForCriticalPath {
        &self.tracks[piece.track as usize]
    }

    fn sum_by_operator(&self) -> Vec<((String, InspectedNodeType), PathDelayWaitWorkTotals)> {
        sum_path_time_by_key(&self.path, |piece| {
            let mut name = String::new();
            append_name_family(
                self.rank_times_of_segment(piece).name_of_node(piece.node),
                &mut name,
            );
            (name, piece.class_of_node(self.tracks))
        })
    }

    /// Returns true if each path stays on one rank and their parts have the same times and names.
    fn is_equal_single_rank_path(&self, other: &Self) -> bool {
        let parts = || self.path.pieces.iter().zip(&other.path.pieces);
        (self.tracks.len(), other.tracks.len()) == (1, 1)
            && self.path.pieces.len() == other.path.pieces.len()
            && parts().all(|(a, b)| a == b)
            && parts().all(|(a, b)| {
                self.rank_times_of_segment(a).name_of_node(a.node)
                    == other.rank_times_of_segment(b).name_of_node(b.node)
            })
    }

    /// Writes a path as text; `others` are other ranks with an equal path.
    fn write_text(
        &self,
        out: &mut String,
        others: &[u32],
        report: &CriticalPathRenderInput<'_>,
        style: TextStyleWidthAndDetail,
    ) -> Result {
        let hints = &report.hints;
        let h = style.heading;
        let (path, whole) = (&self.path, self.path.total_time());
        let of = match self.tracks {
            [only] => format!("rank {}", only.rank),
            _ => "the job".to_owned(),
        };
        let changes = match (self.tracks.len(), path.changes) {
            (1, _) => String::new(),
            (_, 0) => ", on one rank".to_owned(),
            (_, 1) => ", changes rank once".to_owned(),
            (_, n) => format!(", changes rank {} times", format_thousands(n.into())),
        };
        let changes = if others.is_empty() {
            changes
        } else {
            format!(
                "{changes}; identical on ranks {}",
                format_numbers_as_ranges(others)
            )
        };
        let pieces = format_count_with_noun(path.pieces.len() as u64, "node");
        writeln!(
            out,
            "\n{h}CRITICAL PATH of {of}{h:#}  {whole}, {pieces}{changes}"
        )?;
        if let [only] = self.tracks {
            let end = only.end_of_last_node().unwrap_or(Time::ZERO);
            let text =
                describe_time_basis(only.basis, only.whole_micros, Span(end.0), only.captured);
            write_paragraph(out, &text, "  times ", 8, anstyle::Style::new())?;
        }
        let sum = |of: fn(&PathSegment) -> Span| path.pieces.iter().map(of).sum::<Span>();
        for (name, time) in [
            ("work and transfers", sum(|piece| piece.work)),
            ("delay before start", sum(|piece| piece.delay)),
            ("waiting for ranks", sum(|piece| piece.wait)),
        ] {
            writeln!(
                out,
                "  {name:<20}{time:>14}{:>9}",
                format_share(time, whole)
            )?;
        }
        self.write_path_totals_table(
            out,
            "TYPES",
            sum_path_time_by_key(path, |piece| piece.class_of_node(self.tracks).to_string()),
            hints,
            style,
        )?;
        if self.tracks.len() > 1 {
            let ranks = sum_path_time_by_key(path, |piece| {
                format!("rank {}", self.rank_times_of_segment(piece).rank)
            });
            self.write_path_totals_table(out, "RANKS", ranks, hints, style)?;
        }
        let operators = self.sum_by_operator().into_iter();
        let operators = operators.map(|((name, class), spent)| (format!("{class}: {name}"), spent));
        self.write_path_totals_table(out, "OPERATORS", operators.collect(), hints, style)?;
        match report.list {
            Some(limit) => {
                self.write_segments(out, "ALL NODES", path.pieces.iter(), (limit, hints), style)
            }
            None => {
                let mut longest: Vec<&PathSegment> = path.pieces.iter().collect();
                longest.sort_by_key(|piece| Reverse(piece.duration()));
                self.write_segments(
                    out,
                    LONGEST,
                    longest.into_iter().take(ROWS),
                    (ROWS, hints),
                    style,
                )
            }
        }
    }

    fn write_path_totals_table(
        &self,
        out: &mut String,
        title: &str,
        rows: Vec<(String, PathDelayWaitWorkTotals)>,
        hints: &OmissionHints,
        style: TextStyleWidthAndDetail,
    ) -> Result {
        let whole = self.path.total_time();
        let mut table = TextTable::new([
            left_aligned_column(title, 38),
            right_aligned_column("nodes", 8),
            right_aligned_column("time", 13),
            right_aligned_column("share", 8),
            right_aligned_column("work", 11),
            right_aligned_column("delay", 11),
            right_aligned_column("wait", 11),
        ]);
        for (name, spent) in rows.iter().take(ROWS) {
            let cells: [&dyn Display; 7] = [
                &style.clip_name(name),
                &format_thousands(spent.pieces),
                &spent.total_time(),
                &format_share(spent.total_time(), whole),
                &format_share(spent.work, whole),
                &format_share(spent.delay, whole),
                &format_share(spent.wait, whole),
            ];
            table.add_row(&cells);
        }
        write!(out, "\n{}", table.to_text(style))?;
        match rows.len().checked_sub(ROWS) {
            None | Some(0) => Ok(()),
            Some(more) => writeln!(
                out,
                "  … {} more: {}",
                format_thousands(more as u64),
                hints.all
            ),
        }
    }

    fn write_segments<'p>(
        &self,
        out: &mut String,
        title: &str,
        pieces: impl ExactSizeIterator<Item = &'p PathSegment>,
        (limit, hints): (usize, &OmissionHints),
        style: TextStyleWidthAndDetail,
    ) -> Result {
        let table = TextTable::new([
            left_aligned_column(title, 15),
            right_aligned_column("rank", 5),
            right_aligned_column("id", 8),
            right_aligned_column("from", 12),
            right_aligned_column("delay", 11),
            right_aligned_column("wait", 11),
            right_aligned_column("work", 11),
            left_aligned_column("name", 0).with_gap_before(2),
        ])
        .with_shortened_names(style);
        table.write_heading(out, style)?;
        let count = pieces.len();
        for piece in pieces.take(limit) {
            let name = style.clip_name(self.rank_times_of_segment(piece).name_of_node(piece.node));
            let cells: [&dyn Display; 8] = [
                &style.clip_to_width(&piece.class_of_node(self.tracks).to_string(), 13),
                &self.rank_times_of_segment(piece).rank,
                &piece.id_of_node(self.tracks),
                &piece.from,
                &piece.delay,
                &piece.wait,
                &piece.work,
                &name,
            ];
            table.write_row(out, &cells)?;
        }
        match count.checked_sub(limit) {
            None | Some(0) => Ok(()),
            Some(more) => {
                let how = (hints.limit)(count);
                writeln!(out, "  … {} more: {how}", format_thousands(more as u64))
            }
        }
    }

    fn build_path_document(&self, list: Option<usize>) -> CriticalPathDocument<'_> {
        let types = sum_path_time_by_key(&self.path, |piece| piece.class_of_node(self.tracks));
        let ranks =
            sum_path_time_by_key(&self.path, |piece| self.rank_times_of_segment(piece).rank);
        let node = |piece: &PathSegment| PathNodeDelayWaitWork {
            rank: self.rank_times_of_segment(piece).rank,
            id: piece.id_of_node(self.tracks),
            from_ps: piece.from,
            delay_ps: piece.delay,
            wait_ps: piece.wait,
            work_ps: piece.work,
            r#type: piece.class_of_node(self.tracks).to_string(),
            name: self.rank_times_of_segment(piece).name_of_node(piece.node),
        };
        let pieces = &self.path.pieces;
        CriticalPathDocument {
            ranks_on_path: self.tracks.iter().map(|track| track.rank).collect(),
            length_ps: self.path.total_time(),
            rank_changes: self.path.changes,
            times: self
                .tracks
                .iter()
                .map(|track| track.basis.name_of_basis())
                .collect(),
            types: (types.iter())
                .map(|(class, of)| NodeTypePathTime {
                    spent: of.into(),
                    r#type: class.to_string(),
                })
                .collect(),
            ranks: (ranks.iter())
                .map(|(rank, of)| RankPathTime {
                    spent: of.into(),
                    rank: *rank,
                })
                .collect(),
            operators: (self.sum_by_operator().into_iter())
                .map(|((name, class), of)| OperatorTime {
                    spent: (&of).into(),
                    name,
                    r#type: class.to_string(),
                })
                .collect(),
            nodes: list.map(|limit| pieces.iter().take(limit).map(node).collect()),
        }
    }
}

/// The critical paths of a job in JSON.
#[derive(Debug, Serialize)]
pub struct JobCriticalPathsDocument<'p> {
    shared_clock: bool,
    paths: Vec<CriticalPathDocument<'p>>,
}

#[derive(Debug, Serialize)]
struct CriticalPathDocument<'p> {
    ranks_on_path: Vec<u32>,
    length_ps: Span,
    rank_changes: u32,
    times: Vec<&'static str>,
    types: Vec<NodeTypePathTime>,
    ranks: Vec<RankPathTime>,
    operators: Vec<OperatorTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<PathNodeDelayWaitWork<'p>>>,
}

/// Sum over the parts of a path that have the same key, such as a node type or operator.
#[derive(Debug, Serialize)]
struct PathTimeSumsOfOneKey {
    nodes: u64,
    time_ps: Span,
    work_ps: Span,
    delay_ps: Span,
    wait_ps: Span,
}

impl From<&PathDelayWaitWorkTotals> for PathTimeSumsOfOneKey {
    fn from(spent: &PathDelayWaitWorkTotals) -> Self {
        Self {
            nodes: spent.pieces,
            time_ps: spent.total_time(),
            work_ps: spent.work,
            delay_ps: spent.delay,
            wait_ps: spent.wait,
        }
    }
}

#[derive(Debug, Serialize)]
struct NodeTypePathTime {
    #[serde(flatten)]
    spent: PathTimeSumsOfOneKey,
    r#type: String,
}

#[derive(Debug, Serialize)]
struct RankPathTime {
    #[serde(flatten)]
    spent: PathTimeSumsOfOneKey,
    rank: u32,
}

#[derive(Debug, Serialize)]
struct OperatorTime {
    #[serde(flatten)]
    spent: PathTimeSumsOfOneKey,
    name: String,
    r#type: String,
}

#[derive(Debug, Serialize)]
struct PathNodeDelayWaitWork<'p> {
    rank: u32,
    id: u64,
    from_ps: Time,
    delay_ps: Span,
    wait_ps: Span,
    work_ps: Span,
    r#type: String,
    name: &'p str,
}
