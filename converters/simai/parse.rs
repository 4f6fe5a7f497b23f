//! Parses a workload: a line with the degrees of parallelism, the number of layers, and one line of
//! twelve words per layer.

use super::{KINDS, RankGroupParallelism, SimaiComm, SimaiLayer, SimaiStage, SimaiWorkload};
use crate::words::{
    IgnoredWords, error_at, parse_number, split_layer_line_into_words, split_words_with_columns,
};
use chakram_base::config::find_most_similar_name;
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
        let mut counted = split_words_with_columns(second);
        let stated = counted.next().unwrap_or((1, ""));
        this.ignored.add_further(2, counted);
        let stated = parse_number(2, stated, "the number of layers", u32::MAX.into())?;
        let mut end = 2;
        for (line, content) in lines.filter(|(_, content)| !content.trim().is_empty()) {
            let layer = parse_layer(content, line, &mut this.ignored)?;
            this.layers.push(layer);
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

/// Keys of the first line.
const KEYS: [&str; 9] = [
    "model_parallel_NPU_group:",
    "ep:",
    "pp:",
    "vpp:",
    "ga:",
    "all_gpus:",
    "checkpoints:",
    "checkpoint_initiates:",
    "pp_comm:",
];

/// The words of the first line.
struct HeaderWords<'t> {
    words: Vec<(usize, &'t str)>,
    /// Column after the last word.
    end: usize,
    /// Index of the next word.
    at: usize,
}

impl<'t> HeaderWords<'t> {
    fn next(&mut self) -> Option<(usize, &'t str)> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word
    }

    fn next_number(&mut self, what: &str, most: u64) -> Result<u64, TraceError> {
        let end = self.end;
        parse_number(1, self.next().unwrap_or((end, "")), what, most)
    }

    /// Parses the degree that follows `key`.
    fn next_degree(&mut self, key: &str) -> Result<u32, TraceError> {
        let column = self.words.get(self.at).map_or(self.end, |word| word.0);
        match self.next_number(key.trim_end_matches(':'), u32::MAX.into())? {
            0 => Err(error_at(1, column, format!("{key} 0"), "1 or more")),
            degree => Ok(degree as u32),
        }
    }

    /// Parses a number of layers, and as many indices of layers.
    fn next_layers(&mut self) -> Result<BTreeSet<usize>, TraceError> {
        let count = self.next_number("the number of layers", self.words.len() as u64)?;
        let index = |_| self.next_number("a layer's index", u32::MAX.into());
        let indices = (0..count).map(index);
        indices.map(|index| Ok(index? as usize)).collect()
    }

    /// Rejects the unknown word `key` if it resembles a key. Otherwise adds it, with its value, to `ignored`.
    fn check_unknown(
        &mut self,
        column: usize,
        key: &str,
        ignored: &mut IgnoredWords,
    ) -> Result<(), TraceError> {
        if let Some(near) = find_most_similar_name(key, KEYS) {
            return Err(error_at(
                1,
                column,
                format!(
                    "`{}` is not a key; did you mean `{near}`?",
                    escape_and_shorten_name(key)
                ),
                format!("one of {}", KEYS.join(" ")),
            ));
        }
        let value = self.words.get(self.at).map(|word| word.1);
        let value = value.filter(|word| key.ends_with(':') && !word.ends_with(':'));
        self.at += usize::from(value.is_some());
        let text = format!("{key} {}", value.unwrap_or_default());
        ignored.add(
            1,
            text.trim_end(),
            "it is none of the keys that change a pass",
        );
        Ok(())
    }
}

/// Parses the first line. Rejects keys that are probably misspelt. SimAI skips all unknown words, so those that
/// resemble no key are only added to the ignored words.
fn parse_header(line: &str) -> Result<SimaiWorkload, TraceError> {
    let mut words = HeaderWords {
        words: split_words_with_columns(line).collect(),
        end: line.len() + 1,
        at: 0,
    };
    let (column, word) = words.next().unwrap_or((1, ""));
    let Some(kind) = KINDS.iter().find(|kind| **kind == word) else {
        return Err(error_at(
            1,
            column,
            format!("the first word is `{}`", escape_and_shorten_name(word)),
            KINDS.join(" or "),
        ));
    };
    let mut this = SimaiWorkload {
        kind,
        tensor: 1,
        pipeline: 1,
        expert: 1,
        npus: None,
        layers: Vec::new(),
        checkpoints: BTreeSet::new(),
        recomputing: BTreeSet::new(),
        ignored: IgnoredWords::default(),
    };
    let mut seen = BTreeSet::new();
    while let Some((column, key)) = words.next() {
        if KEYS.contains(&key) && !seen.insert(key) {
            return Err(error_at(1, column, format!("{key} twice"), "it once"));
        }
        match key {
            "model_parallel_NPU_group:" => this.tensor = words.next_degree(key)?,
            "ep:" => this.expert = words.next_degree(key)?,
            "pp:" => this.pipeline = words.next_degree(key)?,
            "all_gpus:" => this.npus = Some(words.next_degree(key)?),
            "checkpoints:" => this.checkpoints = words.next_layers()?,
            "checkpoint_initiates:" => this.recomputing = words.next_layers()?,
            "vpp:" | "ga:" => {
                let degree = words.next_degree(key)?;
                let reason = match key {
                    "ga:" => "a pass runs the layers of the file once",
                    _ => "every pipeline stage runs all layers of the file",
                };
                if degree > 1 {
                    this.ignored.add(1, &format!("{key} {degree}"), reason);
                }
            }
            // The summary says that messages between stages are left out.
            "pp_comm:" => {
                words.next();
            }
            _ => words.check_unknown(column, key, &mut this.ignored)?,
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

fn parse_layer(
    line: &str,
    number_of: usize,
    ignored: &mut IgnoredWords,
) -> Result<SimaiLayer, TraceError> {
    let words = split_layer_line_into_words(line, number_of, ignored)?;
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
        let notes: Vec<String> = read.ignored.to_sentences().collect();
        let [mode, accumulated] = &notes[..] else {
            panic!("{notes:?}")
        };
        assert!(
            mode.starts_with("line 1: `mode: 1` has no effect: "),
            "{mode}"
        );
        assert!(
            accumulated.starts_with("line 1: `ga: 8` has no effect: "),
            "{accumulated}"
        );
    }

    #[test]
    fn words_without_effect_are_listed() {
        let text = format!(
            "{} vpp: 4 foo: 3 ga: 1 bar\n1 x\n{} more words\n",
            KINDS[1],
            LAYER.replace("-1", "7")
        );
        let read = SimaiWorkload::parse(&text).unwrap();
        let notes: Vec<String> = read.ignored.to_sentences().collect();
        for (note, start) in notes.iter().zip([
            "line 1: `vpp: 4` has no effect: ",
            "line 1: `foo: 3` has no effect, nor have 1 more such words: ",
            "line 2: `x` has no effect, nor have 2 more such words: ",
            "line 3: `7` has no effect: ",
        ]) {
            assert!(note.starts_with(start), "{note}");
        }
        assert_eq!(notes.len(), 4, "{notes:?}");
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
                format!("{word} model_parallel_NPU_grup: 2\n1\n{LAYER}"),
                &[
                    "line 1, column 20",
                    "did you mean `model_parallel_NPU_group:`",
                ],
            ),
            (
                format!("{word} ga: banana\n1\n{LAYER}"),
                &["line 1, column 24", "ga is `banana`"],
            ),
            (
                format!("{word} ep: 2 ep: 4\n1\n{LAYER}"),
                &["line 1, column 26", "ep: twice"],
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
