//! Tests typical wrong inputs by class. The error names the place, what was found, what was
//! expected or exists, and what to try. The exit code is 2, and standard output is empty.

use super::commands::run_chakram;
use std::path::Path;
use std::process::Stdio;

/// A command line, and parts of its error.
type RejectedCommandLine = (&'static [&'static str], &'static [&'static str]);

const DDP: &str = "traces/ddp-resnet18";

fn check_rejections(inputs: &[RejectedCommandLine]) {
    for (args, parts) in inputs {
        let output = run_chakram(args);
        let error = String::from_utf8(output.stderr).expect("errors are text");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(
            output.stdout.is_empty(),
            "{args:?}: errors go to standard error"
        );
        assert!(error.starts_with("error: "), "{args:?}: {error}");
        for part in *parts {
            assert!(error.contains(part), "{args:?}: no {part:?} in\n{error}");
        }
    }
}

#[test]
fn wrong_commands_and_options_are_refused() {
    check_rejections(&[
        (
            &["reply", DDP],
            &["'reply'", "similar subcommand exists: 'replay'"],
        ),
        (
            &["convert", "nvprof", "x", "-o", "y"],
            &[
                "'nvprof'",
                "neither a file nor a source; the sources are",
                "--list",
            ],
        ),
        (&["replay"], &["<TRACES>...", "--help"]),
        (
            &["replay", DDP, "--machin", "x"],
            &["'--machin'", "'--machine'"],
        ),
        (
            &["generate", "gpt2-xl", "--xp", "2", "--dry-run"],
            &["'--xp'", "'--tp'", "'--pp'", "'--dp'"],
        ),
        (&["convert", "pytorch", DDP], &["--output <PREFIX>"]),
        (
            &[
                "generate",
                "chain",
                "--ranks",
                "1",
                "--nodes",
                "1",
                "-o",
                "/dev/null",
            ],
            &["-o is a device", "try: -o PREFIX"],
        ),
        (&["slice", DDP, "-o", "x"], &["--annotation <NAME>"]),
        (
            &["anonymise", DDP, "-o", "x"],
            &["--key <TEXT>|--key-file <FILE>|--random-key"],
        ),
        (&["replay", DDP, "-q", "-v"], &["--quiet", "--verbose"]),
        (&["completions", "tcsh"], &["'tcsh'", "bash", "zsh"]),
    ]);
}

/// If a word is another tool's name for an option, the error names our option. An unknown option is never read as a
/// value.
#[test]
fn option_names_of_other_tools_are_refused_with_our_names() {
    let collective = ["generate", "collective", "all-reduce", "--size", "1GB"];
    for (given, meant) in [
        ("--npus=8", Some("'--ranks'")),
        ("--world-size=8", Some("'--ranks'")),
        ("--rank=8", Some("'--ranks'")),
        ("--cluster=dgx-h100", Some("'--machine'")),
        ("--json", Some("'--format'")),
        ("--zzzz", None),
    ] {
        let output = run_chakram(&[&collective[..], &[given]].concat());
        let error = String::from_utf8(output.stderr).expect("errors are text");
        assert_eq!(output.status.code(), Some(2), "{given}: {error}");
        assert!(
            meant.is_none_or(|meant| error.contains(meant)),
            "{given}: {error}"
        );
        assert!(
            !error.contains("to pass") && error.contains("--help"),
            "{given}: {error}"
        );
    }
}

#[test]
fn wrong_option_values_are_refused() {
    check_rejections(&[
        (
            &["generate", "gpt3-1.3b", "--tokens", "0", "--dry-run"],
            &["--tokens", "0 is not in 1..=1000000000000"],
        ),
        (
            &["replay", DDP, "--compute", "fast"],
            &[
                "'fast'",
                "--compute",
                "scaled:F, curves, roofline or loopnest:ACCELERATOR",
            ],
        ),
        (
            &["replay", DDP, "--compute", "scaled:-1"],
            &["`-1`", "scaled:0.5"],
        ),
        (
            &["replay", DDP, "--comm", "modell"],
            &["'modell'", "captured", "'model'"],
        ),
        (
            &["replay", DDP, "--delay", "0=10"],
            &["`10`", "the unit is missing", "500 ns"],
        ),
        (
            &["replay", DDP, "--delay", "0:10ms"],
            &["'0:10ms'", "RANK=TIME", "3=10ms"],
        ),
        (
            &["replay", DDP, "--delay", "5=10ms"],
            &["--delay 5", "no trace"],
        ),
        (&["replay", DDP, "--map", "0=99"], &["`0=99`", "0-3,8-11"]),
        (
            &["replay", DDP, "--format", "yaml"],
            &["'yaml'", "text, json, csv"],
        ),
        (
            &["replay", DDP, "--format", "json", "--table", "npus"],
            &["--table", "--format csv"],
        ),
        (&["diff", DDP, DDP, "--threshold", "1"], &["'1'", "1%"]),
        (
            &["diff", DDP, DDP, "--fail-on", "speed"],
            &["'speed'", "structure, time, bytes"],
        ),
        (
            &["inspect", DDP, "--type", "foo"],
            &["`foo`", "compute, load"],
        ),
        (&["inspect", DDP, "--rank", "9"], &["--rank 9", "2 files"]),
        (
            &["inspect", DDP, "--node", "999999"],
            &["--node 999999", "try: --rank 0"],
        ),
        (
            &[
                "generate",
                "collective",
                "allreduce",
                "--size",
                "1GB",
                "--ranks",
                "8",
            ],
            &["'allreduce'", "'all-reduce'"],
        ),
        (
            &[
                "generate",
                "collective",
                "all-reduce",
                "--size",
                "1",
                "--ranks",
                "8",
            ],
            &["`1`", "the unit is missing", "64 MiB"],
        ),
        (
            &[
                "generate",
                "collective",
                "all-reduce",
                "--size",
                "1GB",
                "--ranks",
                "0",
                "-o",
                "x",
            ],
            &["`ranks` is 0", "1 or more"],
        ),
    ]);
}

#[test]
fn wrong_files_and_folders_are_refused() {
    check_rejections(&[
        (
            &["replay", "nosuch"],
            &["nosuch", "PREFIX.RANK.et", "try: give a folder"],
        ),
        (
            &["replay", "traces"],
            &[
                "traces: the folder has no traces, but ",
                "try: one of the subfolders, such as traces/",
            ],
        ),
        (
            &["replay", "README.md"],
            &[
                "README.md",
                "the name does not have the form `PREFIX.RANK.et`",
            ],
        ),
        // The file exists, but with another ending or spelling.
        (
            &["replay", "traces/ddp-resnet18/job.0.et"],
            &["no such file", "try: traces/ddp-resnet18/job.0.et.zst"],
        ),
        (
            &["replay", "traces/dpd-resnet18"],
            &["no such file", "try: traces/ddp-resnet18"],
        ),
        (
            &["inspect", "traces/ddp-resnet18/jbo"],
            &["try: traces/ddp-resnet18/job"],
        ),
        (&["validate", "nosuch"], &["nosuch", "PREFIX.RANK.et"]),
        (&["diff", DDP, "nosuch"], &["nosuch", "PREFIX.RANK.et"]),
        (
            &["convert", "pytorch", "nosuch", "-o", "x"],
            &["nosuch", "cannot open"],
        ),
        (
            &["replay", DDP, "-o", "/nosuch/dir/report.txt"],
            &[
                "/nosuch/dir/report.txt",
                "the folder /nosuch does not exist",
                "mkdir -p /nosuch/dir",
            ],
        ),
        (
            &[
                "generate",
                "chain",
                "--ranks",
                "1",
                "--nodes",
                "3",
                "-o",
                "/nosuch/dir/x",
            ],
            &["the folder /nosuch does not exist", "mkdir -p /nosuch/dir"],
        ),
        (
            &["replay", "-", "-m", "dgx-h100"],
            &["/dev/stdin", "the file is empty"],
        ),
        (
            &[
                "generate", "chain", "--ranks", "1", "--nodes", "3", "-o", "-",
            ],
            &["-o - is standard output", "several files", "-o PREFIX"],
        ),
    ]);
}

#[test]
fn wrong_machines_and_models_are_refused() {
    check_rejections(&[
        (
            &["replay", DDP, "--machine", "dgx-h10"],
            &[
                "\"dgx-h10\"",
                "did you mean `dgx-h100`?",
                "chakram machine list",
            ],
        ),
        (
            &["replay", DDP, "--machine", "h100"],
            &["did you mean `dgx-h100`?"],
        ),
        (
            &["replay", DDP, "--machine", "dgx-h100x"],
            &["did you mean `dgx-h100`?"],
        ),
        (
            &["replay", DDP, "--machine", "h100x4"],
            &["did you mean `dgx-h100`?"],
        ),
        (
            &["replay", DDP, "--machine", "dgx-h100x0"],
            &["dimension[1].size", "the number 0", "from 1"],
        ),
        (
            &["replay", DDP, "--machine", "nosuch.toml"],
            &["cannot read machine file nosuch.toml", "No such file"],
        ),
        (
            &["machine", "show", "nosuch"],
            &[
                "\"nosuch\"",
                "try: a preset, which `chakram machine list` names",
            ],
        ),
        (
            &["model", "show", "gpt5"],
            &["\"gpt5\"", "chakram model list"],
        ),
        (&["generate", "llama3-70B"], &["did you mean `llama3-70b`?"]),
        (
            &["generate", "llama-3-70b"],
            &["did you mean `llama3-70b`?"],
        ),
        (
            &["generate", "capture"],
            &["\"capture\"", "chakram model list"],
        ),
        (
            &["generate", "llama3-70b"],
            &["--dry-run", "--machine MACHINE", "-o PREFIX"],
        ),
    ]);
}

#[test]
fn accelerators_chips_and_served_models_without_needed_values_are_refused() {
    check_rejections(&[
        (
            &["loopnest", "gemmini-16"],
            &["found no layer", "try: --product 512x512x512, or --layer"],
        ),
        (
            &["loopnest", "gemmini-16", "--product", "0x5x5"],
            &["sizes from 1 on"],
        ),
        (
            &["loopnest", "gemmini-16,scratchpad=1B", "--product", "5x5x5"],
            &["expected a size from 64 B on"],
        ),
        (
            &["schedule", "--topology", "ring:4"],
            &["found no layers", "try: --decoders 2", "SCHEDULE"],
        ),
        (
            &[
                "serve",
                "llama3-8b",
                "--tensor",
                "2",
                "--engine",
                "tensor=4",
            ],
            &["--engine tensor: --tensor gives this key too"],
        ),
        (
            &["serve", "llama3-8b", "--engine", "model=llama3-70b"],
            &["the model is llama3-8b", "try: chakram serve llama3-70b"],
        ),
        (
            &["serve", "llama3-8b", "--users", "4", "--find-capacity"],
            &[
                "--users and --arrivals have none",
                "try: --find-capacity without them",
            ],
        ),
    ]);
}

#[test]
fn mismatched_plans_and_jobs_are_refused() {
    let plan =
        |more: &'static [&'static str]| [&["generate", "llama3-70b", "--dry-run"], more].concat();
    for (args, parts) in [
        (
            plan(&["--tensor", "3", "--batch", "8"]),
            &["`tensor` is 3", "divisor of the 64 heads"][..],
        ),
        (
            plan(&["--pipeline", "7", "--batch", "8"]),
            &["`pipeline` is 7", "divisor of the 80 blocks"],
        ),
        (
            plan(&["--data", "3", "--batch", "8"]),
            &["`batch` is 8", "multiple of data x --micro-batch"],
        ),
        (plan(&["--batch", "0"]), &["`batch` is 0", "1 or more"]),
        (plan(&["--zero", "4"]), &["'4'", "0, 1, 2, 3"]),
    ] {
        let output = run_chakram(&args);
        let error = String::from_utf8(output.stderr).expect("errors are text");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{args:?}: {error}"
        );
    }
    check_rejections(&[
        (
            &[
                "generate",
                "collective",
                "all-reduce",
                "--size",
                "1GB",
                "--ranks",
                "512",
                "-m",
                "dgx-h100",
            ],
            &[
                "512 ranks",
                "8 NPUs",
                "try: take a machine with at least 512",
            ],
        ),
        (
            &["scale", DDP, "--grid", "dp=3", "--to", "dp=8", "-o", "x"],
            &["--grid dp=3", "ranks 0, 1", "try: a --grid"],
        ),
        (
            &["scale", DDP, "--grid", "dp=2", "--to", "tp=8", "-o", "x"],
            &["no `tp`", "expected one of dp"],
        ),
        (
            &["slice", DDP, "--annotation", "Nope", "-o", "x"],
            &["`Nope`", "try: ProfilerStep#2"],
        ),
        (
            &["diff", "-", "-"],
            &["standard input can be only one", "try: A and -"],
        ),
    ]);
}

/// A machine and a model may come from standard input, and the file name `-` sends a report to standard output.
#[test]
fn a_dash_is_standard_input_or_output() {
    let show = run_chakram(&["machine", "show", "dgx-h100"]);
    let path = std::env::temp_dir().join(format!("chakram-machine-{}.toml", std::process::id()));
    std::fs::write(&path, &show.stdout).expect("there is room");
    let replay = |machine: &str, input: Stdio| {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_chakram"));
        let output = program
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["replay", DDP, "-m", machine, "-o", "-"])
            .stdin(input)
            .output()
            .expect("the program was built");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let file = std::fs::File::open(&path).expect("it was written");
    assert_eq!(replay("-", file.into()), replay("dgx-h100", Stdio::null()));
    std::fs::remove_file(path).expect("it was written");
}

/// `-q` suppresses notes, and `-v` prints the phases of a run, but only on standard error.
#[test]
fn verbosity_changes_standard_error_alone() {
    let run = |more: &[&str]| {
        let output = run_chakram(&[&["replay", "traces/data-parallel-8"], more].concat());
        assert!(output.status.success());
        (
            output.stdout,
            String::from_utf8(output.stderr).expect("it is text"),
        )
    };
    let (plain, nothing) = run(&[]);
    assert_eq!(nothing, "");
    assert_eq!(run(&["-q"]), (plain.clone(), String::new()));
    let (same, said) = run(&["-v"]);
    assert_eq!(same, plain);
    assert!(
        said.contains("read 8 traces in ") && said.contains("replayed 2,688 nodes in "),
        "{said}"
    );
}

/// In a manual page, a text follows the head of each option, after `.TP`, and has the same words as `--help`.
fn check_manual_pages_have_help_texts(pages: &Path) {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (mut commands, mut options) = (0, 0);
    for entry in std::fs::read_dir(pages).expect("it was written") {
        let path = entry.expect("it can be listed").path();
        let page = std::fs::read_to_string(&path).expect("it was written");
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .expect("UTF-8");
        assert!(
            !page.contains("help(1)"),
            "{name} lists a page that does not exist"
        );
        // In the synopsis, the words of a command such as `chakram archive add` include subcommand names.
        let synopsis = page.lines().find(|line| line.starts_with("\\fBchakram"));
        let command = synopsis.and_then(|line| line[3..].split("\\fR").next());
        let mut words_of_command: Vec<_> = command
            .expect(name)
            .replace("\\-", "-")
            .split(' ')
            .skip(1)
            .map(str::to_owned)
            .collect();
        words_of_command.push("--help".to_owned());
        let given: Vec<_> = words_of_command.iter().map(String::as_str).collect();
        let help = words(&String::from_utf8_lossy(&run_chakram(&given).stdout));
        let lines: Vec<_> = page.lines().collect();
        for at in 0..lines.len() {
            let option = lines[at] == ".TP" && lines[at + 1].starts_with("\\fB\\-");
            if !option || lines[at + 1].contains("help") {
                continue;
            }
            let text = lines[at + 2]
                .replace("\\-", "-")
                .replace("\\*(Aq", "'")
                .replace("\\\\", "\\");
            assert!(
                !text.is_empty() && !text.starts_with('.'),
                "{name}: {}",
                lines[at + 1]
            );
            assert!(help.contains(&words(&text)), "{name}: {text}\n{help}");
            options += 1;
        }
        commands += 1;
    }
    assert!(
        commands > 60 && options > 800,
        "{options} options of {commands} commands"
    );
}

/// Every command has a manual page, and shell completion offers presets and files.
#[test]
fn the_manual_and_completions_know_commands_and_presets() {
    let folder = tempfile::tempdir().expect("there is room");
    let pages = folder.path().join("man1");
    let output = run_chakram(&["man", pages.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(pages.join("chakram-replay.1")).expect("it was written");
    assert!(
        page.contains("efficiency") && page.contains(".TH"),
        "{page}"
    );
    assert!(pages.join("chakram-machine-show.1").exists());
    check_manual_pages_have_help_texts(&pages);
    let script = run_chakram(&["completions", "bash"]);
    assert!(String::from_utf8_lossy(&script.stdout).contains("COMPLETE"));
    let completed = |words: &[&str]| {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_chakram"));
        let output = program
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("COMPLETE", "fish")
            .args([&["--"], words].concat())
            .output();
        String::from_utf8(output.expect("the program was built").stdout).expect("it is text")
    };
    let machines = completed(&["chakram", "replay", "x", "--machine", "dgx-"]);
    assert!(machines.contains("dgx-h100"), "{machines}");
    let files = completed(&["chakram", "replay", "x", "--machine", "traces/ddp"]);
    assert!(files.contains("traces/ddp-resnet18"), "{files}");
    let models = completed(&["chakram", "generate", "llama3-"]);
    assert!(models.contains("llama3-8b"), "{models}");
}

/// Returns the commands on the page of messages, each with the output shown there.
fn parse_shown_commands(page: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut in_block = false;
    for line in page.lines() {
        match line {
            "```text" | "```" => in_block = line != "```",
            _ if !in_block => {}
            _ => match (line.strip_prefix("$ "), found.last_mut()) {
                (Some(command), _) => found.push((command.to_owned(), String::new())),
                (None, Some((_, said))) => *said += &format!("{line}\n"),
                (None, None) => panic!("{line} follows no command"),
            },
        }
    }
    found
}

/// The words that mark a message's advice.
const HELPS: [&str; 8] = [
    "try:",
    "tip:",
    "expected",
    "did you mean",
    "possible values",
    "write for example",
    "--help",
    " one of",
];

/// The book has a table of a hundred wrong inputs and the errors for them, each of which gives advice.
#[test]
fn the_book_shows_what_is_said() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("here");
    std::fs::create_dir(&folder).unwrap();
    for name in ["traces", "src", "README.md"] {
        std::os::unix::fs::symlink(root.join(name), folder.join(name)).unwrap();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_chakram")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let file = root.join("docs/reference/messages.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (mut now, mut inputs, mut faults) = (page.clone(), 0, Vec::new());
    let mut from = 0;
    for (command, shown) in parse_shown_commands(&page) {
        let output = std::process::Command::new("sh")
            .args(["-c", &command])
            .current_dir(&folder)
            .env("PATH", &path)
            .env("COLUMNS", "100")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let [out, error] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8(bytes.clone()).unwrap());
        let said = format!("{out}{error}");
        let said: String = said
            .lines()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect();
        let at = from + now[from..].find(&format!("$ {command}\n")).unwrap() + command.len() + 3;
        now.replace_range(at..at + shown.len(), &said);
        from = at + said.len();
        if !command.starts_with("chakram") {
            assert!(output.status.success(), "{command}: {said}");
            continue;
        }
        inputs += 1;
        // A check prints its findings to standard output.
        let is_check = command.starts_with("chakram machine check");
        let is_error = is_check || out.is_empty() && error.starts_with("error: ");
        let code = output.status.code();
        if !is_error
            || !matches!(code, Some(2 | 3))
            || !HELPS.iter().any(|word| said.contains(word))
        {
            faults.push(format!("{code:?} {command}\n{said}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(inputs >= 100, "{inputs} wrong inputs");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &now).unwrap();
        return;
    }
    assert!(
        now == page,
        "docs/reference/messages.md: BLESS=1 writes what is said"
    );
}
