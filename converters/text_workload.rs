//! Reads text workloads of ASTRA-sim 1.0: layers with times and collectives, which are the same for
//! all NPUs.
//!
//! The kind of parallelism determines how the layers' stages depend on one another. [`TextWorkload::write_rank`]
//! produces the same traces as Chakra's public converter, byte for byte. Names and ids are the same (ids continue from
//! rank to rank), and dependencies have the same order. Outside DLRM, a `NONE` becomes an all-reduce of the size in the
//! file, which is zero. Times, which are cycles in ASTRA-sim 1.0, are interpreted as microseconds. The public converter
//! would silently misread some invalid inputs, or crash. chakram rejects them with the line of the error.

use crate::words::IgnoredWords;
use chakram_trace::format::escape_and_shorten_name;

mod emit;
mod parse;

/// Kind of parallelism of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextWorkloadParallelism {
    /// Each layer has only one collective, that of its weight gradient, and all of these run in parallel.
    Micro,
    /// Data parallelism: weight gradients are reduced after the backward pass.
    Data,
    /// Model parallelism: activations and their gradients are exchanged layer by layer.
    Model,
    /// Data and model parallelism. Nodes are named as for `HYBRID_DATA_MODEL`.
    DataModel,
    /// Data and model parallelism. Nodes are named as for `HYBRID_MODEL_DATA`.
    ModelData,
    /// DLRM. Layer 0 is an embedding, and the last layer of the bottom MLP waits for the embedding's all-to-all.
    Dlrm {
        /// Index of the last layer of the bottom MLP.
        last_bottom_layer: u32,
    },
}

/// Communication of one stage of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageCollectiveKindOrNone {
    /// All-reduce, `ALLREDUCE`.
    AllReduce,
    /// All-to-all, `ALLTOALL`.
    AllToAll,
    /// All-gather, `ALLGATHER`.
    AllGather,
    /// Reduce-scatter, `REDUCESCATTER`.
    ReduceScatter,
    /// No communication, `NONE`.
    Absent,
}

impl StageCollectiveKindOrNone {
    /// Every word of the format, with the `comm_type` that the resulting node has in the schema.
    const ALL: [(Self, &'static str, u64); 5] = [
        (Self::AllReduce, "ALLREDUCE", 0),
        (Self::AllToAll, "ALLTOALL", 6),
        (Self::AllGather, "ALLGATHER", 2),
        (Self::ReduceScatter, "REDUCESCATTER", 7),
        (Self::Absent, "NONE", 0),
    ];

    fn file_word(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    fn comm_type(self) -> u64 {
        Self::ALL[self as usize].2
    }
}

/// One stage of a layer: forward, input gradient, or weight gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerStage {
    /// Compute time in microseconds.
    pub micros: u64,
    /// Collective that follows the computation.
    pub comm: StageCollectiveKindOrNone,
    /// Bytes of the collective, which become the node's `comm_size`.
    pub bytes: u64,
}

/// One layer of a text workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextWorkloadLayer {
    /// Name of the layer, a single word.
    pub name: String,
    /// Forward stage.
    pub forward: LayerStage,
    /// Input-gradient stage.
    pub input_gradient: LayerStage,
    /// Weight-gradient stage.
    pub weight_gradient: LayerStage,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextWorkload {
    /// Kind of parallelism.
    pub parallelism: TextWorkloadParallelism,
    /// The layers, at least one.
    pub layers: Vec<TextWorkloadLayer>,
    /// Words of the file that have no effect.
    ignored: IgnoredWords,
    /// Text of the file, which is copied into the traces' metadata.
    text: String,
}

impl TextWorkloadParallelism {
    /// Kinds without a parameter, each with its keyword in workload files.
    const PLAIN: [(Self, &'static str); 5] = [
        (Self::Micro, "MICRO"),
        (Self::Data, "DATA"),
        (Self::Model, "MODEL"),
        (Self::DataModel, "HYBRID_DATA_MODEL"),
        (Self::ModelData, "HYBRID_MODEL_DATA"),
    ];
    /// Words that stand for DLRM in files. The index of the last bottom layer follows the word.
    const DLRM: [&'static str; 2] = ["HYBRID_DLRM", "HYBRID_DLRM_ENHANCED"];
    /// ASTRA-sim 1.0's word for a kind that the public converter does not support.
    const UNDEFINED: &'static str = "HYBRID_CUSTOMIZED";

    /// Returns the word that files use for this kind.
    pub fn file_word(self) -> &'static str {
        let plain = Self::PLAIN.iter().find(|(kind, _)| *kind == self);
        plain.map_or(Self::DLRM[0], |(_, word)| word)
    }
}

impl TextWorkload {
    /// Returns true if the first word of a file that begins with `text` names a kind of
    /// parallelism. The file may still be invalid.
    pub fn begins_as_text_workload(text: &[u8]) -> bool {
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        // Python and the parser both accept any Unicode whitespace between words, even a vertical tab, so split the
        // line the same way.
        let line = String::from_utf8_lossy(line);
        let line = line.strip_prefix('\u{feff}').unwrap_or(&line);
        let first = line.split_whitespace().next().unwrap_or_default();
        let plain = TextWorkloadParallelism::PLAIN.iter().map(|(_, word)| *word);
        let mut known = plain
            .chain(TextWorkloadParallelism::DLRM)
            .chain([TextWorkloadParallelism::UNDEFINED]);
        known.any(|word| word == first)
    }

    /// Returns a sentence about each part of the file that the traces leave out.
    pub fn omission_notes(&self) -> Vec<String> {
        let stages = [
            ("forward passes", "forward pass"),
            ("input gradients", "input gradient"),
            ("weight gradients", "weight gradient"),
        ];
        let omitted = (0..).zip(stages).filter_map(|(stage, (plural, single))| {
            let layers = (0..).zip(&self.layers);
            let mut left_out = layers.filter_map(|(index, layer)| {
                let stages = [layer.forward, layer.input_gradient, layer.weight_gradient];
                let LayerStage { comm, bytes, .. } = stages[stage];
                let moves = comm != StageCollectiveKindOrNone::Absent && bytes > 0;
                (moves && !self.runs_collective(stage, index, comm)).then_some((layer, comm, bytes))
            });
            let (layer, comm, bytes) = left_out.next()?;
            let more = match left_out.count() {
                0 => String::new(),
                more => format!(" and {more} more of {plural}"),
            };
            Some(format!(
                "{} leaves out {} {bytes} of the {single} of layer `{}`{more}",
                self.parallelism.file_word(),
                comm.file_word(),
                escape_and_shorten_name(&layer.name)
            ))
        });
        self.ignored.to_sentences().chain(omitted).collect()
    }

    /// Returns true if the traces contain the collective `comm` of a layer's stage: 0 is the forward pass, 1 the input
    /// gradient and 2 the weight gradient.
    fn runs_collective(&self, stage: usize, layer: usize, comm: StageCollectiveKindOrNone) -> bool {
        match (self.parallelism, stage) {
            (TextWorkloadParallelism::Micro | TextWorkloadParallelism::Data, _) => stage == 2,
            (TextWorkloadParallelism::Model, 2) => false,
            (TextWorkloadParallelism::Dlrm { .. }, 0) => {
                comm == StageCollectiveKindOrNone::AllToAll
            }
            // Gradients of the embedding return once the layer after the bottom MLP has its own.
            (TextWorkloadParallelism::Dlrm { last_bottom_layer }, 1) => {
                layer == 0 && last_bottom_layer as usize + 1 < self.layers.len()
            }
            // The first layer has no input gradient.
            (_, 1) => layer > 0,
            _ => true,
        }
    }

    /// Returns the number of nodes that one rank executes in one pass.
    pub fn nodes_per_pass(&self) -> u64 {
        let layers = self.layers.len() as u64;
        let count = |of: fn(&TextWorkloadLayer) -> bool| {
            self.layers.iter().filter(|l| of(l)).count() as u64
        };
        match self.parallelism {
            TextWorkloadParallelism::Micro => layers,
            // Each layer has a forward stage, an input gradient, a weight gradient and the weight gradient's
            // collective. Only the first layer has no input gradient.
            TextWorkloadParallelism::Data => 4 * layers - 1,
            TextWorkloadParallelism::Model => 5 * layers - 1,
            TextWorkloadParallelism::DataModel | TextWorkloadParallelism::ModelData => {
                6 * layers - 1
            }
            TextWorkloadParallelism::Dlrm { last_bottom_layer } => {
                let exchanged =
                    count(|layer| layer.forward.comm == StageCollectiveKindOrNone::AllToAll);
                let reduced =
                    count(|layer| layer.weight_gradient.comm != StageCollectiveKindOrNone::Absent);
                let back = u64::from(u64::from(last_bottom_layer) + 1 < layers);
                3 * layers - 1 + exchanged + reduced + back
            }
        }
    }
}
