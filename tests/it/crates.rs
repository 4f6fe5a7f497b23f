//! Lists the dependencies that our crates may have on one another and on packages, and tests that the manifests obey
//! these tables.
//!
//! The compiler checks every import against the manifests. These tests check the manifests against
//! the tables.

mod caught;
mod circles;
mod components;
mod paths;

use paths::ModulesOfOneFile;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use toml::{Table, Value};

/// One of our crates.
struct WorkspaceCrate {
    name: &'static str,
    /// Folder of the crate's manifest and `lib.rs`.
    folder: &'static str,
    /// Our crates on which this crate depends. It may also use their dependencies.
    uses: &'static [&'static str],
}

const fn build_workspace_crate_row(
    name: &'static str,
    folder: &'static str,
    uses: &'static [&'static str],
) -> WorkspaceCrate {
    WorkspaceCrate { name, folder, uses }
}

/// Our crates, from the lowest layer upwards.
const MEMBERS: &[WorkspaceCrate] = &[
    build_workspace_crate_row("base", "src/base", &[]),
    build_workspace_crate_row("trace", "src/trace", &["base"]),
    build_workspace_crate_row("hardware", "src/hardware", &["base"]),
    build_workspace_crate_row("engine", "src/engine", &["trace", "hardware"]),
    build_workspace_crate_row("report", "src/report", &["engine"]),
    build_workspace_crate_row("analysis", "src/analysis", &["trace", "report"]),
    build_workspace_crate_row("workloads", "src/workloads", &["trace", "hardware"]),
    build_workspace_crate_row(
        "astra-sim",
        "src/astra_sim",
        &["trace", "hardware", "engine"],
    ),
    build_workspace_crate_row("archive", "src/archive", &["trace"]),
    build_workspace_crate_row(
        "jobs",
        "src/jobs",
        // Jobs need `analysis`, because a step of a job is a slice of its traces.
        &["archive", "workloads", "astra-sim", "report", "analysis"],
    ),
    build_workspace_crate_row("serving", "src/serving", &["jobs", "workloads", "report"]),
    // Regression checks compare the reports in archives as `diff` does.
    build_workspace_crate_row(
        "studies",
        "src/studies",
        &["jobs", "workloads", "report", "analysis"],
    ),
    build_workspace_crate_row("converters", "converters", &["trace"]),
    build_workspace_crate_row(
        "cli",
        "src/cli",
        &["analysis", "serving", "studies", "converters"],
    ),
];

const ALL: &[&str] = &[
    "base",
    "trace",
    "hardware",
    "engine",
    "report",
    "analysis",
    "workloads",
    "astra-sim",
    "archive",
    "jobs",
    "serving",
    "studies",
    "converters",
    "cli",
];

/// Each package, with the crates that may use it, and the crates whose unit tests may also use it.
const DOORS: &[(&str, &[&str], &[&str])] = &[
    ("anstream", &["cli"], &[]),
    (
        "anstyle",
        &["analysis", "cli", "report", "serving", "studies"],
        &[],
    ),
    (
        "blake3",
        &["analysis", "archive", "cli", "jobs", "studies", "trace"],
        &[],
    ),
    ("bytes", &["trace"], &[]),
    ("clap", &["cli"], &[]),
    ("clap_complete", &["cli"], &[]),
    ("clap_mangen", &["cli"], &[]),
    ("comfy-table", &["report"], &[]),
    ("csv", &["cli", "report", "serving", "studies"], &[]),
    ("flate2", &["archive", "report", "trace"], &[]),
    ("foldhash", &["archive", "trace"], &[]),
    ("getrandom", &["cli"], &[]),
    ("glob", &["analysis", "converters"], &[]),
    ("hashbrown", &["hardware", "serving", "trace"], &[]),
    ("imara-diff", &["analysis"], &[]),
    ("indicatif", &["cli"], &[]),
    ("libc", &["base", "cli", "trace"], &[]),
    (
        "libm",
        &["hardware", "report", "serving", "studies", "workloads"],
        &[],
    ),
    ("memmap2", &["trace"], &[]),
    ("petgraph", &["trace"], &[]),
    ("proptest", &[], ALL),
    ("prost", &["report", "trace"], &["analysis"]),
    ("prost-build", &["trace"], &[]),
    ("prost-types", &["trace"], &[]),
    ("roxmltree", &["converters"], &[]),
    // This package is used only with the feature `schema`, which tests enable.
    (
        "schemars",
        &["base", "engine", "report", "trace"],
        &["serving"],
    ),
    ("serde", ALL, &[]),
    ("serde-saphyr", &["astra-sim"], &[]),
    (
        "serde_json",
        &[
            "analysis",
            "archive",
            "astra-sim",
            "cli",
            "converters",
            "jobs",
            "report",
            "serving",
            "studies",
            "trace",
            "workloads",
        ],
        &[],
    ),
    ("strsim", &["base", "cli", "trace"], &[]),
    ("tar", &["converters"], &[]),
    ("tempfile", &[], ALL),
    ("terminal_size", &["cli"], &[]),
    // These packages are references that tests compare against.
    ("testkit", &[], ALL),
    ("textwrap", &["cli", "report"], &[]),
    ("thiserror", ALL, &[]),
    ("toml", &["astra-sim", "base"], &[]),
    ("zstd", &["archive", "trace"], &["converters"]),
];

/// Packages that only some files of a crate may use. Files are given by path prefixes.
const FILES: &[(&str, &[&str])] = &[
    // The iteration order of hash maps must not affect results.
    (
        "foldhash",
        &["src/trace/graph/intern.rs", "src/archive/columns/"],
    ),
    (
        "hashbrown",
        &[
            "src/hardware/topology/link_graph/bundles.rs",
            "src/serving/llm/block_pool.rs",
            "src/trace/graph/intern.rs",
        ],
    ),
    // libm's roots and logarithms are the same on every platform.
    (
        "libm",
        &[
            "src/hardware/compute/",
            "src/hardware/collective/curve.rs",
            "src/hardware/topology/chip_graph/",
            "src/report/draw/network.rs",
            "src/report/interval.rs",
            "src/serving/random.rs",
            "src/studies/score/residuals.rs",
            "src/studies/score/signs.rs",
            "src/workloads/generate/plan/routing.rs",
        ],
    ),
    // Perfetto's messages are only output, so no code here reads them.
    (
        "prost",
        &["src/trace/format/", "src/report/timeline/perfetto"],
    ),
    // `logging.rs` checks a file that ASTRA-sim reads, but chakram ignores.
    (
        "toml",
        &[
            "src/base/config.rs",
            "src/base/config/",
            "src/astra_sim/logging.rs",
        ],
    ),
];

fn repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read_manifest(folder: &str) -> Table {
    let path = repository_root().join(folder).join("Cargo.toml");
    let text = std::fs::read_to_string(&path).expect("a manifest can be read");
    text.parse().expect("a manifest is TOML")
}

/// A package in a manifest, and true if only tests use it.
struct ManifestDependency {
    name: String,
    is_test: bool,
}

/// Returns all dependencies of a manifest, for every platform.
fn list_manifest_dependencies(manifest: &Table) -> Vec<ManifestDependency> {
    let mut found = Vec::new();
    let platforms = manifest.get("target").and_then(Value::as_table);
    let platforms = platforms.into_iter().flat_map(Table::values);
    let tables = platforms
        .filter_map(Value::as_table)
        .chain(std::iter::once(manifest));
    for table in tables {
        for key in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let packages = table.get(key).and_then(Value::as_table);
            for (name, value) in packages.into_iter().flatten() {
                // If a dependency has another name here, `package` gives its real name.
                let package = value.get("package").and_then(Value::as_str);
                found.push(ManifestDependency {
                    name: package.unwrap_or(name).to_owned(),
                    is_test: key == "dev-dependencies",
                });
            }
        }
    }
    found
}

/// Returns all crates that a member may use: the crates of its row, and their dependencies.
fn list_usable_crates(member: &WorkspaceCrate) -> BTreeSet<&'static str> {
    let mut usable = BTreeSet::new();
    for used in member.uses {
        let row = MEMBERS.iter().find(|row| row.name == *used);
        usable.insert(*used);
        usable.extend(list_usable_crates(
            row.expect("a row uses rows of the table"),
        ));
    }
    usable
}

/// Returns the violations in a member's manifest.
fn find_manifest_violations(member: &str, manifest: &Table) -> Vec<String> {
    let Some(row) = MEMBERS.iter().find(|row| row.name == member) else {
        return vec![format!("`{member}` is not in the table of crates")];
    };
    let usable = list_usable_crates(row);
    let mut faults = Vec::new();
    for ManifestDependency { name, is_test } in list_manifest_dependencies(manifest) {
        if let Some(used) = name.strip_prefix("chakram-") {
            if !usable.contains(used) {
                faults.push(format!("`{member}` may not use `{used}`"));
            }
        } else if name == "chakram" {
            faults.push(format!("`{member}` may not use `{name}`"));
        } else if let Some((_, members, tests)) = DOORS.iter().find(|(door, ..)| *door == name) {
            if !(members.contains(&member) || is_test && tests.contains(&member)) {
                faults.push(format!("`{member}`: `{name}` has its door elsewhere"));
            }
        } else {
            faults.push(format!("`{member}`: `{name}` has no door"));
        }
    }
    faults
}

/// Returns the packages that `file` uses although only other files may use them.
fn find_misplaced_package_uses(file: &str, modules: &ModulesOfOneFile) -> Vec<String> {
    let is_test = file.ends_with("/tests.rs") || file.contains("/tests/");
    let mut faults = Vec::new();
    for path in modules.values().flat_map(|module| &module.paths) {
        let door = FILES.iter().find(|(package, _)| *package == path.names[0]);
        let Some((package, files)) = door else {
            continue;
        };
        let is_open = is_test || path.is_test || files.iter().any(|start| file.starts_with(start));
        if !is_open && (path.is_import || path.names.len() > 1) {
            let line = path.line;
            faults.push(format!("{file}:{line}: `{package}` has its door elsewhere"));
        }
    }
    faults
}

fn collect_rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let listing = std::fs::read_dir(folder).expect("the sources are there");
    for entry in listing {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            collect_rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// The modules of every source file of the product, by path from the repository's root.
static SOURCES: LazyLock<BTreeMap<String, ModulesOfOneFile>> = LazyLock::new(|| {
    let mut files = Vec::new();
    collect_rust_files(&repository_root().join("src"), &mut files);
    collect_rust_files(&repository_root().join("converters"), &mut files);
    assert!(files.len() > 40, "{} files", files.len());
    let parsed = files.into_iter().map(|path| {
        let name = path
            .strip_prefix(repository_root())
            .expect("it was found there");
        let name = name.to_str().expect("names are text").replace('\\', "/");
        let source = std::fs::read_to_string(&path).expect("a source can be read");
        let modules = paths::parse_modules_and_paths_used_in_them(&source)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, modules)
    });
    parsed.collect()
});

/// Returns the names of our crates in a manifest's dependencies.
fn list_dependencies_on_own_crates(manifest: &Table) -> BTreeSet<String> {
    let names = list_manifest_dependencies(manifest)
        .into_iter()
        .map(|found| found.name);
    names
        .filter(|name| name.starts_with("chakram") || name == "testkit")
        .collect()
}

#[test]
fn manifests_depend_only_on_allowed_crates() {
    let mut faults = Vec::new();
    for member in MEMBERS {
        faults.extend(find_manifest_violations(
            member.name,
            &read_manifest(member.folder),
        ));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    let listed = &read_manifest("")["workspace"]["members"];
    let listed = listed.as_array().expect("it is a list").iter();
    let listed: BTreeSet<&str> = listed.filter_map(Value::as_str).collect();
    let known = MEMBERS.iter().map(|member| member.folder);
    let known: BTreeSet<&str> = known
        .chain(["testkit", "testkit/extension", "python"])
        .collect();
    assert_eq!(listed, known);
    assert!(
        MEMBERS
            .iter()
            .map(|member| member.name)
            .eq(ALL.iter().copied())
    );
}

#[test]
fn external_packages_are_listed_and_used_only_in_allowed_files() {
    let mut used = BTreeSet::new();
    for member in MEMBERS {
        let found = list_manifest_dependencies(&read_manifest(member.folder)).into_iter();
        let packages = found.map(|found| found.name);
        used.extend(packages.filter(|name| !name.starts_with("chakram")));
    }
    let doors: BTreeSet<String> = DOORS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(used, doors);
    let mut faults = Vec::new();
    for (file, modules) in &*SOURCES {
        faults.extend(find_misplaced_package_uses(file, modules));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn no_source_file_is_named_mod_rs() {
    let unnamed = SOURCES.keys().filter(|file| file.ends_with("mod.rs"));
    assert_eq!(unnamed.count(), 0);
}

/// In the table, no member uses the façade.
#[test]
fn only_users_use_the_facade_and_only_programs_the_command_line() {
    let extension = list_dependencies_on_own_crates(&read_manifest("testkit/extension"));
    assert_eq!(extension, BTreeSet::from(["chakram".into()]));
    // The Python package also uses the façade.
    assert_eq!(
        list_dependencies_on_own_crates(&read_manifest("python")),
        BTreeSet::from(["chakram".into()])
    );
    // If a fuzz target's body is in a member's own tests, the fuzz target uses this member directly.
    assert!(!list_dependencies_on_own_crates(&read_manifest("fuzz")).contains("chakram-cli"));
    for (file, modules) in &*SOURCES {
        for path in modules.values().flat_map(|module| &module.paths) {
            let line = path.line;
            assert!(
                path.names[0] != "chakram_cli"
                    || ["src/main.rs", "src/command.rs"].contains(&&**file),
                "{file}:{line}: only the binary and commands of the façade use the command line"
            );
        }
    }
}

#[test]
fn the_testkit_depends_on_no_crate_of_this_repository() {
    assert_eq!(
        list_dependencies_on_own_crates(&read_manifest("testkit")),
        BTreeSet::new()
    );
}
