//! Tests a thousand random changes of each kind. The comparison must find exactly this change.
//!
//! If a node is added or removed, dependencies on it and its own dependencies are not reported separately.

use super::traces::{
    FoundDifferences, KINDS, Random, build_alike_nodes, build_attribute, build_attribute_value,
    build_random_mostly_unique_nodes, build_random_node, compare_node_lists,
    shuffle_and_renumber_nodes,
};
use chakram_trace::format::proto::{AttributeProto, IoInfo, Node, attribute_proto::Value};

const TIMES: u64 = 1000;

/// Changes a trace. Returns the id of the changed node, and the expected result of a comparison.
type TraceMutation = fn(&mut Random, &mut Vec<Node>) -> Option<(u64, ExpectedDifference)>;

#[derive(Debug)]
enum ExpectedDifference {
    Removed,
    Added,
    Fields(Vec<String>),
    /// A flag that is true if the dependency was added, the predecessor's id, and a flag that is true for a control
    /// dependency.
    Edge(bool, u64, bool),
}

fn build_expected_field_difference(name: &str) -> ExpectedDifference {
    ExpectedDifference::Fields(vec![name.to_owned()])
}

/// Applies `change` to many random traces, renumbers and reorders them, and compares them with the originals.
fn check_trace_mutation(what: &str, change: TraceMutation) {
    let (mut done, mut seed) = (0, 0);
    while done < TIMES {
        seed += 1;
        assert!(seed < 20 * TIMES, "{what} hardly ever applies");
        let mut random = Random(seed);
        let before = build_random_mostly_unique_nodes(&mut random, 24);
        let mut after = before.clone();
        let Some((id, expected)) = change(&mut random, &mut after) else {
            continue;
        };
        done += 1;
        let (after, ids) = match seed % 3 {
            0 => (after, (0..100).collect()),
            _ => shuffle_and_renumber_nodes(&mut random, &after),
        };
        let new = ids.get(id as usize).copied().unwrap_or(0);
        let expected = match expected {
            ExpectedDifference::Removed => FoundDifferences {
                removed: vec![id],
                ..FoundDifferences::default()
            },
            ExpectedDifference::Added => FoundDifferences {
                added: vec![new],
                ..FoundDifferences::default()
            },
            ExpectedDifference::Fields(fields) => FoundDifferences {
                changed: vec![(id, new, fields)],
                ..FoundDifferences::default()
            },
            ExpectedDifference::Edge(added, on, control) => FoundDifferences {
                edges: vec![(added, id, Some(on), control)],
                ..FoundDifferences::default()
            },
        };
        let found = compare_node_lists(&before, &after);
        assert_eq!(found, expected, "{what}, seed {seed}\n{before:#?}");
    }
}

/// Returns a random node that satisfies `fits`.
fn pick_random_node_that_fits<'n>(
    random: &mut Random,
    nodes: &'n mut [Node],
    fits: impl Fn(&Node) -> bool,
) -> Option<&'n mut Node> {
    let fitting: Vec<_> = nodes.iter_mut().filter(|node| fits(node)).collect();
    match fitting.len() {
        0 => None,
        count => fitting.into_iter().nth(random.below(count)),
    }
}

/// Selects a random node that has the attribute `name`. Returns the attribute and the node's id.
fn pick_attribute_of_random_node<'n>(
    random: &mut Random,
    nodes: &'n mut [Node],
    name: &str,
) -> Option<(u64, &'n mut AttributeProto)> {
    let has = |node: &Node| node.attr.iter().any(|a| a.name == name);
    let node = pick_random_node_that_fits(random, nodes, has)?;
    let attr = node.attr.iter_mut().find(|a| a.name == name)?;
    Some((node.id, attr))
}

/// Increments the value of an integer attribute.
fn increment_attribute(attr: &mut AttributeProto) {
    attr.value = Some(match attr.value {
        Some(Value::Uint64Val(n)) => Value::Uint64Val(n + 1),
        Some(Value::Int64Val(n)) => Value::Int64Val(n + 1),
        ref other => panic!("{other:?} is no whole number"),
    });
}

#[test]
fn removed_nodes_are_reported() {
    check_trace_mutation("a node is removed", |random, nodes| {
        let id = nodes.remove(random.below(nodes.len())).id;
        for node in nodes {
            node.data_deps.retain(|&dep| dep != id);
            node.ctrl_deps.retain(|&dep| dep != id);
        }
        Some((id, ExpectedDifference::Removed))
    });
}

#[test]
fn added_nodes_are_reported() {
    check_trace_mutation("a node is added", |random, nodes| {
        let id = nodes.len() as u64;
        let what = *random.pick(&super::traces::WHATS);
        let mut new = build_random_node(random, id, what);
        let at = random.below(nodes.len() + 1);
        // The new node depends on some earlier nodes, and some later nodes depend on it.
        for node in &mut nodes[..at] {
            if random.below(8) == 0 {
                new.data_deps.push(node.id);
            }
        }
        for node in &mut nodes[at..] {
            if random.below(8) == 0 {
                node.ctrl_deps.push(id);
            }
        }
        nodes.push(new);
        Some((id, ExpectedDifference::Added))
    });
}

#[test]
fn changed_fields_are_reported() {
    check_trace_mutation("another name", |random, nodes| {
        let node = pick_random_node_that_fits(random, nodes, |_| true)?;
        node.name += "_v2";
        Some((node.id, build_expected_field_difference("name")))
    });
    check_trace_mutation("another type", |random, nodes| {
        // The change turns a kernel into a load. A load has bytes too, but no FLOPs.
        let compute = |node: &Node| node.attr.iter().any(|a| a.name == "num_ops");
        let node = pick_random_node_that_fits(random, nodes, compute)?;
        node.r#type = 2;
        Some((node.id, build_expected_field_difference("type")))
    });
    check_trace_mutation("another collective", |random, nodes| {
        let (id, attr) = pick_attribute_of_random_node(random, nodes, "comm_type")?;
        attr.value = Some(Value::Uint64Val(1));
        Some((id, build_expected_field_difference("type")))
    });
    check_trace_mutation("another dtype", |random, nodes| {
        let (id, attr) = pick_attribute_of_random_node(random, nodes, "dtype")?;
        attr.value = Some(Value::StringVal("fp8".to_owned()));
        Some((id, build_expected_field_difference("dtype")))
    });
    check_trace_mutation("another group", |random, nodes| {
        let (id, attr) = pick_attribute_of_random_node(random, nodes, "pg_name")?;
        attr.value = Some(Value::StringVal("g7".to_owned()));
        Some((id, build_expected_field_difference("group")))
    });
    check_trace_mutation("other dimensions", |random, nodes| {
        let (id, attr) = pick_attribute_of_random_node(random, nodes, "involved_dim")?;
        attr.value = Some(build_attribute_value(25, 2));
        Some((id, build_expected_field_difference("dimensions")))
    });
    check_trace_mutation("eager", |random, nodes| {
        let node = pick_random_node_that_fits(random, nodes, |_| true)?;
        node.attr
            .push(build_attribute("eager", Value::BoolVal(true)));
        Some((node.id, build_expected_field_difference("eager")))
    });
    check_trace_mutation("another start", |random, nodes| {
        let node = pick_random_node_that_fits(random, nodes, |_| true)?;
        node.start_time_micros = 7;
        Some((
            node.id,
            build_expected_field_difference("start_time_micros"),
        ))
    });
    check_trace_mutation("another duration in microseconds", |random, nodes| {
        let node = pick_random_node_that_fits(random, nodes, |_| true)?;
        node.duration_micros = 7;
        Some((node.id, build_expected_field_difference("duration_micros")))
    });
}

/// Integer attributes, each with the field of nodes that is decoded from it.
const NUMBERS: [(&str, &str); 11] = [
    ("duration_ns", "duration"),
    ("delay_ns", "delay"),
    ("wait_ns", "wait"),
    ("num_ops", "FLOPs"),
    ("tensor_size", "bytes"),
    ("comm_size", "bytes"),
    ("comm_dst", "peer"),
    ("comm_tag", "tag"),
    ("comm_root", "root"),
    ("stream", "lane"),
    ("tid", "lane"),
];

#[test]
fn changed_number_attributes_are_reported_as_their_fields() {
    macro_rules! each {
        ($($i:literal)*) => {$(
            check_trace_mutation(NUMBERS[$i].0, |random, nodes| {
                let (name, changed) = NUMBERS[$i];
                let (id, attr) = pick_attribute_of_random_node(random, nodes, name)?;
                increment_attribute(attr);
                Some((id, build_expected_field_difference(changed)))
            });
        )*};
    }
    each!(0 1 2 3 4 5 6 7 8 9 10);
    assert_eq!(NUMBERS.len(), 11);
}

/// Two captures of the same program number their operators differently, so a comparison ignores these numbers.
#[test]
fn operator_numbers_that_differ_between_captures_are_no_change() {
    let mut bumped = 0;
    for seed in 0..TIMES {
        let mut random = Random(seed);
        let before = build_random_mostly_unique_nodes(&mut random, 24);
        let mut after = before.clone();
        if let Some((_, attr)) = pick_attribute_of_random_node(&mut random, &mut after, "rf_id") {
            increment_attribute(attr);
            bumped += 1;
            assert_eq!(
                compare_node_lists(&before, &after),
                FoundDifferences::default(),
                "seed {seed}"
            );
        }
    }
    assert!(bumped > 0);
}

#[test]
fn changed_inputs_and_outputs_are_reported() {
    check_trace_mutation("inputs or outputs", |random, nodes| {
        let which = random.below(6);
        let node = pick_random_node_that_fits(random, nodes, |_| true)?;
        let mut io = IoInfo::default();
        let (text, name) = match which % 3 {
            0 => (&mut io.values, "values"),
            1 => (&mut io.shapes, "shapes"),
            _ => (&mut io.types, "types"),
        };
        *text = "[[4, 4]]".to_owned();
        let (side, whole) = match which / 3 {
            0 => (&mut node.inputs, "inputs"),
            _ => (&mut node.outputs, "outputs"),
        };
        *side = Some(io);
        Some((
            node.id,
            build_expected_field_difference(&format!("{whole}.{name}")),
        ))
    });
}

/// Tests attributes whose values are of every kind. The attribute is added, removed, changed, or converted to a value
/// of another kind.
fn check_attribute_changes(how: usize) {
    for kind in 0..KINDS {
        for seed in 0..TIMES / KINDS as u64 + 1 {
            let mut random = Random(seed * 31 + kind as u64);
            let mut before = build_random_mostly_unique_nodes(&mut random, 16);
            let at = random.below(before.len());
            let first = random.below(98) as u8;
            if how > 0 {
                before[at]
                    .attr
                    .push(build_attribute("note", build_attribute_value(kind, first)));
            }
            let mut after = before.clone();
            let attr = &mut after[at].attr;
            match how {
                0 => attr.push(build_attribute("note", build_attribute_value(kind, first))),
                1 => drop(attr.pop()),
                2 => {
                    *attr.last_mut().unwrap() =
                        build_attribute("note", build_attribute_value(kind, first + 1))
                }
                3 => {
                    *attr.last_mut().unwrap() =
                        build_attribute("note", build_attribute_value((kind + 1) % KINDS, first))
                }
                _ => attr.last_mut().unwrap().doc_string = "said".to_owned(),
            }
            let (after, ids) = shuffle_and_renumber_nodes(&mut random, &after);
            let fields = vec!["attribute note".to_owned()];
            let expected = FoundDifferences {
                changed: vec![(at as u64, ids[at], fields)],
                ..FoundDifferences::default()
            };
            assert_eq!(
                compare_node_lists(&before, &after),
                expected,
                "kind {kind}, seed {seed}, {how}"
            );
        }
    }
}

#[test]
fn added_attributes_are_reported() {
    check_attribute_changes(0);
}

#[test]
fn removed_attributes_are_reported() {
    check_attribute_changes(1);
}

#[test]
fn changed_attribute_values_are_reported() {
    check_attribute_changes(2);
}

#[test]
fn changed_kinds_of_attribute_values_are_reported() {
    check_attribute_changes(3);
}

#[test]
fn diff_finds_changes_of_attributes_that_are_documented() {
    check_attribute_changes(4);
}

fn select_control_or_data_dependencies(node: &mut Node, control: bool) -> &mut Vec<u64> {
    match control {
        true => &mut node.ctrl_deps,
        false => &mut node.data_deps,
    }
}

fn remove_random_dependency(
    random: &mut Random,
    nodes: &mut [Node],
    control: bool,
) -> Option<(u64, ExpectedDifference)> {
    let node = pick_random_node_that_fits(random, nodes, |node| {
        !select_control_or_data_dependencies(&mut node.clone(), control).is_empty()
    })?;
    let id = node.id;
    let list = select_control_or_data_dependencies(node, control);
    let on = list.remove(random.below(list.len()));
    Some((id, ExpectedDifference::Edge(false, on, control)))
}

fn add_random_dependency(
    random: &mut Random,
    nodes: &mut [Node],
    control: bool,
) -> Option<(u64, ExpectedDifference)> {
    let at = 1 + random.below(nodes.len() - 1);
    let on = random.below(at) as u64;
    let node = &mut nodes[at];
    if select_control_or_data_dependencies(node, control).contains(&on) {
        return None;
    }
    select_control_or_data_dependencies(node, control).push(on);
    Some((at as u64, ExpectedDifference::Edge(true, on, control)))
}

#[test]
fn removed_dependencies_are_reported() {
    check_trace_mutation("data", |random, nodes| {
        remove_random_dependency(random, nodes, false)
    });
    check_trace_mutation("control", |random, nodes| {
        remove_random_dependency(random, nodes, true)
    });
}

#[test]
fn added_dependencies_are_reported() {
    check_trace_mutation("data", |random, nodes| {
        add_random_dependency(random, nodes, false)
    });
    check_trace_mutation("control", |random, nodes| {
        add_random_dependency(random, nodes, true)
    });
}

#[test]
fn a_change_among_nodes_that_are_alike_is_one_change() {
    // The graph consists of 6 chains of 5 equal nodes. The changed node cannot be identified, but exactly one change
    // must be reported.
    let edges: Vec<_> = (0..6_u64)
        .flat_map(|c| (0..4).map(move |i| (5 * c + i, 5 * c + i + 1)))
        .collect();
    for seed in 0..TIMES {
        let mut random = Random(seed);
        let before = build_alike_nodes(&edges, 30);
        let mut after = before.clone();
        let at = random.below(30);
        let step = at % 5;
        match seed % 3 {
            0 => after[at].duration_micros = 9,
            1 => after[at].name = "other".to_owned(),
            _ => after[at].data_deps.clear(),
        }
        let (after, ids) = shuffle_and_renumber_nodes(&mut random, &after);
        let found = compare_node_lists(&before, &after);
        assert_eq!(
            (found.removed.len(), found.added.len()),
            (0, 0),
            "{found:?}"
        );
        match seed % 3 {
            2 if step == 0 => assert_eq!(found, FoundDifferences::default()),
            2 => {
                assert_eq!(
                    (found.changed.len(), found.edges.len()),
                    (0, 1),
                    "{found:?}"
                );
                let (added, node, on, control) = found.edges[0];
                assert!(!added && !control && on == Some(node - 1));
            }
            _ => {
                assert_eq!(
                    (found.changed.len(), found.edges.len()),
                    (1, 0),
                    "{found:?}"
                );
                let (first, second, _) = &found.changed[0];
                assert_eq!((*first as usize % 5, *second), (step, ids[at]), "{found:?}");
            }
        }
    }
}
