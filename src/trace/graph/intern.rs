//! Assigns indices to ids, names and keys (interning). No type in this module can be iterated in hash order.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

/// Hasher with a fixed seed, so that every run takes the same memory and time. The seed does not affect any order.
const HASHER: FixedState = FixedState::with_seed(0x6368_616b_7261_6d00);

/// Returns a hash that is the same on every run.
pub fn stable_hash(value: &impl Hash) -> u64 {
    HASHER.hash_one(value)
}

/// Stores distinct strings in one arena, and numbers them in order of first use.
#[derive(Clone, Default)]
pub struct StringArenaInterner {
    text: String,
    ends: Vec<u32>,
    /// For each name, its index and the upper half of its hash. Thanks to the stored hash, the table can grow without
    /// reading the names.
    index: HashTable<(u32, u32)>,
    /// Concatenated names that wait for [`StringArenaInterner::intern_staged_names`].
    staged: String,
    staged_ends: Vec<(u32, usize)>,
}

/// Number of staged names that are looked up together.
const BATCH: usize = 64;

impl StringArenaInterner {
    /// Reserves memory for `names` names of about 32 bytes each.
    pub fn reserve_names(&mut self, names: usize) {
        self.text.reserve(names * 32);
        self.ends.reserve(names);
        self.index.reserve(names, |&(short, _)| spread_hash(short));
    }

    /// Stages `name`, so that it is interned later. Returns true if the caller must call
    /// [`StringArenaInterner::intern_staged_names`] now.
    ///
    /// Look-ups in a large table miss the cache. The misses of consecutive look-ups overlap, but only if no node is
    /// read in between. Look-ups are therefore batched.
    #[inline]
    pub fn stage_name_returning_batch_full(&mut self, name: &str) -> bool {
        self.staged.push_str(name);
        let short = (HASHER.hash_one(name) >> 32) as u32;
        self.staged_ends.push((short, self.staged.len()));
        // A batch usually takes a few kilobytes. The limit on bytes matters only for extremely long names.
        self.staged_ends.len() == BATCH || self.staged.len() > 1 << 20
    }

    /// Appends the indices of the staged names to `numbers`, in the order in which they were staged. Returns `None` if
    /// the arena is full (4 GiB).
    pub fn intern_staged_names(&mut self, numbers: &mut Vec<u32>) -> Option<()> {
        let staged = std::mem::take(&mut self.staged);
        let ends = std::mem::take(&mut self.staged_ends);
        let first = numbers.len();
        let at = |i: usize| {
            let start = if i == 0 { 0 } else { ends[i - 1].1 };
            &staged[start..ends[i].1]
        };
        for (i, &(short, _)) in ends.iter().enumerate() {
            numbers.push(self.find_name_by_hash(short, at(i)).unwrap_or(u32::MAX));
        }
        for (i, &(short, _)) in ends.iter().enumerate() {
            let number = &mut numbers[first + i];
            if *number == u32::MAX {
                *number = self.intern_name_by_hash(short, at(i))?;
            }
        }
        (self.staged, self.staged_ends) = (staged, ends);
        self.staged.clear();
        self.staged_ends.clear();
        Some(())
    }

    #[inline]
    fn find_name_by_hash(&self, short: u32, name: &str) -> Option<u32> {
        let at = |i: u32| slice_name(&self.text, &self.ends, i);
        let same = |&(other, i): &(u32, u32)| other == short && at(i) == name;
        self.index
            .find(spread_hash(short), same)
            .map(|&(_, found)| found)
    }

    /// Returns the index of `name`. A new name is added first. Returns `None` if the arena is full (4 GiB).
    #[inline]
    pub fn intern_name(&mut self, name: &str) -> Option<u32> {
        self.intern_name_by_hash((HASHER.hash_one(name) >> 32) as u32, name)
    }

    #[inline]
    fn intern_name_by_hash(&mut self, short: u32, name: &str) -> Option<u32> {
        if let Some(found) = self.find_name_by_hash(short, name) {
            return Some(found);
        }
        let end = u32::try_from(self.text.len() + name.len()).ok()?;
        let new = self.ends.len() as u32;
        self.text.push_str(name);
        self.ends.push(end);
        self.index
            .insert_unique(spread_hash(short), (short, new), |&(short, _)| {
                spread_hash(short)
            });
        Some(new)
    }

    /// Appends `name` without searching for an equal one, and returns its index. This also works after
    /// [`Self::free_hash_table`].
    pub fn push_new_name(&mut self, name: &str) -> u32 {
        self.text.push_str(name);
        self.ends.push(self.text.len() as u32);
        self.ends.len() as u32 - 1
    }

    /// Returns the name at index `i`.
    pub fn get(&self, i: u32) -> &str {
        slice_name(&self.text, &self.ends, i)
    }

    /// Returns the number of distinct names.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there is no name.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Renumbers the names in the order given by `uses`, which must contain every name.
    pub fn renumber_names_by_use_order<'u>(&mut self, uses: impl Iterator<Item = &'u mut u32>) {
        let old = std::mem::take(self);
        for number in uses {
            let new = self.intern_name(old.get(*number));
            *number = new.expect("the arena held these names before");
        }
    }

    /// Frees the hash table, which only interning needs.
    pub fn free_hash_table(&mut self) {
        self.index = HashTable::new();
        (self.staged, self.staged_ends) = (String::new(), Vec::new());
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

/// Expands the stored 32 bits of a hash to 64 bits, because the table uses the lower bits for the bucket and the upper
/// bits for a tag.
#[inline]
fn spread_hash(short: u32) -> u64 {
    u64::from(short) << 32 | u64::from(short)
}

#[inline]
fn slice_name<'t>(text: &'t str, ends: &[u32], i: u32) -> &'t str {
    let i = i as usize;
    let start = if i == 0 { 0 } else { ends[i - 1] as usize };
    &text[start..ends[i] as usize]
}

impl PartialEq for StringArenaInterner {
    fn eq(&self, other: &Self) -> bool {
        self.ends == other.ends && self.text == other.text
    }
}

impl Eq for StringArenaInterner {}

impl std::fmt::Debug for StringArenaInterner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries((0..self.ends.len() as u32).map(|i| self.get(i)))
            .finish()
    }
}

/// Distinct keys, with indices in order of first use.
#[derive(Clone, Debug)]
pub struct DistinctKeyInterner<K> {
    keys: Vec<K>,
    index: HashTable<u32>,
    last: u32,
}

impl<K> Default for DistinctKeyInterner<K> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            index: HashTable::new(),
            last: 0,
        }
    }
}

impl<K: Hash + Eq> DistinctKeyInterner<K> {
    /// Returns the index of `key`. A new key is added first. If the same key is looked up twice in a row, the second
    /// look-up takes only one comparison.
    #[inline]
    pub fn intern_key(&mut self, key: K) -> u32 {
        if self.keys.get(self.last as usize) == Some(&key) {
            return self.last;
        }
        let hash = HASHER.hash_one(&key);
        let keys = &self.keys;
        self.last = match self.index.find(hash, |&i| keys[i as usize] == key) {
            Some(&found) => found,
            None => {
                let new = self.keys.len() as u32;
                self.keys.push(key);
                let keys = &self.keys;
                self.index
                    .insert_unique(hash, new, |&i| HASHER.hash_one(&keys[i as usize]));
                new
            }
        };
        self.last
    }

    /// Returns the index of `key`, like [`Self::intern_key`]. If `expected` is the right index, this takes only one
    /// comparison; a wrong `expected` has no effect.
    #[inline]
    pub fn intern_expected_key(&mut self, key: K, expected: u32) -> u32 {
        if self.keys.get(expected as usize) == Some(&key) {
            return expected;
        }
        self.intern_key(key)
    }

    /// Returns the index of `key`, or `None` if the key is unknown.
    pub fn find_index_if_key_is_known<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
    {
        let same = |&i: &u32| self.keys[i as usize].borrow() == key;
        self.index.find(HASHER.hash_one(key), same).copied()
    }

    /// Returns the keys in order of first use.
    pub fn into_keys(self) -> Vec<K> {
        self.keys
    }

    /// Returns the keys in order of first use.
    pub fn keys(&self) -> &[K] {
        &self.keys
    }
}

/// Map from node ids to indices: an array for dense ids, and a hash table for all others.
#[derive(Clone, Debug, Default)]
pub struct NodeIdMap {
    dense: Vec<u32>,
    /// Ids at or above this limit are in the hash table, so that a single huge id does not require a huge array.
    dense_limit: u64,
    sparse: HashTable<(u64, u32)>,
}

const ABSENT: u32 = u32::MAX;

impl NodeIdMap {
    /// Creates a map that spends at most 4 bytes on each id below `dense_limit`.
    pub fn new(dense_limit: u64) -> Self {
        Self {
            dense: Vec::new(),
            dense_limit,
            sparse: HashTable::new(),
        }
    }

    /// Returns the index of `id`, or `None` if the id is unknown.
    #[inline]
    pub fn get(&self, id: u64) -> Option<u32> {
        if id < self.dense_limit {
            match self.dense.get(id as usize) {
                Some(&index) if index != ABSENT => Some(index),
                _ => None,
            }
        } else {
            let found = self.sparse.find(HASHER.hash_one(id), |(k, _)| *k == id);
            found.map(|(_, index)| *index)
        }
    }

    /// Replaces every index `i` in the map by `new[i]`.
    pub fn replace_node_indices(&mut self, new: &[u32]) {
        for index in self.dense.iter_mut().filter(|index| **index != ABSENT) {
            *index = new[*index as usize];
        }
        // Each entry changes independently, so the order of iteration does not matter.
        for (_, index) in &mut self.sparse {
            *index = new[*index as usize];
        }
    }

    /// Sets the index of `id` if it has none. Otherwise returns the existing index and changes nothing.
    #[inline]
    pub fn insert_if_absent(&mut self, id: u64, index: u32) -> Option<u32> {
        if let Some(old) = self.get(id) {
            return Some(old);
        }
        if id < self.dense_limit {
            let at = id as usize;
            if at >= self.dense.len() {
                // Ids are usually consecutive, so growing the array by half each time keeps the total time linear.
                self.dense.resize((at + 1).max(at + at / 2), ABSENT);
            }
            self.dense[at] = index;
        } else {
            self.sparse
                .insert_unique(HASHER.hash_one(id), (id, index), |(k, _)| {
                    HASHER.hash_one(k)
                });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_in_order_of_first_use() {
        let mut names = StringArenaInterner::default();
        let numbers: Vec<_> = ["mm", "", "add", "mm", ""]
            .iter()
            .map(|n| names.intern_name(n).unwrap())
            .collect();
        assert_eq!(numbers, [0, 1, 2, 0, 1]);
        for name in ["add", "new", "new", ""] {
            names.stage_name_returning_batch_full(name);
        }
        let mut numbers = vec![9];
        names.intern_staged_names(&mut numbers).unwrap();
        assert_eq!(numbers, [9, 2, 3, 3, 1]);
        assert_eq!(
            (names.get(0), names.get(1), names.get(2)),
            ("mm", "", "add")
        );
    }

    #[test]
    fn expected_indices_change_no_index() {
        let mut keys = DistinctKeyInterner::default();
        for expected in [0, 1, 7] {
            let indices = ["a", "b", "a", "c"].map(|key| keys.intern_expected_key(key, expected));
            assert_eq!(indices, [0, 1, 0, 2]);
        }
    }

    #[test]
    fn ids_map_whether_dense_or_not() {
        let mut map = NodeIdMap::new(100);
        for (index, id) in [0, 99, 100, u64::MAX, 5].into_iter().enumerate() {
            assert_eq!(map.insert_if_absent(id, index as u32), None);
        }
        assert_eq!(map.get(u64::MAX), Some(3));
        assert_eq!(map.get(99), Some(1));
        assert_eq!(map.get(7), None);
        assert_eq!(map.insert_if_absent(100, 9), Some(2));
    }
}
