//! Assigns numbers to byte strings. The strings cannot be iterated over, so no order depends on a hash.

#![allow(
    clippy::disallowed_types,
    reason = "the map is looked up and has no iterator outside"
)]

use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::Arc;

/// Interned byte strings, each with its number. Clones share the memory of the strings.
#[derive(Clone, Debug, Default)]
pub struct ByteStringInterner {
    numbers: HashMap<Arc<[u8]>, u32, RandomState>,
}

impl ByteStringInterner {
    /// Returns the number of byte strings.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the number of `bytes`, if they have one.
    pub fn find_number_of_bytes(&self, bytes: &[u8]) -> Option<u32> {
        self.numbers.get(bytes).copied()
    }

    /// Returns the number of `bytes`, or the next number if they are new.
    pub fn intern_bytes(&mut self, bytes: &[u8]) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(bytes.into()).or_insert(next)
    }
}
