//! Texts that packets name by numbers.

use super::schema::InternedText;
use std::collections::BTreeMap;

/// Texts of one sort with their numbers.
#[derive(Debug, Default)]
pub struct TextNumbers {
    known: BTreeMap<String, u64>,
    /// Those that no packet has carried yet.
    pub fresh: Vec<InternedText>,
}

impl TextNumbers {
    /// Returns the number of a text, a new one if it has none.
    pub fn number(&mut self, text: &str) -> u64 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let iid = self.known.len() as u64 + 1;
        self.known.insert(text.to_owned(), iid);
        self.fresh.push(InternedText {
            iid,
            text: text.to_owned(),
        });
        iid
    }
}
