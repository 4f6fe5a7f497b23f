//! Builds an SVG element mark by mark.

use std::fmt::Write;

/// Maximum length of a string on a page, in characters. Inputs may contain names of any length.
const MAX_TEXT: usize = 1 << 14;

/// Escapes `text` for element content and attributes of a page; truncates very long strings.
pub fn escape_markup(text: &str) -> String {
    let (text, rest) = match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => (&text[..end], "…"),
        None => (text, ""),
    };
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars().chain(rest.chars()) {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Style sheet of a chart in its own file.
const STYLE: &str = "svg{background:#fff}text{font:11px system-ui,sans-serif;fill:#555}.grid{stroke:#ddd}\
    .c0{fill:#3569b4}.c1{fill:#d9822b}.c2{fill:#2f8f5b}.c3{fill:#8a4fa3}.c4{fill:#b3446c}.c5{fill:#4aa3a2}\
    .line{fill:none;stroke:#999;stroke-width:1.5}circle{fill-opacity:.55}";

/// Converts `chart` to a complete SVG file for viewers.
pub fn standalone_svg(chart: &str) -> String {
    let head = format!("<svg xmlns=\"http://www.w3.org/2000/svg\"><style>{STYLE}</style>");
    match chart
        .strip_prefix("<svg")
        .and_then(|rest| rest.split_once('>'))
    {
        Some((attributes, marks)) => {
            let open = head.replacen('>', &format!("{attributes}>"), 1);
            format!("{open}{marks}\n")
        }
        None => format!("{head}</svg>\n"),
    }
}

/// Which point of a text is at the given position.
#[derive(Clone, Copy, Debug)]
pub enum TextAnchor {
    /// The text begins at the position.
    Start,
    /// The position is the middle of the text.
    Middle,
    /// The text ends at the position.
    End,
}

/// An SVG drawing under construction.
#[derive(Debug)]
pub struct SvgDrawing {
    marks: String,
    width: f64,
    height: f64,
}

/// A rectangle in drawing units.
#[derive(Clone, Copy, Debug)]
pub struct DrawingRect {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width in drawing units.
    pub width: f64,
    /// Height in drawing units.
    pub height: f64,
}

impl SvgDrawing {
    /// Creates an empty drawing of this size, in drawing units.
    pub fn new(width: f64, height: f64) -> Self {
        Self {
            marks: String::new(),
            width,
            height,
        }
    }

    fn append_svg_markup(&mut self, mark: std::fmt::Arguments<'_>) {
        self.marks
            .write_fmt(mark)
            .expect("a string grows as needed");
    }

    /// Adds a rectangle with a tooltip and `data-…` attributes.
    pub fn add_rect(&mut self, at: DrawingRect, class: &str, title: &str, data: &[(&str, String)]) {
        let DrawingRect {
            x,
            y,
            width,
            height,
        } = at;
        self.append_svg_markup(format_args!(
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\""
        ));
        for (name, value) in data {
            self.append_svg_markup(format_args!(" data-{name}=\"{}\"", escape_markup(value)));
        }
        self.append_svg_markup(format_args!(
            "><title>{}</title></rect>",
            escape_markup(title)
        ));
    }

    /// Adds a single line of text.
    pub fn add_text(&mut self, (x, y): (f64, f64), anchor: TextAnchor, class: &str, text: &str) {
        let anchor = match anchor {
            TextAnchor::Start => "start",
            TextAnchor::Middle => "middle",
            TextAnchor::End => "end",
        };
        self.append_svg_markup(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            escape_markup(text)
        ));
    }

    /// Adds a straight line.
    pub fn add_line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        self.append_svg_markup(format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// Adds a line of straight segments through `points`, with a tooltip.
    pub fn add_polyline(&mut self, points: &[(f64, f64)], class: &str, title: &str) {
        self.append_svg_markup(format_args!("<polyline class=\"line {class}\" points=\""));
        for (x, y) in points {
            self.append_svg_markup(format_args!("{x:.1},{y:.1} "));
        }
        self.append_svg_markup(format_args!(
            "\"><title>{}</title></polyline>",
            escape_markup(title)
        ));
    }

    /// Adds filled shapes; `outlines` is an SVG path.
    pub fn add_path(&mut self, outlines: &str, class: &str) {
        self.append_svg_markup(format_args!("<path class=\"{class}\" d=\"{outlines}\"/>"));
    }

    /// Adds a small circle with a tooltip.
    pub fn add_small_circle_with_tooltip(&mut self, (x, y): (f64, f64), class: &str, title: &str) {
        self.append_svg_markup(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"><title>{}</title></circle>",
            escape_markup(title)
        ));
    }

    /// Returns the complete SVG element, with `name` as its accessible name.
    pub fn into_element(self, name: &str) -> String {
        format!(
            "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {:.0} {:.0}\">{}</svg>",
            escape_markup(name),
            self.width,
            self.height,
            self.marks
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{SvgDrawing, escape_markup, standalone_svg};

    #[test]
    fn a_document_is_the_chart_with_its_own_colours() {
        let text = standalone_svg(&SvgDrawing::new(10.0, 20.0).into_element("a > b"));
        let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"a &gt; b\" viewBox=\"0 0 10 20\">";
        assert!(text.starts_with(head), "{text}");
        assert!(text[head.len()..].starts_with("<style>") && text.ends_with("</style></svg>\n"));
    }

    #[test]
    fn markup_characters_in_texts_are_escaped() {
        assert_eq!(
            escape_markup("a<b> & \"c\" 'd'\n"),
            "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;\u{fffd}"
        );
    }
}
