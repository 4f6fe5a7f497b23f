//! Gives the ranks of a captured job their own NPU classes.

use super::{SECTIONS, quote_toml, section_comment};
use chakram_base::ids::Npu;
use chakram_base::ids::format_numbers_as_ranges;
use chakram_hardware::machine::Machine;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Returns `text`, the contents of `machine`'s file, with new NPU classes. Each NPU in `ranks` that shares its class
/// with other NPUs gets its own class `CLASS-RANK`. The new class is a copy of the old one. Other NPUs keep their
/// class.
pub(super) fn give_ranks_own_npu_classes(
    text: &str,
    machine: &Machine,
    ranks: &BTreeSet<u32>,
) -> String {
    let npus = machine.topology().npu_count();
    let members =
        |class: usize| (0..npus).filter(move |npu| machine.class_of_npu(Npu(*npu)) == class);
    let mut sections = split_machine_file_at_sections(text);
    let mut assigned = String::from("[assign]\n");
    for (class, named) in machine.npu_classes().iter().enumerate() {
        let shared = members(class).count() > 1;
        let (own, rest): (Vec<u32>, Vec<u32>) =
            members(class).partition(|npu| shared && ranks.contains(npu));
        let renamed = own
            .iter()
            .map(|npu| (format!("{}-{npu}", named.name), vec![*npu]));
        let kept = (!rest.is_empty()).then(|| (named.name.clone(), rest.clone()));
        let all: Vec<(String, Vec<u32>)> = kept.into_iter().chain(renamed).collect();
        let copied =
            sections.into_iter().flat_map(|section| {
                match split_header_around_class_name(&section, &named.name) {
                    None => vec![section],
                    Some((before, after)) => (all.iter())
                        .map(|(name, _)| format!("{before}{}{after}", quote_toml(name)))
                        .collect(),
                }
            });
        sections = copied.collect();
        for (name, npus) in &all {
            // Writing to a string does not fail.
            let _ = writeln!(
                assigned,
                "{} = \"{}\"",
                quote_toml(name),
                format_numbers_as_ranges(npus)
            );
        }
    }
    sections.retain(|section| !section.starts_with("[assign]"));
    // Insert new tables before the sections of an earlier calibration, which must stay at the end
    // of the file.
    let end = sections
        .iter()
        .position(|section| begins_calibration_section(section));
    let calibrated = sections.split_off(end.unwrap_or(sections.len())).concat();
    let base = sections.concat();
    format!("{}\n\n{assigned}\n{calibrated}", base.trim_end())
}

/// Splits a machine file into parts, each beginning at a table or at a section of an earlier calibration.
fn split_machine_file_at_sections(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if line.starts_with('[') || begins_calibration_section(line) {
            all.push(String::new());
        }
        all.last_mut().expect("there is one").push_str(line);
    }
    all
}

/// Returns true if `line` begins a section of an earlier calibration.
fn begins_calibration_section(line: &str) -> bool {
    SECTIONS
        .iter()
        .any(|title| line.starts_with(section_comment(title).trim_start()))
}

/// Returns the two parts of the section's header that surround the class's name, or `None` if `section` is not a table
/// of the class `class`.
fn split_header_around_class_name<'s>(section: &'s str, class: &str) -> Option<(&'s str, &'s str)> {
    let start = ["[npu.", "[[npu."]
        .iter()
        .find(|start| section.starts_with(**start))?;
    let (before, rest) = section.split_at(start.len());
    let names = [quote_toml(class), class.to_owned()];
    let after = names.iter().find_map(|name| rest.strip_prefix(&name[..]))?;
    after.starts_with([']', '.']).then_some((before, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "name = \"m\"\n[npu.a]\npeak = { fp32 = \"1 TFLOP/s\" }\nmemory_bandwidth = \"1 TB/s\"\nlanes = 1\nhost_lanes = 1\nmemory_latency = \"1 us\"\nmemory_capacity = \"1 GB\"
[npu.a.power]\nsustained = 0.9\n[npu.\"b\"]\npeak = { fp32 = \"2 TFLOP/s\" }\nmemory_bandwidth = \"1 TB/s\"\nlanes = 1\nhost_lanes = 1\nmemory_latency = \"1 us\"\nmemory_capacity = \"1 GB\"
[assign]\na = \"0-2\"\nb = \"3-5\"\n[[dimension]]\nname = \"d\"\nshape = \"ring\"\nsize = 6\nbandwidth = \"1 GB/s\"\nlatency = \"1 us\"\nalgorithm = \"ring\"\n";

    #[test]
    fn per_rank_npu_classes_keep_the_original_values() {
        let before = Machine::parse(FILE, "m.toml");
        let before = before.unwrap_or_else(|error| panic!("{error}"));
        let text = give_ranks_own_npu_classes(FILE, &before, &(0..4).collect());
        let after =
            Machine::parse(&text, "m.toml").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let named = |machine: &Machine, npu: u32| {
            let class = &machine.npu_classes()[machine.class_of_npu(Npu(npu))];
            (
                class.name.clone(),
                class.memory_bandwidth(),
                format!("{:?}", class.peaks),
            )
        };
        let names = (0..6).map(|npu| named(&after, npu).0);
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["a-0", "a-1", "a-2", "b-3", "b", "b"]
        );
        for npu in 0..6 {
            assert_eq!(named(&after, npu).1, named(&before, npu).1);
            assert_eq!(named(&after, npu).2, named(&before, npu).2);
        }
        // Classes that have only one NPU are not split again.
        assert_eq!(
            give_ranks_own_npu_classes(&text, &after, &(0..4).collect()),
            text
        );
    }
}
