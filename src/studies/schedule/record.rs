//! Reads and writes records of sub-layers, and schedule files in DEAP's format: Python literals or JSON.
//!
//! A schedule is a list of chips, and a chip is a list of steps. A step is the record of a sub-layer, `{'C': 32, 'K':
//! 32, 'N': 1, 'P': 2500, …, 'type': 'LinearLayer'}`. The record of an empty step has no sizes. Two unpublished keys,
//! `id` and `after` (a list of ids), state dependencies. Sub-layers with equal `weights` share weights. Without ids, a
//! step depends on all sub-layers of the previous non-empty step, as in a sequential model. Sub-layers with equal
//! `input` read the same part of the model's input. A sub-layer with neither `input` nor dependencies reads a part that
//! no other sub-layer reads; `None` means no input. If an output is read in pieces, `pieces` is the number of pieces,
//! and `piece` is the index of the piece that a sub-layer reads. The parser omits layers that inference does not
//! compute (dropout and batch normalization). A sub-layer that depends on an omitted layer depends on that layer's
//! predecessors instead.

use super::literal::{Literal, LiteralError, parse};
use super::{LayerPartOfOneAccelerator, OrderedSubLayersOfModel, SubLayersByAcceleratorAndStep};
use chakram_hardware::compute::LayerShape;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A sub-layer's sizes and type, as in a schedule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubLayerShapeAndKind {
    /// Sizes, strides and dilations of the computation.
    pub shape: LayerShape,
    /// Type of the layer, such as `LinearLayer`.
    pub kind: String,
}

/// Keys of sizes, in the order of [`chakram_hardware::compute::LoopDimension`].
pub(super) const SIZES: [&str; 7] = ["N", "K", "C", "P", "Q", "R", "S"];

/// Keys of strides and dilations, along rows and columns.
pub(super) const DISTANCES: [[&str; 2]; 2] = [["Wstride", "Hstride"], ["Wdilation", "Hdilation"]];

/// Maximum number of pieces of an output.
const MOST_PIECES: u32 = 4096;

/// Maximum index of a part of the input in a file; parts without an index get larger indices.
const MOST_INPUT: u32 = 1 << 30;

/// Maximum number of words in a tensor, so that sums of words do not overflow.
const MOST_WORDS: u128 = 1 << 56;

/// Value of `type` in the record of an idle step.
const NOTHING: &str = "NOP";

/// Reason why a schedule file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleFileError {
    /// The text is neither a Python literal nor a JSON literal.
    #[error("{file}:{line}: {why}")]
    Literal {
        /// Name of the file, for error messages.
        file: String,
        /// Line of the error in the file, counting from 1.
        line: usize,
        /// The text found, and the text expected.
        why: String,
    },
    /// A record, or the schedule itself, is invalid.
    #[error("{file}: {place}: found {found}, expected {expected}")]
    Record {
        /// Name of the file, for error messages.
        file: String,
        /// Chip and step of the invalid record.
        place: String,
        /// The invalid value.
        found: String,
        /// Description of the valid values.
        expected: String,
    },
}

impl SubLayerShapeAndKind {
    /// Creates a linear layer that multiplies a `rows` x `inputs` matrix by an `inputs` x `outputs` matrix. `None` if
    /// the product has too many operations to count.
    pub fn from_linear_layer(rows: u64, inputs: u64, outputs: u64) -> Option<Self> {
        Some(Self {
            shape: LayerShape::from_matrix_product([rows, outputs, inputs])?,
            kind: "LinearLayer".to_owned(),
        })
    }

    /// Returns how many multiplications and additions DEAP's Eq. 1 counts, (2 I - 1) O, for I inputs per output and O
    /// outputs.
    pub fn operation_count(&self) -> u64 {
        let [n, k, c, p, q, r, s] = self.shape.sizes;
        let inputs = c * r * s;
        (2 * inputs - 1).saturating_mul(n * k * p * q)
    }

    /// Formats the record as the DEAP paper prints it, with the keys `more` appended.
    fn format_record(&self, more: &str) -> String {
        let mut keys: BTreeMap<&str, u64> = SIZES.into_iter().zip(self.shape.sizes).collect();
        for (names, values) in DISTANCES
            .iter()
            .zip([self.shape.stride, self.shape.dilation])
        {
            keys.extend(names.iter().copied().zip(values));
        }
        let keys: Vec<String> = keys
            .iter()
            .map(|(key, value)| format!("'{key}': {value}"))
            .collect();
        // Remove quotes from the type, because they would end the string early.
        let kind: String = self
            .kind
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        format!("{{{}, 'type': '{kind}'{more}}}", keys.join(", "))
    }
}

/// Formats a schedule as a file with one record per line.
pub fn format_schedule_file(
    graph: &OrderedSubLayersOfModel,
    schedule: &SubLayersByAcceleratorAndStep,
) -> String {
    let mut text = String::from("[\n");
    let steps = schedule.step_count();
    for chip in 0..schedule.chips.len() {
        text.push_str("  [\n");
        for step in 0..steps {
            let record = match schedule.sub_layer_of_accelerator_at_step(chip, step) {
                None => format!("{{'type': '{NOTHING}'}}"),
                Some(task) => {
                    let of = &graph.tasks[task as usize];
                    let after: Vec<String> = of.after.iter().map(u32::to_string).collect();
                    let mut more = format!(", 'id': {task}, 'after': [{}]", after.join(", "));
                    let pieces = (of.pieces > 1).then_some(of.pieces);
                    if of.after.is_empty() && of.input.is_none() {
                        more.push_str(", 'input': None");
                    }
                    let optional = [
                        ("input", of.input),
                        ("weights", of.weights),
                        ("piece", of.piece),
                        ("pieces", pieces),
                    ];
                    for (key, value) in optional {
                        if let Some(value) = value {
                            write!(more, ", '{key}': {value}").expect("a string grows as needed");
                        }
                    }
                    of.record.format_record(&more)
                }
            };
            let comma = if step + 1 < steps { "," } else { "" };
            writeln!(text, "    {record}{comma}").expect("a string grows as needed");
        }
        let comma = if chip + 1 < schedule.chips.len() {
            ","
        } else {
            ""
        };
        writeln!(text, "  ]{comma}").expect("a string grows as needed");
    }
    text.push_str("]\n");
    text
}

/// Returns true if inference does not compute layers of this type.
fn is_layer_type_unused_by_inference(kind: &str) -> bool {
    kind.starts_with("Dropout") || kind.starts_with("BatchNorm")
}

/// A record of the file with its chip, its step and its dependencies.
struct ParsedSubLayerPlacementRecord {
    chip: usize,
    step: usize,
    record: SubLayerShapeAndKind,
    id: Option<u64>,
    after: Vec<u64>,
    weights: Option<u64>,
    input: ModelInputPartReadBySubLayer,
    piece: Option<u32>,
    pieces: u32,
}

/// The `input` key of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ModelInputPartReadBySubLayer {
    /// The record has no key `input`. If its sub-layer has no dependencies, it reads a part of the input that no other
    /// sub-layer reads.
    Unsaid,
    /// The sub-layer does not read the model's input.
    None,
    /// Index of the part that the sub-layer reads.
    Part(u32),
}

/// A sub-layer or omitted layer to which records can refer. An omitted layer is replaced by its predecessors.
struct ReferableOrOmittedLayer {
    /// Sub-layers that replace an omitted layer. Later sub-layers read their outputs.
    stands_for: Vec<u32>,
    /// Part of the model's input that the omitted layer passes to its successors.
    input: Option<u32>,
    step: usize,
}

/// Parses a schedule file. Error messages call the file `file`.
///
/// # Errors
///
/// Fails if the text is not a literal, if a record is invalid, or if a dependency is not computed in an
/// earlier step.
pub fn parse_schedule(
    text: &str,
    file: &str,
) -> Result<(OrderedSubLayersOfModel, SubLayersByAcceleratorAndStep), ScheduleFileError> {
    let literal = parse(text).map_err(|LiteralError { line, why }| ScheduleFileError::Literal {
        file: file.to_owned(),
        line,
        why,
    })?;
    let wrong =
        |place: String, found: &dyn std::fmt::Debug, expected: &str| ScheduleFileError::Record {
            file: file.to_owned(),
            place,
            found: format!("{found:?}").chars().take(60).collect(),
            expected: expected.to_owned(),
        };
    let Literal::List(chips) = &literal else {
        return Err(wrong("the file".to_owned(), &literal, "a list of chips"));
    };
    let mut all = Vec::new();
    for (chip, steps) in chips.iter().enumerate() {
        let Literal::List(steps) = steps else {
            return Err(wrong(format!("chip {chip}"), steps, "a list of steps"));
        };
        for (step, record) in steps.iter().enumerate() {
            let place = || format!("chip {chip}, step {step}");
            let placed = parse_placed_record(record, (chip, step))
                .map_err(|(found, expected)| wrong(place(), &found, &expected))?;
            all.extend(placed);
        }
    }
    // Sort by step, so that predecessors come before the sub-layers that depend on them.
    all.sort_by_key(|one| (one.step, one.chip));
    let named = all.iter().any(|one| one.id.is_some());
    let given = all.iter().filter_map(|one| match one.input {
        ModelInputPartReadBySubLayer::Part(number) => Some(number),
        _ => None,
    });
    // Parts without an index in the file get higher indices than the others.
    let mut next_input = given.max().map_or(0, |most| most + 1);
    let mut index_of: BTreeMap<u64, ReferableOrOmittedLayer> = BTreeMap::new();
    let mut graph = OrderedSubLayersOfModel::default();
    let count = chips.iter().map(|steps| match steps {
        Literal::List(steps) => steps.len(),
        _ => 0,
    });
    let steps = count.max().unwrap_or(0);
    let mut schedule = SubLayersByAcceleratorAndStep {
        chips: vec![vec![None; steps]; chips.len()],
    };
    let mut before: Vec<u32> = Vec::new();
    let mut current: (usize, Vec<u32>) = (0, Vec::new());
    for one in all {
        let place = format!("chip {}, step {}", one.chip, one.step);
        if one.step != current.0 && !current.1.is_empty() {
            before = std::mem::take(&mut current.1);
        }
        current.0 = one.step;
        let index = graph.tasks.len() as u32;
        let mut after = Vec::new();
        let mut input = match one.input {
            ModelInputPartReadBySubLayer::Part(number) => Some(number),
            _ => None,
        };
        if named {
            for id in &one.after {
                let known = index_of.get(id);
                let known = known.filter(|known| known.step < one.step);
                let known = known.ok_or_else(|| {
                    wrong(
                        place.clone(),
                        &format!("after {id}"),
                        "ids of sub-layers of earlier steps",
                    )
                })?;
                after.extend(&known.stands_for);
                input = input.or(known.input);
            }
        } else {
            after.clone_from(&before);
        }
        if after.is_empty() && input.is_none() && one.input == ModelInputPartReadBySubLayer::Unsaid
        {
            input = Some(next_input);
            next_input += 1;
        }
        let is_unused = is_layer_type_unused_by_inference(&one.record.kind);
        let known = ReferableOrOmittedLayer {
            stands_for: if is_unused {
                after.clone()
            } else {
                vec![index]
            },
            input: input.filter(|_| is_unused),
            step: one.step,
        };
        if let Some(id) = one.id
            && index_of.insert(id, known).is_some()
        {
            return Err(wrong(
                place,
                &format!("id {id} twice"),
                "an id of its own for each sub-layer",
            ));
        }
        if is_unused {
            continue;
        }
        if let Some(piece) = one.piece
            && after
                .iter()
                .any(|&one| graph.tasks[one as usize].pieces <= piece)
        {
            return Err(wrong(
                place,
                &format!("piece {piece}"),
                "one piece of each output that the sub-layer takes",
            ));
        }
        schedule.chips[one.chip][one.step] = Some(index);
        current.1.push(index);
        graph.tasks.push(LayerPartOfOneAccelerator {
            name: format!("{} {index}", one.record.kind),
            record: one.record,
            after,
            piece: one.piece,
            pieces: one.pieces,
            // In DEAP's own format, records have no ids, and sub-layers do not share weights. Each therefore gets its
            // own weights.
            weights: match (one.weights, one.id) {
                (Some(weights), _) => u32::try_from(weights).ok(),
                (None, Some(_)) => None,
                (None, None) => Some(index),
            },
            input,
        });
    }
    Ok((graph, schedule))
}

/// Parses a record. Returns `None` for the record of an empty step. The error states the found and the expected value.
fn parse_placed_record(
    literal: &Literal,
    (chip, step): (usize, usize),
) -> Result<Option<ParsedSubLayerPlacementRecord>, (String, String)> {
    let shown = |literal: &Literal| format!("{literal:?}").chars().take(60).collect::<String>();
    let entries = match literal {
        Literal::None => return Ok(None),
        Literal::Dictionary(entries) => entries,
        other => return Err((shown(other), "a record in braces".to_owned())),
    };
    let kind = match entries.get("type") {
        None => "Layer".to_owned(),
        Some(Literal::Text(kind)) => kind.clone(),
        Some(other) => return Err((shown(other), "a type in quotes".to_owned())),
    };
    if entries.is_empty() || kind == NOTHING {
        return Ok(None);
    }
    let whole = |key: &str, literal: &Literal, least: u64| match literal {
        Literal::Whole(number) if *number >= least => Ok(*number),
        other => Err((
            format!("{key} {}", shown(other)),
            format!("a whole number from {least}"),
        )),
    };
    let few = |key: &str, number: u64| match u32::try_from(number) {
        Ok(number @ 0..=MOST_PIECES) => Ok(number),
        _ => Err((format!("{key} {number}"), format!("at most {MOST_PIECES}"))),
    };
    let part = |key: &str, number: u64| match u32::try_from(number) {
        Ok(number) if number <= MOST_INPUT => Ok(number),
        _ => Err((format!("{key} {number}"), format!("at most {MOST_INPUT}"))),
    };
    let (mut sizes, mut distances) = ([1; 7], [[1; 2]; 2]);
    let (mut id, mut weights, mut after) = (None, None, Vec::new());
    let (mut piece, mut pieces) = (None, 1);
    let mut input = ModelInputPartReadBySubLayer::Unsaid;
    for (key, value) in entries {
        let along = DISTANCES.iter().enumerate();
        let distance = along.flat_map(|(i, names)| (0..2).map(move |j| (names[j], i, j)));
        let mut distance = distance.filter(|(name, _, _)| name == key);
        if let Some(at) = SIZES.iter().position(|name| name == key) {
            sizes[at] = whole(key, value, 1)?;
        } else if let Some((_, i, j)) = distance.next() {
            distances[i][j] = whole(key, value, 1)?;
        } else {
            match (key.as_str(), value) {
                ("type", _) => {}
                ("id", value) => id = Some(whole(key, value, 0)?),
                ("input", Literal::None) => input = ModelInputPartReadBySubLayer::None,
                ("input", value) => {
                    input = ModelInputPartReadBySubLayer::Part(part(key, whole(key, value, 0)?)?)
                }
                ("weights", value) => weights = Some(whole(key, value, 0)?),
                ("piece", value) => piece = Some(few(key, whole(key, value, 0)?)?),
                ("pieces", value) => pieces = few(key, whole(key, value, 1)?)?,
                ("after", Literal::List(ids)) => {
                    let ids = ids.iter().map(|id| whole(key, id, 0));
                    after = ids.collect::<Result<_, _>>()?;
                }
                _ => {
                    let keys = [&SIZES[..], &DISTANCES[0], &DISTANCES[1]]
                        .concat()
                        .join(", ");
                    return Err((
                        format!("{key:?}"),
                        format!("one of {keys}, type, id, after, input, weights, piece, pieces"),
                    ));
                }
            }
        }
    }
    let [stride, dilation] = distances;
    let shape =
        LayerShape::new(sizes).filter(|_| distances.as_flattened().iter().all(|d| *d <= 1024));
    let shape = shape.map(|shape| LayerShape {
        stride,
        dilation,
        ..shape
    });
    let shape = shape.filter(|shape| {
        // Limit the inputs too: with large strides, windows span more inputs than the layer has multiplications.
        let [n, _, c, p, q, r, s] = shape.sizes;
        let sides = [
            n,
            c,
            shape.input_extent_of_windows(0, p, r),
            shape.input_extent_of_windows(1, q, s),
        ];
        sides.into_iter().map(u128::from).product::<u128>() < MOST_WORDS
    });
    let shape =
        shape.ok_or_else(|| ("sizes".to_owned(), "a layer that can be counted".to_owned()))?;
    Ok(Some(ParsedSubLayerPlacementRecord {
        chip,
        step,
        record: SubLayerShapeAndKind { shape, kind },
        id,
        after,
        weights,
        input,
        piece,
        pieces,
    }))
}
