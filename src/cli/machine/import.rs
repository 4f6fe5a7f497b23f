//! `chakram machine import`: creates a machine file from ASTRA-sim's inputs.

use crate::terminal;
use chakram_astra_sim::{AstraInputKind, NamedInputText, machine_file};
use chakram_base::config;
use chakram_trace::files::OutputsAndProtectedInputs;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes the machine that `files` describe to the file `output`, or to `out` if `output` is `None`. The keys in a file
/// tell whether it describes the network, the system or a memory.
pub fn run(
    files: &[PathBuf],
    output: Option<&Path>,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let mut outputs = OutputsAndProtectedInputs::default();
    let mut inputs: [Option<(String, String)>; 3] = [None, None, None];
    for path in files {
        outputs.register_input(path);
        let file = path.display().to_string();
        let text = config::read_file_or_standard_input(path)
            .map_err(|error| format!("cannot read {file}: {error}"))?;
        let place = match AstraInputKind::classify_text(&text) {
            Some(AstraInputKind::Network) => &mut inputs[0],
            Some(AstraInputKind::System) => &mut inputs[1],
            Some(AstraInputKind::RemoteMemory) => &mut inputs[2],
            None => {
                let files =
                    "a network file in YAML, and perhaps a system and a memory file in JSON";
                return Err(format!(
                    "{file}: this is not an input file of ASTRA-sim\n  try: {files}"
                )
                .into());
            }
        };
        if let Some((_, first)) = place.replace((text, file.clone())) {
            return Err(format!(
                "{first} and {file} are of the same kind: expected one file of each kind"
            )
            .into());
        }
    }
    let [network, system, memory] = &inputs;
    let Some((text, file)) = network else {
        let keys = "topology, npus_count, bandwidth and latency";
        return Err(format!("a machine needs ASTRA-sim's network file, with {keys}").into());
    };
    let name = Path::new(file).file_stem().and_then(|stem| stem.to_str());
    let network = NamedInputText { file, text };
    let system = system
        .as_ref()
        .map(|(text, file)| NamedInputText { file, text });
    let memory = memory
        .as_ref()
        .map(|(text, file)| NamedInputText { file, text });
    let machine = machine_file(name.unwrap_or("machine"), network, system, memory)?;
    for note in &machine.notes {
        terminal::print_note(format_args!("{note}"))?;
    }
    match output {
        None => out.write_all(machine.text.as_bytes())?,
        Some(path) => {
            let mut file = outputs.create_file(path)?;
            file.write_all(machine.text.as_bytes())?;
            outputs.close_file_and_queue_for_commit(file)?;
            outputs.commit_all()?;
        }
    }
    Ok(())
}
