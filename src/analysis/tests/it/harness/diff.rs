//! Compares arbitrary bytes as two traces. The differences must account for every node and dependency of both traces,
//! must be reproducible, and must be empty when a trace is compared with itself.

use chakram_analysis::diff::render::{
    DiffPercentLimitAndForbiddenAspects, JobNamesAndDiffStyle, csv, json, text,
};
use chakram_analysis::diff::tally::{DiffTally, StoredChangeLimitAndTimeTolerance};
use chakram_analysis::diff::{self, TraceDiff};
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_trace::graph::RawTrace;

/// Runs the target on `data`, which consists of the first trace's length in two bytes, the first trace, and the second
/// trace.
pub fn run_diff_target(data: &[u8]) {
    let [low, high, rest @ ..] = data else { return };
    let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (first, second) = rest.split_at(length);
    let outlines = [first, second].map(RawTrace::read_trace);
    let [a, b] = &outlines;
    for outline in &outlines {
        assert!(diff::compare_traces(outline, outline).is_empty());
    }
    let found = diff::compare_traces(a, b);
    check_trace_diff(a, b, &found);
    let rendered = |found: &TraceDiff| {
        let keep = StoredChangeLimitAndTimeTolerance::default();
        let tally = DiffTally::new(0, [a, b], found, keep);
        let titles = JobNamesAndDiffStyle {
            names: ["a", "b"],
            show: None,
            // Use a terminal's style, which shortens long names.
            style: TextStyleWidthAndDetail {
                width: 100,
                ..TextStyleWidthAndDetail::default()
            },
        };
        let verdict =
            DiffPercentLimitAndForbiddenAspects::default().find_exceeded_tally_thresholds(&tally);
        let text = text::render_text(&tally, &titles);
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
        let json =
            serde_json::to_string(&json::build_trace_diff_document(&tally, &titles, &verdict))
                .unwrap();
        format!("{text}{json}{}", csv::render_csv(&tally, &titles))
    };
    assert_eq!(rendered(&found), rendered(&diff::compare_traces(a, b)));
}

/// Checks that every node is either paired, removed or added. For paired nodes, the first trace's dependencies, minus
/// the removed ones and plus the added ones, must equal the second trace's.
fn check_trace_diff(a: &RawTrace<'_>, b: &RawTrace<'_>, found: &TraceDiff) {
    let mut pairs = 0;
    for node in a.range_of_all_node_indices() {
        let removed = found.removed.contains(&node);
        match found.pairs.partner_of_node(0, node) {
            Some(partner) => {
                assert!(!removed && found.pairs.partner_of_node(1, partner) == Some(node));
                pairs += 1;
            }
            None => assert!(removed),
        }
    }
    assert_eq!(pairs + found.removed.len(), a.nodes.len());
    assert_eq!(pairs + found.added.len(), b.nodes.len());
    for changed in &found.changed {
        let [x, y] = changed.nodes;
        assert_eq!(found.pairs.partner_of_node(0, x), Some(y));
        for field in &changed.fields {
            assert!(field.before != field.after || field.before.as_number().is_none());
        }
    }
    for node in a.range_of_all_node_indices() {
        let Some(partner) = found.pairs.partner_of_node(0, node) else {
            continue;
        };
        // Dependencies, expressed through nodes of the first trace; `None` stands for a missing node.
        let mut before: Vec<(Option<u32>, bool)> = Vec::new();
        for dep in a.dependencies_of(node) {
            match dep.target() {
                Some(target) if found.pairs.partner_of_node(0, target).is_none() => {}
                target => before.push((target, dep.control)),
            }
        }
        for edge in found
            .edges
            .iter()
            .filter(|edge| edge.node == [node, partner])
        {
            let entry = (edge.on.map(|on| on[0]), edge.control);
            if edge.added {
                before.push(entry);
            } else {
                let at = before.iter().position(|known| *known == entry);
                before.remove(at.expect("what is removed was there"));
            }
        }
        let mut after: Vec<(Option<u32>, bool)> = Vec::new();
        for dep in b.dependencies_of(partner) {
            match dep.target() {
                None => after.push((None, dep.control)),
                Some(target) => {
                    let known = found.pairs.partner_of_node(1, target);
                    after.extend(known.map(|known| (Some(known), dep.control)));
                }
            }
        }
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!(before, after);
    }
}
