//! Parts of a page.

use crate::draw::escape;
use std::fmt::{Display, Write};

/// `text` as it may stand in a page.
pub fn text(text: &str) -> String {
    escape(text)
}

/// A number of the report: the JSON pointer of it, its value, and what is shown.
pub fn number(path: &str, value: impl Display, shown: &str) -> String {
    let path = escape(path);
    format!(
        "<data data-path=\"{path}\" data-value=\"{value}\">{}</data>",
        escape(shown)
    )
}

/// A section under a heading; nothing if there is nothing in it.
pub fn section(heading: &str, id: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<section id=\"{id}\"><h2>{heading}</h2>{body}</section>")
}

/// A picture with its legend and what has to be said of it.
pub fn figure(picture: &str, legend: &[(usize, &str)], caption: &str) -> String {
    let mut keys = String::new();
    for (series, name) in legend {
        write!(
            keys,
            "<span><i class=\"k{series}\"></i>{}</span>",
            escape(name)
        )
        .expect("a string grows as needed");
    }
    format!(
        "<figure><div class=\"legend\">{keys}</div><div class=\"wide\">{picture}</div>\
         <figcaption>{caption}</figcaption></figure>"
    )
}

/// A table; cells are HTML.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
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

/// The whole page.
pub fn page(title: &str, body: &str) -> String {
    let style = include_str!("page.css");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{}</title><style>\n{style}</style></head><body><main>{body}</main></body></html>\n",
        escape(title)
    )
}
