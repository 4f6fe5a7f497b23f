//! The machine presets, and the translation of a machine's name to the text of a machine file.

use super::Machine;
use super::build;
use super::chips::{self, is_chip_graph_name};
use super::error::MachineError;
use super::inline::{self, is_inline_machine_notation};
use super::preset_files::{MachinePreset, PRESETS};
use chakram_base::config::{
    ConfigDocument, ConfigLiteral, STANDARD_INPUT, find_most_similar_name,
    read_file_or_standard_input, replace_toml_values,
};
use std::borrow::Cow;

/// A machine file's text, and the name that errors use for it.
#[derive(Clone, Debug)]
pub struct PresetOrMachineFileText {
    /// The preset's name, or the path as given.
    pub file: String,
    /// Text of the machine file.
    pub text: Cow<'static, str>,
}

/// Returns true if `name` is the path of a machine file and not a preset: it contains a `/` or ends in `.toml` or
/// `.topology`.
pub fn is_machine_file_path(name: &str) -> bool {
    let graph = is_chip_graph_name(name) && !name.contains(chips::EXTENSION);
    !is_inline_machine_notation(name) && !graph && (name.contains('/') || name.ends_with(".toml"))
        || name.ends_with(chips::EXTENSION)
}

/// Finds the text of the machine called `name`. The machine is a file ([`is_machine_file_path`]), dimensions in the
/// notation of the ASTRA-sim 2.0 paper (`machine/inline.rs`), a graph of chips (`machine/chips.rs`), or, failing these,
/// a preset. `NAMExN` is the preset `NAME` with `N` NPUs along its outermost dimension, which must be scalable.
///
/// # Errors
///
/// Fails if there is no such preset, the preset has a fixed size, or the file cannot be read.
pub fn find_machine_text(name: &str) -> Result<PresetOrMachineFileText, MachineError> {
    if is_chip_graph_name(name) {
        return Ok(PresetOrMachineFileText {
            file: name.to_owned(),
            text: Cow::Owned(chips::build_graph_machine_text(name)?),
        });
    }
    if is_machine_file_path(name) || name == STANDARD_INPUT {
        let text = read_file_or_standard_input(name).map_err(|source| MachineError::Read {
            file: name.to_owned(),
            source,
        })?;
        return Ok(PresetOrMachineFileText {
            file: name.to_owned(),
            text: Cow::Owned(text),
        });
    }
    let text = if is_inline_machine_notation(name) {
        Cow::Owned(inline::build_machine_text(name)?)
    } else {
        read_preset_text(name)?
    };
    Ok(PresetOrMachineFileText {
        file: name.to_owned(),
        text,
    })
}

/// Returns the text of preset `name`, which may have the form `NAMExN`.
///
/// # Errors
///
/// Fails if there is no such preset, or the preset has a fixed size.
pub fn read_preset_text(name: &str) -> Result<Cow<'static, str>, MachineError> {
    let find = |name: &str| PRESETS.iter().find(|preset| preset.name == name);
    if let Some(preset) = find(name) {
        return Ok(Cow::Borrowed(preset.text));
    }
    let number = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    // Split at the last `x`, because a preset's own name may contain an `x`.
    let scaled = name.rsplit_once('x').filter(|(_, size)| number(size));
    match scaled.and_then(|(base, size)| Some((find(base)?, size))) {
        Some((preset, size)) => {
            let text = scale_preset_text(preset.text, preset.name, name, size)?;
            text.map(Cow::Owned).ok_or_else(|| MachineError::Fixed {
                name: name.to_owned(),
                preset: preset.name,
            })
        }
        None => Err(MachineError::Unknown {
            // The argument may be arbitrarily long, so truncate it for the message.
            name: name.chars().take(80).collect(),
            closest: find_closest_preset(name),
        }),
    }
}

/// Returns the machine file `text` with two values replaced: the name by `name`, and the size of the outermost
/// dimension by `size`, a string of digits. Errors name the text's file as `file`. Returns `None` unless the outermost
/// dimension is scalable.
fn scale_preset_text(
    text: &str,
    file: &str,
    name: &str,
    size: &str,
) -> Result<Option<String>, MachineError> {
    let document = ConfigDocument::parse(text, file)?;
    let scalable = build::build_machine(&document, None)?.is_scalable();
    let Some([at_name, at_size]) =
        build::byte_ranges_of_name_and_outermost_size(&document).filter(|_| scalable)
    else {
        return Ok(None);
    };
    // TOML rejects leading zeros, so remove them.
    let digits = size.trim_start_matches('0');
    let mut text = text.to_owned();
    text.replace_range(at_size, if digits.is_empty() { "0" } else { digits });
    text.replace_range(at_name, &format!("{name:?}"));
    Ok(Some(text))
}

/// Loads the machine called `name` as [`Machine::load_by_name`] does. A scalable outermost dimension gets the smallest
/// size that fits `ranks`.
///
/// # Errors
///
/// Returns the errors of [`Machine::load_by_name`].
pub fn load_for_ranks(name: &str, ranks: u32) -> Result<Machine, MachineError> {
    load_for_ranks_replacing_values(name, ranks, &[])
}

/// Loads the machine called `name` as [`load_for_ranks`] does, but replaces some values, each identified by its path in
/// the file.
///
/// # Errors
///
/// Returns the errors of [`Machine::load_by_name`]; also fails if the file has no such path.
pub fn load_for_ranks_replacing_values(
    name: &str,
    ranks: u32,
    values: &[(&str, &ConfigLiteral)],
) -> Result<Machine, MachineError> {
    let mut source = find_machine_text(name)?;
    let mut original = None;
    if !values.is_empty() {
        original = Some(Machine::parse(&source.text, &source.file)?);
        source.text = Cow::Owned(replace_toml_values(&source.text, &source.file, values)?);
    }
    let parse = |text: &str| match &original {
        None => Machine::parse(text, &source.file),
        Some(original) => Machine::parse_edited_text_of_machine(text, &source.file, original),
    };
    let machine = parse(&source.text)?;
    let dimensions = machine.topology().dimensions();
    let Some(outermost) = dimensions.last().filter(|_| machine.is_scalable()) else {
        return Ok(machine);
    };
    let size = machine.outermost_size_for(ranks.into());
    if size == u128::from(outermost.size) {
        return Ok(machine);
    }
    let scaled = format!("{}x{size}", machine.name());
    match scale_preset_text(&source.text, &source.file, &scaled, &size.to_string())? {
        Some(text) => parse(&text),
        None => Ok(machine),
    }
}

/// Returns true if `name` is a preset, or a preset with a size such as `dgx-h100x4`.
pub fn is_preset(name: &str) -> bool {
    read_preset_text(name).is_ok()
}

/// Returns the name of a machine that fits `ranks`: `name` itself, or `PRESETxN` if `name` is a scalable preset.
/// Returns `None` if no size is large enough, or if there is no such machine.
pub fn scale_machine_name_to_ranks(name: &str, ranks: u32) -> Option<String> {
    let holds = |machine: &Machine| machine.max_ranks_without_placement_map() >= ranks;
    if Machine::load_by_name(name).is_ok_and(|machine| holds(&machine)) {
        return Some(name.to_owned());
    }
    let sized = |preset: &&MachinePreset| {
        let size = name.strip_prefix(preset.name);
        let size = size.and_then(|rest| rest.strip_prefix('x'));
        name == preset.name || size.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
    };
    let base = PRESETS.iter().find(sized)?;
    let machine = load_for_ranks(base.name, ranks).ok().filter(holds)?;
    Some(machine.name().to_owned())
}

/// Returns the preset whose name is most similar, or `None` if no name is similar enough. May ignore a number of nodes
/// at the end of `name`.
fn find_closest_preset(name: &str) -> Option<&'static str> {
    let digits = |size: &str| size.bytes().all(|b| b.is_ascii_digit());
    let base = name.rsplit_once('x').filter(|(_, size)| digits(size));
    let names = || PRESETS.iter().map(|preset| preset.name);
    find_most_similar_name(name, names()).or_else(|| find_most_similar_name(base?.0, names()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::DimensionShape;
    use chakram_base::dtype::Dtype;
    use chakram_base::units::Bandwidth;

    /// Tests presets with eight NPUs per node, a preset with a fixed size of 320 NPUs, and a scalable preset of 512
    /// NPUs in a single dimension.
    #[test]
    fn machines_are_named_at_the_size_that_holds_the_ranks() {
        for (name, ranks, named) in [
            ("dgx-h100", 8, Some("dgx-h100")),
            ("dgx-h100", 9, Some("dgx-h100x2")),
            ("dgx-h100x4", 8, Some("dgx-h100x4")),
            ("dgx-h100x4", 64, Some("dgx-h100x8")),
            ("wafer-5x4", 320, Some("wafer-5x4")),
            ("wafer-5x4", 321, None),
            (
                "Ring(4)_Switch(2):100GB/s:1us",
                8,
                Some("Ring(4)_Switch(2):100GB/s:1us"),
            ),
            ("Ring(4)_Switch(2):100GB/s:1us", 9, None),
            ("nosuch/machine.toml", 1, None),
        ] {
            assert_eq!(
                scale_machine_name_to_ranks(name, ranks).as_deref(),
                named,
                "{name}"
            );
        }
        assert!(is_preset("dgx-h100x4") && !is_preset("machine.toml") && !is_preset("h100"));
    }

    /// For each preset: (name, NPUs, bf16 TFLOP/s, GB/s of each dimension).
    const FIGURES: &[(&str, u32, f64, &[f64])] = &[
        ("dgx-a100", 8, 312.0, &[300.0, 25.0]),
        ("dgx-h100", 8, 989.4, &[450.0, 50.0]),
        ("dgx-h200", 8, 989.4, &[450.0, 50.0]),
        ("dgx-b200", 8, 2250.0, &[900.0, 50.0]),
        ("grand-teton-h100", 8, 989.4, &[450.0, 50.0]),
        ("selene", 8, 312.0, &[233.0, 25.0]),
        ("gb200-nvl72", 72, 2500.0, &[900.0, 50.0]),
        ("h100-pcie", 8, 756.0, &[64.0, 50.0]),
        ("dgx-h800", 8, 989.4, &[200.0, 50.0]),
        ("b300", 8, 2250.0, &[900.0, 100.0]),
        ("gb300", 72, 2500.0, &[900.0, 100.0]),
        ("dgx-v100", 8, 125.0, &[150.0, 12.5]),
        ("mi300x", 8, 1307.4, &[448.0, 50.0]),
        ("tpu-v4", 64, 275.0, &[100.0, 100.0, 100.0]),
        ("tpu-v5p", 64, 459.0, &[200.0, 200.0, 200.0]),
        ("tpu-v6e", 256, 918.0, &[200.0, 200.0]),
        ("tpu7x", 64, 2307.0, &[200.0, 200.0, 200.0]),
        ("trn1", 32, 95.0, &[192.0, 3.125]),
        ("wafer-5x4", 320, 16.0, &[2048.0, 2048.0]),
        ("wafer-5x4-published", 320, 16.0, &[2048.0, 2048.0]),
        ("palm-gpu", 8, 312.0, &[261.0, 32.0]),
        ("gemmini", 1, 0.3584, &[1.0]),
        ("grayskull", 120, 0.76667, &[384.0, 384.0]),
        ("dojo-tile", 9000, 1.024, &[256.0, 256.0]),
        ("wse-2", 850_000, 0.0176, &[8.8, 8.8]),
        ("w-1d-350", 512, 234.0, &[350.0]),
        ("w-1d-500", 512, 234.0, &[500.0]),
        ("w-1d-600", 512, 234.0, &[600.0]),
        ("w-2d", 512, 234.0, &[250.0, 250.0]),
        ("conv-3d", 512, 234.0, &[200.0, 100.0, 50.0]),
        ("conv-4d", 512, 234.0, &[250.0, 200.0, 100.0, 50.0]),
        ("zero-infinity", 256, 2048.0, &[256.0, 512.0]),
        ("hiermem", 256, 2048.0, &[256.0, 512.0]),
        ("hiermem-opt", 256, 2048.0, &[512.0, 512.0]),
    ];

    #[test]
    fn presets_have_the_published_figures() {
        assert_eq!(FIGURES.len(), PRESETS.len());
        for (name, npus, peak, bandwidths) in FIGURES {
            let machine = Machine::load_preset(name).unwrap();
            assert_eq!(machine.name(), *name);
            assert_eq!(machine.topology().npu_count(), *npus, "{name}");
            let peaks = &machine.npu_classes()[0].peaks;
            let rate = peaks
                .peak_rate_if_supported(Dtype::Bf16)
                .or(peaks.peak_rate_if_supported(Dtype::Fp16))
                .unwrap();
            assert_eq!(rate.per_second(), peak * 1e12, "{name}");
            let dimensions = machine.topology().dimensions().iter();
            let found: Vec<_> = dimensions
                .map(|d| d.bandwidth.bytes_per_second() / 1e9)
                .collect();
            assert_eq!(found, *bandwidths, "{name}");
        }
    }

    #[test]
    fn remote_memory_presets_have_published_figures() {
        use crate::memory::MemoryAttachment;
        // Table V of the ASTRA-sim 2.0 paper: bandwidth of local memory and of a memory group in GB/s, numbers of
        // groups and switches, bandwidth within a node in GB/s.
        let gb = |rate: Bandwidth| rate.bytes_per_second() / 1e9;
        for (name, group, in_node) in [("hiermem", 100.0, 256.0), ("hiermem-opt", 500.0, 512.0)] {
            let machine = Machine::load_preset(name).unwrap();
            let remote = machine.unnamed_remote_memory().unwrap();
            let MemoryAttachment::Hierarchical(design) = &remote.attachment else {
                panic!("{name}")
            };
            assert_eq!(
                gb(machine.npu_classes()[0].memory_bandwidth().unwrap()),
                4096.0
            );
            assert_eq!(gb(remote.bandwidth), group);
            assert_eq!(gb(design.in_node_bandwidth), in_node);
            assert_eq!((design.groups, design.out_switches), (256, 16));
        }
        let machine = Machine::load_preset("zero-infinity").unwrap();
        let remote = machine.unnamed_remote_memory().unwrap();
        assert_eq!(remote.attachment, MemoryAttachment::PerNpu);
        assert_eq!(gb(remote.bandwidth), 100.0);
        assert_eq!(
            gb(machine.npu_classes()[0].memory_bandwidth().unwrap()),
            4096.0
        );
    }

    #[test]
    fn preset_node_totals_agree_with_datasheets() {
        // For each preset: its name, the number of NPUs in a node or rack, and the datasheet's totals for it: PFLOP/s
        // in fp8 or int8 with sparsity (which doubles the rate), memory in GB, bandwidth of the links in both
        // directions in TB/s, and bandwidth of the network ports in Gb/s. MI300X: 8 x 896 GB/s = 7.168 TB/s.
        let totals = [
            ("dgx-h100", 8.0, 32.0, 640.0, 7.2, 3200.0),
            ("dgx-h200", 8.0, 32.0, 1128.0, 7.2, 3200.0),
            ("dgx-b200", 8.0, 72.0, 1440.0, 14.4, 3200.0),
            ("gb200-nvl72", 72.0, 720.0, 13_400.0, 130.0, 28_800.0),
            ("mi300x", 8.0, 41.8, 1536.0, 7.168, 3200.0),
        ];
        let near = |found: f64, total: f64| (found / total - 1.0).abs() < 0.015;
        for (name, npus, sparse, memory, links, ports) in totals {
            let machine = Machine::load_preset(name).unwrap();
            let class = &machine.npu_classes()[0];
            for dtype in [Dtype::Fp8, Dtype::Int8] {
                let rate = class
                    .peaks
                    .peak_rate_if_supported(dtype)
                    .unwrap()
                    .per_second();
                assert!(near(2.0 * rate * npus, sparse * 1e15), "{name} {dtype:?}");
            }
            let capacity = class.memory.unwrap().capacity.unwrap().0 as f64;
            assert!(near(capacity * npus, memory * 1e9), "{name}");
            let [inner, outer] = machine.topology().dimensions() else {
                panic!("{name}")
            };
            let inner = inner.bandwidth.bytes_per_second();
            assert!(near(2.0 * inner * npus, links * 1e12), "{name}");
            let outer = outer.bandwidth.bytes_per_second();
            assert!(near(8.0 * outer * npus, ports * 1e9), "{name}");
            assert!(machine.is_scalable(), "{name}");
        }
        // An NPU has 7 links of 64 GB/s, one to every other NPU.
        let machine = Machine::load_preset("mi300x").unwrap();
        let fabric = &machine.topology().dimensions()[0];
        assert_eq!(fabric.shape, DimensionShape::FullyConnected);
        let links = f64::from(fabric.size - 1);
        assert_eq!(fabric.bandwidth.bytes_per_second(), links * 64e9);
        // An NPU has 6 links of 50 GB/s, two along each of three dimensions.
        let machine = Machine::load_preset("tpu-v4").unwrap();
        for dimension in machine.topology().dimensions() {
            assert_eq!(dimension.link_bandwidth().bytes_per_second(), 50e9);
        }
        // NVLink-C2C has 900 GB/s, summed over both directions. The two NPUs of a Grace CPU share it.
        let machine = Machine::load_preset("gb200-nvl72").unwrap();
        let host = machine.unnamed_remote_memory().unwrap();
        assert_eq!(host.bandwidth.bytes_per_second(), 900e9 / 2.0 / 2.0);
    }

    #[test]
    fn every_number_of_a_preset_has_a_comment() {
        for preset in PRESETS {
            // A comment on a table's header line states the source of all its numbers.
            let mut explained = false;
            for line in preset.text.lines().filter(|line| !line.starts_with('#')) {
                if line.starts_with('[') {
                    explained = line
                        .split_once(" # ")
                        .is_some_and(|(_, why)| why.trim().len() >= 10);
                }
                let Some((key, value)) = line.split_once('=') else {
                    continue;
                };
                // Digits in number formats are part of a name and need no source. A comment above a list of times
                // covers the whole list.
                let words = [
                    "name",
                    "description",
                    "formats",
                    "members",
                    "first",
                    "factor",
                    "times",
                ];
                let words = words.contains(&key.trim());
                let (value, comment) = value.split_once(" # ").unwrap_or((value, ""));
                let number = value.contains(|c: char| c.is_ascii_digit()) && !words;
                assert!(
                    !number || explained || comment.trim().len() >= 10,
                    "{}: {line}",
                    preset.name
                );
            }
        }
    }

    #[test]
    fn a_name_with_a_size_sets_the_outermost_dimension() {
        // The machine has 8 NPUs in each of 4 nodes.
        let machine = Machine::load_by_name("dgx-h100x4").unwrap();
        assert_eq!(machine.name(), "dgx-h100x4");
        assert_eq!(machine.topology().npu_count(), 32);
        assert_eq!(machine.topology().dimensions()[1].size, 4);
        assert_eq!(
            Machine::load_by_name("dgx-h100x04")
                .unwrap()
                .topology()
                .npu_count(),
            32
        );
        // `gb200-nvl72x2` has 72 x 2 NPUs. `mi300xx4` has 4 nodes of 8 NPUs; the name of its preset ends in x.
        assert_eq!(
            Machine::load_by_name("gb200-nvl72x2")
                .unwrap()
                .topology()
                .npu_count(),
            144
        );
        assert_eq!(
            Machine::load_by_name("mi300xx4")
                .unwrap()
                .topology()
                .npu_count(),
            32
        );
        let one = Machine::load_by_name("dgx-h100").unwrap();
        assert_eq!(
            one.topology().dimensions()[0],
            machine.topology().dimensions()[0]
        );
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let error = |name: &str| Machine::load_by_name(name).unwrap_err().to_string();
        let text = error("tpu-v4x2");
        assert!(text.contains("`tpu-v4` has a fixed size"), "{text}");
        for name in [
            "dgx-a100x0",
            "dgx-a100x000",
            "dgx-a100x99999999999999999999999999",
        ] {
            let text = error(name);
            assert!(
                text.starts_with(name) && text.contains("`dimension[1].size`"),
                "{text}"
            );
        }
        // 8 x 1,000,000 NPUs exceed the maximum of 4,194,304.
        assert!(error("dgx-a100x1000000").contains("8000000 NPUs"));
    }

    #[test]
    fn unknown_names_bring_the_closest_and_the_command_that_lists_all() {
        let error = |name: &str| Machine::load_by_name(name).unwrap_err().to_string();
        let text = error("dgx-h10");
        let line = "did you mean `dgx-h100`?\n  try: a preset, which `chakram machine list` names";
        assert!(text.contains(line), "{text}");
        assert!(error("mi300x4").contains("did you mean `mi300x`?"));
        assert!(error("DGX-A1OO").contains("a preset, which `chakram machine list` names"));
        assert!(!error("laptop").contains("did you mean"));
        assert!(error("").contains("no machine is called \"\""));
        for name in ["dgx-h100x", "dgx-h100x-1", "x4", "é"] {
            assert!(error(name).contains("no machine is called"), "{name}");
        }
        assert!(error(&"x".repeat(10_000)).len() < 500);
    }

    #[test]
    fn machine_files_load_by_path_and_missing_paths_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dgx-a100.toml");
        std::fs::write(&path, PRESETS[1].text).unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(Machine::load_by_name(path).unwrap().name(), "dgx-h100");
        let missing = Machine::load_by_name("./no-such.toml")
            .unwrap_err()
            .to_string();
        assert!(
            missing.starts_with("cannot read machine file ./no-such.toml\n  try: "),
            "{missing}"
        );
    }
}
