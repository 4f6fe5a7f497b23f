//! Detects ASTRA-sim's input files by their keys.

use super::document::{InputDocumentWithUniqueKnownKeys, ReadAndIgnoredKeys};
use super::{memory_file, network_file, system};

/// Kind of an input file of ASTRA-sim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AstraInputKind {
    /// Network file, in YAML.
    Network,
    /// System file, in JSON.
    System,
    /// Remote memory file, in JSON.
    RemoteMemory,
}

impl AstraInputKind {
    /// Returns which kind of input file `text` is, or `None` if it is none. The text must contain the keys that every
    /// file of this kind has; their values are not checked.
    pub fn classify_text(text: &str) -> Option<Self> {
        let has = |document: InputDocumentWithUniqueKnownKeys<'_>, keys: &[&str]| {
            keys.iter().all(|key| document.get(key).is_some())
        };
        let json = |keys: &ReadAndIgnoredKeys| {
            InputDocumentWithUniqueKnownKeys::parse_json_keeping_last_duplicate_key(
                text, "", keys, true,
            )
            .ok()
        };
        if let Some(document) = json(&memory_file::KEYS)
            && has(document, &["memory-type"])
        {
            return Some(Self::RemoteMemory);
        }
        if let Some(document) = json(&system::KEYS) {
            let known = system::KEYS.read.iter();
            let count = known.filter(|key| document.get(key).is_some()).count();
            // Another tool's file may also contain one of the system file's keys, so require several.
            return (count >= 2).then_some(Self::System);
        }
        let document =
            InputDocumentWithUniqueKnownKeys::parse_yaml(text, "", &network_file::KEYS, true)
                .ok()?;
        has(document, &["topology", "npus_count"]).then_some(Self::Network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_which_input_it_is() {
        for (text, kind) in [
            (
                "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n",
                Some(AstraInputKind::Network),
            ),
            (
                r#"{"scheduling-policy": "LIFO", "endpoint-delay": 10, "new-key": 1}"#,
                Some(AstraInputKind::System),
            ),
            (
                r#"{"memory-type": "NO_MEMORY_EXPANSION"}"#,
                Some(AstraInputKind::RemoteMemory),
            ),
            (r#"{"1": [0, 1]}"#, None),
            ("topology: Ring\n", None),
            ("name = \"machine\"\n", None),
            ("", None),
        ] {
            assert_eq!(AstraInputKind::classify_text(text), kind, "{text}");
        }
    }
}
