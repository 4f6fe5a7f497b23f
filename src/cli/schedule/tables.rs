//! Prints tables of topologies, of cut matrix products, and of steps.

use super::super::terminal;
use super::args::LanguageModelSizeArgs;
use super::work::TopologyScheduleResult;
use chakram_base::units::Bytes;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_studies::schedule::{
    DeapLanguageModel, MatrixCutDirection, MatrixProductPartitionRule, ModelCutsAndMovedWords,
};
use serde::Serialize;
use std::error::Error;
use std::io::Write;

/// Formats an energy in joules as uJ; `-` if it is unknown.
fn format_joules_as_microjoules(joules: Option<f64>) -> String {
    joules.map_or("-".to_owned(), |joules| format!("{:.3} uJ", joules * 1e6))
}

/// Formats a time in seconds as us.
fn format_seconds_as_microseconds(seconds: f64) -> String {
    format!("{:.3} us", seconds * 1e6)
}

pub fn write_topology_row(
    table: &TextTable<'_>,
    row: &TopologyScheduleResult,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let steps = &row.totals.steps;
    let sum = |of: fn(&chakram_studies::schedule::StepTimeAndEnergy) -> f64| {
        steps.iter().map(of).sum::<f64>()
    };
    let distance = row.mean_chip_distance();
    let mut cells = vec![
        row.name.clone(),
        row.chip_count().to_string(),
        steps.len().to_string(),
        distance.map_or("-".to_owned(), |far| format!("{far:.3}")),
        format_seconds_as_microseconds(sum(|step| step.communication)),
        format_seconds_as_microseconds(sum(|step| step.processing)),
        format_seconds_as_microseconds(row.totals.total_seconds()),
        format_joules_as_microjoules(row.totals.total_joules()),
    ];
    if row.has_host {
        cells.insert(4, format_seconds_as_microseconds(sum(|step| step.dispatch)));
    }
    let cells: Vec<&dyn std::fmt::Display> = cells.iter().map(|cell| cell as _).collect();
    terminal::print_table_row(table, &cells, out)?;
    Ok(())
}

/// The chosen cuts of matrix products, and the bytes that they move. For comparison, also the bytes that two uniform
/// cuts move: one cuts all matrix products by columns, the other by rows. A word has one byte.
#[derive(Debug, Serialize)]
pub struct MatrixCutsAndTotalMovedBytes {
    products: Vec<IdenticallyCutMatrixProductsRow>,
    moved_bytes: u64,
    along_columns_bytes: Option<u64>,
    along_rows_bytes: Option<u64>,
}

/// Matrix products that share a name and a cut, and occur in `layers` layers.
#[derive(Debug, Serialize)]
struct IdenticallyCutMatrixProductsRow {
    name: String,
    layers: usize,
    cut_along: Vec<&'static str>,
}

impl MatrixCutsAndTotalMovedBytes {
    /// Cuts the matrix products of the model with the given sizes.
    pub fn new(sizes: &LanguageModelSizeArgs) -> Result<Self, Box<dyn Error>> {
        let by = |partition| -> Result<ModelCutsAndMovedWords, Box<dyn Error>> {
            let model = DeapLanguageModel {
                partition,
                ..sizes.to_language_model(sizes.tensor)
            };
            Ok(model.choose_product_cuts_and_count_moved_words()?)
        };
        let best = by(MatrixProductPartitionRule::Hierarchical)?;
        // Merge equal cuts into one entry, because most layers are cut alike.
        let mut products: Vec<IdenticallyCutMatrixProductsRow> = Vec::new();
        for (name, cut) in &best.products {
            let name = name.split_once(": ").map_or(&name[..], |(_, name)| name);
            let cut = cut.iter().map(|along| match along {
                MatrixCutDirection::Rows => "rows",
                MatrixCutDirection::Columns => "columns",
            });
            let cut_along: Vec<_> = cut.collect();
            let alike = |own: &&mut IdenticallyCutMatrixProductsRow| {
                own.name == name && own.cut_along == cut_along
            };
            match products.iter_mut().find(alike) {
                Some(own) => own.layers += 1,
                None => products.push(IdenticallyCutMatrixProductsRow {
                    name: name.to_owned(),
                    layers: 1,
                    cut_along,
                }),
            }
        }
        let other = |partition| by(partition).ok().map(|of| of.words);
        Ok(Self {
            products,
            moved_bytes: best.words,
            along_columns_bytes: other(MatrixProductPartitionRule::Columns),
            along_rows_bytes: other(MatrixProductPartitionRule::Rows),
        })
    }
}

/// Prints the cuts of matrix products, and the bytes that they and other cuts move.
pub fn print_matrix_product_cuts(
    cuts: &MatrixCutsAndTotalMovedBytes,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let columns = [
        left_aligned_column("PRODUCT", 38),
        right_aligned_column("layers", 7),
        right_aligned_column("cut along", 30),
    ];
    let table = TextTable::new(columns);
    terminal::print_plain_table_heading(&table, out)?;
    for product in &cuts.products {
        let cut = product.cut_along.join(", ");
        let cells: [&dyn std::fmt::Display; 3] = [&product.name, &product.layers, &cut];
        terminal::print_table_row(&table, &cells, out)?;
    }
    let other = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |of| Bytes(of).to_string());
    writeln!(
        out,
        "{} are moved, {} with all along columns, {} with all along rows\n",
        Bytes(cuts.moved_bytes),
        other(cuts.along_columns_bytes),
        other(cuts.along_rows_bytes)
    )?;
    Ok(())
}

/// Prints the times of each step.
pub fn print_steps(
    row: &TopologyScheduleResult,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let columns = [
        left_aligned_column("STEP", 6),
        right_aligned_column("communication", 15),
        right_aligned_column("processing", 15),
        right_aligned_column("cycles", 12),
        right_aligned_column("between chips", 15),
        right_aligned_column("memory", 13),
        right_aligned_column("energy", 13),
        right_aligned_column("power", 12),
    ];
    let table = TextTable::new(columns);
    writeln!(out)?;
    terminal::print_plain_table_heading(&table, out)?;
    for (number, step) in row.totals.steps.iter().enumerate() {
        let seconds = step.dispatch + step.communication + step.processing;
        let watts = step.joules.filter(|_| seconds > 0.0);
        let watts = watts.map_or("-".to_owned(), |joules| {
            format!("{:.3} W", joules / seconds)
        });
        let cells: [&dyn std::fmt::Display; 8] = [
            &number,
            &format_seconds_as_microseconds(step.communication),
            &format_seconds_as_microseconds(step.processing),
            &step.cycles,
            &format!("{} B", step.between_chips),
            &format!("{} B", step.memory),
            &format_joules_as_microjoules(step.joules),
            &watts,
        ];
        terminal::print_table_row(&table, &cells, out)?;
    }
    Ok(())
}
