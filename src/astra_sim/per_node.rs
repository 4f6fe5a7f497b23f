//! The file that assigns custom algorithms to single collective nodes. The file identifies an algorithm by the prefix
//! of the algorithm's trace files.

use super::error::{InputError, MisleadingValidInputNote, escape_key};
use super::input_entry::InputValue;
use super::yaml;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Contents of a `per-node-custom-implementation` file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerNodeCustomAlgorithmPaths(BTreeMap<u64, PathBuf>);

impl PerNodeCustomAlgorithmPaths {
    /// Parses a YAML mapping from node ids to the prefixes of files `PREFIX.POSITION.et`. `file` is the file's
    /// name in errors. The keys are node ids, so no key is unknown and `lenient` has no effect.
    ///
    /// # Errors
    ///
    /// Fails if `text` is not such a mapping.
    pub fn parse(
        text: &str,
        file: &str,
        _lenient: bool,
    ) -> Result<(Self, Vec<MisleadingValidInputNote>), InputError> {
        let mut prefixes = BTreeMap::new();
        for entry in yaml::parse_entries(text, file)? {
            let error = |why: String| InputError::Key {
                file: file.to_owned(),
                line: entry.line,
                key: escape_key(&entry.key),
                why,
            };
            let digits = entry.key.bytes().all(|b| b.is_ascii_digit());
            let id = entry.key.parse().ok().filter(|_: &u64| digits);
            let id = id.ok_or_else(|| error("found no number, expected a node's id".to_owned()))?;
            let prefix = match &entry.value {
                InputValue::Text(prefix) if !prefix.is_empty() => PathBuf::from(prefix),
                other => {
                    let found = other.describe_value();
                    let why =
                        format!("found {found}, expected a prefix of files PREFIX.POSITION.et");
                    return Err(error(why));
                }
            };
            if prefixes.insert(id, prefix).is_some() {
                return Err(error(format!(
                    "found node {id} twice, expected each node once"
                )));
            }
        }
        Ok((Self(prefixes), Vec::new()))
    }

    /// Returns the prefix for the node `id`, or `None` if the file does not contain the node.
    pub fn get(&self, id: u64) -> Option<&Path> {
        self.0.get(&id).map(PathBuf::as_path)
    }

    /// Returns true if the file has no nodes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all nodes with their prefixes, in ascending order of ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, &Path)> {
        self.0.iter().map(|(id, prefix)| (*id, prefix.as_path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithm_path_prefixes_are_read_by_node() {
        let (nodes, notes) =
            PerNodeCustomAlgorithmPaths::parse("# x\n7: a/ring\n12: \"b c\"\n", "p", false)
                .unwrap();
        let all: Vec<_> = nodes.iter().collect();
        assert_eq!(all, [(7, Path::new("a/ring")), (12, Path::new("b c"))]);
        assert_eq!(nodes.get(7), Some(Path::new("a/ring")));
        assert_eq!((nodes.get(8), notes.len()), (None, 0));
    }

    #[test]
    fn malformed_node_mappings_are_refused_with_their_line() {
        for (text, start) in [
            ("a", "p:1: not YAML: "),
            ("1: a\n1: b", "p:2: not YAML: "),
            ("1: a\n01: b", "p:2: key `01`: found node 1 twice"),
            ("1: a\nx: b", "p:2: key `x`: found no number"),
            ("-1: a", "p:1: key `-1`: found no number"),
            ("1: [a]", "p:1: key `1`: found a list"),
            ("1:", "p:1: key `1`: found nothing"),
        ] {
            let error = PerNodeCustomAlgorithmPaths::parse(text, "p", true)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }
}
