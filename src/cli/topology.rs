//! `chakram topology`: shows graphs of chips, and searches for graphs with few hops.

use super::flags::parser_of_choices;
use super::terminal;
use chakram_base::config;
use chakram_base::random::split_mix;
use chakram_hardware::topology::chip_graph::{
    ChipGraph, ChipGraphSummary, LinkRateByLinkCount, MOST_CHIPS, RateInterpolationByLinkCount,
};
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_trace::files::OutputsAndProtectedInputs;
use clap::{Args, Subcommand};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check graphs of chips, and search for graphs with the fewest hops
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram topology show torus:2x4
  chakram topology show my-chips.txt --interpolate step
  chakram topology show torus:4x4x3 -o chips.txt
  chakram topology tori --chips 36
  chakram topology random --draws 250 --below 50 --seed 1 -o best.txt")]
pub struct TopologyArgs {
    #[command(subcommand)]
    action: TopologyCommand,
}

#[derive(Debug, Subcommand)]
enum TopologyCommand {
    /// Print links, degrees, diameter and mean hops of a graph
    #[command(after_help = "Example:\n  chakram topology show mesh:2x4")]
    Show {
        /// torus:2x4, mesh:2x4 or ring:8, or a topology file
        #[arg(value_name = "GRAPH")]
        graph: String,
        #[command(flatten)]
        technology: LinkRateAndInterpolationArgs,
        /// Print only the graph's links, as in machine files with shape graph
        #[arg(long)]
        links: bool,
        /// Write the graph as a topology file
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Print the best two-dimensional torus for each number of chips
    #[command(after_help = "Example:\n  chakram topology tori --chips 36")]
    Tori {
        /// Maximum number of chips
        #[arg(long, value_name = "N", default_value_t = 36, value_parser = clap::value_parser!(u32).range(1..=1024))]
        chips: u32,
    },
    /// Generate random connected graphs, and print each new best graph
    #[command(after_help = "Example:\n  chakram topology random --draws 250 --below 50 --seed 1")]
    Random {
        /// Number of random graphs
        #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        draws: u32,
        /// Each graph has fewer chips than this
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(3..=i64::from(MOST_CHIPS)))]
        below: u32,
        /// Number of chips in each graph; by default a random number of at least 2
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=i64::from(MOST_CHIPS)))]
        chips: Option<u32>,
        /// Seed of the random graphs
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,
        #[command(flatten)]
        technology: LinkRateAndInterpolationArgs,
        /// Write the best graph as a topology file
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Rates of links.
#[derive(Clone, Debug, Args)]
struct LinkRateAndInterpolationArgs {
    /// Link rates by a chip's number of links, instead of the default table (level of TPU v4)
    #[arg(long, value_name = "LINKS=RATE,…", value_parser = LinkRateByLinkCount::parse)]
    rates: Option<LinkRateByLinkCount>,
    /// Rule for numbers of links that the table lacks (the default table lacks 2 and 4 to 11): unknown, the rate of the
    /// next larger number, or a rate between both neighbours on logarithmic scales
    #[arg(long, value_parser = parser_of_choices::<RateInterpolationByLinkCount>(), default_value = "log", value_name = "RULE")]
    interpolate: RateInterpolationByLinkCount,
}

impl LinkRateAndInterpolationArgs {
    fn link_rate_by_link_count(&self) -> LinkRateByLinkCount {
        let interpolation = self.interpolate;
        let table = LinkRateByLinkCount::deap_table_three(interpolation);
        LinkRateByLinkCount {
            interpolation,
            ..self.rates.clone().unwrap_or(table)
        }
    }
}

/// Runs the command, and prints its result to `out`.
///
/// # Errors
///
/// Fails if a graph is invalid, or if output cannot be written.
pub fn run(args: &TopologyArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    match &args.action {
        TopologyCommand::Show {
            graph,
            technology,
            links,
            output,
        } => {
            let mut outputs = OutputsAndProtectedInputs::default();
            let found = if graph.contains('/') || !graph.contains(':') {
                outputs.register_input(Path::new(graph));
                let text = config::read_file_or_standard_input(graph)
                    .map_err(|error| format!("cannot read {graph}: {error}"))?;
                ChipGraph::parse(&text, graph)?
            } else {
                ChipGraph::parse_named_shape(graph)?
            };
            if *links {
                writeln!(out, "{}", found.format_link_list())?;
            } else {
                writeln!(
                    out,
                    "{}: {}",
                    found.name(),
                    format_graph_summary(&found, &found.summarize())
                )?;
                writeln!(
                    out,
                    "{}",
                    render_mean_transfer_time_of_all_pairs(
                        &found,
                        &technology.link_rate_by_link_count()
                    )
                )?;
            }
            write_chip_graph_file(&found, output.as_deref(), outputs)?;
        }
        TopologyCommand::Tori { chips } => print_best_torus_of_each_chip_count(*chips, out)?,
        TopologyCommand::Random {
            draws,
            below,
            chips,
            seed,
            technology,
            output,
        } => {
            let best = search_random_topologies(
                (*draws, *below, *chips, *seed),
                &technology.link_rate_by_link_count(),
                out,
            )?;
            if let Some(best) = best {
                write_chip_graph_file(
                    &best,
                    output.as_deref(),
                    OutputsAndProtectedInputs::default(),
                )?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn format_graph_summary(graph: &ChipGraph, summary: &ChipGraphSummary) -> String {
    let (least, most) = summary.degrees;
    let degrees = if least == most {
        least.to_string()
    } else {
        format!("{least} to {most}")
    };
    format!(
        "{} chips, {} links, degree {degrees}, diameter {}, mean hops {:.3}, mean distance {:.3}",
        graph.chip_count(),
        summary.links,
        summary.diameter,
        summary.mean_hops,
        summary.mean_distance
    )
}

/// Returns the mean time, in seconds, to send 1 GB from one chip to another, averaged over all pairs of chips. This
/// time is the size times the mean distance, divided by the link rate for chips of the graph's largest degree.
fn mean_seconds_per_gigabyte(
    summary: &ChipGraphSummary,
    technology: &LinkRateByLinkCount,
) -> Option<f64> {
    Some(1e9 * summary.mean_distance / technology.rate_per_link(summary.degrees.1)?)
}

fn render_mean_transfer_time_of_all_pairs(
    graph: &ChipGraph,
    technology: &LinkRateByLinkCount,
) -> String {
    let summary = graph.summarize();
    let degree = summary.degrees.1;
    let through = 1e9 / technology.interface;
    match (
        technology.rate_per_link(degree),
        mean_seconds_per_gigabyte(&summary, technology),
    ) {
        (Some(rate), Some(seconds)) if degree > 0 => format!(
            "1 GB between two chips, mean of all pairs: {:.3} ms at {:.1} GB/s a link,\n  {:.1} times faster than the \
             {:.0} ms through network interfaces",
            1e3 * seconds,
            rate / 1e9,
            through / seconds,
            1e3 * through
        ),
        _ if degree == 0 => "no two chips are connected, so no data pass between chips".to_owned(),
        _ => {
            let stepped = LinkRateByLinkCount {
                interpolation: RateInterpolationByLinkCount::Step,
                ..technology.clone()
            };
            let remedy = match stepped.rate_per_link(degree) {
                Some(_) => "--interpolate step".to_owned(),
                None => format!("--rates {degree}=RATE"),
            };
            format!("the table has no rate for chips of {degree} links; try: {remedy}")
        }
    }
}

fn print_best_torus_of_each_chip_count(
    most: u32,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let columns = [
        left_aligned_column("BEST TORUS", 18),
        right_aligned_column("chips", 8),
        right_aligned_column("links", 8),
        right_aligned_column("diameter", 10),
        right_aligned_column("mean hops", 12),
    ];
    let table = TextTable::new(columns);
    terminal::print_plain_table_heading(&table, out)?;
    for chips in 1..=most {
        let graph = ChipGraph::find_torus_with_fewest_mean_hops(chips);
        let summary = graph.summarize();
        let hops = format!("{:.3}", summary.mean_hops);
        let cells: [&dyn std::fmt::Display; 5] = [
            &graph.name(),
            &chips,
            &summary.links,
            &summary.diameter,
            &hops,
        ];
        terminal::print_table_row(&table, &cells, out)?;
    }
    Ok(())
}

/// Generates random graphs, and prints each graph that lowers the best mean time to send 1 GB from one chip to another.
fn search_random_topologies(
    (draws, below, chips, seed): (u32, u32, Option<u32>, u64),
    technology: &LinkRateByLinkCount,
    out: &mut dyn Write,
) -> Result<Option<ChipGraph>, Box<dyn Error>> {
    let mut state = seed;
    let columns = [
        left_aligned_column("BEST SO FAR", 14),
        right_aligned_column("chips", 8),
        right_aligned_column("links", 8),
        right_aligned_column("degree", 8),
        right_aligned_column("mean hops", 12),
        right_aligned_column("1 GB", 14),
    ];
    let table = TextTable::new(columns);
    terminal::print_plain_table_heading(&table, out)?;
    let mut best: Option<(f64, ChipGraph)> = None;
    for draw in 1..=draws {
        let count = match chips {
            Some(chips) => chips,
            None => 2 + ((u128::from(split_mix(&mut state)) * u128::from(below - 2)) >> 64) as u32,
        };
        let graph = ChipGraph::create_random_connected_graph(count, &mut || split_mix(&mut state));
        let summary = graph.summarize();
        // The table has no link rate for so many links, so assume that such chips do not exist, and skip this graph.
        let Some(seconds) = mean_seconds_per_gigabyte(&summary, technology) else {
            continue;
        };
        if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
            let number = format!("draw {draw}");
            let (hops, time) = (
                format!("{:.3}", summary.mean_hops),
                format!("{:.3} ms", 1e3 * seconds),
            );
            let cells: [&dyn std::fmt::Display; 6] = [
                &number,
                &count,
                &summary.links,
                &summary.degrees.1,
                &hops,
                &time,
            ];
            terminal::print_table_row(&table, &cells, out)?;
            best = Some((seconds, graph));
        }
    }
    Ok(best.map(|(_, graph)| graph))
}

fn write_chip_graph_file(
    graph: &ChipGraph,
    path: Option<&Path>,
    mut outputs: OutputsAndProtectedInputs,
) -> Result<(), Box<dyn Error>> {
    if let Some(path) = path {
        let mut file = outputs.create_file(path)?;
        file.write_all(graph.to_file_text().as_bytes())?;
        file.commit()?;
    }
    Ok(())
}
