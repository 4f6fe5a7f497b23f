//! Adds a model's operators, each with its child operators on the device.

use super::build::{
    OperatorNameAndAutogradRole, StepProgramBuilder, forward_call, plain_operator_call,
};
use super::program::AutogradRole;
use super::tensor::{OperatorOperand, ProgramTensor, dense_strides};

impl StepProgramBuilder<'_> {
    /// Adds the allocation of a tensor.
    pub(super) fn add_empty(&mut self, tensor: &ProgramTensor) {
        let (float, none) = (OperatorOperand::Int(6), OperatorOperand::None);
        let args = [
            OperatorOperand::Ints(&tensor.shape),
            float,
            none,
            OperatorOperand::Device,
            none,
            none,
        ];
        self.add_operator_without_children(
            "aten::empty",
            &args,
            &[OperatorOperand::Tensor(tensor)],
        );
    }

    pub(super) fn empty_strided(&mut self, tensor: &ProgramTensor) {
        let (shape, strides) = (
            OperatorOperand::Ints(&tensor.shape),
            OperatorOperand::Ints(&tensor.strides),
        );
        let args = [
            shape,
            strides,
            OperatorOperand::Int(6),
            OperatorOperand::Int(0),
            OperatorOperand::Device,
            OperatorOperand::None,
        ];
        self.add_operator_without_children(
            "aten::empty_strided",
            &args,
            &[OperatorOperand::Tensor(tensor)],
        );
    }

    pub(super) fn empty_like(&mut self, like: &ProgramTensor, tensor: &ProgramTensor) {
        let none = OperatorOperand::None;
        let args = [
            OperatorOperand::Tensor(like),
            OperatorOperand::Int(6),
            OperatorOperand::Int(0),
            OperatorOperand::Device,
            none,
            none,
        ];
        self.add_operator_enclosing_body(
            plain_operator_call("aten::empty_like"),
            &args,
            &[OperatorOperand::Tensor(tensor)],
            |b| {
                b.empty_strided(tensor);
            },
        );
    }

    pub(super) fn add_tensor_copy_operator(&mut self, to: &ProgramTensor, from: &ProgramTensor) {
        let args = [
            OperatorOperand::Tensor(to),
            OperatorOperand::Tensor(from),
            OperatorOperand::Bool(false),
        ];
        let bytes = u128::from(to.byte_count()) * 2;
        self.add_operator_enclosing_body(
            plain_operator_call("aten::copy_"),
            &args,
            &[OperatorOperand::Tensor(to)],
            |b| {
                b.add_work(
                    "void at::native::elementwise_kernel<128, 2, copy>()",
                    0,
                    bytes,
                );
            },
        );
    }

    /// Adds a view of the tensor `of` with sizes and strides.
    pub(super) fn as_strided(&mut self, of: &ProgramTensor, view: &ProgramTensor, offset: bool) {
        let offset = match offset {
            true => OperatorOperand::Int(view.offset as i64),
            false => OperatorOperand::None,
        };
        let (shape, strides) = (
            OperatorOperand::Ints(&view.shape),
            OperatorOperand::Ints(&view.strides),
        );
        let args = [OperatorOperand::Tensor(of), shape, strides, offset];
        self.add_operator_without_children(
            "aten::as_strided",
            &args,
            &[OperatorOperand::Tensor(view)],
        );
    }

    /// Adds a transposition, and returns the transposed tensor.
    pub(super) fn add_transpose(
        &mut self,
        call: OperatorNameAndAutogradRole<'_>,
        of: &ProgramTensor,
    ) -> ProgramTensor {
        let swapped = |v: &[u64]| [v[1], v[0]];
        let view = self.create_alias(of, &swapped(&of.shape), &swapped(&of.strides), of.offset);
        let (from, to) = (
            OperatorOperand::Tensor(of),
            [OperatorOperand::Tensor(&view)],
        );
        self.add_operator_enclosing_body(call, &[from], &to, |b| {
            let args = [from, OperatorOperand::Int(0), OperatorOperand::Int(1)];
            b.add_operator_enclosing_body(
                plain_operator_call("aten::transpose"),
                &args,
                &to,
                |b| {
                    b.as_strided(of, &view, false);
                },
            );
        });
        view
    }

    fn add_expand(&mut self, of: &ProgramTensor, shape: &[u64], strides: &[u64]) -> ProgramTensor {
        let view = self.create_alias(of, shape, strides, of.offset);
        let args = [
            OperatorOperand::Tensor(of),
            OperatorOperand::Ints(shape),
            OperatorOperand::Bool(false),
        ];
        self.add_operator_enclosing_body(
            plain_operator_call("aten::expand"),
            &args,
            &[OperatorOperand::Tensor(&view)],
            |b| {
                b.as_strided(of, &view, false);
            },
        );
        view
    }

    fn resolve_conj(&mut self, tensor: &ProgramTensor) {
        let tensor = [OperatorOperand::Tensor(tensor)];
        self.add_operator_without_children("aten::resolve_conj", &tensor, &tensor);
    }

    fn add_mm(&mut self, a: &ProgramTensor, b: &ProgramTensor) -> ProgramTensor {
        let (n, k, m) = (a.shape[0], a.shape[1], b.shape[1]);
        let product = self.create_temporary(&[n, m]);
        let args = [OperatorOperand::Tensor(a), OperatorOperand::Tensor(b)];
        self.add_operator_enclosing_body(
            plain_operator_call("aten::mm"),
            &args,
            &[OperatorOperand::Tensor(&product)],
            |this| {
                this.add_matmul_work(n, k, m, [&product, a, b]);
            },
        );
        product
    }

    /// Adds the work of a matrix product.
    fn add_matmul_work(&mut self, n: u64, k: u64, m: u64, tensors: [&ProgramTensor; 3]) {
        if !self.is_on_cuda() {
            for tensor in tensors {
                self.resolve_conj(tensor);
            }
        }
        let flops = 2 * u128::from(n) * u128::from(k) * u128::from(m);
        let bytes = tensors.iter().map(|t| u128::from(t.byte_count())).sum();
        self.add_work(
            "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32",
            flops,
            bytes,
        );
    }

    /// Adds the product of `x` and the transposed `weight`, plus `bias`. Returns the result and the
    /// sequence numbers of its two autograd nodes.
    pub(super) fn add_linear(
        &mut self,
        x: &ProgramTensor,
        weight: &ProgramTensor,
        bias: &ProgramTensor,
    ) -> LinearResult {
        let (n, k, m) = (x.shape[0], x.shape[1], weight.shape[0]);
        let y = self.create_temporary(&[n, m]);
        let args = [x, weight, bias].map(OperatorOperand::Tensor);
        let seqs = [self.next_sequence_number(), self.next_sequence_number()];
        let mut transposed = None;
        self.add_python_time();
        self.add_operator_enclosing_body(
            forward_call("aten::linear", seqs[0]),
            &args,
            &[OperatorOperand::Tensor(&y)],
            |b| {
                let with = |name, seq| OperatorNameAndAutogradRole {
                    flow: true,
                    ..forward_call(name, seq)
                };
                let wt = b.add_transpose(with("aten::t", seqs[0]), weight);
                let one = OperatorOperand::Int(1);
                let args = [
                    OperatorOperand::Tensor(bias),
                    OperatorOperand::Tensor(x),
                    OperatorOperand::Tensor(&wt),
                    one,
                    one,
                ];
                b.add_operator_enclosing_body(
                    with("aten::addmm", seqs[1]),
                    &args,
                    &[OperatorOperand::Tensor(&y)],
                    |b| {
                        if !b.is_on_cuda() {
                            let wide = b.add_expand(bias, &[n, m], &[0, 1]);
                            b.add_tensor_copy_operator(&y, &wide);
                        }
                        b.add_matmul_work(n, k, m, [&y, x, &wt]);
                    },
                );
                transposed = Some(wt);
            },
        );
        LinearResult {
            x: x.clone(),
            y,
            transposed: transposed.expect("it was made"),
            seqs,
        }
    }

    /// Adds the backward node of a product. Returns the gradients of `x`, of the transposed weight, and
    /// of the bias.
    pub(super) fn add_addmm_backward(
        &mut self,
        of: &LinearResult,
        grad: &ProgramTensor,
    ) -> [ProgramTensor; 3] {
        let (n, m) = (grad.shape[0], grad.shape[1]);
        let evaluated = self.add_backward_node(
            "AddmmBackward0",
            Some(of.seqs[1]),
            grad,
            |b| {
                let weight = b.add_transpose(plain_operator_call("aten::t"), &of.transposed);
                let dx = b.add_mm(grad, &weight);
                let turned = b.add_transpose(plain_operator_call("aten::t"), grad);
                let dw = b.add_mm(&turned, &of.x);
                let dw = b.add_transpose(plain_operator_call("aten::t"), &dw);
                (dx, dw)
            },
            |b| {
                let sum = b.create_temporary(&[1, m]);
                let args = [
                    OperatorOperand::Tensor(grad),
                    OperatorOperand::Ints(&[0]),
                    OperatorOperand::Bool(true),
                    OperatorOperand::None,
                ];
                b.add_operator_enclosing_body(
                    plain_operator_call("aten::sum"),
                    &args,
                    &[OperatorOperand::Tensor(&sum)],
                    |b| {
                        let bytes = u128::from(n * m * 4);
                        b.add_work(
                            "void at::native::reduce_kernel<512, 1, sum>()",
                            u128::from(n * m),
                            bytes,
                        );
                    },
                );
                let flat = b.create_alias(&sum, &[m], &[1], 0);
                let args = [OperatorOperand::Tensor(&sum), OperatorOperand::Ints(&[m])];
                b.add_operator_without_children(
                    "aten::view",
                    &args,
                    &[OperatorOperand::Tensor(&flat)],
                );
                flat
            },
        );
        let ((dx, dw), db) = evaluated;
        [dx, dw, db]
    }

    /// Adds a node of the backward pass. `inside` adds the node's own work, and `behind` adds the autograd engine's
    /// work after the node.
    pub(super) fn add_backward_node<A, B>(
        &mut self,
        name: &str,
        seq: Option<u32>,
        grad: &ProgramTensor,
        inside: impl FnOnce(&mut Self) -> A,
        behind: impl FnOnce(&mut Self) -> B,
    ) -> (A, B) {
        let frame = format!("autograd::engine::evaluate_function: {name}");
        let call = |name, role| OperatorNameAndAutogradRole {
            role,
            seq,
            flow: role == AutogradRole::Backward && seq.is_some(),
            ..plain_operator_call(name)
        };
        let mut both = (None, None);
        self.add_operator_enclosing_body(call(&frame, AutogradRole::Evaluate), &[], &[], |b| {
            b.add_operator_enclosing_body(
                call(name, AutogradRole::Backward),
                &[OperatorOperand::Tensor(grad)],
                &[],
                |b| {
                    both.0 = Some(inside(b));
                },
            );
            both.1 = Some(behind(b));
        });
        (both.0.expect("it was run"), both.1.expect("it was run"))
    }

    /// Adds an operator with one kernel, which reads and writes whole tensors.
    pub(super) fn add_pointwise(
        &mut self,
        call: OperatorNameAndAutogradRole<'_>,
        args: &[OperatorOperand<'_>],
        result: &ProgramTensor,
        per_element: u64,
    ) {
        let flops = u128::from(result.element_count()) * u128::from(per_element);
        let bytes = u128::from(result.byte_count()) * 3;
        self.add_operator_enclosing_body(call, args, &[OperatorOperand::Tensor(result)], |b| {
            let kernel = "void at::native::vectorized_elementwise_kernel<4, float>()";
            b.add_work(kernel, flops, bytes);
        });
    }

    /// Adds the loss, which is the sum of all elements. Returns the loss and its autograd node.
    pub(super) fn add_loss(&mut self, x: &ProgramTensor) -> (ProgramTensor, u32) {
        let loss = self.create_temporary(&[]);
        let args = [
            OperatorOperand::Tensor(x),
            OperatorOperand::Ints(&[0, 1]),
            OperatorOperand::Bool(false),
            OperatorOperand::None,
        ];
        let seq = self.next_sequence_number();
        let call = OperatorNameAndAutogradRole {
            flow: true,
            ..forward_call("aten::sum", seq)
        };
        self.add_python_time();
        self.add_operator_enclosing_body(call, &args, &[OperatorOperand::Tensor(&loss)], |b| {
            let kernel = "void at::native::reduce_kernel<512, 1, sum>()";
            b.add_work(kernel, x.element_count().into(), x.byte_count().into());
        });
        (loss, seq)
    }

    /// Adds the gradient of the loss, which starts the backward pass.
    pub(super) fn ones_like(&mut self, loss: &ProgramTensor) -> ProgramTensor {
        let ones = self.create_temporary(&[]);
        let none = OperatorOperand::None;
        let args = [
            OperatorOperand::Tensor(loss),
            none,
            none,
            none,
            OperatorOperand::Bool(false),
            OperatorOperand::Int(1),
        ];
        self.add_python_time();
        self.add_operator_enclosing_body(
            plain_operator_call("aten::ones_like"),
            &args,
            &[OperatorOperand::Tensor(&ones)],
            |b| {
                b.empty_like(loss, &ones);
                let args = [
                    OperatorOperand::Tensor(&ones),
                    OperatorOperand::Double("1.000000", "1."),
                ];
                b.add_pointwise(plain_operator_call("aten::fill_"), &args, &ones, 1);
            },
        );
        ones
    }

    /// Adds the backward node of the loss.
    pub(super) fn add_loss_backward(
        &mut self,
        ones: &ProgramTensor,
        seq: u32,
        shape: &[u64],
    ) -> ProgramTensor {
        let expand = |b: &mut Self| b.add_expand(ones, shape, &vec![0; shape.len()]);
        self.add_backward_node("SumBackward1", Some(seq), ones, expand, |_| {})
            .0
    }

    /// Adds a view of a bucket for one parameter.
    pub(super) fn add_bucket_view(
        &mut self,
        bucket: &ProgramTensor,
        like: &ProgramTensor,
        offset: u64,
    ) -> ProgramTensor {
        self.create_alias(bucket, &like.shape, &dense_strides(&like.shape), offset)
    }
}

/// Result of a linear layer's forward pass.
#[derive(Clone, Debug)]
pub(super) struct LinearResult {
    pub x: ProgramTensor,
    pub y: ProgramTensor,
    pub transposed: ProgramTensor,
    /// Sequence numbers of the transposition and of the product.
    pub seqs: [u32; 2],
}
