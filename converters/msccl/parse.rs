//! Parses MSCCL's XML. An `algo` element contains `gpu` elements. These contain `tb` elements (thread blocks), which
//! contain `step` elements.

use super::checks::{
    BufferChunks, check_chunks_in_buffers, count_buffer_chunks, find_unknown_attributes,
};
use super::element::{MOST, XmlElement};
use super::{MscclAlgorithm, MscclGpu, MscclStep, StepKind, ThreadBlock, error_at};
use chakram_trace::format::{
    CollectiveKind, TraceError, TraceErrorLocation, escape_and_shorten_name,
};
use roxmltree::Document;

/// Values of the attribute `coll`, with the collectives that they name.
const COLLECTIVES: [(&str, CollectiveKind); 8] = [
    ("allreduce", CollectiveKind::AllReduce),
    ("allgather", CollectiveKind::AllGather),
    ("reducescatter", CollectiveKind::ReduceScatter),
    ("reduce_scatter", CollectiveKind::ReduceScatter),
    ("alltoall", CollectiveKind::AllToAll),
    ("broadcast", CollectiveKind::Broadcast),
    ("reduce", CollectiveKind::Reduce),
    ("gather", CollectiveKind::Gather),
];

/// NCCL's protocols. Message sizes do not depend on them.
const PROTOCOLS: [&str; 3] = ["Simple", "LL", "LL128"];

impl MscclAlgorithm {
    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// Fails if the text violates the format, if a peer or step does not exist, or if a message's
    /// send and receive do not match. The error states the line.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        // Do not remove a byte order mark, because the XML parser skips it.
        let document = Document::parse(text).map_err(|error| {
            let place = TraceErrorLocation {
                line: Some((error.pos().row as usize, error.pos().col as usize)),
                ..TraceErrorLocation::default()
            };
            TraceError::invalid_at(
                place,
                format!("the file is not valid XML: {error}"),
                "an algorithm file that msccl-tools wrote",
            )
        })?;
        let algo = XmlElement(document.root_element());
        if algo.tag_name() != "algo" {
            let found = format!(
                "the root element is <{}>",
                escape_and_shorten_name(algo.tag_name())
            );
            return Err(error_at(
                algo.line_and_column(),
                found,
                "<algo>, as msccl-tools write it",
            ));
        }
        let coll = algo.text_attribute("coll")?;
        let Some((_, kind)) = COLLECTIVES.iter().find(|(word, _)| *word == coll) else {
            let words = COLLECTIVES.map(|(word, _)| word).join(", ");
            let found = format!("the collective \"{}\"", escape_and_shorten_name(coll));
            return Err(error_at(
                algo.line_and_column(),
                found,
                format!("one of {words}"),
            ));
        };
        let gpus = algo.children_numbered_from_zero("gpu", "id")?;
        let stated = algo.number_attribute("ngpus", MOST)?;
        if gpus.len() as u64 != stated || stated < 2 {
            let found = format!("{} <gpu> elements, but `ngpus` is {stated}", gpus.len());
            return Err(error_at(
                algo.line_and_column(),
                found,
                "`ngpus` equal to the number of <gpu> elements, and at least 2",
            ));
        }
        if let Some(proto) = algo.0.attribute("proto")
            && !PROTOCOLS.contains(&proto)
        {
            return Err(error_at(
                algo.line_and_column(),
                format!("the protocol \"{}\"", escape_and_shorten_name(proto)),
                format!("one of {}", PROTOCOLS.join(", ")),
            ));
        }
        let buffers = count_buffer_chunks(&algo, &gpus)?;
        let chunks = algo.number_attribute("nchunksperloop", MOST)?;
        if chunks == 0 {
            return Err(error_at(
                algo.line_and_column(),
                "`nchunksperloop` is 0",
                "at least 1 chunk",
            ));
        }
        let range = match (algo.0.attribute("minBytes"), algo.0.attribute("maxBytes")) {
            (Some(_), Some(_)) => {
                let most = i64::MAX as u64;
                let (least, most) = (
                    algo.number_attribute("minBytes", most)?,
                    algo.number_attribute("maxBytes", most)?,
                );
                // Tools write zeros if the algorithm suits any size.
                Some((least, most)).filter(|(_, most)| *most > 0)
            }
            _ => None,
        };
        let gpus = (0..)
            .zip(&gpus)
            .map(|(id, gpu)| parse_gpu_element(gpu, id, stated, &buffers));
        let this = Self {
            name: algo.0.attribute("name").unwrap_or("msccl").to_owned(),
            kind: *kind,
            chunks,
            range,
            gpus: gpus.collect::<Result<_, _>>()?,
            unknown_attributes: find_unknown_attributes(&document),
        };
        this.check_awaited_steps_exist()?;
        this.check_connections_and_map_messages()?;
        Ok(this)
    }

    /// Rejects steps that wait for a step that does not exist.
    fn check_awaited_steps_exist(&self) -> Result<(), TraceError> {
        for gpu in &self.gpus {
            for step in gpu.blocks.iter().flat_map(|block| &block.steps) {
                let Some((block, wanted)) = step.after else {
                    continue;
                };
                let known = gpu.blocks.get(block as usize);
                if known.is_none_or(|block| wanted as usize >= block.steps.len()) {
                    return Err(error_at(
                        step.line,
                        format!(
                            "a step waits for step {wanted} of thread block {block}, which does not exist"
                        ),
                        "a thread block of the same GPU in `depid`, and one of its steps in `deps`",
                    ));
                }
            }
        }
        Ok(())
    }
}

fn parse_gpu_element(
    gpu: &XmlElement<'_>,
    id: u32,
    gpus: u64,
    buffers: &BufferChunks,
) -> Result<MscclGpu, TraceError> {
    let blocks = gpu.children_numbered_from_zero("tb", "id")?;
    let blocks = blocks
        .iter()
        .map(|block| parse_thread_block_element(block, id, gpus, buffers));
    Ok(MscclGpu {
        blocks: blocks.collect::<Result<_, _>>()?,
    })
}

fn parse_thread_block_element(
    block: &XmlElement<'_>,
    own: u32,
    gpus: u64,
    buffers: &BufferChunks,
) -> Result<ThreadBlock, TraceError> {
    let peer = |key| {
        let peer = block
            .number_attribute_or_none_if_minus_one(key, gpus - 1)?
            .map(|peer| peer as u32);
        if peer == Some(own) {
            let found = format!("`{key}` of a thread block of GPU {own} is {own}, the GPU itself");
            return Err(error_at(
                block.line_and_column(),
                found,
                "another GPU, or -1",
            ));
        }
        Ok(peer)
    };
    let (send, receive) = (peer("send")?, peer("recv")?);
    let steps = block.children_numbered_from_zero("step", "s")?;
    let steps = steps
        .iter()
        .map(|step| parse_step_element(step, buffers))
        .collect::<Result<Vec<_>, _>>()?;
    for step in &steps {
        let lacks = |needed, peer: Option<u32>| needed && peer.is_none();
        let word = step.kind.xml_word();
        for (lacks, key) in [
            (lacks(step.kind.has_send(), send), "send"),
            (lacks(step.kind.has_receive(), receive), "recv"),
        ] {
            if lacks {
                let found = format!("a step `{word}` in a thread block without `{key}`");
                return Err(error_at(
                    step.line,
                    found,
                    format!("a peer in `{key}` of <tb>"),
                ));
            }
        }
    }
    Ok(ThreadBlock {
        send,
        receive,
        channel: block.number_attribute("chan", MOST - 1)? as u32,
        steps,
        line: block.line_and_column(),
    })
}

fn parse_step_element(
    step: &XmlElement<'_>,
    buffers: &BufferChunks,
) -> Result<MscclStep, TraceError> {
    let word = step.text_attribute("type")?;
    let Some((kind, _)) = StepKind::ALL.iter().find(|(_, known)| *known == word) else {
        let words = StepKind::ALL.map(|(_, word)| word).join(", ");
        let found = format!("a step of type \"{}\"", escape_and_shorten_name(word));
        return Err(error_at(
            step.line_and_column(),
            found,
            format!("one of {words}"),
        ));
    };
    let after = match (
        step.number_attribute_or_none_if_minus_one("depid", MOST)?,
        step.number_attribute_or_none_if_minus_one("deps", MOST)?,
    ) {
        (Some(block), Some(step)) => Some((block as u32, step as u32)),
        (None, _) => None,
        (Some(block), None) => {
            let found = format!(
                "a step has `depid` {block} for a thread block, but no `deps` for one of its steps"
            );
            return Err(error_at(
                step.line_and_column(),
                found,
                "`deps` with the index of the step",
            ));
        }
    };
    let count = step.number_attribute("cnt", MOST)?;
    check_chunks_in_buffers(step, count, buffers)?;
    Ok(MscclStep {
        kind: *kind,
        source: step
            .number_attribute_or_none_if_minus_one("srcoff", MOST)?
            .unwrap_or(0),
        count,
        after,
        line: step.line_and_column(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds two GPUs with one thread block each, connected in both directions. GPU 0 runs `first`, and GPU 1 runs
    /// `second`.
    fn build_two_gpu_algorithm_xml(first: &str, second: &str) -> String {
        let gpu = |id: u32, steps: &str| {
            let peer = 1 - id;
            format!(
                "<gpu id=\"{id}\" i_chunks=\"2\" o_chunks=\"2\" s_chunks=\"0\">\n\
                 <tb id=\"0\" send=\"{peer}\" recv=\"{peer}\" chan=\"0\">\n{steps}\n</tb></gpu>\n"
            )
        };
        format!(
            "<!-- a comment with <gpu> -->\n<algo name=\"two\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"2\" \
             ngpus=\"2\" coll=\"allreduce\" inplace=\"1\">\n{}{}</algo>\n",
            gpu(0, first),
            gpu(1, second)
        )
    }

    fn build_step_element(s: u32, kind: &str, source: u32, after: &str) -> String {
        format!(
            "<step s=\"{s}\" type=\"{kind}\" srcbuf=\"i\" srcoff=\"{source}\" dstbuf=\"i\" dstoff=\"{source}\" \
             cnt=\"1\" {after} hasdep=\"0\"/>"
        )
    }

    const FREE: &str = "depid=\"-1\" deps=\"-1\"";

    #[test]
    fn parsing_sorts_steps_given_out_of_order() {
        let send = build_step_element(1, "s", 1, FREE) + &build_step_element(0, "nop", 0, FREE);
        let text = build_two_gpu_algorithm_xml(&send, &build_step_element(0, "rrc", 1, FREE));
        assert!(MscclAlgorithm::begins_as_msccl(text.as_bytes()));
        let algorithm = MscclAlgorithm::parse(&text).unwrap();
        assert_eq!((&algorithm.name[..], algorithm.chunks), ("two", 2));
        assert_eq!(algorithm.kind, CollectiveKind::AllReduce);
        let block = &algorithm.gpus[0].blocks[0];
        assert_eq!(
            (block.send, block.receive, block.channel),
            (Some(1), Some(1), 0)
        );
        let kinds: Vec<StepKind> = block.steps.iter().map(|step| step.kind).collect();
        assert_eq!(kinds, [StepKind::Nothing, StepKind::Send]);
        assert!(
            !MscclAlgorithm::begins_as_msccl(b"<algorithm/>")
                && !MscclAlgorithm::begins_as_msccl(b"algo ")
        );
    }

    #[test]
    fn step_type_words_tell_whether_steps_send_or_receive() {
        for (i, (kind, _)) in StepKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, i);
        }
        let words = |of: fn(StepKind) -> bool| {
            let all = StepKind::ALL.iter().filter(|(kind, _)| of(*kind));
            all.map(|(_, word)| *word).collect::<Vec<_>>()
        };
        assert_eq!(
            words(StepKind::has_receive),
            ["r", "rcs", "rrs", "rrc", "rrcs"]
        );
        assert_eq!(words(StepKind::has_send), ["s", "rcs", "rrs", "rrcs"]);
    }

    #[test]
    fn parse_errors_state_line_and_fault() {
        let (send, receive) = (
            build_step_element(0, "s", 0, FREE),
            build_step_element(0, "r", 0, FREE),
        );
        let sound = build_two_gpu_algorithm_xml(&send, &receive);
        assert!(
            MscclAlgorithm::parse(&sound)
                .unwrap()
                .unknown_attributes
                .is_empty()
        );
        let misspelt = MscclAlgorithm::parse(&sound.replace("inplace", "inplaze")).unwrap();
        assert_eq!(
            misspelt.unknown_attributes,
            ["line 2: `inplaze` of <algo> is unknown and has no effect; did you mean `inplace`?"]
        );
        for (text, parts) in [
            (
                build_two_gpu_algorithm_xml(&send, ""),
                &["line 5", "GPU 1", "has no receive for this send"][..],
            ),
            (
                build_two_gpu_algorithm_xml("", &receive),
                &["GPU 0", "has no send for this receive"],
            ),
            (
                build_two_gpu_algorithm_xml(&build_step_element(0, "x", 0, FREE), ""),
                &["line 5, column 1", "\"x\"", "rrcs"],
            ),
            (
                build_two_gpu_algorithm_xml(&build_step_element(1, "nop", 0, FREE), ""),
                &["<step> with `s` 1, but the next `s` is 0"],
            ),
            (
                build_two_gpu_algorithm_xml(
                    &build_step_element(0, "nop", 0, "depid=\"0\" deps=\"7\""),
                    "",
                ),
                &["step 7 of thread block 0"],
            ),
            (
                build_two_gpu_algorithm_xml(
                    &build_step_element(0, "nop", 0, "depid=\"0\" deps=\"-1\""),
                    "",
                ),
                &["but no `deps`"],
            ),
            (
                build_two_gpu_algorithm_xml(&build_step_element(0, "s", 0, "depid=\"-1\""), ""),
                &["without `deps`"],
            ),
            (
                sound.replace("allreduce", "custom"),
                &["\"custom\"", "allgather"],
            ),
            (
                sound.replace("ngpus=\"2\"", "ngpus=\"3\""),
                &["2 <gpu> elements, but `ngpus` is 3"],
            ),
            (
                sound.replace("send=\"1\"", "send=\"0\""),
                &["`send` of a thread block of GPU 0 is 0"],
            ),
            (
                sound.replace("send=\"1\"", "send=\"-1\""),
                &["`s` in a thread block without `send`"],
            ),
            (
                sound.replace("send=\"1\"", "send=\"2\""),
                &["\"2\"", "0 to 1"],
            ),
            (
                sound.replacen("srcoff=\"0\"", "srcoff=\"9\"", 1),
                &["`srcoff` 9 and `cnt` 1, but buffer `i` has 2 chunks (`i_chunks`)"],
            ),
            (
                sound.replacen("dstoff=\"0\"", "dstoff=\"2\"", 1),
                &["`dstoff` 2 and `cnt` 1"],
            ),
            (
                sound.replacen("srcbuf=\"i\"", "srcbuf=\"x\"", 1),
                &["the srcbuf \"x\"", "i, o, s"],
            ),
            (
                sound.replace("Simple", "Foo"),
                &["the protocol \"Foo\"", "LL128"],
            ),
            (sound.replace("</algo>", ""), &["not valid XML"]),
            (
                sound.replace("algo", "alga"),
                &["the root element is <alga>"],
            ),
            (
                sound.replacen("cnt=\"1\"", "cnt=\"2\"", 1),
                &["2 chunks", "1"],
            ),
        ] {
            let why = MscclAlgorithm::parse(&text).unwrap_err().to_string();
            assert!(
                parts.iter().all(|part| why.contains(part)),
                "{parts:?}: {why}"
            );
        }
    }
}
