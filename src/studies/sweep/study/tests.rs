//! Tests that valid studies are parsed, and that invalid studies are rejected.

use super::*;
use chakram_base::config::ConfigLiteral;

const HEAD: &str =
    "name = \"s\"\n[base]\nmachine = \"dgx-h100\"\nmodel = \"gpt2-small\"\nplan.batch = 8\n";

fn try_parse_study_after_head(tail: &str) -> Result<Study, String> {
    Study::parse(&format!("{HEAD}{tail}"), "s.toml").map_err(|error| error.to_string())
}

fn format_axis_values(study: &Study, axis: usize) -> Vec<String> {
    let values = study.axes[axis].values.iter();
    values
        .map(|value| ConfigLiteral::List(value.clone()).to_string())
        .collect()
}

#[test]
fn axes_are_lists_ranges_divisors_and_plans() {
    let study = try_parse_study_after_head(
        "[[axis]]\nkey = \"plan.micro-batch\"\nvalues = [1, 2]\n\
         [[axis]]\nkey = \"machine.dimension.nvlink.bandwidth\"\nfrom = \"100 GB/s\"\nto = \"400 GB/s\"\nfactor = 2\n\
         [[axis]]\nkey = \"efficiency\"\nfrom = 0.5\nto = 0.7\nstep = 0.1\n\
         [[axis]]\nkey = \"plan.steps\"\ndivisors = 6\n\
         [[axis]]\nplans = 4\n",
    )
    .unwrap();
    assert_eq!(study.axes[0].name, "plan.micro_batch");
    assert_eq!(
        format_axis_values(&study, 1),
        ["100 GB/s", "200 GB/s", "400 GB/s"]
    );
    assert_eq!(format_axis_values(&study, 2), ["0.5", "0.6", "0.7"]);
    assert_eq!(format_axis_values(&study, 3), ["1", "2", "3", "6"]);
    assert_eq!(
        format_axis_values(&study, 4),
        ["1,1,4", "1,2,2", "1,4,1", "2,1,2", "2,2,1", "4,1,1"]
    );
    assert_eq!(study.point_count(), Some(2 * 3 * 3 * 4 * 6));
    // The last axis varies fastest.
    let point = study.layer_settings_at_index(&study.layers[0], 7);
    assert_eq!(point["plan.data"], ConfigLiteral::Whole(2));
    assert_eq!(point["plan.steps"], ConfigLiteral::Whole(2));
    assert_eq!(
        study.merge_with_base_settings(&point)["plan.batch"],
        ConfigLiteral::Whole(8)
    );
}

/// Checks that each error about a study states the key, the line, the value that was found, and a similar name.
#[test]
fn wrong_studies_are_refused_with_key_and_line() {
    let axis = "[[axis]]\nkey = \"plan.tensor\"\nvalues = [1, 2]\n";
    for (tail, expected) in [
        (
            "[[axis]]\nkey = \"plan.tensr\"\nvalues = [1]\n",
            "s.toml:7: key `axis[0].key`: found the key \"plan.tensr\", expected one of machine, model, stack, tokens, trace, compute, recorded_on, efficiency, host, launch, collectives, comm, network, bandwidth, latency, map, fill_domains, stepwise, aggregate, lower_bound, custom, set, kernel, collective, slow, jitter, fail, no_verify, groups, dependencies, missing_ranks, ranks, without, step, delays, edits, power.busy, power.idle, price.npu, total_tokens, plan.OPTION, machine.PATH or model.PATH; did you mean `plan.tensor`?",
        ),
        (
            "[[axis]]\nkey = \"plan.tensor\"\nvalue = [1]\n",
            "s.toml:8: key `axis[0].value`: found an unknown key, expected one of name, key, keys, values, from, to, step, factor, divisors, plans; did you mean `values`?",
        ),
        (
            "[[axis]]\nkey = \"plan.batch\"\nvalues = [1]\n",
            "s.toml:6: key `axis[0]`: found plan.batch, which [base] sets to 8, expected each key in one place",
        ),
        (
            "[[axis]]\nkeys = [\"plan.data\", \"plan.tensor\"]\nvalues = [[1, 2], 3]\n",
            "s.toml:8: key `axis[0].values[1]`: found this value, expected a list of 2 values, one for each key",
        ),
        (
            "[[axis]]\nkey = \"efficiency\"\nfrom = 1\nto = 0.5\nstep = 0.1\n",
            "s.toml:9: key `axis[0].to`: found 0.5, expected at least 1, the first value",
        ),
        (
            "[[axis]]\nkey = \"efficiency\"\nfrom = 1\nto = \"2 GB\"\nstep = 0.1\n",
            "s.toml:9: key `axis[0].to`: found the unit \"GB\", expected \"\", as `from` has",
        ),
        (
            "[[axis]]\nplans = 8\nkey = \"plan.data\"\n",
            "s.toml:8: key `axis[0].key`: found `key` beside plans, expected only plans, name",
        ),
    ] {
        assert_eq!(try_parse_study_after_head(tail).unwrap_err(), expected);
    }
    for (tail, expected) in [
        (
            "[[layer]]\naxes = [\"plan.tenso\"]\n",
            "expected one of plan.tensor; did you mean `plan.tensor`?",
        ),
        (
            "[[layer]]\naxes = [\"plan.tensor\"]\nstrategy = \"rndom\"\n",
            "did you mean `random`?",
        ),
        (
            "[[layer]]\naxes = [\"plan.tensor\"]\nstrategy = \"random\"\n",
            "key `layer[0].draws`: found nothing, expected the number of points to draw",
        ),
        (
            "[[layer]]\naxes = [\"plan.tensor\"]\nstrategy = \"grid\"\ndraws = 3\n",
            "expected none with strategy = \"grid\"; or \"random\"",
        ),
        ("[limits]\ncost = 3\n", "found cost without price.npu"),
        ("[limits]\nnpus = 0\n", "expected a whole number from 1 to"),
        ("[limits]\nnpu = 2\n", "did you mean `npus`?"),
    ] {
        let error = try_parse_study_after_head(&format!("{axis}{tail}")).unwrap_err();
        assert!(
            error.starts_with("s.toml:") && error.contains(expected),
            "{error}"
        );
    }
    let root = |head: &str| Study::parse(head, "s.toml").unwrap_err().to_string();
    let energy = root(&format!("objective = \"energy\"\n{HEAD}{axis}"));
    assert!(
        energy.contains("s.toml:1: key `objective`: found energy without power.busy"),
        "{energy}"
    );
    let mapped =
        format!("{HEAD}compute = \"loopnest:gemmini-16\"\npower.busy = 1\npower.idle = 1\n{axis}");
    let mapped = root(&mapped);
    assert!(mapped.contains("expected only power.idle"), "{mapped}");
    let rounds = root(&format!("rounds = 3\n{HEAD}{axis}"));
    assert!(
        rounds.contains("s.toml:1: key `rounds`: found several rounds of one layer"),
        "{rounds}"
    );
    let limits =
        try_parse_study_after_head("[limits]\nnpus = 4\n[[axis]]\nplans = 8\n").unwrap_err();
    assert!(
        limits.contains(
            "found npus = 4, and an axis whose plans all have 8 NPUs, expected 8 or more"
        ),
        "{limits}"
    );
    let bound = root(&format!(
        "objective = \"memory\"\nstrategy = \"branch-and-bound\"\n{HEAD}{axis}"
    ));
    assert!(
        bound.contains("s.toml:2: key `strategy`: found branch-and-bound for memory"),
        "{bound}"
    );
    let both = root(&format!("{HEAD}trace = \"t\"\n{axis}"));
    assert!(both.contains("found a model and a trace"), "{both}");
}
