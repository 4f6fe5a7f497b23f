//! Summary of the parsed inputs, with one line per section.

use super::{AlgorithmAndAllNpusAtOnceFlag, AstraInputs, Quirk, RemoteMemorySharing};
use std::path::PathBuf;

impl AstraInputs {
    /// Returns the sections in reading order, each with its line, and without the notes.
    pub fn summarize_inputs(&self) -> Vec<(&'static str, String)> {
        let system = &self.system;
        let compute = match (system.replay_only, system.roofline) {
            (true, _) => "everything as recorded".to_owned(),
            (false, false) => "as recorded".to_owned(),
            (false, true) => format!("roofline of {} TFLOPS", system.peak),
        };
        let memory = match system.local_memory_bandwidth {
            Some(bandwidth) => format!("local {bandwidth} GB/s"),
            None => "local bandwidth unknown".to_owned(),
        };
        let remote = match self.memory {
            None => "no remote memory".to_owned(),
            Some(remote) => {
                let sharing = match remote.sharing {
                    RemoteMemorySharing::PerNpu => "per NPU".to_owned(),
                    RemoteMemorySharing::PerNode {
                        nodes,
                        npus_per_node,
                    } => format!("for each of {nodes} nodes of {npus_per_node} NPUs"),
                    RemoteMemorySharing::Pool => "for all NPUs".to_owned(),
                };
                let (bandwidth, latency) = (remote.bandwidth, remote.latency);
                format!("remote {bandwidth} GB/s after {latency} ns {sharing}")
            }
        };
        let mut sections = vec![
            ("workload", format!("{}.RANK.et", self.workload.display())),
            ("network", self.network_line()),
            ("collectives", self.collectives_line()),
            ("chunks", self.chunks_line()),
            ("compute", compute),
            ("memory", format!("{memory}, {remote}")),
        ];
        if !self.groups.is_empty() {
            let line = format!("{} declared", self.groups.iter().len());
            sections.push(("groups", line));
        }
        sections
    }

    fn network_line(&self) -> String {
        let unit = if self.quirks.has_quirk(Quirk::Gib) {
            "GiB"
        } else {
            "GB"
        };
        let dimensions = self.network.dimensions.iter().map(|dimension| {
            format!(
                "{} of {} at {} {unit}/s and {} ns",
                dimension.shape, dimension.npus, dimension.bandwidth, dimension.latency
            )
        });
        let dimensions: Vec<_> = dimensions.collect();
        let rendezvous = if self.rendezvous { ", rendezvous" } else { "" };
        format!(
            "{} NPUs, congestion-{}{rendezvous}: {}",
            self.network.npu_count(),
            self.model,
            dimensions.join("; ")
        )
    }

    fn collectives_line(&self) -> String {
        let lists = &self.system.implementations;
        let custom = &self.system.custom;
        let line =
            |name: &str, list: &[AlgorithmAndAllNpusAtOnceFlag], custom: &Option<PathBuf>| {
                let names: Vec<_> = list
                    .iter()
                    .map(AlgorithmAndAllNpusAtOnceFlag::to_string)
                    .collect();
                match (custom, &names[..]) {
                    (Some(prefix), _) => Some(format!("{name} as in {}", prefix.display())),
                    (None, []) => None,
                    (None, names) => Some(format!("{name} {}", names.join(", "))),
                }
            };
        let lines = [
            line("all-reduce", &lists.all_reduce, &custom.all_reduce),
            line("all-gather", &lists.all_gather, &custom.all_gather),
            line(
                "reduce-scatter",
                &lists.reduce_scatter,
                &custom.reduce_scatter,
            ),
            line("all-to-all", &lists.all_to_all, &custom.all_to_all),
        ];
        let lines: Vec<_> = lines.into_iter().flatten().collect();
        match &lines[..] {
            [] => "none can be carried out".to_owned(),
            lines => lines.join("; "),
        }
    }

    fn chunks_line(&self) -> String {
        format!(
            "{} of a collective, {} at once in a dimension of {} queues, {} ns at each end",
            self.system.splits, self.system.active_chunks, self.queues, self.endpoint_delay
        )
    }
}
