//! Compares arbitrary bytes as two traces. The differences must account for every node and dependency of both traces,
//! be reproducible, and be empty between a trace and itself.

use chakram_analysis::diff::render::{DiffRenderOptions, DiffThresholds, csv, json, text};
use chakram_analysis::diff::tally::{DiffTally, DiffTallyOptions};
use chakram_analysis::diff::{self, TraceDiff};
use chakram_report::text::TextStyle;
use chakram_trace::graph::RawTrace;

/// Runs the target on `data`, which consists of two bytes with the length of the first trace, the first trace, and the
/// second trace.
pub fn run(data: &[u8]) {
    let [low, high, rest @ ..] = data else { return };
    let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (first, second) = rest.split_at(length);
    let outlines = [first, second].map(RawTrace::read);
    let [a, b] = &outlines;
    for outline in &outlines {
        assert!(diff::traces(outline, outline).is_empty());
    }
    let found = diff::traces(a, b);
    check(a, b, &found);
    let rendered = |found: &TraceDiff| {
        let keep = DiffTallyOptions::default();
        let tally = DiffTally::new(0, [a, b], found, keep);
        let titles = DiffRenderOptions {
            names: ["a", "b"],
            show: None,
            // The style is the style of a terminal, on which long names are shortened.
            style: TextStyle {
                width: 100,
                ..TextStyle::default()
            },
        };
        let verdict = DiffThresholds::default().check(&tally);
        let text = text::render(&tally, &titles);
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
        let json = serde_json::to_string(&json::render(&tally, &titles, &verdict)).unwrap();
        format!("{text}{json}{}", csv::render(&tally, &titles))
    };
    assert_eq!(rendered(&found), rendered(&diff::traces(a, b)));
}

/// Checks that every node is paired, removed or added. Also checks that the dependencies between pairs in the second
/// trace equal those in the first trace, minus the removed and plus the added dependencies.
fn check(a: &RawTrace<'_>, b: &RawTrace<'_>, found: &TraceDiff) {
    let mut pairs = 0;
    for node in a.all() {
        let removed = found.removed.contains(&node);
        match found.pairs.of(0, node) {
            Some(partner) => {
                assert!(!removed && found.pairs.of(1, partner) == Some(node));
                pairs += 1;
            }
            None => assert!(removed),
        }
    }
    assert_eq!(pairs + found.removed.len(), a.nodes.len());
    assert_eq!(pairs + found.added.len(), b.nodes.len());
    for changed in &found.changed {
        let [x, y] = changed.nodes;
        assert_eq!(found.pairs.of(0, x), Some(y));
        for field in &changed.fields {
            assert!(field.before != field.after || field.before.amount().is_none());
        }
    }
    for node in a.all() {
        let Some(partner) = found.pairs.of(0, node) else {
            continue;
        };
        // Dependencies in terms of nodes of the first trace, or `None` for a missing node.
        let mut before: Vec<(Option<u32>, bool)> = Vec::new();
        for dep in a.deps(node) {
            match dep.target() {
                Some(target) if found.pairs.of(0, target).is_none() => {}
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
        for dep in b.deps(partner) {
            match dep.target() {
                None => after.push((None, dep.control)),
                Some(target) => {
                    let known = found.pairs.of(1, target);
                    after.extend(known.map(|known| (Some(known), dep.control)));
                }
            }
        }
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!(before, after);
    }
}
