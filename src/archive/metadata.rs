//! Typed metadata of workloads, and queries over metadata.

use super::ArchiveError;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

/// Value of a metadata key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetadataValue {
    /// Text, which is compared without regard to case.
    Text(String),
    /// A number.
    Number(f64),
    /// A version, which is compared part by part: 2.10 is newer than 2.9.
    Version(String),
    /// A date, `YYYY-MM-DD`.
    Date(String),
}

/// Type of a metadata key's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetadataType {
    Text,
    Number,
    Version,
    Date,
}

/// Keys that have a fixed type, whatever the value.
const KEYS: [(&str, MetadataType); 12] = [
    ("cluster", MetadataType::Text),
    ("commit", MetadataType::Text),
    ("driver", MetadataType::Version),
    ("framework", MetadataType::Version),
    ("gpu", MetadataType::Text),
    ("licence", MetadataType::Text),
    ("model", MetadataType::Text),
    ("nccl", MetadataType::Version),
    ("owner", MetadataType::Text),
    ("retention", MetadataType::Date),
    ("step", MetadataType::Number),
    ("torch", MetadataType::Version),
];

impl MetadataValue {
    /// Parses the value of `key`. If the key has no fixed type, the type is guessed from the text.
    pub fn parse_value_of_key(key: &str, text: &str) -> Result<Self, ArchiveError> {
        let own = KEYS.iter().find(|(known, _)| *known == key);
        let Some((_, kind)) = own else {
            return Ok(Self::parse_guessing_type(text));
        };
        Self::parse_as_type(*kind, text).ok_or_else(|| {
            let (what, hint) = match kind {
                MetadataType::Text => ("text", "some text"),
                MetadataType::Number => ("a number", "for example 120"),
                MetadataType::Version => ("a version", "for example 2.5.1"),
                MetadataType::Date => ("a date", "YYYY-MM-DD"),
            };
            ArchiveError::refused_request_error(
                format!(
                    "{key}: `{}` is not {what}",
                    chakram_trace::format::escape_and_shorten_name(text)
                ),
                hint,
            )
        })
    }

    fn parse_guessing_type(text: &str) -> Self {
        let kinds = [
            MetadataType::Number,
            MetadataType::Date,
            MetadataType::Version,
        ];
        let found = kinds
            .into_iter()
            .find_map(|kind| Self::parse_as_type(kind, text));
        found.unwrap_or_else(|| Self::Text(text.to_owned()))
    }

    fn parse_as_type(kind: MetadataType, text: &str) -> Option<Self> {
        match kind {
            MetadataType::Text => Some(Self::Text(text.to_owned())),
            MetadataType::Number => {
                let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
                number.map(Self::Number)
            }
            MetadataType::Version => {
                let begins = text.starts_with(|c: char| c.is_ascii_digit());
                begins.then(|| Self::Version(text.to_owned()))
            }
            MetadataType::Date => is_date(text).then(|| Self::Date(text.to_owned())),
        }
    }

    /// Compares the value with the text of a query; returns `None` if the types differ.
    fn compare_with_query_text(&self, text: &str) -> Option<Ordering> {
        match self {
            Self::Text(own) => Some(own.to_lowercase().cmp(&text.to_lowercase())),
            Self::Number(own) => own.partial_cmp(&text.parse().ok()?),
            Self::Version(own) => Some(version_sort_key(own).cmp(&version_sort_key(text))),
            Self::Date(own) => is_date(text).then(|| own[..].cmp(text)),
        }
    }
}

impl fmt::Display for MetadataValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Version(text) | Self::Date(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Returns whether `text` is a valid date, such as `2026-02-28`.
pub fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else {
        return false;
    };
    let digits = |part: &str, n: usize| part.len() == n && part.bytes().all(|b| b.is_ascii_digit());
    if !(digits(year, 4) && digits(month, 2) && digits(day, 2)) {
        return false;
    }
    let number = |part: &str| part.parse::<u32>().unwrap_or(0);
    let (year, month, day) = (number(year), number(month), number(day));
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// Splits a version into parts that sort in version order. Numbers are compared by length and then by digits; all other
/// text sorts last.
fn version_sort_key(text: &str) -> Vec<(usize, &str)> {
    let mut parts: Vec<(usize, &str)> = text
        .split(['.', '+', '-'])
        .map(|part| {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let leading = part
                .bytes()
                .take_while(|byte| *byte == b'0')
                .count()
                .min(digits);
            (digits - leading, &part[leading..])
        })
        .collect();
    // Drop trailing zeros, because 2.5 and 2.5.0 are equal.
    while parts.last().is_some_and(|part| *part == (0, "")) {
        parts.pop();
    }
    parts
}

/// A query over workloads, such as `gpu = h100 and (framework >= 2.5 or not owner = me)`.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataQuery {
    /// Compares a key's value with the query's text.
    Compare(String, QueryComparisonOperator, String),
    /// True if both queries are true.
    And(Box<Self>, Box<Self>),
    /// True if at least one of the queries is true.
    Or(Box<Self>, Box<Self>),
    /// True if the query is false.
    Not(Box<Self>),
}

/// Comparison of a value with the query's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryComparisonOperator {
    /// The value equals the text.
    Equal,
    /// The value does not equal the text, or the key is missing.
    NotEqual,
    /// The value is less than the text.
    Less,
    /// The value is less than or equal to the text.
    AtMost,
    /// The value is greater than the text.
    Greater,
    /// The value is greater than or equal to the text.
    AtLeast,
    /// The value contains the text.
    Contains,
}

/// Maximum nesting depth of parentheses and negations.
const DEPTH: usize = 64;

/// Facts about a workload that queries can use.
pub trait QueryableWorkload {
    /// Returns the workload's name.
    fn workload_name(&self) -> &str;
    /// Returns the number of the workload's ranks.
    fn rank_count(&self) -> u64;
    /// Returns the metadata value of a key.
    fn metadata_value(&self, key: &str) -> Option<&MetadataValue>;
}

impl MetadataQuery {
    /// Parses a query.
    pub fn parse(text: &str) -> Result<Self, ArchiveError> {
        let tokens = tokenize(text)?;
        let mut parser = QueryParser {
            tokens: &tokens,
            at: 0,
            text,
        };
        let query = parser.parse_or(0)?;
        match parser.peek_token() {
            None => Ok(query),
            Some(_) => Err(parser.unexpected_token("`and` or `or`")),
        }
    }

    /// Returns whether `workload` matches the query.
    pub fn matches(&self, workload: &impl QueryableWorkload) -> bool {
        match self {
            Self::And(a, b) => a.matches(workload) && b.matches(workload),
            Self::Or(a, b) => a.matches(workload) || b.matches(workload),
            Self::Not(a) => !a.matches(workload),
            Self::Compare(key, comparison, text) => {
                let own = match &key[..] {
                    "name" => Some(&MetadataValue::Text(workload.workload_name().to_owned())),
                    "ranks" => Some(&MetadataValue::Number(workload.rank_count() as f64)),
                    _ => workload.metadata_value(key),
                };
                let Some(own) = own else {
                    return *comparison == QueryComparisonOperator::NotEqual;
                };
                if *comparison == QueryComparisonOperator::Contains {
                    let own = own.to_string().to_lowercase();
                    return own.contains(&text.to_lowercase());
                }
                let order = own.compare_with_query_text(text);
                match comparison {
                    QueryComparisonOperator::Equal => order == Some(Ordering::Equal),
                    QueryComparisonOperator::NotEqual => order != Some(Ordering::Equal),
                    QueryComparisonOperator::Less => order == Some(Ordering::Less),
                    QueryComparisonOperator::AtMost => order.is_some_and(Ordering::is_le),
                    QueryComparisonOperator::Greater => order == Some(Ordering::Greater),
                    QueryComparisonOperator::AtLeast => order.is_some_and(Ordering::is_ge),
                    QueryComparisonOperator::Contains => false,
                }
            }
        }
    }
}

/// A token of a query: a word or a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
enum QueryToken {
    /// A word, and whether it is quoted. A quoted word is never `and`, `or` or `not`.
    Word(String, bool),
    Sign(&'static str),
}

const SIGNS: [(&str, Option<QueryComparisonOperator>); 9] = [
    ("!=", Some(QueryComparisonOperator::NotEqual)),
    ("<=", Some(QueryComparisonOperator::AtMost)),
    (">=", Some(QueryComparisonOperator::AtLeast)),
    ("=", Some(QueryComparisonOperator::Equal)),
    ("<", Some(QueryComparisonOperator::Less)),
    (">", Some(QueryComparisonOperator::Greater)),
    ("~", Some(QueryComparisonOperator::Contains)),
    ("(", None),
    (")", None),
];

fn tokenize(text: &str) -> Result<Vec<QueryToken>, ArchiveError> {
    let mut all = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some((sign, _)) = SIGNS.iter().find(|(sign, _)| rest.starts_with(sign)) {
            all.push(QueryToken::Sign(sign));
            rest = &rest[sign.len()..];
        } else if let Some(quoted) = rest.strip_prefix(['"', '\'']) {
            let end = quoted.find(&rest[..1]).ok_or_else(|| {
                ArchiveError::refused_request_error(
                    format!("`{text}`: a quotation does not end"),
                    "a second quotation mark",
                )
            })?;
            all.push(QueryToken::Word(quoted[..end].to_owned(), true));
            rest = &quoted[end + 1..];
        } else {
            let ends = |c: char| c.is_whitespace() || "!<>=~()\"'".contains(c);
            let end = rest.find(ends).unwrap_or(rest.len()).max(1);
            if rest.starts_with('!') {
                return Err(ArchiveError::refused_request_error(
                    format!("`{text}`: `!` alone means nothing"),
                    "!= or not",
                ));
            }
            all.push(QueryToken::Word(rest[..end].to_owned(), false));
            rest = &rest[end..];
        }
        rest = rest.trim_start();
    }
    Ok(all)
}

struct QueryParser<'t> {
    tokens: &'t [QueryToken],
    at: usize,
    text: &'t str,
}

impl QueryParser<'_> {
    fn peek_token(&self) -> Option<&QueryToken> {
        self.tokens.get(self.at)
    }

    fn unexpected_token(&self, expected: &str) -> ArchiveError {
        let found = match self.peek_token() {
            None => "its end".to_owned(),
            Some(QueryToken::Word(word, _)) => format!("`{word}`"),
            Some(QueryToken::Sign(sign)) => format!("`{sign}`"),
        };
        ArchiveError::refused_request_error(
            format!("`{}`: expected {expected}, found {found}", self.text),
            "for example 'gpu = h100 and framework >= 2.5'",
        )
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek_token(), Some(QueryToken::Word(own, false)) if own == word);
        self.at += usize::from(found);
        found
    }

    fn advance_past_given_sign_if_next(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek_token(), Some(QueryToken::Sign(own)) if *own == sign);
        self.at += usize::from(found);
        found
    }

    fn parse_or(&mut self, depth: usize) -> Result<MetadataQuery, ArchiveError> {
        let mut query = self.parse_and(depth)?;
        while self.accept_word("or") {
            query = MetadataQuery::Or(Box::new(query), Box::new(self.parse_and(depth)?));
        }
        Ok(query)
    }

    fn parse_and(&mut self, depth: usize) -> Result<MetadataQuery, ArchiveError> {
        let mut query = self.parse_term(depth)?;
        while self.accept_word("and") {
            query = MetadataQuery::And(Box::new(query), Box::new(self.parse_term(depth)?));
        }
        Ok(query)
    }

    fn parse_term(&mut self, depth: usize) -> Result<MetadataQuery, ArchiveError> {
        if depth > DEPTH {
            return Err(self.unexpected_token("fewer parentheses within one another"));
        }
        if self.accept_word("not") {
            return Ok(MetadataQuery::Not(Box::new(self.parse_term(depth + 1)?)));
        }
        if self.advance_past_given_sign_if_next("(") {
            let query = self.parse_or(depth + 1)?;
            return if self.advance_past_given_sign_if_next(")") {
                Ok(query)
            } else {
                Err(self.unexpected_token("`)`"))
            };
        }
        let Some(QueryToken::Word(key, _)) = self.peek_token().cloned() else {
            return Err(self.unexpected_token("a key"));
        };
        self.at += 1;
        let comparison = match self.peek_token() {
            Some(QueryToken::Sign(sign)) => SIGNS
                .iter()
                .find(|(own, _)| own == sign)
                .and_then(|(_, c)| *c),
            _ => None,
        };
        let comparison =
            comparison.ok_or_else(|| self.unexpected_token("a comparison: = != < <= > >= ~"))?;
        self.at += 1;
        let Some(QueryToken::Word(value, _)) = self.peek_token().cloned() else {
            return Err(self.unexpected_token("a value"));
        };
        self.at += 1;
        Ok(MetadataQuery::Compare(key, comparison, value))
    }
}
