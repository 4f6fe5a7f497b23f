//! Tests the rules on small manifests and sources: violations are reported, and everything else is
//! accepted.

use super::{find_manifest_violations, find_misplaced_package_uses, paths};

fn assert_faults_contain_parts(faults: &[String], of: &str, expected: &[&str]) {
    assert_eq!(faults.len(), expected.len(), "{of}: {faults:?}");
    for (fault, part) in faults.iter().zip(expected) {
        assert!(fault.contains(part), "{of}: {fault}");
    }
}

#[test]
fn forbidden_dependencies_in_a_manifest_are_reported() {
    let caught = |member: &str, manifest: &str, expected: &[&str]| {
        let faults = find_manifest_violations(member, &manifest.parse().expect("it is TOML"));
        assert_faults_contain_parts(&faults, manifest, expected);
    };
    let ours = "[dependencies]\nchakram-base = { path = \"../base\" }";
    caught("trace", ours, &[]);
    // A crate may use the dependencies of its dependencies: `report` gets `hardware` from `engine`.
    caught("report", "dependencies.chakram-hardware.path = ''", &[]);
    caught(
        "engine",
        "[dependencies]\nchakram-report = { path = '../report' }\nserde.workspace = true",
        &["`engine` may not use `report`"],
    );
    caught(
        "base",
        "dev-dependencies.chakram-trace.path = ''",
        &["`base` may not use `trace`"],
    );
    caught(
        "trace",
        "build-dependencies.x = { package = 'chakram-engine', path = '' }",
        &["`trace` may not use `engine`"],
    );
    caught(
        "hardware",
        "target.'cfg(unix)'.dependencies.chakram-cli.path = ''",
        &["`hardware` may not use `cli`"],
    );
    caught(
        "cli",
        "dependencies.chakram.path = '../..'",
        &["`cli` may not use `chakram`"],
    );
    caught(
        "engine",
        "dependencies.testkit.workspace = true",
        &["`engine`: `testkit` has its door elsewhere"],
    );
    caught("engine", "dev-dependencies.testkit.workspace = true", &[]);
    caught("kitchen", "", &["`kitchen` is not in the table"]);
    caught(
        "engine",
        "dependencies.prost.workspace = true",
        &["`engine`: `prost` has its door elsewhere"],
    );
    caught("analysis", "dev-dependencies.prost.workspace = true", &[]);
    caught(
        "analysis",
        "dependencies.prost.workspace = true",
        &["`prost`"],
    );
    caught(
        "base",
        "dependencies.rayon = '1'",
        &["`base`: `rayon` has no door"],
    );
}

#[test]
fn package_uses_outside_the_files_allowed_for_it_are_reported() {
    let caught = |file: &str, source: &str, expected: &[&str]| {
        let modules = paths::parse_modules_and_paths_used_in_them(source).expect("it is Rust");
        assert_faults_contain_parts(
            &find_misplaced_package_uses(file, &modules),
            source,
            expected,
        );
    };
    let encoder = "src/trace/format/encoder.rs";
    caught(encoder, "use prost::Message;", &[]);
    caught(
        "src/trace/graph.rs",
        "\nuse prost::Message;",
        &["src/trace/graph.rs:2: `prost` has its door elsewhere"],
    );
    caught(
        "src/trace/graph.rs",
        "#[cfg(test)] mod tests { use prost::Message; }",
        &[],
    );
    caught("src/trace/graph/tests.rs", "use prost::Message;", &[]);
    caught(
        "src/trace/graph.rs",
        "#[derive(prost::Message)] struct S;",
        &["`prost`"],
    );
    caught(
        "src/hardware/network.rs",
        "fn f() { ::libm::exp(1.0); }",
        &["`libm`"],
    );
    let intern = "src/trace/graph/intern.rs";
    caught(intern, "use hashbrown::HashTable;", &[]);
    caught(encoder, "use hashbrown as h;", &["`hashbrown`"]);
    caught(encoder, "use super::hashbrown;", &[]);
}
