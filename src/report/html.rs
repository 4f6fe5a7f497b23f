//! The report as one self-contained HTML page. The page states all facts of the text report, and adds pictures.
//!
//! The page's sentences and tables come from the same modules as the text ([`head`](mod@crate::head),
//! [`section`](mod@crate::section)). Each number from the report carries its JSON pointer (`data-path`) and its exact
//! value (`data-value`), so programs can compare the page with the JSON report. A script on the page sorts and searches
//! the tables; without the script, the page still shows all data.

mod basis;
mod links;
pub mod page;
mod resources;
mod sections;
mod tiles;

pub use sections::render_time_bars;

use super::section::{ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage};
use super::{Report, critical_path, head, npus, sensitivity};
use chakram_base::units::Span;
use page::{
    escape_html, render_list, render_number_with_json_pointer, render_report_table,
    render_section_unless_empty,
};

/// A chapter of the page: a heading with pictures and tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReportChapter {
    Time,
    Steps,
    Path,
    Memory,
    Collectives,
    Links,
    Operators,
    Modules,
}

impl ReportChapter {
    /// The chapters in order of display, each with its heading and HTML id.
    const ALL: [(Self, &'static str, &'static str); 8] = [
        (Self::Time, "Where the time goes", "breakdown"),
        (Self::Steps, "Profiled steps", "steps"),
        (Self::Path, "Critical path", "path"),
        (Self::Memory, "Memory", "memory"),
        (Self::Collectives, "Communication", "collectives"),
        (Self::Links, "Load of links", "links"),
        (Self::Operators, "Operators", "operators"),
        (Self::Modules, "Modules", "modules"),
    ];

    /// Returns the chapter that a table belongs to.
    fn chapter_of_section(id: ReportTableSubject) -> Self {
        match id {
            ReportTableSubject::Breakdown
            | ReportTableSubject::Launches
            | ReportTableSubject::Ranks
            | ReportTableSubject::Finishes => Self::Time,
            ReportTableSubject::Steps => Self::Steps,
            ReportTableSubject::Memory | ReportTableSubject::MemoryAccesses => Self::Memory,
            ReportTableSubject::Collectives | ReportTableSubject::Exposed => Self::Collectives,
            ReportTableSubject::Dimensions
            | ReportTableSubject::Links
            | ReportTableSubject::Tiles => Self::Links,
            ReportTableSubject::Modules => Self::Modules,
            ReportTableSubject::Operators => Self::Operators,
            ReportTableSubject::CriticalPath | ReportTableSubject::Sensitivities => Self::Path,
        }
    }

    /// Returns the pictures of the chapter, which are shown before its tables.
    fn draw_pictures(self, report: &Report) -> String {
        match self {
            Self::Time => {
                sections::render_breakdown_section(report)
                    + &sections::render_timeline_section(report)
            }
            Self::Path => sections::render_critical_path_section(report),
            Self::Memory => resources::render_memory_section(report),
            Self::Collectives => {
                resources::plot_collective_bus_bandwidth(report)
                    + &resources::render_traffic_section(report)
            }
            Self::Links => links::render_link_pictures(report),
            Self::Operators => resources::render_roofline_section(report),
            Self::Steps | Self::Modules => String::new(),
        }
    }
}

/// Renders the page of `report`. `title` names the replay, and `basis` describes how durations were determined.
pub fn render_html(report: &Report, title: &str, basis: &str) -> String {
    let mut body = format!(
        "<h1>{}</h1><p class=\"sub\">{}</p>",
        escape_html(&page::shorten_name(title)),
        escape_html(&head::format_scope(report))
    );
    body += &tiles::render_key_figure_boxes(report);
    body += &render_head_facts(report, basis);
    body += &render_section_unless_empty("Warnings", "warnings", &render_warnings(report));
    for (heading, id, chapter) in chapters_with_content(report) {
        body += &render_section_unless_empty(heading, id, &chapter);
    }
    body += &basis::render_prediction_basis(report);
    page::render_page_with_tables(title, &body)
}

/// Returns the head's sentences and the warnings as HTML.
pub(crate) fn render_head_facts_and_warnings(report: &Report, basis: &str) -> String {
    render_head_facts(report, basis) + &render_warnings(report)
}

/// Returns the heading, HTML id and content (pictures, then tables) of each nonempty chapter.
pub(crate) fn chapters_with_content(
    report: &Report,
) -> impl Iterator<Item = (&'static str, &'static str, String)> {
    let tables = build_report_tables(report);
    let chapters = ReportChapter::ALL.into_iter();
    let chapters = chapters.map(move |(chapter, heading, id)| {
        let own = tables
            .iter()
            .filter(|table| ReportChapter::chapter_of_section(table.id) == chapter);
        let own: String = own.map(render_report_table).collect();
        (heading, id, chapter.draw_pictures(report) + &own)
    });
    chapters.filter(|(.., body)| !body.is_empty())
}

fn build_report_tables(report: &Report) -> Vec<ReportTableWithNotes> {
    let breakdown = npus::build_mean_npu_time_breakdown_sections(report);
    let groups =
        super::tables::build_grouped_tables(report, ReportTextDetailsOrPage::Page).flatten();
    let path = critical_path::build_path_sections(report, ReportTextDetailsOrPage::Page);
    let help = sensitivity::build_sensitivity_sections(report, ReportTextDetailsOrPage::Page);
    breakdown
        .into_iter()
        .chain(groups)
        .chain(path)
        .chain(help)
        .collect()
}

/// Returns a list of the warnings, which state why numbers may be misleading.
fn render_warnings(report: &Report) -> String {
    let settings = report.settings.to_sentences();
    render_list(settings.chain(report.warnings.iter().cloned()), "warnings")
}

/// Returns the head's sentences, each with its label.
fn render_head_facts(report: &Report, basis: &str) -> String {
    let lines = head::build_head_lines(report, basis)
        .into_iter()
        .map(|line| {
            let class = if line.is_warning() {
                " class=\"warn\""
            } else {
                ""
            };
            let rest = match line.rest.is_empty() {
                true => String::new(),
                false => format!(" <span class=\"rest\">{}</span>", escape_html(&line.rest)),
            };
            format!(
                "<dt{class}>{}</dt><dd{class}>{}{rest}</dd>",
                escape_html(line.lead),
                escape_html(&line.text)
            )
        });
    format!("<dl class=\"facts\">{}</dl>", lines.collect::<String>())
}

/// Renders a time of the report, with its JSON pointer `path`.
fn render_report_time_with_pointer(path: &str, value: Span) -> String {
    render_number_with_json_pointer(path, value.0, &value.to_string())
}

/// Formats the label of a time axis; `ps` is in picoseconds.
fn format_axis_time(ps: f64) -> String {
    Span(ps as u64).to_string()
}
