//! Tests plans that do not fit on a tiled machine.

use super::build_plan_arguments;
use crate::files::{Folder, text_from_bytes};

#[test]
fn bad_plans_are_refused_with_the_number_that_does_not_fit() {
    let folder = Folder::new();
    let wafer = folder.run_successfully_for_stdout(&["machine", "show", "wafer-5x4"]);
    let broken = wafer.replace(
        "shape = \"mesh\"",
        "faulty_cores = [[1, 0]]\nshape = \"mesh\"",
    );
    folder.write("broken.toml", broken.as_bytes());
    let refused = |machine: &str, more: &[&str], says: &str| {
        let output = folder.run(&build_plan_arguments(machine, more));
        let error = text_from_bytes(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {error}");
        assert!(error.contains(says), "{more:?}: {error}");
    };
    let wide = |machine, data: &str, says: &str| {
        let plan = [
            "generate",
            "gpt2-small",
            "--data",
            data,
            "--batch",
            data,
            "--place",
            "line",
            "--machine",
            machine,
        ];
        let error = folder.run_refused_for_stderr(&plan);
        assert!(error.contains(says), "{error}");
    };
    wide("wafer-5x4", "656", "is 656; expected at most the 320 cores");
    wide(
        "broken.toml",
        "320",
        "is 320; expected at most the 319 cores of the machine that are not faulty",
    );
    refused(
        "dgx-a100x4",
        &["--place", "line"],
        "expected a machine of tiles",
    );
    refused(
        "wafer-5x4",
        &["--place", "0:0,1:0"],
        "expected 32 of them, one for each rank",
    );
    refused("wafer-5x4", &["--place", "zigzag"], "line, s_shape, spiral");
    refused(
        "wafer-5x4",
        &["--tensor-neighbours", "opposite"],
        "near without an order of tiles",
    );
    refused(
        "wafer-5x4",
        &["--place", "line", "--map", "0-31"],
        "both place ranks",
    );
    refused(
        "wafer-5x4",
        &["--residency", "corrected", "--sram", "0 B"],
        "for example 3 MB",
    );
    // The widest matrix product has 3072 inputs, 768 on each of four members, so it needs (2 x 768 + 1) x 2 B.
    let tight = ["--place", "s_shape", "--residency", "corrected", "--sram"];
    refused(
        "wafer-5x4",
        &[&tight[..], &["3073 B"]].concat(),
        "is 3073 B; expected at least 3074 B for a tile of mlp.down",
    );
    folder.run_successfully_for_stdout(&build_plan_arguments(
        "wafer-5x4",
        &[&tight[..], &["3074 B"]].concat(),
    ));
    let output = folder.run(&["generate", "gpt2-small", "--place", "line", "--dry-run"]);
    assert!(
        text_from_bytes(&output.stderr).contains("a machine, which says which cores there are")
    );
    // Cores named in traces must exist on the machine.
    folder.run_successfully_for_stdout(&build_plan_arguments(
        "wafer-5x4",
        &["--place", "s_shape", "-o", "job"],
    ));
    let output = folder.run(&["replay", "job", "--machine", "broken.toml"]);
    assert!(
        text_from_bytes(&output.stderr).contains("is placed on core (1, 0)"),
        "{}",
        text_from_bytes(&output.stderr)
    );
    let small = wafer.replace("dies = [5, 4]", "dies = [1, 1]");
    let small = small
        .replace("die_bandwidth", "# die_bandwidth")
        .replace("die_latency", "# die_latency");
    folder.write("small.toml", small.as_bytes());
    let output = folder.run(&["replay", "job", "--machine", "small.toml"]);
    assert!(
        text_from_bytes(&output.stderr).contains("has cores from (0, 0) to (3, 3)"),
        "{}",
        text_from_bytes(&output.stderr)
    );
}
