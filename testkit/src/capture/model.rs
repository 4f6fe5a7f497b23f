//! The model. Each layer is a normalization and a perceptron of two matrices, with a residual connection.
//!
//! With tensor parallelism, the activations between layers are sharded: an all-gather precedes the first matrix, and
//! a reduce-scatter follows the second.

use super::Style;
use super::build::{Builder, Call, forward, plain};
use super::comm::Ask;
use super::cost::CollectiveKind;
use super::ops::Linear;
use super::program::Axis;
use super::reducer::Reducer;
use super::tensor::{Arg, Tensor};

/// A layer's parameters: the gain and bias of the normalization, then the weights and biases of the matrices.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub params: [Tensor; 6],
}

/// Results of a layer's forward pass that the backward pass needs.
#[derive(Debug)]
pub(super) struct Saved {
    x: Tensor,
    statistics: [Tensor; 2],
    norm: u32,
    gather: Option<u32>,
    first: Linear,
    gelu: u32,
    second: Linear,
    scatter: Option<u32>,
    add: u32,
}

impl Builder<'_> {
    /// Creates the parameters of `count` layers.
    pub(super) fn layers(&mut self, count: u32) -> Vec<Layer> {
        let h = u64::from(self.options.hidden);
        let wide = 4 * h / u64::from(self.options.tensor_parallel);
        let shapes: [&[u64]; 6] = [&[h], &[h], &[wide, h], &[wide], &[h, wide], &[h]];
        (0..count)
            .map(|_| Layer {
                params: shapes.map(|shape| self.kept(shape)),
            })
            .collect()
    }

    fn sharded(&self) -> bool {
        self.options.tensor_parallel > 1
    }

    /// Adds an all-gather or reduce-scatter along the first dimension, and the wait for it.
    fn reshard(&mut self, kind: CollectiveKind, input: &Tensor) -> Tensor {
        let tp = u64::from(self.options.tensor_parallel);
        let rows = match kind {
            CollectiveKind::AllGather => input.shape[0] * tp,
            _ => input.shape[0] / tp,
        };
        let output = self.fresh(&[rows, input.shape[1]]);
        let ask = Ask {
            kind,
            axis: Axis::Tensor,
            input,
            output: &output,
        };
        if self.options.style == Style::Functional {
            let meet = self.functional(ask);
            self.wait_tensor(meet, &output);
        } else {
            self.empty(&output);
            let meet = self.c10d(ask, false);
            self.wait(meet);
        }
        output
    }

    /// Adds [`Builder::reshard`] as an autograd function.
    fn reshard_forward(&mut self, kind: CollectiveKind, input: &Tensor) -> (Tensor, u32) {
        let name = match kind {
            CollectiveKind::AllGather => "_AllGather",
            _ => "_ReduceScatter",
        };
        let seq = self.seq();
        let mut output = None;
        self.python();
        let call = Call {
            flow: true,
            ..forward(name, seq)
        };
        self.op(call, &[Arg::Tensor(input)], &[], |b| {
            output = Some(b.reshard(kind, input));
        });
        (output.expect("it was made"), seq)
    }

    /// Adds a layer's forward pass.
    pub(super) fn layer(&mut self, layer: &Layer, x: &Tensor) -> (Tensor, Saved) {
        let [gain, shift, w1, b1, w2, b2] = &layer.params;
        let (normal, statistics, norm) = self.layer_norm(x, gain, shift);
        let (input, gather) = match self.sharded() {
            true => {
                let (whole, seq) = self.reshard_forward(CollectiveKind::AllGather, &normal);
                (whole, Some(seq))
            }
            false => (normal, None),
        };
        let first = self.linear(&input, w1, b1);
        let gelu = self.seq();
        let bent = self.fresh(&first.y.shape);
        self.python();
        let call = Call {
            flow: true,
            ..forward("aten::gelu", gelu)
        };
        let args = [Arg::Tensor(&first.y), Arg::Text("none")];
        self.pointwise(call, &args, &bent, 8);
        let second = self.linear(&bent, w2, b2);
        let (output, scatter) = match self.sharded() {
            true => {
                let kind = CollectiveKind::ReduceScatter;
                let (shard, seq) = self.reshard_forward(kind, &second.y);
                (shard, Some(seq))
            }
            false => (second.y.clone(), None),
        };
        let add = self.seq();
        let sum = self.fresh(&x.shape);
        self.python();
        let call = Call {
            flow: true,
            ..forward("aten::add", add)
        };
        let args = [Arg::Tensor(x), Arg::Tensor(&output), Arg::Int(1)];
        self.pointwise(call, &args, &sum, 1);
        let saved = Saved {
            x: x.clone(),
            statistics,
            norm,
            gather,
            first,
            gelu,
            second,
            scatter,
            add,
        };
        (sum, saved)
    }

    fn layer_norm(
        &mut self,
        x: &Tensor,
        gain: &Tensor,
        shift: &Tensor,
    ) -> (Tensor, [Tensor; 2], u32) {
        let (rows, h) = (x.shape[0], x.shape[1]);
        let y = self.fresh(&x.shape);
        let statistics = [0; 2].map(|_| self.fresh(&[rows, 1]));
        let seq = self.seq();
        let small = Arg::Double("0.000010", "1.0000000000000001e-05");
        let shape = [h];
        let args = [
            Arg::Tensor(x),
            Arg::Ints(&shape),
            Arg::Tensor(gain),
            Arg::Tensor(shift),
            small,
            Arg::Bool(true),
        ];
        self.python();
        self.op(
            forward("aten::layer_norm", seq),
            &args,
            &[Arg::Tensor(&y)],
            |b| {
                let results = [&y, &statistics[0], &statistics[1]];
                let call = Call {
                    flow: true,
                    ..forward("aten::native_layer_norm", seq)
                };
                b.op(call, &args[..5], &results.map(Arg::Tensor), |b| {
                    for tensor in results {
                        b.empty(tensor);
                    }
                    let bytes = u128::from(y.bytes()) * 2;
                    let kernel = "void at::native::vectorized_layer_norm_kernel<float, float>()";
                    b.work(kernel, u128::from(y.elements()) * 5, bytes);
                });
            },
        );
        (y, statistics, seq)
    }

    /// Adds a layer's backward pass. Returns the gradient of the layer's input.
    pub(super) fn layer_backward(
        &mut self,
        nth: usize,
        layer: &Layer,
        saved: &Saved,
        grad: &Tensor,
        reducer: &mut Reducer,
    ) -> Tensor {
        let [gain, shift, ..] = &layer.params;
        let param = 6 * nth;
        self.backward("AddBackward0", Some(saved.add), grad, |_| {}, |_| {});
        let wide = self.reshard_backward(saved.scatter, CollectiveKind::AllGather, grad);
        let bent = self.linear_backward(&saved.second, &wide, param + 4, reducer);
        let inner = self.fresh(&bent.shape);
        self.backward(
            "GeluBackward0",
            Some(saved.gelu),
            &bent,
            |b| {
                let args = [
                    Arg::Tensor(&bent),
                    Arg::Tensor(&saved.first.y),
                    Arg::Text("none"),
                ];
                b.pointwise(plain("aten::gelu_backward"), &args, &inner, 16);
            },
            |_| {},
        );
        let normal = self.linear_backward(&saved.first, &inner, param + 2, reducer);
        let normal = self.reshard_backward(saved.gather, CollectiveKind::ReduceScatter, &normal);
        let h = gain.shape[0];
        let (dx, dgain, dshift) = (
            self.fresh(&saved.x.shape),
            self.fresh(&[h]),
            self.fresh(&[h]),
        );
        self.backward(
            "NativeLayerNormBackward0",
            Some(saved.norm),
            &normal,
            |b| {
                let shape = [h];
                let [mean, rstd] = &saved.statistics;
                let args = [
                    Arg::Tensor(&normal),
                    Arg::Tensor(&saved.x),
                    Arg::Ints(&shape),
                    Arg::Tensor(mean),
                    Arg::Tensor(rstd),
                    Arg::Tensor(gain),
                    Arg::Tensor(shift),
                    Arg::Bools(3),
                ];
                let results = [&dx, &dgain, &dshift];
                let call = plain("aten::native_layer_norm_backward");
                b.op(call, &args, &results.map(Arg::Tensor), |b| {
                    b.empty_like(&saved.x, &dx);
                    b.empty_like(gain, &dgain);
                    b.empty_like(shift, &dshift);
                    let bytes = u128::from(dx.bytes()) * 3;
                    let kernel = "void at::native::layer_norm_grad_input_kernel<float, float>()";
                    b.work(kernel, u128::from(dx.elements()) * 10, bytes);
                });
            },
            |_| {},
        );
        self.accumulate(param, &dgain, reducer);
        self.accumulate(param + 1, &dshift, reducer);
        dx
    }

    fn reshard_backward(
        &mut self,
        seq: Option<u32>,
        kind: CollectiveKind,
        grad: &Tensor,
    ) -> Tensor {
        let Some(seq) = seq else {
            return grad.clone();
        };
        // In the backward pass, the collective is the inverse of the forward pass's collective.
        let name = match kind {
            CollectiveKind::AllGather => "_ReduceScatterBackward",
            _ => "_AllGatherBackward",
        };
        self.backward(name, Some(seq), grad, |b| b.reshard(kind, grad), |_| {})
            .0
    }

    /// Adds the backward pass of a linear layer. Its weight is the parameter `param`, and its bias is the next
    /// parameter.
    fn linear_backward(
        &mut self,
        of: &Linear,
        grad: &Tensor,
        param: usize,
        reducer: &mut Reducer,
    ) -> Tensor {
        let [dx, dw, db] = self.addmm_backward(of, grad);
        self.accumulate(param + 1, &db, reducer);
        let turn = |b: &mut Self| b.t(plain("aten::t"), &dw);
        let (dw, ()) = self.backward("TBackward0", Some(of.seqs[0]), &dw, turn, |_| {});
        self.accumulate(param, &dw, reducer);
        dx
    }
}
