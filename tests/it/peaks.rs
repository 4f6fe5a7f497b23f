//! Tests arithmetic in a number format without a peak on the machine: an error that names the format, unless the
//! duration is known from another source.

use crate::commands::{run_chakram, run_for_exit_code};
use crate::physics::lines::build_node;
use crate::physics::rig::build_job_from_rank_nodes;
use chakram::engine::{CompiledReplay, KernelDurationSource, ReplayOptions, RooflinePeakFraction};
use chakram::generate::{CheckedWorkloadPattern, ModelAndParallelismPlan, ParallelismPlan};
use chakram::machine::Machine;
use chakram::trace::{Dtype, Op};
use chakram::units::Span;
use chakram::workload::{NodeKind, Workload};

/// A kernel, with recorded ns, FLOPs, bytes and format.
type RecordedKernel = (u64, u64, u64, Option<Dtype>);

/// Returns a job in which each rank runs these kernels one after another.
fn build_kernel_job(ranks: &[&[RecordedKernel]]) -> Workload {
    let ranks = ranks.iter().map(|kernels| {
        let nodes = (1..).zip(*kernels).map(|(id, &(ns, flops, bytes, dtype))| {
            let op = Op::Compute {
                flops,
                bytes,
                dtype,
            };
            let after: Vec<u64> = (1..id).rev().take(1).collect();
            build_node(op).lasts(ns).after(&after)
        });
        nodes.collect()
    });
    build_job_from_rank_nodes(&ranks.collect::<Vec<_>>(), &[])
}

fn build_roofline_replay_options() -> ReplayOptions {
    ReplayOptions::default_with_changes(|o| {
        o.compute = KernelDurationSource::Roofline(RooflinePeakFraction::default());
    })
}

/// Returns the makespan in picoseconds on a DGX A100, or the error message.
fn replay_makespan(workload: &Workload) -> Result<u64, String> {
    let machine = Machine::load_preset("dgx-a100").unwrap();
    let prepared = CompiledReplay::new(workload, &machine, &build_roofline_replay_options())
        .map_err(|e| e.to_string())?;
    Ok(prepared.run(()).unwrap().0.makespan.0)
}

const FP8: Option<Dtype> = Some(Dtype::Fp8);
const FP4: Option<Dtype> = Some(Dtype::Fp4);

#[test]
fn arithmetic_in_a_format_without_a_peak_is_refused() {
    let ranks: [&[RecordedKernel]; 3] = [
        &[(0, 312, 0, Some(Dtype::Bf16)), (0, 0, 2039, FP8)],
        &[(0, 0, 2039, FP8), (0, 7, 2039, FP8), (0, 7, 0, FP8)],
        &[(0, 7, 0, FP4), (0, 7, 0, FP8)],
    ];
    // The second kernel of rank 1 is the first kernel with FLOPs. With its third kernel and the
    // last kernel of rank 2, there are three such kernels.
    let why = replay_makespan(&build_kernel_job(&ranks)).unwrap_err();
    let expected = "rank 1 node 2 `n2`: the kernel computes in fp8, but class `a100` of machine `dgx-a100` computes in fp64, \
                    fp32, tf32, fp16, bf16, int8; kernels of the job without a time: 3 in fp8, 1 in fp4\n  try: ";
    assert!(why.starts_with(expected), "{why}");
    assert!(
        why.contains("fp8 = \"… TFLOP/s\" in [npu.a100.peak]"),
        "{why}"
    );
}

/// The machine has 312e12 FLOP/s of bf16 and 2039e9 B/s. Bytes of any format take time: 2,039 kB
/// take 1 us. A recorded kernel without another time keeps its 5 us, and a kernel without bytes and
/// duration takes no time. The report counts both.
#[test]
fn kernels_with_bytes_or_a_duration_are_not_refused() {
    let bytes = [(0, 0, 2_039_000, FP8), (0, 0, 2_039_000, None)];
    assert_eq!(replay_makespan(&build_kernel_job(&[&bytes])), Ok(2_000_000));
    let recorded = [(5000, 7, 0, FP8), (0, 0, 0, FP8), (0, 312_000_000, 0, None)];
    let workload = build_kernel_job(&[&recorded]);
    assert_eq!(replay_makespan(&workload), Ok(6_000_000));
    let machine = Machine::load_preset("dgx-a100").unwrap();
    let basis = CompiledReplay::new(&workload, &machine, &build_roofline_replay_options())
        .unwrap()
        .duration_source_counts();
    assert_eq!((basis.priced, basis.fell_back, basis.unknown), (1, 1, 1));
    // As recorded, the format does not matter if most kernels have a recorded duration. A kernel
    // without a duration is still an error.
    let ok = |kernels: &[RecordedKernel]| {
        CompiledReplay::new(
            &build_kernel_job(&[kernels]),
            &machine,
            &ReplayOptions::default(),
        )
        .is_ok()
    };
    assert!(ok(&[(5, 7, 0, FP8)]));
    assert!(ok(&[(5, 7, 0, FP8), (5, 7, 0, FP8), (0, 7, 0, FP8)]));
    assert!(!ok(&[(5, 7, 0, FP8), (0, 7, 0, FP8)]));
}

/// The job is generated in fp8, and the error states the number of such kernels in the job's
/// graphs.
#[test]
fn generated_fp8_job_is_refused_with_its_kernel_count() {
    let mut plan = ParallelismPlan::new();
    (plan.dtype, plan.tensor) = (Dtype::Fp8, 2);
    let model = chakram::model::Model::load_named("gpt2-small").unwrap();
    let workload = CheckedWorkloadPattern::new(ModelAndParallelismPlan { model, plan })
        .unwrap()
        .build_workload()
        .unwrap();
    let mut count = 0;
    for instance in workload.instances() {
        let graph = workload.graph_of(instance);
        let lacks = |&node: &_| {
            let arithmetic = graph.kind(node) == NodeKind::Compute && graph.flops(node) > 0;
            arithmetic && graph.dtype(node) == FP8 && graph.recorded_duration(node) == Span::ZERO
        };
        count += graph.nodes().filter(lacks).count();
    }
    assert!(count > 100, "{count}");
    let why = replay_makespan(&workload).unwrap_err();
    assert!(
        why.contains(&format!(
            "kernels of the job without a time: {count} in fp8\n"
        )),
        "{why}"
    );
}

const FP8_JOB: [&str; 6] = ["generate", "gpt2-small", "--tensor", "2", "--dtype", "fp8"];

#[test]
fn program_refuses_format_without_peak_unless_machine_file_adds_it() {
    let on = |machine: &str| -> Vec<String> {
        let args = FP8_JOB
            .iter()
            .chain(&["--machine"])
            .map(|s| (*s).to_owned());
        args.chain([machine.to_owned()]).collect()
    };
    let run = |machine: &str| {
        let args = on(machine);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = run_chakram(&args);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (status, error) = run("dgx-a100");
    assert_eq!(status, Some(2), "{error}");
    assert!(
        error.contains("computes in fp8, but class `a100` of machine `dgx-a100`"),
        "{error}"
    );
    assert_eq!(run("dgx-h100").0, Some(0));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a100.toml");
    let text = String::from_utf8(run_chakram(&["machine", "show", "dgx-a100"]).stdout).unwrap();
    let text = text.replace("\nint8 =", "\nfp8 = \"312 TFLOP/s\"\nint8 =");
    std::fs::write(&file, text).unwrap();
    assert_eq!(run(file.to_str().unwrap()), (Some(0), String::new()));
}

#[test]
fn machine_lacking_format_peak_is_named_among_several() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("job");
    let prefix = prefix.to_str().unwrap();
    assert_eq!(
        run_for_exit_code(&[&FP8_JOB[..], &["-o", prefix]].concat()),
        0
    );
    let path = folder.path().to_str().unwrap();
    let args = [
        "replay",
        path,
        "-m",
        "dgx-h100",
        "-m",
        "dgx-a100",
        "--compute",
        "roofline",
    ];
    let output = run_chakram(&args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("on dgx-a100: rank 0 node "), "{error}");
    assert!(!error.contains("on dgx-h100"), "{error}");
}
