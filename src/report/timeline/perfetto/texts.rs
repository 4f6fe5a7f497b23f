//! Interned texts. Packets refer to them by id.

use super::schema::InternedText;
use std::collections::BTreeMap;

/// Texts of one kind and their ids.
#[derive(Debug, Default)]
pub struct TextNumbers {
    known: BTreeMap<String, u64>,
    /// Texts that no packet has defined yet.
    pub fresh: Vec<InternedText>,
}

impl TextNumbers {
    /// Returns the id of a text, and assigns the next id to a new text.
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
