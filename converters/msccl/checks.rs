//! Checks attributes of MSCCL's XML that do not change the traces: misspelt ones, and chunks beyond a buffer's end.

use super::element::{MOST, XmlElement};
use super::error_at;
use chakram_base::config::{did_you_mean, find_most_similar_name};
use chakram_base::units::format_count_with_noun;
use chakram_trace::format::{TraceError, escape_and_shorten_name};
use roxmltree::{Document, Node};

/// Elements, each with its known attributes, including those that the converter does not need.
const ATTRIBUTES: [(&str, &[&str]); 4] = [
    (
        "algo",
        &[
            "name",
            "proto",
            "nchannels",
            "nchunksperloop",
            "ngpus",
            "coll",
            "inplace",
            "outofplace",
            "minBytes",
            "maxBytes",
            "redop",
            "nthreadblocks",
            "root",
        ],
    ),
    ("gpu", &["id", "i_chunks", "o_chunks", "s_chunks"]),
    ("tb", &["id", "send", "recv", "chan"]),
    (
        "step",
        &[
            "s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep",
        ],
    ),
];

/// Buffers of a GPU in `srcbuf` and `dstbuf`, each with the attribute of `gpu` that states its number of chunks.
const BUFFERS: [(&str, &str); 3] = [("i", "i_chunks"), ("o", "o_chunks"), ("s", "s_chunks")];

/// Number of chunks in each buffer of [`BUFFERS`], over all GPUs, or `None` if a GPU does not state it.
pub(super) type BufferChunks = [Option<u64>; 3];

/// Maximum number of unknown attributes that are listed.
const MOST_UNKNOWN: usize = 10;

/// Returns a sentence about each unknown attribute, once for all elements of the same name, up to [`MOST_UNKNOWN`].
pub(super) fn find_unknown_attributes(document: &Document<'_>) -> Vec<String> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    let mut sentences = Vec::new();
    for element in document
        .descendants()
        .filter(Node::is_element)
        .map(XmlElement)
    {
        let name = element.tag_name();
        let known = ATTRIBUTES.iter().find(|(known, _)| *known == name);
        let known = known.map_or(&[][..], |(_, attributes)| attributes);
        for attribute in element.0.attributes().map(|attribute| attribute.name()) {
            if known.contains(&attribute) || found.contains(&(name, attribute)) {
                continue;
            }
            found.push((name, attribute));
            let near = find_most_similar_name(attribute, known.iter().copied());
            sentences.push(format!(
                "line {}: `{}` of <{name}> is unknown and has no effect{}",
                element.line_and_column().0,
                escape_and_shorten_name(attribute),
                did_you_mean(near)
            ));
            if sentences.len() == MOST_UNKNOWN {
                return sentences;
            }
        }
    }
    sentences
}

/// Returns the number of chunks in each buffer. The steps of receives name the sender's chunks, so a buffer has the
/// most chunks that any GPU states. In place, input and output are the same memory.
pub(super) fn count_buffer_chunks(
    algo: &XmlElement<'_>,
    gpus: &[XmlElement<'_>],
) -> Result<BufferChunks, TraceError> {
    let mut chunks = [Some(0), Some(0), Some(0)];
    for gpu in gpus {
        for ((_, key), most) in BUFFERS.iter().zip(&mut chunks) {
            let stated = gpu.0.attribute(*key);
            let stated = stated
                .map(|_| gpu.number_attribute(key, MOST))
                .transpose()?;
            *most = most.zip(stated).map(|(most, stated)| stated.max(most));
        }
    }
    if algo.0.attribute("inplace") == Some("1") {
        let both = chunks[0]
            .zip(chunks[1])
            .map(|(input, output)| input.max(output));
        (chunks[0], chunks[1]) = (both, both);
    }
    Ok(chunks)
}

/// Rejects a step whose chunks lie beyond the end of the buffers that it names.
pub(super) fn check_chunks_in_buffers(
    step: &XmlElement<'_>,
    count: u64,
    chunks: &BufferChunks,
) -> Result<(), TraceError> {
    for (buffer, offset) in [("srcbuf", "srcoff"), ("dstbuf", "dstoff")] {
        let word = step.0.attribute(buffer);
        let at = BUFFERS.iter().position(|(known, _)| Some(*known) == word);
        let first = match step.0.attribute(offset) {
            Some(_) => step.number_attribute_or_none_if_minus_one(offset, MOST)?,
            None => None,
        };
        let Some(first) = first else {
            continue;
        };
        let Some(at) = at else {
            let word = escape_and_shorten_name(word.unwrap_or_default());
            let names = BUFFERS.map(|(known, _)| known).join(", ");
            return Err(error_at(
                step.line_and_column(),
                format!("the {buffer} \"{word}\""),
                format!("one of {names}"),
            ));
        };
        if let Some(chunks) = chunks[at].filter(|chunks| first + count > *chunks) {
            let (name, key) = BUFFERS[at];
            return Err(error_at(
                step.line_and_column(),
                format!(
                    "`{offset}` {first} and `cnt` {count}, but buffer `{name}` has {} (`{key}`)",
                    format_count_with_noun(chunks, "chunk")
                ),
                "chunks within the buffer",
            ));
        }
    }
    Ok(())
}
