//! Asks random questions, and compares the answers of `--where` with the answers of a plain filter.

use super::ArchiveTestFolder;
use chakram::archive::{
    CompressionLevel, MetadataQuery, MetadataValue, Provenance, TraceSharedByRankRange,
    WorkloadEntry, WorkloadListingRow,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn build_workload_entry(values: &[(&str, String)]) -> WorkloadEntry {
    let metadata = values.iter().map(|(key, text)| {
        (
            (*key).to_owned(),
            MetadataValue::parse_value_of_key(key, text).unwrap(),
        )
    });
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
    fn metadata_queries_match_a_plain_filter(
        gpu in "[ab]",
        version in (0u32..3, 0u32..12),
        step in prop::option::of(-3i32..4),
        asked in ("[ab]", (0u32..3, 0u32..12), -3i32..4),
        signs in (0usize..6, 0usize..6),
        shape in 0usize..4,
    ) {
        let mut values = vec![("gpu", gpu.clone()), ("torch", format!("{}.{}", version.0, version.1))];
        values.extend(step.map(|step| ("step", step.to_string())));
        let workload = build_workload_entry(&values);
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
        prop_assert_eq!(MetadataQuery::parse(&text).unwrap().matches(&workload), wanted, "{}", text);
    }

    #[test]
    fn any_question_is_answered_or_refused(text in "[a-c=<>!()~ '\"0-9.andornt]{0,40}") {
        if let Ok(query) = MetadataQuery::parse(&text) {
            query.matches(&build_workload_entry(&[("a", "1".to_owned())]));
        }
    }
}

/// A question, as a tree. The test formats the question as text for the program, and evaluates it
/// with [`MetadataConditionTree::holds`].
#[derive(Clone, Debug)]
enum MetadataConditionTree {
    /// Key, sign and value, each by its index.
    Compare(usize, usize, usize),
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
}

/// Keys, each with the values that workloads and questions use. The type of the last key follows from its value.
const VALUES: [(&str, &[&str]); 7] = [
    ("gpu", &["h100", "A100", "b 200", "gb"]),
    ("torch", &["2.9", "2.10", "2.10.0", "2.10.1", "1", "02.9"]),
    (
        "retention",
        &["2026-01-31", "2026-02-01", "2025-12-31", "soon"],
    ),
    ("step", &["-3", "0", "10", "2.5", "x"]),
    ("lab", &["7", "7.0", "blue", "Red", "2026-01-31"]),
    ("name", &["x", "X", "y", "xx"]),
    ("ranks", &["0", "2", "10"]),
];
const SIGNS: [&str; 7] = ["=", "!=", "<", "<=", ">", ">=", "~"];

fn parse_version_numbers(version: &str) -> Vec<u64> {
    let mut parts: Vec<u64> = version
        .split('.')
        .map(|part| part.parse().unwrap())
        .collect();
    while parts.last() == Some(&0) {
        parts.pop();
    }
    parts
}

/// Returns `true` if both texts look like dates. Every such text in the pools is a valid date.
fn are_dates(own: &str, asked: &str) -> bool {
    [own, asked].iter().all(|text| text.len() == 10)
}

/// Returns how a workload's value compares with the requested value; `None` if their types differ.
fn compare_metadata_values(key: &str, own: &str, asked: &str) -> Option<std::cmp::Ordering> {
    let number = |text: &str| text.parse::<f64>().ok();
    let lower = |text: &str| text.to_lowercase();
    match key {
        "gpu" | "name" => Some(lower(own).cmp(&lower(asked))),
        "torch" => Some(parse_version_numbers(own).cmp(&parse_version_numbers(asked))),
        "retention" => are_dates(own, asked).then(|| own.cmp(asked)),
        "step" | "ranks" => number(own)?.partial_cmp(&number(asked)?),
        _ if number(own).is_some() => number(own)?.partial_cmp(&number(asked)?),
        _ if own.len() == 10 => are_dates(own, asked).then(|| own.cmp(asked)),
        _ => Some(lower(own).cmp(&lower(asked))),
    }
}

impl MetadataConditionTree {
    /// Returns the question in words; `binds` is the precedence of the operator around the
    /// question.
    fn text(&self, binds: u32) -> String {
        let (own, text) = match self {
            Self::Compare(key, sign, value) => {
                let (key, values) = VALUES[*key];
                let value = values[value % values.len()];
                let quote = if value.contains(' ') { "'" } else { "" };
                return format!("{key} {} {quote}{value}{quote}", SIGNS[*sign]);
            }
            Self::Not(inner) => return format!("not {}", inner.text(2)),
            Self::And(a, b) => (1, format!("{} and {}", a.text(1), b.text(2))),
            Self::Or(a, b) => (0, format!("{} or {}", a.text(0), b.text(1))),
        };
        if own < binds {
            format!("({text})")
        } else {
            text
        }
    }

    fn holds(&self, own: &BTreeMap<&str, String>) -> bool {
        match self {
            Self::Not(inner) => !inner.holds(own),
            Self::And(a, b) => a.holds(own) && b.holds(own),
            Self::Or(a, b) => a.holds(own) || b.holds(own),
            Self::Compare(key, sign, value) => {
                let (key, values) = VALUES[*key];
                let asked = values[value % values.len()];
                let Some(own) = own.get(key) else {
                    return SIGNS[*sign] == "!=";
                };
                // Numbers have their shortest form.
                let shown = match own.parse::<f64>() {
                    Ok(number) if !matches!(key, "torch" | "gpu" | "name") => number.to_string(),
                    _ => own.clone(),
                };
                let order = compare_metadata_values(key, own, asked);
                match (SIGNS[*sign], order) {
                    ("~", _) => shown.to_lowercase().contains(&asked.to_lowercase()),
                    ("!=", order) => order.is_none_or(|order| order.is_ne()),
                    (_, None) => false,
                    ("=", Some(order)) => order.is_eq(),
                    ("<", Some(order)) => order.is_lt(),
                    ("<=", Some(order)) => order.is_le(),
                    (">", Some(order)) => order.is_gt(),
                    (_, Some(order)) => order.is_ge(),
                }
            }
        }
    }
}

fn arbitrary_condition_tree() -> impl Strategy<Value = MetadataConditionTree> {
    let leaf = (0..VALUES.len(), 0..SIGNS.len(), 0usize..60)
        .prop_map(|(key, sign, value)| MetadataConditionTree::Compare(key, sign, value));
    leaf.prop_recursive(4, 16, 2, |inner| {
        let pair = (inner.clone(), inner.clone());
        prop_oneof![
            inner.prop_map(|one| MetadataConditionTree::Not(Box::new(one))),
            pair.clone()
                .prop_map(|(a, b)| MetadataConditionTree::And(Box::new(a), Box::new(b))),
            pair.prop_map(|(a, b)| MetadataConditionTree::Or(Box::new(a), Box::new(b))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Asks random questions about random metadata, both of the complete workload and of one line of a list.
    #[test]
    fn random_questions_about_random_metadata_are_answered_as_a_plain_filter_does(
        values in prop::collection::vec(prop::option::of(0usize..60), 5),
        ranks in 0u32..4,
        asked in arbitrary_condition_tree(),
    ) {
        let mut own = BTreeMap::new();
        let mut given = Vec::new();
        for ((key, all), value) in VALUES.iter().zip(&values) {
            // A value that does not fit the key's type cannot be assigned to it.
            let all: Vec<&&str> = all
                .iter()
                .filter(|text| MetadataValue::parse_value_of_key(key, text).is_ok())
                .collect();
            if let Some(value) = value {
                let value = all[value % all.len()].to_string();
                given.push((*key, value.clone()));
                own.insert(*key, value);
            }
        }
        let mut workload = build_workload_entry(&given);
        workload.traces.extend((0..ranks).map(|rank| TraceSharedByRankRange {
            rank,
            ranks: 1,
            ending: ".et".to_owned(),
            blake3: "00".repeat(32),
            bytes: 7,
        }));
        own.insert("name", "x".to_owned());
        own.insert("ranks", ranks.to_string());
        let text = asked.text(0);
        let query = MetadataQuery::parse(&text).unwrap();
        prop_assert_eq!(query.matches(&workload), asked.holds(&own), "{} {:?}", text, own);
        let line = serde_json::to_string(&workload).unwrap();
        let listed: WorkloadListingRow<'_> = serde_json::from_str(&line).unwrap();
        prop_assert_eq!(query.matches(&listed), asked.holds(&own), "{} {:?}", text, own);
        prop_assert_eq!((listed.amounts.ranks, listed.amounts.bytes), (ranks.into(), 7 * u64::from(ranks)));
    }
}

#[test]
fn archive_list_is_filtered_by_metadata_queries() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    corpus.run_successfully(&[
        "generate", "chain", "--ranks", "2", "--nodes", "3", "-o", "@job",
    ]);
    for (name, set) in [
        ("a", "torch=2.9"),
        ("b", "torch=2.10"),
        ("c", "retention=2026-12-31"),
    ] {
        corpus.run_successfully(&[
            "archive", "add", "@a.etz", "@job", "--name", name, "--set", set, "--set", "gpu=H100",
        ]);
    }
    let list = |question: &str| {
        corpus.run_successfully(&["archive", "list", "@a.etz", "--where", question])
    };
    let found = list("gpu = h100 and torch >= 2.10");
    assert!(
        found.starts_with("b ") && found.contains("1 of 3 workloads"),
        "{found}"
    );
    assert!(list("ranks > 2 or name ~ B").starts_with("b "));
    let rows = corpus.run_successfully(&["archive", "list", "@a.etz", "--format", "csv"]);
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
                .run_failing_with_code(2, &["archive", "list", "@a.etz", "--where", wrong])
                .contains("--where"),
            "{wrong}"
        );
    }
    let error = corpus.run_failing_with_code(
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
    // A workload that is kept until the end of 2026 expires on 2027-01-01, and not before.
    for (day, left) in [("2026-12-31", 3), ("2027-01-01", 2)] {
        corpus.run_successfully(&["archive", "gc", "@a.etz", "--as-of", day]);
        assert_eq!(
            super::list_workload_names(&corpus.at("a.etz")).len(),
            left,
            "{day}"
        );
    }
}
