//! The file of communicator groups. The file maps each group number to an ordered list of members.

use super::error::{InputError, MisleadingValidInputNote, escape_key};
use super::json::{RawJsonEntry, raw_entries, syntax_error};
use chakram_base::ids::MAX_NPUS;
use chakram_trace::format::groups::DeclaredGroups;
use std::collections::BTreeMap;

/// Contents of a groups file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommGroupFile(BTreeMap<u32, Vec<u32>>);

impl CommGroupFile {
    /// Returns true if a file name contains `empty`, which means that there are no groups.
    pub fn means_no_groups(name: &str) -> bool {
        name.contains("empty")
    }

    /// Parses a groups file. `file` is the file's name in errors. If the file defines a group twice, the last
    /// definition counts, as in ASTRA-sim. The keys are group numbers, so no key is unknown and `lenient` has no
    /// effect.
    ///
    /// # Errors
    ///
    /// Fails if `text` is not a JSON object that maps whole numbers above 0 to lists of ranks, or if a list is
    /// empty or contains a rank twice.
    pub fn parse(
        text: &str,
        file: &str,
        _lenient: bool,
    ) -> Result<(Self, Vec<MisleadingValidInputNote>), InputError> {
        let entries = raw_entries(text, file)?;
        let mut groups = BTreeMap::new();
        let mut lines: BTreeMap<u32, usize> = BTreeMap::new();
        let mut notes = Vec::new();
        for entry in &entries {
            let id = parse_number(entry, file)?;
            if let Some(line) = lines.insert(id, entry.line) {
                notes.push(MisleadingValidInputNote {
                    file: file.to_owned(),
                    line: Some(line),
                    key: escape_key(&entry.key),
                    why: format!("ignored, because line {} repeats the group", entry.line),
                });
            }
            groups.insert(id, parse_members(entry, file)?);
        }
        Ok((Self(groups), notes))
    }

    /// Returns true if there are no groups.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the members of group `id` in file order, or `None` if the file has no such group. Members are distinct,
    /// and there is at least one.
    pub fn get(&self, id: u32) -> Option<&[u32]> {
        self.0.get(&id).map(Vec::as_slice)
    }

    /// Returns all groups with their members, in ascending order of numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, &[u32])> {
        self.0.iter().map(|(id, members)| (*id, &members[..]))
    }

    /// Converts these groups to the form in which a workload declares groups.
    pub fn to_declared_groups(&self) -> DeclaredGroups {
        let named = |(id, members): (u32, &[u32])| (id.to_string(), members.to_vec());
        self.iter().map(named).collect()
    }
}

fn parse_number(entry: &RawJsonEntry<'_>, file: &str) -> Result<u32, InputError> {
    let key = &entry.key;
    let digits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_digit());
    let id = key
        .parse()
        .ok()
        .filter(|&id| digits && id <= i32::MAX as u32);
    match id {
        Some(0) => Err(invalid_entry_error(
            entry,
            file,
            "found group 0, which stands for all ranks and cannot be declared (the original \
             aborts)\n  try: delete the group, or give it another number here and in the traces",
        )),
        Some(id) => Ok(id),
        None => Err(invalid_entry_error(
            entry,
            file,
            &format!("found no number, expected a group from 1 to {}", i32::MAX),
        )),
    }
}

fn parse_members(entry: &RawJsonEntry<'_>, file: &str) -> Result<Vec<u32>, InputError> {
    let members: Vec<u32> = match serde_json::from_str(entry.value) {
        Ok(members) => members,
        Err(error) if error.is_data() => {
            let syntax = syntax_error(file, entry.value_line, &error);
            let InputError::Syntax { line, why, .. } = syntax else {
                return Err(syntax);
            };
            return Err(InputError::Key {
                file: file.to_owned(),
                line,
                key: escape_key(&entry.key),
                why: format!("{why}; expected a list of ranks such as [0, 1]"),
            });
        }
        Err(error) => return Err(syntax_error(file, entry.value_line, &error)),
    };
    let mut sorted = members.clone();
    sorted.sort_unstable();
    let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
    let why = match (&sorted[..], twice) {
        ([], _) => "found an empty list, expected at least one rank".to_owned(),
        (_, Some(pair)) => format!("found rank {} twice, expected each member once", pair[0]),
        ([.., last], _) if *last >= MAX_NPUS => {
            format!("found rank {last}, expected ranks below {MAX_NPUS}")
        }
        _ => return Ok(members),
    };
    Err(invalid_entry_error(entry, file, &why))
}

fn invalid_entry_error(entry: &RawJsonEntry<'_>, file: &str, why: &str) -> InputError {
    InputError::Key {
        file: file.to_owned(),
        line: entry.line,
        key: escape_key(&entry.key),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_the_order_of_the_file() {
        let text = "{\"10\": [3, 1, 2],\n \"2\": [0], \"10\":\n [2,\n 0]}";
        let (groups, notes) = CommGroupFile::parse(text, "g", false).unwrap();
        let all: Vec<_> = groups.iter().collect();
        assert_eq!(all, [(2, &[0][..]), (10, &[2, 0][..])]);
        assert_eq!(groups.get(10), Some(&[2, 0][..]));
        assert_eq!(groups.get(1), None);
        assert_eq!(groups.to_declared_groups()["10"], [2, 0]);
        assert_eq!(notes.len(), 1);
        let note = notes[0].to_string();
        assert_eq!(note, "g:1: `10`: ignored, because line 2 repeats the group");
        assert!(CommGroupFile::parse("{}", "g", false).unwrap().0.is_empty());
    }

    #[test]
    fn invalid_groups_are_refused_with_their_line() {
        for (text, start) in [
            ("[]", "g:1: not JSON: "),
            ("{\"1\": [0],\n\"0\": [1]}", "g:2: key `0`: found group 0"),
            ("{\"tp\": [0]}", "g:1: key `tp`: found no number"),
            ("{\"-1\": [0]}", "g:1: key `-1`: found no number"),
            (
                "{\"99999999999\": [0]}",
                "g:1: key `99999999999`: found no number",
            ),
            ("{\"1\": []}", "g:1: key `1`: found an empty list"),
            ("{\"1\": [2, 0,\n2]}", "g:1: key `1`: found rank 2 twice"),
            ("{\"1\": [4194304]}", "g:1: key `1`: found rank 4194304"),
            (
                "{\"1\":\n[2,\n\"3\"]}",
                "g:3: key `1`: invalid type: string",
            ),
            ("{\"1\": [-1]}", "g:1: key `1`: "),
            ("{\"1\": 5}", "g:1: key `1`: "),
        ] {
            let error = CommGroupFile::parse(text, "g", true)
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    fn a_file_name_containing_empty_means_no_groups() {
        assert!(
            CommGroupFile::means_no_groups("empty")
                && CommGroupFile::means_no_groups("a/empty.json")
        );
        assert!(!CommGroupFile::means_no_groups("groups.json"));
    }
}
