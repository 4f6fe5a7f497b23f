//! Reads tables from other tools that state how many clock cycles each layer takes. The cycle counts determine the
//! durations of sub-layers.
//!
//! A table is CSV with a header. It has a column `cycles`, optionally a column `energy_pj`, and a column for any
//! numeric key that describes a layer (`K`, `C`, `P`, `Wstride`, …). A key without a column has the value 1 in all
//! layers. Timeloop prints the cycles and energy of a layer's mapping in `stats.txt`. A program on FireSim prints its
//! own cycle count.

use super::record::{DISTANCES, SIZES};
use chakram_hardware::compute::LayerShape;
use std::collections::BTreeMap;

/// Sizes, strides and dilations of a layer.
type LayerSizesAndStrides = ([u64; 7], [u64; 2], [u64; 2]);

/// Cycles and energy of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerCyclesAndEnergy {
    /// Number of clock cycles that the layer takes.
    pub cycles: u64,
    /// Energy in picojoules, or `None` if the table has no energy column.
    pub energy: Option<f64>,
}

/// Cycles and energy of layers, looked up by size, stride and dilation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerCyclesAndEnergyTable {
    rows: BTreeMap<LayerSizesAndStrides, LayerCyclesAndEnergy>,
}

/// An invalid table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: found {found}, expected {expected}")]
pub struct CycleTableError {
    /// Name of the file, for error messages.
    pub file: String,
    /// Line of the error in the file, counting from 1.
    pub line: usize,
    /// The text that is invalid.
    pub found: String,
    /// Description of what would be valid.
    pub expected: String,
}

/// Meaning of a table column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CycleTableColumn {
    Size(usize),
    /// Stride (0) or dilation (1), along rows (0) or columns (1).
    Distance(usize, usize),
    Cycles,
    Energy,
}

impl CycleTableColumn {
    fn from_name(name: &str) -> Option<Self> {
        let size = SIZES.iter().position(|own| *own == name).map(Self::Size);
        let mut distances = DISTANCES.iter().enumerate().flat_map(|(i, names)| {
            let own = names.iter().enumerate();
            own.map(move |(j, own)| (*own, Self::Distance(i, j)))
        });
        let distance = || {
            distances
                .find(|(own, _)| *own == name)
                .map(|(_, column)| column)
        };
        size.or_else(distance).or(match name {
            "cycles" => Some(Self::Cycles),
            "energy_pj" => Some(Self::Energy),
            _ => None,
        })
    }
}

fn layer_sizes_stride_and_dilation(layer: &LayerShape) -> LayerSizesAndStrides {
    (layer.sizes, layer.stride, layer.dilation)
}

impl LayerCyclesAndEnergyTable {
    /// Parses a table. Error messages call the table `file`. Skips empty lines and lines that begin with `#`.
    ///
    /// # Errors
    ///
    /// Fails if a heading or a cell is invalid, or if two rows give different values for one layer.
    pub fn parse(text: &str, file: &str) -> Result<Self, CycleTableError> {
        let wrong = |line: usize, found: String, expected: &str| CycleTableError {
            file: file.to_owned(),
            line,
            found,
            expected: expected.to_owned(),
        };
        let lines = (1..).zip(text.lines().map(str::trim));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let cells = |line: &str| -> Vec<String> {
            let all = line.split(',').map(|cell| cell.trim().trim_matches('"'));
            all.map(str::to_owned).collect()
        };
        let (number, heading) = lines
            .next()
            .ok_or_else(|| wrong(1, "nothing".to_owned(), "a line of headings"))?;
        let columns = cells(heading).into_iter().map(|name| {
            let names = [&SIZES[..], &DISTANCES[0], &DISTANCES[1]]
                .concat()
                .join(", ");
            CycleTableColumn::from_name(&name).ok_or_else(|| {
                wrong(
                    number,
                    format!("a column {name:?}"),
                    &format!("one of cycles, energy_pj, {names}"),
                )
            })
        });
        let columns: Vec<CycleTableColumn> = columns.collect::<Result<_, _>>()?;
        let twice = (1..)
            .zip(&columns)
            .any(|(i, column)| columns[i..].contains(column));
        if twice || !columns.contains(&CycleTableColumn::Cycles) {
            let expected = "a column `cycles`, and each column once";
            return Err(wrong(number, format!("the headings {heading:?}"), expected));
        }
        let mut table = Self::default();
        for (number, line) in lines {
            let cells = cells(line);
            if cells.len() != columns.len() {
                let found = format!("{} cells", cells.len());
                let expected = format!("{}, one for each heading", columns.len());
                return Err(wrong(number, found, &expected));
            }
            let (mut sizes, mut distances) = ([1; 7], [[1; 2]; 2]);
            let mut row = LayerCyclesAndEnergy {
                cycles: 0,
                energy: None,
            };
            for (cell, column) in cells.iter().zip(&columns) {
                let whole = |least: u64| {
                    let found = cell.parse().ok().filter(|number| *number >= least);
                    let expected = format!("a whole number from {least}");
                    found.ok_or_else(|| wrong(number, format!("{cell:?}"), &expected))
                };
                match *column {
                    CycleTableColumn::Size(at) => sizes[at] = whole(1)?,
                    CycleTableColumn::Distance(i, j) => distances[i][j] = whole(1)?,
                    CycleTableColumn::Cycles => row.cycles = whole(0)?,
                    CycleTableColumn::Energy => {
                        let energy = cell.parse::<f64>().ok();
                        let energy = energy.filter(|pj| pj.is_finite() && *pj >= 0.0);
                        let expected = "picojoules, a number that is not negative";
                        let energy =
                            energy.ok_or_else(|| wrong(number, format!("{cell:?}"), expected))?;
                        row.energy = Some(energy);
                    }
                }
            }
            let layer = LayerShape::new(sizes).ok_or_else(|| {
                wrong(
                    number,
                    "its sizes".to_owned(),
                    "a layer that can be counted",
                )
            })?;
            let [stride, dilation] = distances;
            let layer = LayerShape {
                stride,
                dilation,
                ..layer
            };
            let before = table
                .rows
                .insert(layer_sizes_stride_and_dilation(&layer), row);
            if before.is_some_and(|before| before != row) {
                let found = "another price of a layer above".to_owned();
                return Err(wrong(number, found, "one for each layer"));
            }
        }
        Ok(table)
    }

    /// Returns the row of a layer; `None` if there is none.
    pub fn get(&self, layer: &LayerShape) -> Option<LayerCyclesAndEnergy> {
        self.rows
            .get(&layer_sizes_stride_and_dilation(layer))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_rows_are_found_by_layer_shape_and_stride() {
        let text = "# of a mapper\nC,K,P,Wstride,cycles,energy_pj\n32,32,2500,1,10000,5.5\n\n3,64,112,2,7,0\n";
        let table = LayerCyclesAndEnergyTable::parse(text, "t.csv").unwrap();
        let layer = LayerShape::from_matrix_product([2500, 32, 32]).unwrap();
        let row = table.get(&layer).unwrap();
        assert_eq!((row.cycles, row.energy), (10_000, Some(5.5)));
        // A layer with a stride of two is a different layer.
        let layer = LayerShape::new([1, 64, 3, 112, 1, 1, 1]).unwrap();
        assert_eq!(table.get(&layer), None);
        let strided = LayerShape {
            stride: [2, 1],
            ..layer
        };
        assert_eq!(table.get(&strided).unwrap().cycles, 7);
        // Repeated rows with equal values are accepted.
        let twice = "K,cycles\n2,3\n2,3\n";
        assert!(LayerCyclesAndEnergyTable::parse(twice, "t").is_ok());
    }

    #[test]
    fn tables_with_errors_are_refused_with_their_line() {
        for (text, said) in [
            ("", "t:1: found nothing, expected a line of headings"),
            (
                "c,cycles\n",
                "t:1: found a column \"c\", expected one of cycles, energy_pj, N, K",
            ),
            (
                "C,K\n1,2\n",
                "t:1: found the headings \"C,K\", expected a column `cycles`",
            ),
            ("C,C,cycles\n", "and each column once"),
            ("C,cycles\n1\n", "t:2: found 1 cells, expected 2"),
            (
                "C,cycles\n0,5\n",
                "t:2: found \"0\", expected a whole number from 1",
            ),
            ("C,cycles\n1,-5\n", "t:2: found \"-5\""),
            (
                "cycles,energy_pj\n1,NaN\n",
                "t:2: found \"NaN\", expected picojoules",
            ),
            ("C,cycles\n4294967296,5\n", "t:2: found its sizes"),
            ("C,cycles\n1,5\n1,6\n", "t:3: found another price"),
        ] {
            let error = LayerCyclesAndEnergyTable::parse(text, "t")
                .unwrap_err()
                .to_string();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }
}
