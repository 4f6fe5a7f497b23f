//! Job file `PREFIX.job.json`: lists the traces of all ranks, and the groups, roles and machine of the job.
//!
//! ```json
//! {
//!   "schema": "chakram.job.1",
//!   "tool_version": "0.1.0",
//!   "machine": "dgx-h100",
//!   "roles": "tensor 1-4",
//!   "groups": {
//!     "1": [0,1]
//!   },
//!   "ranks": [
//!     {"rank":0,"file":"job.0.et","bytes":4711,"blake3":"…"}
//!   ]
//! }
//! ```
//!
//! The traces are in the same folder as the job file. Lengths and hashes are those of the files on disk, whether
//! compressed or not.

use super::digest::ExpectedFileLengthAndHash;
use super::groups::{DeclaredGroups, DuplicateRejectingGroupMap};
use super::read_all::read_text;
use super::roles::GroupRoles;
use super::{TraceError, escape_and_shorten_name};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// Ending of a job file's name, after the prefix.
pub const ENDING: &str = ".job.json";
const SCHEMA: &str = "chakram.job.1";

/// Contents of a job file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobTraceManifest {
    /// The job's traces, in ascending order of ranks.
    pub ranks: Vec<JobFileRankEntry>,
    /// Groups that traces use but do not declare.
    pub groups: DeclaredGroups,
    /// Roles of groups. Roles in the job file take precedence over roles in the traces.
    pub roles: GroupRoles,
    /// Machine that the job was made for, as a preset or a file.
    pub machine: Option<String>,
}

/// The trace of one rank, as a job file lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFileRankEntry {
    /// Number of the rank in the job.
    pub rank: u32,
    /// File name, in the folder of the job file.
    pub file: String,
    /// Length and hash of the file.
    pub seal: ExpectedFileLengthAndHash,
}

#[derive(Deserialize)]
struct JobTraceManifestDocument {
    schema: String,
    #[serde(default)]
    machine: Option<String>,
    #[serde(default)]
    roles: String,
    #[serde(default)]
    groups: DuplicateRejectingGroupMap,
    ranks: Vec<JobRankFileHashRow>,
}

#[derive(Deserialize)]
struct JobRankFileHashRow {
    rank: u32,
    file: String,
    bytes: u64,
    blake3: String,
}

impl JobTraceManifest {
    /// Reads the file `path`.
    pub fn read_file(path: &Path) -> Result<Self, TraceError> {
        let read = || {
            let file = std::fs::File::open(path)?;
            read_text(&file, file.metadata()?.len())
        };
        let text = read().map_err(|error| TraceError::from_io(path, "read", error))?;
        Self::parse(&text).map_err(|error| error.in_file(path))
    }

    /// Parses the text of a job file.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let wrong = |found: String| TraceError::malformed_at(0, found);
        let document: JobTraceManifestDocument = serde_json::from_str(text).map_err(|error| {
            let at = (error.line(), error.column());
            TraceError::malformed_text_at_line(
                at,
                None,
                format!("{error}; expected a job's file of schema {SCHEMA}"),
            )
        })?;
        if document.schema != SCHEMA {
            let found = escape_and_shorten_name(&document.schema);
            return Err(wrong(format!("the schema is `{found}`, expected {SCHEMA}")));
        }
        let mut ranks = Vec::with_capacity(document.ranks.len());
        for row in document.ranks {
            let file = escape_and_shorten_name(&row.file);
            // A job file must not refer to files outside its folder.
            if row.file.is_empty() || row.file.contains(['/', '\\', '\0']) || row.file == ".." {
                return Err(wrong(format!(
                    "rank {}: `{file}` is not the name of a file in the job's folder",
                    row.rank
                )));
            }
            let Ok(hash) = blake3::Hash::from_hex(&row.blake3) else {
                let found = escape_and_shorten_name(&row.blake3);
                return Err(wrong(format!(
                    "rank {}: `{found}` is not a BLAKE3 hash",
                    row.rank
                )));
            };
            ranks.push(JobFileRankEntry {
                rank: row.rank,
                file: row.file,
                seal: ExpectedFileLengthAndHash {
                    bytes: row.bytes,
                    blake3: Some(*hash.as_bytes()),
                },
            });
        }
        ranks.sort_by_key(|row| row.rank);
        if let Some(pair) = ranks.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
            return Err(wrong(format!(
                "the job's file names rank {} twice",
                pair[0].rank
            )));
        }
        let Ok(roles) = document.roles.parse();
        Ok(Self {
            ranks,
            groups: document.groups.0,
            roles,
            machine: document.machine,
        })
    }

    /// Returns the text of the job file.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{{\n  \"schema\": \"{SCHEMA}\",\n  \"tool_version\": \"{}\"",
            env!("CARGO_PKG_VERSION")
        );
        let mut say = |line: std::fmt::Arguments<'_>| {
            text.write_fmt(line).expect("a string grows as needed");
        };
        if let Some(machine) = &self.machine {
            say(format_args!(
                ",\n  \"machine\": {}",
                serialize_value_to_json(machine)
            ));
        }
        if !self.roles.is_empty() {
            say(format_args!(
                ",\n  \"roles\": {}",
                serialize_value_to_json(&self.roles.to_string())
            ));
        }
        if !self.groups.is_empty() {
            say(format_args!(",\n  \"groups\": {{"));
            for (i, (name, ranks)) in self.groups.iter().enumerate() {
                let comma = if i == 0 { "" } else { "," };
                say(format_args!(
                    "{comma}\n    {}: {}",
                    serialize_value_to_json(name),
                    serialize_value_to_json(ranks)
                ));
            }
            say(format_args!("\n  }}"));
        }
        say(format_args!(",\n  \"ranks\": ["));
        for (i, row) in self.ranks.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let hash = row.seal.blake3.map(blake3::Hash::from_bytes);
            let hash = hash.map_or(String::new(), |hash| hash.to_hex().to_string());
            say(format_args!(
                "{comma}\n    {{\"rank\":{},\"file\":{},\"bytes\":{},\"blake3\":\"{hash}\"}}",
                row.rank,
                serialize_value_to_json(&row.file),
                row.seal.bytes
            ));
        }
        say(format_args!("\n  ]\n}}\n"));
        text
    }

    /// Returns the trace of `rank`.
    pub fn trace_of_rank(&self, rank: u32) -> Option<&JobFileRankEntry> {
        let found = self.ranks.binary_search_by_key(&rank, |row| row.rank);
        found.ok().map(|index| &self.ranks[index])
    }
}

/// Returns a value, such as a name or a list, as JSON text.
fn serialize_value_to_json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("names and lists can be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_example_job_manifest() -> JobTraceManifest {
        let seal = |bytes: u64| ExpectedFileLengthAndHash {
            bytes,
            blake3: Some(*blake3::hash(&bytes.to_le_bytes()).as_bytes()),
        };
        let rank = |rank: u32| JobFileRankEntry {
            rank,
            file: format!("it's \"a\".{rank}.et"),
            seal: seal(rank.into()),
        };
        JobTraceManifest {
            ranks: [0, 1, 7].map(rank).to_vec(),
            groups: DeclaredGroups::from([
                ("1".to_owned(), vec![0, 7]),
                ("\u{1b}".to_owned(), vec![]),
            ]),
            roles: "tensor 1-4".parse().unwrap(),
            machine: Some("dgx-h100".to_owned()),
        }
    }

    #[test]
    fn written_job_manifest_is_read_back() {
        let bare = JobTraceManifest {
            ranks: build_example_job_manifest().ranks,
            ..JobTraceManifest::default()
        };
        for job in [build_example_job_manifest(), bare] {
            assert_eq!(JobTraceManifest::parse(&job.to_text()).unwrap(), job);
        }
        assert_eq!(
            build_example_job_manifest()
                .trace_of_rank(7)
                .unwrap()
                .seal
                .bytes,
            7
        );
        assert_eq!(build_example_job_manifest().trace_of_rank(2), None);
    }

    #[test]
    fn invalid_job_manifests_are_refused() {
        let text = build_example_job_manifest().to_text();
        for (from, to, part) in [
            (
                "chakram.job.1",
                "chakram.job.2",
                "the schema is `chakram.job.2`",
            ),
            (
                "\"rank\":7",
                "\"rank\":1",
                "the job's file names rank 1 twice",
            ),
            (
                "it's \\\"a\\\".7.et",
                "../x.et",
                "`../x.et` is not the name of a file",
            ),
            ("\"blake3\":\"", "\"blake3\":\"x", "is not a BLAKE3 hash"),
            ("\"1\": [0,7]", "\"\\u001b\": [0,7]", "is declared twice"),
            ("\"ranks\"", "\"other\"", "missing field `ranks`"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = JobTraceManifest::parse(&text.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
