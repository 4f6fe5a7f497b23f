//! Tests inputs of the corpus on which the program was once wrong, or stricter than the original.

use super::product::{self, ProgramExitCodeAndFinishTimes};
use crate::corpus::corpus_path_or_count_skip;
use std::path::{Path, PathBuf};

/// Returns a folder with the inputs. Without a corpus, counts the test as skipped.
fn find_repro_folder(name: &str) -> Option<PathBuf> {
    corpus_path_or_count_skip(format!("astra-sim/repro/{name}"))
}

/// If members of a ring have issued different numbers of collectives, they use different queues, one forward and one
/// backward. So no member finishes, nor does it in the original. Rank 4 has one kernel of 3 us.
#[test]
fn ring_members_in_opposite_directions_deadlock_as_in_astra_sim() {
    for name in ["queues-panic", "queues-panicb"] {
        let Some(folder) = find_repro_folder(name) else {
            return;
        };
        let args = [
            "unaware",
            "--workload-configuration=w",
            "--system-configuration=s.json",
            "--network-configuration=n.yml",
            "--remote-memory-configuration=m.json",
            "--comm-group-configuration=cg.json",
            "--num-queues-per-dim=2",
        ];
        let args = args.map(str::to_owned);
        for more in [&[][..], &["--stepwise"], &["--rendezvous-protocol=true"]] {
            let ran = product::run_chakram_astra_sim(&folder, &args, more);
            assert_eq!(ran.code, Some(1), "{name}: {ran:?}");
            let ends: Vec<_> = ran.finish.into_iter().collect();
            assert_eq!(ends, [(4, (3000, 0))], "{name}");
            assert!(
                ran.error.contains("messages on a different route: rank "),
                "{}",
                ran.error
            );
        }
        // With one queue, both collectives run in the same direction.
        let ran = product::run_chakram_astra_sim(&folder, &args[..6], &[]);
        assert_eq!((ran.code, ran.finish.len()), (Some(0), 5), "{}", ran.error);
    }
}

/// Runs the original's regression test. Its script removes the first three bracketed fields and the
/// blank after each from every line, and compares the rest line by line.
#[cfg(unix)]
#[test]
fn the_regression_test_of_the_original_passes() {
    let Some(folder) = find_repro_folder("regression") else {
        return;
    };
    let work = tempfile::tempdir().expect("there is room");
    let link = work.path().join("AstraSim_Analytical_Congestion_Aware");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_chakram"), &link).expect("there is room");
    let at = |flag: &str, name: &str| format!("--{flag}={}", folder.join(name).display());
    let output = std::process::Command::new(&link)
        .current_dir(work.path())
        .args([
            at("workload-configuration", "chakra_trace"),
            at("system-configuration", "system_cfg.json"),
            at("network-configuration", "network_cfg.yml"),
            at("remote-memory-configuration", "remote_memory_cfg.json"),
        ])
        .output()
        .expect("the link leads to the program");
    assert_eq!(output.status.code(), Some(0));
    let stripped = |line: &str| {
        let mut rest = line;
        for _ in 0..3 {
            let inside = rest.strip_prefix('[').expect("a field in brackets");
            let (_, behind) = inside.split_once("] ").expect("and a blank behind it");
            rest = behind;
        }
        rest.to_owned()
    };
    let said = String::from_utf8(output.stdout).expect("it is text");
    let said: Vec<String> = said.lines().map(stripped).collect();
    let expected = std::fs::read_to_string(folder.join("reference-stdout.txt"));
    let expected = expected.expect("it is there");
    assert_eq!(said, expected.lines().collect::<Vec<_>>());
}

fn run_job_made_by_stage_tool(name: &str, folder: &Path) -> ProgramExitCodeAndFinishTimes {
    let work = tempfile::tempdir().expect("there is room");
    let put = |name: &str, text: &str| {
        std::fs::write(work.path().join(name), text).expect("there is room");
    };
    put("m.json", "{\"memory-type\": \"NO_MEMORY_EXPANSION\"}");
    put(
        "n.yml",
        "topology: [Switch]\nnpus_count: [8]\nbandwidth: [400]\nlatency: [936.25]\n",
    );
    let at = |name: &str| folder.join(name).display().to_string();
    let args = [
        "aware".to_owned(),
        format!("--workload-configuration={}", at(&format!("{name}/w"))),
        format!("--system-configuration={}", at("system-hgx_h100_8gpu.json")),
        "--network-configuration=n.yml".to_owned(),
        "--remote-memory-configuration=m.json".to_owned(),
        format!(
            "--comm-group-configuration={}",
            at(&format!("{name}/w.json"))
        ),
    ];
    let ran = product::run_chakram_astra_sim(work.path(), &args, &[]);
    assert!(
        work.path()
            .join("mem_trace/local_memory_trace.7.json")
            .exists(),
        "{}",
        ran.error
    );
    ran
}

/// STAGE writes the bytes of tensors as `1048576.0`, and ASTRA-sim's own H100 example tracks their memory.
#[test]
fn jobs_of_stage_run_on_the_h100_that_comes_with_astra_sim() {
    let Some(folder) = find_repro_folder("") else {
        return;
    };
    for name in ["stage-dp4tp2", "stage-dp2tp2pp2"] {
        let ran = run_job_made_by_stage_tool(name, &folder);
        assert_eq!(
            (ran.code, ran.finish.len()),
            (Some(0), 8),
            "{name}: {}",
            ran.error
        );
    }
}
