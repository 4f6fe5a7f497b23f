//! Writes a workload's graphs in the same form as Chakra's public converter.

use super::{
    LayerStage, StageCollectiveKindOrNone, TextWorkload, TextWorkloadLayer, TextWorkloadParallelism,
};
use chakram_trace::format::TraceError;
use chakram_trace::format::encoder::{ProtobufMessageBuilder, append_frame};
use std::fmt::Write as _;
use std::io::Write;

/// Version that the public converter writes into the metadata.
const SCHEMA: &str = "1.0.2-chakra.1.0.0";

impl TextWorkload {
    /// Writes the trace of `rank` with `passes` passes. Node ids continue from the previous rank's last id.
    ///
    /// # Errors
    ///
    /// Fails if writing to `out` fails.
    pub fn write_rank(
        &self,
        rank: u32,
        passes: u32,
        out: &mut impl Write,
    ) -> Result<(), TraceError> {
        let first = u64::from(rank) * u64::from(passes) * self.nodes_per_pass();
        let mut emitter = TextWorkloadNodeEmitter::new(out, first);
        emitter.write_metadata(&self.text)?;
        let mut before: Vec<LayerNodesAwaitedByNextPass> =
            vec![LayerNodesAwaitedByNextPass::default(); self.layers.len()];
        for _ in 0..passes {
            match self.parallelism {
                TextWorkloadParallelism::Micro => {
                    self.write_weight_gradient_comms_of_all_layers(&mut emitter)?
                }
                TextWorkloadParallelism::Data => {
                    self.write_data_parallel(&mut before, &mut emitter)?
                }
                TextWorkloadParallelism::Model => {
                    self.write_model_parallel_or_hybrid("", false, &mut before, &mut emitter)?
                }
                TextWorkloadParallelism::DataModel => {
                    self.write_model_parallel_or_hybrid(
                        "_IG_COMM_",
                        true,
                        &mut before,
                        &mut emitter,
                    )?;
                }
                TextWorkloadParallelism::ModelData => {
                    self.write_model_parallel_or_hybrid("", true, &mut before, &mut emitter)?
                }
                TextWorkloadParallelism::Dlrm { last_bottom_layer } => {
                    self.write_dlrm(last_bottom_layer as usize, &mut before, &mut emitter)?;
                }
            }
        }
        Ok(())
    }

    fn write_weight_gradient_comms_of_all_layers(
        &self,
        emitter: &mut TextWorkloadNodeEmitter<'_, impl Write>,
    ) -> Result<(), TraceError> {
        for layer in &self.layers {
            emitter.write_comm(layer, "", layer.weight_gradient, [])?;
        }
        Ok(())
    }

    fn write_data_parallel(
        &self,
        nodes: &mut [LayerNodesAwaitedByNextPass],
        emitter: &mut TextWorkloadNodeEmitter<'_, impl Write>,
    ) -> Result<(), TraceError> {
        let mut last = None;
        for (layer, own) in self.layers.iter().zip(nodes.iter()) {
            let reduced = own.weight_comm;
            last = Some(emitter.write_compute(layer, "FWD", layer.forward, [last, reduced])?);
        }
        for (i, layer) in self.layers.iter().enumerate().rev() {
            let gradient = emitter.write_compute(layer, "BWD_WG", layer.weight_gradient, [last])?;
            let reduced = emitter.write_comm(layer, "", layer.weight_gradient, [Some(gradient)])?;
            nodes[i].weight_comm = Some(reduced);
            if i > 0 {
                last = Some(emitter.write_compute(
                    layer,
                    "BWD_IG",
                    layer.input_gradient,
                    [Some(gradient)],
                )?);
            }
        }
        Ok(())
    }

    /// Writes the nodes of a model-parallel workload. If `hybrid` is true, also writes the all-reduces of weight
    /// gradients. The names of input-gradient collectives end in `suffix`.
    fn write_model_parallel_or_hybrid(
        &self,
        suffix: &str,
        hybrid: bool,
        nodes: &mut [LayerNodesAwaitedByNextPass],
        emitter: &mut TextWorkloadNodeEmitter<'_, impl Write>,
    ) -> Result<(), TraceError> {
        let mut last = None;
        for (layer, own) in self.layers.iter().zip(nodes.iter()) {
            let after = if hybrid {
                [own.weight_comm, last]
            } else {
                [last, own.weight_comp]
            };
            let forward = emitter.write_compute(layer, "FWD", layer.forward, after)?;
            last = Some(emitter.write_comm(layer, "", layer.forward, [Some(forward)])?);
        }
        let mut after = [last, None];
        for (i, layer) in self.layers.iter().enumerate().rev() {
            let gradient = emitter.write_compute(layer, "BWD_IG", layer.input_gradient, after)?;
            let exchanged = match i {
                0 => None,
                _ => Some(emitter.write_comm(
                    layer,
                    suffix,
                    layer.input_gradient,
                    [Some(gradient)],
                )?),
            };
            let weight =
                emitter.write_compute(layer, "BWD_WG", layer.weight_gradient, [Some(gradient)])?;
            nodes[i].weight_comp = Some(weight);
            if hybrid {
                let reduced =
                    emitter.write_comm(layer, "", layer.weight_gradient, [Some(weight)])?;
                nodes[i].weight_comm = Some(reduced);
            }
            after = [Some(weight), exchanged];
        }
        Ok(())
    }

    fn write_dlrm(
        &self,
        last_bottom: usize,
        nodes: &mut [LayerNodesAwaitedByNextPass],
        emitter: &mut TextWorkloadNodeEmitter<'_, impl Write>,
    ) -> Result<(), TraceError> {
        let (mut last, mut exchanged) = (None, None);
        for (i, (layer, own)) in self.layers.iter().zip(nodes.iter()).enumerate() {
            let joined = exchanged.filter(|_| i == last_bottom);
            let updated = own.weight_comm.or(own.weight_comp);
            let forward =
                emitter.write_compute(layer, "FWD", layer.forward, [updated, last, joined])?;
            last = Some(forward);
            if layer.forward.comm == StageCollectiveKindOrNone::AllToAll {
                let comm = emitter.write_comm(layer, "", layer.forward, [Some(forward)])?;
                if i == 0 {
                    exchanged = Some(comm);
                }
            }
        }
        let mut returned = None;
        for (i, layer) in self.layers.iter().enumerate().rev() {
            // Layer 0 also waits for the all-to-all of embedding gradients.
            let joined = returned.filter(|_| i == 0);
            let weight =
                emitter.write_compute(layer, "BWD_WG", layer.weight_gradient, [last, joined])?;
            nodes[i].weight_comp = Some(weight);
            if layer.weight_gradient.comm != StageCollectiveKindOrNone::Absent {
                let reduced =
                    emitter.write_comm(layer, "", layer.weight_gradient, [Some(weight)])?;
                nodes[i].weight_comm = Some(reduced);
            }
            if i > 0 {
                last = Some(emitter.write_compute(
                    layer,
                    "BWD_IG",
                    layer.input_gradient,
                    [Some(weight)],
                )?);
            }
            if i == last_bottom + 1 {
                let embedding = &self.layers[0];
                returned =
                    Some(emitter.write_comm(embedding, "", embedding.input_gradient, [last])?);
            }
        }
        Ok(())
    }
}

/// Nodes of a layer on which the next pass depends.
#[derive(Clone, Copy, Debug, Default)]
struct LayerNodesAwaitedByNextPass {
    weight_comp: Option<u64>,
    weight_comm: Option<u64>,
}

/// Writes the nodes of a rank.
struct TextWorkloadNodeEmitter<'o, W> {
    out: &'o mut W,
    next: u64,
    name: String,
    data: Vec<u64>,
    node: ProtobufMessageBuilder,
    attribute: ProtobufMessageBuilder,
    record: Vec<u8>,
}

impl<'o, W: Write> TextWorkloadNodeEmitter<'o, W> {
    fn new(out: &'o mut W, first: u64) -> Self {
        Self {
            out,
            next: first,
            name: String::new(),
            data: Vec::new(),
            node: ProtobufMessageBuilder::default(),
            attribute: ProtobufMessageBuilder::default(),
            record: Vec::new(),
        }
    }

    fn write_metadata(&mut self, text: &str) -> Result<(), TraceError> {
        self.node.clear();
        for (name, value) in [("schema", SCHEMA), ("input_file", text)] {
            self.attribute.clear();
            self.attribute.append_bytes(1, name.as_bytes());
            self.attribute.append_bytes(29, value.as_bytes());
            self.node.append_bytes(2, self.attribute.as_bytes());
        }
        self.write_pending()
    }

    /// Writes the pending node to the file.
    fn write_pending(&mut self) -> Result<(), TraceError> {
        self.record.clear();
        append_frame(&mut self.record, self.node.as_bytes());
        let written = self.out.write_all(&self.record);
        written.map_err(|source| TraceError::from_io("", "write", source))
    }

    /// Begins a node; the caller has already set its name. `kind` is a node type of the schema. The node depends on
    /// those nodes in `after` that are present. Returns the node's id.
    fn begin_node<const N: usize>(&mut self, kind: u64, after: [Option<u64>; N]) -> u64 {
        let id = self.next;
        self.next += 1;
        self.node.clear();
        // Protobuf omits zero, because zero is the default value.
        if id > 0 {
            self.node.append_varint(1, id);
        }
        self.node.append_bytes(2, self.name.as_bytes());
        self.node.append_varint(3, kind);
        self.data.clear();
        self.data.extend(after.into_iter().flatten());
        self.node.append_packed(5, &self.data);
        id
    }

    fn write_compute<const N: usize>(
        &mut self,
        layer: &TextWorkloadLayer,
        phase: &str,
        stage: LayerStage,
        after: [Option<u64>; N],
    ) -> Result<u64, TraceError> {
        self.name.clear();
        write!(self.name, "COMP_NODE_{}_{phase}", layer.name).expect("a string grows as needed");
        let id = self.begin_node(4, after);
        if stage.micros > 0 {
            self.node.append_varint(7, stage.micros);
        }
        self.write_pending().map(|()| id)
    }

    fn write_comm<const N: usize>(
        &mut self,
        layer: &TextWorkloadLayer,
        suffix: &str,
        stage: LayerStage,
        after: [Option<u64>; N],
    ) -> Result<u64, TraceError> {
        self.name.clear();
        let (name, word) = (&layer.name, stage.comm.file_word());
        write!(self.name, "COMM_COLL_NODE_{name}{suffix}_{word}")
            .expect("a string grows as needed");
        let id = self.begin_node(7, after);
        for (name, value) in [
            ("comm_type", stage.comm.comm_type()),
            ("comm_size", stage.bytes),
        ] {
            self.attribute.clear();
            self.attribute.append_bytes(1, name.as_bytes());
            self.attribute.append_varint(9, value);
            self.node.append_bytes(10, self.attribute.as_bytes());
        }
        self.write_pending().map(|()| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_trace::format::scan::NodeView;
    use chakram_trace::format::wire::FrameCursor;
    use chakram_trace::format::{Op, scan};

    /// Facts about a node that a test reads back: its id, its name, and the ids of its
    /// dependencies.
    type Told = (u64, String, Vec<u64>);

    struct DataDependencyIds(Vec<u64>);

    impl scan::DependencyVisitor for DataDependencyIds {
        fn visit_data_dependency(&mut self, id: u64) -> Result<(), TraceError> {
            self.0.push(id);
            Ok(())
        }
        fn visit_control_dependency(&mut self, _: u64) -> Result<(), TraceError> {
            panic!("there are none")
        }
    }

    fn list_written_nodes(text: &str, rank: u32, passes: u32) -> Vec<Told> {
        let workload = TextWorkload::parse(text).unwrap();
        let mut file = Vec::new();
        workload.write_rank(rank, passes, &mut file).unwrap();
        let mut frames = FrameCursor::new(&file);
        frames.next_record().unwrap().expect("metadata");
        let mut all = Vec::new();
        while let Some(record) = frames.next_record().unwrap() {
            let mut data = DataDependencyIds(Vec::new());
            let node: NodeView<'_> = scan::scan_node(record, &mut data).unwrap();
            assert_ne!(
                node.op,
                Op::Host,
                "no feeder takes them for work of the host"
            );
            all.push((node.id, node.name.to_owned(), data.0));
        }
        assert_eq!(
            all.len() as u64,
            workload.nodes_per_pass() * u64::from(passes)
        );
        all
    }

    fn build_three_layer_text(kind: &str) -> String {
        let line = |name: &str| format!("{name} -1 1 ALLTOALL 8 2 ALLGATHER 16 3 ALLREDUCE 32 0\n");
        format!("{kind}\n3\n{}{}{}", line("a"), line("b"), line("c"))
    }

    fn list_data_dependencies_of_each_node(told: &[Told]) -> Vec<&[u64]> {
        told.iter().map(|(.., data)| &data[..]).collect()
    }

    #[test]
    fn ids_go_on_from_rank_to_rank() {
        // MICRO has one node per layer. Two passes of three layers have six nodes, so rank 2 begins at id 12.
        let told = list_written_nodes(&build_three_layer_text("MICRO"), 2, 2);
        let ids: Vec<_> = told.iter().map(|(id, ..)| *id).collect();
        assert_eq!(ids, [12, 13, 14, 15, 16, 17]);
        assert!(
            list_data_dependencies_of_each_node(&told)
                .iter()
                .all(|data| data.is_empty())
        );
        assert_eq!(told[0].1, "COMM_COLL_NODE_a_ALLREDUCE");
    }

    #[test]
    fn data_parallelism_reduces_behind_the_backward_pass() {
        // Node ids, with WG = weight gradient, IG = input gradient and AR = all-reduce. Forward: 0 1 2. Backward: c
        // has WG 3, AR 4, IG 5; b has WG 6, AR 7, IG 8; a has WG 9, AR 10. The second pass begins
        // at 11. In the second pass, each forward stage also waits for the all-reduce of its layer:
        // 10, 7 and 4.
        let told = list_written_nodes(&build_three_layer_text("DATA"), 0, 2);
        let first: [&[u64]; 11] = [
            &[],
            &[0],
            &[1],
            &[2],
            &[3],
            &[3],
            &[5],
            &[6],
            &[6],
            &[8],
            &[9],
        ];
        assert_eq!(list_data_dependencies_of_each_node(&told[..11]), first);
        let second: [&[u64]; 3] = [&[10], &[11, 7], &[12, 4]];
        assert_eq!(list_data_dependencies_of_each_node(&told[11..14]), second);
    }

    #[test]
    fn model_parallelism_exchanges_activations_and_their_gradients() {
        // Node ids. Forward, compute and exchange: a 0 1, b 2 3, c 4 5. Backward: c has IG 6, exchange 7, WG 8; b
        // has 9, 10, 11, which wait for WG 8 and exchange 7; a has IG 12 and WG 13, without an exchange. The next
        // pass waits for 13, 11 and 8.
        let told = list_written_nodes(&build_three_layer_text("MODEL"), 0, 2);
        let first: [&[u64]; 14] = [
            &[],
            &[0],
            &[1],
            &[2],
            &[3],
            &[4],
            &[5],
            &[6],
            &[6],
            &[8, 7],
            &[9],
            &[9],
            &[11, 10],
            &[12],
        ];
        assert_eq!(list_data_dependencies_of_each_node(&told[..14]), first);
        assert_eq!(told[7].1, "COMM_COLL_NODE_c_ALLGATHER");
        assert_eq!(
            (&told[14].2[..], &told[16].2[..]),
            (&[13][..], &[15, 11][..])
        );
    }

    #[test]
    fn hybrid_parallelisms_combine_both_and_differ_in_one_name() {
        // Node ids are as for model parallelism, with an all-reduce after each WG: c 6 7 8 9, b 10
        // 11 12 13, a 14 15 16.
        let one = list_written_nodes(&build_three_layer_text("HYBRID_DATA_MODEL"), 0, 2);
        let first: [&[u64]; 17] = [
            &[],
            &[0],
            &[1],
            &[2],
            &[3],
            &[4],
            &[5],
            &[6],
            &[6],
            &[8],
            &[8, 7],
            &[10],
            &[10],
            &[12],
            &[12, 11],
            &[14],
            &[15],
        ];
        assert_eq!(list_data_dependencies_of_each_node(&one[..17]), first);
        // In the second pass, each forward stage lists the all-reduces 16 and 13 before the
        // exchange of the previous layer.
        assert_eq!((&one[17].2[..], &one[19].2[..]), (&[16][..], &[13, 18][..]));
        let other = list_written_nodes(&build_three_layer_text("HYBRID_MODEL_DATA"), 0, 2);
        assert_eq!(
            list_data_dependencies_of_each_node(&one),
            list_data_dependencies_of_each_node(&other)
        );
        assert_eq!(one[7].1, "COMM_COLL_NODE_c_IG_COMM__ALLGATHER");
        assert_eq!(other[7].1, "COMM_COLL_NODE_c_ALLGATHER");
    }

    #[test]
    fn embeddings_of_dlrm_join_the_bottom_and_return_from_the_top() {
        let none = "NONE 0";
        let line = |name: &str, forward: &str, weight: &str| {
            format!("{name} -1 1 {forward} 2 ALLTOALL 16 3 {weight} 0\n")
        };
        let text = format!(
            "HYBRID_DLRM 2\n4\n{}{}{}{}",
            line("e", "ALLTOALL 8", none),
            line("b1", none, "ALLREDUCE 4"),
            line("b2", none, none),
            line("t", none, "ALLREDUCE 4"),
        );
        let told = list_written_nodes(&text, 0, 2);
        // Node ids. Forward: e 0, all-to-all of e 1, b1 2, b2 3 (after 1 and 2), t 4. Backward: t has WG 5, AR 6,
        // IG 7, followed by the embedding's all-to-all 8; b2 has WG 9, IG 10; b1 has WG 11, AR 12, IG 13; e has WG
        // 14, after 13 and 8.
        let first: [&[u64]; 15] = [
            &[],
            &[0],
            &[0],
            &[2, 1],
            &[3],
            &[4],
            &[5],
            &[5],
            &[7],
            &[7],
            &[9],
            &[10],
            &[11],
            &[11],
            &[13, 8],
        ];
        assert_eq!(list_data_dependencies_of_each_node(&told[..15]), first);
        // In the next pass, e waits for WG 14, b1 for AR 12, b2 for WG 9 and for both predecessors, and t for AR 6.
        let second: [&[u64]; 5] = [&[14], &[15], &[12, 15], &[9, 17, 16], &[6, 18]];
        assert_eq!(list_data_dependencies_of_each_node(&told[15..20]), second);
    }
}
