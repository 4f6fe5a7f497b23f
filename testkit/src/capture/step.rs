//! Adds a training step: data, forward pass, backward pass and optimizer; in a pipeline, its microbatches.

use super::build::{Builder, Call, annotation, plain};
use super::comm::Ask;
use super::cost::CollectiveKind;
use super::cost::Exchange;
use super::layout::Layout;
use super::model::{Layer, Saved};
use super::program::{Axis, Copy, Instr, Program};
use super::reducer::Reducer;
use super::tensor::{Arg, NUMBER, Tensor};
use super::{Options, Style};
use std::collections::VecDeque;

/// Number of the first recorded step.
pub(super) const FIRST_STEP: u32 = 2;

/// A microbatch after its forward pass and before its backward pass.
struct Flying {
    saved: Vec<Saved>,
    /// The loss and its autograd node, on the last stage.
    loss: Option<(Tensor, u32)>,
}

/// Builds the program of `rank`, and the list of its meetings.
pub(super) fn program(
    options: &Options,
    layout: &Layout,
    rank: u32,
) -> (Program, Vec<(Exchange, u64, u32)>) {
    let mut b = Builder::new(options, layout, rank);
    let name = format!("ProfilerStep#{NUMBER}");
    let call = Call {
        number: (FIRST_STEP, 1),
        ..annotation(&name)
    };
    b.python();
    b.op(call, &[], &[], |b| match options.style {
        Style::Pipeline => b.stage(),
        _ => b.replica(),
    });
    b.finish()
}

impl Builder<'_> {
    /// Adds a step of a rank that has all layers, or a shard of each layer.
    fn replica(&mut self) {
        let layers = self.layers(self.options.layers);
        let group = self.layout.group(Axis::Data, self.rank).ranks.len();
        let shared = group > 1;
        let mut reducer = Reducer::new(self, &layers, shared);
        let mut x = self.data();
        let shape = x.shape.clone();
        let mut saved = Vec::new();
        if shared && self.options.style == Style::Ddp {
            let name = "DistributedDataParallel.forward";
            self.python();
            self.op(annotation(name), &[], &[], |b| {
                b.buffers();
                x = b.forward(&layers, &x, &mut saved);
            });
        } else {
            x = self.forward(&layers, &x, &mut saved);
        }
        let (loss, seq) = self.loss(&x);
        let ones = self.ones_like(&loss);
        self.begin_backward();
        let grad = self.loss_backward(&ones, seq, &shape);
        self.layers_backward(&layers, &saved, grad, &mut reducer);
        self.end_backward();
        self.optimize(&reducer);
        self.read(&loss);
    }

    fn begin_backward(&mut self) {
        if self.cuda() {
            self.python();
            self.instr(Instr::Thread(1));
        }
    }

    fn end_backward(&mut self) {
        if self.cuda() {
            self.instr(Instr::Thread(0));
        }
    }

    /// Adds the step's input. If there is a device, the input is copied from the host.
    fn data(&mut self) -> Tensor {
        let rows = self.options.tokens / self.options.tensor_parallel;
        let x = self.fresh(&[rows.into(), self.options.hidden.into()]);
        let (result, none) = ([Arg::Tensor(&x)], Arg::None);
        self.python();
        if !self.cuda() {
            let shape = Arg::Ints(&x.shape);
            let args = [shape, none, none, Arg::Device, Arg::Bool(false)];
            self.op(plain("aten::randn"), &args, &result, |b| {
                b.empty(&x);
                let (zero, one) = (Arg::Double("0.000000", "0."), Arg::Double("1.000000", "1."));
                let args = [Arg::Tensor(&x), zero, one, none];
                b.pointwise(plain("aten::normal_"), &args, &x, 10);
            });
            return x;
        }
        let pinned = Tensor {
            host: true,
            ..self.kept(&x.shape)
        };
        let (from, float, layout) = (Arg::Tensor(&pinned), Arg::Int(6), Arg::Int(0));
        let (device, yes, no) = (Arg::Device, Arg::Bool(true), Arg::Bool(false));
        let args = [from, float, layout, device, none, yes, no, none];
        self.op(plain("aten::to"), &args, &result, |b| {
            let args = [from, float, layout, device, none, yes, none];
            b.op(plain("aten::_to_copy"), &args, &result, |b| {
                b.empty_strided(&x);
                let args = [Arg::Tensor(&x), from, yes];
                b.op(plain("aten::copy_"), &args, &result, |b| {
                    b.copy(Copy::ToDevice, x.bytes());
                });
            });
        });
        x
    }

    /// Adds the broadcast of the first rank's buffers, which DDP makes before a forward pass.
    fn buffers(&mut self) {
        let buffer = self.kept(&[self.options.hidden.into()]);
        let ask = Ask {
            kind: CollectiveKind::Broadcast,
            axis: Axis::Data,
            input: &buffer,
            output: &buffer,
        };
        self.python();
        let meet = self.c10d(ask, true);
        self.wait(meet);
    }

    fn forward(&mut self, layers: &[Layer], x: &Tensor, saved: &mut Vec<Saved>) -> Tensor {
        let mut x = x.clone();
        for layer in layers {
            let (y, kept) = self.layer(layer, &x);
            saved.push(kept);
            x = y;
        }
        x
    }

    fn layers_backward(
        &mut self,
        layers: &[Layer],
        saved: &[Saved],
        grad: Tensor,
        reducer: &mut Reducer,
    ) -> Tensor {
        let both = layers.iter().zip(saved).enumerate().rev();
        both.fold(grad, |grad, (nth, (layer, saved))| {
            self.layer_backward(nth, layer, saved, &grad, reducer)
        })
    }

    fn optimize(&mut self, reducer: &Reducer) {
        self.python();
        self.op(annotation("Optimizer.step#SGD.step"), &[], &[], |b| {
            for (value, grad) in reducer.gradients() {
                let rate = Arg::Double("-0.010000", "-0.01");
                let args = [Arg::Tensor(value), Arg::Tensor(grad), rate];
                b.python();
                b.pointwise(plain("aten::add_"), &args, value, 2);
            }
        });
        self.python();
        self.op(
            annotation("Optimizer.zero_grad#SGD.zero_grad"),
            &[],
            &[],
            |_| {},
        );
    }

    /// Adds the reading of the loss, for which the host waits for the device.
    fn read(&mut self, loss: &Tensor) {
        let (args, result) = ([Arg::Tensor(loss)], [Arg::Double("1.000000", "1.")]);
        self.python();
        self.op(plain("aten::item"), &args, &result, |b| {
            b.op(plain("aten::_local_scalar_dense"), &args, &result, |b| {
                if b.cuda() {
                    b.copy(Copy::ToHost, 4);
                    b.instr(Instr::Synchronize);
                }
            });
        });
    }

    /// Adds a step of one stage. When the pipeline is full, the stage alternates between one forward pass and one
    /// backward pass.
    fn stage(&mut self) {
        let (stage, stages) = (self.rank, self.options.ranks);
        let count = self.options.microbatches;
        let layers = self.layers(self.options.layers / stages);
        let mut reducer = Reducer::new(self, &layers, false);
        let shape = [u64::from(self.options.tokens), self.options.hidden.into()];
        let mut flying: VecDeque<Flying> = VecDeque::new();
        let mut sent = Vec::new();
        let number = |from: u32, nth: u32, back: u32| (from * count + nth) * 2 + back;
        let ahead = (stages - stage - 1).min(count);
        let turns = (0..count + ahead).flat_map(|turn| {
            let forward = (turn < count).then_some((turn, true));
            let backward = turn.checked_sub(ahead).map(|nth| (nth, false));
            [forward, backward].into_iter().flatten()
        });
        for (nth, is_forward) in turns {
            if is_forward {
                let x = match stage {
                    0 => self.data(),
                    _ => self.receive(stage - 1, number(stage - 1, nth, 0), &shape),
                };
                let mut saved = Vec::new();
                let y = self.forward(&layers, &x, &mut saved);
                let loss = match stage + 1 == stages {
                    true => Some(self.loss(&y)),
                    false => {
                        self.python();
                        sent.push(self.message(false, stage + 1, number(stage, nth, 0), &y));
                        None
                    }
                };
                flying.push_back(Flying { saved, loss });
                continue;
            }
            let Flying { saved, loss } = flying.pop_front().expect("what goes back went forward");
            let grad = match loss {
                Some((loss, seq)) => {
                    let ones = self.ones_like(&loss);
                    self.loss_backward(&ones, seq, &shape)
                }
                None => self.receive(stage + 1, number(stage, nth, 1), &shape),
            };
            let grad = self.layers_backward(&layers, &saved, grad, &mut reducer);
            if stage > 0 {
                self.python();
                sent.push(self.message(false, stage - 1, number(stage - 1, nth, 1), &grad));
            }
        }
        for meet in sent {
            self.wait(meet);
        }
        self.optimize(&reducer);
    }

    /// Adds a message from a neighbour, and the wait for it.
    fn receive(&mut self, from: u32, number: u32, shape: &[u64]) -> Tensor {
        let tensor = self.fresh(shape);
        self.python();
        self.empty(&tensor);
        let meet = self.message(true, from, number, &tensor);
        self.wait(meet);
        tensor
    }
}
