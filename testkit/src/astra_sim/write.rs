//! Writes a configuration as the files of a case, so that other simulators can run on the same
//! input.

use super::config::{
    DimensionTopology, MemoryServerAssignment, NetworkModel, PriorityPolicy, WholeSimulationInput,
};
use super::load::KEYS;
use super::trace;
use serde_json::{Map, Value, json};
use std::path::Path;

impl WholeSimulationInput {
    /// Writes `args.txt`, all files that it names, and the traces.
    pub fn write_case(&self, folder: &Path) -> std::io::Result<()> {
        let put = |file: &str, text: String| std::fs::write(folder.join(file), text);
        std::fs::create_dir_all(folder.join("wl"))?;
        put("args.txt", self.command_args().join(" "))?;
        put("system.json", self.system_json().to_string())?;
        put("network.yml", self.network_yml())?;
        put("memory.json", self.memory_json().to_string())?;
        if !self.groups.is_empty() {
            let group = |(id, members): (&u64, &Vec<usize>)| (id.to_string(), json!(members));
            let groups: Map<String, Value> = self.groups.iter().map(group).collect();
            put("comm.json", Value::Object(groups).to_string())?;
        }
        for (rank, nodes) in self.ranks.iter().enumerate() {
            let file = folder.join(format!("wl/wl.{rank}.et"));
            std::fs::write(file, trace::encode_nodes_as_trace_file(nodes))?;
        }
        for (kind, key) in KEYS {
            let traces = self.system.custom.get(&kind).into_iter().flatten();
            for (position, nodes) in traces.enumerate() {
                let file = folder.join(format!("{key}.{position}.et"));
                std::fs::write(file, trace::encode_nodes_as_trace_file(nodes))?;
            }
        }
        Ok(())
    }

    /// Returns the network and the options for ASTRA-sim's command line; paths are relative to the
    /// case's folder.
    pub fn command_args(&self) -> Vec<String> {
        let network = match self.network {
            NetworkModel::Aware => "aware",
            NetworkModel::Unaware => "unaware",
        };
        let mut args = vec![
            network.to_owned(),
            "--workload-configuration=wl/wl".to_owned(),
            "--system-configuration=system.json".to_owned(),
            "--remote-memory-configuration=memory.json".to_owned(),
            "--network-configuration=network.yml".to_owned(),
        ];
        if !self.groups.is_empty() {
            args.push("--comm-group-configuration=comm.json".to_owned());
        }
        if self.queues_per_dim != 1 {
            args.push(format!("--num-queues-per-dim={}", self.queues_per_dim));
        }
        if self.injection_scale != 1.0 {
            args.push(format!("--injection-scale={}", self.injection_scale));
        }
        if self.rendezvous {
            args.push("--rendezvous-protocol=true".to_owned());
        }
        args
    }

    fn network_yml(&self) -> String {
        let list = |text: &dyn Fn(usize) -> String| {
            let words: Vec<String> = (0..self.dims.len()).map(text).collect();
            format!("[ {} ]", words.join(", "))
        };
        let shape = |i: usize| match self.dims[i].shape {
            DimensionTopology::Ring => "Ring".to_owned(),
            DimensionTopology::FullyConnected => "FullyConnected".to_owned(),
            DimensionTopology::Switch => "Switch".to_owned(),
        };
        format!(
            "topology: {}\nnpus_count: {}\nbandwidth: {}  # GB/s\nlatency: {}  # ns\n",
            list(&shape),
            list(&|i| self.dims[i].n.to_string()),
            list(&|i| self.dims[i].bw.to_string()),
            list(&|i| self.dims[i].lat.to_string()),
        )
    }

    fn system_json(&self) -> Value {
        let system = &self.system;
        let mut json = json!({
            "scheduling-policy": match system.policy {
                PriorityPolicy::Lifo => "LIFO",
                PriorityPolicy::Fifo => "FIFO",
                PriorityPolicy::Explicit => "EXPLICIT",
            },
            "active-chunks-per-dimension": system.active_chunks,
            "preferred-dataset-splits": system.splits,
            "collective-optimization": match system.local_bw_aware {
                true => "localBWAware",
                false => "baseline",
            },
            "local-mem-bw": system.local_mem_bw,
            "peak-perf": system.peak_perf,
            "roofline-enabled": u8::from(system.roofline),
            "replay-only": u8::from(system.replay_only),
            "local-reduction-delay": system.reduction_delay,
        });
        if let Some(ns) = system.endpoint_delay {
            json["endpoint-delay"] = json!(ns);
        }
        if let Some(bus) = system.bus {
            json["model-shared-bus"] = json!(1);
            json["L"] = json!(bus.l);
            json["o"] = json!(bus.o);
            json["g"] = json!(bus.g);
            json["G"] = json!(bus.gap_per_byte);
        }
        for (kind, key) in KEYS {
            if let Some(list) = system.algorithms.get(&kind) {
                let names: Vec<String> = list.iter().map(ToString::to_string).collect();
                json[key] = json!(names);
            }
            if system.custom.contains_key(&kind) {
                json[format!("{key}-custom")] = json!([key]);
            }
        }
        json
    }

    fn memory_json(&self) -> Value {
        let kind = match self.memory.attachment {
            MemoryServerAssignment::None => "NO_MEMORY_EXPANSION",
            MemoryServerAssignment::PerNpu => "PER_NPU_MEMORY_EXPANSION",
            MemoryServerAssignment::Pool => "MEMORY_POOL",
            MemoryServerAssignment::PerNode(_) => "PER_NODE_MEMORY_EXPANSION",
        };
        let mut json = json!({
            "memory-type": kind,
            "remote-mem-latency": self.memory.latency,
            "remote-mem-bw": self.memory.bw,
        });
        if let MemoryServerAssignment::PerNode(size) = self.memory.attachment {
            json["num-npus-per-node"] = json!(size);
            json["num-nodes"] = json!(self.npu_count().div_ceil(size));
        }
        json
    }
}
