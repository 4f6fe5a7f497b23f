//! The model that generated jobs train. Each layer is a normalization and a perceptron with two matrices, plus a
//! residual connection.
//!
//! With tensor parallelism, the activations between layers are sharded: an all-gather precedes the
//! first matrix, and a reduce-scatter follows the second matrix.

use super::JobParallelism;
use super::build::{
    OperatorNameAndAutogradRole, StepProgramBuilder, forward_call, plain_operator_call,
};
use super::comm::RequestedProgramCollective;
use super::cost::CollectiveKind;
use super::ops::LinearResult;
use super::program::GroupAxis;
use super::reducer::GradientReducer;
use super::tensor::{OperatorOperand, ProgramTensor};

/// A layer's parameters: the gain and bias of the normalization, then the weights and biases of the matrices.
#[derive(Clone, Debug)]
pub(super) struct LayerParameters {
    pub params: [ProgramTensor; 6],
}

/// Results of a layer's forward pass that the backward pass needs.
#[derive(Debug)]
pub(super) struct SavedActivations {
    x: ProgramTensor,
    statistics: [ProgramTensor; 2],
    norm: u32,
    gather: Option<u32>,
    first: LinearResult,
    gelu: u32,
    second: LinearResult,
    scatter: Option<u32>,
    add: u32,
}

impl StepProgramBuilder<'_> {
    /// Creates the parameters of `count` layers.
    pub(super) fn create_layer_parameters(&mut self, count: u32) -> Vec<LayerParameters> {
        let h = u64::from(self.options.hidden);
        let wide = 4 * h / u64::from(self.options.tensor_parallel);
        let shapes: [&[u64]; 6] = [&[h], &[h], &[wide, h], &[wide], &[h, wide], &[h]];
        (0..count)
            .map(|_| LayerParameters {
                params: shapes.map(|shape| self.create_persistent_tensor(shape)),
            })
            .collect()
    }

    fn is_tensor_parallel(&self) -> bool {
        self.options.tensor_parallel > 1
    }

    /// Adds an all-gather or reduce-scatter along the first dimension, and the wait for it.
    fn add_reshard_collective(
        &mut self,
        kind: CollectiveKind,
        input: &ProgramTensor,
    ) -> ProgramTensor {
        let tp = u64::from(self.options.tensor_parallel);
        let rows = match kind {
            CollectiveKind::AllGather => input.shape[0] * tp,
            _ => input.shape[0] / tp,
        };
        let output = self.create_temporary(&[rows, input.shape[1]]);
        let ask = RequestedProgramCollective {
            kind,
            axis: GroupAxis::Tensor,
            input,
            output: &output,
        };
        if self.options.style == JobParallelism::Functional {
            let meet = self.add_functional_collective_without_wait(ask);
            self.wait_tensor(meet, &output);
        } else {
            self.add_empty(&output);
            let meet = self.add_c10d_collective(ask, false);
            self.add_communication_wait(meet);
        }
        output
    }

    /// Adds [`StepProgramBuilder::add_reshard_collective`] as an autograd function.
    fn add_reshard_forward(
        &mut self,
        kind: CollectiveKind,
        input: &ProgramTensor,
    ) -> (ProgramTensor, u32) {
        let name = match kind {
            CollectiveKind::AllGather => "_AllGather",
            _ => "_ReduceScatter",
        };
        let seq = self.next_sequence_number();
        let mut output = None;
        self.add_python_time();
        let call = OperatorNameAndAutogradRole {
            flow: true,
            ..forward_call(name, seq)
        };
        self.add_operator_enclosing_body(call, &[OperatorOperand::Tensor(input)], &[], |b| {
            output = Some(b.add_reshard_collective(kind, input));
        });
        (output.expect("it was made"), seq)
    }

    /// Adds a layer's forward pass.
    pub(super) fn add_layer_forward(
        &mut self,
        layer: &LayerParameters,
        x: &ProgramTensor,
    ) -> (ProgramTensor, SavedActivations) {
        let [gain, shift, w1, b1, w2, b2] = &layer.params;
        let (normal, statistics, norm) = self.layer_norm(x, gain, shift);
        let (input, gather) = match self.is_tensor_parallel() {
            true => {
                let (whole, seq) = self.add_reshard_forward(CollectiveKind::AllGather, &normal);
                (whole, Some(seq))
            }
            false => (normal, None),
        };
        let first = self.add_linear(&input, w1, b1);
        let gelu = self.next_sequence_number();
        let bent = self.create_temporary(&first.y.shape);
        self.add_python_time();
        let call = OperatorNameAndAutogradRole {
            flow: true,
            ..forward_call("aten::gelu", gelu)
        };
        let args = [
            OperatorOperand::Tensor(&first.y),
            OperatorOperand::Text("none"),
        ];
        self.add_pointwise(call, &args, &bent, 8);
        let second = self.add_linear(&bent, w2, b2);
        let (output, scatter) = match self.is_tensor_parallel() {
            true => {
                let kind = CollectiveKind::ReduceScatter;
                let (shard, seq) = self.add_reshard_forward(kind, &second.y);
                (shard, Some(seq))
            }
            false => (second.y.clone(), None),
        };
        let add = self.next_sequence_number();
        let sum = self.create_temporary(&x.shape);
        self.add_python_time();
        let call = OperatorNameAndAutogradRole {
            flow: true,
            ..forward_call("aten::add", add)
        };
        let args = [
            OperatorOperand::Tensor(x),
            OperatorOperand::Tensor(&output),
            OperatorOperand::Int(1),
        ];
        self.add_pointwise(call, &args, &sum, 1);
        let saved = SavedActivations {
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
        x: &ProgramTensor,
        gain: &ProgramTensor,
        shift: &ProgramTensor,
    ) -> (ProgramTensor, [ProgramTensor; 2], u32) {
        let (rows, h) = (x.shape[0], x.shape[1]);
        let y = self.create_temporary(&x.shape);
        let statistics = [0; 2].map(|_| self.create_temporary(&[rows, 1]));
        let seq = self.next_sequence_number();
        let small = OperatorOperand::Double("0.000010", "1.0000000000000001e-05");
        let shape = [h];
        let args = [
            OperatorOperand::Tensor(x),
            OperatorOperand::Ints(&shape),
            OperatorOperand::Tensor(gain),
            OperatorOperand::Tensor(shift),
            small,
            OperatorOperand::Bool(true),
        ];
        self.add_python_time();
        self.add_operator_enclosing_body(
            forward_call("aten::layer_norm", seq),
            &args,
            &[OperatorOperand::Tensor(&y)],
            |b| {
                let results = [&y, &statistics[0], &statistics[1]];
                let call = OperatorNameAndAutogradRole {
                    flow: true,
                    ..forward_call("aten::native_layer_norm", seq)
                };
                b.add_operator_enclosing_body(
                    call,
                    &args[..5],
                    &results.map(OperatorOperand::Tensor),
                    |b| {
                        for tensor in results {
                            b.add_empty(tensor);
                        }
                        let bytes = u128::from(y.byte_count()) * 2;
                        let kernel =
                            "void at::native::vectorized_layer_norm_kernel<float, float>()";
                        b.add_work(kernel, u128::from(y.element_count()) * 5, bytes);
                    },
                );
            },
        );
        (y, statistics, seq)
    }

    /// Adds a layer's backward pass. Returns the gradient of the layer's input.
    pub(super) fn add_layer_backward(
        &mut self,
        nth: usize,
        layer: &LayerParameters,
        saved: &SavedActivations,
        grad: &ProgramTensor,
        reducer: &mut GradientReducer,
    ) -> ProgramTensor {
        let [gain, shift, ..] = &layer.params;
        let param = 6 * nth;
        self.add_backward_node("AddBackward0", Some(saved.add), grad, |_| {}, |_| {});
        let wide =
            self.add_inverse_collective_in_backward(saved.scatter, CollectiveKind::AllGather, grad);
        let bent = self.add_linear_backward(&saved.second, &wide, param + 4, reducer);
        let inner = self.create_temporary(&bent.shape);
        self.add_backward_node(
            "GeluBackward0",
            Some(saved.gelu),
            &bent,
            |b| {
                let args = [
                    OperatorOperand::Tensor(&bent),
                    OperatorOperand::Tensor(&saved.first.y),
                    OperatorOperand::Text("none"),
                ];
                b.add_pointwise(
                    plain_operator_call("aten::gelu_backward"),
                    &args,
                    &inner,
                    16,
                );
            },
            |_| {},
        );
        let normal = self.add_linear_backward(&saved.first, &inner, param + 2, reducer);
        let normal = self.add_inverse_collective_in_backward(
            saved.gather,
            CollectiveKind::ReduceScatter,
            &normal,
        );
        let h = gain.shape[0];
        let (dx, dgain, dshift) = (
            self.create_temporary(&saved.x.shape),
            self.create_temporary(&[h]),
            self.create_temporary(&[h]),
        );
        self.add_backward_node(
            "NativeLayerNormBackward0",
            Some(saved.norm),
            &normal,
            |b| {
                let shape = [h];
                let [mean, rstd] = &saved.statistics;
                let args = [
                    OperatorOperand::Tensor(&normal),
                    OperatorOperand::Tensor(&saved.x),
                    OperatorOperand::Ints(&shape),
                    OperatorOperand::Tensor(mean),
                    OperatorOperand::Tensor(rstd),
                    OperatorOperand::Tensor(gain),
                    OperatorOperand::Tensor(shift),
                    OperatorOperand::Bools(3),
                ];
                let results = [&dx, &dgain, &dshift];
                let call = plain_operator_call("aten::native_layer_norm_backward");
                b.add_operator_enclosing_body(
                    call,
                    &args,
                    &results.map(OperatorOperand::Tensor),
                    |b| {
                        b.empty_like(&saved.x, &dx);
                        b.empty_like(gain, &dgain);
                        b.empty_like(shift, &dshift);
                        let bytes = u128::from(dx.byte_count()) * 3;
                        let kernel =
                            "void at::native::layer_norm_grad_input_kernel<float, float>()";
                        b.add_work(kernel, u128::from(dx.element_count()) * 10, bytes);
                    },
                );
            },
            |_| {},
        );
        self.add_autograd_gradient_accumulation_node(param, &dgain, reducer);
        self.add_autograd_gradient_accumulation_node(param + 1, &dshift, reducer);
        dx
    }

    fn add_inverse_collective_in_backward(
        &mut self,
        seq: Option<u32>,
        kind: CollectiveKind,
        grad: &ProgramTensor,
    ) -> ProgramTensor {
        let Some(seq) = seq else {
            return grad.clone();
        };
        // The backward pass runs the inverse collective: a reduce-scatter for an all-gather, and vice versa.
        let name = match kind {
            CollectiveKind::AllGather => "_ReduceScatterBackward",
            _ => "_AllGatherBackward",
        };
        self.add_backward_node(
            name,
            Some(seq),
            grad,
            |b| b.add_reshard_collective(kind, grad),
            |_| {},
        )
        .0
    }

    /// Adds the backward pass of a linear layer. The weight is the parameter with index `param`,
    /// and the bias is the parameter after it.
    fn add_linear_backward(
        &mut self,
        of: &LinearResult,
        grad: &ProgramTensor,
        param: usize,
        reducer: &mut GradientReducer,
    ) -> ProgramTensor {
        let [dx, dw, db] = self.add_addmm_backward(of, grad);
        self.add_autograd_gradient_accumulation_node(param + 1, &db, reducer);
        let turn = |b: &mut Self| b.add_transpose(plain_operator_call("aten::t"), &dw);
        let (dw, ()) = self.add_backward_node("TBackward0", Some(of.seqs[0]), &dw, turn, |_| {});
        self.add_autograd_gradient_accumulation_node(param, &dw, reducer);
        dx
    }
}
