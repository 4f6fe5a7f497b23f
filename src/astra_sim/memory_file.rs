//! The remote memory file.

use super::document::{InputDocumentWithUniqueKnownKeys, ReadAndIgnoredKeys};
use super::error::{InputError, MisleadingValidInputNote};

/// How NPUs share the servers of remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteMemorySharing {
    /// Each NPU has its own memory servers.
    PerNpu,
    /// Each node (a set of NPUs with consecutive numbers) shares its servers.
    PerNode {
        /// Number of nodes, at least 1.
        nodes: u32,
        /// Number of NPUs in each node, at least 1.
        npus_per_node: u32,
    },
    /// All NPUs share the memory servers.
    Pool,
}

/// Memory outside the NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemoryFile {
    /// How NPUs share memory servers.
    pub sharing: RemoteMemorySharing,
    /// Latency before a transfer, in ns.
    pub latency: u64,
    /// Bandwidth of a server, in GB/s of 10^9 bytes, at least 1.
    pub bandwidth: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum RemoteMemoryKind {
    None,
    PerNpu,
    PerNode,
    Pool,
}

const LATENCY: &str = "remote-mem-latency";
const BANDWIDTH: &str = "remote-mem-bw";
const NODES: &str = "num-nodes";
const NPUS_PER_NODE: &str = "num-npus-per-node";

pub(super) const KEYS: ReadAndIgnoredKeys = ReadAndIgnoredKeys {
    read: &["memory-type", LATENCY, BANDWIDTH, NODES, NPUS_PER_NODE],
    ignored: &[],
};

/// Largest bound below which `f64` represents every whole number exactly.
const MOST: u64 = 1 << 53;

impl RemoteMemoryFile {
    /// Parses a remote memory file. Returns `None` if the file states that there is no remote memory. `file` is the
    /// file's name in errors. With `lenient`, unknown keys become notes.
    ///
    /// # Errors
    ///
    /// Fails if `text` is not a JSON object, or lacks the memory's type or a key that this type needs.
    pub fn parse(
        text: &str,
        file: &str,
        lenient: bool,
    ) -> Result<(Option<Self>, Vec<MisleadingValidInputNote>), InputError> {
        let mut document = InputDocumentWithUniqueKnownKeys::parse_json_keeping_last_duplicate_key(
            text, file, &KEYS, lenient,
        )?;
        let types = [
            (RemoteMemoryKind::None, "NO_MEMORY_EXPANSION"),
            (RemoteMemoryKind::PerNpu, "PER_NPU_MEMORY_EXPANSION"),
            (RemoteMemoryKind::PerNode, "PER_NODE_MEMORY_EXPANSION"),
            (RemoteMemoryKind::Pool, "MEMORY_POOL"),
        ];
        let Some(chosen) = document.read_choice("memory-type", &types)? else {
            let names = types.map(|(_, name)| name).join(", ");
            let hint = "\"memory-type\": \"NO_MEMORY_EXPANSION\"";
            let expected = format_args!("one of {names}");
            return Err(document.invalid_value("memory-type", "nothing", expected, hint));
        };
        let name = types.iter().find(|(one, _)| *one == chosen);
        let name = name.map_or("", |(_, name)| name);
        let needed: &[&str] = match chosen {
            RemoteMemoryKind::None => &[],
            RemoteMemoryKind::PerNpu | RemoteMemoryKind::Pool => &[LATENCY, BANDWIDTH],
            RemoteMemoryKind::PerNode => &[LATENCY, BANDWIDTH, NODES, NPUS_PER_NODE],
        };
        for key in [LATENCY, BANDWIDTH, NODES, NPUS_PER_NODE] {
            match (needed.contains(&key), document.get(key).is_some()) {
                (false, true) => document.add_note(key, format!("has no effect with {name}")),
                (true, false) => {
                    let expected = format_args!("a whole number, which {name} needs");
                    return Err(document.invalid_value(key, "nothing", expected, ""));
                }
                _ => {}
            }
        }
        let remote = match chosen {
            RemoteMemoryKind::None => None,
            _ => Some(Self {
                sharing: match chosen {
                    RemoteMemoryKind::PerNode => RemoteMemorySharing::PerNode {
                        nodes: read_count(&mut document, NODES)?,
                        npus_per_node: read_count(&mut document, NPUS_PER_NODE)?,
                    },
                    RemoteMemoryKind::Pool => RemoteMemorySharing::Pool,
                    RemoteMemoryKind::PerNpu | RemoteMemoryKind::None => {
                        RemoteMemorySharing::PerNpu
                    }
                },
                latency: document
                    .read_truncated_whole_number_in_range(LATENCY, 0, MOST)?
                    .unwrap_or(0),
                bandwidth: document
                    .read_truncated_whole_number_in_range(BANDWIDTH, 1, MOST)?
                    .unwrap_or(1),
            }),
        };
        Ok((remote, document.into_notes()))
    }
}

fn read_count(
    document: &mut InputDocumentWithUniqueKnownKeys<'_>,
    key: &str,
) -> Result<u32, InputError> {
    let most = i32::MAX as u64;
    let count = document
        .read_truncated_whole_number_in_range(key, 1, most)?
        .unwrap_or(1);
    Ok(u32::try_from(count).expect("it is at most 2^31"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_memory_file(text: &str) -> (Option<RemoteMemoryFile>, Vec<String>) {
        let (remote, notes) = RemoteMemoryFile::parse(text, "m", false).unwrap();
        (
            remote,
            notes
                .iter()
                .map(MisleadingValidInputNote::to_string)
                .collect(),
        )
    }

    #[test]
    fn memory_types_are_read_with_their_required_keys() {
        let (remote, notes) = parse_memory_file("{\"memory-type\": \"NO_MEMORY_EXPANSION\"}");
        assert_eq!((remote, notes.len()), (None, 0));
        let (remote, notes) = parse_memory_file(
            "{\"memory-type\": \"PER_NODE_MEMORY_EXPANSION\", \"remote-mem-latency\": 0,
            \"remote-mem-bw\": 128, \"num-nodes\": 8, \"num-npus-per-node\": 4}",
        );
        let sharing = RemoteMemorySharing::PerNode {
            nodes: 8,
            npus_per_node: 4,
        };
        let expected = RemoteMemoryFile {
            sharing,
            latency: 0,
            bandwidth: 128,
        };
        assert_eq!((remote, notes.len()), (Some(expected), 0));
        let (remote, notes) = parse_memory_file(
            "{\"memory-type\": \"MEMORY_POOL\",\n\"remote-mem-latency\": 500,\n\
             \"remote-mem-bw\": 25.9,\n\"num-nodes\": 2}",
        );
        let expected = RemoteMemoryFile {
            sharing: RemoteMemorySharing::Pool,
            latency: 500,
            bandwidth: 25,
        };
        assert_eq!(remote, Some(expected));
        assert_eq!(
            notes,
            [
                "m:4: `num-nodes`: has no effect with MEMORY_POOL",
                "m:3: `remote-mem-bw`: 25.9 counts as 25: the original truncates the number",
            ]
        );
        let (remote, notes) =
            parse_memory_file("{\"memory-type\": \"NO_MEMORY_EXPANSION\", \"remote-mem-bw\": 0.5}");
        assert_eq!((remote, notes.len()), (None, 1));
    }

    #[test]
    fn invalid_remote_memory_files_are_refused() {
        for (text, start) in [
            ("{}", "m:1: key `memory-type`: found nothing"),
            (
                "{\"memory-type\": \"POOL\"}",
                "m:1: key `memory-type`: found \"POOL\"",
            ),
            (
                "{\"memory-type\": \"MEMORY_POOL\"}",
                "m:1: key `remote-mem-latency`: found nothing",
            ),
            // 0.9 GB/s is truncated to 0 GB/s.
            (
                "{\"memory-type\": \"PER_NPU_MEMORY_EXPANSION\", \"remote-mem-latency\": 1,\n\
                 \"remote-mem-bw\": 0.9}",
                "m:2: key `remote-mem-bw`: found the number 0.9",
            ),
        ] {
            let error = RemoteMemoryFile::parse(text, "m", true)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }
}
