//! Parses GOAL text: `num_ranks N`, then a block `rank R { … }` per rank, with one operation or dependency per line.
//!
//! ```text
//! l1: calc 100 cpu 0
//! l2: send 10b to 1 tag 5 cpu 0 nic 0
//! l3: recv 10b from 1
//! l2 requires l1
//! l3 irequires l2
//! ```
//!
//! Labels begin with a letter. A comment begins with `//` and ends with the line, or is enclosed in `/* … */`.

use super::{GoalOperation, GoalOperationKind, GoalRankProgram, GoalSchedule, error_at_line};
use chakram_trace::format::{TraceError, escape_and_shorten_name};
use std::collections::BTreeMap;

/// Splits a text into words, with line numbers counted from 1. A line end becomes the word `\n`; each `:`, `{` and `}`
/// is a separate word.
pub(super) struct GoalTokenizer<'t> {
    rest: &'t str,
    line: usize,
}

impl<'t> GoalTokenizer<'t> {
    pub fn new(text: &'t str) -> Self {
        Self {
            rest: text.strip_prefix('\u{feff}').unwrap_or(text),
            line: 1,
        }
    }

    fn take_bytes(&mut self, length: usize) -> &'t str {
        let (word, rest) = self.rest.split_at(length);
        self.line += word.bytes().filter(|byte| *byte == b'\n').count();
        self.rest = rest;
        word
    }
}

impl<'t> Iterator for GoalTokenizer<'t> {
    type Item = (usize, &'t str);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let blank = self.rest.len() - self.rest.trim_start_matches([' ', '\t', '\r']).len();
            self.take_bytes(blank);
            if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.take_bytes(end);
            } else if self.rest.starts_with("/*") {
                let end = self.rest.find("*/").map_or(self.rest.len(), |end| end + 2);
                self.take_bytes(end);
            } else {
                break;
            }
        }
        let line = self.line;
        let first = self.rest.chars().next()?;
        let length = match first {
            ':' | '{' | '}' | '\n' => 1,
            _ => {
                let end = |c: char| c.is_ascii_whitespace() || matches!(c, ':' | '{' | '}' | '/');
                self.rest
                    .find(end)
                    .unwrap_or(self.rest.len())
                    .max(first.len_utf8())
            }
        };
        Some((line, self.take_bytes(length)))
    }
}

/// A parser with one word of lookahead.
struct GoalParser<'t> {
    words: std::iter::Peekable<GoalTokenizer<'t>>,
    /// Line of the last word read, counted from 1.
    line: usize,
}

/// A dependency whose labels have not been resolved yet.
struct LabelledDependency<'t> {
    line: usize,
    later: &'t str,
    earlier: &'t str,
    /// True if the earlier operation only needs to begin (`irequires`).
    begins: bool,
}

impl GoalSchedule {
    /// Parses a text.
    ///
    /// # Errors
    ///
    /// Fails in four cases: a line is neither an operation nor a dependency; a label is unknown or
    /// duplicate; a rank is missing, duplicate or too large; a receive accepts any rank or any tag.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut parser = GoalParser {
            words: GoalTokenizer::new(text).peekable(),
            line: 1,
        };
        parser.skip_line_ends();
        parser.expect_word("num_ranks", "`num_ranks N` on the first line")?;
        let ranks = parser.read_number("the number of ranks", MOST_RANKS)? as u32;
        let mut programs: Vec<Option<GoalRankProgram>> = vec![None; ranks as usize];
        loop {
            parser.skip_line_ends();
            if parser.words.peek().is_none() {
                break;
            }
            parser.expect_word("rank", "`rank R {`")?;
            let rank = parser.read_number("the rank", u64::from(ranks).saturating_sub(1))?;
            let line = parser.line;
            parser.skip_line_ends();
            parser.expect_word("{", "`{` after the rank")?;
            let Some(slot) = programs.get_mut(rank as usize) else {
                let found = format!("a block for rank {rank}, but `num_ranks` is 0");
                return Err(error_at_line(
                    line,
                    found,
                    "the number of rank blocks as `num_ranks` on the first line",
                ));
            };
            if slot.is_some() {
                let found = format!("a second block for rank {rank}");
                return Err(error_at_line(line, found, "one block for each rank"));
            }
            *slot = Some(parser.read_rank_program(rank as u32, ranks)?);
        }
        let end = parser.line;
        let programs = programs.into_iter().enumerate().map(|(rank, program)| {
            let found = || format!("the text ends without a block for rank {rank} of {ranks}");
            program.ok_or_else(|| {
                error_at_line(end, found(), "a block for each rank, which may be empty")
            })
        });
        let programs = programs.collect::<Result<_, _>>()?;
        Ok(Self { programs })
    }
}

/// Maximum number of ranks.
const MOST_RANKS: u64 = 1 << 20;

impl<'t> GoalParser<'t> {
    fn next(&mut self) -> Option<&'t str> {
        let (line, word) = self.words.next()?;
        self.line = line;
        Some(word)
    }

    fn consume_if_next(&mut self, word: &str) -> bool {
        let is = self.words.peek().is_some_and(|(_, next)| *next == word);
        if is {
            self.next();
        }
        is
    }

    /// Skips line ends.
    fn skip_line_ends(&mut self) {
        while self.consume_if_next("\n") {}
    }

    fn unexpected_word_error(&mut self, expected: &str) -> TraceError {
        let found = match self.words.peek() {
            Some(&(line, word)) => {
                self.line = line;
                format!("found `{}`", escape_and_shorten_name(word))
            }
            None => "the text ends".to_owned(),
        };
        error_at_line(self.line, format!("{found}, expected {expected}"), FORM)
    }

    fn expect_word(&mut self, word: &str, expected: &str) -> Result<(), TraceError> {
        if self.consume_if_next(word) {
            Ok(())
        } else {
            Err(self.unexpected_word_error(expected))
        }
    }

    /// Reads a number from 0 to `most`.
    fn read_number(&mut self, what: &str, most: u64) -> Result<u64, TraceError> {
        let parsed = self.words.peek().and_then(|(_, word)| word.parse().ok());
        match parsed.filter(|number| *number <= most) {
            Some(number) => {
                self.next();
                Ok(number)
            }
            None => {
                Err(self.unexpected_word_error(&format!("{what}, a whole number from 0 to {most}")))
            }
        }
    }

    /// Reads the operations and dependencies of a rank, and the closing brace.
    fn read_rank_program(&mut self, rank: u32, ranks: u32) -> Result<GoalRankProgram, TraceError> {
        let mut program = GoalRankProgram::default();
        let mut labels: BTreeMap<&str, u32> = BTreeMap::new();
        let mut dependencies = Vec::new();
        loop {
            self.skip_line_ends();
            if self.consume_if_next("}") {
                break;
            }
            let Some(&(line, word)) = self.words.peek() else {
                return Err(self.unexpected_word_error("an operation, a dependency or `}`"));
            };
            let mut label = "";
            if !matches!(word, "calc" | "send" | "recv")
                && word.starts_with(|c: char| c.is_ascii_alphabetic())
            {
                self.next();
                if let Some(begins) = self.read_dependency_keyword() {
                    dependencies.push(self.read_dependency(line, word, begins)?);
                    continue;
                }
                self.expect_word(":", "`:`, `requires` or `irequires` after the label")?;
                label = word;
            }
            let place = program.operations.len() as u32;
            if !label.is_empty() && labels.insert(label, place).is_some() {
                let found = format!(
                    "a second operation with the label `{}`",
                    escape_and_shorten_name(label)
                );
                return Err(error_at_line(
                    line,
                    found,
                    "a label of its own for each operation of a rank",
                ));
            }
            let (kind, cpu) = self.read_operation(rank, ranks)?;
            program.operations.push(GoalOperation {
                label: label.to_owned(),
                kind,
                cpu,
                after_end: Vec::new(),
                after_begin: Vec::new(),
                line,
            });
        }
        for LabelledDependency {
            line,
            later,
            earlier,
            begins,
        } in dependencies
        {
            let place = |label: &str| {
                labels.get(label).copied().ok_or_else(|| {
                    let found = format!(
                        "rank {rank} has no operation `{}`",
                        escape_and_shorten_name(label)
                    );
                    error_at_line(line, found, "labels of operations of the same rank")
                })
            };
            let (later, earlier) = (place(later)?, place(earlier)?);
            let operation = &mut program.operations[later as usize];
            let list = if begins {
                &mut operation.after_begin
            } else {
                &mut operation.after_end
            };
            list.push(earlier);
        }
        for operation in &mut program.operations {
            for list in [&mut operation.after_end, &mut operation.after_begin] {
                list.sort_unstable();
                list.dedup();
            }
        }
        Ok(program)
    }

    /// Consumes the next word if it is a dependency keyword. Returns true if the earlier operation only needs to begin.
    fn read_dependency_keyword(&mut self) -> Option<bool> {
        if self.consume_if_next("requires") {
            Some(false)
        } else {
            self.consume_if_next("irequires").then_some(true)
        }
    }

    fn read_dependency(
        &mut self,
        line: usize,
        later: &'t str,
        begins: bool,
    ) -> Result<LabelledDependency<'t>, TraceError> {
        let earlier = match self.words.peek() {
            Some(&(_, word)) if word.starts_with(|c: char| c.is_ascii_alphabetic()) => word,
            _ => return Err(self.unexpected_word_error("a label")),
        };
        self.next();
        self.require_line_end_ahead()?;
        Ok(LabelledDependency {
            line,
            later,
            earlier,
            begins,
        })
    }

    fn require_line_end_ahead(&mut self) -> Result<(), TraceError> {
        match self.words.peek() {
            None | Some((_, "\n" | "}")) => Ok(()),
            _ => Err(self.unexpected_word_error("the end of the line")),
        }
    }

    /// Reads the rest of a line: an operation and the processor that it occupies.
    fn read_operation(
        &mut self,
        rank: u32,
        ranks: u32,
    ) -> Result<(GoalOperationKind, u32), TraceError> {
        let Some(&(line, word)) = self.words.peek() else {
            return Err(self.unexpected_word_error(OPERATION));
        };
        let receive = match word {
            "calc" => {
                self.next();
                let ns = self.read_number("nanoseconds", MOST_NS)?;
                let cpu = if self.consume_if_next("cpu") {
                    self.read_number("a processor", MOST_CPU)?
                } else {
                    0
                };
                self.require_line_end_ahead()?;
                return Ok((GoalOperationKind::Calculation { ns }, cpu as u32));
            }
            "send" => false,
            "recv" => true,
            _ => return Err(self.unexpected_word_error(OPERATION)),
        };
        self.next();
        let bytes = self.read_size()?;
        let (word, what) = if receive {
            ("from", "`from`")
        } else {
            ("to", "`to`")
        };
        self.expect_word(word, what)?;
        self.reject_wildcard("rank")?;
        let peer = self.read_number("a rank", u64::from(ranks) - 1)? as u32;
        if peer == rank {
            let found = format!("rank {rank} exchanges a message with itself");
            return Err(error_at_line(
                line,
                found,
                "a `calc` for copies within a rank",
            ));
        }
        let mut tag = 0;
        if self.consume_if_next("tag") {
            self.reject_wildcard("tag")?;
            tag = self.read_number("a tag", i32::MAX as u64)? as i32;
        }
        let cpu = if self.consume_if_next("cpu") {
            self.read_number("a processor", MOST_CPU)?
        } else {
            0
        };
        if self.consume_if_next("nic") {
            self.read_number("a network interface", MOST_CPU)?;
        }
        self.require_line_end_ahead()?;
        let kind = GoalOperationKind::Message {
            receive,
            peer,
            bytes,
            tag,
        };
        Ok((kind, cpu as u32))
    }

    /// Reads a size in bytes, written `10b` or `10 b`.
    fn read_size(&mut self) -> Result<u64, TraceError> {
        const EXPECTED: &str = "bytes, such as `10b`";
        let word = self.words.peek().map_or("", |(_, word)| word);
        let (digits, unit) = match word.strip_suffix('b') {
            Some(digits) => (digits, true),
            None => (word, false),
        };
        let Some(bytes) = digits.parse().ok().filter(|bytes| *bytes <= MOST_BYTES) else {
            return Err(self.unexpected_word_error(EXPECTED));
        };
        self.next();
        if !unit {
            self.expect_word("b", EXPECTED)?;
        }
        Ok(bytes)
    }

    fn reject_wildcard(&mut self, what: &str) -> Result<(), TraceError> {
        match self.words.peek() {
            Some(&(line, "-1")) => Err(error_at_line(
                line,
                format!("the receive accepts any {what} (-1), so the matching send is unknown"),
                format!("the {what} that the receive matched in the traced run"),
            )),
            _ => Ok(()),
        }
    }
}

const OPERATION: &str = "`calc`, `send` or `recv`";
const FORM: &str = "lines such as `l1: send 10b to 1 tag 5`, `l1: calc 100` and `l2 requires l1`";
/// Maximum duration of a calculation, in ns. The duration in picoseconds must fit in 64 bits.
const MOST_NS: u64 = u64::MAX / 1000;
const MOST_CPU: u64 = 1 << 16;
const MOST_BYTES: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_dependencies_are_read_in_any_spacing() {
        let text = "\u{feff}// a schedule\r\nnum_ranks 2\r\nrank 0 {\r\nl1: calc 100 cpu 3\n  l2 :send 10 b to 1 tag 5 cpu 1 nic 0 /* a\n\
                    comment */\nl2 requires l1\nl3: calc 0\nl3 irequires l2\nl3 requires l1\nl3 requires l1\n}\n\nrank 1\n{ recv 10b from 0 tag 5 }";
        let schedule = GoalSchedule::parse(text).expect("it is one");
        let operation =
            |label: &str, kind, cpu, after_end: &[u32], after_begin: &[u32], line| GoalOperation {
                label: label.to_owned(),
                kind,
                cpu,
                after_end: after_end.to_vec(),
                after_begin: after_begin.to_vec(),
                line,
            };
        let message = |receive, peer| GoalOperationKind::Message {
            receive,
            peer,
            bytes: 10,
            tag: 5,
        };
        let calculation = |ns| GoalOperationKind::Calculation { ns };
        assert_eq!(
            schedule.programs[0].operations,
            [
                operation("l1", calculation(100), 3, &[], &[], 4),
                operation("l2", message(false, 1), 1, &[0], &[], 5),
                operation("l3", calculation(0), 0, &[0], &[1], 8),
            ]
        );
        assert_eq!(
            schedule.programs[1].operations,
            [operation("", message(true, 0), 0, &[], &[], 15)]
        );
        assert!(
            GoalSchedule::begins_as_goal(text.as_bytes())
                && !GoalSchedule::begins_as_goal(b"rank 0 {")
        );
    }

    #[test]
    fn invalid_goal_texts_are_refused_with_their_line() {
        let with =
            |line: &str| format!("num_ranks 2\nrank 0 {{\na: calc 1\n{line}\n}}\nrank 1 {{\n}}\n");
        for (text, found) in [
            (with("b: calc -5"), "line 4"),
            (
                with("b: calc 1 nic 0"),
                "found `nic`, expected the end of the line",
            ),
            (
                with("b: sned 1b to 1"),
                "found `sned`, expected `calc`, `send` or `recv`",
            ),
            (with("b: send 1 to 1"), "expected bytes, such as `10b`"),
            (with("b: send 1b from 1"), "expected `to`"),
            (
                with("b: send 1b to 2"),
                "a rank, a whole number from 0 to 1",
            ),
            (with("b: send 1b to 0"), "with itself"),
            (with("b: recv 1b from -1"), "accepts any rank"),
            (with("b: recv 1b from 1 tag -1"), "accepts any tag"),
            (with("a: calc 2"), "the label `a`"),
            (with("a requires c"), "rank 0 has no operation `c`"),
            (with("a needs a"), "`:`, `requires` or `irequires`"),
            (
                "num_ranks 2\nrank 0 {\n}\n".to_owned(),
                "without a block for rank 1 of 2",
            ),
            (
                "num_ranks 1\nrank 0 {\n}\nrank 0 {\n}\n".to_owned(),
                "a second block for rank 0",
            ),
            (
                "num_ranks 1\nrank 0 {\ncalc 1\n".to_owned(),
                "the text ends",
            ),
            ("num_ranks 99999999".to_owned(), "the number of ranks"),
            (
                "num_ranks 0\nrank 0 {\n}\n".to_owned(),
                "a block for rank 0, but `num_ranks` is 0",
            ),
            ("rank 0 {\n}".to_owned(), "`num_ranks N`"),
            (String::new(), "the text ends"),
        ] {
            let error = GoalSchedule::parse(&text).expect_err(&text).to_string();
            assert!(error.contains(found), "{error}\nlacks {found}");
        }
    }
}
