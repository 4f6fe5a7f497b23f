//! Parses a workload: the kind of parallelism, the number of layers, and one line of twelve words
//! per layer.

use super::{
    LayerStage, StageCollectiveKindOrNone, TextWorkload, TextWorkloadLayer, TextWorkloadParallelism,
};
use crate::simai::SimaiWorkload;
use crate::words::{
    IgnoredWords, error_at, parse_number, split_layer_line_into_words, split_words_with_columns,
};
use chakram_trace::format::file::parse_text;
use chakram_trace::format::{TraceError, escape_and_shorten_name};
use std::path::Path;

/// Maximum time, in us, that a trace can store.
const MOST_MICROS: u64 = u64::MAX / 1_000_000;

impl TextWorkloadParallelism {
    /// Parses the first line of a workload.
    fn parse(line: &str, number_of: usize, ignored: &mut IgnoredWords) -> Result<Self, TraceError> {
        let mut words = split_words_with_columns(line);
        let Some((column, word)) = words.next() else {
            return Err(error_at(
                number_of,
                1,
                "an empty first line, which should name the kind of parallelism",
                format!("a first line such as {}", Self::PLAIN[1].1),
            ));
        };
        if let Some((kind, _)) = Self::PLAIN.iter().find(|(_, known)| *known == word) {
            ignored.add_further(number_of, words);
            return Ok(*kind);
        }
        if Self::DLRM.contains(&word) {
            let Some(last) = words.next() else {
                return Err(error_at(
                    number_of,
                    line.len() + 1,
                    format!(
                        "{word} is not followed by the index of the last layer of the bottom MLP"
                    ),
                    format!("{word} N, where the embedding counts as layer 0"),
                ));
            };
            let last = parse_number(number_of, last, "the last bottom layer", u32::MAX.into())?;
            ignored.add_further(number_of, words);
            return Ok(Self::Dlrm {
                last_bottom_layer: last as u32,
            });
        }
        let kinds = Self::PLAIN.iter().map(|(_, word)| *word).chain(Self::DLRM);
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        if SimaiWorkload::begins_as_simai(word.as_bytes()) {
            return Err(error_at(
                number_of,
                column,
                format!("the parallelism {word}, which only workloads of SimAI have"),
                "chakram convert simai",
            ));
        }
        let found = if word == Self::UNDEFINED {
            format!(
                "the parallelism {word}, for which the public converter of Chakra defines no graph"
            )
        } else {
            format!(
                "the parallelism `{}`, which does not exist",
                escape_and_shorten_name(word)
            )
        };
        Err(error_at(
            number_of,
            column,
            found,
            format!("one of {kinds}"),
        ))
    }
}

/// Parses a stage from its three words.
fn parse_stage(line: usize, words: &[(usize, &str)], what: &str) -> Result<LayerStage, TraceError> {
    let micros = parse_number(line, words[0], &format!("the {what} time"), MOST_MICROS)?;
    let (column, word) = words[1];
    let Some((comm, ..)) = StageCollectiveKindOrNone::ALL
        .iter()
        .find(|(_, known, _)| *known == word)
    else {
        let known = StageCollectiveKindOrNone::ALL
            .map(|(_, word, _)| word)
            .join(", ");
        return Err(error_at(
            line,
            column,
            format!(
                "the {what} collective is `{}`",
                escape_and_shorten_name(word)
            ),
            format!("one of {known}"),
        ));
    };
    let bytes = parse_number(line, words[2], &format!("the {what} size"), i64::MAX as u64)?;
    Ok(LayerStage {
        micros,
        comm: *comm,
        bytes,
    })
}

fn parse_layer(
    line: &str,
    number_of: usize,
    ignored: &mut IgnoredWords,
) -> Result<TextWorkloadLayer, TraceError> {
    let words = split_layer_line_into_words(line, number_of, ignored)?;
    Ok(TextWorkloadLayer {
        name: words[0].1.to_owned(),
        forward: parse_stage(number_of, &words[2..5], "forward")?,
        input_gradient: parse_stage(number_of, &words[5..8], "input gradient")?,
        weight_gradient: parse_stage(number_of, &words[8..11], "weight gradient")?,
    })
}

impl TextWorkload {
    /// Reads a file, which may be compressed with gzip or zstd.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or if [`Self::parse`] fails.
    pub fn open_file(path: &Path) -> Result<Self, TraceError> {
        parse_text(path, Self::parse)
    }

    /// Parses a workload.
    ///
    /// # Errors
    ///
    /// Fails with the line and column of the first text that violates the format.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // The public converter is written in Python, which accepts all kinds of line ends, so
        // convert them all to `\n`.
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let mut lines = (1..).zip(text.split('\n'));
        let (_, first) = lines.next().unwrap_or((1, ""));
        let mut ignored = IgnoredWords::default();
        let parallelism = TextWorkloadParallelism::parse(first, 1, &mut ignored)?;
        let (_, second) = lines.next().unwrap_or((2, ""));
        let mut counted = split_words_with_columns(second);
        let stated = counted.next().unwrap_or((1, ""));
        ignored.add_further(2, counted);
        let stated = parse_number(2, stated, "the number of layers", u32::MAX.into())?;
        let mut layers = Vec::new();
        let mut end = 2;
        for (line, content) in lines {
            if !content.trim().is_empty() {
                layers.push(parse_layer(content, line, &mut ignored)?);
                end = line;
            }
        }
        if layers.is_empty() || layers.len() as u64 != stated {
            return Err(error_at(
                end,
                1,
                format!("{} layers, but line 2 states {stated}", layers.len()),
                "in line 2 the number of layer lines that follow, at least 1",
            ));
        }
        if let TextWorkloadParallelism::Dlrm { last_bottom_layer } = parallelism {
            check_dlrm_has_embedding_all_to_all(&layers, last_bottom_layer)?;
        }
        Ok(Self {
            parallelism,
            layers,
            ignored,
            text,
        })
    }
}

/// Rejects a DLRM that lacks the all-to-all for which the bottom MLP waits.
fn check_dlrm_has_embedding_all_to_all(
    layers: &[TextWorkloadLayer],
    last_bottom_layer: u32,
) -> Result<(), TraceError> {
    if last_bottom_layer == 0 || last_bottom_layer as usize >= layers.len() {
        return Err(error_at(
            1,
            1,
            format!(
                "the last layer of the bottom MLP is {last_bottom_layer}, but the workload has layers 0 to {}",
                layers.len() - 1
            ),
            "the index of a layer after the embedding, which is layer 0",
        ));
    }
    if layers[0].forward.comm != StageCollectiveKindOrNone::AllToAll {
        let word = layers[0].forward.comm.file_word();
        return Err(error_at(
            3,
            1,
            format!("the embedding's forward collective is {word}"),
            "ALLTOALL, which the last bottom layer waits for",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: &str = "l -1 1 NONE 0 2 NONE 0 3 ALLREDUCE 8 4";

    fn parse_error_message(text: &str) -> String {
        TextWorkload::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn ends_of_lines_blank_lines_and_further_words_do_not_matter() {
        let plain = TextWorkload::parse(&format!("DATA\n1\n{LAYER}\n")).unwrap();
        let layer = &plain.layers[0];
        assert_eq!((layer.forward.micros, layer.input_gradient.micros), (1, 2));
        assert_eq!(layer.weight_gradient.bytes, 8);
        let other = format!("\u{feff}DATA x\r\n 1 \r\n{LAYER} more\r\n\r\n  \n");
        let other = TextWorkload::parse(&other).unwrap();
        assert_eq!(other.layers, plain.layers);
        assert!(plain.omission_notes().is_empty());
        let note = "line 1: `x` has no effect, nor have 1 more such words: it follows the last word of its line";
        assert_eq!(other.omission_notes(), [note]);
    }

    /// Each kind of parallelism runs only some collectives. The traces must equal the traces of Chakra's converter, so the
    /// others are left out, but not silently.
    #[test]
    fn collectives_that_a_kind_leaves_out_are_named() {
        let lines = "a -1 1 ALLGATHER 5 2 ALLREDUCE 6 3 ALLREDUCE 8 4\n".repeat(3);
        for (kind, notes) in [
            (
                "DATA",
                &[
                    "DATA leaves out ALLGATHER 5 of the forward pass of layer `a` and 2 more of forward passes",
                    "DATA leaves out ALLREDUCE 6 of the input gradient of layer `a` and 2 more of input gradients",
                ][..],
            ),
            (
                "MODEL",
                &[
                    "MODEL leaves out ALLREDUCE 6 of the input gradient of layer `a`",
                    "MODEL leaves out ALLREDUCE 8 of the weight gradient of layer `a` and 2 more of weight gradients",
                ],
            ),
            (
                "HYBRID_DATA_MODEL",
                &["HYBRID_DATA_MODEL leaves out ALLREDUCE 6 of the input gradient of layer `a`"],
            ),
        ] {
            let text = format!("{kind}\n3\n{lines}");
            assert_eq!(TextWorkload::parse(&text).unwrap().omission_notes(), notes);
        }
    }

    #[test]
    fn parse_errors_state_line_and_column() {
        for (text, parts) in [
            (
                "",
                &[
                    "line 1, column 1",
                    "an empty first line, which should name the kind of parallelism",
                ][..],
            ),
            ("data\n1\n", &["line 1", "`data`", "HYBRID_DLRM"]),
            (
                "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8\n1\n",
                &["chakram convert simai"],
            ),
            ("HYBRID_CUSTOMIZED\n1\n", &["defines no graph"]),
            (
                "HYBRID_DLRM\n1\n",
                &["line 1, column 12", "not followed by the index"],
            ),
            ("HYBRID_DLRM -1\n1\n", &["line 1, column 13", "`-1`"]),
            ("DATA\nmany\n", &["line 2, column 1", "`many`"]),
            ("DATA\n0\n", &["0 layers"]),
            (
                "DATA\n2\nl -1 1 NONE 0 2 NONE 0 3 ALLREDUCE 8 4\n",
                &["1 layers, but line 2 states 2"],
            ),
            ("DATA\n1\nl -1 1 NONE 0 2\n", &["line 3", "6 words"]),
            (
                "DATA\n1\nl -1 1 NONE 0 2 ALLREDUCE_EP 0 3 NONE 0 4\n",
                &["column 17", "ALLREDUCE_EP"],
            ),
            (
                "DATA\n1\nl -1 1 NONE -5 2 NONE 0 3 NONE 0 4\n",
                &["forward size is `-5`"],
            ),
            (
                "DATA\n1\nl -1 99999999999999999 NONE 0 2 NONE 0 3 NONE 0 4\n",
                &["forward time"],
            ),
            (
                "HYBRID_DLRM 1\n1\nl -1 1 ALLTOALL 0 2 NONE 0 3 NONE 0 4\n",
                &["layers 0 to 0"],
            ),
        ] {
            let why = parse_error_message(text);
            assert!(
                parts.iter().all(|part| why.contains(part)),
                "{text:?}: {why}"
            );
        }
        let two = format!("HYBRID_DLRM 1\n2\n{LAYER}\n{LAYER}\n");
        assert!(
            parse_error_message(&two).contains("forward collective is NONE"),
            "{}",
            parse_error_message(&two)
        );
    }
}
