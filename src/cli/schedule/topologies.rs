//! Chooses the topologies that the options request: a single topology, the best torus for each number of chips, or
//! random graphs.

use super::args::MultiChipScheduleArgs;
use super::work::{
    LayerCostCache, SubLayerCostsAndGivenSchedule, TopologyScheduleResult,
    schedule_doubling_parts_until_fit,
};
use chakram_base::config;
use chakram_base::random::split_mix;
use chakram_hardware::topology::chip_graph::ChipGraph;
use chakram_studies::schedule::ScheduleRunError;
use std::error::Error;
use std::rc::Rc;

/// Schedules `work` on all topologies that `args` names. Calls `shown` with each row as soon as it
/// is complete.
pub fn schedule_topologies(
    args: &MultiChipScheduleArgs,
    work: &Rc<SubLayerCostsAndGivenSchedule>,
    prices: &mut LayerCostCache,
    mut shown: impl FnMut(&TopologyScheduleResult) -> Result<(), Box<dyn Error>>,
) -> Result<Vec<TopologyScheduleResult>, Box<dyn Error>> {
    let mut rows: Vec<TopologyScheduleResult> = Vec::new();
    let mut state = args.seed;
    for name in &args.topology {
        if let Some(most) = parse_number_after_word(name, "tori:", 1024)? {
            for chips in 1..=most {
                let widths = (1..=chips)
                    .filter(|width| chips.is_multiple_of(*width) && width * width <= chips);
                let mut best: Option<TopologyScheduleResult> = None;
                for width in widths {
                    let graph =
                        ChipGraph::parse_named_shape(&format!("torus:{}x{width}", chips / width))?;
                    let row = schedule_doubling_parts_until_fit(
                        args,
                        work,
                        Some(graph),
                        chips as usize,
                        prices,
                    )?;
                    if best
                        .as_ref()
                        .is_none_or(|best| row.totals.total_seconds() < best.totals.total_seconds())
                    {
                        best = Some(row);
                    }
                }
                let row = best.ok_or("there is no torus")?;
                shown(&row)?;
                rows.push(row);
            }
        } else if let Some(draws) = parse_number_after_word(name, "random:", 100_000)? {
            let mut best: Option<f64> = None;
            for draw in 1..=draws {
                let random = &mut || split_mix(&mut state);
                let chips = 2 + ((u128::from(random()) * u128::from(args.below - 2)) >> 64) as u32;
                let graph = ChipGraph::create_random_connected_graph(chips, random);
                let row = match schedule_doubling_parts_until_fit(
                    args,
                    work,
                    Some(graph),
                    chips as usize,
                    prices,
                ) {
                    // The table has no link rate for so many links, so assume that such chips do not exist, and
                    // skip this topology.
                    Err(error)
                        if error
                            .downcast_ref::<ScheduleRunError>()
                            .is_some_and(|error| matches!(error, ScheduleRunError::NoRate(_))) =>
                    {
                        continue;
                    }
                    other => other?,
                };
                if best.is_none_or(|best| row.totals.total_seconds() < best) {
                    best = Some(row.totals.total_seconds());
                    let row = TopologyScheduleResult {
                        name: format!("draw {draw}"),
                        ..row
                    };
                    shown(&row)?;
                    rows.push(row);
                }
            }
        } else {
            let (graph, chips) = load_topology_and_chip_count(name)?;
            let row = schedule_doubling_parts_until_fit(args, work, graph, chips, prices)?;
            shown(&row)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Parses the number after `word`, or returns `None` if `name` does not begin with `word`. Fails if the number is not
/// between 1 and `most`.
fn parse_number_after_word(name: &str, word: &str, most: u32) -> Result<Option<u32>, String> {
    let Some(number) = name.strip_prefix(word) else {
        return Ok(None);
    };
    let found = number.parse().ok().filter(|n| (1..=most).contains(n));
    found
        .map(Some)
        .ok_or_else(|| format!("--topology {name}: expected {word}N with N from 1 to {most}"))
}

/// Returns the graph called `name`, and the number of its chips.
fn load_topology_and_chip_count(name: &str) -> Result<(Option<ChipGraph>, usize), Box<dyn Error>> {
    if let Some(chips) = parse_number_after_word(name, "interfaces:", 4096)? {
        return Ok((None, chips as usize));
    }
    let graph = if name.contains('/') || !name.contains(':') {
        let text = config::read_file_or_standard_input(name)
            .map_err(|error| format!("cannot read {name}: {error}"))?;
        ChipGraph::parse(&text, name)?
    } else {
        ChipGraph::parse_named_shape(name)?
    };
    let chips = graph.chip_count() as usize;
    Ok((Some(graph), chips))
}
