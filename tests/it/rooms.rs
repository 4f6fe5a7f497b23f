//! Who may import whom, and which files may use which package: the tables, and the rules they mean.
//!
//! A room is a file or folder right under `src/`, or the folder `converters/` beside it. Every path in the source is resolved to the room it
//! leads to, through groups of imports, `super` chains, inline modules and the tokens of macros.

mod caught;
mod components;
mod paths;

use paths::{Reference, references};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Rooms that everybody may import.
const COMMON: [&str; 3] = ["units", "ids", "bounds"];

/// Each room with the rooms that it may import, besides itself and [`COMMON`].
const ROOMS: &[(&str, &[&str])] = &[
    ("main", &["internals"]),
    ("lib", &[]),
    // Shows every room to tests, benches and fuzz targets: see `check`.
    ("internals", &[]),
    ("cli", EVERYTHING),
    ("units", &[]),
    ("ids", &[]),
    ("bounds", &["units"]),
    ("config", &[]),
    // Charts, of numbers and texts: what they show is their users' business.
    ("draw", &[]),
    ("trace", &[]),
    ("files", &["trace"]),
    ("graph", &["trace"]),
    // Knows no workload, so that those who look at files may ask it who meets whom.
    ("matching", &["trace", "graph"]),
    ("validate", &["trace", "graph", "matching"]),
    ("inspect", &["trace", "graph", "matching"]),
    ("group", &["topology"]),
    ("workload", &["graph", "group"]),
    ("topology", &[]),
    ("network", &["topology"]),
    ("memory", &["topology"]),
    ("compute", &["trace"]),
    ("collective", &["trace", "group", "topology"]),
    (
        "machine",
        &[
            "config",
            "topology",
            "network",
            "memory",
            "compute",
            "collective",
            "trace",
        ],
    ),
    (
        "engine",
        &[
            "workload",
            "machine",
            "group",
            "network",
            "memory",
            "compute",
            "collective",
            "report",
            "trace",
            "graph",
            "matching",
            "topology",
        ],
    ),
    (
        "report",
        &[
            "draw",
            "trace",
            "graph",
            "group",
            "workload",
            "machine",
            "engine",
            "network",
            "collective",
        ],
    ),
    ("model", &["config", "trace"]),
    (
        "generate",
        &["model", "config", "trace", "graph", "group", "workload"],
    ),
    ("diff", &["trace", "graph", "report"]),
    (
        "converters",
        &["trace", "files", "graph", "group", "matching"],
    ),
    ("edit", &["trace", "graph", "matching"]),
    // Keeps the files of jobs, whatever they hold, and what was predicted for them.
    ("archive", &["trace", "files"]),
    // Predictions against those of before: it replays what an archive keeps and compares the reports.
    (
        "regression",
        &[
            "archive", "trace", "job", "machine", "engine", "report", "diff",
        ],
    ),
    // Shows what others implement.
    (
        "extend",
        &[
            "collective",
            "compute",
            "engine",
            "memory",
            "network",
            "topology",
        ],
    ),
    // Where a job comes from, and its replay in one call: it puts the other rooms together, as `cli` did.
    (
        "job",
        &[
            "archive",
            "trace",
            "files",
            "graph",
            "workload",
            "network",
            "collective",
            "machine",
            "engine",
            "report",
            "generate",
            "astra_sim",
        ],
    ),
    // Generates and replays runs that were measured, so it stands above both.
    (
        "score",
        &[
            "config",
            "compute",
            "collective",
            "machine",
            "model",
            "generate",
            "trace",
            "graph",
            "engine",
            "report",
            "workload",
        ],
    ),
    // Requests over time: it launches on the engine, lowers models to jobs, opens those that are traces, and renders as
    // reports do.
    (
        "serve",
        &[
            "config", "draw", "trace", "graph", "workload", "machine", "engine", "report", "model",
            "job",
        ],
    ),
    // Sub-layers on chips, and what steps take; traces of them are replayed as any others are.
    ("schedule", &["compute", "topology", "trace"]),
    // Generates, opens and replays the points of studies, and draws what came out.
    (
        "sweep",
        &[
            "config",
            "compute",
            "machine",
            "model",
            "generate",
            "trace",
            "engine",
            "network",
            "collective",
            "workload",
            "job",
            "report",
            "draw",
            "group",
        ],
    ),
    (
        "astra_sim",
        &[
            "config",
            "machine",
            "workload",
            "trace",
            "collective",
            "network",
            "memory",
            "topology",
            "group",
            "graph",
        ],
    ),
];

const EVERYTHING: &[&str] = &[
    "draw",
    "config",
    "trace",
    "files",
    "graph",
    "matching",
    "validate",
    "inspect",
    "group",
    "workload",
    "topology",
    "network",
    "memory",
    "compute",
    "collective",
    "machine",
    "engine",
    "report",
    "model",
    "generate",
    "diff",
    "converters",
    "edit",
    "astra_sim",
    "archive",
    "regression",
    "job",
    "score",
    "serve",
    "sweep",
    "schedule",
];

const ANYWHERE: &[&str] = &[""];
const TRACE: &[&str] = &["trace/"];
const COMMAND_LINE: &[&str] = &["cli.rs", "cli/", "main.rs"];
/// The files whose types are, or are part of, documents.
const DOCUMENTS: &[&str] = &[
    "memory.rs",
    "memory/",
    "model.rs",
    "units.rs",
    "ids.rs",
    "trace.rs",
    "graph.rs",
    "engine.rs",
    "engine/options.rs",
    "engine/feed.rs",
    "diff.rs",
    "diff/",
    "inspect/table.rs",
    "inspect/fault.rs",
    "trace/groups.rs",
    "trace/job.rs",
    "trace/members.rs",
    "archive.rs",
    "archive/",
    "regression.rs",
    "cli.rs",
    "cli/",
    "report.rs",
    "report/",
    "validate/json.rs",
    "validate/defects.rs",
    "converters/",
    "astra_sim/",
    "archive.rs",
    "archive/",
    "score/statistics.rs",
    "serve/",
    "sweep/",
];
const JSON: &[&str] = &[
    "trace/groups.rs",
    "trace/job.rs",
    "trace/members.rs",
    "cli.rs",
    "cli/",
    "diff/reports/read.rs",
    "report.rs",
    "report/",
    "validate/json.rs",
    "job/outputs.rs",
    "archive/",
    "regression.rs",
    "converters/",
    "astra_sim/",
    "serve/arrivals.rs",
    "serve/timeline.rs",
    "sweep/",
];
const INTERN: &[&str] = &["graph/intern.rs"];
const PROTO: &[&str] = &[
    "trace/proto.rs",
    "trace/write.rs",
    "trace/write/",
    "trace/old_schemas.rs",
    "trace/old_schemas/",
    "trace/salvage.rs",
    "trace/salvage/",
    "trace/text/",
    // Perfetto's messages, which are no traces that anything here reads.
    "report/timeline/perfetto.rs",
    "report/timeline/perfetto/",
];

/// Each package with the files that may use it, as beginnings of paths under `src/`, and those whose
/// unit tests also may.
const DOORS: &[(&str, &[&str], &[&str])] = &[
    ("anstream", COMMAND_LINE, &[]),
    (
        "anstyle",
        &[
            "cli.rs",
            "cli/",
            "report/text.rs",
            "report/table.rs",
            "report/compare/text.rs",
            "serve/report/",
            "validate/text.rs",
            "sweep/table.rs",
            "sweep/explanation.rs",
        ],
        &[],
    ),
    (
        "blake3",
        &[
            "trace/",
            "files/",
            "cli/",
            "edit/",
            "job/",
            "archive/",
            "sweep/check.rs",
        ],
        &[],
    ),
    ("bytes", PROTO, &[]),
    ("clap", COMMAND_LINE, &[]),
    ("clap_complete", COMMAND_LINE, &[]),
    ("clap_mangen", COMMAND_LINE, &[]),
    ("comfy_table", &["report/table.rs"], &[]),
    (
        "csv",
        &[
            "report/csv.rs",
            "score/",
            "cli/score.rs",
            "serve/tables.rs",
            "sweep/table.rs",
        ],
        &[],
    ),
    (
        "flate2",
        &[
            "trace/",
            "report/timeline/perfetto.rs",
            "archive/segment.rs",
        ],
        &[],
    ),
    ("foldhash", &["graph/intern.rs", "archive/columns"], &[]),
    (
        "glob",
        &["converters/pytorch/files.rs", "inspect/filter.rs"],
        &[],
    ),
    ("getrandom", &["cli/anonymise.rs"], &[]),
    ("hashbrown", INTERN, &[]),
    ("imara_diff", &["diff/align.rs"], &[]),
    ("indicatif", &["cli/progress.rs"], &[]),
    (
        "libc",
        &[
            "bounds/allocator.rs",
            "graph/huge_pages.rs",
            "files/",
            "cli/signals.rs",
        ],
        ANYWHERE,
    ),
    // Roots and logarithms that are the same on every platform.
    (
        "libm",
        &[
            "compute/",
            "collective/curve.rs",
            "report/interval.rs",
            "serve/random.rs",
            "topology/chip_graph/",
        ],
        &[],
    ),
    ("memmap2", TRACE, &[]),
    ("petgraph", &["graph/"], &[]),
    ("prost", PROTO, &["trace/", "graph/raw_trace.rs", "edit/"]),
    ("roxmltree", &["converters/msccl/parse.rs"], &[]),
    ("serde", DOCUMENTS, &[]),
    ("serde_saphyr", &["astra_sim/"], &[]),
    ("serde_json", JSON, &["trace/text/"]),
    (
        "strsim",
        &[
            "config/nearest.rs",
            "trace/file/discover.rs",
            "cli/suggest.rs",
        ],
        &[],
    ),
    ("terminal_size", COMMAND_LINE, &[]),
    ("textwrap", &["cli/help.rs", "report/text.rs"], &[]),
    ("thiserror", ANYWHERE, &[]),
    (
        "toml",
        &["config.rs", "config/", "astra_sim/logging.rs"],
        &[],
    ),
    (
        "zstd",
        &["trace/", "archive/chunk", "archive/segment.rs"],
        &["converters/"],
    ),
];

/// The room of a file, given as its path under `src/`.
fn room_of(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// A file as messages name it.
fn shown(file: &str) -> String {
    if file.starts_with("converters/") {
        file.to_owned()
    } else {
        format!("src/{file}")
    }
}

/// Returns the faults of the imports of `file`.
fn check(file: &str, source: &str) -> Vec<String> {
    let room = room_of(file);
    let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        return vec![format!(
            "{}: room `{room}` is not in the table of rooms",
            shown(file)
        )];
    };
    let mut faults = Vec::new();
    let whole = shown(file);
    let packages: Vec<_> = DOORS.iter().map(|(name, ..)| *name).collect();
    for found in references(file, source, &packages) {
        let Reference { line, test, .. } = found;
        if let Some(target) = found.room {
            let known = ROOMS.iter().any(|(name, _)| *name == target);
            let common = COMMON.contains(&&*target) && !COMMON.contains(&room);
            if !known {
                faults.push(format!("{whole}:{line}: there is no room `{target}`"));
            } else if target != room
                && !common
                && room != "internals"
                && !allowed.contains(&&*target)
            {
                faults.push(format!(
                    "{whole}:{line}: `{room}` may not import `{target}`"
                ));
            }
        }
        if let Some(package) = found.package {
            let (_, files, tests) = DOORS
                .iter()
                .find(|(name, ..)| *name == package)
                .expect("listed");
            let within = |list: &[&str]| list.iter().any(|start| file.starts_with(start));
            let open = within(files) || test && within(tests);
            if !open {
                faults.push(format!(
                    "{whole}:{line}: `{package}` has its door elsewhere"
                ));
            }
        }
    }
    faults
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let listing = std::fs::read_dir(folder).expect("the sources are there");
    for entry in listing {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn every_import_is_allowed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    rust_files(&root.join("converters"), &mut files);
    files.sort();
    assert!(files.len() > 40, "{} files", files.len());
    let mut faults = Vec::new();
    for path in files {
        let name = path.strip_prefix(root).expect("it was found there");
        let name = name.to_str().expect("names are text").replace('\\', "/");
        let name = name.strip_prefix("src/").unwrap_or(&name);
        if name.ends_with("mod.rs") && name != "converters/mod.rs" {
            faults.push(format!("{name}: a module's file has its name"));
        }
        let source = std::fs::read_to_string(&path).expect("a source can be read");
        faults.extend(check(name, &source));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_package_has_a_door() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let manifest: toml::Table = std::fs::read_to_string(manifest).unwrap().parse().unwrap();
    let everywhere = manifest["dependencies"].as_table().unwrap().keys();
    let targets = manifest["target"].as_table().unwrap().values();
    let somewhere = targets.flat_map(|target| target["dependencies"].as_table().unwrap().keys());
    let packages: BTreeSet<String> = everywhere
        .chain(somewhere)
        .map(|name| name.replace('-', "_"))
        .collect();
    let doors: BTreeSet<String> = DOORS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(packages, doors);
}

#[test]
fn the_testkit_does_not_depend_on_what_is_held_against_it() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("testkit/Cargo.toml");
    let manifest: toml::Table = std::fs::read_to_string(manifest).unwrap().parse().unwrap();
    assert!(
        !manifest["dependencies"]
            .as_table()
            .unwrap()
            .contains_key("chakram")
    );
}

#[test]
fn no_two_rooms_import_each_other_but_engine_and_report() {
    // An engine calls observers, and reports name its results: traits one way, data the other.
    for (a, imports) in ROOMS {
        for b in *imports {
            let (_, back) = ROOMS
                .iter()
                .find(|(name, _)| name == b)
                .expect("in the table");
            let pair = [*a, *b];
            let known = pair == ["engine", "report"] || pair == ["report", "engine"];
            assert!(known || !back.contains(a), "{a} and {b}");
        }
    }
}
