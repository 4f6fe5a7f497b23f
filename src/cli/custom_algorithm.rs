//! `--custom`: collectives whose algorithms consist of one trace per member.

use chakram_hardware::collective::NamedScriptedAlgorithm;
use chakram_jobs::CustomCollectiveAlgorithmFiles;
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::file::discover_traces;
use chakram_trace::workload::Workload;
use serde_json::Value;

/// Registers the files of `custom` as inputs, so that `outputs` must not replace them.
pub fn protect_custom_files_as_inputs(
    custom: &CustomCollectiveAlgorithmFiles,
    outputs: &mut OutputsAndProtectedInputs,
) {
    for file in discover_traces(&custom.prefix).unwrap_or_default() {
        outputs.register_input(&file.path);
    }
}

/// Describes `custom` as JSON for a report.
pub fn custom_algorithm_kind_and_prefix_to_json(custom: &CustomCollectiveAlgorithmFiles) -> Value {
    let prefix = custom.prefix.display().to_string();
    let fields = [("kind", custom.kind.to_string()), ("prefix", prefix)];
    fields.into_iter().collect()
}

/// Returns a note about each algorithm that no collective of `workload` uses.
pub fn unused_algorithm_notes(all: &[NamedScriptedAlgorithm], workload: &Workload) -> Vec<String> {
    let fits = |custom: &NamedScriptedAlgorithm| {
        workload.instances().iter().any(|instance| {
            let graph = workload.graph_of(instance);
            graph.collective_calls().iter().any(|call| {
                let group = instance.groups[call.group as usize];
                let members = workload.groups()[group.index()].members.len() as u32;
                // If the collective runs over only some dimensions, the number of members depends
                // on the machine.
                let parted = graph.group_slots()[call.group as usize]
                    .dimensions
                    .is_some();
                if parted {
                    custom.kind == call.kind && custom.scripts.position_count() <= members
                } else {
                    custom.applies_to(call.kind, members)
                }
            })
        })
    };
    let idle = all.iter().filter(|custom| !fits(custom)).map(|custom| {
        format!(
            "--custom {}={} has no effect: no {0} of the job has {} members",
            custom.kind,
            custom.name,
            custom.scripts.position_count()
        )
    });
    idle.collect()
}
