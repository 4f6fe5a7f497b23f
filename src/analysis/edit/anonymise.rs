//! Removes private information from traces.
//!
//! The anonymiser keeps all content that replays read: structure, times, bytes, FLOPs, lanes, groups and peers. All
//! other content is removed unless a list allows it, so that unknown content cannot leak:
//!
//! | part | becomes |
//! |---|---|
//! | names | `n-` and 16 hexadecimal digits of their keyed hash; public names ([`is_public_name`]) stay |
//! | groups | numbers stay, names become `g-` and a hash, in both nodes and declarations; declarations keep only ranks |
//! | names of lanes | `lane-` and a hash |
//! | attributes | attributes that replays read stay if they are valid, and so do the numbers in [`NUMBERS`]; others are removed |
//! | arguments and results | removed |
//! | roles of groups | `tensor`, `data` and the other words of plans stay, others become `role-` and a hash |
//! | the metadata record | keeps `captured_ns`, steps and their time without a profiler, amounts of work, the core, the lanes, the roles, and the mark that kernels ran on a CPU |
//! | `doc_string`, start times, unknown fields | removed |
//!
//! The hash is keyed BLAKE3. With the same key, equal names have equal hashes on all ranks and in all runs, so the
//! traces of different ranks still match. Without the key, nobody can find names by hashing guesses.

use super::audit;
use chakram_trace::format::attr::{AttrView, AttributeValueMeaning, find_replay_attribute};
use chakram_trace::format::encoder::ProtobufMessageBuilder;
use chakram_trace::format::groups::{
    DeclaredGroups, NODE_MARK, NODE_NAME, metadata_text, parse_group_metadata,
    write_json_in_list_notation_of,
};
use chakram_trace::format::roles::{self, GroupRoles};
use chakram_trace::format::scan::{self, DependencyVisitor};
use chakram_trace::format::wire::{
    FrameCursor, RawRecord, WireCursor, WireValue, visit_repeated_varints,
};
use chakram_trace::format::write::{AttributeValue, put_attribute};
use chakram_trace::format::{Dtype, GroupName, TraceError, TrainingPhase, work_amounts};

/// Attributes that replays ignore. They are kept if their values are numbers: these help to find the node in the
/// capture and cannot contain private text.
pub const NUMBERS: [&str; 12] = [
    "parent",
    "launch",
    "step",
    "in_bytes",
    "out_bytes",
    "rf_id",
    "et_id",
    "seq_id",
    "fw_parent",
    "fw_tid",
    "scope",
    "comm_priority",
];

/// Prefixes of operator names that are public, because they belong to frameworks.
const PUBLIC: [&str; 12] = [
    "aten::",
    "prims::",
    "quantized::",
    "torch::",
    "c10d::",
    "c10d_functional::",
    "_c10d_functional::",
    "nccl:",
    "gloo:",
    "mpi:",
    "ucc:",
    "ProfilerStep#",
];

/// Public names that have no prefix in `PUBLIC`.
const PUBLIC_WHOLE: [&str; 4] = [
    "record_param_comms",
    "end of the thread",
    "joint",
    NODE_NAME,
];

/// Public roles of groups: the dimensions of parallel training.
const PUBLIC_ROLES: [&str; 10] = [
    "tensor",
    "data",
    "pipeline",
    "embedding",
    "model",
    "operator",
    "expert",
    "expert-data",
    "expert-tensor",
    "context",
];

/// Returns true if `name` is the name of a PyTorch operator or of a step, without private text. The name must be a
/// known prefix followed by letters, digits and `_`, and [`audit`] must find no leak in it.
pub fn is_public_name(name: &str) -> bool {
    let rest = PUBLIC.iter().find_map(|start| name.strip_prefix(start));
    let plain = rest.is_some_and(|rest| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        !rest.is_empty() && rest.bytes().all(plain)
    });
    PUBLIC_WHOLE.contains(&name) || plain && !audit::contains_private_information(name)
}

/// Replaces private names by hashes, and removes private content.
#[derive(Debug)]
pub struct TraceAnonymiser {
    key: [u8; 32],
    public: bool,
    keep: Vec<String>,
}

/// How much of a trace's content was kept, hashed and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnonymiserCounts {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of names that were hashed.
    pub hashed: u64,
    /// Number of names that were kept.
    pub kept: u64,
    /// Number of removed attributes.
    pub attributes: u64,
    /// Number of other fields that were removed: inputs, outputs, start times and unknown fields.
    pub fields: u64,
}

impl TraceAnonymiser {
    /// Derives the key of the hash from `secret`. If `public` is true, public names are kept. Names that match a
    /// pattern in `keep` are also kept; `*` in a pattern matches any text.
    pub fn new(secret: &[u8], public: bool, keep: Vec<String>) -> Self {
        Self {
            key: blake3::derive_key("chakram anonymise 2026 names of traces", secret),
            public,
            keep,
        }
    }

    fn hash_name(&self, prefix: &str, name: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        // The prefix makes the hashes differ if a node, a group and a lane share a name, which hides that the names are
        // equal.
        hasher.update(prefix.as_bytes());
        hasher.update(name.as_bytes());
        let hex = hasher.finalize().to_hex();
        format!("{prefix}{}", &hex[..16])
    }

    /// Returns the replacement for a node's name; `None` if the name is kept.
    pub fn replace_name(&self, name: &str) -> Option<String> {
        let kept = name.is_empty()
            || self.public && is_public_name(name)
            || self
                .keep
                .iter()
                .any(|pattern| super::name_matches_pattern(pattern, name));
        (!kept).then(|| self.hash_name("n-", name))
    }

    /// Returns the replacement for a group's name. Numbers and the name of the group of all ranks are kept.
    pub fn replace_group(&self, name: &str) -> String {
        match GroupName::from_text(name) {
            GroupName::Text(text) => self.hash_name("g-", text),
            _ => name.to_owned(),
        }
    }

    /// Returns declared groups with replaced names.
    pub fn replace_declared_group_names(&self, declared: &DeclaredGroups) -> DeclaredGroups {
        let groups = declared.iter();
        groups
            .map(|(name, ranks)| (self.replace_group(name), ranks.clone()))
            .collect()
    }

    /// Returns `roles` with private roles replaced. Roles that plans use are kept; any other role is hashed.
    pub fn replace_private_roles(&self, roles: &GroupRoles) -> GroupRoles {
        roles.rename_roles(|role| match PUBLIC_ROLES.contains(&role) {
            true => role.to_owned(),
            false => self.hash_name("role-", role),
        })
    }

    /// Returns the anonymised form of a trace's decompressed `contents`.
    ///
    /// Fails if replays would reject a record, because a rejected record may contain any text.
    pub fn anonymise_trace(
        &self,
        contents: &[u8],
    ) -> Result<(Vec<u8>, AnonymiserCounts), TraceError> {
        let mut frames = FrameCursor::new(contents);
        let mut out = Vec::with_capacity(contents.len() / 2);
        let mut done = AnonymiserCounts::default();
        let mut put = ProtobufMessageBuilder::default();
        while let Some(record) = frames.next_record()? {
            put.clear();
            let made = match record.number {
                0 => self.anonymise_metadata(record, &mut put, &mut done),
                _ => self.anonymise_node(record, &mut put, &mut done),
            };
            made.map_err(|e| e.in_record(record.number, record.offset))?;
            put.append_frame_to(&mut out);
        }
        // Empty contents have no metadata record, so they are not a trace.
        if contents.is_empty() {
            return Err(TraceError::malformed_at(0, "the file is empty"));
        }
        Ok((out, done))
    }

    fn anonymise_metadata(
        &self,
        record: RawRecord<'_>,
        out: &mut ProtobufMessageBuilder,
        done: &mut AnonymiserCounts,
    ) -> Result<(), TraceError> {
        let metadata = scan::read_metadata(record)?;
        // Write a constant version, because the original field may contain any text.
        out.append_bytes(1, b"0.0.4");
        let mut kept = 0;
        let mut add = |name: &str, value: AttributeValue<'_>| {
            kept += 1;
            out.append_nested(2, |put| put_attribute(put, name, value));
        };
        if let Some(captured) = metadata.captured {
            add("captured_ns", AttributeValue::Uint(captured.0 / 1000));
        }
        if metadata.kernels_on_cpu {
            add(scan::KERNELS_ON, AttributeValue::Text(scan::CPU));
        }
        if metadata.dropped_kernels > 0 {
            add(
                scan::DROPPED_KERNELS,
                AttributeValue::Uint(metadata.dropped_kernels),
            );
        }
        for (name, value) in metadata.profiler.attributes() {
            add(name, value);
        }
        if !metadata.roles.is_empty() {
            let text = self.replace_private_roles(&metadata.roles).to_string();
            add(roles::ATTRIBUTE, AttributeValue::Text(&text));
        }
        if let Some(amounts) = metadata.amounts {
            add(
                work_amounts::ATTRIBUTE,
                AttributeValue::Text(&amounts.to_string()),
            );
        }
        if let Some([x, y]) = metadata.core {
            add(scan::CORE, AttributeValue::Text(&format!("{x},{y}")));
        }
        for (host, number, name) in &metadata.lanes {
            let host = if *host { "host_" } else { "" };
            let name = self.hash_name("lane-", name);
            add(&format!("{host}lane.{number}"), AttributeValue::Text(&name));
        }
        let mut cursor = WireCursor::new(record.bytes, record.offset);
        while !cursor.is_empty() {
            match cursor.read_field()? {
                (1, WireValue::Bytes(..)) => {}
                // The loop above has already written `kept` attributes, so do not count them as removed.
                (2, WireValue::Bytes(..)) if kept > 0 => kept -= 1,
                (2, WireValue::Bytes(..)) => done.attributes += 1,
                _ => done.fields += 1,
            }
        }
        Ok(())
    }

    fn anonymise_node(
        &self,
        record: RawRecord<'_>,
        out: &mut ProtobufMessageBuilder,
        done: &mut AnonymiserCounts,
    ) -> Result<(), TraceError> {
        let mut deps = NodeDependencyLists::default();
        let view = scan::scan_node(record, &mut deps)?;
        done.nodes += 1;
        // Replays recognise a declaration of groups by the node's name, so do not hash it.
        let declares =
            super::node_type(record)? == super::METADATA && view.name.contains(NODE_MARK);
        // Protobuf omits default values, so write an id only if it is above 0.
        if view.id > 0 {
            out.append_varint(1, view.id);
        }
        let hashed = if declares {
            (view.name != NODE_NAME).then(|| NODE_NAME.to_owned())
        } else {
            self.replace_name(view.name)
        };
        match &hashed {
            Some(_) => done.hashed += 1,
            None => done.kept += 1,
        }
        let name = hashed.as_deref().unwrap_or(view.name);
        if !name.is_empty() {
            out.append_bytes(2, name.as_bytes());
        }
        let kind = super::node_type(record)?;
        if kind > 0 {
            out.append_varint(3, kind);
        }
        out.append_packed(4, &deps.control);
        out.append_packed(5, &deps.data);
        if view.micros > 0 {
            out.append_varint(7, view.micros);
        }
        if let Some(text) = view.groups {
            let groups = self.replace_declared_group_names(&parse_group_metadata(view.id, text)?);
            let text = write_json_in_list_notation_of(text, metadata_text(&groups));
            let mut inputs = ProtobufMessageBuilder::default();
            inputs.append_bytes(1, text.as_bytes());
            out.append_bytes(8, inputs.as_bytes());
        }
        let mut cursor = WireCursor::new(record.bytes, record.offset);
        while !cursor.is_empty() {
            match cursor.read_field()? {
                (10, WireValue::Bytes(message, at)) => {
                    let attr = AttrView::scan_attribute(message, at)?;
                    let before = out.as_bytes().len();
                    self.write_attribute_if_replays_use_it(&attr, message, out)?;
                    done.attributes += u64::from(out.as_bytes().len() == before);
                }
                // The declaration of groups was written above.
                (8, _) if view.groups.is_some() => {}
                (1..=5 | 7, _) => {}
                _ => done.fields += 1,
            }
        }
        Ok(())
    }

    /// Writes an attribute if this module's rules keep it.
    fn write_attribute_if_replays_use_it(
        &self,
        attr: &AttrView<'_>,
        message: &[u8],
        out: &mut ProtobufMessageBuilder,
    ) -> Result<(), TraceError> {
        let Ok(name) = std::str::from_utf8(attr.name) else {
            return Ok(());
        };
        let content = match find_replay_attribute(name) {
            Some(known) => known.content,
            None if NUMBERS.contains(&name) => AttributeValueMeaning::Number,
            None => return Ok(()),
        };
        if !attr.is_set() {
            return Ok(());
        }
        let mut kept = ProtobufMessageBuilder::default();
        kept.append_bytes(1, name.as_bytes());
        let text = attr.as_str()?;
        match (content, text) {
            (AttributeValueMeaning::Group, Some(text)) => {
                kept.append_bytes(29, self.replace_group(text).as_bytes())
            }
            (AttributeValueMeaning::Dtype, text) => match text.and_then(Dtype::from_name) {
                Some(dtype) => kept.append_bytes(29, dtype.to_string().as_bytes()),
                None => return Ok(()),
            },
            (AttributeValueMeaning::Phase, text) => match text.and_then(TrainingPhase::from_name) {
                Some(phase) => kept.append_bytes(29, phase.to_string().as_bytes()),
                None => return Ok(()),
            },
            (AttributeValueMeaning::Notation, Some(text)) => kept.append_bytes(29, text.as_bytes()),
            (AttributeValueMeaning::Mask, _) => {
                copy_number_list_packed(message, attr.offset, &mut kept)?
            }
            (_, Some(text)) => match text.trim().parse::<f64>() {
                Ok(_) => kept.append_bytes(29, text.trim().as_bytes()),
                Err(_) => match text.trim() {
                    "True" | "true" | "False" | "false" => {
                        kept.append_bytes(29, text.trim().as_bytes())
                    }
                    _ => return Ok(()),
                },
            },
            (_, None) => {
                if attr.as_i64().is_err() && attr.as_count().is_err() && attr.as_bool().is_err() {
                    return Ok(());
                }
                copy_last_scalar_field(message, attr.offset, &mut kept)?;
            }
        }
        out.append_bytes(10, kept.as_bytes());
        Ok(())
    }
}

/// Data and control dependencies of one node.
#[derive(Default)]
struct NodeDependencyLists {
    control: Vec<u64>,
    data: Vec<u64>,
}

impl DependencyVisitor for NodeDependencyLists {
    fn visit_data_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.data.push(id);
        Ok(())
    }

    fn visit_control_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.control.push(id);
        Ok(())
    }
}

/// Copies a numeric field; if the field is repeated, copies only the last value, which readers use.
fn copy_last_scalar_field(
    message: &[u8],
    at: usize,
    out: &mut ProtobufMessageBuilder,
) -> Result<(), TraceError> {
    let mut last: &[u8] = &[];
    let mut cursor = WireCursor::new(message, at);
    while !cursor.is_empty() {
        let start = cursor.file_offset() - at;
        if (3..=32).contains(&cursor.read_field()?.0) {
            last = &message[start..cursor.file_offset() - at];
        }
    }
    out.append_raw(last);
    Ok(())
}

/// Copies a list of integers or booleans, packed as readers expect.
fn copy_number_list_packed(
    message: &[u8],
    at: usize,
    out: &mut ProtobufMessageBuilder,
) -> Result<(), TraceError> {
    let (mut kind, mut values) = (0, Vec::new());
    let mut parts = WireCursor::new(message, at);
    while !parts.is_empty() {
        let (number, raw) = parts.read_field()?;
        if !(3..=32).contains(&number) {
            continue;
        }
        if number != kind {
            values.clear();
        }
        kind = number;
        if let WireValue::Bytes(list, at) = raw {
            let mut list = WireCursor::new(list, at);
            while !list.is_empty() {
                let offset = list.file_offset();
                if let (1, raw) = list.read_field()? {
                    visit_repeated_varints(raw, offset, |value| {
                        values.push(value);
                        Ok(())
                    })?;
                }
            }
        }
    }
    let mut list = ProtobufMessageBuilder::default();
    list.append_packed(1, &values);
    out.append_bytes(kind, list.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests;
