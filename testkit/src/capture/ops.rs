//! The operators of a model, with their children on each device.

use super::build::{Builder, Call, forward, plain};
use super::program::Role;
use super::tensor::{Arg, Tensor, dense};

impl Builder<'_> {
    /// Adds the allocation of a tensor.
    pub(super) fn empty(&mut self, tensor: &Tensor) {
        let (float, none) = (Arg::Int(6), Arg::None);
        let args = [
            Arg::Ints(&tensor.shape),
            float,
            none,
            Arg::Device,
            none,
            none,
        ];
        self.leaf("aten::empty", &args, &[Arg::Tensor(tensor)]);
    }

    pub(super) fn empty_strided(&mut self, tensor: &Tensor) {
        let (shape, strides) = (Arg::Ints(&tensor.shape), Arg::Ints(&tensor.strides));
        let args = [
            shape,
            strides,
            Arg::Int(6),
            Arg::Int(0),
            Arg::Device,
            Arg::None,
        ];
        self.leaf("aten::empty_strided", &args, &[Arg::Tensor(tensor)]);
    }

    pub(super) fn empty_like(&mut self, like: &Tensor, tensor: &Tensor) {
        let none = Arg::None;
        let args = [
            Arg::Tensor(like),
            Arg::Int(6),
            Arg::Int(0),
            Arg::Device,
            none,
            none,
        ];
        self.op(
            plain("aten::empty_like"),
            &args,
            &[Arg::Tensor(tensor)],
            |b| {
                b.empty_strided(tensor);
            },
        );
    }

    pub(super) fn copy_(&mut self, to: &Tensor, from: &Tensor) {
        let args = [Arg::Tensor(to), Arg::Tensor(from), Arg::Bool(false)];
        let bytes = u128::from(to.bytes()) * 2;
        self.op(plain("aten::copy_"), &args, &[Arg::Tensor(to)], |b| {
            b.work(
                "void at::native::elementwise_kernel<128, 2, copy>()",
                0,
                bytes,
            );
        });
    }

    /// Adds a view of the tensor `of` by sizes and strides.
    pub(super) fn as_strided(&mut self, of: &Tensor, view: &Tensor, offset: bool) {
        let offset = match offset {
            true => Arg::Int(view.offset as i64),
            false => Arg::None,
        };
        let (shape, strides) = (Arg::Ints(&view.shape), Arg::Ints(&view.strides));
        let args = [Arg::Tensor(of), shape, strides, offset];
        self.leaf("aten::as_strided", &args, &[Arg::Tensor(view)]);
    }

    /// Adds a transposition, and returns the transposed tensor.
    pub(super) fn t(&mut self, call: Call<'_>, of: &Tensor) -> Tensor {
        let swapped = |v: &[u64]| [v[1], v[0]];
        let view = self.alias(of, &swapped(&of.shape), &swapped(&of.strides), of.offset);
        let (from, to) = (Arg::Tensor(of), [Arg::Tensor(&view)]);
        self.op(call, &[from], &to, |b| {
            let args = [from, Arg::Int(0), Arg::Int(1)];
            b.op(plain("aten::transpose"), &args, &to, |b| {
                b.as_strided(of, &view, false);
            });
        });
        view
    }

    fn expand(&mut self, of: &Tensor, shape: &[u64], strides: &[u64]) -> Tensor {
        let view = self.alias(of, shape, strides, of.offset);
        let args = [Arg::Tensor(of), Arg::Ints(shape), Arg::Bool(false)];
        self.op(plain("aten::expand"), &args, &[Arg::Tensor(&view)], |b| {
            b.as_strided(of, &view, false);
        });
        view
    }

    fn resolve_conj(&mut self, tensor: &Tensor) {
        let tensor = [Arg::Tensor(tensor)];
        self.leaf("aten::resolve_conj", &tensor, &tensor);
    }

    fn mm(&mut self, a: &Tensor, b: &Tensor) -> Tensor {
        let (n, k, m) = (a.shape[0], a.shape[1], b.shape[1]);
        let product = self.fresh(&[n, m]);
        let args = [Arg::Tensor(a), Arg::Tensor(b)];
        self.op(plain("aten::mm"), &args, &[Arg::Tensor(&product)], |this| {
            this.product(n, k, m, [&product, a, b]);
        });
        product
    }

    /// Adds the work of a matrix product.
    fn product(&mut self, n: u64, k: u64, m: u64, tensors: [&Tensor; 3]) {
        if !self.cuda() {
            for tensor in tensors {
                self.resolve_conj(tensor);
            }
        }
        let flops = 2 * u128::from(n) * u128::from(k) * u128::from(m);
        let bytes = tensors.iter().map(|t| u128::from(t.bytes())).sum();
        self.work(
            "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32",
            flops,
            bytes,
        );
    }

    /// Adds `x` times the transposed `weight` plus `bias`. Returns the result and its two autograd nodes.
    pub(super) fn linear(&mut self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Linear {
        let (n, k, m) = (x.shape[0], x.shape[1], weight.shape[0]);
        let y = self.fresh(&[n, m]);
        let args = [x, weight, bias].map(Arg::Tensor);
        let seqs = [self.seq(), self.seq()];
        let mut transposed = None;
        self.python();
        self.op(
            forward("aten::linear", seqs[0]),
            &args,
            &[Arg::Tensor(&y)],
            |b| {
                let with = |name, seq| Call {
                    flow: true,
                    ..forward(name, seq)
                };
                let wt = b.t(with("aten::t", seqs[0]), weight);
                let one = Arg::Int(1);
                let args = [
                    Arg::Tensor(bias),
                    Arg::Tensor(x),
                    Arg::Tensor(&wt),
                    one,
                    one,
                ];
                b.op(
                    with("aten::addmm", seqs[1]),
                    &args,
                    &[Arg::Tensor(&y)],
                    |b| {
                        if !b.cuda() {
                            let wide = b.expand(bias, &[n, m], &[0, 1]);
                            b.copy_(&y, &wide);
                        }
                        b.product(n, k, m, [&y, x, &wt]);
                    },
                );
                transposed = Some(wt);
            },
        );
        Linear {
            x: x.clone(),
            y,
            transposed: transposed.expect("it was made"),
            seqs,
        }
    }

    /// Adds the backward node of a product. Returns the gradients of `x`, of the transposed weight, and
    /// of the bias.
    pub(super) fn addmm_backward(&mut self, of: &Linear, grad: &Tensor) -> [Tensor; 3] {
        let (n, m) = (grad.shape[0], grad.shape[1]);
        let evaluated = self.backward(
            "AddmmBackward0",
            Some(of.seqs[1]),
            grad,
            |b| {
                let weight = b.t(plain("aten::t"), &of.transposed);
                let dx = b.mm(grad, &weight);
                let turned = b.t(plain("aten::t"), grad);
                let dw = b.mm(&turned, &of.x);
                let dw = b.t(plain("aten::t"), &dw);
                (dx, dw)
            },
            |b| {
                let sum = b.fresh(&[1, m]);
                let args = [
                    Arg::Tensor(grad),
                    Arg::Ints(&[0]),
                    Arg::Bool(true),
                    Arg::None,
                ];
                b.op(plain("aten::sum"), &args, &[Arg::Tensor(&sum)], |b| {
                    let bytes = u128::from(n * m * 4);
                    b.work(
                        "void at::native::reduce_kernel<512, 1, sum>()",
                        u128::from(n * m),
                        bytes,
                    );
                });
                let flat = b.alias(&sum, &[m], &[1], 0);
                let args = [Arg::Tensor(&sum), Arg::Ints(&[m])];
                b.leaf("aten::view", &args, &[Arg::Tensor(&flat)]);
                flat
            },
        );
        let ((dx, dw), db) = evaluated;
        [dx, dw, db]
    }

    /// Adds a node of the backward pass. `inside` adds the node's own work, and `behind` adds the
    /// autograd engine's work after it.
    pub(super) fn backward<A, B>(
        &mut self,
        name: &str,
        seq: Option<u32>,
        grad: &Tensor,
        inside: impl FnOnce(&mut Self) -> A,
        behind: impl FnOnce(&mut Self) -> B,
    ) -> (A, B) {
        let frame = format!("autograd::engine::evaluate_function: {name}");
        let call = |name, role| Call {
            role,
            seq,
            flow: role == Role::Backward && seq.is_some(),
            ..plain(name)
        };
        let mut both = (None, None);
        self.op(call(&frame, Role::Evaluate), &[], &[], |b| {
            b.op(call(name, Role::Backward), &[Arg::Tensor(grad)], &[], |b| {
                both.0 = Some(inside(b));
            });
            both.1 = Some(behind(b));
        });
        (both.0.expect("it was run"), both.1.expect("it was run"))
    }

    /// Adds an operator with one kernel, which reads and writes whole tensors.
    pub(super) fn pointwise(
        &mut self,
        call: Call<'_>,
        args: &[Arg<'_>],
        result: &Tensor,
        per_element: u64,
    ) {
        let flops = u128::from(result.elements()) * u128::from(per_element);
        let bytes = u128::from(result.bytes()) * 3;
        self.op(call, args, &[Arg::Tensor(result)], |b| {
            let kernel = "void at::native::vectorized_elementwise_kernel<4, float>()";
            b.work(kernel, flops, bytes);
        });
    }

    /// Adds the sum of all elements. Returns it with its autograd node.
    pub(super) fn loss(&mut self, x: &Tensor) -> (Tensor, u32) {
        let loss = self.fresh(&[]);
        let args = [
            Arg::Tensor(x),
            Arg::Ints(&[0, 1]),
            Arg::Bool(false),
            Arg::None,
        ];
        let seq = self.seq();
        let call = Call {
            flow: true,
            ..forward("aten::sum", seq)
        };
        self.python();
        self.op(call, &args, &[Arg::Tensor(&loss)], |b| {
            let kernel = "void at::native::reduce_kernel<512, 1, sum>()";
            b.work(kernel, x.elements().into(), x.bytes().into());
        });
        (loss, seq)
    }

    /// Adds the gradient of the loss, which starts the backward pass.
    pub(super) fn ones_like(&mut self, loss: &Tensor) -> Tensor {
        let ones = self.fresh(&[]);
        let none = Arg::None;
        let args = [
            Arg::Tensor(loss),
            none,
            none,
            none,
            Arg::Bool(false),
            Arg::Int(1),
        ];
        self.python();
        self.op(
            plain("aten::ones_like"),
            &args,
            &[Arg::Tensor(&ones)],
            |b| {
                b.empty_like(loss, &ones);
                let args = [Arg::Tensor(&ones), Arg::Double("1.000000", "1.")];
                b.pointwise(plain("aten::fill_"), &args, &ones, 1);
            },
        );
        ones
    }

    /// Adds the backward node of the loss.
    pub(super) fn loss_backward(&mut self, ones: &Tensor, seq: u32, shape: &[u64]) -> Tensor {
        let expand = |b: &mut Self| b.expand(ones, shape, &vec![0; shape.len()]);
        self.backward("SumBackward1", Some(seq), ones, expand, |_| {})
            .0
    }

    /// Adds a view of a bucket for one parameter.
    pub(super) fn view_of_bucket(&mut self, bucket: &Tensor, like: &Tensor, offset: u64) -> Tensor {
        self.alias(bucket, &like.shape, &dense(&like.shape), offset)
    }
}

/// Result of a linear layer's forward pass.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    pub x: Tensor,
    pub y: Tensor,
    pub transposed: Tensor,
    /// Sequence numbers of the transposition and of the product.
    pub seqs: [u32; 2],
}
