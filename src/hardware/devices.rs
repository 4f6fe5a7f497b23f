//! Makers and presets of devices, found by the device names that drivers report.

/// For each maker, words that occur only in the names of its devices and NPU classes.
const MAKERS: [(&str, &[&str]); 5] = [
    (
        "NVIDIA",
        &[
            "nvidia", "tesla", "geforce", "quadro", "rtx", "p100", "v100", "t4", "a10", "a30",
            "a40", "a100", "a800", "l4", "l40", "l40s", "h20", "h100", "h200", "h800", "gh200",
            "b100", "b200", "b300", "gb200", "gb300",
        ],
    ),
    (
        "AMD",
        &[
            "amd", "instinct", "radeon", "mi50", "mi100", "mi210", "mi250", "mi250x", "mi300",
            "mi300a", "mi300x", "mi325x", "mi350x", "mi355x",
        ],
    ),
    ("Google", &["google", "tpu"]),
    ("Intel", &["intel", "gaudi", "gaudi2", "gaudi3"]),
    ("Huawei", &["huawei", "ascend"]),
];

/// For each device: words that its name must contain, words that its name must not contain, and its preset and NPU
/// class.
type DeviceNamePresetRule = (
    &'static [&'static str],
    &'static [&'static str],
    [&'static str; 2],
);

const PRESETS: [DeviceNamePresetRule; 12] = [
    (&["v100", "sxm2", "32gb"], &[], ["dgx-v100", "v100"]),
    (&["a100", "80gb"], &["pcie"], ["dgx-a100", "a100"]),
    (&["h100"], &["pcie", "nvl"], ["dgx-h100", "h100"]),
    (&["h100", "pcie"], &[], ["h100-pcie", "h100-pcie"]),
    (&["h800"], &["pcie", "nvl"], ["dgx-h800", "h800"]),
    (&["h200"], &["nvl"], ["dgx-h200", "h200"]),
    (&["b200"], &[], ["dgx-b200", "b200"]),
    (&["b300"], &[], ["b300", "b300"]),
    (&["gb200"], &[], ["gb200-nvl72", "gb200"]),
    (&["gb300"], &[], ["gb300", "gb300"]),
    (&["mi300x"], &[], ["mi300x", "mi300x"]),
    (&["tpu", "v4"], &[], ["tpu-v4", "tpu-v4"]),
];

fn split_words(name: &str) -> Vec<String> {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric());
    parts.map(str::to_ascii_lowercase).collect()
}

/// Returns the maker of a device or NPU class with this name, or `None` if no word in the name identifies a maker.
pub fn maker_of(name: &str) -> Option<&'static str> {
    let words = split_words(name);
    let has = |known: &&(&str, &[&str])| words.iter().any(|word| known.1.contains(&&**word));
    MAKERS.iter().find(has).map(|(maker, _)| *maker)
}

/// Returns the names of the preset and of its NPU class for devices called `name`, such as `NVIDIA H100 80GB HBM3`.
pub fn preset_and_npu_class_of_device(name: &str) -> Option<[&'static str; 2]> {
    let words = split_words(name);
    let has = |word: &&str| words.iter().any(|own| own == word);
    let found = PRESETS
        .iter()
        .find(|(all, none, _)| all.iter().all(has) && !none.iter().any(has));
    found.map(|(.., preset)| *preset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn names_of_devices_tell_makers_and_presets() {
        for (name, maker, preset) in [
            ("NVIDIA H100 80GB HBM3", Some("NVIDIA"), Some("dgx-h100")),
            ("NVIDIA H100 PCIe", Some("NVIDIA"), Some("h100-pcie")),
            ("NVIDIA H100 NVL", Some("NVIDIA"), None),
            ("NVIDIA H800", Some("NVIDIA"), Some("dgx-h800")),
            ("NVIDIA B300 SXM6 AC", Some("NVIDIA"), Some("b300")),
            ("NVIDIA GB300", Some("NVIDIA"), Some("gb300")),
            ("NVIDIA A100-SXM4-80GB", Some("NVIDIA"), Some("dgx-a100")),
            ("NVIDIA A100-SXM4-40GB", Some("NVIDIA"), None),
            ("Tesla V100-SXM2-32GB", Some("NVIDIA"), Some("dgx-v100")),
            ("Tesla V100-SXM2-16GB", Some("NVIDIA"), None),
            ("Tesla V100-PCIE-32GB", Some("NVIDIA"), None),
            ("AMD Instinct MI300X VF", Some("AMD"), Some("mi300x")),
            ("tpu-v4", Some("Google"), Some("tpu-v4")),
            ("core", None, None),
        ] {
            let found = preset_and_npu_class_of_device(name).map(|[preset, _]| preset);
            assert_eq!((maker_of(name), found), (maker, preset), "{name}");
        }
        for (.., [preset, class]) in PRESETS {
            let machine = Machine::load_by_name(preset).expect("it is a preset");
            assert_eq!(machine.npu_classes()[0].name, class, "{preset}");
            assert!(
                machine.npu_classes()[0].to_recording_class().is_some(),
                "{preset}"
            );
        }
    }
}
