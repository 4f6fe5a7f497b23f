//! Layouts of results over the members of a tensor group where operators have degrees of their own, and the inputs of
//! each operator.
//!
//! The sharding of an operator follows from the first of these that applies:
//!
//! 1. the degrees that the plan has for it;
//! 2. the model's tensor parallelism ([`Cut`]): by outputs or by inputs, into as many shards as there are members;
//! 3. with sequence parallelism, shards of its tokens, if these divide;
//! 4. the layout of its input: samples, and rows where they divide; columns as well where columns are independent
//!    (activations, residuals, pools, norms over the channels of images, heads of attention, and classes of a loss
//!    inside a sharded region).
//!
//! Inputs whose layout does not fit are redistributed before the operator
//! ([`moves`](crate::generate::sharding::moves)).
//!
//! The skip path around a branch carries the last residual sum. In a layer that does not begin with a norm or an
//! activation, these stand behind sums (BERT, ResNet) and their output takes the skip path; else they are part of the
//! branch (GPT-2, Llama). An embedding's tables stand side by side until a sum takes them all, those of bags until an
//! interaction does. Residuals give each of their inputs its gradient, redistributed by itself.
//!
//! Results are tracked in fractions: an operator that needs the first token alone, as a classifier behind a
//! transformer, receives all tokens where these are sharded. Norms over the channels of images take the samples and
//! rows that a member has, like BatchNorm without synchronized statistics.

use super::layer::Context;
use super::piece::{Cutting, columns};
use super::shard::rows;
use crate::generate::plan::{OperatorDegrees, Plan};
use crate::generate::sharding::{Axis, Degrees, Digit, Layout, Sharding, scatters};
use crate::generate::{GenerateError, refused};
use crate::model::{Cut, Layer, Operator, Work};

/// A result on its way from operator to operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    pub layout: Layout,
    /// Members that differ in this digit have terms of it that are still to be summed.
    pub over: Option<Digit>,
    /// Numbers of a sample, those of all members together.
    pub elements: u64,
    /// Columns of it: channels of an image.
    pub columns: u64,
    pub image: bool,
    /// The operator of the same layer that it is from.
    pub by: Option<usize>,
}

/// An input of an operator: the layout in which it arrives, and the one that the operator needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Input {
    pub from: Held,
    pub need: Layout,
}

/// An operator with its sharding.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step<'l> {
    pub operator: &'l Operator,
    pub cutting: Cutting,
    /// None where samples come in, or numbers of tokens.
    pub inputs: Vec<Input>,
    /// Rows that windows reach, for an image sharded by rows.
    pub windows: Option<Sharding>,
}

/// A layer's operators with their shardings, and the layout of its output.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Flow<'l> {
    pub steps: Vec<Step<'l>>,
    pub end: Held,
}

/// Results in flight through a layer.
struct Way {
    main: Option<Held>,
    around: Option<Held>,
    /// Results beside the chain until one operator takes them all: tables of an input.
    side: Vec<Held>,
    /// True if norms and activations stand behind residuals, so that their output takes the skip path around the next
    /// branch.
    behind: bool,
}

/// Follows results through layers.
pub(super) struct Follow<'p> {
    pub operators: &'p [OperatorDegrees],
    pub members: u32,
    pub samples: u64,
    pub sequence: bool,
}

impl<'p> Follow<'p> {
    pub fn new(plan: &'p Plan, context: &Context) -> Self {
        Self {
            operators: &plan.operators,
            members: plan.tensor,
            samples: context.sizes.samples,
            sequence: context.sequence,
        }
    }

    /// Traces `layer` given the output of the layer `before` it.
    pub fn layer<'l>(
        &self,
        layer: &'l Layer,
        before: Option<Held>,
    ) -> Result<Flow<'l>, GenerateError> {
        let mut way = Way {
            main: before,
            around: before,
            side: Vec::new(),
            behind: !layer.operators.first().is_some_and(stands_in_front),
        };
        let mut steps = Vec::with_capacity(layer.operators.len());
        let mut last = before;
        for (i, operator) in layer.operators.iter().enumerate() {
            let stands = if operator.around {
                way.around
            } else {
                way.main
            };
            let (cutting, windows) = self.cutting(&layer.name, operator, stands.as_ref())?;
            let need = cutting.needs(&operator.work);
            let gives = Held {
                layout: cutting.gives(),
                over: cutting.over(),
                elements: operator.work.output_elements(),
                columns: columns(&operator.work),
                image: match operator.work {
                    Work::Convolution { .. } | Work::Pool { .. } => true,
                    Work::Norm { .. } | Work::Activation { .. } | Work::Residual { .. } => {
                        stands.is_some_and(|held| held.image)
                    }
                    _ => false,
                },
                by: Some(i),
            };
            let inputs = way.pass(operator, need, gives, self.members);
            steps.push(Step {
                operator,
                cutting,
                inputs,
                windows,
            });
            last = Some(gives);
        }
        // A layer that ends beside the chain passes the chain's result on.
        let end = way.main.or(last).map(|held| Held {
            by: None,
            over: None,
            ..held
        });
        let end = end.ok_or_else(|| refused("model", &layer.name, "a layer with operators"))?;
        Ok(Flow { steps, end })
    }

    /// Returns the sharding of `operator`, and of its windows if an image is sharded by rows.
    fn cutting(
        &self,
        layer: &str,
        operator: &Operator,
        before: Option<&Held>,
    ) -> Result<(Cutting, Option<Sharding>), GenerateError> {
        let mut own = self.operators.iter().rev();
        let Some(own) = own.find(|one| one.names(layer, &operator.name)) else {
            return self.by_default(operator, before);
        };
        // Channels of an image are normed each by itself.
        let work = match operator.work {
            Work::Norm { rows, width, .. } if before.is_some_and(|held| held.image) => {
                Work::Residual {
                    rows,
                    width,
                    dropout: false,
                }
            }
            _ => operator.work.clone(),
        };
        let whose = |error: GenerateError| match error {
            GenerateError::Refused {
                option,
                found,
                expected,
            } => GenerateError::Refused {
                option,
                found,
                expected: format!("{expected} (operator {} of {layer})", operator.name),
            },
            other => other,
        };
        let sharding = Sharding::new(&work, self.samples, own.degrees, self.members);
        let sharding = sharding.map_err(whose)?;
        let cutting = Cutting {
            samples: sharding.digit(Axis::B),
            rows: sharding.digit(Axis::M),
            outputs: sharding.digit(Axis::N),
            inputs: sharding.digit(Axis::K),
        };
        if let (Some(held), Work::Linear { .. }) = (before, &operator.work) {
            let parts = u64::from(cutting.inputs.parts);
            if held.image && !held.columns.is_multiple_of(parts) {
                let expected = format!(
                    "a divisor of the {} channels before operator {} of {layer}",
                    held.columns, operator.name
                );
                return Err(refused("k", parts, expected));
            }
        }
        let windows = (cutting.rows.parts > 1 && work.window_rows() > 0).then_some(sharding);
        if windows.is_some() && !cutting.shares_windows(&work) {
            let expected =
                "1: the padding is as large as what a window of one row of the output reaches";
            return Err(whose(refused("m", cutting.rows.parts, expected)));
        }
        Ok((cutting, windows))
    }

    fn by_default(
        &self,
        operator: &Operator,
        before: Option<&Held>,
    ) -> Result<(Cutting, Option<Sharding>), GenerateError> {
        let work = &operator.work;
        let all = Digit::new(self.members, 1);
        let mut cutting = Cutting::WHOLE;
        match operator.cut {
            Cut::Outputs => {
                super::check::divides(operator, self.members.into())?;
                cutting.outputs = all;
                return Ok((cutting, None));
            }
            Cut::Inputs => {
                super::check::divides(operator, self.members.into())?;
                cutting.inputs = all;
                return Ok((cutting, None));
            }
            Cut::Whole | Cut::Between => {}
        }
        let rows = rows(&mut work.clone()).copied();
        let divides = |rows: u64, digit: Digit| rows.is_multiple_of(digit.parts.into());
        if operator.cut == Cut::Whole
            && self.sequence
            && rows.is_some_and(|rows| divides(rows, all))
        {
            cutting.rows = all;
            return Ok((cutting, None));
        }
        let Some(before) = before else {
            return Ok((cutting, None));
        };
        let layout = before.layout;
        cutting.samples = layout.samples;
        if rows.is_some_and(|rows| divides(rows, layout.rows)) {
            cutting.rows = layout.rows;
        }
        let between = operator.cut == Cut::Between;
        let parts = u64::from(layout.columns.parts);
        let by_itself = match *work {
            Work::Activation { width, .. } | Work::Residual { width, .. } => {
                width.is_multiple_of(parts)
            }
            Work::Pool { channels, .. } => channels.is_multiple_of(parts),
            Work::Norm { width, .. } => before.image && width.is_multiple_of(parts),
            Work::Attention {
                heads, kv_heads, ..
            } => {
                super::check::divides(operator, parts)?;
                heads.is_multiple_of(parts) && kv_heads.is_multiple_of(parts)
            }
            // Vocabularies are padded.
            Work::Loss { .. } => between,
            _ => false,
        };
        if by_itself {
            cutting.outputs = layout.columns;
        }
        let mut windows = None;
        if work.window_rows() > 0 && layout.rows.parts > 1 {
            let degrees = Degrees {
                b: 1,
                m: layout.rows.parts,
                n: 1,
                k: 1,
            };
            // An image whose windows cannot be shared out by rows is needed whole.
            let cut = Cutting {
                rows: layout.rows,
                ..cutting
            };
            windows = Sharding::new(work, 1, degrees, layout.rows.parts).ok();
            windows = windows.filter(|_| cut.shares_windows(work));
            if windows.is_some() {
                cutting = cut;
            }
        }
        Ok((cutting, windows))
    }
}

impl Way {
    /// Advances past `operator`, and returns its inputs.
    fn pass(&mut self, operator: &Operator, need: Layout, gives: Held, members: u32) -> Vec<Input> {
        let take = |held: Option<Held>| held.map(|from| Input { from, need });
        // Whether branch and skip path both consume the current result. Tables consume nothing.
        let table = matches!(operator.work, Work::Embedding { .. });
        let fork = self.around == self.main && !table;
        if operator.around {
            let input = take(self.around);
            if fork {
                summed(&mut self.main, &need, members);
            }
            self.around = Some(gives);
            return input.into_iter().collect();
        }
        let inputs = match operator.work {
            Work::Embedding { .. } => {
                // The result of an earlier table waits beside the chain.
                let own = self.main.take().filter(|held| held.by.is_some());
                self.side.extend(own);
                self.around = Some(gives);
                Vec::new()
            }
            Work::EmbeddingBag { .. } => {
                self.side.push(gives);
                return Vec::new();
            }
            Work::Residual { .. } | Work::Interaction { .. } => {
                let beside = std::mem::take(&mut self.side);
                let alone = beside.is_empty() && matches!(operator.work, Work::Residual { .. });
                let around = self.around.filter(|_| alone);
                let others = together(beside).into_iter().chain(around);
                let all = self.main.into_iter().chain(others);
                all.map(|from| Input { from, need }).collect()
            }
            _ => take(self.main).into_iter().collect(),
        };
        if fork {
            summed(&mut self.around, &need, members);
        }
        self.main = Some(gives);
        if matches!(
            operator.work,
            Work::Residual { .. } | Work::Embedding { .. }
        ) || fork && self.behind && stands_in_front(operator)
        {
            self.around = self.main;
        }
        inputs
    }
}

/// Completes the pending sum of `held` for its second consumer; after a reduce-scatter, in sharded layout.
fn summed(held: &mut Option<Held>, need: &Layout, members: u32) {
    if let Some(held) = held
        && let Some(over) = held.over.take()
        && scatters(&held.layout, &[over], need, members).is_some()
    {
        held.layout = *need;
    }
}

/// Returns true if a layer that begins with `operator` is pre-norm, as GPT-2 and Llama are; in BERT and ResNet the
/// output of the norm behind a sum takes the skip path around the next branch.
fn stands_in_front(operator: &Operator) -> bool {
    matches!(operator.work, Work::Norm { .. } | Work::Activation { .. })
}

/// Results that lie alike, side by side as one.
fn together(all: Vec<Held>) -> Vec<Held> {
    let mut found: Vec<Held> = Vec::new();
    for held in all {
        let like = |one: &&mut Held| (one.layout, one.over) == (held.layout, held.over);
        match found.iter_mut().find(like) {
            Some(one) => {
                one.elements = one.elements.saturating_add(held.elements);
                one.columns = one.columns.saturating_add(held.columns);
            }
            None => found.push(held),
        }
    }
    found
}
