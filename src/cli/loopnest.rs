//! `chakram loopnest`: finds the best mapping of a layer on a systolic accelerator.

use super::terminal;
use chakram_hardware::compute::{
    BestMapping, LayerShape, LayerTensor, LoopDimension, LoopNestAccelerator, LoopNestModel,
    parse_loop_nest, search_mapping, set_accelerator_value,
};
use chakram_report::document::VersionedDocument;
use chakram_report::summary::format_thousands;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

/// Search for the best mapping of a layer on an accelerator
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram loopnest gemmini-16 --product 512x512x512
  chakram loopnest gemmini-16,scratchpad=32MB --layer K=64,C=64,P=56,Q=56,R=3,S=3
  chakram loopnest gemmini-8 --product 2500x32x32 --mappings 10000 --seed 1 --format json")]
pub struct LoopnestArgs {
    /// gemmini-N, which has N rows and columns, followed by changes to `array`, `scratchpad`, `accumulator`,
    /// `bandwidth` or `clock`
    #[arg(value_name = "ACCELERATOR", value_parser = parse_loop_nest)]
    accelerator: LoopNestModel,
    /// Matrix product of M x K by K x N, instead of --layer
    #[arg(long, value_name = "MxNxK", value_parser = parse_matrix_product_layer)]
    product: Option<LayerShape>,
    /// Sizes of the loops N, K, C, P, Q, R and S (1 by default), and the stride and dilation of the windows
    #[arg(long, value_name = "LOOP=SIZE,…", value_parser = parse_layer, conflicts_with = "product")]
    layer: Option<LayerShape>,
    /// Number of random mappings to try
    #[arg(long, value_name = "N")]
    mappings: Option<u32>,
    /// Seed of the random mappings
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = LoopnestFormat::Text, value_name = "FORMAT")]
    format: LoopnestFormat,
}

/// Output format of `loopnest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LoopnestFormat {
    /// Human-readable text
    Text,
    /// JSON with all values
    Json,
}

fn parse_matrix_product_layer(text: &str) -> Result<LayerShape, String> {
    let sizes = text.split('x').map(|size| size.trim().parse().ok());
    let sizes: Option<Vec<u64>> = sizes.collect();
    let sizes = sizes.and_then(|sizes| <[u64; 3]>::try_from(sizes).ok());
    let sizes = sizes.filter(|sizes| sizes.iter().all(|size| *size > 0));
    let sizes = sizes.ok_or("expected MxNxK such as 512x512x512, with sizes from 1 on")?;
    LayerShape::from_matrix_product(sizes).ok_or_else(|| "too large to count".to_owned())
}

fn parse_layer(text: &str) -> Result<LayerShape, String> {
    let (mut sizes, mut stride, mut dilation) = ([1; 7], 1, 1);
    let mut given = Vec::new();
    for part in text.split(',') {
        let (name, size) = part.split_once('=').unwrap_or((part, ""));
        if given.contains(&name.trim()) {
            return Err(format!("found {} twice, expected it once", name.trim()));
        }
        given.push(name.trim());
        let found = LoopDimension::ALL.iter();
        let found = found
            .map(|(_, letter)| letter)
            .position(|letter| *letter == name.trim());
        let place = match (name.trim(), found) {
            (_, Some(place)) => &mut sizes[place],
            ("stride", _) => &mut stride,
            ("dilation", _) => &mut dilation,
            _ => {
                return Err(format!(
                    "`{name}` is not a loop; expected N, K, C, P, Q, R, S, stride or dilation"
                ));
            }
        };
        let size: Option<u64> = size.trim().parse().ok().filter(|size| *size > 0);
        *place = size.ok_or_else(|| format!("`{part}`: expected a size from 1 on"))?;
    }
    let layer = LayerShape::new(sizes).filter(|_| stride.max(dilation) <= 1024);
    let layer = layer.ok_or_else(|| "too large to count".to_owned())?;
    Ok(LayerShape {
        stride: [stride; 2],
        dilation: [dilation; 2],
        ..layer
    })
}

/// Searches for the best mapping, and prints it to `out`.
///
/// # Errors
///
/// Fails if no mapping is possible, or if output cannot be written.
pub fn search_and_print_best_mapping(
    args: &LoopnestArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let mut model = args.accelerator;
    if let Some(mappings) = args.mappings {
        let set = set_accelerator_value(&mut model, "mappings", &mappings.to_string());
        set.map_err(|why| format!("--mappings: {why}"))?;
    }
    model.seed = args.seed.unwrap_or(model.seed);
    let layer = args.product.or(args.layer);
    let layer = layer.ok_or(
        "found no layer, expected the sizes of a matrix product or of a layer\n  try: --product 512x512x512, or --layer K=64,C=64",
    )?;
    let accelerator = model.gemmini.build_accelerator(1);
    let found = search_mapping(&accelerator, &layer, model.mappings, model.seed);
    let found = found.ok_or("none of the drawn mappings is valid\n  try: more --mappings")?;
    match args.format {
        LoopnestFormat::Text => write_text(&model, &accelerator, &layer, &found, out)?,
        LoopnestFormat::Json => {
            let document = mapping_document(&model, &accelerator, &layer, &found);
            VersionedDocument::new("chakram.mapping.1", document).print_to(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns two lower bounds in cycles. The first assumes that all units multiply in every cycle; the second, that each
/// word is read from or written to memory only once.
fn lower_bounds_in_cycles(
    model: &LoopNestModel,
    accelerator: &LoopNestAccelerator,
    layer: &LayerShape,
) -> [u64; 2] {
    let [weights, inputs, _] = accelerator.word;
    let bytes = layer.bytes_of_all_tensors([weights, inputs, accelerator.output_word]);
    let moved = bytes as f64 / model.gemmini.memory_bytes_per_cycle();
    [
        layer.mac_count().div_ceil(accelerator.unit_count()),
        moved.ceil() as u64,
    ]
}

fn write_text(
    model: &LoopNestModel,
    accelerator: &LoopNestAccelerator,
    layer: &LayerShape,
    found: &BestMapping,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let cost = &found.cost;
    let [multiplied, moved] = lower_bounds_in_cycles(model, accelerator, layer);
    let sizes = LoopDimension::ALL.iter().zip(layer.sizes);
    let sizes: Vec<String> = sizes
        .filter(|(_, size)| *size > 1)
        .map(|((_, letter), size)| format!("{letter} {size}"))
        .collect();
    writeln!(
        out,
        "{model}, {}: {} cycles, {}, {:.3} uJ",
        sizes.join(", "),
        format_thousands(cost.cycles),
        model.gemmini.clock.time_for_cycles(cost.cycles),
        cost.energy / 1e6
    )?;
    writeln!(
        out,
        "  at least {} of multiplications and {} of memory; units busy for {}",
        format_thousands(multiplied),
        format_thousands(moved),
        format_thousands(cost.compute_cycles)
    )?;
    writeln!(
        out,
        "  mapping {} of {}, of which {} can be\n",
        found.draw, model.mappings, found.valid
    )?;
    writeln!(out, "LOOPS, OUTERMOST FIRST")?;
    for line in found.mapping.format_levels(accelerator) {
        writeln!(out, "  {line}")?;
    }
    writeln!(out)?;
    let columns = [
        left_aligned_column("WORDS", 26),
        right_aligned_column("read", 16),
        right_aligned_column("filled", 16),
        right_aligned_column("updated", 16),
        right_aligned_column("energy", 16),
    ];
    let table = TextTable::new(columns);
    terminal::print_plain_table_heading(&table, out)?;
    for (level, memory) in accelerator.levels.iter().enumerate().rev() {
        for (tensor, name) in LayerTensor::ALL {
            let words = cost.accesses[level][tensor as usize];
            let sum = words.reads + words.fills + words.updates;
            if sum == 0 {
                continue;
            }
            let bytes = sum * accelerator.word[tensor as usize];
            let cells: [&dyn std::fmt::Display; 5] = [
                &format!("{} {name}", memory.name),
                &format_thousands(words.reads),
                &format_thousands(words.fills),
                &format_thousands(words.updates),
                &format!("{:.3} uJ", memory.energy * bytes as f64 / 1e6),
            ];
            terminal::print_table_row(&table, &cells, out)?;
        }
    }
    Ok(())
}

/// JSON document with the result of a search.
#[derive(Serialize)]
struct MappingSearchDocument {
    accelerator: String,
    cycles: u64,
    compute_cycles: u64,
    least_cycles: CycleLowerBounds,
    time_ps: u64,
    energy_pj: f64,
    multiplications: u64,
    mappings: DrawnAndValidMappingCounts,
    array: Vec<LoopDimensionAndIterationCount>,
    levels: Vec<MappingLevelRow>,
}

/// Lower bounds in cycles.
#[derive(Serialize)]
struct CycleLowerBounds {
    multiplications: u64,
    memory: u64,
}

#[derive(Serialize)]
struct DrawnAndValidMappingCounts {
    drawn: u32,
    valid: u32,
    best: u32,
}

/// Dimension of a loop, and number of iterations.
type LoopDimensionAndIterationCount = (&'static str, u64);

#[derive(Serialize)]
struct MappingLevelRow {
    name: String,
    /// Loops of the mapping, from the outermost to the innermost.
    loops: Vec<LoopDimensionAndIterationCount>,
    bytes: u64,
    /// Number of words moved for each tensor.
    words: BTreeMap<&'static str, LevelWordCounts>,
}

#[derive(Serialize)]
struct LevelWordCounts {
    reads: u64,
    fills: u64,
    updates: u64,
}

fn mapping_document(
    model: &LoopNestModel,
    accelerator: &LoopNestAccelerator,
    layer: &LayerShape,
    found: &BestMapping,
) -> MappingSearchDocument {
    let cost = &found.cost;
    let loops = |loops: &[(LoopDimension, u64)]| {
        let loops = loops.iter();
        loops
            .map(|(d, bound)| (LoopDimension::ALL[*d as usize].1, *bound))
            .collect()
    };
    let level = |index: usize| {
        let words = LayerTensor::ALL.iter().map(|&(tensor, name)| {
            let one = &cost.accesses[index][tensor as usize];
            let counts = LevelWordCounts {
                reads: one.reads,
                fills: one.fills,
                updates: one.updates,
            };
            (name, counts)
        });
        MappingLevelRow {
            name: accelerator.levels[index].name.to_string(),
            loops: loops(&found.mapping.temporal[index]),
            bytes: cost.bytes[index],
            words: words.collect(),
        }
    };
    let [multiplications, memory] = lower_bounds_in_cycles(model, accelerator, layer);
    MappingSearchDocument {
        accelerator: model.to_string(),
        cycles: cost.cycles,
        compute_cycles: cost.compute_cycles,
        least_cycles: CycleLowerBounds {
            multiplications,
            memory,
        },
        time_ps: model.gemmini.clock.time_for_cycles(cost.cycles).0,
        energy_pj: cost.energy,
        multiplications: cost.multiplications,
        mappings: DrawnAndValidMappingCounts {
            drawn: model.mappings,
            valid: found.valid,
            best: found.draw,
        },
        array: loops(&found.mapping.spatial),
        levels: (0..accelerator.levels.len()).rev().map(level).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_products_are_refused_with_the_reason() {
        assert!(parse_matrix_product_layer("5x6x7").is_ok());
        let huge = format!("{0}x{0}x{0}", 1_u64 << 30);
        for (text, said) in [
            ("0x5x5", "sizes from 1 on"),
            ("5x5", "expected MxNxK"),
            (huge.as_str(), "too large to count"),
        ] {
            assert!(
                parse_matrix_product_layer(text).unwrap_err().contains(said),
                "{text}"
            );
        }
    }

    #[test]
    fn wrong_layers_are_refused_with_the_reason() {
        assert_eq!(
            parse_layer("K=64,C=32").unwrap().sizes,
            LayerShape::new([1, 64, 32, 1, 1, 1, 1]).unwrap().sizes
        );
        for (text, said) in [
            ("K=64,C=32,K=8", "found K twice"),
            ("K=64,stride=2, stride=1", "found stride twice"),
            ("K=0", "expected a size from 1 on"),
        ] {
            let error = parse_layer(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
