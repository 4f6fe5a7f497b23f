//! Tests that valid machine files parse, and that every error names the line, the key and the allowed values.

use super::*;
use crate::collective::CollectiveAlgorithm;
use crate::network::{NetworkModelKind, SendCompletionRule};
use crate::topology::SwitchingMode;
use chakram_base::dtype::Dtype;
use chakram_base::units::{Bandwidth, Bytes, Span};
use proptest::prelude::*;

mod remote;
mod through;
mod tiles;

/// A valid file with two classes, two dimensions and remote memory. The tests below introduce errors into it.
const GOOD: &str = r#"name = "two"
description = "one line"

[npu.fast]
peak = { bf16 = "100 TFLOP/s", fp8 = "200 TFLOP/s" }
memory_bandwidth = "2 TB/s"
memory_latency = "300 ns"
memory_capacity = "80 GB"
lanes = 32
host_lanes = 64

[npu.slow]
peak = { bf16 = "50 TFLOP/s" }
memory_bandwidth = "1 TB/s"
memory_latency = "300 ns"
memory_capacity = "40 GB"
lanes = 1
host_lanes = 1

[assign]
fast = "0-3,6"
slow = "4-5, 7"

[[dimension]]
name = "inner"
shape = "ring"
size = 4
bandwidth = "450 GB/s"
latency = "0"
algorithm = "ring"

[[dimension]]
name = "outer"
shape = "switch"
size = 2
bandwidth = "50 GB/s"
latency = "1.5 us"
algorithm = "direct"
scalable = true

[remote_memory]
attachment = "pool"
bandwidth = "50 GB/s"
latency = "2 us"
capacity = "1 TB"
"#;

/// Returns the error that [`GOOD`] causes after the first `old` is replaced by `new`.
fn error_of_edited_good_machine(old: &str, new: &str) -> String {
    parse_error_after_replacement(GOOD, old, new)
}

/// Returns the error that `text` causes after the first `old` is replaced by `new`.
fn parse_error_after_replacement(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old}");
    let error = Machine::parse(&text.replacen(old, new, 1), "m.toml");
    error.expect_err(new).to_string()
}

/// Checks the errors that edits of [`GOOD`] cause; each line of `table` is `old => new => pattern`. The error must
/// begin with `m.toml:`, the line and the key, and then contain the pattern's parts in order; ` … ` matches any text.
#[track_caller]
fn check_edit_errors(table: &str) {
    check_edit_errors_of_text(GOOD, table);
}

/// Checks errors as [`check_edit_errors`] does, but for edits of `text`.
#[track_caller]
fn check_edit_errors_of_text(text: &str, table: &str) {
    let good = text;
    for line in table.trim().lines() {
        let cells: Vec<_> = line.trim_start().splitn(3, " => ").collect();
        let [old, new, pattern] = [0, 1, 2].map(|i| cells[i].replace("\\n", "\n"));
        let text = parse_error_after_replacement(good, &old, &new).replacen(": key ", ": ", 1);
        let mut rest = text.strip_prefix("m.toml:").expect(&text);
        for (index, piece) in pattern.split(" … ").enumerate() {
            let at = rest.find(piece).unwrap_or_else(|| panic!("{line}\n{text}"));
            assert!(index > 0 || at == 0, "{line}\n{text}");
            rest = &rest[at + piece.len()..];
        }
    }
}

#[test]
fn a_good_file_is_read_as_written() {
    let machine = Machine::parse(GOOD, "m.toml").unwrap();
    assert_eq!((machine.name(), machine.description()), ("two", "one line"));
    // 4 x 2 = 8 NPUs.
    assert_eq!(machine.topology().npu_count(), 8);
    let classes: Vec<_> = (0..8).map(|n| machine.class_of_npu(Npu(n))).collect();
    assert_eq!(classes, [0, 0, 0, 0, 1, 1, 0, 1]);
    let fast = &machine.npu_classes()[0];
    assert_eq!(fast.name, "fast");
    assert_eq!(
        fast.peaks
            .peak_rate_if_supported(Dtype::Fp8)
            .unwrap()
            .per_second(),
        200e12
    );
    assert!(fast.peaks.peak_rate_if_supported(Dtype::Fp64).is_none());
    assert_eq!((fast.lanes, fast.host_lanes), (32, 64));
    assert_eq!(
        machine.npu_classes()[1].memory.unwrap().capacity,
        Some(Bytes(40_000_000_000))
    );
    assert_eq!(
        machine.collective_algorithms(),
        [CollectiveAlgorithm::Ring, CollectiveAlgorithm::Direct]
            .map(DimensionAlgorithmChoice::Named)
    );
    let [inner, outer] = machine.topology().dimensions() else {
        panic!()
    };
    assert_eq!(
        (inner.latency, outer.latency),
        (Span::ZERO, Span::from_ns(1500))
    );
    assert_eq!(inner.bandwidth, Bandwidth::new(450e9).unwrap());
    assert!(machine.is_scalable());
    assert_eq!(
        machine.unnamed_remote_memory().unwrap().latency,
        Span::from_us(2)
    );
}

#[test]
fn the_network_is_contention_free_and_cuts_through_unless_said_otherwise() {
    let read = |keys: &str| {
        let text = GOOD.replacen("[remote", &format!("[network]\n{keys}\n[remote"), 1);
        let machine = Machine::parse(&text, "m.toml").unwrap();
        (machine.network_model(), machine.topology().switching_mode())
    };
    let by = |bytes| SwitchingMode::CutThrough {
        segment: Bytes(bytes),
    };
    assert_eq!(
        read(""),
        (NetworkModelKind::ContentionFree, SwitchingMode::IDEAL)
    );
    assert_eq!(
        read("model = \"ports\""),
        (NetworkModelKind::Ports, SwitchingMode::IDEAL)
    );
    assert_eq!(read("segment = \"4 KiB\"").1, by(4096));
    let all = "model = \"links\"\nswitching = \"cut_through\"\nsegment = \"0 B\"";
    assert_eq!(read(all), (NetworkModelKind::Links, SwitchingMode::IDEAL));
    let whole = "switching = \"store_and_forward\"";
    assert_eq!(
        read(whole),
        (
            NetworkModelKind::ContentionFree,
            SwitchingMode::StoreAndForward
        )
    );
    let machine = Machine::parse(GOOD, "m.toml").unwrap();
    assert_eq!(machine.network_model(), NetworkModelKind::ContentionFree);
    assert_eq!(machine.send_completion(), SendCompletionRule::Injected);
    let delivered = GOOD.replacen(
        "[remote",
        "[network]\nsend_completion = \"delivered\"\n[remote",
        1,
    );
    let machine = Machine::parse(&delivered, "m.toml").unwrap();
    assert_eq!(machine.send_completion(), SendCompletionRule::Delivered);
    check_edit_errors(
        r#"
        [remote_memory] => [network]\nmodle = 1\n[remote_memory] => 42: `network.modle` … unknown … model, switching, segment
        [remote_memory] => [network]\nmodel = "fast"\n[remote_memory] => 42: `network.model` … "fast" … contention_free, ports, links
        [remote_memory] => [network]\nswitching = "slow"\n[remote_memory] => 42: `network.switching` … "slow" … cut_through, store_and_forward
        [remote_memory] => [network]\nsegment = 64\n[remote_memory] => 42: `network.segment` … the number 64 … such as "4 KiB"
        [remote_memory] => [network]\nsegment = "4 ns"\n[remote_memory] => 42: `network.segment` … is not a size
        [remote_memory] => [network]\nswitching = "store_and_forward"\nsegment = "4 KiB"\n[remote_memory] => 43: `network.segment` … a segment … store_and_forward
        [remote_memory] => [network]\nsend_completion = "eager"\n[remote_memory] => 42: `network.send_completion` … "eager" … injected, delivered
        [remote_memory] => [[network]]\n[remote_memory] => 41: `network` … an array … a table
        "#,
    );
}

#[test]
fn text_that_is_no_toml_is_refused_by_line() {
    check_edit_errors(
        r#"
        name = "two" => name = "two => 1 … not TOML
        [assign] => [assign => 20 … not TOML
        lanes = 1 => lanes = 1\nlanes = 1 => 18 … not TOML … duplicate key
        "#,
    );
}

#[test]
fn unknown_and_missing_keys_are_refused() {
    check_edit_errors(
        r#"
        description => descripton => 2: `descripton` … unknown … name, description
        memory_latency => latency => 7: `npu.fast.latency` … one of … memory_latency
        latency = "1.5 => lag = "1.5 => 37: `dimension[1].lag` … one of … latency
        attachment => kind => 42: `remote_memory.kind` … one of … attachment
        fp8 => fp7 => 5: `npu.fast.peak.fp7` … one of … fp64 … int8
        name = "two" =>  => 1: `name` … found nothing
        lanes = 32 =>  => 4: `npu.fast.lanes` … found nothing … from 1 to
        size = 2 =>  => 32: `dimension[1].size` … found nothing
        shape = "ring" =>  => 24: `dimension[0].shape` … ring, mesh, fully_connected
        "#,
    );
}

#[test]
fn wrong_types_are_refused() {
    check_edit_errors(
        r#"
        "two" => 2 => 1: `name` … the number 2 … text in quotes
        "two" => "" => 1: `name` … found "" … one line
        "one line" => "a\tb" => 2: `description` … one line
        size = 4 => size = 4.5 => 27: `dimension[0].size` … 4.5 … whole number
        "450 GB/s" => 450 => 28: `dimension[0].bandwidth` … 450 … in quotes
        scalable = true => scalable = 1 => 39: `dimension[1].scalable` … true or false
        [remote_memory] => [[remote_memory]] => 41: `remote_memory` … an array … a table
        "#,
    );
    let text = Machine::parse("name = \"x\"\nnpu = 1979-05-27", "m")
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        "m:2: key `npu`: found a date or time, expected a table"
    );
}

#[test]
fn bad_units_are_refused() {
    check_edit_errors(
        r#"
        450 GB/s => 450 gb/s => 28: `dimension[0].bandwidth` … `gb/s` … GiB/s
        450 GB/s => 450 => 28: `dimension[0].bandwidth` … the unit is missing
        450 GB/s => 0 GB/s => 28: `dimension[0].bandwidth` … more than zero
        450 GB/s => 450 ns => 28: `dimension[0].bandwidth` … is not a bandwidth
        80 GB => 80.5 B => 8: `npu.fast.memory_capacity` … whole number of bytes
        100 TFLOP/s => 100 T => 5: `npu.fast.peak.bf16` … TFLOP/s
        "#,
    );
}

#[test]
fn impossible_values_are_refused() {
    // The last line has 4 x 2^21 = 8,388,608 NPUs, twice the maximum of 2^22.
    check_edit_errors(
        r#"
        "ring" => "torus" => 26: `dimension[0].shape` … "torus" … switch
        "direct" => "star" => 38: `dimension[1].algorithm` … "star" … ring, direct, halving_doubling, recursive_doubling, double_binary_tree, tree, pairwise, nccl, auto
        "pool" => "far" => 42: `remote_memory.attachment` … per_npu, pool
        size = 4 => size = 0 => 27: `dimension[0].size` … the number 0 … from 1 to
        size = 4 => size = -4 => 27: `dimension[0].size` … the number -4
        lanes = 32 => lanes = 0 => 9: `npu.fast.lanes` … the number 0
        host_lanes = 1 => host_lanes = 70000 => 18: `npu.slow.host_lanes` … 65536
        80 GB => 0 GB => 8: `npu.fast.memory_capacity` … more than zero
        1 TB"\n => 0 B"\n => 45: `remote_memory.capacity` … more than zero
        "outer" => "inner" => 32: `dimension[1]` … "inner" twice
        "ring"\n\n => "ring"\nscalable = true\n => 31: `dimension[0].scalable` … outermost
        { bf16 = "50 TFLOP/s" } => {} => 13: `npu.slow.peak` … no rate … bf16
        size = 2 => size = 2097152 => 35: `dimension[1].size` … 8388608 NPUs … at most 4194304
        "#,
    );
}

#[test]
fn machines_need_a_dimension_but_npu_rates_may_be_unknown() {
    let (classes, rest) = GOOD.split_once("[[dimension]]").unwrap();
    let error = |text: &str| Machine::parse(text, "m.toml").unwrap_err().to_string();
    let text = error(classes);
    assert!(
        text.starts_with("m.toml:1: key `dimension`: found nothing"),
        "{text}"
    );
    let text = error(&format!("dimension = []\n{classes}"));
    assert!(
        text.starts_with("m.toml:1: key `dimension`: found no dimension"),
        "{text}"
    );
    // Without an `npu` table, the NPUs' rates are unknown; an empty table is an error.
    let text = format!("name = \"x\"\n[[dimension]]{rest}");
    let machine = Machine::parse(&text, "m.toml").unwrap();
    assert_eq!(
        machine.npu_classes(),
        [NpuClass::create_class_with_unknown_rates()]
    );
    assert_eq!(machine.npu_memory_capacity_with_port_share(0), None);
    let text = error(&format!("npu = {{}}\n{text}"));
    assert!(text.contains("key `npu`: found no class"), "{text}");
}

#[test]
fn class_assignments_that_do_not_cover_each_npu_once_are_refused() {
    check_edit_errors(
        r#"
        0-3,6 => 0-3,8 => 21: `assign.fast` … "8" … from 0 to 7
        0-3,6 => 0-4000000000 => 21: `assign.fast` … 0-4000000000
        0-3,6 => 3-0 => 21: `assign.fast` … "3-0"
        0-3,6 =>  => 21: `assign.fast` … found ""
        "0-3,6" => [0, 1] => 21: `assign.fast` … an array … 0-3,6
        0-3,6 => 0-3 => 20: `assign` … no class for NPU 6 … each NPU in exactly one class
        4-5, 7 => 7 => 20: `assign` … no class for NPUs 4 to 5
        4-5, 7 => 4-7 => 20: `assign` … NPU 6 in " … each NPU in exactly one class
        slow = "4 => idle = "4 => 22: `assign.idle` … unknown … fast, slow
        slow = "4-5, 7" =>  => 20: `assign.slow` … found nothing
        "#,
    );
    let text = error_of_edited_good_machine("[assign]\nfast = \"0-3,6\"\nslow = \"4-5, 7\"", "");
    assert!(
        text.starts_with("m.toml:1: key `assign`: found nothing"),
        "{text}"
    );
}

#[test]
fn power_slows_products_by_the_root_of_its_ratio() {
    let text = |power: &str| {
        let source = find_machine_text("dgx-h100").unwrap().text;
        let lines = source.lines().filter(|line| !line.starts_with("slower"));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        text.replace("sustained = 0.87", power)
    };
    let curves = |power: &str| {
        let machine = Machine::parse(&text(power), "h100.toml").unwrap();
        machine.npu_classes()[0].curves.clone()
    };
    let bf16 = Dtype::Bf16 as usize;
    let (whole, less) = (
        curves("sustained = 1"),
        curves("sustained = 0.5\nlimit = 175\nrated = 700"),
    );
    let products = |c: &KernelTimeCurves| c.gemm[bf16].unwrap().efficiency;
    let attention = |c: &KernelTimeCurves| c.attention[bf16].unwrap().compute;
    // A quarter of the power halves the rate, which is proportional to the power's square root. Under continuous load,
    // matrix products keep half of that rate.
    assert!((products(&less) / products(&whole) - 0.25).abs() < 1e-12);
    assert!((attention(&less) / attention(&whole) - 0.5).abs() < 1e-12);
    for (power, expected) in [
        ("sustained = 1.1", "at most 1"),
        ("limit = 500", "the watts at which the rates were measured"),
        ("limit = 800\nrated = 700", "at most 700"),
        ("slower = 0.05", "the time until half"),
        (
            "slower_after = \"3 ms\"",
            "the fraction by which long matrix multiplications",
        ),
    ] {
        let refused = Machine::parse(&text(power), "h100.toml")
            .unwrap_err()
            .to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn creating_a_one_class_machine_refuses_invalid_parts() {
    let whole = Machine::parse(GOOD, "m.toml").unwrap();
    let make = |algorithms: &[CollectiveAlgorithm], class: NpuClass| {
        let algorithms = algorithms
            .iter()
            .copied()
            .map(DimensionAlgorithmChoice::Named)
            .collect();
        Machine::create_with_one_npu_class(
            "m".to_owned(),
            whole.topology().clone(),
            algorithms,
            class,
            None,
        )
    };
    let class = whole.npu_classes()[1].clone();
    let machine = make(&[CollectiveAlgorithm::Ring; 2], class.clone()).unwrap();
    assert_eq!(machine.class_of_npu(Npu(7)), 0);
    assert!(make(&[CollectiveAlgorithm::Ring], class.clone()).is_none());
    assert!(
        make(
            &[CollectiveAlgorithm::Ring; 2],
            NpuClass { lanes: 0, ..class }
        )
        .is_none()
    );
}

/// Random text that the test below inserts into a file: printable characters or TOML syntax.
const STRAY: &str = r#"\PC{0,12}|[\[\]{}="0-9.,\n-]{0,12}"#;

proptest! {
    /// No machine file causes a panic, even with text cut out and random text inserted.
    #[test]
    fn no_text_panics(at in 0..GOOD.len(), cut in 0..40_usize, put in STRAY) {
        let end = (at + cut).min(GOOD.len());
        let text = format!("{}{put}{}", &GOOD[..at], &GOOD[end..]);
        let _ = Machine::parse(&text, "m.toml");
    }
}
