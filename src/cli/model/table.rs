//! Tables of text: columns as wide as what is in them.

/// Alignment of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnAlignment {
    Left,
    Right,
}

/// `rows` one below the other, two spaces between columns, none at the ends of lines.
pub(super) fn render<const N: usize>(rows: &[[String; N]], sides: [ColumnAlignment; N]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, width), side) in row.iter().zip(widths).zip(sides) {
            line += &match side {
                ColumnAlignment::Left => format!("{cell:width$}  "),
                ColumnAlignment::Right => format!("{cell:>width$}  "),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
