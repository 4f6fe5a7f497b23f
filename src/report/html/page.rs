//! HTML building blocks of a page.

use crate::draw::escape_markup;
use crate::section::{ReportTableWithNotes, SectionCellWithValue};
use crate::text::clip_middle;
use std::fmt::{Display, Write};

/// Escapes `text` for element content and attributes.
pub fn escape_html(text: &str) -> String {
    escape_markup(text)
}

/// Renders a number of the report as HTML: `shown`, with the JSON pointer and the exact value as attributes.
pub fn render_number_with_json_pointer(path: &str, value: impl Display, shown: &str) -> String {
    let path = escape_markup(path);
    format!(
        "<data data-path=\"{path}\" data-value=\"{value}\">{}</data>",
        escape_markup(shown)
    )
}

/// Renders a number that is in no report (such as a difference) as HTML: `shown`, with the exact value as an attribute.
pub fn render_number_absent_from_report(value: impl Display, shown: &str) -> String {
    format!(
        "<data data-value=\"{value}\">{}</data>",
        escape_markup(shown)
    )
}

/// Renders a section with a heading. Returns an empty string if `body` is empty.
pub fn render_section_unless_empty(heading: &str, id: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<section id=\"{id}\"><h2>{heading}</h2>{body}</section>")
}

/// Renders a list of sentences; returns an empty string if there are none.
pub fn render_list(sentences: impl Iterator<Item = String>, class: &str) -> String {
    let items: String = sentences
        .map(|sentence| format!("<li>{}</li>", escape_markup(&sentence)))
        .collect();
    match items.is_empty() {
        true => String::new(),
        false => format!("<ul class=\"{class}\">{items}</ul>"),
    }
}

/// Renders a picture with its legend and caption.
pub fn render_figure(picture: &str, legend: &[(usize, &str)], caption: &str) -> String {
    let mut keys = String::new();
    for (series, name) in legend {
        write!(
            keys,
            "<span><i class=\"k{series}\"></i>{}</span>",
            escape_markup(name)
        )
        .expect("a string grows as needed");
    }
    format!(
        "<figure><div class=\"legend\">{keys}</div><div class=\"wide\">{picture}</div>\
         <figcaption>{caption}</figcaption></figure>"
    )
}

/// Renders a picture in which colours represent numbers. The strings in `scale` label the lowest, middle and highest
/// colour.
pub(super) fn render_figure_with_scale(
    picture: &str,
    scale: &[String; 3],
    caption: &str,
) -> String {
    let shades: String = (0..=10)
        .map(|shade| format!("<i class=\"m{shade}\"></i>"))
        .collect();
    let ends = scale
        .iter()
        .map(|end| format!("<span>{}</span>", escape_markup(end)));
    let ends: String = ends.collect();
    format!(
        "<figure><div class=\"wide\">{picture}</div><div class=\"scale\"><div>{shades}</div><div>{ends}</div></div>\
         <figcaption>{caption}</figcaption></figure>"
    )
}

/// Renders a table; headings and cells must already be escaped HTML.
pub fn render_table_of_escaped_cells(headings: &[&str], rows: &[Vec<String>]) -> String {
    let heads: String = headings
        .iter()
        .map(|head| format!("<th>{head}</th>"))
        .collect();
    let row = |cells: &Vec<String>| {
        let cells: String = cells
            .iter()
            .map(|cell| format!("<td>{cell}</td>"))
            .collect();
        format!("<tr>{cells}</tr>")
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<div class=\"wide\"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
}

/// Renders a table of a report, with its notes.
pub(super) fn render_report_table(section: &ReportTableWithNotes) -> String {
    let columns = &section.columns;
    let mut heads = String::new();
    for column in columns {
        // In the text report, the first heading is the table's name in capitals, so the page leaves it out.
        let heading = column.heading_text();
        let heading = match heading.chars().any(char::is_lowercase) {
            true => heading.to_owned(),
            false => heading.to_lowercase(),
        };
        let class = if column.is_right_aligned() {
            ""
        } else {
            " class=\"t\""
        };
        heads += &format!("<th{class}>{}</th>", escape_markup(&heading));
    }
    let mut rows = String::new();
    for row in &section.rows {
        rows += if row.alarm.is_some() {
            "<tr class=\"alarm\">"
        } else {
            "<tr>"
        };
        for (i, column) in columns.iter().enumerate() {
            let empty = SectionCellWithValue::default();
            let cell = row.cells.get(i).unwrap_or(&empty);
            rows += &render_cell_without_end_tag(cell, column.is_right_aligned());
            if i == 0 {
                let below = row.note.iter().map(|note| &note.text).chain(&row.alarm);
                for below in below {
                    rows += &format!(
                        "<small>{}</small>",
                        escape_markup(&clip_middle(below, 10 * SHOWN))
                    );
                }
            }
            rows += "</td>";
        }
        rows += "</tr>";
    }
    let tall = if section.rows.len() > TALL {
        " tall"
    } else {
        ""
    };
    let mut out = format!(
        "<div class=\"wide{tall}\"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    );
    let left_out = section.left_out.iter().map(|text| (text, false));
    let notes = section.notes.iter().map(|note| (&note.text, note.warns));
    for (text, warns) in left_out.chain(notes) {
        let class = if warns { "note warn" } else { "note" };
        out += &format!("<p class=\"{class}\">{}</p>", escape_markup(text));
    }
    out
}

/// Maximum number of rows in a table that has no scroll bar of its own.
const TALL: usize = 24;

/// Renders a cell without its end tag. The tooltip of a shortened cell shows the full text.
fn render_cell_without_end_tag(cell: &SectionCellWithValue, right: bool) -> String {
    let class = if right { "" } else { " class=\"t\"" };
    let shown = escape_markup(&shorten_name(&cell.text));
    match (&cell.value, &cell.pointer) {
        (Some(value), Some(pointer)) => {
            let number = render_number_with_json_pointer(pointer, value, &cell.text);
            format!("<td{class}>{number}")
        }
        (Some(value), None) => format!("<td{class} data-value=\"{value}\">{shown}"),
        (None, _) => format!("<td{class}{}>{shown}", title_attribute(&cell.text)),
    }
}

/// Returns `text` for display on a page; a very long name is shortened in the middle.
pub(super) fn shorten_name(text: &str) -> String {
    clip_middle(text, SHOWN)
}

/// Returns the HTML attribute with the full text. Empty if the text is displayed in full.
fn title_attribute(text: &str) -> String {
    match text.chars().nth(SHOWN) {
        Some(_) => format!(
            " title=\"{}\"",
            escape_markup(&clip_middle(text, 20 * SHOWN))
        ),
        None => String::new(),
    }
}

/// Maximum length of a name on a page, in characters.
const SHOWN: usize = 96;

/// Renders a complete page.
pub fn render_page(title: &str, body: &str) -> String {
    render_page_with_head(title, "", body, "")
}

/// Renders a complete page, with a script that sorts and searches its tables. Without the script, the page shows the
/// same data. The page's content security policy forbids loading anything from the network.
pub fn render_page_with_tables(title: &str, body: &str) -> String {
    let forbid = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
                  style-src 'unsafe-inline'; script-src 'unsafe-inline'\">";
    let script = format!("<script>\n{}</script>", include_str!("page.js"));
    render_page_with_head(title, forbid, body, &script)
}

fn render_page_with_head(title: &str, meta: &str, body: &str, script: &str) -> String {
    let style = include_str!("page.css");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         {meta}<title>{}</title><style>\n{style}</style></head><body><main>{body}</main>{script}</body></html>\n",
        escape_markup(title)
    )
}
