//! Tests options and files that `chakram serve MODEL` rejects, and settings that it calls ineffective.

use crate::commands::{run_chakram, run_for_output};

const MODEL: [&str; 4] = ["serve", "llama3-8b", "--machine", "dgx-h100"];
const LOAD: [&str; 6] = ["--rate", "4", "--input", "100", "--output", "10"];

fn run_refused_for_error_text(words: &[&str]) -> String {
    let output = run_chakram(words);
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_options_are_refused_by_name() {
    for (options, expected) in [
        (
            &["--engine", "kv=fp8", "--engine", "kv=bf16"][..],
            "--engine kv: found two values",
        ),
        (
            &["--engine", "blocks=1"],
            "engine.blocks: found blocks for 16 tokens",
        ),
        (
            &["--engine", "expert_kernels=plain"],
            "engine.expert_kernels: found this key",
        ),
        (
            &["--engine", "expert_parallel=true"],
            "llama3-8b has no experts",
        ),
        (&["--slo", "ttft=0ms"], "ttft: found 0"),
        (&["--plan"], "the requests have no limits"),
        (
            &["--machine", "dgx-a100"],
            "a language model is served on one machine",
        ),
        (
            &["--output", "0"],
            "--output 0: expected a number of tokens",
        ),
    ] {
        let error = run_refused_for_error_text(&[&MODEL[..], &LOAD[..], options].concat());
        assert!(error.contains(expected), "{options:?}: {error}");
    }
    let capacity = ["--input", "100", "--output", "10", "--find-capacity"];
    let error = run_refused_for_error_text(&[&MODEL[..], &capacity].concat());
    assert!(error.contains("the requests have no limits"), "{error}");
    let limit = ["--slo", "ttft=500ms"];
    for format in [&["--format", "json"][..], &[]] {
        let page = ["--html", "never-written.html"];
        let error =
            run_refused_for_error_text(&[&MODEL[..], &capacity, &limit, &page, format].concat());
        assert!(error.contains("--html shows one run"), "{error}");
    }
    let table = ["--format", "csv", "--table", "models"];
    let error = run_refused_for_error_text(&[&MODEL[..], &capacity, &limit, &table].concat());
    assert!(error.contains("--table shows one run"), "{error}");
    let help = run_for_output(&["serve", "--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        help.contains("several are compared, except with a language model"),
        "{help}"
    );
    let misspelt = run_refused_for_error_text(
        &[&["serve", "llama3-8", "--machine", "dgx-h100"], &LOAD[..]].concat(),
    );
    assert!(misspelt.contains("did you mean `llama3-8b`"), "{misspelt}");
}

#[test]
fn files_without_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let heads = "arrival_s,input_toks,output_toks,tokenizer\n";
    for (name, text, filter, expected) in [
        (
            "empty.csv",
            heads,
            "",
            "found no request, expected at least one",
        ),
        (
            "other.csv",
            "arrival_s,input_toks,output_toks,tokenizer\n0,5,5,a\n",
            ":tokenizer=b",
            "found no request with \"b\" in column `tokenizer`",
        ),
        (
            "sharegpt.json",
            "[{\"conversations\": [{\"from\": \"human\", \"value\": \"hello\"}]}]",
            "",
            "the file of requests is JSON, expected CSV",
        ),
        (
            "prompt.csv",
            "arrival_s,input_toks,output_toks\n0,100,10\n1,0,10\n",
            "",
            "prompt.csv:3: found 0 tokens in the prompt, expected at least 1 token",
        ),
        (
            "answer.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,0\n",
            "",
            "answer.csv:2: found 0 tokens in the answer, expected at least 1 token",
        ),
        (
            "answer.jsonl",
            "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 0}\n",
            "",
            "answer.jsonl:1: found 0 tokens in the answer, expected at least 1 token",
        ),
    ] {
        let path = folder.path().join(name).display().to_string();
        std::fs::write(&path, text).unwrap();
        let error =
            run_refused_for_error_text(&[&MODEL[..], &["--arrivals", &(path + filter)]].concat());
        assert!(error.contains(expected), "{name}: {error}");
    }
}

/// In BurstGPT's traces, an answer of 0 tokens means that the request failed.
#[test]
fn failed_requests_of_traces_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("burst.csv").display().to_string();
    let text = "Timestamp,Model,Request tokens,Response tokens\n5,a,100,10\n6,a,100,0\n7,a,100,0\n";
    std::fs::write(&path, text).unwrap();
    let report = run_for_output(&[&MODEL[..], &["--arrivals", &path]].concat());
    let report = report.replace("\n    ", " ");
    assert!(
        report.contains("2 requests failed in the trace (answers of 0 tokens)"),
        "{report}"
    );
}

#[test]
fn settings_without_effect_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |policy: &str, priority: u32, more: &str| {
        let path = folder.path().join("priorities.toml").display().to_string();
        let text = format!(
            "name = \"priorities\"\n[engine]\nblocks = 100\npolicy = \"{policy}\"\n[step]\nbase = \"1 ms\"\n[requests]\n\
             arrivals = \"constant\"\nrate = 10\ncount = 20\n[[class]]\nname = \"a\"\ninput = 10\noutput = 5\n\
             priority = {priority}\n[[class]]\nname = \"b\"\ninput = 10\noutput = 5\n{more}"
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let says = |text: String, expected: &str| text.replace("\n    ", " ").contains(expected);
    let without = "priorities have no effect: the policy is fcfs";
    assert!(says(
        run_for_output(&["serve", &file("fcfs", 3, "")]),
        without
    ));
    assert!(!says(
        run_for_output(&["serve", &file("fcfs", 0, "")]),
        without
    ));
    let alike = "the policy priority has no effect: all requests have priority 0";
    assert!(says(
        run_for_output(&["serve", &file("priority", 0, "")]),
        alike
    ));
    assert!(!says(
        run_for_output(&["serve", &file("priority", 3, "")]),
        alike
    ));
    let warmup =
        run_refused_for_error_text(&["serve", &file("fcfs", 0, "[measure]\nwarmup = 20\n")]);
    assert!(
        warmup.contains("measure.warmup = 20 of 20 requests"),
        "{warmup}"
    );
    let counted = file("fcfs", 0, "[measure]\nwarmup = 10\n");
    run_for_output(&["serve", &counted, "--requests", "11"]);
    let error = run_refused_for_error_text(&["serve", &counted, "--requests", "10"]);
    assert!(error.contains("found 10, expected more than 10"), "{error}");
}

/// A run with fewer requests than users says how many users it leaves out.
#[test]
fn users_without_requests_are_counted() {
    let run = |users: &str| {
        let load = [
            "--users",
            users,
            "--requests",
            "4",
            "--input",
            "64",
            "--output",
            "2",
        ];
        let report = run_for_output(&[&MODEL[..], &load].concat());
        report.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let said = "6 of the 10 users never send a request, because the run has only 4 requests";
    assert!(run("10").contains(said));
    assert!(!run("4").contains("never send a request"));
}

/// Reports name keys of engines that change no step, with the reason; the same keys change steps elsewhere.
#[test]
fn keys_of_engines_without_effect_are_named() {
    let users = [
        "--users",
        "2",
        "--requests",
        "4",
        "--input",
        "64",
        "--output",
        "4",
    ];
    let run = |model: &str, machine: &str, tensor: &str, keys: &[&str]| -> (String, String) {
        let base = [
            "serve",
            model,
            "--machine",
            machine,
            "--tensor",
            tensor,
            "--format",
            "json",
        ];
        let keys: Vec<&str> = keys.iter().flat_map(|key| ["--engine", key]).collect();
        let text = run_for_output(&[&base[..], &users, &keys].concat());
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        let report = &found["report"];
        (
            report["warnings"].to_string(),
            report["window_ps"].to_string(),
        )
    };
    let experts = "qwen3-30b-a3b";
    const BLOCKS: [&str; 2] = ["weights=fp8", "weight_scales=block"];
    for (model, machine, tensor, others, key) in [
        (
            "llama3-8b",
            "dgx-h100",
            "1",
            &[][..],
            "all_reduce=tensorrt-llm",
        ),
        ("llama3-8b", "tpu-v5p", "2", &[], "all_reduce=tensorrt-llm"),
        ("llama3-8b", "tpu-v5p", "1", &[], "graphs=none"),
        ("llama3-8b", "dgx-h100", "2", &[], "quantization=separate"),
        (
            "llama3-8b",
            "dgx-h100",
            "1",
            &BLOCKS,
            "quantization=separate",
        ),
        (experts, "dgx-h100", "1", &[], "expert_parallel=true"),
        (
            experts,
            "dgx-h100",
            "1",
            &["data_parallel=8"],
            "expert_parallel=true",
        ),
        (experts, "dgx-a100", "2", &[], "expert_kernels=cutlass"),
    ] {
        let (before, without) = run(model, machine, tensor, others);
        let (warnings, with) = run(model, machine, tensor, &[others, &[key]].concat());
        let said = format!("{} has no effect: ", key.split_once('=').unwrap().0);
        assert!(warnings.contains(&said), "{key}: {warnings}");
        assert!(!before.contains("has no effect"), "{before}");
        assert_eq!(with, without, "{key}");
    }
    for (model, tensor, others, key) in [
        ("llama3-8b", "2", &[][..], "all_reduce=tensorrt-llm"),
        ("llama3-8b", "1", &["weights=fp8"], "quantization=separate"),
        ("qwen3-0.6b", "1", &[], "graphs=none"),
        (experts, "2", &[], "expert_parallel=true"),
        (experts, "1", &[], "expert_kernels=cutlass"),
    ] {
        let without = run(model, "dgx-h100", tensor, others).1;
        let (warnings, with) = run(model, "dgx-h100", tensor, &[others, &[key]].concat());
        assert!(!warnings.contains("has no effect"), "{key}: {warnings}");
        assert_ne!(with, without, "{key}");
    }
}

/// GPT-2 has 1,024 learned positions. A prompt and its answer cannot exceed them, unless a limit is stated for them.
#[test]
fn requests_fit_into_learned_positions() {
    let base = [
        "serve",
        "gpt2-small",
        "--machine",
        "dgx-h100",
        "--users",
        "1",
        "--requests",
        "5",
    ];
    let with = |input: &str, output: &str, more: &[&str]| {
        let load = ["--input", input, "--output", output, "--format", "json"];
        run_chakram(&[&base[..], &load, more].concat())
    };
    for (input, output) in [("5000", "10"), ("1020", "5"), ("10..1020", "5")] {
        let refused = with(input, output, &[]);
        assert_eq!(refused.status.code(), Some(2), "{input} {output}");
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(error.contains("learned positions for 1024"), "{error}");
    }
    let served = |output: std::process::Output| -> serde_json::Value {
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let fits = served(with("1019", "5", &[]));
    assert_eq!(fits["report"]["completed"], 5);
    // With a stated limit, the engine refuses longer prompts. Lengths without a maximum have the positions as limit.
    let stated = served(with("5000", "10", &["--engine", "max_model_len=1024"]));
    assert_eq!(stated["report"]["refused"]["too_long"], 5);
    let open = served(with("lognormal 4000 0.1", "10", &[]));
    assert_eq!(open["report"]["refused"]["too_long"], 5);
    let error = with("100", "10", &["--engine", "max_model_len=2048"]);
    let error = String::from_utf8_lossy(&error.stderr).into_owned();
    let expected = "engine.max_model_len: found 2048, expected at most the 1024 learned positions";
    assert!(error.contains(expected), "{error}");
}

/// Seeds that equal the default or the scenario's seed are named as such, and no seed of a random run is said to be
/// without effect.
#[test]
fn seeds_without_effect_are_named_with_the_right_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.toml").display().to_string();
    let text = "name = \"random\"\nseed = 2\n[engine]\nblocks = 100\n[step]\nbase = \"1 ms\"\n[requests]\n\
        arrivals = \"poisson\"\nrate = 10\ncount = 20\n[[class]]\nname = \"a\"\ninput = 10\noutput = 5\n";
    std::fs::write(&path, text).unwrap();
    let model = [&MODEL[..], &LOAD, &["--requests", "5"]].concat();
    let users = ["--users", "2", "--input", "100", "--output", "10"];
    let users = [&MODEL[..], &users, &["--requests", "5"]].concat();
    let none = "--seed has no effect";
    for (base, seed, expected) in [
        (&model[..], "0", None),
        (&model, "1", Some("1 is the default")),
        (&model, "2", None),
        (&users, "0", Some("this run uses no random numbers")),
        (&["serve", &path], "1", None),
        (
            &["serve", &path],
            "2",
            Some("the scenario states the same value"),
        ),
    ] {
        let report = run_for_output(&[base, &["--seed", seed]].concat());
        let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
        match expected {
            Some(why) => assert!(report.contains(&format!("{none}: {why}")), "{report}"),
            None => assert!(!report.contains(none), "{base:?} {seed}: {report}"),
        }
    }
    for option in [["--requests", "20"], ["--rate", "10"]] {
        let report = run_for_output(&[&["serve", &path], &option[..]].concat());
        let why = format!("{} has no effect: the scenario states", option[0]);
        assert!(report.contains(&why), "{report}");
    }
}

/// At 200 requests/s of 0.5 s each, the first requests are complete only after 100 have arrived. A run of 400 requests
/// would not show that the engine is busy.
#[test]
fn capacity_searches_run_until_requests_are_complete() {
    let options = [
        "--requests",
        "400",
        "--slo",
        "e2e=20s",
        "--find-capacity",
        "--format",
        "json",
    ];
    let load = ["--input", "100", "--output", "100", "--tensor", "1"];
    let text = run_for_output(&[&MODEL[..], &load, &options].concat());
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let of = |key: &str| found["capacity"][key].as_f64().unwrap();
    // Each request takes at least 99 steps of 5 ms.
    assert!(
        of("requests") >= 10.0 * 0.5 * of("rate_per_s") || of("requests") == 1e6,
        "{text}"
    );
    assert!(of("rho") < 1.0, "{text}");
}

/// With --attain 1, all requests of the run must meet the limits. A limit below the time of a lone request has no
/// answer.
#[test]
fn plan_and_capacity_searches_without_an_answer_fail() {
    let load = ["--input", "100", "--output", "10", "--requests", "50"];
    let base = [&MODEL[..], &load, &["--tensor", "1"]].concat();
    for search in [&["--plan", "--rate", "4"][..], &["--find-capacity"]] {
        let words = [&base[..], search].concat();
        run_for_output(&[&words[..], &["--slo", "ttft=10s", "--attain", "1"]].concat());
        let error = run_refused_for_error_text(&[&words[..], &["--slo", "ttft=1us"]].concat());
        assert!(error.contains("keeps the limits"), "{search:?}: {error}");
        assert!(error.contains("try: longer limits"), "{search:?}: {error}");
    }
}

/// A plan for more NPUs than the machine has names a machine that has enough.
#[test]
fn plan_rows_beyond_the_machine_name_a_larger_machine() {
    let load = ["--rate", "300", "--input", "4000", "--output", "1"];
    let more = ["--requests", "50", "--tensor", "1", "--slo", "ttft=2s"];
    let search = ["--attain", "0.5", "--plan", "--format"];
    let words = [&MODEL[..], &load, &more, &search].concat();
    let json = run_for_output(&[&words[..], &["json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    let row = &found["plan"]["rows"][0];
    let npus = row["npus"].as_u64().unwrap();
    assert!(npus > 8, "{json}");
    assert_eq!(row["machine_npus"], 8);
    let larger = format!("dgx-h100x{}", npus.div_ceil(8));
    assert_eq!(row["larger_machine"], larger);
    let text = run_for_output(&[&words[..], &["text"]].concat()).replace("\n            ", " ");
    let expected = format!(
        "dgx-h100 has 8 NPUs (rows with * need more): {npus} NPUs need a larger machine, such as {larger}"
    );
    assert!(text.contains(&expected), "{text}");
    let csv = run_for_output(&[&words[..], &["csv"]].concat());
    assert!(csv.contains(&format!(",{npus},8,{larger},")), "{csv}");
}

/// Each class has its own limit, so no single limit describes all requests.
#[test]
fn report_states_no_common_limit_where_classes_have_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("classes.toml").display().to_string();
    let class = |name: &str, limit: &str| {
        format!("[[class]]\nname = \"{name}\"\ninput = 10\noutput = 5\n{limit}")
    };
    let text = |limit: &str| {
        format!(
            "name = \"limits\"\n[engine]\nblocks = 100\n[step]\nbase = \"1 ms\"\n[requests]\n\
             arrivals = \"constant\"\nrate = 10\ncount = 20\n{}{}[slo]\nttft = \"400 ms\"\n",
            class("a", limit),
            class("b", "")
        )
    };
    std::fs::write(&path, text("ttft = \"1 us\"\n")).unwrap();
    let report = run_for_output(&["serve", &path]);
    assert!(
        report.contains("of the requests are within their limits"),
        "{report}"
    );
    for row in [
        "a: within TTFT 1.000 us",
        "b: within TTFT 400.000 ms",
        "all: within their limits",
    ] {
        assert!(report.contains(row), "{row}: {report}");
    }
    std::fs::write(&path, text("")).unwrap();
    let report = run_for_output(&["serve", &path]);
    assert!(
        report.contains("of the requests are within TTFT 400.000 ms"),
        "{report}"
    );
}

#[test]
fn files_with_too_few_requests_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.csv").display().to_string();
    std::fs::write(&path, "arrival_s,input_toks,output_toks\n0,10,5\n1,10,5\n").unwrap();
    let warnings = |count: &str| {
        let words = ["--arrivals", &path, "--requests", count];
        let json = run_for_output(&[&MODEL[..], &words, &["--format", "json"]].concat());
        let found: serde_json::Value = serde_json::from_str(&json).unwrap();
        let arrivals = found["report"]["arrivals"].as_str().unwrap();
        let expected = format!(", at most {count} of them");
        assert!(arrivals.ends_with(&expected), "{arrivals}");
        found["report"]["warnings"].to_string()
    };
    let short = warnings("5");
    assert!(
        short.contains("two.csv has only 2 requests, fewer than the 5 asked for"),
        "{short}"
    );
    assert!(!warnings("2").contains("asked for"));
}
