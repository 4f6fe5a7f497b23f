//! Traces that stand for several ranks.

use super::{agree, args, json, makespan};
use crate::corpus::one_of_each;
use crate::files::Folder;

/// With `--aggregate` a trace stands for the ranks of its stage, under the name of each. Read under a name it is the
/// trace of that rank to the byte, and replays end as without, on the machine and on others, and together as each by itself.
#[test]
fn one_trace_stands_for_the_ranks_of_its_stage() {
    let folder = Folder::new();
    for (number, more) in [
        &["--place", "s_shape", "--residency", "corrected"][..],
        &["--place", "spiral", "--adapters", "1"],
    ]
    .into_iter()
    .enumerate()
    {
        let (whole, shared) = (format!("whole{number}"), format!("shared{number}"));
        let of_each = json(
            &folder,
            &args("wafer-5x4", &[more, &["-o", &whole]].concat()),
        );
        let together = [more, &["--aggregate", "-o", &shared]].concat();
        json(&folder, &args("wafer-5x4", &together));
        let ways = [&[][..], &["--aggregate"], &["--network", "links"]];
        for more in one_of_each(2, ways) {
            let replay = |job: &str| {
                let replay = ["replay", job, "--machine", "wafer-5x4"];
                json(&folder, &[&replay, more].concat())
            };
            let [one, other] = [replay(&whole), replay(&shared)];
            if more.is_empty() {
                assert_eq!(makespan(&other), makespan(&of_each));
            }
            agree(&one, &other, &format!("{more:?}"));
        }
        // 32 ranks in stages of two replicas of four. Of each the first is the adapter, and has a trace of its own.
        for rank in one_of_each(7, 0..32) {
            let of = |job: &str| {
                let name = format!("{job}.{rank}.et");
                folder.ok(&["convert", "trace", &name, "-o", "one.jsonl"]);
                String::from_utf8(folder.read("one.jsonl")).unwrap()
            };
            let text = of(&shared);
            let said = text.lines().next().unwrap().contains(r#""name":"members""#);
            assert_eq!(said, number == 0 || rank % 4 != 0, "{more:?}: {rank}");
            assert!(!of(&whole).contains(r#""name":"members""#));
        }
        folder.ok(&["diff", &whole, &shared]);
        folder.ok(&["validate", &shared]);
    }
}

/// A trace under the name of a rank that it does not stand for is refused.
#[test]
fn others_are_refused() {
    let folder = Folder::new();
    let more = ["--place", "s_shape", "--aggregate", "-o", "job"];
    folder.ok(&args("wafer-5x4", &more));
    let stranger = folder.read("job.8.et");
    folder.write("other.40.et", &stranger);
    let refused = folder.refused(&["replay", "other.40.et", "--machine", "wafer-5x4"]);
    assert!(
        refused.contains("attribute `members`: it stands for 8 ranks from 8 to 15")
            && refused.contains("rank 40"),
        "{refused}"
    );
}
