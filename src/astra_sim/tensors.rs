//! Reads the tensors that a trace's nodes read and write. The attributes `inputs` and `outputs` list each tensor as two
//! strings: its name and its size in bytes.
//!
//! A size is the whole number at the beginning of its string, as `std::stoul` parses it: optional white space, an
//! optional sign, then at least one decimal digit. The number must fit in 64 bits. `std::stoul` ignores any text after
//! the digits. Therefore `1048576.0`, which is STAGE's notation, is 1,048,576 bytes, and `1e6` is one byte. The parser
//! rejects sizes below 0; ASTRA-sim takes such sizes modulo 2^64.

use super::{MisleadingValidInputNote, lenient};
use chakram_base::setting::SettingKey;
use chakram_trace::format::TraceError;
use chakram_trace::format::attr::AttrView;
use chakram_trace::format::wire::{FrameCursor, RawRecord, WireCursor, WireValue};
use std::collections::BTreeMap;

/// One node's use of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorUse {
    /// Id of the node in the trace.
    pub node: u64,
    /// Index of the tensor among the rank's tensors.
    pub tensor: u32,
    pub bytes: u64,
    pub write: bool,
}

/// A rank's tensors, and the nodes that use them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankTensors {
    pub(super) names: Vec<String>,
    /// Uses of tensors, in ascending order of nodes. Each node's reads come before its writes, and both are in the
    /// order of the node's lists.
    pub(super) uses: Vec<TensorUse>,
}

/// Advice on the format of a tensor list.
const HINT: &str =
    "a list of texts, the name and the size in bytes of each tensor in turn, as STG writes it";

/// Types of nodes that do nothing and therefore use no tensors, even if their lists name some.
const IDLE: [u64; 2] = [0, 1];

impl RankTensors {
    /// Reads a rank's tensors from the contents of its trace file, which notes call `file`. Tensors of size 0 are
    /// skipped. With `lenient`, nodes that never run are omitted. A node without lists has no tensors and causes a
    /// note.
    ///
    /// # Errors
    ///
    /// Fails where ASTRA-sim throws or aborts: a working node lacks `inputs` or `outputs`, a list does not consist of
    /// (name, size) pairs, or two nodes write the same tensor.
    pub fn read_tensors(
        contents: &[u8],
        lenient: bool,
        file: &str,
        notes: &mut Vec<MisleadingValidInputNote>,
    ) -> Result<Self, TraceError> {
        let kept;
        let contents = if lenient {
            // The node reader already adds notes about skipped records, so drop the notes here.
            kept = lenient::keep_runnable_records(contents, file, &mut Vec::new())?;
            &kept[..]
        } else {
            contents
        };
        let mut reading = RankTensorsBuilder::default();
        let mut frames = FrameCursor::new(contents);
        frames.next_record()?;
        while let Some(record) = frames.next_record()? {
            let node = reading.read_node_tensors(record, lenient);
            node.map_err(|e| e.in_record(record.number, record.offset))?;
        }
        if let Some((first, count)) = reading.without {
            notes.push(MisleadingValidInputNote {
                file: file.to_owned(),
                line: None,
                key: format!("node {first}"),
                why: format!("has no lists of tensors, like {count} nodes in total: these nodes use no tensors"),
            });
        }
        let mut tensors = reading.tensors;
        tensors.uses.sort_by_key(|one| one.node);
        Ok(tensors)
    }

    /// Returns the uses of node `id`.
    pub(super) fn tensor_uses_of_node(&self, id: u64) -> &[TensorUse] {
        let from = self.uses.partition_point(|one| one.node < id);
        let own = self.uses[from..].iter().take_while(|one| one.node == id);
        &self.uses[from..from + own.count()]
    }
}

#[derive(Default)]
struct RankTensorsBuilder {
    tensors: RankTensors,
    numbers: BTreeMap<String, u32>,
    /// Node that writes each tensor, by tensor index.
    writers: BTreeMap<u32, u64>,
    /// First node that has no lists, and the number of such nodes.
    without: Option<(u64, usize)>,
}

impl RankTensorsBuilder {
    fn read_node_tensors(
        &mut self,
        record: RawRecord<'_>,
        lenient: bool,
    ) -> Result<(), TraceError> {
        let (mut id, mut kind) = (0, 0);
        let mut lists = [None, None];
        let mut cursor = WireCursor::new(record.bytes, record.offset);
        while !cursor.is_empty() {
            match cursor.read_field()? {
                (1, WireValue::Varint(v)) => id = v,
                (3, WireValue::Varint(v)) => kind = u64::from(v as u32),
                (10, WireValue::Bytes(message, offset)) => {
                    let attr = AttrView::scan_attribute(message, offset)?;
                    match attr.name {
                        b"inputs" => lists[0] = Some(attr),
                        b"outputs" => lists[1] = Some(attr),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        for ((list, name), write) in lists.iter().zip(["inputs", "outputs"]).zip([false, true]) {
            match list {
                // As in ASTRA-sim, a node whose attribute is not a list has no tensors.
                Some(list) => {
                    self.read_tensor_list(id, name, &list.as_texts()?.unwrap_or_default(), write)?
                }
                None if IDLE.contains(&kind) => {}
                None if lenient => {
                    let (first, count) = self.without.unwrap_or((id, 0));
                    self.without = Some((first, count + 1));
                    break;
                }
                None => {
                    return Err(TraceError::invalid_node(
                        id,
                        format!(
                            "the node has no attribute `{name}`, which `track-local-mem` needs"
                        ),
                        format!(
                            "traces of STG have the attribute; {} assumes that the node uses no \
                             tensors, or set track-local-mem to 0",
                            SettingKey::Lenient
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    fn read_tensor_list(
        &mut self,
        id: u64,
        list: &str,
        texts: &[&str],
        write: bool,
    ) -> Result<(), TraceError> {
        let (pairs, rest) = texts.as_chunks::<2>();
        if !rest.is_empty() {
            let why = format!(
                "the node's `{list}` has {} texts, expected pairs of name and size",
                texts.len()
            );
            return Err(TraceError::invalid_node(id, why, HINT));
        }
        for [name, size] in pairs {
            let Some(bytes) = leading_number(size) else {
                let why = format!(
                    "the node's `{list}` has the size `{}` of `{}`, expected bytes: a whole number from 0 to {}",
                    chakram_trace::format::escape_and_shorten_name(size),
                    chakram_trace::format::escape_and_shorten_name(name),
                    u64::MAX
                );
                return Err(TraceError::invalid_node(id, why, HINT));
            };
            if bytes == 0 {
                continue;
            }
            let names = &mut self.tensors.names;
            let tensor = match self.numbers.get(*name) {
                Some(tensor) => *tensor,
                None => {
                    let tensor = names.len() as u32;
                    names.push((*name).to_owned());
                    self.numbers.insert((*name).to_owned(), tensor);
                    tensor
                }
            };
            if write && let Some(first) = self.writers.insert(tensor, id) {
                let why = format!(
                    "the node writes the tensor `{}`, and so does node {first}; the original aborts",
                    chakram_trace::format::escape_and_shorten_name(name)
                );
                let hint = "a different name for each result, as STG writes it";
                return Err(TraceError::invalid_node(id, why, hint));
            }
            self.tensors.uses.push(TensorUse {
                node: id,
                tensor,
                bytes,
                write,
            });
        }
        Ok(())
    }
}

/// Parses the whole number at the beginning of `text`, as the module's documentation describes.
fn leading_number(text: &str) -> Option<u64> {
    const BLANKS: [char; 6] = [' ', '\t', '\n', '\x0b', '\x0c', '\r'];
    let text = text.trim_start_matches(BLANKS);
    let (digits, negative) = match text.as_bytes().first()? {
        b'-' => (&text[1..], true),
        b'+' => (&text[1..], false),
        _ => (text, false),
    };
    let end = digits.bytes().position(|byte| !byte.is_ascii_digit());
    let number = digits[..end.unwrap_or(digits.len())].parse().ok();
    number.filter(|&number: &u64| number == 0 || !negative)
}

#[cfg(test)]
mod tests;
