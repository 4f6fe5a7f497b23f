//! Compares MSCCL algorithms with the machine's own.

use super::{TemporaryTestFolder, expect_cli_error, run_for_exit_and_text, run_for_stdout};
use std::fmt::Write;

/// Returns MSCCL rings among `gpus` in which, on each channel, chunks go around the ring. Channel 0 runs upwards and
/// channel 1, if there is one, downwards. Chunk `c` of channel `k` is `k * gpus + c`.
fn format_msccl_ring(coll: &str, gpus: u32, channels: u32, reduce: bool) -> String {
    let chunks = gpus * channels;
    let mut text = format!(
        "<algo name=\"ring\" proto=\"Simple\" nchannels=\"{channels}\" nchunksperloop=\"{chunks}\" ngpus=\"{gpus}\" \
         coll=\"{coll}\" inplace=\"1\">\n"
    );
    for gpu in 0..gpus {
        writeln!(
            text,
            "<gpu id=\"{gpu}\" i_chunks=\"{chunks}\" o_chunks=\"{chunks}\" s_chunks=\"0\">"
        )
        .unwrap();
        for channel in 0..channels {
            let (up, down) = ((gpu + 1) % gpus, (gpu + gpus - 1) % gpus);
            let (to, from) = if channel == 0 { (up, down) } else { (down, up) };
            writeln!(
                text,
                "<tb id=\"{channel}\" send=\"{to}\" recv=\"{from}\" chan=\"{channel}\">"
            )
            .unwrap();
            // A reduction takes one round and the distribution another; an all-gather needs only the latter.
            let hops = if reduce { 2 * (gpus - 1) } else { gpus - 1 };
            for step in 0..=hops {
                let kind = match step {
                    0 => "s",
                    last if last == hops => "r",
                    step if reduce && step < gpus - 1 => "rrs",
                    step if reduce && step == gpus - 1 => "rrcs",
                    _ => "rcs",
                };
                // The chunk sent at a step left its first GPU `step` steps ago.
                let back = step % gpus;
                let chunk = if channel == 0 {
                    gpu + gpus - back
                } else {
                    gpu + back
                } % gpus;
                let chunk = channel * gpus + chunk;
                writeln!(
                    text,
                    "<step s=\"{step}\" type=\"{kind}\" srcbuf=\"o\" srcoff=\"{chunk}\" dstbuf=\"o\" \
                     dstoff=\"{chunk}\" cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>"
                )
                .unwrap();
            }
            writeln!(text, "</tb>").unwrap();
        }
        writeln!(text, "</gpu>").unwrap();
    }
    text + "</algo>\n"
}

fn format_machine_toml(shape: &str) -> String {
    format!(
        r#"
name = "four"

[npu.one]
memory_bandwidth = "1 TB/s"
memory_latency = "100 ns"
memory_capacity = "80 GB"
lanes = 2
host_lanes = 1

[npu.one.peak]
fp32 = "10 TFLOP/s"

[[dimension]]
name = "wire"
shape = "{shape}"
size = 4
bandwidth = "50 GB/s"
latency = "500 ns"
algorithm = "ring"
"#
    )
}

fn replay_makespan(args: &[&str]) -> u64 {
    let report = run_for_stdout(&[&["replay", "--format", "json"], args].concat());
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    report["makespan_ps"].as_u64().unwrap()
}

/// The tests use an all-reduce of 4 MB and an all-gather of shards of 1 MB. Each step moves 1 MB at 50 GB/s through a
/// switch, or half of it in each direction of a ring at 25 GB/s. In both cases, each of 6 or 3 steps takes 20 us plus
/// the latency of the hops.
#[test]
fn rings_take_what_native_rings_take() {
    let folder = TemporaryTestFolder::new();
    for (shape, channels) in [("switch", 1), ("ring", 2)] {
        let machine = folder.write_file("machine.toml", format_machine_toml(shape));
        for (kind, coll, size, steps) in [
            ("all-reduce", "allreduce", "4MB", 6),
            ("all-gather", "allgather", "1MB", 3),
        ] {
            let job = folder.path("job");
            run_for_stdout(&[
                "generate",
                "collective",
                kind,
                "--size",
                size,
                "--ranks",
                "4",
                "-o",
                &job,
            ]);
            let xml = folder.write_file(
                "ring.xml",
                format_msccl_ring(coll, 4, channels, kind == "all-reduce"),
            );
            let custom = folder.path("custom");
            let said = run_for_stdout(&["convert", "msccl", &xml, "--size", size, "-o", &custom]);
            assert!(
                said.starts_with(&format!("ring: {kind} of 4.0 MB among 4 GPUs: ")),
                "{said}"
            );
            let native = replay_makespan(&[&job, "-m", &machine]);
            let option = format!("{kind}={custom}");
            let played = replay_makespan(&[&job, "-m", &machine, "--custom", &option]);
            assert_eq!(played, native, "{shape} {kind}");
            // A message takes one hop on a ring, and two through a switch.
            let hops = if shape == "ring" { 1 } else { 2 };
            let step = 20_000_000 + hops * 500_000;
            assert!(
                native == steps * step || native == steps * (step - 500_000 * (hops - 1)),
                "{native}"
            );
        }
    }
}

/// Thread block 1 sends when thread block 0 has received: 1 MB goes in and 1 MB goes out, one after
/// the other.
#[test]
fn steps_wait_for_steps_of_other_thread_blocks() {
    let folder = TemporaryTestFolder::new();
    let step = |s: u32, kind: &str, after: (i32, i32)| {
        format!(
            "<step s=\"{s}\" type=\"{kind}\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"o\" dstoff=\"0\" cnt=\"1\" \
             depid=\"{}\" deps=\"{}\" hasdep=\"1\"/>",
            after.0, after.1
        )
    };
    let block = |id: u32, send: i32, recv: i32, steps: &str| {
        format!("<tb id=\"{id}\" send=\"{send}\" recv=\"{recv}\" chan=\"0\">{steps}</tb>")
    };
    let text = |after: (i32, i32)| {
        let free = (-1, -1);
        let gpu = |id: u32, blocks: &str| format!("<gpu id=\"{id}\">{blocks}</gpu>");
        let first = step(0, "cpy", free) + &step(1, "s", free);
        let on = step(0, "nop", after) + &step(1, "re", free) + &step(2, "s", free);
        let middle = block(0, -1, 0, &step(0, "r", free)) + &block(1, 2, -1, &on);
        format!(
            "<algo name=\"on\" nchunksperloop=\"1\" ngpus=\"4\" coll=\"broadcast\" minBytes=\"0\" maxBytes=\"0\">{}{}{}{}</algo>",
            gpu(0, &block(0, 1, -1, &first)),
            gpu(1, &middle),
            gpu(2, &block(0, -1, 1, &step(0, "r", free))),
            gpu(3, ""),
        )
    };
    let machine = folder.write_file("machine.toml", format_machine_toml("switch"));
    let job = folder.path("job");
    run_for_stdout(&[
        "generate",
        "collective",
        "broadcast",
        "--size",
        "1MB",
        "--ranks",
        "4",
        "-o",
        &job,
    ]);
    let mut times = Vec::new();
    for after in [(-1, -1), (0, 0)] {
        let xml = folder.write_file("on.xml", text(after));
        let custom = folder.path("custom");
        run_for_stdout(&[
            "convert", "auto", &xml, "-o", &custom, "--", "--size", "1MB",
        ]);
        times.push(replay_makespan(&[
            &job,
            "-m",
            &machine,
            "--custom",
            &format!("broadcast={custom}"),
        ]));
    }
    assert_eq!(times[1], 2 * times[0]);
}

#[test]
fn buffer_sizes_outside_an_algorithms_range_are_refused() {
    let folder = TemporaryTestFolder::new();
    let text = format_msccl_ring("allreduce", 4, 1, true)
        .replace("inplace", "minBytes=\"1000\" maxBytes=\"2000\" inplace");
    let xml = folder.write_file("ring.xml", text);
    let output = folder.path("out");
    for size in ["999B", "1MB"] {
        let error = expect_cli_error(&["convert", "msccl", &xml, "--size", size, "-o", &output]);
        assert!(error.contains("for 1000 to 2000 bytes"), "{error}");
    }
    let error = expect_cli_error(&["convert", "msccl", &xml, "--size", "0", "-o", &output]);
    assert!(error.contains("at least 1B"), "{error}");
    let error = expect_cli_error(&["convert", "msccl", &xml, "--size", "10EB", "-o", &output]);
    assert!(error.contains("--size"), "{error}");
    assert_eq!(folder.names(), ["ring.xml"]);
    run_for_stdout(&["convert", "msccl", &xml, "--size", "1500B", "-o", &output]);
}

#[test]
fn unknown_attributes_are_noted() {
    let folder = TemporaryTestFolder::new();
    let text = format_msccl_ring("allgather", 4, 1, false).replace("inplace", "inplaze");
    let xml = folder.write_file("ring.xml", text);
    let output = folder.path("out");
    let converted =
        run_for_exit_and_text(&["convert", "msccl", &xml, "--size", "1MB", "-o", &output]);
    assert_eq!(converted.code, 0);
    let note = "line 1: `inplaze` of <algo> is unknown and has no effect; did you mean `inplace`?";
    assert!(converted.error.contains(note), "{}", converted.error);
}

/// Messages keep the sizes for which the algorithm was converted, so another collective would get wrong times.
#[test]
fn collectives_of_other_kinds_or_sizes_are_refused() {
    let folder = TemporaryTestFolder::new();
    let xml = folder.write_file("ring.xml", format_msccl_ring("allgather", 4, 1, false));
    let custom = folder.path("custom");
    run_for_stdout(&["convert", "msccl", &xml, "--size", "1MB", "-o", &custom]);
    let machine = folder.write_file("machine.toml", format_machine_toml("switch"));
    let generate = |kind: &str, size: &str, algorithm: &str| {
        let custom = format!("{algorithm}={custom}");
        let args = [
            "generate",
            "collective",
            kind,
            "--size",
            size,
            "--ranks",
            "4",
            "-m",
            &machine,
            "--custom",
            &custom,
        ];
        run_for_exit_and_text(&args)
    };
    let fits = generate("all-gather", "1MB", "all-gather");
    assert_eq!((fits.code, &fits.error[..]), (0, ""));
    assert!(!fits.out.contains("sizes from its files"), "{}", fits.out);
    // Four shards of 2 MB and of 1 MB.
    let large = generate("all-gather", "2MB", "all-gather");
    assert_eq!(large.code, 2);
    for part in ["8000000 bytes", "4000000 bytes", "--custom", "try:"] {
        assert!(large.error.contains(part), "{part}: {}", large.error);
    }
    let other = generate("all-reduce", "4MB", "all-reduce");
    assert_eq!(other.code, 2);
    let hint = format!("try: --custom all-gather={custom}");
    assert!(
        other.error.contains("given for all-reduce") && other.error.contains(&hint),
        "{}",
        other.error
    );
}

/// Steps that only wait do not count as kernels without a time, however many there are; here they are eight of ten.
#[test]
fn steps_that_only_wait_do_not_count_as_kernels_without_a_time() {
    let folder = TemporaryTestFolder::new();
    let steps = |blocks: &[(i32, i32, &str)]| {
        let mut text = String::new();
        for (id, (send, recv, kinds)) in blocks.iter().enumerate() {
            write!(
                text,
                "<tb id=\"{id}\" send=\"{send}\" recv=\"{recv}\" chan=\"0\">"
            )
            .unwrap();
            for (s, kind) in kinds.split(' ').enumerate() {
                let count = u32::from(kind != "nop");
                let offset = count as i32 - 1;
                write!(
                    text,
                    "<step s=\"{s}\" type=\"{kind}\" srcbuf=\"i\" srcoff=\"{offset}\" dstbuf=\"o\" dstoff=\"{offset}\" \
                     cnt=\"{count}\" depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>"
                )
                .unwrap();
            }
            text += "</tb>";
        }
        text
    };
    let gpu = |id: u32, peer: i32| {
        let blocks = [
            (peer, -1, "nop nop nop nop s"),
            (-1, peer, "r"),
            (-1, -1, "cpy"),
        ];
        format!("<gpu id=\"{id}\">{}</gpu>", steps(&blocks))
    };
    let text = format!(
        "<algo name=\"pair\" nchunksperloop=\"2\" ngpus=\"2\" coll=\"allgather\" minBytes=\"0\" maxBytes=\"0\">{}{}</algo>",
        gpu(0, 1),
        gpu(1, 0)
    );
    let algorithm = folder.write_file("pair.xml", text);
    let job = folder.path("job");
    run_for_stdout(&[
        "convert", "msccl", &algorithm, "--size", "65536B", "-o", &job,
    ]);
    // 65,536 B at 100 GB/s take 655.36 ns after two links of 1 us, one to the switch and one from it; copies run
    // concurrently.
    let machine = [
        "-m",
        "Switch(2)",
        "--bandwidth",
        "100GB/s",
        "--latency",
        "1us",
    ];
    assert_eq!(
        replay_makespan(&[&[&job[..]][..], &machine].concat()),
        2_655_360
    );
}
