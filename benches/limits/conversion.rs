//! Measures how fast one thread converts generated captures of two ranks.

use super::{
    compute_rate_per_second, held_and_peak_bytes_since, measure_best_time, reset_peak_to_held_bytes,
};
use chakram::convert::{
    ConvertOptions, OutputsAndProtectedInputs, convert_capture_pairs, find_capture_pairs,
};
use std::path::{Path, PathBuf};
use testkit::capture::{self, Device, JobParallelism, generate_capture};

/// Converts captures of every kind, all of about the same size.
pub fn measure_all_conversions() {
    println!(
        "\nconvert, 2 ranks, 1 thread       MB of JSON      nodes      MB/s   peak/JSON   growth"
    );
    for (label, device, style, steps) in [
        ("gloo, data parallel", Device::Cpu, JobParallelism::Ddp, 20),
        (
            "gloo, functional",
            Device::Cpu,
            JobParallelism::Functional,
            20,
        ),
        ("gloo, pipeline", Device::Cpu, JobParallelism::Pipeline, 16),
        ("NCCL, data parallel", Device::Cuda, JobParallelism::Ddp, 20),
    ] {
        let small = measure_capture_conversion(label, device, style, steps / 4, None);
        measure_capture_conversion(label, device, style, steps, Some(small));
    }
}

/// Converts one capture, and returns its size in bytes and the time in seconds.
fn measure_capture_conversion(
    label: &str,
    device: Device,
    style: JobParallelism,
    steps: u32,
    smaller: Option<(f64, f64)>,
) -> (f64, f64) {
    let folder = tempfile::tempdir().expect("there is room");
    let mut options = capture::Options::new(device, style, 2);
    options.layers = 32;
    options.steps = steps;
    let json = write_generated_capture_files(folder.path(), &options) as f64;
    let found = find_capture_pairs(&[folder.path().to_owned()]).expect("they were just written");
    let pairs = found.pairs;
    let path = |rank: u32| -> PathBuf { folder.path().join(format!("job.{rank}.et")) };
    let one_thread = ConvertOptions {
        threads: 1,
        ..ConvertOptions::default()
    };
    let run = || {
        let mut outputs = OutputsAndProtectedInputs::default();
        let converted = convert_capture_pairs(&pairs, &one_thread, &path, &mut outputs, &|_, _| {});
        let (summary, _) = converted.expect("it is a capture");
        outputs.commit_all().expect("there is room");
        summary
    };
    let before = reset_peak_to_held_bytes();
    let nodes: u64 = run().ranks.iter().map(|rank| rank.written.nodes).sum();
    let (_, peak) = held_and_peak_bytes_since(before);
    let time = measure_best_time(run);
    let seconds = time.as_secs_f64();
    let growth = smaller.map_or(String::new(), |(bytes, before)| {
        format!("{:>9.2}", seconds / before / (json / bytes))
    });
    println!(
        "{label:32}{:>11.1}{nodes:>11}{:>10.0}{:>12.2}{growth}",
        json / 1e6,
        compute_rate_per_second(json, time, 1e6),
        peak / json,
    );
    (json, seconds)
}

fn write_generated_capture_files(folder: &Path, options: &capture::Options) -> u64 {
    let capture = generate_capture(options).expect("the options make sense");
    capture.write_files(folder).expect("there is room for it");
    let files = std::fs::read_dir(folder).expect("it was just made");
    let sizes = files.map(|file| file.and_then(|file| file.metadata()).map_or(0, |m| m.len()));
    sizes.sum()
}
