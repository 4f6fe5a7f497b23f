//! Topology files: a header, and a block for each chip with its linked chips.
//!
//! ```text
//! {
//!   Topology: 2D-torus
//!   Size: 4
//!   Dimension: 2
//! };
//! {
//!   Chip_id: 0
//!   Connected_chip_id: {1, 3}
//!   Connected_chip_distance: {1, 1}
//! }
//! ```

use super::{ChipGraph, ChipGraphError, MOST_CHIPS, MOST_DISTANCE};
use std::fmt::Write;

/// The keys of the header, and the keys of a chip's block.
const HEAD: [&str; 3] = ["Topology", "Size", "Dimension"];
const CHIP: [&str; 3] = ["Chip_id", "Connected_chip_id", "Connected_chip_distance"];

/// The values of a block, each with its line number.
type ChipBlockValuesAndLineNumbers<'t> = [Option<(usize, &'t str)>; 3];

impl ChipGraph {
    /// Parses a topology file; errors use `file` as the file's name.
    ///
    /// # Errors
    ///
    /// Fails if a line is invalid, or if a chip is missing or repeated. Also fails with the errors of
    /// [`ChipGraph::new`].
    pub fn parse(text: &str, file: &str) -> Result<Self, ChipGraphError> {
        let wrong = |line: usize, found: &str, expected: &str| ChipGraphError::Line {
            file: file.to_owned(),
            line,
            found: format!("{:?}", found.chars().take(60).collect::<String>()),
            expected: expected.to_owned(),
        };
        let mut head: Option<ChipBlockValuesAndLineNumbers<'_>> = None;
        let mut chips: Vec<(usize, ChipBlockValuesAndLineNumbers<'_>)> = Vec::new();
        let mut open: Option<(usize, ChipBlockValuesAndLineNumbers<'_>)> = None;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            match (line, &mut open) {
                ("" | "```", _) => {}
                ("{", None) => open = Some((number, [None; 3])),
                ("}" | "};", Some(_)) => {
                    let (start, block) = open.take().expect("it is open");
                    if head.is_none() {
                        head = Some(block);
                    } else {
                        chips.push((start, block));
                    }
                }
                (_, Some((_, block))) => {
                    let keys = if head.is_none() { HEAD } else { CHIP };
                    let expected = format!(
                        "one of {}, each once and followed by a colon",
                        keys.join(", ")
                    );
                    let (key, value) = line
                        .split_once(':')
                        .ok_or_else(|| wrong(number, line, &expected))?;
                    let place = keys.iter().position(|known| *known == key.trim());
                    let place = place
                        .filter(|place| block[*place].is_none())
                        .ok_or_else(|| wrong(number, line, &expected))?;
                    block[place] = Some((number, value.trim()));
                }
                (_, None) => {
                    return Err(wrong(
                        number,
                        line,
                        "`{`, which begins the header or a chip",
                    ));
                }
            }
        }
        if let Some((start, _)) = open {
            return Err(wrong(start, "{", "a `}` behind it"));
        }
        let end = text.lines().count().max(1);
        let head = head.ok_or_else(|| wrong(end, "nothing", "a head"))?;
        let need = |block: &ChipBlockValuesAndLineNumbers<'_>,
                    place: usize,
                    key: &str,
                    start: usize|
         -> Result<(usize, String), ChipGraphError> {
            let found = block[place].map(|(line, value)| (line, value.to_owned()));
            found.ok_or_else(|| wrong(start, "a block without this key", key))
        };
        let whole = |(line, value): (usize, String), most: u32| {
            let number = value.parse::<u32>().ok().filter(|number| *number <= most);
            number.ok_or_else(|| wrong(line, &value, &format!("a whole number up to {most}")))
        };
        let (_, name) = need(&head, 0, HEAD[0], 1)?;
        let size = whole(need(&head, 1, HEAD[1], 1)?, MOST_CHIPS)?;
        let dimensions = whole(need(&head, 2, HEAD[2], 1)?, MOST_CHIPS)?;
        let list = |(line, value): (usize, String),
                    most: u32|
         -> Result<Vec<u32>, ChipGraphError> {
            let inner = value
                .strip_prefix('{')
                .and_then(|rest| rest.strip_suffix('}'));
            let inner = inner.ok_or_else(|| wrong(line, &value, "numbers in braces: {1, 3}"))?;
            let parts = inner
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty());
            parts
                .map(|part| whole((line, part.to_owned()), most))
                .collect()
        };
        let mut links: Vec<Option<Vec<(u32, u32)>>> = vec![None; size as usize];
        for (start, block) in &chips {
            let last = size.saturating_sub(1);
            let id = whole(need(block, 0, CHIP[0], *start)?, last)?;
            let beside = need(block, 1, CHIP[1], *start)?;
            let line = beside.0;
            let beside = list(beside, last)?;
            let distances = need(block, 2, CHIP[2], *start)?;
            let distance_line = distances.0;
            let distances = list(distances, MOST_DISTANCE)?;
            if distances.len() != beside.len() || distances.contains(&0) {
                let expected = format!(
                    "{} distances of at least 1, one for each connected chip",
                    beside.len()
                );
                return Err(wrong(distance_line, &format!("{distances:?}"), &expected));
            }
            let twice = (1..)
                .zip(&beside)
                .any(|(i, chip)| beside[i..].contains(chip));
            if twice || beside.contains(&id) {
                return Err(wrong(line, &format!("{beside:?}"), "different other chips"));
            }
            if links[id as usize]
                .replace(beside.into_iter().zip(distances).collect())
                .is_some()
            {
                return Err(wrong(*start, &format!("chip {id}"), "each chip once"));
            }
        }
        let missing = links.iter().position(Option::is_none);
        if let Some(chip) = missing {
            return Err(wrong(
                end,
                &format!("no chip {chip}"),
                &format!("chips 0 to {}", size.saturating_sub(1)),
            ));
        }
        if size == 0 {
            return Err(wrong(end, "a size of 0", "at least one chip"));
        }
        Self::new(name, dimensions, links.into_iter().flatten().collect())
    }

    /// Formats the graph as a topology file.
    pub fn to_file_text(&self) -> String {
        let mut text = format!(
            "{{\n  Topology: {}\n  Size: {}\n  Dimension: {}\n}};\n",
            self.name,
            self.chip_count(),
            self.dimensions
        );
        for chip in 0..self.chip_count() {
            let list = |part: &dyn Fn(&(u32, u32)) -> u32| {
                let parts: Vec<String> = self
                    .neighbours_of(chip)
                    .iter()
                    .map(|link| part(link).to_string())
                    .collect();
                parts.join(", ")
            };
            write!(
                text,
                "{{\n  Chip_id: {chip}\n  Connected_chip_id: {{{}}}\n  Connected_chip_distance: {{{}}}\n}}\n",
                list(&|link| link.0),
                list(&|link| link.1)
            )
            .expect("a string grows as needed");
        }
        text
    }
}
