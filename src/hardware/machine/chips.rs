//! Translates a graph of chips to a machine file. The graph is given as `torus:2x4`, for example, or as a topology file
//! such as `chips.topology`.
//!
//! After the name, a colon may introduce a link's rate, and another colon its latency (zero by default). If the name
//! states no rate, the rate depends on a chip's number of links, as in DEAP's Table III. Instead of a rate, `step` or
//! `log` selects how to derive it for numbers of links that this table lacks. Without a rule, only the numbers of links
//! in Table III are valid. The chips have the NPU class of the preset `gemmini`, and devices store and forward
//! messages, as in DEAP's Eq. 2.

use super::error::MachineError;
use super::preset_files::PRESETS;
use crate::topology::chip_graph::{ChipGraph, LinkRateByLinkCount, RateInterpolationByLinkCount};
use chakram_base::config::read_file_or_standard_input;
use chakram_base::units::{Bandwidth, Span};

/// Extension of topology files.
pub(super) const EXTENSION: &str = ".topology";

/// Prefixes of graph names.
const SHAPES: [&str; 3] = ["torus:", "mesh:", "ring:"];

/// A short example for error messages.
const EXAMPLE: &str = "chips.topology:64 GB/s:500 ns";

/// Returns true if `name` is a graph of chips or a topology file, and not a machine file or preset.
pub(super) fn is_chip_graph_name(name: &str) -> bool {
    SHAPES.iter().any(|shape| name.starts_with(shape)) || topology_file_name_end(name).is_some()
}

/// Returns the index in `name` at which the topology file's name ends, or `None`.
fn topology_file_name_end(name: &str) -> Option<usize> {
    let ends = name
        .match_indices(EXTENSION)
        .map(|(at, _)| at + EXTENSION.len());
    ends.into_iter()
        .find(|&end| name[end..].is_empty() || name[end..].starts_with(':'))
}

/// Returns the text of a machine file for the graph `name`.
///
/// # Errors
///
/// Fails if the graph is invalid, its file cannot be read, or the rates are invalid.
pub(super) fn build_graph_machine_text(name: &str) -> Result<String, MachineError> {
    let wrong = |found: String, expected: &str| MachineError::Notation {
        // The argument may be arbitrarily long, so truncate it for the message.
        name: name.chars().take(80).collect(),
        found: found.chars().take(80).collect(),
        expected: expected.to_owned(),
        example: EXAMPLE,
    };
    let (graph, rest) = match topology_file_name_end(name) {
        Some(end) => {
            let file = &name[..end];
            let text = read_file_or_standard_input(file).map_err(|source| MachineError::Read {
                file: file.to_owned(),
                source,
            })?;
            (ChipGraph::parse(&text, file)?, &name[end..])
        }
        None => {
            let colon = name.find(':').map_or(name.len(), |at| at + 1);
            let end = name[colon..].find(':').map_or(name.len(), |at| colon + at);
            (ChipGraph::parse_named_shape(&name[..end])?, &name[end..])
        }
    };
    if graph.chip_count() < 2 {
        return Err(wrong(
            "one chip".to_owned(),
            "two or more chips; the preset gemmini is a single chip",
        ));
    }
    let mut rates = rest.splitn(3, ':').skip(1).map(str::trim);
    let (rate, latency) = (rates.next().unwrap_or(""), rates.next().unwrap_or("0 ns"));
    if latency.parse::<Span>().is_err() {
        return Err(wrong(format!("latency {latency:?}"), "one such as 500 ns"));
    }
    let bandwidth = match rate {
        "" | "step" | "log" => {
            let rule = match rate {
                "step" => RateInterpolationByLinkCount::Step,
                "log" => RateInterpolationByLinkCount::Logarithmic,
                _ => RateInterpolationByLinkCount::None,
            };
            let table = LinkRateByLinkCount::deap_table_three(rule);
            let rows = table.links.iter();
            let rows: Vec<_> = rows
                .map(|(links, rate)| format!("{links} = \"{} GB/s\"", rate / 1e9))
                .collect();
            let most = graph.max_links_per_chip();
            if table.rate_per_link(most).is_none() {
                return Err(wrong(
                    format!("chips with {most} links, for which the table has no rate"),
                    "a rate of links, or `step` or `log`, after a colon",
                ));
            }
            let rule = if rate.is_empty() { "none" } else { rate };
            format!(
                "link_rates = {{ {} }}  # DEAP, Table III\ninterpolate = \"{rule}\"",
                rows.join(", ")
            )
        }
        rate if rate.parse::<Bandwidth>().is_ok() => format!("bandwidth = {rate:?}"),
        _ => {
            let expected = "a bandwidth such as 64 GB/s, or `step` or `log`";
            return Err(wrong(format!("rate {rate:?}"), expected));
        }
    };
    Ok(format!(
        "name = {name:?}\n{}\n[[dimension]]\nname = \"links\"\nshape = \"graph\"\nsize = {}\nlinks = \"{}\"\n{bandwidth}\n\
         latency = \"{latency}\"\nroutes = \"first\"\nalgorithm = \"direct\"\n\n\
         # DEAP, Eq. 2: latency = technology factor x size x distance.\n\
         [network]\nswitching = \"store_and_forward\"\n",
        gemmini_npu_tables_text(),
        graph.chip_count(),
        graph.format_link_list()
    ))
}

/// Returns the `npu` tables of the preset `gemmini`, whose NPU class the chips have.
fn gemmini_npu_tables_text() -> &'static str {
    let preset = PRESETS.iter().find(|preset| preset.name == "gemmini");
    let text = preset.map_or("", |preset| preset.text);
    let (start, end) = (text.find("[npu"), text.find("[[dimension]]"));
    start.zip(end).map_or("", |(start, end)| &text[start..end])
}

#[cfg(test)]
mod tests {
    use super::super::Machine;
    use super::*;
    use crate::topology::SwitchingMode;

    #[test]
    fn chip_graph_names_are_told_apart_from_file_and_preset_names() {
        for name in [
            "torus:2x4",
            "ring:8:64 GB/s",
            "a/b.topology",
            "c.topology:log",
            "mesh:2x4:log:1 us",
        ] {
            assert!(is_chip_graph_name(name), "{name}");
        }
        for name in [
            "torus.toml",
            "a/b.toml",
            "gemminix8",
            "Ring(4):1 GB/s:0 ns",
            "a.topology.toml",
        ] {
            assert!(!is_chip_graph_name(name), "{name}");
        }
    }

    /// For three links per chip, DEAP's Table III states 64 GB/s. For two links, the result is interpolated on
    /// logarithmic scales between 180 GB/s at one link and 64 GB/s at three: 180 x (64 / 180)^(ln 2 / ln 3) = 93.757
    /// GB/s. The rule `step` uses the next larger number of links in the table, for which it states 64 GB/s.
    #[test]
    fn graph_bandwidths_follow_the_table_and_its_interpolation_rules() {
        let rate = |name: &str| {
            let machine = Machine::load_by_name(name).unwrap();
            assert_eq!(
                machine.topology().switching_mode(),
                SwitchingMode::StoreAndForward
            );
            machine.topology().dimensions()[0]
                .bandwidth
                .bytes_per_second()
        };
        assert_eq!(rate("torus:2x4"), 64e9);
        assert_eq!(rate("ring:8:step"), 64e9);
        let log = rate("ring:8:log");
        let expected = 180e9 * (64.0_f64 / 180.0).powf(2.0_f64.ln() / 3.0_f64.ln());
        assert!((log / expected - 1.0).abs() < 1e-12, "{log} {expected}");
        assert_eq!(rate("ring:8:7 GB/s"), 7e9);
        let error = Machine::load_by_name("ring:8").unwrap_err().to_string();
        assert!(
            error.contains("chips with 2 links") && error.contains("`step` or `log`"),
            "{error}"
        );
        for (name, said) in [
            ("ring:8:fast", "rate \"fast\""),
            ("ring:8:1 GB/s:soon", "latency \"soon\""),
            ("ring:x", "is not a topology"),
            ("ring:1:log", "one chip"),
        ] {
            let error = Machine::load_by_name(name).unwrap_err().to_string();
            assert!(error.contains(said), "{name}: {error}");
        }
    }
}
