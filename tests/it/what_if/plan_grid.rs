//! Tests laws of transforms over a grid of plans: a transformed job equals the job generated with
//! the target plan, and a transform followed by its inverse changes no byte.

use super::{Jobs, read_trace_files, replay_for_json};
use serde_json::Value;
use std::path::Path;

/// The degrees and the schedule of a job, where each replica has `micro_batches` micro-batches of
/// `micro_batch` samples.
#[derive(Clone, Copy, Debug)]
struct JobDegreesAndSchedule {
    tensor: u32,
    pipeline: u32,
    data: u32,
    zero: u32,
    schedule: &'static str,
    micro_batches: u32,
    micro_batch: u32,
}

impl JobDegreesAndSchedule {
    fn format_generate_options(self) -> String {
        let batch = self.data * self.micro_batches * self.micro_batch;
        format!(
            "--tensor {} --pipeline {} --data {} --zero {} --schedule {} --batch {batch} --micro-batch {}",
            self.tensor, self.pipeline, self.data, self.zero, self.schedule, self.micro_batch
        )
    }

    fn layer_count(self) -> u32 {
        3 * self.pipeline.max(2)
    }

    /// Returns transforms, each with the resulting layers and plan, and `true` if the transform
    /// keeps all kernels.
    fn edits_with_resulting_plans(self) -> Vec<(String, u32, Self, bool)> {
        let (layers, stages) = (self.layer_count(), self.pipeline);
        let mut all = vec![
            (
                format!("layers=+{}", 2 * stages),
                layers + 2 * stages,
                self,
                true,
            ),
            (format!("layers=-{stages}"), layers - stages, self, true),
            ("layers=2x".to_owned(), 2 * layers, self, true),
        ];
        let mut other = self;
        other.micro_batch *= 3;
        all.push(("batch=3x".to_owned(), layers, other, false));
        if self.pipeline == 1 {
            let mut other = self;
            other.micro_batches *= 2;
            all.push(("accumulate=2".to_owned(), layers, other, true));
        }
        if self.micro_batches > 1 {
            let mut other = self;
            other.micro_batches *= 2;
            other.micro_batch /= 2;
            all.push(("microbatches=2x".to_owned(), layers, other, false));
        }
        if self.data > 1 {
            let other = Self { data: 4, ..self };
            all.push(("data=4".to_owned(), layers, other, true));
        }
        if self.pipeline > 2 {
            // Each stage keeps its number of layers, in more stages and in fewer.
            for pipeline in [self.pipeline + 2, self.pipeline - 1] {
                let other = Self { pipeline, ..self };
                all.push((format!("pipeline={pipeline}"), 3 * pipeline, other, true));
            }
        }
        if self.pipeline > 1 && self.micro_batches > 1 {
            let schedule = if self.schedule == "1f1b" {
                "gpipe"
            } else {
                "1f1b"
            };
            let other = Self { schedule, ..self };
            all.push((format!("schedule={schedule}"), layers, other, true));
        }
        all
    }
}

/// Returns the points of a grid that are valid plans.
fn list_valid_plans(
    tensor: &[u32],
    pipeline: &[u32],
    micro_batches: &[u32],
    zero: &[u32],
) -> Vec<JobDegreesAndSchedule> {
    let mut all = Vec::new();
    for &tensor in tensor {
        for &pipeline in pipeline {
            for &micro_batches in micro_batches {
                for (data, zero) in [(1, 0)]
                    .into_iter()
                    .chain(zero.iter().map(|&zero| (2, zero)))
                {
                    for schedule in ["1f1b", "gpipe"] {
                        if schedule == "1f1b" || pipeline > 1 && micro_batches > 1 {
                            all.push(JobDegreesAndSchedule {
                                tensor,
                                pipeline,
                                data,
                                zero,
                                schedule,
                                micro_batches,
                                micro_batch: 2,
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

/// Returns the calls of each collective: kind, members, calls and bytes.
fn list_collective_calls(report: &Value) -> Vec<String> {
    let all = report["collectives"].as_array().expect("a list").iter();
    let mut all: Vec<String> = all
        .map(|one| {
            // Names are numbers, which a transform assigns in another order.
            let group = one["group"].as_str().expect("a name");
            let members = group.rsplit_once('(').map_or(group, |(_, members)| members);
            format!(
                "{} {members} {} {}",
                one["kind"], one["calls"], one["buffer_bytes"]["sum"]
            )
        })
        .collect();
    all.sort();
    all
}

/// Returns the peak memory of each NPU.
fn list_npu_peak_memory(report: &Value) -> Vec<f64> {
    let all = report["memory"]["npus"].as_array().expect("a list");
    all.iter()
        .map(|npu| npu["peak_bytes"].as_f64().expect("a number"))
        .collect()
}

/// Fails unless the job in `edited` has the same structure as the job in `expected`, and takes as long within 1 %.
fn assert_same_job(edited: &str, expected: &str, of: &str) {
    let machine = ["-m", "dgx-h100x8", "--no-verify"];
    let [edited, expected] = [edited, expected].map(|job| replay_for_json(job, &machine));
    for key in ["nodes", "messages", "ranks"] {
        assert_eq!(edited[key], expected[key], "{key}: {of}");
    }
    assert_eq!(
        list_collective_calls(&edited),
        list_collective_calls(&expected),
        "{of}"
    );
    let times = [&edited, &expected].map(|report| report["makespan_ps"].as_f64().expect("a time"));
    let off = times[0] / times[1] - 1.0;
    assert!(off.abs() < 0.01, "{of}: {:+.3} %", off * 100.0);
}

/// Fails unless the job in `edited` is the same as the job in `expected` and needs the same memory within 1 %.
fn assert_same_job_and_memory(edited: &str, expected: &str, of: &str) {
    assert_same_job(edited, expected, of);
    let machine = ["-m", "dgx-h100x8", "--no-verify"];
    let [edited, expected] = [edited, expected].map(|job| replay_for_json(job, &machine));
    for (own, expected) in list_npu_peak_memory(&edited)
        .iter()
        .zip(list_npu_peak_memory(&expected))
    {
        let off = own / expected - 1.0;
        assert!(off.abs() < 0.01, "memory of {of}: {:+.3} %", off * 100.0);
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        out.push(value as u8 & 127 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (&byte, rest) = bytes.split_first().expect("a number goes on");
        *bytes = rest;
        value |= u64::from(byte & 127) << shift;
        shift += 7;
        if byte < 128 {
            return value;
        }
    }
}

/// Gives each kernel of the traces in a folder a recorded time: `times` multiplied by a value
/// derived from its name without numbers.
fn set_recorded_kernel_times_by_name(folder: &str, times: u64) {
    for (file, bytes) in read_trace_files(folder) {
        let (mut left, mut out) = (&bytes[..], Vec::new());
        while !left.is_empty() {
            let length = take_varint(&mut left) as usize;
            let (record, rest) = left.split_at(length);
            left = rest;
            let mut record = record.to_vec();
            let (mut fields, mut name, mut kind) = (&record[..], String::new(), 0);
            while !fields.is_empty() {
                let key = take_varint(&mut fields);
                match key & 7 {
                    0 => {
                        let value = take_varint(&mut fields);
                        kind = if key >> 3 == 3 { value } else { kind };
                    }
                    2 => {
                        let length = take_varint(&mut fields) as usize;
                        let (value, rest) = fields.split_at(length);
                        fields = rest;
                        if key >> 3 == 2 {
                            name = String::from_utf8_lossy(value).into_owned();
                        }
                    }
                    wire => panic!("no trace has fields of wire type {wire}"),
                }
            }
            // Type 4 is a kernel. The optimizer's time depends on the parameters instead.
            if kind == 4 && !name.contains("optimizer") {
                let digest = name.bytes().filter(|byte| !byte.is_ascii_digit());
                let sum = digest.fold(7_u64, |sum, byte| (sum * 31 + u64::from(byte)) % 40_000);
                let mut attribute = vec![10, 11];
                attribute.extend(b"duration_ns");
                attribute.push(13 << 3);
                put_varint(&mut attribute, times * (10_000 + sum));
                record.push(10 << 3 | 2);
                put_varint(&mut record, attribute.len() as u64);
                record.extend(attribute);
            }
            put_varint(&mut out, record.len() as u64);
            out.extend(record);
        }
        let path = Path::new(folder).join(file);
        // Equal ranks may share one file under several names.
        std::fs::remove_file(&path).expect("it is there");
        std::fs::write(&path, out).expect("there is room");
    }
}

/// Transforms the job of each point, and compares it with the generated job. Kernels have recorded
/// times if the transform keeps them.
fn check_edited_jobs_equal_generated(points: &[JobDegreesAndSchedule]) {
    let jobs = Jobs::new();
    for point in points {
        let base = jobs.generate(
            "base",
            point.layer_count(),
            &point.format_generate_options(),
        );
        let recorded = jobs.generate(
            "recorded",
            point.layer_count(),
            &point.format_generate_options(),
        );
        set_recorded_kernel_times_by_name(&recorded, 1);
        for (edit, layers, plan, keeps_kernels) in point.edits_with_resulting_plans() {
            let of = format!("{edit} of {point:?}");
            let generated = jobs.generate("generated", layers, &plan.format_generate_options());
            let edited = jobs.edit(&base, "edited", &[&edit]);
            if edit.starts_with("batch=") || edit.starts_with("microbatches=") {
                assert_same_job_and_memory(&edited, &generated, &of);
            } else {
                assert_same_job(&edited, &generated, &of);
            }
            std::fs::remove_dir_all(edited).expect("it is there");
            if keeps_kernels {
                set_recorded_kernel_times_by_name(&generated, 1);
                let edited = jobs.edit(&recorded, "edited", &[&edit]);
                assert_same_job(&edited, &generated, &format!("recorded: {of}"));
                std::fs::remove_dir_all(edited).expect("it is there");
            }
            std::fs::remove_dir_all(generated).expect("it is there");
        }
        std::fs::remove_dir_all(base).expect("it is there");
        std::fs::remove_dir_all(recorded).expect("it is there");
    }
}

/// Transforms the job of each point and back, through files and in one command.
fn check_inverse_edits_restore_jobs(points: &[JobDegreesAndSchedule]) {
    let jobs = Jobs::new();
    for point in points {
        let base = jobs.generate("base", 4 * point.pipeline, &point.format_generate_options());
        set_recorded_kernel_times_by_name(&base, 1);
        let stages = point.pipeline;
        for (there, back) in [
            (
                format!("layers=+{}", 2 * stages),
                format!("layers=-{}", 2 * stages),
            ),
            (format!("layers=-{stages}"), format!("layers=+{stages}")),
            ("layers=3x".to_owned(), "layers=1/3x".to_owned()),
            ("hidden=1.5x".to_owned(), "hidden=2/3x".to_owned()),
            ("batch=3x".to_owned(), "batch=1/3x".to_owned()),
            ("sequence=2x".to_owned(), "sequence=1/2x".to_owned()),
        ] {
            let of = format!("{there} and {back} of {point:?}");
            let edited = jobs.edit(&base, "there", &[&there]);
            assert!(
                read_trace_files(&base) != read_trace_files(&edited),
                "{of}: nothing changes"
            );
            let again = jobs.edit(&edited, "again", &[&back]);
            assert!(read_trace_files(&base) == read_trace_files(&again), "{of}");
            let together = jobs.edit(&base, "together", &[&there, &back]);
            assert!(
                read_trace_files(&base) == read_trace_files(&together),
                "{of}, together"
            );
            for folder in [edited, again, together] {
                std::fs::remove_dir_all(folder).expect("it is there");
            }
        }
        std::fs::remove_dir_all(base).expect("it is there");
    }
}

#[test]
fn edited_jobs_are_the_generated_ones_over_a_grid_of_plans() {
    let mut points = list_valid_plans(&[1], &[1], &[2], &[0, 3]);
    points.extend(list_valid_plans(&[1], &[2], &[2], &[2]));
    check_edited_jobs_equal_generated(&points);
}

/// In a tensor group of two, a micro-batch's samples happen to have the same dimensions as the weight after attention:
/// 128 rows of 256.
#[test]
fn batch_edits_scale_samples_with_the_dimensions_of_a_weight() {
    let jobs = Jobs::new();
    let [base, generated] = [
        ("base", "4 --micro-batch 2"),
        ("more", "12 --micro-batch 6"),
    ]
    .map(|(name, batch)| jobs.generate(name, 2, &format!("--tensor 2 --data 2 --batch {batch}")));
    let edited = jobs.edit(&base, "edited", &["batch=3x"]);
    assert_same_job_and_memory(&edited, &generated, "batch=3x");
    let work =
        |job: &str| replay_for_json(job, &["-m", "dgx-h100x8", "--no-verify"])["operators"].clone();
    assert_eq!(work(&edited), work(&generated));
}

/// The last stage's loss ends with an all-reduce, which is on another lane than the next pass.
#[test]
fn passes_are_reordered_where_they_end_on_another_lane() {
    let jobs = Jobs::new();
    for (from, to) in [("1f1b", "gpipe"), ("gpipe", "1f1b")] {
        let [base, generated] = [from, to].map(|schedule| {
            let options = "--tensor 2 --pipeline 2 --batch 6 --micro-batch 2 --schedule";
            let job = jobs.generate(schedule, 4, &format!("{options} {schedule}"));
            set_recorded_kernel_times_by_name(&job, 1);
            job
        });
        let edited = jobs.edit(&base, "edited", &[&format!("schedule={to}")]);
        assert_same_job_and_memory(&edited, &generated, to);
        for folder in [base, generated, edited] {
            std::fs::remove_dir_all(folder).expect("it is there");
        }
    }
}

/// Stages between the first and the last are captured once, and repeated. The first and the last
/// stage have the embedding's weights.
#[test]
fn pipelines_of_other_depths_are_the_generated_ones() {
    let jobs = Jobs::new();
    for (plan, stages) in [
        (
            "--tensor 2 --batch 10 --micro-batch 2 --schedule 1f1b",
            [3, 5],
        ),
        (
            "--data 2 --zero 1 --batch 12 --micro-batch 2 --schedule gpipe --order tp,pp,dp",
            [4, 3],
        ),
        (
            "--data 2 --batch 12 --micro-batch 2 --schedule 1f1b",
            [4, 2],
        ),
    ] {
        let [base, generated] = stages.map(|stages| {
            let options = format!("{plan} --pipeline {stages}");
            let job = jobs.generate(&format!("of-{stages}"), 2 * stages, &options);
            set_recorded_kernel_times_by_name(&job, 1);
            job
        });
        let edit = format!("pipeline={}", stages[1]);
        let edited = jobs.edit(&base, "edited", &[&edit]);
        assert_same_job_and_memory(&edited, &generated, &format!("{edit} of {plan}"));
        // Later edits take the new stages into account.
        let more = ["layers=2x"];
        let [edited_more, generated_more] =
            [(&edited, "edited-more"), (&generated, "generated-more")]
                .map(|(job, name)| jobs.edit(job, name, &more));
        assert_same_job(
            &edited_more,
            &generated_more,
            &format!("{edit} and layers of {plan}"),
        );
        for folder in [base, generated, edited, edited_more, generated_more] {
            std::fs::remove_dir_all(folder).expect("it is there");
        }
    }
    let two = jobs.generate("two", 4, "--pipeline 2 --batch 4 --micro-batch 2");
    let found =
        super::expect_cli_error(&["replay", &two, "-m", "dgx-h100", "--edit", "pipeline=4"]);
    assert!(
        found.contains("no captured rank is of the middle stage"),
        "{found}"
    );
    let one = jobs.generate("one", 2, "--batch 2 --micro-batch 2");
    let found =
        super::expect_cli_error(&["replay", &one, "-m", "dgx-h100", "--edit", "pipeline=2"]);
    assert!(found.contains("the job has 1 stages"), "{found}");
}

#[test]
#[ignore = "hundreds of edits, some minutes"]
fn edited_jobs_are_the_generated_ones_over_a_wide_grid_of_plans() {
    check_edited_jobs_equal_generated(&list_valid_plans(
        &[1, 2],
        &[1, 2, 4],
        &[1, 4],
        &[0, 1, 2, 3],
    ));
}

#[test]
fn inverses_change_no_byte_over_a_grid_of_plans() {
    let mut points = list_valid_plans(&[1], &[1], &[2], &[0, 3]);
    points.extend(list_valid_plans(&[1], &[2], &[2], &[1]));
    check_inverse_edits_restore_jobs(&points);
}

#[test]
#[ignore = "hundreds of edits, some minutes"]
fn inverses_change_no_byte_over_a_wide_grid_of_plans() {
    check_inverse_edits_restore_jobs(&list_valid_plans(
        &[1, 2],
        &[1, 2, 4],
        &[1, 4],
        &[0, 1, 2, 3],
    ));
}

/// Generates the job of a point with heads of size 64, inner layers of four times the width, and
/// one gradient bucket per layer.
fn generate_job_of_width(
    jobs: &Jobs,
    name: &str,
    point: JobDegreesAndSchedule,
    hidden: u32,
) -> String {
    let mut model = super::make_small_transformer_toml(point.layer_count());
    for (key, old, new) in [
        ("hidden", 256, hidden),
        ("heads", 4, hidden / 64),
        ("ffn", 3072, 4 * hidden),
    ] {
        model = model.replace(&format!("{key} = {old}"), &format!("{key} = {new}"));
    }
    let file = jobs.0.path().join(format!("{name}.toml"));
    std::fs::write(&file, model).expect("there is room");
    let to = format!("{}/job", jobs.create_job_folder(name));
    let mut words = vec!["generate", file.to_str().expect("UTF-8"), "-o", &to];
    words.extend(["--bucket", "1kB", "--tokens", "64"]);
    let options = point.format_generate_options();
    words.extend(options.split_ascii_whitespace());
    super::run_for_stdout(&words);
    jobs.create_job_folder(name)
}

/// Returns the FLOPs of all kernels of a job.
fn sum_flops(job: &str) -> u64 {
    let report = replay_for_json(job, &["-m", "dgx-h100x8", "--no-verify", "--all-operators"]);
    let rows = report["operators"].as_array().expect("operators");
    let flops = rows.iter().filter_map(|row| row["flops"].as_u64());
    let sum = flops.sum();
    assert_ne!(sum, 0, "{job}");
    sum
}

/// Checks a model 1.5 times as wide, given by a factor and by its hidden size.
fn check_wider_jobs_equal_generated(points: &[JobDegreesAndSchedule]) {
    let jobs = Jobs::new();
    for &point in points {
        let base = generate_job_of_width(&jobs, "base", point, 256);
        let generated = generate_job_of_width(&jobs, "generated", point, 384);
        for edit in ["hidden=1.5x", "hidden=384"] {
            let edited = jobs.edit(&base, "edited", &[edit]);
            assert_same_job(&edited, &generated, &format!("{edit} of {point:?}"));
            // Curves use the sizes of multiplications, other models of kernel times their FLOPs.
            let [own, expected] = [&edited, &generated].map(|job| sum_flops(job));
            assert_eq!(own, expected, "{edit} of {point:?}");
            std::fs::remove_dir_all(edited).expect("it is there");
        }
        for folder in [base, generated] {
            std::fs::remove_dir_all(folder).expect("it is there");
        }
    }
}

#[test]
fn wider_jobs_are_the_generated_ones_over_a_grid_of_plans() {
    let mut points = list_valid_plans(&[1], &[1], &[1, 2], &[0, 3]);
    points.extend(list_valid_plans(&[2], &[2], &[2], &[1, 2]));
    check_wider_jobs_equal_generated(&points);
}

#[test]
#[ignore = "hundreds of edits, some minutes"]
fn wider_jobs_are_the_generated_ones_over_a_wide_grid_of_plans() {
    check_wider_jobs_equal_generated(&list_valid_plans(&[1, 2], &[1, 2], &[1, 4], &[0, 1, 2, 3]));
}

/// `generate --edit` writes the same bytes as `generate` followed by `edit`. An edit that an option of the plan can
/// express is rejected with the option's name.
#[test]
fn generated_jobs_are_edited_as_their_files_are() {
    let jobs = Jobs::new();
    let options = "--data 2 --pipeline 2 --zero 1 --batch 8 --micro-batch 2";
    let base = jobs.generate("base", 4, options);
    let edits = ["layers=+2", "hidden=1.5x", "delay=3ms,rank=1,at=backward"];
    let edited = jobs.edit(&base, "edited", &edits);
    let words: Vec<String> = edits.iter().map(|edit| format!("--edit {edit}")).collect();
    let direct = jobs.generate("direct", 4, &format!("{options} {}", words.join(" ")));
    assert!(read_trace_files(&edited) == read_trace_files(&direct));
    for (edit, option) in [
        ("batch=2x", "--micro-batch"),
        ("sequence=2x", "--tokens"),
        ("data=4", "--data"),
        ("microbatches=2x", "--micro-batch"),
        ("schedule=gpipe", "--schedule"),
        ("pipeline=4", "--pipeline"),
        ("bucket=4MiB", "--bucket"),
    ] {
        let found =
            super::expect_cli_error(&["generate", "gpt2-small", "-m", "dgx-h100", "--edit", edit]);
        let says =
            found.contains(option) && found.contains("a generated job needs an option of the plan");
        assert!(says, "{edit}: {found}");
    }
}

/// In a capture of two micro-batches of four layers, layers of both are repeated, and keep their
/// recorded time.
#[test]
fn layers_of_all_captured_micro_batches_are_repeated() {
    let Some(capture) = crate::corpus::corpus_path_or_count_skip("captures/pytorch/ddp_gpt") else {
        return;
    };
    let jobs = Jobs::new();
    let job = jobs.create_job_folder("captured");
    let capture = capture.to_str().expect("UTF-8").to_owned();
    super::run_for_stdout(&["convert", "pytorch", &capture, "-o", &format!("{job}/job")]);
    let operator = |job: &str, name: &str| {
        let report = replay_for_json(job, &["-m", "dgx-a100", "--comm", "recorded"]);
        let all = report["operators"].as_array().expect("a list").clone();
        let found = all.into_iter().find(|one| one["name"] == name);
        let found = found.expect("it is there");
        [&found["calls"], &found["total_ps"]].map(|value| value.as_f64().expect("a number"))
    };
    let twice = jobs.edit(&job, "twice", &["layers=2x"]);
    // With twice the layers, reductions of other buckets replaced the recorded ones; removing the added layers brings
    // these back.
    let again = jobs.edit(&twice, "again", &["layers=-4"]);
    assert!(read_trace_files(&job) == read_trace_files(&again));
    for name in ["aten::gelu_backward", "aten::addmm"] {
        let [[calls, time], [more_calls, more_time]] =
            [&job, &twice].map(|job| operator(job, name));
        assert_eq!(more_calls, 2.0 * calls, "{name}");
        assert!(
            (more_time / time - 2.0).abs() < 0.01,
            "{name}: {time} and {more_time}"
        );
    }
}

/// Three replicas have two stages, and one rank of each stage is slower. The absent rank is inferred once from the fast
/// rank of its stage and once from the slow one. These bound the makespan, because its replica is then slow in one
/// stage or in both.
#[test]
fn completed_jobs_have_a_makespan_interval_from_ranks_of_equal_role() {
    let jobs = Jobs::new();
    let plan = "--data 3 --pipeline 2 --batch 12 --micro-batch 2";
    let [fast, slow] = [("fast", 1), ("slow", 3)].map(|(name, times)| {
        let job = jobs.generate(name, 4, plan);
        set_recorded_kernel_times_by_name(&job, times);
        job
    });
    let part = jobs.create_job_folder("part");
    for (rank, of) in [(0, &fast), (1, &slow), (2, &slow), (3, &slow), (4, &fast)] {
        let name = format!("job.{rank}.et");
        let from = Path::new(of).join(&name);
        std::fs::copy(from, Path::new(&part).join(&name)).expect("there is room");
    }
    let groups = format!("{fast}/job.groups.json");
    let options = ["-m", "dgx-h100", "--groups", &groups, "--edit", "ranks=6"];
    let completed = replay_for_json(&part, &options);
    let interval = &completed["edits"]["completed_makespan_ps"];
    let [low, high] = ["low", "high"].map(|end| interval[end].as_u64().expect("a time"));
    let own = completed["makespan_ps"].as_u64().expect("a time");
    assert!(
        low <= own && own <= high && low < high,
        "{low} {own} {high}"
    );
    // The job now has the real rank instead of its substitute.
    for (of, expected) in [(&fast, low), (&slow, high)] {
        let name = "job.5.et";
        let to = Path::new(&part).join(name);
        std::fs::copy(Path::new(of).join(name), &to).expect("there is room");
        let whole = replay_for_json(&part, &["-m", "dgx-h100", "--groups", &groups]);
        assert_eq!(whole["makespan_ps"].as_u64(), Some(expected));
        std::fs::remove_file(to).expect("it is there");
    }
    let text = super::run_for_stdout(&[&["replay", &part][..], &options].concat());
    let says = "with each rank that was not captured as the fastest";
    assert!(text.contains(says), "{text}");
}
