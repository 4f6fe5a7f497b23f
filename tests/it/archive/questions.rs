//! `--where` against a plain filter.

use super::Corpus;
use chakram::internals::archive::{
    CompressionLevel, MetadataQuery, MetadataValue, Provenance, WorkloadEntry,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn entry(values: &[(&str, String)]) -> WorkloadEntry {
    let metadata = values
        .iter()
        .map(|(key, text)| ((*key).to_owned(), MetadataValue::parse(key, text).unwrap()));
    WorkloadEntry {
        name: "x".to_owned(),
        level: CompressionLevel::Default,
        metadata: metadata.collect::<BTreeMap<_, _>>(),
        provenance: Provenance::default(),
        prefix: "job".to_owned(),
        traces: Vec::new(),
        files: Vec::new(),
        baselines: Vec::new(),
        measured: None,
    }
}

proptest! {
    #[test]
    fn questions_say_what_a_plain_filter_says(
        gpu in "[ab]",
        version in (0u32..3, 0u32..12),
        step in prop::option::of(-3i32..4),
        asked in ("[ab]", (0u32..3, 0u32..12), -3i32..4),
        signs in (0usize..6, 0usize..6),
        shape in 0usize..4,
    ) {
        let mut values = vec![("gpu", gpu.clone()), ("torch", format!("{}.{}", version.0, version.1))];
        values.extend(step.map(|step| ("step", step.to_string())));
        let workload = entry(&values);
        let words = ["=", "!=", "<", "<=", ">", ">="];
        let holds = |sign: usize, order: Option<std::cmp::Ordering>| match (words[sign], order) {
            ("!=", order) => order != Some(std::cmp::Ordering::Equal),
            (_, None) => false,
            ("=", Some(order)) => order.is_eq(),
            ("<", Some(order)) => order.is_lt(),
            ("<=", Some(order)) => order.is_le(),
            (">", Some(order)) => order.is_gt(),
            (_, Some(order)) => order.is_ge(),
        };
        let a = holds(0, Some(gpu.cmp(&asked.0)));
        let b = holds(signs.0, Some(version.cmp(&asked.1)));
        let c = holds(signs.1, step.map(|step| step.cmp(&asked.2)));
        let (ta, tb) = (format!("gpu = {}", asked.0.to_uppercase()), format!("torch {} {}.{}", words[signs.0], asked.1.0, asked.1.1));
        let tc = format!("step{}'{}'", words[signs.1], asked.2);
        let (text, wanted) = match shape {
            0 => (format!("{ta} and {tb} or {tc}"), a && b || c),
            1 => (format!("{ta} and ({tb} or not {tc})"), a && (b || !c)),
            2 => (format!("not ({ta} or {tb}) and {tc}"), !(a || b) && c),
            _ => (format!("not {ta} or not {tb} and {tc}"), !a || !b && c),
        };
        prop_assert_eq!(MetadataQuery::parse(&text).unwrap().holds(&workload), wanted, "{}", text);
    }

    #[test]
    fn any_question_is_answered_or_refused(text in "[a-c=<>!()~ '\"0-9.andornt]{0,40}") {
        if let Ok(query) = MetadataQuery::parse(&text) {
            query.holds(&entry(&[("a", "1".to_owned())]));
        }
    }
}

#[test]
fn lists_are_filtered() {
    let corpus = Corpus::new();
    corpus.ok(&["archive", "create", "@a.etz"]);
    corpus.ok(&[
        "generate", "chain", "--ranks", "2", "--nodes", "3", "-o", "@job",
    ]);
    for (name, set) in [
        ("a", "torch=2.9"),
        ("b", "torch=2.10"),
        ("c", "retention=2026-12-31"),
    ] {
        corpus.ok(&[
            "archive", "add", "@a.etz", "@job", "--name", name, "--set", set, "--set", "gpu=H100",
        ]);
    }
    let list = |question: &str| corpus.ok(&["archive", "list", "@a.etz", "--where", question]);
    let found = list("gpu = h100 and torch >= 2.10");
    assert!(
        found.starts_with("b ") && found.contains("1 of 3 workloads"),
        "{found}"
    );
    assert!(list("ranks > 2 or name ~ B").starts_with("b "));
    let rows = corpus.ok(&["archive", "list", "@a.etz", "--format", "csv"]);
    let expected = "name,ranks,trace_bytes,gpu,retention,torch\n\
        a,2,BYTES,H100,,2.9\nb,2,BYTES,H100,,2.10\nc,2,BYTES,H100,2026-12-31,\n";
    let bytes = rows.lines().nth(1).unwrap().split(',').nth(2).unwrap();
    assert_eq!(rows, expected.replace("BYTES", bytes));
    for wrong in [
        "gpu",
        "gpu =",
        "gpu = a b",
        "(gpu = a",
        "gpu ! a",
        "and = 1 or",
        "gpu = 'a",
    ] {
        assert!(
            corpus
                .fails(2, &["archive", "list", "@a.etz", "--where", wrong])
                .contains("--where"),
            "{wrong}"
        );
    }
    let error = corpus.fails(
        2,
        &[
            "archive",
            "add",
            "@a.etz",
            "@job",
            "--name",
            "d",
            "--set",
            "retention=2026-02-30",
        ],
    );
    assert!(error.contains("is not a date"), "{error}");
    // What was to be kept through the last day of 2026 goes on the first of 2027, and not before.
    for (day, left) in [("2026-12-31", 3), ("2027-01-01", 2)] {
        corpus.ok(&["archive", "gc", "@a.etz", "--as-of", day]);
        assert_eq!(super::names(&corpus.at("a.etz")).len(), left, "{day}");
    }
}
