//! Small sources that break a rule are caught, and those that break none are not.

use super::check;

#[test]
fn what_is_forbidden_is_caught() {
    let caught = |file: &str, source: &str, expected: &[&str]| {
        let faults = check(file, source);
        assert_eq!(faults.len(), expected.len(), "{source}: {faults:?}");
        for (fault, part) in faults.iter().zip(expected) {
            assert!(fault.contains(part), "{source}: {fault}");
        }
    };
    caught("trace.rs", "use crate::units::Span;", &[]);
    caught(
        "trace/wire.rs",
        "use crate::graph::Graph;",
        &["src/trace/wire.rs:1: `trace` may not import `graph`"],
    );
    caught(
        "trace/wire.rs",
        "\nuse {crate::{ids::Npu, engine::{self as e}}};",
        &[":2: `trace` may not import `engine`"],
    );
    caught(
        "graph/read.rs",
        "use super::super::workload::Absent;",
        &["`graph` may not import `workload`"],
    );
    caught("graph/read.rs", "use super::builder::GraphBuilder;", &[]);
    caught(
        "graph.rs",
        "mod inside { use super::super::engine; }",
        &["`engine`"],
    );
    caught(
        "graph.rs",
        "fn f() { crate::machine::g::<crate::report::R>() }",
        &["`machine`", "`report`"],
    );
    caught(
        "graph.rs",
        "fn f() { println!(\"{}\", crate::machine::N); }",
        &["`machine`"],
    );
    caught("graph.rs", "impl crate::engine::T for X {}", &["`engine`"]);
    caught(
        "main.rs",
        "use chakram::trace::Op; fn main() { chakram::internals::cli::main() }",
        &["`trace`"],
    );
    caught(
        "units.rs",
        "use crate::ids::Npu;",
        &["`units` may not import `ids`"],
    );
    caught(
        "graph.rs",
        "use crate::nowhere::X;",
        &["there is no room `nowhere`"],
    );
    caught("kitchen.rs", "", &["room `kitchen` is not in the table"]);
    caught("engine.rs", "use prost::Message;", &["`prost`"]);
    caught("trace/scan.rs", "use prost::Message;", &["`prost`"]);
    caught(
        "trace/scan.rs",
        "#[cfg(test)] mod tests { use prost::Message; }",
        &[],
    );
    caught(
        "topology.rs",
        "#[derive(serde::Serialize)] struct S;",
        &["`serde`"],
    );
    caught(
        "graph.rs",
        "fn f() { ::serde_json::to_string(&1); }",
        &["`serde_json`"],
    );
    caught(
        "converters/pytorch/host.rs",
        "use super::super::super::engine; use crate::graph::Names; use serde_json::Value;",
        &["converters/pytorch/host.rs:1: `converters` may not import `engine`"],
    );
    caught("converters/mod.rs", "use super::workload;", &["`workload`"]);
    caught("graph/cycle.rs", "use hashbrown as h;", &["`hashbrown`"]);
    caught("graph/intern.rs", "use hashbrown::HashTable;", &[]);
}
