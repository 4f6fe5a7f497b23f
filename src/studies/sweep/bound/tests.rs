//! Tests that no bound exceeds the replay time of the same plan.

use super::*;
use crate::sweep::evaluate::{PointEvaluator, PointRefusalOrMeasures};
use crate::sweep::point::{MachineModelStackCaches, WorkSource};
use crate::sweep::setting::Settings;
use crate::sweep::study::Study;
use chakram_base::config::ConfigLiteral;

const STUDY: &str = "name = \"bounds\"\n[base]\nmodel = \"gpt2-small\"\ntokens = 32\n\"model.layers\" = 4\n\
    plan.batch = 16\n\
     compute = \"roofline\"\n[[axis]]\nkey = \"machine\"\nvalues = [\"dgx-a100\", \"conv-4d\", \"tpu-v4\"]\n\
    [[axis]]\nplans = 8\n[[axis]]\nkey = \"plan.micro_batch\"\nvalues = [1, 2]\n";

/// Returns two bounds of a point: the quick bound, and the bound over all micro-batches.
fn lower_bounds(
    study: &Study,
    point: &Settings,
) -> Result<[PointTimeAndMemoryBounds; 2], PointRefusal> {
    let resolved = ResolvedPoint::new(
        &study.merge_with_base_settings(point),
        &MachineModelStackCaches::default(),
    )?;
    let WorkSource::Plan(pattern) = &resolved.work else {
        panic!("it is a plan")
    };
    Ok([
        bound_step_quickly(&resolved, pattern)?.0,
        bound_step_over_all_micro_batches(&resolved, pattern)?.0,
    ])
}

/// Every replay takes at least the bound over all micro-batches, which is at least the quick bound. The test varies
/// plans, schedules, ZeRO stages, networks, and machines with different algorithms.
#[test]
fn no_replay_is_faster_than_its_bounds() {
    let variants: [&[(&str, &str)]; 11] = [
        &[("compute", "curves")],
        &[],
        &[("plan.schedule", "gpipe"), ("network", "links")],
        &[
            ("plan.schedule", "interleaved"),
            ("plan.chunks", "2"),
            ("network", "ports"),
        ],
        &[("plan.sequence_parallel", "true"), ("plan.zero", "1")],
        &[("plan.zero", "3"), ("plan.recompute", "full")],
        &[
            ("plan.zero", "2"),
            ("compute", "roofline"),
            ("efficiency", "0.5"),
        ],
        &[("plan.attention", "unfused"), ("plan.clip", "true")],
        &[("plan.zero", "1"), ("plan.gather_overlap", "true")],
        &[
            ("plan.scatter_gather", "true"),
            ("plan.tensor_overlap", "false"),
        ],
        &[("plan.without", "bubble"), ("plan.order", "pp,tp,dp")],
    ];
    let study = Study::parse(STUDY, "s.toml").unwrap();
    let evaluator = PointEvaluator::new(&study);
    let layer = &study.layers[0];
    let (mut checked, mut near) = (0, 0);
    for (v, variant) in variants.iter().enumerate() {
        for index in 0..study.combination_count_of_layer(layer) {
            // Each variant tests a third of the points; together, the variants test all points.
            if !(index as usize + v).is_multiple_of(3) {
                continue;
            }
            let mut point = study.layer_settings_at_index(layer, index);
            for (key, value) in *variant {
                let number = value.parse::<f64>().map(ConfigLiteral::Number);
                point.insert(
                    (*key).to_owned(),
                    number.unwrap_or(ConfigLiteral::Text((*value).to_owned())),
                );
            }
            let Ok([quick, whole]) = lower_bounds(&study, &point) else {
                continue;
            };
            let PointRefusalOrMeasures::Replayed(measures) =
                evaluator.answer_by_replay(&point, true)
            else {
                continue;
            };
            let shown = crate::sweep::setting::format_settings(&point);
            assert!(
                quick.time_ps <= whole.time_ps,
                "{shown}: {} {}",
                quick.time_ps,
                whole.time_ps
            );
            assert!(
                whole.time_ps <= measures.time_ps,
                "{shown}: {} {}",
                whole.time_ps,
                measures.time_ps
            );
            assert!(quick.memory_bytes <= whole.memory_bytes, "{shown}");
            checked += 1;
            // Count bounds near the replay's time, because a bound far below it would exclude no point.
            near += u32::from(quick.time_ps as f64 > 0.5 * measures.time_ps as f64);
        }
    }
    assert!(checked > 80, "{checked} points have answers");
    assert!(
        near * 2 > checked,
        "{near} of {checked} quick bounds are near"
    );
}

/// On one of the test's machines, links are faster than their dimension's bandwidth. On the other machine, sends
/// complete on delivery. On both machines, no replay is faster than its bounds.
#[test]
fn bounds_hold_with_faster_links_and_sends_completing_on_delivery() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.toml");
    let path = path.to_str().unwrap();
    let preset = chakram_hardware::machine::find_machine_text("dgx-a100")
        .unwrap()
        .text;
    for (more, at_least) in [
        ("[[link]]\nnpus = \"0-7\"\nbandwidth = \"30 TB/s\"\n", 4),
        ("[network]\nsend_completion = \"delivered\"\n", 8),
    ] {
        std::fs::write(path, format!("{preset}\n{more}")).unwrap();
        let machines = "[\"dgx-a100\", \"conv-4d\", \"tpu-v4\"]";
        let study = STUDY.replace(machines, &format!("[\"{path}\"]"));
        let study = Study::parse(&study, "s.toml").unwrap();
        let evaluator = PointEvaluator::new(&study);
        let layer = &study.layers[0];
        let mut checked = 0;
        for index in 0..study.combination_count_of_layer(layer) {
            let point = study.layer_settings_at_index(layer, index);
            let Ok([quick, whole]) = lower_bounds(&study, &point) else {
                continue;
            };
            let PointRefusalOrMeasures::Replayed(measures) =
                evaluator.answer_by_replay(&point, true)
            else {
                continue;
            };
            let shown = crate::sweep::setting::format_settings(&point);
            let (bound, time) = (whole.time_ps, measures.time_ps);
            assert!(
                quick.time_ps <= bound && bound <= time,
                "{more}{shown}: {bound} {time}"
            );
            checked += 1;
        }
        assert!(checked >= at_least, "{checked} points have answers");
    }
}

/// If a stage consists only of kernels, both the bound and the replay's time are the sum of the kernels' durations.
#[test]
fn one_npu_takes_exactly_its_bound() {
    let study = Study::parse(&STUDY.replace("plans = 8", "plans = 1"), "s.toml").unwrap();
    let point = study.layer_settings_at_index(&study.layers[0], 0);
    let [quick, whole] = lower_bounds(&study, &point).unwrap();
    let PointRefusalOrMeasures::Replayed(measures) =
        PointEvaluator::new(&study).answer_by_replay(&point, true)
    else {
        panic!("it fits")
    };
    // In the replay, all kernels form one chain on one lane, so each micro-batch adds the same
    // time.
    assert_eq!(whole.time_ps, measures.time_ps);
    assert_eq!(quick.time_ps, whole.time_ps);
    assert!(!quick.is_whole);
}
