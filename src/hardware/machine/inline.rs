//! Machines in the notation of the ASTRA-sim 2.0 paper (Won et al., ISPASS 2023, section IV-B), translated to machine
//! files.
//!
//! `Ring(4)_Switch(2):250 GB/s,50 GB/s:500 ns` lists the dimensions, innermost first; then the bandwidth of an NPU into
//! each dimension; then the latency of each dimension's links. A single bandwidth or latency may apply to all
//! dimensions. If the name of a preset or NPU comes first, as in `h100:Ring(8):50 GB/s:500 ns`, the machine has the
//! preset's `npu` tables. Otherwise the NPUs' rates are unknown. If several presets have an NPU with this name, the
//! first in the list is used. Each collective's number of chunks is chosen automatically, as for every machine file
//! that states none.

use super::error::MachineError;
use super::preset_files::PRESETS;
use crate::topology::{DimensionShape, Topology};
use chakram_base::setting::SettingKey;
use chakram_base::units::{Bandwidth, Span};
use std::fmt::Write;

/// Names and abbreviations of shapes, in lower case, with the algorithm that Table I of the ASTRA-sim 2.0 paper gives
/// for each.
const SHAPES: [(&[&str], DimensionShape, &str); 4] = [
    (&["ring", "r"], DimensionShape::Ring, "ring"),
    (
        &["fullyconnected", "fully_connected", "fc"],
        DimensionShape::FullyConnected,
        "direct",
    ),
    (
        &["switch", "sw"],
        DimensionShape::Switch,
        "halving_doubling",
    ),
    (&["mesh", "m"], DimensionShape::Mesh, "ring"),
];

/// A short example for error messages.
const EXAMPLE: &str = "Ring(4)_Switch(2):250 GB/s,50 GB/s:500 ns";

/// Returns true if `name` is a machine in this notation: a word and a number in parentheses, optionally after the name
/// of an NPU.
pub fn is_inline_machine_notation(name: &str) -> bool {
    is_dimension_notation(split_npu(name).1)
}

/// Returns true if `name` is a machine in this notation that lacks bandwidths and latencies.
pub fn is_inline_notation_without_rates(name: &str) -> bool {
    let dimensions = split_npu(name).1;
    is_dimension_notation(dimensions) && !dimensions.contains(':')
}

/// Splits off the name of an NPU before the dimensions, if the notation has one.
fn split_npu(name: &str) -> (Option<&str>, &str) {
    let is_word = |word: &str| {
        let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        !word.is_empty() && word.bytes().all(letter)
    };
    match name.split_once(':') {
        Some((npu, rest)) if is_word(npu) && is_dimension_notation(rest) => (Some(npu), rest),
        _ => (None, name),
    }
}

fn is_dimension_notation(text: &str) -> bool {
    let Some((word, rest)) = text.split_once('(') else {
        return false;
    };
    // A list that begins with a shape is dimensions even if the rest is wrong, so that the error names the fault.
    let list = rest.split(':').next().unwrap_or_default();
    let is_path = list.contains('/') || list.ends_with(".toml");
    let lower = word.to_ascii_lowercase();
    if !is_path && SHAPES.iter().any(|(names, ..)| names.contains(&&lower[..])) {
        return true;
    }
    let Some((digits, rest)) = rest.split_once(')') else {
        return false;
    };
    let letters =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_');
    let ends = rest.is_empty() || rest.starts_with(['_', ':']);
    letters(word) && ends && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Returns the `npu` tables of the preset called `name`, or of the first preset that has an NPU with this name.
fn preset_npu_tables_text(name: &str) -> Option<String> {
    let is_npu = |line: &str| line.starts_with("[npu.") || line.starts_with("[[npu.");
    let has_npu = |text: &str| {
        text.lines()
            .any(|line| line.starts_with(&format!("[npu.{name}]")))
    };
    let named = PRESETS.iter().find(|preset| preset.name == name);
    let preset = named.or_else(|| PRESETS.iter().find(|preset| has_npu(preset.text)))?;
    let mut tables = String::new();
    // The comments and blank lines before a table's header, which are copied with an `npu` table.
    let mut between: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in preset.text.lines() {
        if line.starts_with('[') {
            inside = is_npu(line);
        }
        if line.is_empty() || line.starts_with('#') {
            between.push(line);
            continue;
        }
        for line in between.drain(..).chain([line]).filter(|_| inside) {
            tables.push_str(line);
            tables.push('\n');
        }
    }
    Some(tables)
}

/// Returns the text of a machine file for `name`.
///
/// # Errors
///
/// Fails if no preset has the NPU, a shape is unknown, a size is zero, rates are missing, or the number of rates
/// differs from the number of dimensions.
pub(super) fn build_machine_text(name: &str) -> Result<String, MachineError> {
    let wrong = |found: String, expected: &str| MachineError::Notation {
        // The argument may be arbitrarily long, so truncate it for the message.
        name: name.chars().take(80).collect(),
        found: found.chars().take(80).collect(),
        expected: expected.to_owned(),
        example: EXAMPLE,
    };
    let (npu, notation) = split_npu(name);
    let npu = match npu {
        None => String::new(),
        Some(npu) => preset_npu_tables_text(npu).ok_or_else(|| {
            wrong(
                format!("NPU {npu:?}"),
                "a preset, which `chakram machine list` names, or the NPU of a preset, such as h100",
            )
        })?,
    };
    let mut parts = notation.splitn(3, ':');
    let shapes = parse_dimensions(parts.next().unwrap_or_default(), wrong)?;
    let bandwidths =
        parse_quantity_per_dimension(parts.next(), shapes.len(), SettingKey::Bandwidth, wrong)?;
    let latencies =
        parse_quantity_per_dimension(parts.next(), shapes.len(), SettingKey::Latency, wrong)?;
    let mut text = format!("name = {name:?}\n{npu}");
    for (i, (shape, algorithm, size)) in shapes.iter().enumerate() {
        let (bandwidth, latency) = (bandwidths[i], latencies[i]);
        if bandwidth.parse::<Bandwidth>().is_err() {
            return Err(wrong(
                format!("bandwidth {bandwidth:?}"),
                "one such as 250 GB/s",
            ));
        }
        if latency.parse::<Span>().is_err() {
            return Err(wrong(format!("latency {latency:?}"), "one such as 500 ns"));
        }
        let number = i + 1;
        write!(
            text,
            "\n[[dimension]]\nname = \"{shape}-{number}\"\nshape = \"{shape}\"\nsize = {size}\n\
             bandwidth = {bandwidth:?}\nlatency = {latency:?}\nalgorithm = \"{algorithm}\"\n"
        )
        .expect("a string grows as needed");
    }
    Ok(text)
}

type InlineDimensionShapeAndSize = (DimensionShape, &'static str, u32);

/// Parses `Ring(4)_Switch(2)`.
fn parse_dimensions(
    notation: &str,
    wrong: impl Fn(String, &str) -> MachineError,
) -> Result<Vec<InlineDimensionShapeAndSize>, MachineError> {
    let mut found = Vec::new();
    let mut rest = notation;
    loop {
        let (word, after) = rest.split_once('(').ok_or_else(|| {
            wrong(
                format!("{rest:?}"),
                "a shape with its size, such as Ring(4)",
            )
        })?;
        let lower = word.trim().to_ascii_lowercase();
        let shape = SHAPES
            .iter()
            .find(|(names, _, _)| names.contains(&&lower[..]));
        let (_, shape, algorithm) = shape.ok_or_else(|| {
            let expected = "Ring or R, FullyConnected or FC, Switch or SW, Mesh or M";
            wrong(format!("shape {:?}", word.trim()), expected)
        })?;
        let (digits, after) = after
            .split_once(')')
            .ok_or_else(|| wrong(format!("{after:?}"), "a `)` after the size"))?;
        let size = digits.trim().parse().ok();
        let size = size.filter(|size| (1..=Topology::MAX_NPUS).contains(size));
        let expected = format!("a number of NPUs from 1 to {}", Topology::MAX_NPUS);
        let size = size.ok_or_else(|| wrong(format!("size {digits:?}"), &expected))?;
        found.push((*shape, *algorithm, size));
        match after.strip_prefix('_') {
            Some(after) => rest = after,
            None if after.is_empty() => return Ok(found),
            None => return Err(wrong(format!("{after:?}"), "`_` between dimensions")),
        }
    }
}

/// Parses one quantity for each of `count` dimensions, or a single one for all.
fn parse_quantity_per_dimension(
    part: Option<&str>,
    count: usize,
    what: SettingKey,
    wrong: impl Fn(String, &str) -> MachineError,
) -> Result<Vec<&str>, MachineError> {
    let Some(part) = part.filter(|part| !part.trim().is_empty()) else {
        let expected = format!(
            "{what}, or the {} of each dimension after a colon",
            what.display_key_in_files()
        );
        return Err(wrong(
            format!("no {}", what.display_key_in_files()),
            &expected,
        ));
    };
    let mut all: Vec<_> = part.split(',').map(str::trim).collect();
    if all.len() == 1 {
        all = vec![all[0]; count];
    }
    if all.len() != count {
        let found = format!(
            "{} values of {} for {count} dimensions",
            all.len(),
            what.display_key_in_files()
        );
        return Err(wrong(found, "one value for each dimension, or one for all"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::{Machine, NpuClass};
    use super::*;
    use crate::collective::ChunkCountOrderAndOverlap;
    use std::num::NonZeroU32;

    #[test]
    fn a_notation_is_the_machine_that_a_file_describes() {
        let machine =
            Machine::load_by_name("Ring(4)_fc(2)_SW(2):250 GB/s,100GB/s,50 GB/s:500 ns").unwrap();
        let topology = machine.topology();
        assert_eq!(topology.npu_count(), 16);
        let found: Vec<_> = topology
            .dimensions()
            .iter()
            .map(|d| (d.shape, d.size, d.bandwidth.bytes_per_second(), d.latency))
            .collect();
        let ns = Span::from_ns(500);
        let expected = [
            (DimensionShape::Ring, 4, 250e9, ns),
            (DimensionShape::FullyConnected, 2, 100e9, ns),
            (DimensionShape::Switch, 2, 50e9, ns),
        ];
        assert_eq!(found, expected);
        assert_eq!(
            machine.npu_classes(),
            [NpuClass::create_class_with_unknown_rates()]
        );
        // The NPU comes from the preset `w-2d`, a machine of the ASTRA-sim 2.0 paper. The number of chunks does not
        // come from this preset, although it states 64.
        let paper = Machine::load_by_name("w-2d").unwrap();
        let machine = Machine::load_by_name("w-2d:Ring(4):250 GB/s:500 ns").unwrap();
        assert_eq!(machine.npu_classes(), paper.npu_classes());
        assert_eq!(
            paper.chunking_settings().chunks.map(NonZeroU32::get),
            Some(64)
        );
        assert_eq!(
            machine.chunking_settings(),
            ChunkCountOrderAndOverlap::default()
        );
    }

    /// The name may be any preset, or the NPU of a preset. `a100` is the NPU of `dgx-a100`, not of the machines in the
    /// ASTRA-sim 2.0 paper.
    #[test]
    fn inline_machines_can_use_the_npus_of_presets() {
        let classes = |name: &str| Machine::load_by_name(name).unwrap().npu_classes().to_vec();
        for preset in PRESETS {
            let named = classes(&format!("{}:R(4):1 GB/s:0 ns", preset.name));
            assert_eq!(named, classes(preset.name), "{}", preset.name);
            let npu = format!("{}:R(4):1 GB/s:0 ns", named[0].name);
            assert_eq!(classes(&npu)[0].name, named[0].name);
        }
        for (npu, preset) in [
            ("h100", "dgx-h100"),
            ("a100", "dgx-a100"),
            ("gpu", "hiermem"),
        ] {
            let lent = classes(&format!("{npu}:Switch(8):450GB/s:500ns"));
            assert_eq!(lent, classes(preset), "{npu}");
        }
        let error = Machine::load_by_name("h10:Ring(4):1 GB/s:0 ns")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("NPU \"h10\"") && error.contains("such as h100"),
            "{error}"
        );
        assert!(
            is_inline_notation_without_rates("Ring(4)")
                && is_inline_notation_without_rates("h100:Ring(4)_SW(2)")
        );
        assert!(
            !is_inline_notation_without_rates("h100:Ring(4):1 GB/s:0 ns")
                && !is_inline_notation_without_rates("dgx-h100")
        );
    }

    #[test]
    fn what_is_no_notation_is_left_to_presets_and_files() {
        for name in [
            "dgx-h100x4",
            "a/Ring(4).toml",
            "Ring(4).toml",
            "(4)",
            "R2(4)",
            "Torus(x)",
            "a/b:Ring(4)",
        ] {
            assert!(!is_inline_machine_notation(name), "{name}");
        }
        for name in [
            "Ring(4)",
            "R(4)_SW(2)",
            "Ring(4):1 GB/s:0 ns",
            "Torus(4)",
            "h100:R(4)",
            "Ring()",
            "Ring(x)",
            "Ring(8",
            "Ring(8)x:1 GB/s:0 ns",
        ] {
            assert!(is_inline_machine_notation(name), "{name}");
        }
    }

    #[test]
    fn errors_quote_the_wrong_part_of_the_notation() {
        for (name, found) in [
            ("Torus(4):1 GB/s:0 ns", "shape \"Torus\""),
            ("Ring(0):1 GB/s:0 ns", "size \"0\""),
            ("Ring(4)_Ring:1 GB/s:0 ns", "\"Ring\""),
            ("Ring(4)_Ring(2:1 GB/s:0 ns", "\"2\""),
            ("Ring(4)Ring(2):1 GB/s:0 ns", "\"Ring(2)\""),
            ("Ring(4)", "no bandwidth"),
            ("Ring(4):1 GB/s", "no latency"),
            (
                "Ring(4)_Ring(2):1 GB/s,2 GB/s,3 GB/s:0 ns",
                "3 values of bandwidth for 2",
            ),
            ("Ring(4):fast:0 ns", "bandwidth \"fast\""),
            ("Ring(4):1 GB/s:soon", "latency \"soon\""),
        ] {
            let error = build_machine_text(name).unwrap_err().to_string();
            assert!(error.contains(found), "{name}: {error}");
            assert!(error.contains(EXAMPLE), "{error}");
        }
        assert!(Machine::load_by_name("Ring(2000000)_Ring(2000000):1 GB/s:0 ns").is_err());
    }
}
