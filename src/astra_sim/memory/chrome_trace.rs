//! Writes a rank's tensors in the Chrome trace format. Each tensor has a track with its reads and
//! writes, and a track with its lifetime in memory. A counter track shows the memory in use over
//! time.

use super::{CompletedNode, TensorAccess, TensorLifetimesAndAccesses};
use chakram_base::units::Time;
use serde::Serialize;
use std::io::{self, Write};

/// This number plus the rank is the process id of the rank's tensor lifetimes and memory counter.
const LIFETIMES: u64 = 1_000_000;
const CURVE: u64 = 2_000_000;

/// The writer that ASTRA-sim reports for a tensor that no node has written.
const NOBODY: CompletedNode<'static> = CompletedNode {
    id: u64::MAX,
    name: "UNDEFINED",
    start: Time(0),
    end: Time(10_000),
};

/// An event in the Chrome trace format; its keys are in ASTRA-sim's order.
#[derive(Serialize)]
struct MemoryChromeTraceEvent<'e> {
    name: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    ph: &'static str,
    /// Time, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    pid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    args: MemoryChromeTraceEventArgs<'e>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum MemoryChromeTraceEventArgs<'e> {
    Process {
        name: String,
    },
    Access {
        size: u64,
        node_name: &'e str,
        node_id: u64,
    },
    Lifetime {
        size: u64,
    },
    Usage {
        #[serde(rename = "Memory_MB")]
        megabytes: f64,
    },
}

impl TensorLifetimesAndAccesses<'_> {
    /// Writes a complete file with the tensors of rank `rank`.
    ///
    /// # Errors
    ///
    /// Fails if writing to `out` fails.
    pub fn write_chrome_trace(&self, rank: u32, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"{\"traceEvents\": [")?;
        let mut first = true;
        let mut event = |event: &MemoryChromeTraceEvent<'_>| {
            out.write_all(if first { b"\n" } else { b",\n" })?;
            first = false;
            Ok::<_, io::Error>(serde_json::to_writer(&mut *out, event)?)
        };
        let process = MemoryChromeTraceEventArgs::Process {
            name: format!("rank {rank}: who reads and writes tensors"),
        };
        event(&MemoryChromeTraceEvent {
            name: "process_name",
            cat: None,
            ph: "M",
            ts: None,
            pid: rank.into(),
            tid: None,
            args: process,
        })?;
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
            for (ph, at) in [("B", access.by.start), ("E", access.by.end)] {
                event(&MemoryChromeTraceEvent {
                    name: self.tensor_name(access.tensor),
                    cat: Some(category),
                    ph,
                    ts: Some(as_micros(at)),
                    pid: rank.into(),
                    tid: Some(access.tensor),
                    args: MemoryChromeTraceEventArgs::Access {
                        size,
                        node_name: access.by.name,
                        node_id: access.by.id,
                    },
                })?;
            }
        }
        for life in &self.lives {
            for (ph, at) in [("B", Some(life.from)), ("E", life.to)] {
                let Some(at) = at else { continue };
                event(&MemoryChromeTraceEvent {
                    name: self.tensor_name(life.tensor),
                    cat: Some("tensorLifetime"),
                    ph,
                    ts: Some(as_micros(at)),
                    pid: u64::from(rank) + LIFETIMES,
                    tid: Some(life.tensor),
                    args: MemoryChromeTraceEventArgs::Lifetime { size: life.bytes },
                })?;
            }
        }
        for (at, used) in &self.usage {
            event(&MemoryChromeTraceEvent {
                name: "GPU Memory Usage (MB)",
                cat: Some("GPU Memory"),
                ph: "C",
                ts: Some(as_micros(*at)),
                pid: u64::from(rank) + CURVE,
                tid: None,
                args: MemoryChromeTraceEventArgs::Usage {
                    megabytes: *used as f64 / f64::from(1 << 20),
                },
            })?;
        }
        out.write_all(b"\n]}\n")
    }
}

fn as_micros(at: Time) -> f64 {
    at.0 as f64 / 1e6
}
