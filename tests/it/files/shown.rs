//! Tests names from files that are printed to a terminal, and empty files.

use super::{Folder, text_from_bytes};
use chakram::trace::{
    AttributeValue as Field, CollectiveKind, GroupName, NodeFieldsBeyondView, NodeView, Op,
    TraceWriter,
};
use chakram::units::Span;
use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};

const GROUP: &str = "g\u{1b}]0;x\u{7}\u{202e}\u{9b}2J";
const NAME: &str = "mm\u{1b}[35;7m\u{202e}\u{200b}\r\nnew line\u{e0041}";

/// Writes two ranks that call a group and run a kernel. Both names contain control sequences.
fn write_control_character_job(folder: &Folder, prefix: &str, rank_of_kernel: &str) {
    for rank in 0..2 {
        let lane = [("lane.7", Field::Text(NAME))];
        let mut writer = TraceWriter::start_with_metadata(Vec::new(), &lane).unwrap();
        let kernel = Op::Compute {
            flops: 5,
            bytes: 7,
            dtype: None,
        };
        let name = format!("{NAME}{rank_of_kernel}");
        let kernel = NodeView {
            recorded: Span::from_us(3),
            lane: Some(7),
            ..NodeView::new(1, &name, kernel)
        };
        let call = Op::Collective {
            kind: CollectiveKind::AllReduce,
            bytes: 1000,
            group: GroupName::Text(GROUP),
            root: None,
            dimensions: None,
            host: false,
        };
        let call = NodeView {
            recorded: Span::from_us(1),
            ..NodeView::new(2, NAME, call)
        };
        let extra = NodeFieldsBeyondView {
            attributes: &[(NAME, Field::Text(NAME))],
            ..NodeFieldsBeyondView::default()
        };
        writer.write_node(&kernel, &[], &extra).unwrap();
        writer
            .write_node(&call, &[1], &NodeFieldsBeyondView::default())
            .unwrap();
        folder.write(
            &format!("{prefix}.{rank}.et"),
            &writer.into_unflushed_sink(),
        );
    }
}

/// Returns all text that the program sends to a terminal.
fn run_on_pseudo_terminal(folder: &Folder, args: &[&str]) -> String {
    let (mut ours, mut theirs) = (0, 0);
    let null = std::ptr::null_mut();
    // SAFETY: both descriptors are new and have no other owner.
    let (mut ours, theirs) = unsafe {
        let opened = libc::openpty(&mut ours, &mut theirs, null, null.cast(), null.cast());
        assert_eq!(opened, 0);
        (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
    };
    let mut command = folder.command(args);
    command.stderr(theirs.try_clone().unwrap()).stdout(theirs);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut said = Vec::new();
    // Reading ends with an error, because the other side closes.
    let _ = ours.read_to_end(&mut said);
    child.wait().unwrap();
    String::from_utf8(said).unwrap()
}

/// Returns `true` for the control characters in these names, which have the Unicode categories Cc,
/// Cf, Zl or Zp. This test does not use the library's own list.
fn is_control_character(c: char) -> bool {
    matches!(c, '\0'..='\u{9}' | '\u{b}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0041}')
}

#[test]
fn control_characters_in_names_never_reach_the_terminal() {
    let folder = Folder::new();
    let prefix = "job\u{1b}[2J\u{202e}";
    write_control_character_job(&folder, prefix, "");
    write_control_character_job(&folder, "b", "other");
    let groups = serde_json::json!({GROUP: [1, 0]}).to_string();
    folder.write("groups.json", groups.as_bytes());
    let (first, second) = (format!("{prefix}.0.et"), format!("{prefix}.1.et"));
    let replay = [
        "replay",
        prefix,
        "--groups",
        "groups.json",
        "-m",
        "dgx-h100",
    ];
    let csv = |table| [&replay[..], &["--format", "csv", "--table", table]].concat();
    let inspect = |more: &[&'static str]| [&["inspect", prefix][..], more].concat();
    let all = vec![
        replay.to_vec(),
        [&replay[..], &["--format", "json"]].concat(),
        csv("collectives"),
        csv("operators"),
        csv("npus"),
        [&replay[..], &["-m", "mi300x"]].concat(),
        [&replay[..], &["-m", "mi300x", "--format", "csv"]].concat(),
        vec!["replay", prefix, "-m", "dgx-h100"],
        vec!["replay", &first, &second, "-m", "dgx-h100", "--ranks", "1"],
        vec!["validate", prefix],
        vec!["validate", prefix, "--format", "json"],
        inspect(&[]),
        inspect(&["--list"]),
        inspect(&["--list", "--format", "csv"]),
        inspect(&["--list", "--format", "json"]),
        inspect(&["--format", "csv", "--table", "ranks"]),
        inspect(&["--format", "csv", "--table", "lanes"]),
        inspect(&["--format", "csv", "--table", "collectives"]),
        inspect(&["--format", "csv", "--table", "operators"]),
        inspect(&["--format", "csv", "--table", "attributes"]),
        inspect(&["--critical-path", "--list"]),
        inspect(&["--rank", "0", "--node", "1"]),
        inspect(&["--rank", "0", "--node", "1", "--format", "dot"]),
        vec!["diff", prefix, "b"],
        vec!["diff", prefix, "b", "--format", "csv"],
        vec!["diff", prefix, "b", "--format", "json"],
        vec!["audit", "--leaks", prefix],
        vec![
            "slice",
            prefix,
            "--groups",
            "groups.json",
            "--annotation",
            "none",
            "-o",
            "x",
        ],
        vec![
            "slice",
            prefix,
            "--groups",
            "groups.json",
            "--from",
            "2",
            "-o",
            "x\u{1b}[1m",
        ],
        vec!["convert", "trace", &first, "-o", "y\u{1b}.0.jsonl"],
        vec!["machine", "check", "groups\u{1b}.json"],
        vec!["replay", "no\u{1b}[2Jwhere"],
    ];
    let mut seen = 0;
    for args in all {
        let output = folder.run(&args);
        for said in [&output.stdout, &output.stderr] {
            let said = text_from_bytes(said);
            let harmful = said.chars().find(|c| is_control_character(*c));
            assert_eq!(harmful, None, "{args:?}: {said}");
            seen += said.matches("\\u").count();
        }
        let said = run_on_pseudo_terminal(&folder, &args);
        assert!(!said.is_empty());
        // Colour changes come from the program itself, and have one parameter.
        let harmful = said.match_indices(is_control_character).find(|(at, c)| {
            let rest = said[*at..].trim_start_matches("\u{1b}[");
            let colour = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            *c != "\r" && !(*c == "\u{1b}" && colour.starts_with('m'))
        });
        assert_eq!(harmful, None, "{args:?}: {said:?}");
        let csv = args.contains(&"csv") && output.status.success();
        if csv {
            let said = text_from_bytes(&output.stdout);
            assert!(!said.contains("\nnew line"), "a row is a line: {said}");
        }
    }
    assert!(seen > 60, "{seen} escapes");
    let shown = folder.run_successfully_for_stdout(&csv("collectives"));
    assert!(
        shown.contains("g\\u{1b}]0;x\\u{7}\\u{202e}\\u{9b}2J"),
        "{shown}"
    );
    // A report has the same text in a file as on a terminal.
    folder.run_successfully_for_stdout(&[&replay[..], &["-o", "report"]].concat());
    assert_eq!(
        text_from_bytes(&folder.read("report")),
        folder.run_successfully_for_stdout(&replay)
    );
}

#[test]
fn a_file_of_zeros_is_no_trace() {
    let folder = Folder::new();
    for zeros in [1, 2, 3, 4096, 1 << 20] {
        folder.write("z.0.et", &vec![0; zeros]);
        for args in [
            &["replay", "z.0.et", "-m", "dgx-h100"][..],
            &["replay", "z", "-m", "dgx-h100"],
            &["validate", "z.0.et"],
            &["inspect", "z.0.et"],
            &["audit", "--leaks", "z"],
            &["slice", "z", "--from", "0", "-o", "y"],
            &["convert", "trace", "z.0.et", "-o", "y.0.jsonl"],
        ] {
            let output = folder.run(args);
            assert_eq!(
                output.status.code(),
                Some(2),
                "{zeros} {args:?}: {output:?}"
            );
            let all = text_from_bytes(&output.stdout) + &text_from_bytes(&output.stderr);
            assert!(all.contains("z.0.et"), "{zeros} {args:?}: {all}");
        }
    }
    assert_eq!(folder.names(), ["z.0.et"]);
}
