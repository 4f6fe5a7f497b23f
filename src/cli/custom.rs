//! `--custom`: collectives whose algorithm is a trace for each member.

use super::load::input;
use crate::astra_sim::custom;
use crate::collective::{Custom, Fault, Scripts};
use crate::files::Outputs;
use crate::report::json::Input;
use crate::trace::file::{Contents, RankFile, discover};
use crate::trace::{CollectiveKind, Place, TraceError};
use crate::workload::Workload;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A parsed `--custom`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomArg {
    kind: CollectiveKind,
    prefix: PathBuf,
}

impl CustomArg {
    /// Declares the files that this reads to `outputs`.
    pub fn reads(&self, outputs: &mut Outputs) {
        for file in discover(&self.prefix).unwrap_or_default() {
            outputs.reads(&file.path);
        }
    }

    /// Returns its description for reports.
    pub fn json(&self) -> Value {
        let prefix = self.prefix.display().to_string();
        json!({"kind": self.kind.to_string(), "prefix": prefix})
    }
}

/// Parses `KIND=PREFIX`.
pub fn parse(text: &str) -> Result<CustomArg, String> {
    let (name, prefix) = text
        .split_once('=')
        .filter(|(_, prefix)| !prefix.is_empty())
        .ok_or("expected KIND=PREFIX, for example all-reduce=ring8")?;
    let wanted = name.replace('_', "-");
    let mut all = CollectiveKind::ALL.iter();
    let Some((kind, _, _)) = all.find(|(_, name, _)| *name == wanted) else {
        let all: Vec<_> = CollectiveKind::ALL.iter().map(|(_, n, _)| *n).collect();
        return Err(format!(
            "`{name}` is no collective; one of {}",
            all.join(", ")
        ));
    };
    Ok(CustomArg {
        kind: *kind,
        prefix: prefix.into(),
    })
}

/// Refuses two algorithms for one kind.
pub fn check(args: &[CustomArg]) -> Result<(), String> {
    for (i, arg) in args.iter().enumerate() {
        if args[..i].iter().any(|other| other.kind == arg.kind) {
            return Err(format!(
                "--custom {0}=… is given twice\n  try: one algorithm for {0}",
                arg.kind
            ));
        }
    }
    Ok(())
}

/// Loads the algorithms that `args` name; their files are appended to `inputs`.
pub fn load(
    args: &[CustomArg],
    mut inputs: Option<&mut Vec<Input>>,
) -> Result<Vec<Custom>, TraceError> {
    let mut load = |arg: &CustomArg| {
        let files = files(&arg.prefix)?;
        let contents = files.iter().map(Contents::of);
        let contents: Vec<Contents> = contents.collect::<Result<_, _>>()?;
        let bytes: Vec<&[u8]> = contents.iter().map(Contents::as_slice).collect();
        if let Some(inputs) = &mut inputs {
            let all = files.iter().zip(&bytes);
            inputs.extend(all.map(|(file, bytes)| input("custom", &file.path, bytes)));
        }
        let scripts = custom::read(&bytes, custom::Lasting::Recorded);
        let scripts = scripts.map_err(|(p, error)| contents[p as usize].blame(error))?;
        let matched = scripts.matched();
        Ok(Custom {
            kind: arg.kind,
            name: arg.prefix.display().to_string(),
            scripts: matched.map_err(|fault| refusal(fault, &scripts, &files))?,
        })
    };
    args.iter().map(&mut load).collect()
}

/// Returns the files of an algorithm: one for each position from 0 on, and two at least.
fn files(prefix: &Path) -> Result<Vec<RankFile>, TraceError> {
    let files = discover(prefix)?;
    let missing = (0..).zip(&files).find(|(p, file)| *p != file.rank);
    let missing = missing.map(|(position, _)| position);
    // An algorithm of one member sends nothing, so a single file is taken for a mistake.
    let missing = missing.or((files.len() == 1).then_some(1));
    let Some(position) = missing else {
        return Ok(files);
    };
    let beside = &files[0].path;
    Err(TraceError::refused_at(
        Place {
            file: Some(prefix.to_owned()),
            ..Place::default()
        },
        format!(
            "there is a file {}, but none for position {position}",
            beside.display()
        ),
        "the prefix of files PREFIX.P.et, one for each position P from 0, and two at least",
    ))
}

/// Converts `fault` to an error with its file.
fn refusal(fault: Fault, scripts: &Scripts, files: &[RankFile]) -> TraceError {
    let (position, part, found, hint) = match fault {
        Fault::Stranger {
            position,
            part,
            peer,
        } => (
            position,
            part,
            format!("the peer {peer} has no file; there are {}", files.len()),
            "peers are positions of the group, counted from 0",
        ),
        Fault::Unpaired {
            position,
            part,
            peer,
            receive,
        } => (
            position,
            part,
            match receive {
                true => format!("position {peer} does not send what this receives"),
                false => format!("position {peer} does not receive what this sends"),
            },
            "a receive for each send, with the same tag and size",
        ),
        Fault::Circle { position, part } => (
            position,
            part,
            "it waits, through other positions, for itself".to_owned(),
            "a send in front of a receive at one of them; sends do not wait for their receivers",
        ),
    };
    let place = Place {
        file: Some(files[position as usize].path.clone()),
        node: Some(scripts.script(position).id(part)),
        ..Place::default()
    };
    TraceError::refused_at(place, found, hint)
}

/// Returns notes about algorithms that no collective of `workload` uses.
pub fn notes(all: &[Custom], workload: &Workload) -> Vec<String> {
    let fits = |custom: &Custom| {
        workload.instances().iter().any(|instance| {
            let graph = workload.graph(instance);
            graph.calls().iter().any(|call| {
                let group = instance.groups[call.group as usize];
                let members = workload.groups()[group.index()].members.len() as u32;
                // Where only some dimensions take part, the number of members depends on the machine.
                let parted = graph.group_slots()[call.group as usize]
                    .dimensions
                    .is_some();
                match parted {
                    true => custom.kind == call.kind && custom.scripts.positions() <= members,
                    false => custom.carries(call.kind, members),
                }
            })
        })
    };
    let idle = all.iter().filter(|custom| !fits(custom));
    let idle = idle.map(|custom| {
        format!(
            "--custom {}={} is of no use here: no {0} of the job has {} members",
            custom.kind,
            custom.name,
            custom.scripts.positions()
        )
    });
    idle.collect()
}
