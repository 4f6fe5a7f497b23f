//! Tensors of a rank in the Chrome trace format: a track for each tensor with its reads and writes, one with its
//! lifetime in memory, and a curve of the memory.

use super::{CompletedNode, TensorAccess, TensorMemory};
use crate::units::Time;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Processes of a rank, besides its own number: of lifetimes, and of the curve.
const LIFETIMES: u64 = 1_000_000;
const CURVE: u64 = 2_000_000;

/// Writer that the original reports for a tensor without one.
const NOBODY: CompletedNode<'static> = CompletedNode {
    id: u64::MAX,
    name: "UNDEFINED",
    start: Time(0),
    end: Time(10_000),
};

impl TensorMemory<'_> {
    /// Writes a whole file with the tensors of rank `rank`.
    ///
    /// # Errors
    ///
    /// Errors of `out`.
    pub fn draw(&self, rank: u32, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"{\"traceEvents\": [")?;
        let mut first = true;
        let mut event = |event: Value| {
            let separator = if first { "\n" } else { ",\n" };
            first = false;
            write!(out, "{separator}{event}")
        };
        event(json!({"name": "process_name", "ph": "M", "pid": rank,
            "args": {"name": format!("rank {rank}: who reads and writes tensors")}}))?;
        let mut bytes = vec![0; self.names.len()];
        let mut written = vec![false; self.names.len()];
        for life in &self.lives {
            bytes[life.tensor as usize] = life.bytes;
        }
        for access in &self.writes {
            written[access.tensor as usize] = true;
        }
        let nobody: Vec<_> = self
            .lives
            .iter()
            .filter(|life| !written[life.tensor as usize])
            .map(|life| TensorAccess {
                tensor: life.tensor,
                by: NOBODY,
            })
            .collect();
        let reads = self.reads.iter().map(|access| ("tensorRead", access));
        let writes = self.writes.iter().chain(&nobody);
        for (category, access) in reads.chain(writes.map(|access| ("tensorWrite", access))) {
            let size = bytes[access.tensor as usize];
            for (phase, at) in [("B", access.by.start), ("E", access.by.end)] {
                event(
                    json!({"name": self.name(access.tensor), "cat": category, "ph": phase,
                    "ts": micros(at), "pid": rank, "tid": access.tensor,
                    "args": {"size": size, "node_name": access.by.name, "node_id": access.by.id}}),
                )?;
            }
        }
        for life in &self.lives {
            let ends = [("B", Some(life.from)), ("E", life.to)];
            for (phase, at) in ends.iter().filter_map(|(phase, at)| Some((phase, (*at)?))) {
                event(
                    json!({"name": self.name(life.tensor), "cat": "tensorLifetime", "ph": phase,
                    "ts": micros(at), "pid": u64::from(rank) + LIFETIMES, "tid": life.tensor,
                    "args": {"size": life.bytes}}),
                )?;
            }
        }
        for (at, used) in &self.usage {
            event(
                json!({"name": "GPU Memory Usage (MB)", "cat": "GPU Memory", "ph": "C",
                "ts": micros(*at), "pid": u64::from(rank) + CURVE,
                "args": {"Memory_MB": *used as f64 / f64::from(1 << 20)}}),
            )?;
        }
        out.write_all(b"\n]}\n")
    }
}

fn micros(at: Time) -> f64 {
    at.0 as f64 / 1e6
}
