//! Adds a training step: data, forward pass, backward pass and optimizer, or the microbatches of a pipeline.

use super::build::{
    OperatorNameAndAutogradRole, StepProgramBuilder, annotation_call, plain_operator_call,
};
use super::comm::RequestedProgramCollective;
use super::cost::CollectiveKind;
use super::cost::CommunicationOperation;
use super::layout::JobGroupsAndCommunications;
use super::model::{LayerParameters, SavedActivations};
use super::program::{CopyDirection, GroupAxis, StepProgram, ThreadInstruction};
use super::reducer::GradientReducer;
use super::tensor::{NUMBER, OperatorOperand, ProgramTensor};
use super::{JobParallelism, Options};
use std::collections::VecDeque;

/// Number of the first captured step.
pub(super) const FIRST_STEP: u32 = 2;

/// A microbatch between its forward pass and its backward pass.
struct InFlightMicroBatch {
    saved: Vec<SavedActivations>,
    /// The loss and its autograd node, on the last stage.
    loss: Option<(ProgramTensor, u32)>,
}

/// Builds the program of `rank`, and lists its meetings (collectives and messages).
pub(super) fn build_program(
    options: &Options,
    layout: &JobGroupsAndCommunications,
    rank: u32,
) -> (StepProgram, Vec<(CommunicationOperation, u64, u32)>) {
    let mut b = StepProgramBuilder::new(options, layout, rank);
    let name = format!("ProfilerStep#{NUMBER}");
    let call = OperatorNameAndAutogradRole {
        number: (FIRST_STEP, 1),
        ..annotation_call(&name)
    };
    b.add_python_time();
    b.add_operator_enclosing_body(call, &[], &[], |b| match options.style {
        JobParallelism::Pipeline => b.add_stage_step(),
        _ => b.add_replica_step(),
    });
    b.finish_program()
}

impl StepProgramBuilder<'_> {
    /// Adds a step of a rank that has all layers, or a shard of each layer.
    fn add_replica_step(&mut self) {
        let layers = self.create_layer_parameters(self.options.layers);
        let group = self
            .layout
            .group_of_rank(GroupAxis::Data, self.rank)
            .ranks
            .len();
        let shared = group > 1;
        let mut reducer = GradientReducer::new(self, &layers, shared);
        let mut x = self.add_input_data();
        let shape = x.shape.clone();
        let mut saved = Vec::new();
        if shared && self.options.style == JobParallelism::Ddp {
            let name = "DistributedDataParallel.forward";
            self.add_python_time();
            self.add_operator_enclosing_body(annotation_call(name), &[], &[], |b| {
                b.add_buffer_broadcast();
                x = b.add_forward(&layers, &x, &mut saved);
            });
        } else {
            x = self.add_forward(&layers, &x, &mut saved);
        }
        let (loss, seq) = self.add_loss(&x);
        let ones = self.ones_like(&loss);
        self.switch_to_backward_thread_on_cuda();
        let grad = self.add_loss_backward(&ones, seq, &shape);
        self.add_layers_backward(&layers, &saved, grad, &mut reducer);
        self.switch_back_from_backward_thread();
        self.add_optimizer(&reducer);
        self.add_loss_read(&loss);
    }

    fn switch_to_backward_thread_on_cuda(&mut self) {
        if self.is_on_cuda() {
            self.add_python_time();
            self.push_instruction(ThreadInstruction::Thread(1));
        }
    }

    fn switch_back_from_backward_thread(&mut self) {
        if self.is_on_cuda() {
            self.push_instruction(ThreadInstruction::Thread(0));
        }
    }

    /// Adds the step's input. If there is a device, the host copies the input to the device.
    fn add_input_data(&mut self) -> ProgramTensor {
        let rows = self.options.tokens / self.options.tensor_parallel;
        let x = self.create_temporary(&[rows.into(), self.options.hidden.into()]);
        let (result, none) = ([OperatorOperand::Tensor(&x)], OperatorOperand::None);
        self.add_python_time();
        if !self.is_on_cuda() {
            let shape = OperatorOperand::Ints(&x.shape);
            let args = [
                shape,
                none,
                none,
                OperatorOperand::Device,
                OperatorOperand::Bool(false),
            ];
            self.add_operator_enclosing_body(
                plain_operator_call("aten::randn"),
                &args,
                &result,
                |b| {
                    b.add_empty(&x);
                    let (zero, one) = (
                        OperatorOperand::Double("0.000000", "0."),
                        OperatorOperand::Double("1.000000", "1."),
                    );
                    let args = [OperatorOperand::Tensor(&x), zero, one, none];
                    b.add_pointwise(plain_operator_call("aten::normal_"), &args, &x, 10);
                },
            );
            return x;
        }
        let pinned = ProgramTensor {
            host: true,
            ..self.create_persistent_tensor(&x.shape)
        };
        let (from, float, layout) = (
            OperatorOperand::Tensor(&pinned),
            OperatorOperand::Int(6),
            OperatorOperand::Int(0),
        );
        let (device, yes, no) = (
            OperatorOperand::Device,
            OperatorOperand::Bool(true),
            OperatorOperand::Bool(false),
        );
        let args = [from, float, layout, device, none, yes, no, none];
        self.add_operator_enclosing_body(plain_operator_call("aten::to"), &args, &result, |b| {
            let args = [from, float, layout, device, none, yes, none];
            b.add_operator_enclosing_body(
                plain_operator_call("aten::_to_copy"),
                &args,
                &result,
                |b| {
                    b.empty_strided(&x);
                    let args = [OperatorOperand::Tensor(&x), from, yes];
                    b.add_operator_enclosing_body(
                        plain_operator_call("aten::copy_"),
                        &args,
                        &result,
                        |b| {
                            b.add_host_device_copy(CopyDirection::ToDevice, x.byte_count());
                        },
                    );
                },
            );
        });
        x
    }

    /// Adds the broadcast of the first rank's buffers; DDP broadcasts buffers before each forward
    /// pass.
    fn add_buffer_broadcast(&mut self) {
        let buffer = self.create_persistent_tensor(&[self.options.hidden.into()]);
        let ask = RequestedProgramCollective {
            kind: CollectiveKind::Broadcast,
            axis: GroupAxis::Data,
            input: &buffer,
            output: &buffer,
        };
        self.add_python_time();
        let meet = self.add_c10d_collective(ask, true);
        self.add_communication_wait(meet);
    }

    fn add_forward(
        &mut self,
        layers: &[LayerParameters],
        x: &ProgramTensor,
        saved: &mut Vec<SavedActivations>,
    ) -> ProgramTensor {
        let mut x = x.clone();
        for layer in layers {
            let (y, kept) = self.add_layer_forward(layer, &x);
            saved.push(kept);
            x = y;
        }
        x
    }

    fn add_layers_backward(
        &mut self,
        layers: &[LayerParameters],
        saved: &[SavedActivations],
        grad: ProgramTensor,
        reducer: &mut GradientReducer,
    ) -> ProgramTensor {
        let both = layers.iter().zip(saved).enumerate().rev();
        both.fold(grad, |grad, (nth, (layer, saved))| {
            self.add_layer_backward(nth, layer, saved, &grad, reducer)
        })
    }

    fn add_optimizer(&mut self, reducer: &GradientReducer) {
        self.add_python_time();
        self.add_operator_enclosing_body(
            annotation_call("Optimizer.step#SGD.step"),
            &[],
            &[],
            |b| {
                for (value, grad) in reducer.iter_parameters_with_gradients() {
                    let rate = OperatorOperand::Double("-0.010000", "-0.01");
                    let args = [
                        OperatorOperand::Tensor(value),
                        OperatorOperand::Tensor(grad),
                        rate,
                    ];
                    b.add_python_time();
                    b.add_pointwise(plain_operator_call("aten::add_"), &args, value, 2);
                }
            },
        );
        self.add_python_time();
        self.add_operator_enclosing_body(
            annotation_call("Optimizer.zero_grad#SGD.zero_grad"),
            &[],
            &[],
            |_| {},
        );
    }

    /// Adds the read of the loss, where the host waits for the device.
    fn add_loss_read(&mut self, loss: &ProgramTensor) {
        let (args, result) = (
            [OperatorOperand::Tensor(loss)],
            [OperatorOperand::Double("1.000000", "1.")],
        );
        self.add_python_time();
        self.add_operator_enclosing_body(plain_operator_call("aten::item"), &args, &result, |b| {
            b.add_operator_enclosing_body(
                plain_operator_call("aten::_local_scalar_dense"),
                &args,
                &result,
                |b| {
                    if b.is_on_cuda() {
                        b.add_host_device_copy(CopyDirection::ToHost, 4);
                        b.push_instruction(ThreadInstruction::Synchronize);
                    }
                },
            );
        });
    }

    /// Adds a step of one stage. When the pipeline is full, the stage alternates between one forward pass and one
    /// backward pass.
    fn add_stage_step(&mut self) {
        let (stage, stages) = (self.rank, self.options.ranks);
        let count = self.options.microbatches;
        let layers = self.create_layer_parameters(self.options.layers / stages);
        let mut reducer = GradientReducer::new(self, &layers, false);
        let shape = [u64::from(self.options.tokens), self.options.hidden.into()];
        let mut flying: VecDeque<InFlightMicroBatch> = VecDeque::new();
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
                    0 => self.add_input_data(),
                    _ => self.add_receive_and_wait(stage - 1, number(stage - 1, nth, 0), &shape),
                };
                let mut saved = Vec::new();
                let y = self.add_forward(&layers, &x, &mut saved);
                let loss = match stage + 1 == stages {
                    true => Some(self.add_loss(&y)),
                    false => {
                        self.add_python_time();
                        sent.push(self.add_message_start(
                            false,
                            stage + 1,
                            number(stage, nth, 0),
                            &y,
                        ));
                        None
                    }
                };
                flying.push_back(InFlightMicroBatch { saved, loss });
                continue;
            }
            let InFlightMicroBatch { saved, loss } =
                flying.pop_front().expect("what goes back went forward");
            let grad = match loss {
                Some((loss, seq)) => {
                    let ones = self.ones_like(&loss);
                    self.add_loss_backward(&ones, seq, &shape)
                }
                None => self.add_receive_and_wait(stage + 1, number(stage, nth, 1), &shape),
            };
            let grad = self.add_layers_backward(&layers, &saved, grad, &mut reducer);
            if stage > 0 {
                self.add_python_time();
                sent.push(self.add_message_start(
                    false,
                    stage - 1,
                    number(stage - 1, nth, 1),
                    &grad,
                ));
            }
        }
        for meet in sent {
            self.add_communication_wait(meet);
        }
        self.add_optimizer(&reducer);
    }

    /// Adds a message from a neighbour, and the wait for it.
    fn add_receive_and_wait(&mut self, from: u32, number: u32, shape: &[u64]) -> ProgramTensor {
        let tensor = self.create_temporary(shape);
        self.add_python_time();
        self.add_empty(&tensor);
        let meet = self.add_message_start(true, from, number, &tensor);
        self.add_communication_wait(meet);
        tensor
    }
}
