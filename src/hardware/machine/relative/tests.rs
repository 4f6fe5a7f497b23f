//! Tests machines that are derived with and without numbers from a datasheet.

use super::*;
use crate::machine::PRESETS;

fn derive_and_parse_machine(
    from: &str,
    sheet: &KnownMachineDatasheetOverrides,
) -> (String, Machine) {
    let text = derive_relative_machine(
        "x",
        &find_source_by_machine_or_npu_name(from).unwrap(),
        sheet,
    )
    .unwrap();
    let machine = Machine::parse(&text, "x").unwrap();
    (text, machine)
}

fn bandwidth_from_gb(rate: f64) -> Option<Bandwidth> {
    Bandwidth::new(rate * 1e9)
}

/// Without numbers, a machine derived from a preset with one NPU class equals the preset, except for names.
#[test]
fn without_numbers_a_relative_is_as_its_machine() {
    for preset in PRESETS {
        let (text, machine) =
            derive_and_parse_machine(preset.name, &KnownMachineDatasheetOverrides::default());
        assert_eq!(machine.name(), "x");
        let old = Machine::load_preset(preset.name).unwrap();
        let renamed = Machine::parse(
            &text
                .replacen("name = \"x\"", &format!("name = {:?}", old.name()), 1)
                .replace("npu.x]", &format!("npu.{}]", old.npu_classes()[0].name))
                .replace("npu.x.", &format!("npu.{}.", old.npu_classes()[0].name))
                .replacen(
                    &format!("description = {:?}", machine.description()),
                    &format!("description = {:?}", old.description()),
                    1,
                ),
            "x",
        );
        assert_eq!(renamed.unwrap(), old, "{}", preset.name);
        // Numbers that equal the machine's own leave all errors unchanged.
        let class = &old.npu_classes()[0];
        let same = KnownMachineDatasheetOverrides {
            bandwidth: class.memory_bandwidth(),
            ..KnownMachineDatasheetOverrides::default()
        };
        let (_, same) = derive_and_parse_machine(preset.name, &same);
        assert_eq!(
            same.npu_classes()[0].curves,
            class.curves,
            "{}",
            preset.name
        );
    }
    assert_eq!(
        find_source_by_machine_or_npu_name("h100").unwrap().file,
        "dgx-h100"
    );
    assert!(find_source_by_machine_or_npu_name("h10000").is_err());
}

#[test]
fn given_numbers_replace_those_of_the_original_machine() {
    let sheet = KnownMachineDatasheetOverrides {
        peaks: vec![
            parse_number_format_and_peak_rate("bf16=1484.1TFLOPs").unwrap(),
            parse_number_format_and_peak_rate("fp4 = 4 PFLOP/s").unwrap(),
        ],
        memory: Some(Bytes(141_000_000_000)),
        bandwidth: bandwidth_from_gb(4800.0),
        link: bandwidth_from_gb(1800.0),
        link_latency: Some(Span::from_ns(600)),
        nic: bandwidth_from_gb(100.0),
        npus_per_node: Some(4),
        multiprocessors: Some(148),
        price: Some(2.5),
    };
    let (text, machine) = derive_and_parse_machine("h100", &sheet);
    let class = &machine.npu_classes()[0];
    assert_eq!(class.name, "x");
    assert_eq!(
        class
            .peaks
            .peak_rate_if_supported(Dtype::Bf16)
            .unwrap()
            .per_second(),
        1484.1e12
    );
    assert_eq!(
        class
            .peaks
            .peak_rate_if_supported(Dtype::Fp4)
            .unwrap()
            .per_second(),
        4e15
    );
    // Missing numbers keep the known machine's values.
    assert_eq!(
        class
            .peaks
            .peak_rate_if_supported(Dtype::Fp8)
            .unwrap()
            .per_second(),
        1978.9e12
    );
    let memory = class.memory.unwrap();
    assert_eq!(memory.capacity, Some(Bytes(141_000_000_000)));
    assert_eq!(memory.bandwidth, bandwidth_from_gb(4800.0).unwrap());
    let [inner, outer] = machine.topology().dimensions() else {
        panic!("two dimensions")
    };
    // 1,800 GB/s is the sum over both directions of the links, so each direction has 900 GB/s.
    assert_eq!(
        (inner.bandwidth, inner.latency, inner.size),
        (bandwidth_from_gb(900.0).unwrap(), Span::from_ns(600), 4)
    );
    assert_eq!(outer.bandwidth, bandwidth_from_gb(100.0).unwrap());
    assert_eq!(machine.price_per_npu_hour(), Some(2.5));
    assert_eq!(machine.relative_of(), Some("dgx-h100"));
    for words in [
        "memory_bandwidth = \"4800 GB/s\"  # given; dgx-h100 has 3.35 TB/s",
        "fp4 = \"4000 TFLOP/s\"  # given; dgx-h100 has none",
        "# given: 1800 GB/s of links in both directions; dgx-h100 has 450 GB/s",
        "multiprocessors = 148  # given; dgx-h100 has 132",
        "price_per_npu_hour = 2.5  # given; dgx-h100 has none",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    // bf16 is 1.5 times as fast and the memory 4.8 / 3.35 times as fast, so q = 2 / 3. The derived machine's error is
    // the root of the sum of two squares: the preset's error for matrix products, and 0.23 (1 - q).
    let error = |machine: &Machine| {
        machine.npu_classes()[0].curves.gemm[Dtype::Bf16 as usize]
            .unwrap()
            .error
    };
    let old = Machine::load_preset("dgx-h100").unwrap();
    let expected = error(&old).hypot(0.23 / 3.0);
    assert!(
        (error(&machine) - expected).abs() < 1e-4,
        "{} for {expected}",
        error(&machine)
    );
    // Curves of collectives state the old links, so their times are converted to the new links.
    let curve = &machine.collective_curves()[0][0];
    assert_eq!(
        curve.measured_at.unwrap().bandwidth,
        bandwidth_from_gb(450.0).unwrap()
    );
}

#[test]
fn numbers_for_values_a_machine_lacks_are_refused() {
    let refused = |from: &str, sheet: &KnownMachineDatasheetOverrides| {
        let error = derive_relative_machine(
            "x",
            &find_source_by_machine_or_npu_name(from).unwrap(),
            sheet,
        )
        .unwrap_err();
        error.to_string()
    };
    let nic = KnownMachineDatasheetOverrides {
        nic: bandwidth_from_gb(50.0),
        ..KnownMachineDatasheetOverrides::default()
    };
    assert!(refused("w-1d-350", &nic).contains("one dimension"));
    let link = KnownMachineDatasheetOverrides {
        link: bandwidth_from_gb(50.0),
        ..KnownMachineDatasheetOverrides::default()
    };
    assert!(refused("wafer-5x4", &link).contains("a machine of tiles"));
    let count = KnownMachineDatasheetOverrides {
        multiprocessors: Some(7),
        ..KnownMachineDatasheetOverrides::default()
    };
    assert!(refused("tpu-v4", &count).contains("no curve of matrix multiplications"));
    for (text, part) in [
        ("989TFLOP/s", "such as bf16=989TFLOP/s"),
        ("bf61=989TFLOP/s", "did you mean `bf16`?"),
        ("bf16=989TFLIPS", "is not a rate of operations"),
        ("bf16=-1TFLOPS", "is not a rate of operations"),
    ] {
        let error = parse_number_format_and_peak_rate(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// If a machine is derived from a derived machine, it still names the machine on which times were measured. The second
/// derivation increases the errors again.
#[test]
fn deriving_again_keeps_measured_machine_and_widens_errors() {
    let sheet = KnownMachineDatasheetOverrides {
        bandwidth: bandwidth_from_gb(6700.0),
        price: Some(2.0),
        ..KnownMachineDatasheetOverrides::default()
    };
    let (text, once) = derive_and_parse_machine("h100", &sheet);
    let from = PresetOrMachineFileText {
        file: "x.toml".to_owned(),
        text: Cow::Owned(text),
    };
    let slower = KnownMachineDatasheetOverrides {
        bandwidth: bandwidth_from_gb(3350.0),
        price: Some(1.0),
        ..KnownMachineDatasheetOverrides::default()
    };
    let text = derive_relative_machine("y", &from, &slower).unwrap();
    let twice = Machine::parse(&text, "y").unwrap();
    assert_eq!(twice.relative_of(), Some("dgx-h100"));
    assert_eq!(
        (once.price_per_npu_hour(), twice.price_per_npu_hour()),
        (Some(2.0), Some(1.0))
    );
    // The first derivation halves the bandwidth, and the second doubles it. Each derivation adds an error of 0.115.
    let error = |machine: &Machine| {
        machine.npu_classes()[0].curves.gemm[Dtype::Bf16 as usize]
            .unwrap()
            .error
    };
    let old = Machine::load_preset("dgx-h100").unwrap();
    assert!((error(&once) - error(&old).hypot(0.115)).abs() < 1e-4);
    assert!((error(&twice) - error(&once).hypot(0.115)).abs() < 1e-4);
}
