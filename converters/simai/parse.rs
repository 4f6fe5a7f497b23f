//! Parses a workload: a line with the degrees of parallelism, the number of layers, and one line of
//! twelve words per layer.

use super::{KINDS, RankGroupParallelism, SimaiComm, SimaiLayer, SimaiStage, SimaiWorkload};
use crate::words::{error_at, parse_number, split_layer_line_into_words, split_words_with_columns};
use chakram_trace::format::file::parse_text;
use chakram_trace::format::{CollectiveKind, TraceError, escape_and_shorten_name};
use std::collections::BTreeSet;
use std::path::Path;

/// Maximum time, in ns, that a trace can store.
const MOST_NS: u64 = u64::MAX / 1_000;

/// Collectives by name. The suffix `_EP` or `_DP_EP` may follow the name.
const COLLECTIVES: [(&str, Option<CollectiveKind>); 6] = [
    ("NONE", None),
    ("ALLREDUCE", Some(CollectiveKind::AllReduce)),
    ("ALLGATHER", Some(CollectiveKind::AllGather)),
    ("REDUCESCATTER", Some(CollectiveKind::ReduceScatter)),
    ("ALLTOALL", Some(CollectiveKind::AllToAll)),
    ("BROADCAST", Some(CollectiveKind::Broadcast)),
];

impl SimaiWorkload {
    /// Returns true if a file that begins with `text` looks like a workload, although it may still
    /// be invalid.
    pub fn begins_as_simai(text: &[u8]) -> bool {
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        // The parser accepts every Unicode blank between words, even a vertical tab, so split the line in the same way.
        let line = String::from_utf8_lossy(line);
        let line = line.strip_prefix('\u{feff}').unwrap_or(&line);
        let first = line.split_whitespace().next().unwrap_or_default();
        KINDS.contains(&first)
    }

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
        let mut lines = (1..).zip(text.lines());
        let (_, first) = lines.next().unwrap_or((1, ""));
        let mut this = parse_header(first)?;
        let (_, second) = lines.next().unwrap_or((2, ""));
        let stated = split_words_with_columns(second).next().unwrap_or((1, ""));
        let stated = parse_number(2, stated, "the number of layers", u32::MAX.into())?;
        let mut end = 2;
        for (line, content) in lines.filter(|(_, content)| !content.trim().is_empty()) {
            this.layers.push(parse_layer(content, line)?);
            end = line;
        }
        if this.layers.is_empty() || this.layers.len() as u64 != stated {
            return Err(error_at(
                end,
                1,
                format!("{} layers, but line 2 states {stated}", this.layers.len()),
                "in line 2 the number of layer lines that follow, at least 1",
            ));
        }
        this.check_checkpoints()?;
        Ok(this)
    }

    /// Rejects checkpoints at layers that do not exist, and recomputation that no checkpoint precedes.
    fn check_checkpoints(&self) -> Result<(), TraceError> {
        let mut all = self.checkpoints.iter().chain(&self.recomputing);
        if let Some(layer) = all.find(|layer| **layer >= self.layers.len()) {
            return Err(error_at(
                1,
                1,
                format!("a checkpoint at layer {layer} of {}", self.layers.len()),
                "layer indices, which count from 0",
            ));
        }
        match self.recomputing.first() {
            Some(layer) if self.checkpoints.range(..=layer).next().is_none() => Err(error_at(
                1,
                1,
                format!(
                    "layer {layer} starts a recomputation, but no checkpoint comes before that layer"
                ),
                "a checkpoint at an earlier layer, for example layer 0",
            )),
            _ => Ok(()),
        }
    }
}

/// Parses the first line. Skips unknown keys, as SimAI does.
fn parse_header(line: &str) -> Result<SimaiWorkload, TraceError> {
    let words: Vec<(usize, &str)> = split_words_with_columns(line).collect();
    let (column, word) = words.first().copied().unwrap_or((1, ""));
    let Some(kind) = KINDS.iter().find(|kind| **kind == word) else {
        return Err(error_at(
            1,
            column,
            format!("the first word is `{}`", escape_and_shorten_name(word)),
            KINDS.join(" or "),
        ));
    };
    let behind = |at: usize| words.get(at).copied().unwrap_or((line.len() + 1, ""));
    let mut this = SimaiWorkload {
        kind,
        tensor: 1,
        pipeline: 1,
        expert: 1,
        npus: None,
        layers: Vec::new(),
        checkpoints: BTreeSet::new(),
        recomputing: BTreeSet::new(),
    };
    for (at, (_, key)) in words.iter().enumerate() {
        let degree = || -> Result<u32, TraceError> {
            let word = behind(at + 1);
            match parse_number(1, word, key.trim_end_matches(':'), u32::MAX.into())? {
                0 => Err(error_at(1, word.0, format!("{key} 0"), "1 or more")),
                degree => Ok(degree as u32),
            }
        };
        let layers = || -> Result<BTreeSet<usize>, TraceError> {
            let count = parse_number(
                1,
                behind(at + 1),
                "the number of layers",
                words.len() as u64,
            )?;
            let indices = (1..=count as usize).map(|i| {
                parse_number(1, behind(at + 1 + i), "a layer's index", u32::MAX.into())
                    .map(|i| i as usize)
            });
            indices.collect()
        };
        match *key {
            "model_parallel_NPU_group:" => this.tensor = degree()?,
            "ep:" => this.expert = degree()?,
            "pp:" => this.pipeline = degree()?,
            "all_gpus:" => this.npus = Some(degree()?),
            "checkpoints:" => this.checkpoints = layers()?,
            "checkpoint_initiates:" => this.recomputing = layers()?,
            _ => {}
        }
    }
    Ok(this)
}

/// Parses a stage from its three words. A collective without a suffix belongs to the groups of `role`.
fn parse_stage(
    line: usize,
    words: &[(usize, &str)],
    what: &str,
    role: RankGroupParallelism,
) -> Result<SimaiStage, TraceError> {
    let ns = parse_number(line, words[0], &format!("the {what} time"), MOST_NS)?;
    let (column, word) = words[1];
    let suffixes = [
        ("_DP_EP", RankGroupParallelism::ExpertData),
        ("_EP", RankGroupParallelism::Expert),
        ("", role),
    ];
    let told = suffixes.iter().find_map(|(suffix, role)| {
        let word = word.strip_suffix(suffix)?;
        let known = COLLECTIVES.iter().find(|(known, _)| *known == word)?;
        Some((known.1, *role))
    });
    let Some((kind, role)) = told else {
        let known = COLLECTIVES.map(|(word, _)| word).join(", ");
        return Err(error_at(
            line,
            column,
            format!(
                "the {what} collective is `{}`",
                escape_and_shorten_name(word)
            ),
            format!("one of {known}, optionally followed by _EP or _DP_EP"),
        ));
    };
    let bytes = parse_number(line, words[2], &format!("the {what} size"), i64::MAX as u64)?;
    let comm = kind.filter(|_| bytes > 0);
    let comm = comm.map(|kind| SimaiComm { kind, role, bytes });
    Ok(SimaiStage { ns, comm })
}

fn parse_layer(line: &str, number_of: usize) -> Result<SimaiLayer, TraceError> {
    let words = split_layer_line_into_words(line, number_of)?;
    Ok(SimaiLayer {
        name: words[0].1.to_owned(),
        forward: parse_stage(
            number_of,
            &words[2..5],
            "forward",
            RankGroupParallelism::Tensor,
        )?,
        input_gradient: parse_stage(
            number_of,
            &words[5..8],
            "input gradient",
            RankGroupParallelism::Tensor,
        )?,
        weight_gradient: parse_stage(
            number_of,
            &words[8..11],
            "weight gradient",
            RankGroupParallelism::Data,
        )?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: &str = "l -1 1 NONE 0 2 NONE 0 3 ALLREDUCE 8 4";

    #[test]
    fn degrees_suffixes_and_sizes_are_read() {
        let line = "moe -1 5 ALLTOALL_EP 64 6 ALLGATHER 0 7 REDUCESCATTER_DP_EP 32 100";
        let text = format!(
            "HYBRID_TRANSFORMER_FWD_IN_BCKWD\tmodel_parallel_NPU_group: 2 ep: 4 pp: 1 mode: 1 ga: 8 all_gpus: 32 \
             checkpoints: 0 checkpoint_initiates: 0 pp_comm: 83.0\r\n2\r\n{line}\r\n{LAYER}\r\n\r\n"
        );
        assert!(SimaiWorkload::begins_as_simai(text.as_bytes()));
        let read = SimaiWorkload::parse(&text).unwrap();
        assert_eq!((read.tensor, read.expert, read.npus), (2, 4, Some(32)));
        let [moe, plain] = &read.layers[..] else {
            panic!("{read:?}")
        };
        let comm = |kind, role, bytes| Some(SimaiComm { kind, role, bytes });
        let exchanged = comm(CollectiveKind::AllToAll, RankGroupParallelism::Expert, 64);
        assert_eq!((moe.forward.ns, moe.forward.comm), (5, exchanged));
        // The parser drops a collective of zero bytes.
        assert_eq!(moe.input_gradient.comm, None);
        let scattered = comm(
            CollectiveKind::ReduceScatter,
            RankGroupParallelism::ExpertData,
            32,
        );
        assert_eq!(moe.weight_gradient.comm, scattered);
        let reduced = comm(CollectiveKind::AllReduce, RankGroupParallelism::Data, 8);
        assert_eq!(plain.weight_gradient.comm, reduced);
    }

    #[test]
    fn parse_errors_state_line_and_column() {
        let word = KINDS[1];
        for (text, parts) in [
            (
                String::new(),
                &["line 1, column 1", "HYBRID_TRANSFORMER"][..],
            ),
            (
                format!("{word} ep:\n1\n{LAYER}"),
                &["line 1, column 23", "ep is ``"],
            ),
            (
                format!("{word} ep: 0\n1\n{LAYER}"),
                &["line 1, column 24", "ep: 0"],
            ),
            (
                format!("{word}\n2\n{LAYER}"),
                &["1 layers, but line 2 states 2"],
            ),
            (
                format!("{word}\n1\nl -1 1 SEND 0 2"),
                &["line 3", "6 words"],
            ),
            (
                format!(
                    "{word}\n1\n{}",
                    LAYER.replace("ALLREDUCE", "ALLREDUCEALLTOALL")
                ),
                &["line 3, column 26", "followed by _EP or _DP_EP"],
            ),
            (
                format!("{word} checkpoints: 1 0 checkpoint_initiates: 1 7\n1\n{LAYER}"),
                &["layer 7 of 1"],
            ),
            (
                format!("{word} checkpoint_initiates: 1 0\n1\n{LAYER}"),
                &["no checkpoint comes before that layer"],
            ),
        ] {
            let why = SimaiWorkload::parse(&text).unwrap_err().to_string();
            assert!(
                parts.iter().all(|part| why.contains(part)),
                "{text:?}: {why}"
            );
        }
    }
}
