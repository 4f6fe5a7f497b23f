//! Tests traces that represent several ranks.

use super::{assert_reports_agree, build_plan_arguments, read_makespan_ps, run_for_json};
use crate::corpus::sample_every_nth;
use crate::files::Folder;

/// With `--aggregate`, one trace file stands for all ranks of a stage, under each rank's name. Read under one of these
/// names it gives exactly that rank's trace. Replays end at the same time as without the option, on this machine and
/// others, with and without merged ranks.
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
        let of_each = run_for_json(
            &folder,
            &build_plan_arguments("wafer-5x4", &[more, &["-o", &whole]].concat()),
        );
        let together = [more, &["--aggregate", "-o", &shared]].concat();
        run_for_json(&folder, &build_plan_arguments("wafer-5x4", &together));
        let ways = [&[][..], &["--aggregate"], &["--network", "links"]];
        for more in sample_every_nth(2, ways) {
            let replay = |job: &str| {
                let replay = ["replay", job, "--machine", "wafer-5x4"];
                run_for_json(&folder, &[&replay, more].concat())
            };
            let [one, other] = [replay(&whole), replay(&shared)];
            if more.is_empty() {
                assert_eq!(read_makespan_ps(&other), read_makespan_ps(&of_each));
            }
            assert_reports_agree(&one, &other, &format!("{more:?}"));
        }
        // There are 32 ranks in stages of two replicas of four. The first rank of each is the
        // adapter, and has its own trace.
        for rank in sample_every_nth(7, 0..32) {
            let of = |job: &str| {
                let name = format!("{job}.{rank}.et");
                folder.run_successfully_for_stdout(&["convert", "trace", &name, "-o", "one.jsonl"]);
                String::from_utf8(folder.read("one.jsonl")).unwrap()
            };
            let text = of(&shared);
            let said = text.lines().next().unwrap().contains(r#""name":"members""#);
            assert_eq!(said, number == 0 || rank % 4 != 0, "{more:?}: {rank}");
            assert!(!of(&whole).contains(r#""name":"members""#));
        }
        folder.run_successfully_for_stdout(&["diff", &whole, &shared]);
        folder.run_successfully_for_stdout(&["validate", &shared]);
    }
}

/// A trace under the name of a rank that it does not represent is an error.
#[test]
fn traces_named_for_ranks_they_do_not_represent_are_refused() {
    let folder = Folder::new();
    let more = ["--place", "s_shape", "--aggregate", "-o", "job"];
    folder.run_successfully_for_stdout(&build_plan_arguments("wafer-5x4", &more));
    let stranger = folder.read("job.8.et");
    folder.write("other.40.et", &stranger);
    let refused =
        folder.run_refused_for_stderr(&["replay", "other.40.et", "--machine", "wafer-5x4"]);
    assert!(
        refused.contains("attribute `members`: the trace stands for 8 ranks from 8 to 15")
            && refused.contains("rank 40"),
        "{refused}"
    );
}
