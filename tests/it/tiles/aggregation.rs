//! One rank that runs for all that do the same.

use super::{agree, args, json};
use crate::files::Folder;

/// Of a stage's ranks one runs for all while they do the same; the report is the one of each by itself but for what it says of
/// that. On the wafer cores of a stage lie differently to their neighbours, which is found. The first and the last stage share
/// embeddings, whose sum takes a lane with other nodes.
#[test]
fn one_core_runs_for_all_that_do_the_same() {
    let folder = Folder::new();
    for (machine, more) in [
        (
            "wafer-5x4",
            &["--place", "s_shape", "--residency", "corrected"][..],
        ),
        (
            "wafer-5x4",
            &["--place", "line", "--network", "contention-free"],
        ),
        ("dgx-a100x4", &[]),
    ] {
        let alone = json(&folder, &args(machine, more));
        let mut together = json(&folder, &args(machine, &[more, &["--aggregate"]].concat()));
        let found = together["aggregation"].take();
        assert_eq!(found["groups"], 4, "{found}");
        assert_eq!(found["ranks"], 32, "{found}");
        assert_eq!(found["split"].is_null(), found["together"] == 4, "{found}");
        assert!(alone["aggregation"].is_null());
        agree(&alone, &together, &format!("{machine} {more:?}"));
    }
    let text = folder.ok(&args("dgx-a100x4", &["--aggregate"]));
    assert!(text.contains("32 ranks in 4 groups; in "), "{text}");
    let refused = folder.refused(&args("dgx-a100x4", &["--aggregate", "--comm", "recorded"]));
    assert!(refused.contains("leave one of the two out"), "{refused}");
}
