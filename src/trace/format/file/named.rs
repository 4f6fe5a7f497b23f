//! Finds the paths of the trace files that share a prefix, one per rank. The files need not exist.

use super::names::{ENDINGS, PACKED};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf, is_separator};

/// Paths of the trace files that share a prefix. The folder is listed only once for all ranks.
#[derive(Debug)]
pub struct PrefixedTraceFiles {
    prefix: String,
    /// For each rank with existing files, the index of the ending that takes precedence.
    best: BTreeMap<u32, usize>,
}

impl PrefixedTraceFiles {
    /// Lists the files `{prefix}.{rank}.et`, and those with other trace endings. A folder that cannot be listed counts
    /// as empty.
    pub fn new(prefix: &Path) -> Self {
        let prefix = prefix.display().to_string();
        let (folder, name) = match prefix.rfind(is_separator) {
            Some(at) => prefix.split_at(at + 1),
            None => ("", &prefix[..]),
        };
        let folder = if folder.is_empty() { "." } else { folder };
        let listing = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut best = BTreeMap::new();
        for entry in listing {
            let file = entry.file_name();
            let ranked = file
                .to_str()
                .and_then(|file| parse_rank_and_ending_after_prefix(file, name));
            // Count a symbolic link only if its target exists.
            let there = |entry: &std::fs::DirEntry| {
                let linked = entry.file_type().is_ok_and(|kind| kind.is_symlink());
                !linked || entry.path().exists()
            };
            if let Some((rank, place)) = ranked.filter(|_| there(&entry)) {
                let known = best.entry(rank).or_insert(place);
                *known = place.min(*known);
            }
        }
        Self { prefix, best }
    }

    /// Returns true if `rank` has a file.
    pub fn has_rank(&self, rank: u32) -> bool {
        self.best.contains_key(&rank)
    }

    /// Returns the ranks that have a file, in ascending order.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.best.keys().copied()
    }

    /// Returns the path of `rank`'s file; if there are several files, the ending that takes precedence decides. If
    /// `rank` has no file, returns `{prefix}.{rank}.et`.
    pub fn path_of_rank(&self, rank: u32) -> PathBuf {
        let place = self.best.get(&rank).copied().unwrap_or(0);
        let (ending, packed) = (ENDINGS[place / PACKED.len()], PACKED[place % PACKED.len()]);
        PathBuf::from(format!("{}.{rank}{ending}{packed}", self.prefix))
    }
}

/// Parses a file name with the prefix `name`, and returns its rank and the index of its ending. Ranks are written
/// without leading zeros.
fn parse_rank_and_ending_after_prefix(file: &str, name: &str) -> Option<(u32, usize)> {
    let rest = file.strip_prefix(name)?.strip_prefix('.')?;
    let (digits, ending) = rest.split_at(rest.find('.')?);
    let rank: u32 = digits.parse().ok()?;
    let all = ENDINGS
        .iter()
        .flat_map(|ending| PACKED.map(|packed| (*ending, packed)));
    let place = all.enumerate().find_map(|(place, (end, packed))| {
        (ending.strip_suffix(packed) == Some(end)).then_some(place)
    });
    // Ignore names with leading zeros, because `path_of_rank` never returns such names.
    (rank.to_string() == digits).then_some((rank, place?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_rank_has_the_preferred_existing_ending() {
        let folder = tempfile::tempdir().unwrap();
        for file in [
            "a.0.et.zst",
            "a.0.jsonl",
            "a.1.json",
            "a.1.et",
            "a.02.et",
            "b.3.et",
            "a.4.txt",
        ] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let named = PrefixedTraceFiles::new(&folder.path().join("a"));
        let file = |rank| {
            let path = named.path_of_rank(rank);
            (
                named.has_rank(rank),
                path.file_name().unwrap().to_str().unwrap().to_owned(),
            )
        };
        assert_eq!(file(0), (true, "a.0.et.zst".to_owned()));
        assert_eq!(file(1), (true, "a.1.et".to_owned()));
        for missing in [2, 3, 4] {
            assert_eq!(file(missing), (false, format!("a.{missing}.et")));
        }
        assert_eq!(named.ranks().collect::<Vec<_>>(), [0, 1]);
        // A missing folder has no files.
        assert!(!PrefixedTraceFiles::new(&folder.path().join("no/a")).has_rank(0));
    }
}
