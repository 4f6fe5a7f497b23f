//! Traces that represent several ranks. The ranks differ only in their peers, groups and cores.
//!
//! A trace of several ranks (its *members*) is written for the first member. The metadata record lists all members. For
//! each member, it also lists the peers, groups and cores that replace those of the first member. The file is stored
//! once, and appears under every member's name (through links, if the system supports them). If a user opens the file
//! under a member's name, the contents are byte for byte what would have been written for this member.
//!
//! ```json
//! {"ranks":[16,17],"cores":[[4,0],[5,0]],"peers":{"32":[32,33]},"groups":{"5":["5","5"],"57":["57","58"]}}
//! ```
//!
//! The metadata may omit peers and groups that all members share.

use super::TraceError;
use super::attr::{AttrView, AttributeValueMeaning, find_replay_attribute};
use super::encoder::ProtobufMessageBuilder;
use super::rewrite::{AttributeSetOrRemoval, RecordEdit};
use super::scan::CORE;
use super::wire::{FrameCursor, RawRecord, WireCursor, WireValue};
use super::write::LengthPrefixedRecordWriter;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Metadata attribute that lists the members.
pub const MEMBERS: &str = "members";

/// Field number of the attributes in a metadata record, and in a node.
const METADATA_ATTRIBUTES: u32 = 2;
const NODE_ATTRIBUTES: u32 = 10;

/// The members of a trace, with the peers, groups and cores that replace the first member's. Every list has one entry
/// per member, in the order of `ranks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedTraceRankSubstitutions {
    /// The ranks; the trace is written for the first rank.
    pub ranks: Vec<u32>,
    /// Cores of the members on a machine of tiles; empty if the trace does not state them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<[u32; 2]>,
    /// For each peer of the first member, the corresponding peers of all members.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<u32, Vec<u32>>,
    /// For each group of the first member, the corresponding groups of all members.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, Vec<String>>,
}

impl SharedTraceRankSubstitutions {
    /// Returns the text of the `members` attribute.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("numbers and names can be written")
    }

    /// Parses the text of the `members` attribute.
    pub fn parse(text: &str) -> Result<Self, String> {
        let members: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let count = members.ranks.len();
        let lengths = [
            ("peers", members.peers.values().map(Vec::len).collect()),
            ("groups", members.groups.values().map(Vec::len).collect()),
        ];
        let cores = Some(members.cores.len()).filter(|&cores| cores > 0);
        let cores: Vec<usize> = cores.into_iter().collect();
        for (what, lengths) in lengths.into_iter().chain([("cores", cores)]) {
            if let Some(length) = lengths.into_iter().find(|&length| length != count) {
                return Err(format!(
                    "the attribute has {length} {what} for {count} ranks"
                ));
            }
        }
        if !members.ranks.is_sorted_by(|a, b| a < b) || count < 2 {
            return Err("the attribute's ranks are not two or more in ascending order".to_owned());
        }
        Ok(members)
    }

    /// Reads the members from a metadata record. Fails if the members are invalid.
    fn read_from_metadata(record: RawRecord<'_>) -> Result<Option<Self>, TraceError> {
        let Some(attribute) = iter_attributes(record, METADATA_ATTRIBUTES)
            .find(|(attribute, _)| attribute.name == MEMBERS.as_bytes())
        else {
            return Ok(None);
        };
        let (attribute, offset) = attribute;
        let text = attribute.require_text();
        let parsed = text.and_then(|text| {
            Self::parse(text).map_err(|why| {
                TraceError::malformed_at(offset, format!("attribute `{MEMBERS}`: {why}"))
            })
        });
        let parsed = parsed.map_err(|error| error.in_record(record.number, record.offset));
        parsed.map(Some)
    }
}

/// Iterates over a record's readable attributes, each with its offset. The attributes are in the fields with number
/// `field`.
fn iter_attributes<'a>(
    record: RawRecord<'a>,
    field: u32,
) -> impl Iterator<Item = (AttrView<'a>, usize)> {
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    let fields = std::iter::from_fn(move || match cursor.is_empty() {
        true => None,
        // Ignore broken fields here, because the reader of the trace reports them.
        false => cursor.read_field().ok(),
    });
    fields.filter_map(move |found| match found {
        (number, WireValue::Bytes(message, offset)) if number == field => {
            Some((AttrView::scan_attribute(message, offset).ok()?, offset))
        }
        _ => None,
    })
}

/// Returns the trace of `rank` if `contents` represent several ranks, and `None` otherwise.
///
/// Fails if `rank` is not a member, or if the members are invalid.
pub fn extract_rank_trace(contents: &[u8], rank: u32) -> Result<Option<Vec<u8>>, TraceError> {
    let mut records = FrameCursor::new(contents);
    let Ok(Some(first)) = records.next_record() else {
        return Ok(None);
    };
    let Some(members) = SharedTraceRankSubstitutions::read_from_metadata(first)? else {
        return Ok(None);
    };
    let Ok(place) = members.ranks.binary_search(&rank) else {
        let [low, high] = [members.ranks.first(), members.ranks.last()].map(|rank| rank.copied());
        let (low, high) = (low.unwrap_or(0), high.unwrap_or(0));
        return Err(TraceError::malformed_at(
            first.offset,
            format!(
                "attribute `{MEMBERS}`: the trace stands for {} ranks from {low} to {high}, but was read as the trace of rank {rank}",
                members.ranks.len()
            ),
        ));
    };
    let core = members.cores.get(place).map(|[x, y]| format!("{x},{y}"));
    let mut edits = vec![(MEMBERS, AttributeSetOrRemoval::Remove)];
    edits.extend(
        core.as_deref()
            .map(|core| (CORE, AttributeSetOrRemoval::Text(core))),
    );
    let mut out = LengthPrefixedRecordWriter::new(Vec::with_capacity(contents.len()));
    let mut message = ProtobufMessageBuilder::default();
    let mut write = |record: RawRecord<'_>, attributes: &[(&str, AttributeSetOrRemoval<'_>)]| {
        let edit = RecordEdit {
            attributes,
            ..RecordEdit::default()
        };
        if edit.is_empty() {
            return out.write_record(record.bytes);
        }
        message.clear();
        edit.write_edited(record, &mut message)?;
        out.write_record(message.as_bytes())
    };
    write(first, &edits)?;
    while let Some(record) = records.next_record()? {
        edits.clear();
        for (attribute, _) in iter_attributes(record, NODE_ATTRIBUTES) {
            if let Some(edit) = members.attribute_edit_for_member(&attribute, place) {
                edits.push(edit);
            }
        }
        write(record, &edits)?;
    }
    Ok(Some(out.into_inner()))
}

impl SharedTraceRankSubstitutions {
    /// Returns how a node attribute changes for the member at index `place` if the attribute is a peer, a group or the
    /// rank itself.
    fn attribute_edit_for_member(
        &self,
        attribute: &AttrView<'_>,
        place: usize,
    ) -> Option<(&str, AttributeSetOrRemoval<'_>)> {
        let known = find_replay_attribute(str::from_utf8(attribute.name).ok()?)?;
        match known.content {
            AttributeValueMeaning::MessageEnd => {
                let rank = u32::try_from(attribute.as_count().ok()?).ok()?;
                let own = (rank == self.ranks[0]).then(|| self.ranks[place]);
                let found = self.peers.get(&rank).map(|peers| peers[place]).or(own)?;
                Some((known.name, AttributeSetOrRemoval::Count(found.into())))
            }
            AttributeValueMeaning::Group => {
                let group = match attribute.as_str().ok()? {
                    Some(name) => name.to_owned(),
                    None => attribute.as_count().ok()?.to_string(),
                };
                let groups = self.groups.get(&group)?;
                Some((known.name, AttributeSetOrRemoval::Text(&groups[place])))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::CollectiveKind;
    use crate::format::op::{GroupName, Op};
    use crate::format::scan::NodeView;
    use crate::format::write::{AttributeValue, Sink, TraceWriter};

    /// Returns a trace for the rank `own` on a core; it has an all-reduce in a group, and a message to a peer.
    fn build_rank_trace(own: u32, group: u64, peer: u32, about: &[(&str, &str)]) -> Vec<u8> {
        let about: Vec<_> = about
            .iter()
            .map(|&(name, text)| (name, AttributeValue::Text(text)))
            .collect();
        let mut writer = TraceWriter::start_with_metadata(Vec::new(), &about).unwrap();
        let sum = Op::Collective {
            kind: CollectiveKind::AllReduce,
            bytes: 64,
            group: GroupName::Number(group),
            root: None,
            dimensions: None,
            host: false,
        };
        let send = Op::Message {
            receive: false,
            peer,
            tag: 3,
            bytes: 8,
            own: Some(own),
            host: false,
        };
        writer
            .receive_node(&NodeView::new(1, "sum", sum), &[])
            .unwrap();
        writer
            .receive_node(&NodeView::new(2, "send", send), &[1])
            .unwrap();
        writer.into_unflushed_sink()
    }

    fn build_rank_substitutions() -> SharedTraceRankSubstitutions {
        SharedTraceRankSubstitutions {
            ranks: vec![4, 5, 9],
            cores: vec![[0, 0], [1, 0], [12, 3]],
            peers: BTreeMap::from([(20, vec![20, 4, 300])]),
            groups: BTreeMap::from([(
                "7".to_owned(),
                ["7", "8", "1000"].map(str::to_owned).into(),
            )]),
        }
    }

    /// A trace that is opened for a member must equal, byte for byte, a trace written for this member. This must also
    /// hold if own and peer ranks are exchanged and rank numbers get more digits.
    #[test]
    fn shared_trace_opens_as_trace_written_for_each_member() {
        let text = build_rank_substitutions().to_text();
        let written = build_rank_trace(4, 7, 20, &[("a", "b"), (MEMBERS, &text), (CORE, "0,0")]);
        let own = [(5, 8, 4, "1,0"), (9, 1000, 300, "12,3")];
        for (rank, group, peer, core) in own {
            let found = extract_rank_trace(&written, rank).unwrap().unwrap();
            assert_eq!(
                found,
                build_rank_trace(rank, group, peer, &[("a", "b"), (CORE, core)])
            );
            assert_eq!(extract_rank_trace(&found, 77).unwrap(), None);
        }
        let first = extract_rank_trace(&written, 4).unwrap().unwrap();
        assert_eq!(
            first,
            build_rank_trace(4, 7, 20, &[("a", "b"), (CORE, "0,0")])
        );
        let error = extract_rank_trace(&written, 6).unwrap_err().to_string();
        assert!(
            error.contains("3 ranks from 4 to 9") && error.contains("rank 6"),
            "{error}"
        );
    }

    #[test]
    fn invalid_rank_substitutions_of_shared_traces_are_refused() {
        assert_eq!(
            SharedTraceRankSubstitutions::parse(&build_rank_substitutions().to_text()),
            Ok(build_rank_substitutions())
        );
        for (text, why) in [
            ("{", "EOF"),
            (r#"{"ranks":[1]}"#, "two or more"),
            (r#"{"ranks":[2,1]}"#, "ascending"),
            (r#"{"ranks":[1,1]}"#, "ascending"),
            (r#"{"ranks":[1,2],"cores":[[0,0]]}"#, "1 cores for 2 ranks"),
            (
                r#"{"ranks":[1,2],"peers":{"4":[1,2,3]}}"#,
                "3 peers for 2 ranks",
            ),
            (
                r#"{"ranks":[1,2],"groups":{"4":[]}}"#,
                "0 groups for 2 ranks",
            ),
            (r#"{"ranks":[1,2],"rest":3}"#, "rest"),
        ] {
            let found = SharedTraceRankSubstitutions::parse(text).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
            let error =
                extract_rank_trace(&build_rank_trace(1, 1, 2, &[(MEMBERS, text)]), 1).unwrap_err();
            assert!(error.to_string().contains("attribute `members`"), "{error}");
        }
        for broken in [&[][..], &[5], &[3, 1, 2, 3], b"\x00\x00"] {
            assert_eq!(extract_rank_trace(broken, 1).unwrap(), None);
        }
    }
}
