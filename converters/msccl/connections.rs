//! Finds the connections between thread blocks, and the messages on each connection.

use super::{MscclAlgorithm, error_at};
use chakram_trace::format::TraceError;
use std::collections::BTreeMap;

/// A connection between GPUs: sender, receiver and channel.
pub(super) type GpuPairAndChannel = (u32, u32, u32);

/// One end of a connection: its thread block, and the steps that use the connection, in order.
#[derive(Clone, Debug, Default)]
struct SingleConnectionEndSteps {
    block: Option<u32>,
    steps: Vec<u32>,
}

impl MscclAlgorithm {
    /// Checks that each connection has one thread block at each end, and that both ends agree on the number and the
    /// sizes of messages. Maps each connection to its messages, in order. Each message is represented by the index of
    /// its first chunk in the sender's buffer.
    pub(super) fn check_connections_and_map_messages(
        &self,
    ) -> Result<BTreeMap<GpuPairAndChannel, Vec<u64>>, TraceError> {
        let mut all: BTreeMap<GpuPairAndChannel, [SingleConnectionEndSteps; 2]> = BTreeMap::new();
        for (own, gpu) in (0..).zip(&self.gpus) {
            for (id, block) in (0..).zip(&gpu.blocks) {
                let ends = [
                    (0, block.send.map(|peer| (own, peer, block.channel))),
                    (1, block.receive.map(|peer| (peer, own, block.channel))),
                ];
                for (side, connection) in ends {
                    let Some(connection) = connection else {
                        continue;
                    };
                    let steps = (0..).zip(&block.steps).filter(|(_, step)| match side {
                        0 => step.kind.has_send(),
                        _ => step.kind.has_receive(),
                    });
                    let steps: Vec<u32> = steps.map(|(place, _)| place).collect();
                    if steps.is_empty() {
                        continue;
                    }
                    let end = &mut all.entry(connection).or_default()[side];
                    if let Some(other) = end.block.replace(id) {
                        let (from, to, channel) = connection;
                        return Err(error_at(
                            block.line,
                            format!(
                                "thread blocks {other} and {id} of GPU {own} share the connection \
                                 from GPU {from} to GPU {to} in channel {channel}"
                            ),
                            "a channel of its own for each thread block",
                        ));
                    }
                    end.steps = steps;
                }
            }
        }
        let mut messages = BTreeMap::new();
        for (connection, ends) in all {
            let chunks = self.check_ends_and_list_first_chunks(connection, &ends)?;
            messages.insert(connection, chunks);
        }
        Ok(messages)
    }

    fn check_ends_and_list_first_chunks(
        &self,
        (from, to, channel): GpuPairAndChannel,
        [sender, receiver]: &[SingleConnectionEndSteps; 2],
    ) -> Result<Vec<u64>, TraceError> {
        let step = |gpu: u32, end: &SingleConnectionEndSteps, place: u32| {
            let block = end.block.expect("an end with steps has a thread block");
            self.gpus[gpu as usize].blocks[block as usize].steps[place as usize]
        };
        let pairs = sender.steps.iter().zip(&receiver.steps);
        for (&send, &receive) in pairs {
            let (send, receive) = (step(from, sender, send), step(to, receiver, receive));
            if send.count != receive.count {
                return Err(error_at(
                    receive.line,
                    format!(
                        "in channel {channel} GPU {to} receives {} chunks, but GPU {from} sends {} chunks",
                        receive.count, send.count
                    ),
                    "the same `cnt` at both ends, message by message",
                ));
            }
        }
        let paired = sender.steps.len().min(receiver.steps.len());
        if let Some(&extra) = sender.steps.get(paired) {
            return Err(error_at(
                step(from, sender, extra).line,
                format!("GPU {to} has no receive for this send in channel {channel}"),
                "a receive step for each send step",
            ));
        }
        if let Some(&extra) = receiver.steps.get(paired) {
            return Err(error_at(
                step(to, receiver, extra).line,
                format!("GPU {from} has no send for this receive in channel {channel}"),
                "a send step for each receive step",
            ));
        }
        let chunks = sender.steps.iter();
        Ok(chunks
            .map(|&place| step(from, sender, place).source)
            .collect())
    }
}
