//! Writes an algorithm's traces for a given buffer size.

use super::MscclAlgorithm;
use super::connections::GpuPairAndChannel;
use chakram_trace::format::scan::{self, NodeView};
use chakram_trace::format::write::{AttributeValue, NodeFieldsBeyondView, TraceWriter};
use chakram_trace::format::{Op, TraceError};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

/// An algorithm and a buffer size, from which traces are written.
#[derive(Debug)]
pub struct MscclTraceWriter<'a> {
    algorithm: &'a MscclAlgorithm,
    /// For each connection, the first chunk of each message.
    messages: BTreeMap<GpuPairAndChannel, Vec<u64>>,
    /// Size of the whole buffer, in bytes.
    buffer: u64,
}

impl<'a> MscclTraceWriter<'a> {
    /// Prepares the traces for a buffer of `buffer` bytes.
    ///
    /// # Errors
    ///
    /// Fails for the same reasons as [`MscclAlgorithm::parse`].
    pub fn new(algorithm: &'a MscclAlgorithm, buffer: u64) -> Result<Self, TraceError> {
        Ok(Self {
            algorithm,
            messages: algorithm.check_connections_and_map_messages()?,
            buffer,
        })
    }

    /// Returns the number of bytes in the `count` chunks that start at chunk `first`. Each chunk is a whole number of
    /// bytes, and chunk sizes differ as little as possible.
    fn bytes_of_chunk_range(&self, first: u64, count: u64) -> u64 {
        let chunks = u128::from(self.algorithm.chunks);
        let end = |chunk: u64| u128::from(chunk) * u128::from(self.buffer) / chunks;
        (end(first + count) - end(first)) as u64
    }

    /// Writes the trace of a GPU. Returns `out` and the number of nodes written.
    ///
    /// # Errors
    ///
    /// Fails if writing to `out` fails.
    pub fn write_gpu_trace<W: Write>(&self, gpu: u32, out: W) -> Result<(W, u64), TraceError> {
        let io = |source: std::io::Error| TraceError::from_io("", "write", source);
        // `--custom` rejects collectives of other kinds and sizes, because the messages' sizes are fixed.
        let kind = self.algorithm.kind.to_string();
        let purpose = [
            (scan::ALGORITHM_OF, AttributeValue::Text(&kind)),
            (scan::ALGORITHM_BYTES, AttributeValue::Uint(self.buffer)),
        ];
        let mut writer = TraceWriter::start_with_metadata(out, &purpose).map_err(io)?;
        let blocks = &self.algorithm.gpus[gpu as usize].blocks;
        // A step may wait for the last node of a step that is written later, so compute every step's last node id
        // first.
        let mut next = 1;
        let mut last: Vec<Vec<u64>> = Vec::with_capacity(blocks.len());
        for block in blocks {
            let mut ids = Vec::with_capacity(block.steps.len());
            for step in &block.steps {
                next += u64::from(step.kind.has_receive() && step.kind.has_send()) + 1;
                ids.push(next - 1);
            }
            last.push(ids);
        }
        let mut id = 1;
        let mut name = String::new();
        for (number, block) in blocks.iter().enumerate() {
            let (mut sent, mut received) = (0, 0);
            let mut before = None;
            for (place, step) in block.steps.iter().enumerate() {
                let mut data: Vec<u64> = before.into_iter().collect();
                if let Some((block, step)) = step.after {
                    data.push(last[block as usize][step as usize]);
                }
                name.clear();
                let word = step.kind.xml_word();
                write!(name, "tb{number}/{place}/{word}").expect("a string grows as needed");
                let mut put = |op, data: &[u64]| {
                    let view = NodeView::new(id, &name, op);
                    id += 1;
                    writer.write_node(&view, data, &NodeFieldsBeyondView::default())
                };
                let end = last[number][place];
                if let (true, Some(peer)) = (step.kind.has_receive(), block.receive) {
                    let op =
                        self.message_op(true, (peer, gpu, block.channel), received, step.count);
                    put(op, &data)?;
                    received += 1;
                    // A step must receive data before it forwards it.
                    data = vec![end - 1];
                }
                if let (true, Some(peer)) = (step.kind.has_send(), block.send) {
                    let op = self.message_op(false, (gpu, peer, block.channel), sent, step.count);
                    put(op, &data)?;
                    sent += 1;
                }
                // A local step takes no time. Write a node without work, because a kernel's time would be unknown.
                if !step.kind.has_receive() && !step.kind.has_send() {
                    put(Op::NoOp, &data)?;
                }
                before = Some(end);
            }
        }
        Ok((writer.into_unflushed_sink(), id - 1))
    }

    /// Builds the send or receive of message number `index` on a connection.
    fn message_op(
        &self,
        receive: bool,
        connection: GpuPairAndChannel,
        index: usize,
        count: u64,
    ) -> Op<'static> {
        let (from, to, channel) = connection;
        let first = self.messages[&connection][index];
        Op::Message {
            receive,
            peer: if receive { from } else { to },
            // A connection's messages arrive in order, so their index tells apart messages on the same channel.
            tag: (channel << 16 | index as u32) as i32,
            bytes: self.bytes_of_chunk_range(first, count),
            own: None,
            host: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_trace::format::CollectiveKind;

    #[test]
    fn bytes_not_divisible_by_chunks_are_split_nearly_equally() {
        let algorithm = MscclAlgorithm {
            name: String::new(),
            kind: CollectiveKind::AllReduce,
            chunks: 3,
            range: None,
            gpus: Vec::new(),
            unknown_attributes: Vec::new(),
        };
        let scripts = MscclTraceWriter::new(&algorithm, 10).unwrap();
        // Three chunks of 10 B end at the bytes 3, 6 and 10.
        let bytes = [(0, 1), (1, 1), (2, 1), (0, 3), (1, 2)]
            .map(|(first, n)| scripts.bytes_of_chunk_range(first, n));
        assert_eq!(bytes, [3, 3, 4, 10, 7]);
    }
}
