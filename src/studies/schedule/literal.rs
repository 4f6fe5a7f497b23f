//! Parses Python and JSON literals, which schedules use.

use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    /// `None` or `null`.
    None,
    Whole(u64),
    Text(String),
    List(Vec<Literal>),
    Dictionary(BTreeMap<String, Literal>),
}

/// Error in a text that is not a valid literal.
pub(super) struct LiteralError {
    pub line: usize,
    pub why: String,
}

/// Maximum nesting depth of lists and dictionaries.
const DEEPEST: usize = 16;

/// Parses a literal.
pub(super) fn parse(text: &str) -> Result<Literal, LiteralError> {
    let mut reader = LiteralReader { text, at: 0 };
    let literal = reader.read_literal(0)?;
    match reader.peek_non_blank_char() {
        None => Ok(literal),
        Some(found) => Err(reader.syntax_error(format!("found {found:?}, expected the end"))),
    }
}

struct LiteralReader<'t> {
    text: &'t str,
    at: usize,
}

impl LiteralReader<'_> {
    fn syntax_error(&self, why: String) -> LiteralError {
        let line = 1 + self.text[..self.at].matches('\n').count();
        LiteralError { line, why }
    }

    /// Returns the next character that is not white space.
    fn peek_non_blank_char(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.text[self.at..].chars().next()
    }

    /// Consumes `wanted` if it is the next character.
    fn accept_char(&mut self, wanted: char) -> bool {
        let is = self.peek_non_blank_char() == Some(wanted);
        self.at += if is { wanted.len_utf8() } else { 0 };
        is
    }

    fn read_literal(&mut self, depth: usize) -> Result<Literal, LiteralError> {
        if depth > DEEPEST {
            return Err(self.syntax_error(format!("found more than {DEEPEST} nested lists")));
        }
        match self.peek_non_blank_char() {
            Some('[') => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.accept_char(']') {
                    items.push(self.read_literal(depth + 1)?);
                    if !self.accept_char(',') && self.peek_non_blank_char() != Some(']') {
                        return Err(self.syntax_error("expected `,` or `]`".to_owned()));
                    }
                }
                Ok(Literal::List(items))
            }
            Some('{') => {
                self.at += 1;
                let mut entries = BTreeMap::new();
                while !self.accept_char('}') {
                    let Literal::Text(key) = self.read_literal(depth + 1)? else {
                        return Err(self.syntax_error("expected a key in quotes".to_owned()));
                    };
                    if !self.accept_char(':') {
                        return Err(self.syntax_error(format!("expected `:` behind {key:?}")));
                    }
                    let value = self.read_literal(depth + 1)?;
                    if entries.insert(key.clone(), value).is_some() {
                        return Err(self.syntax_error(format!("found {key:?} twice")));
                    }
                    if !self.accept_char(',') && self.peek_non_blank_char() != Some('}') {
                        return Err(self.syntax_error("expected `,` or `}`".to_owned()));
                    }
                }
                Ok(Literal::Dictionary(entries))
            }
            Some(quote @ ('\'' | '"')) => {
                let inside = &self.text[self.at + 1..];
                let end = inside
                    .find(quote)
                    // Reject backslashes, because schedules need no escapes and this parser would misread them.
                    .filter(|end| !inside[..*end].contains(['\\', '\n']));
                let end = end.ok_or_else(|| {
                    self.syntax_error(format!("found {quote} without a closing quote on its line"))
                })?;
                self.at += end + 2;
                Ok(Literal::Text(inside[..end].to_owned()))
            }
            Some(c) if c.is_ascii_alphanumeric() => {
                let rest = &self.text[self.at..];
                let end = rest
                    .find(|c: char| !c.is_ascii_alphanumeric())
                    .unwrap_or(rest.len());
                let word = &rest[..end];
                let found = match word {
                    "None" | "null" => Some(Literal::None),
                    _ => word.parse().ok().map(Literal::Whole),
                };
                let found = found.ok_or_else(|| {
                    let shown: String = word.chars().take(40).collect();
                    self.syntax_error(format!(
                        "found `{shown}`, expected a whole number, a text or None"
                    ))
                })?;
                self.at += end;
                Ok(found)
            }
            Some(other) => Err(self.syntax_error(format!("found {other:?}, expected a literal"))),
            None => Err(self.syntax_error("found the end, expected a literal".to_owned())),
        }
    }
}
