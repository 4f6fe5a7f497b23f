//! Adds up gradients, and reduces them in buckets over the data-parallel group.

use super::Style;
use super::build::{Builder, plain};
use super::comm::Ask;
use super::cost::CollectiveKind;
use super::model::Layer;
use super::program::Axis;
use super::tensor::{Arg, Tensor};

/// The gradients of a rank, in one step.
#[derive(Debug)]
pub(super) struct Reducer {
    params: Vec<Param>,
    buckets: Vec<Bucket>,
    /// Number of parameters whose gradients are still missing.
    left: usize,
}

#[derive(Debug)]
struct Param {
    value: Tensor,
    grad: Option<Tensor>,
    /// Bucket of the gradient, and offset in it; `None` if gradients are not shared.
    bucket: Option<(usize, u64)>,
}

#[derive(Debug)]
struct Bucket {
    tensor: Tensor,
    params: Vec<usize>,
    left: usize,
    meet: Option<(u32, Tensor)>,
}

/// Order of a layer's parameters in the backward pass.
const BACKWARD: [usize; 6] = [5, 4, 3, 2, 0, 1];

impl Reducer {
    /// Creates the reducer of `layers`, with buckets if gradients are `shared`.
    pub(super) fn new(builder: &mut Builder<'_>, layers: &[Layer], shared: bool) -> Self {
        let values = layers.iter().flat_map(|layer| layer.params.iter());
        let mut params: Vec<_> = values
            .map(|value| Param {
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
            *elements += params[param].value.elements();
        }
        let buckets = buckets.into_iter().map(|(params, elements)| Bucket {
            tensor: builder.kept(&[elements]),
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
    pub(super) fn gradients(&self) -> impl Iterator<Item = (&Tensor, &Tensor)> {
        self.params
            .iter()
            .filter_map(|param| Some((&param.value, param.grad.as_ref()?)))
    }
}

impl Builder<'_> {
    /// Adds the node that adds `grad` to the gradient of `param`, including its hook.
    pub(super) fn accumulate(&mut self, param: usize, grad: &Tensor, reducer: &mut Reducer) {
        let known = reducer.params[param].grad.clone();
        let name = "torch::autograd::AccumulateGrad";
        let (kept, ()) = self.backward(
            name,
            None,
            grad,
            |b| match known {
                Some(known) => {
                    let args = [Arg::Tensor(&known), Arg::Tensor(grad), Arg::Int(1)];
                    b.pointwise(plain("aten::add_"), &args, &known, 1);
                    known
                }
                None => {
                    let shape = &grad.shape;
                    let kept = b.alias(grad, shape, &grad.strides, 0);
                    let args = [Arg::Tensor(grad)];
                    b.op(plain("aten::detach"), &args, &[Arg::Tensor(&kept)], |b| {
                        b.leaf("detach", &args, &[]);
                    });
                    kept
                }
            },
            |_| {},
        );
        reducer.params[param].grad = Some(kept.clone());
        let Some((nth, offset)) = reducer.params[param].bucket else {
            return;
        };
        // The hook runs inside the record that has just ended, so remove its end to open it again.
        let exit = self.program.instrs.pop();
        self.hook(&kept, offset, nth, reducer);
        self.program.instrs.extend(exit);
    }

    /// Adds the copy of a gradient into its bucket. If the bucket is then complete, adds its reduction.
    fn hook(&mut self, grad: &Tensor, offset: u64, nth: usize, reducer: &mut Reducer) {
        let bucket = reducer.buckets[nth].tensor.clone();
        let view = self.view_of_bucket(&bucket, grad, offset);
        if self.options.style == Style::Functional {
            self.copy_(&view, grad);
        } else {
            let name = "torch::distributed::reducer::mul_out";
            self.op(plain(name), &[Arg::Tensor(&view)], &[], |b| {
                let scale = b.scalar();
                let args = [grad, &scale, &view].map(Arg::Tensor);
                b.pointwise(plain("aten::mul"), &args, &view, 1);
            });
        }
        reducer.left -= 1;
        reducer.buckets[nth].left -= 1;
        if reducer.buckets[nth].left == 0 {
            let ask = |output| Ask {
                kind: CollectiveKind::AllReduce,
                axis: Axis::Data,
                input: &bucket,
                output,
            };
            reducer.buckets[nth].meet = Some(match self.options.style {
                Style::Functional => {
                    let sum = self.fresh(&bucket.shape);
                    (self.functional(ask(&sum)), sum)
                }
                _ => (self.c10d(ask(&bucket), true), bucket.clone()),
            });
        }
        if reducer.left == 0 {
            self.finalize(reducer);
        }
    }

    /// For every bucket, adds the wait and the copy back into the gradients.
    fn finalize(&mut self, reducer: &Reducer) {
        for bucket in &reducer.buckets {
            let (meet, sum) = bucket.meet.as_ref().expect("every bucket is complete");
            match self.options.style {
                Style::Functional => self.wait_tensor(*meet, sum),
                _ => self.wait(*meet),
            }
            let views: Vec<_> = bucket
                .params
                .iter()
                .map(|param| {
                    let known = &reducer.params[*param];
                    let (_, offset) = known.bucket.expect("it is in this one");
                    let view = self.view_of_bucket(sum, &known.value, offset);
                    self.as_strided(sum, &view, true);
                    view
                })
                .collect();
            for (param, view) in bucket.params.iter().zip(views) {
                let known = &reducer.params[*param];
                let grad = known.grad.as_ref().expect("it was accumulated");
                let name = "torch.distributed.ddp.reducer::copy_bucket_to_grad";
                match self.options.style {
                    Style::Functional => self.copy_(grad, &view),
                    _ => self.op(plain(name), &[Arg::Tensor(&known.value)], &[], |b| {
                        b.copy_(grad, &view);
                    }),
                }
            }
        }
    }
}
