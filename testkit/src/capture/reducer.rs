//! Adds up gradients, and reduces them in buckets over the data-parallel group.

use super::JobParallelism;
use super::build::{StepProgramBuilder, plain_operator_call};
use super::comm::RequestedProgramCollective;
use super::cost::CollectiveKind;
use super::model::LayerParameters;
use super::program::GroupAxis;
use super::tensor::{OperatorOperand, ProgramTensor};

/// A rank's gradients in one step.
#[derive(Debug)]
pub(super) struct GradientReducer {
    params: Vec<ReducedParameter>,
    buckets: Vec<ReducerBucket>,
    /// Number of gradients that are still missing.
    left: usize,
}

#[derive(Debug)]
struct ReducedParameter {
    value: ProgramTensor,
    grad: Option<ProgramTensor>,
    /// Bucket of the gradient, and the gradient's offset in the bucket; `None` if ranks do not sum
    /// gradients.
    bucket: Option<(usize, u64)>,
}

#[derive(Debug)]
struct ReducerBucket {
    tensor: ProgramTensor,
    params: Vec<usize>,
    left: usize,
    meet: Option<(u32, ProgramTensor)>,
}

/// The order in which the backward pass reaches a layer's parameters.
const BACKWARD: [usize; 6] = [5, 4, 3, 2, 0, 1];

impl GradientReducer {
    /// Creates the reducer for `layers`; it uses buckets if gradients are `shared`.
    pub(super) fn new(
        builder: &mut StepProgramBuilder<'_>,
        layers: &[LayerParameters],
        shared: bool,
    ) -> Self {
        let values = layers.iter().flat_map(|layer| layer.params.iter());
        let mut params: Vec<_> = values
            .map(|value| ReducedParameter {
                value: value.clone(),
                grad: None,
                bucket: None,
            })
            .collect();
        let mut buckets: Vec<(Vec<usize>, u64)> = Vec::new();
        let order = (0..layers.len())
            .rev()
            .flat_map(|l| BACKWARD.map(|p| 6 * l + p));
        for param in order.filter(|_| shared) {
            let full = |(_, elements): &(Vec<usize>, u64)| elements * 4 >= builder.options.bucket;
            if buckets.last().is_none_or(full) {
                buckets.push((Vec::new(), 0));
            }
            let nth = buckets.len() - 1;
            let (members, elements) = &mut buckets[nth];
            params[param].bucket = Some((nth, *elements));
            members.push(param);
            *elements += params[param].value.element_count();
        }
        let buckets = buckets.into_iter().map(|(params, elements)| ReducerBucket {
            tensor: builder.create_persistent_tensor(&[elements]),
            left: params.len(),
            params,
            meet: None,
        });
        Self {
            left: params.len(),
            buckets: buckets.collect(),
            params,
        }
    }

    /// Returns the parameters, each with its gradient.
    pub(super) fn iter_parameters_with_gradients(
        &self,
    ) -> impl Iterator<Item = (&ProgramTensor, &ProgramTensor)> {
        self.params
            .iter()
            .filter_map(|param| Some((&param.value, param.grad.as_ref()?)))
    }
}

impl StepProgramBuilder<'_> {
    /// Adds the autograd node that adds `grad` to the gradient of `param`, including the node's
    /// hook.
    pub(super) fn add_autograd_gradient_accumulation_node(
        &mut self,
        param: usize,
        grad: &ProgramTensor,
        reducer: &mut GradientReducer,
    ) {
        let known = reducer.params[param].grad.clone();
        let name = "torch::autograd::AccumulateGrad";
        let (kept, ()) = self.add_backward_node(
            name,
            None,
            grad,
            |b| match known {
                Some(known) => {
                    let args = [
                        OperatorOperand::Tensor(&known),
                        OperatorOperand::Tensor(grad),
                        OperatorOperand::Int(1),
                    ];
                    b.add_pointwise(plain_operator_call("aten::add_"), &args, &known, 1);
                    known
                }
                None => {
                    let shape = &grad.shape;
                    let kept = b.create_alias(grad, shape, &grad.strides, 0);
                    let args = [OperatorOperand::Tensor(grad)];
                    b.add_operator_enclosing_body(
                        plain_operator_call("aten::detach"),
                        &args,
                        &[OperatorOperand::Tensor(&kept)],
                        |b| {
                            b.add_operator_without_children("detach", &args, &[]);
                        },
                    );
                    kept
                }
            },
            |_| {},
        );
        reducer.params[param].grad = Some(kept.clone());
        let Some((nth, offset)) = reducer.params[param].bucket else {
            return;
        };
        // The hook runs inside the record that has just ended, so reopen it by removing its end.
        let exit = self.program.instrs.pop();
        self.add_gradient_copy_into_bucket(&kept, offset, nth, reducer);
        self.program.instrs.extend(exit);
    }

    /// Adds the copy of a gradient into its bucket. If the copy completes the bucket, also adds the
    /// bucket's reduction.
    fn add_gradient_copy_into_bucket(
        &mut self,
        grad: &ProgramTensor,
        offset: u64,
        nth: usize,
        reducer: &mut GradientReducer,
    ) {
        let bucket = reducer.buckets[nth].tensor.clone();
        let view = self.add_bucket_view(&bucket, grad, offset);
        if self.options.style == JobParallelism::Functional {
            self.add_tensor_copy_operator(&view, grad);
        } else {
            let name = "torch::distributed::reducer::mul_out";
            self.add_operator_enclosing_body(
                plain_operator_call(name),
                &[OperatorOperand::Tensor(&view)],
                &[],
                |b| {
                    let scale = b.create_scalar();
                    let args = [grad, &scale, &view].map(OperatorOperand::Tensor);
                    b.add_pointwise(plain_operator_call("aten::mul"), &args, &view, 1);
                },
            );
        }
        reducer.left -= 1;
        reducer.buckets[nth].left -= 1;
        if reducer.buckets[nth].left == 0 {
            let ask = |output| RequestedProgramCollective {
                kind: CollectiveKind::AllReduce,
                axis: GroupAxis::Data,
                input: &bucket,
                output,
            };
            reducer.buckets[nth].meet = Some(match self.options.style {
                JobParallelism::Functional => {
                    let sum = self.create_temporary(&bucket.shape);
                    (self.add_functional_collective_without_wait(ask(&sum)), sum)
                }
                _ => (self.add_c10d_collective(ask(&bucket), true), bucket.clone()),
            });
        }
        if reducer.left == 0 {
            self.add_reduction_finalization(reducer);
        }
    }

    /// Adds the wait for each bucket's reduction, and the copy of the sums back into the gradients.
    fn add_reduction_finalization(&mut self, reducer: &GradientReducer) {
        for bucket in &reducer.buckets {
            let (meet, sum) = bucket.meet.as_ref().expect("every bucket is complete");
            match self.options.style {
                JobParallelism::Functional => self.wait_tensor(*meet, sum),
                _ => self.add_communication_wait(*meet),
            }
            let views: Vec<_> = bucket
                .params
                .iter()
                .map(|param| {
                    let known = &reducer.params[*param];
                    let (_, offset) = known.bucket.expect("it is in this one");
                    let view = self.add_bucket_view(sum, &known.value, offset);
                    self.as_strided(sum, &view, true);
                    view
                })
                .collect();
            for (param, view) in bucket.params.iter().zip(views) {
                let known = &reducer.params[*param];
                let grad = known.grad.as_ref().expect("it was accumulated");
                let name = "torch.distributed.ddp.reducer::copy_bucket_to_grad";
                match self.options.style {
                    JobParallelism::Functional => self.add_tensor_copy_operator(grad, &view),
                    _ => self.add_operator_enclosing_body(
                        plain_operator_call(name),
                        &[OperatorOperand::Tensor(&known.value)],
                        &[],
                        |b| {
                            b.add_tensor_copy_operator(grad, &view);
                        },
                    ),
                }
            }
        }
    }
}
