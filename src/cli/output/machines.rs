//! Machines that arguments name.

use super::RunArgs;
use chakram_hardware::machine::{Machine, names_file, source};
use chakram_jobs::{self as job, MachineEdit, edits_of};
use chakram_report::summary::HashedInput;
use std::error::Error;
use std::path::Path;

/// A machine, and what is known of how it was named.
#[derive(Debug)]
pub struct LoadedMachine {
    /// The machine.
    pub machine: Machine,
    /// Its input description, if wanted.
    pub input: Option<HashedInput>,
    /// Changes of its file against the preset whose name it has.
    pub edits: Vec<MachineEdit>,
    /// The machine whose jobs leave some NPUs of each rack free, if all are to be used.
    pub unfilled: Option<Machine>,
}

impl RunArgs {
    /// Loads a machine as these arguments use it, with its input description if wanted.
    pub fn load_machine(&self, name: &str) -> Result<LoadedMachine, Box<dyn Error>> {
        let MachineFile {
            text,
            file,
            is_named,
        } = read_machine(name)?;
        let machine = Machine::parse(&text, &file)?;
        let mut loaded = LoadedMachine {
            input: self.wants_hashes().then(|| hash_machine(name, &text)),
            // A preset as it is has no edits, and need not be taken apart again to see that.
            edits: match is_named {
                true => Vec::new(),
                false => edits_of(&machine, &text, &file),
            },
            machine,
            unfilled: None,
        };
        let settings = self.timing.settings();
        if !settings.fill_domains {
            return Ok(loaded);
        }
        let filled = settings.filled(loaded.machine.clone())?;
        loaded.unfilled = Some(std::mem::replace(&mut loaded.machine, filled));
        for edit in &mut loaded.edits {
            edit.without = edit.without.take().map(Machine::with_all_npus_used);
        }
        Ok(loaded)
    }
}

/// Loads a machine, with its input description if wanted.
pub fn load_machine(
    name: &str,
    hash: bool,
) -> Result<(Machine, Option<HashedInput>), Box<dyn Error>> {
    let MachineFile { text, file, .. } = read_machine(name)?;
    let input = hash.then(|| hash_machine(name, &text));
    Ok((Machine::parse(&text, &file)?, input))
}

/// Text of a machine, and what errors call it.
struct MachineFile {
    text: String,
    file: String,
    /// Whether it is a preset, or made of its name, and no file.
    is_named: bool,
}

fn read_machine(name: &str) -> Result<MachineFile, Box<dyn Error>> {
    Ok(match chakram_archive::read_path(Path::new(name))? {
        Some(text) => MachineFile {
            text: String::from_utf8(text)
                .map_err(|_| format!("{name}: this machine is not UTF-8"))?,
            file: name.to_owned(),
            is_named: false,
        },
        None => {
            let source = source(name)?;
            MachineFile {
                text: source.text.into_owned(),
                file: source.file,
                is_named: !names_file(name),
            }
        }
    })
}

fn hash_machine(name: &str, text: &str) -> HashedInput {
    job::hashed_input("machine", Path::new(name), text.as_bytes())
}
