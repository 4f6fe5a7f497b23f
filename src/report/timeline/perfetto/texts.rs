//! Interned strings, which packets refer to by id.

use super::schema::InternedText;
use std::collections::BTreeMap;

/// Strings of one kind and their ids.
#[derive(Debug, Default)]
pub struct InternedStringIds {
    known: BTreeMap<String, u64>,
    /// Strings that no packet has defined yet.
    pub fresh: Vec<InternedText>,
}

impl InternedStringIds {
    /// Returns the id of `text`; a new string gets the next free id.
    pub fn id_of_text(&mut self, text: &str) -> u64 {
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
