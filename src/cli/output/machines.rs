//! Machines that arguments name.

use super::RunArgs;
use chakram_hardware::machine::{Machine, source};
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
    /// How its file differs from the preset whose name it has.
    pub edits: Vec<MachineEdit>,
    /// The machine whose jobs leave some NPUs of each rack free, if all are to be used.
    pub unfilled: Option<Machine>,
}

impl RunArgs {
    /// Loads a machine as these arguments use it, with its input description if wanted.
    pub fn load_machine(&self, name: &str) -> Result<LoadedMachine, Box<dyn Error>> {
        let mut loaded = load_edited(name, self.wants_hashes())?;
        if !self.fill_domains {
            return Ok(loaded);
        }
        if loaded.machine.rank_domain().is_none() {
            return Err(format!(
                "--fill-domains: machine `{name}` places ranks on all of its NPUs\n  try: without --fill-domains"
            )
            .into());
        }
        let filled = loaded.machine.clone().with_all_npus_used();
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
    let loaded = load_edited(name, hash)?;
    Ok((loaded.machine, loaded.input))
}

fn load_edited(name: &str, hash: bool) -> Result<LoadedMachine, Box<dyn Error>> {
    let (text, file) = match chakram_archive::read_path(Path::new(name))? {
        Some(text) => {
            let wrong = |_| format!("{name}: this machine is not UTF-8");
            (String::from_utf8(text).map_err(wrong)?, name.to_owned())
        }
        None => {
            let source = source(name)?;
            (source.text.into_owned(), source.file)
        }
    };
    let input = hash.then(|| job::hashed_input("machine", Path::new(name), text.as_bytes()));
    let machine = Machine::parse(&text, &file)?;
    Ok(LoadedMachine {
        edits: edits_of(&machine, &text, &file),
        machine,
        input,
        unfilled: None,
    })
}
