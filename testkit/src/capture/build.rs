//! Builds a rank's program: operators with their work, and collectives and messages. The comments
//! in this folder call a collective or message a *meeting* of its members.

use super::cost::{self, CommunicationOperation, PYTHON};
use super::layout::JobGroupsAndCommunications;
use super::program::{
    AutogradRole, CommunicationMemberOperatorAndKernel, CopyDirection, GroupAxis, ProgramOperator,
    StepProgram, ThreadInstruction,
};
use super::schema::schema_of_operator;
use super::tensor::{self, FloatOrDoubleElement, OperatorOperand, ProgramTensor, dense_strides};
use super::{Device, Options};
use std::fmt::Write;

/// A program under construction.
pub(super) struct StepProgramBuilder<'o> {
    pub program: StepProgram,
    pub options: &'o Options,
    pub layout: &'o JobGroupsAndCommunications,
    pub rank: u32,
    /// The program's meetings (collectives and messages), each with its kind, its bytes, and the number of its group's
    /// earlier meetings.
    pub asked: Vec<(CommunicationOperation, u64, u32)>,
    /// Operators that are given the number of the last meeting (collective or message) along their axis, each with this
    /// axis.
    numbered: Vec<(u32, GroupAxis)>,
    counts: [u32; 3],
    device: String,
}

/// An operator's name and its role in autograd.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperatorNameAndAutogradRole<'a> {
    pub name: &'a str,
    pub role: AutogradRole,
    pub seq: Option<u32>,
    pub flow: bool,
    pub number: (u32, u32),
    /// Additional attributes for the host node, and additional arguments for the event.
    pub more: [&'a str; 2],
}

/// Returns the call of an operator outside autograd.
pub(super) fn plain_operator_call(name: &str) -> OperatorNameAndAutogradRole<'_> {
    OperatorNameAndAutogradRole {
        name,
        role: AutogradRole::Plain,
        seq: None,
        flow: false,
        number: (0, 0),
        more: [""; 2],
    }
}

/// Returns the call of an annotation.
pub(super) fn annotation_call(name: &str) -> OperatorNameAndAutogradRole<'_> {
    OperatorNameAndAutogradRole {
        role: AutogradRole::Annotation,
        ..plain_operator_call(name)
    }
}

/// Returns the call of an operator of the forward pass.
pub(super) fn forward_call(name: &str, seq: u32) -> OperatorNameAndAutogradRole<'_> {
    OperatorNameAndAutogradRole {
        role: AutogradRole::Forward,
        seq: Some(seq),
        ..plain_operator_call(name)
    }
}

impl<'o> StepProgramBuilder<'o> {
    pub(super) fn new(
        options: &'o Options,
        layout: &'o JobGroupsAndCommunications,
        rank: u32,
    ) -> Self {
        Self {
            program: StepProgram::default(),
            options,
            layout,
            rank,
            asked: Vec::new(),
            numbered: Vec::new(),
            counts: [0; 3],
            device: match options.device {
                Device::Cpu => "cpu".to_owned(),
                // The generated job has eight GPUs per host.
                Device::Cuda => format!("cuda:{}", rank % 8),
            },
        }
    }

    /// Ends the program, and returns it with its meetings.
    pub(super) fn finish_program(
        mut self,
    ) -> (StepProgram, Vec<(CommunicationOperation, u64, u32)>) {
        for (op, axis) in self.numbered {
            self.program.ops[op as usize].number.1 = self.counts[axis as usize];
        }
        (self.program, self.asked)
    }

    pub(super) fn is_on_cuda(&self) -> bool {
        self.options.device == Device::Cuda
    }

    fn add_tensor_slot(&mut self, root: Option<u32>, kept: bool) -> u32 {
        let slot = self.program.slots.len() as u32;
        self.program.slots.push((root.unwrap_or(slot), kept));
        slot
    }

    fn add_tensor(
        &mut self,
        shape: &[u64],
        kind: FloatOrDoubleElement,
        kept: bool,
    ) -> ProgramTensor {
        ProgramTensor {
            slot: self.add_tensor_slot(None, kept),
            kind,
            strides: dense_strides(shape),
            shape: shape.to_vec(),
            offset: 0,
            host: false,
        }
    }

    /// Creates a tensor that exists only for one step.
    pub(super) fn create_temporary(&mut self, shape: &[u64]) -> ProgramTensor {
        self.add_tensor(shape, FloatOrDoubleElement::Float, false)
    }

    /// Creates a tensor that exists for all steps.
    pub(super) fn create_persistent_tensor(&mut self, shape: &[u64]) -> ProgramTensor {
        self.add_tensor(shape, FloatOrDoubleElement::Float, true)
    }

    /// Creates a scalar in host memory.
    pub(super) fn create_scalar(&mut self) -> ProgramTensor {
        ProgramTensor {
            host: true,
            ..self.add_tensor(&[], FloatOrDoubleElement::Double, false)
        }
    }

    /// Creates another tensor that shares the storage of `of`.
    pub(super) fn create_alias(
        &mut self,
        of: &ProgramTensor,
        shape: &[u64],
        strides: &[u64],
        offset: u64,
    ) -> ProgramTensor {
        let (root, kept) = self.program.slots[of.slot as usize];
        ProgramTensor {
            slot: self.add_tensor_slot(Some(root), kept),
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            offset,
            ..of.clone()
        }
    }

    /// Returns the sequence number of autograd's next node.
    pub(super) fn next_sequence_number(&mut self) -> u32 {
        self.program.seqs += 1;
        self.program.seqs - 1
    }

    /// Adds an operator to the program's list, without starting it.
    pub(super) fn declare_operator(
        &mut self,
        call: OperatorNameAndAutogradRole<'_>,
        inputs: &[OperatorOperand<'_>],
        outputs: &[OperatorOperand<'_>],
    ) -> u32 {
        let args = self.program.args.len() as u32;
        let mut host = String::from("\"inputs\": ");
        tensor::write_host_lists(&mut host, inputs, &self.device, &mut self.program.args);
        let count = self.program.args.len() as u32 - args;
        host.push_str(",\n        \"outputs\": ");
        tensor::write_host_lists(&mut host, outputs, &self.device, &mut self.program.args);
        let all = self.program.args.len() as u32 - args;
        let schema = schema_of_operator(call.name);
        let mut attrs = String::new();
        for (name, value) in [
            ("op_schema", schema),
            ("kernel_backend", ""),
            ("kernel_file", ""),
            ("tensor_range", ""),
        ] {
            write!(
                attrs,
                ",{{\"name\": \"{name}\", \"type\": \"string\", \"value\": \"{value}\"}}"
            )
            .expect("a string grows");
        }
        attrs.push_str(call.more[0]);
        let mut kineto = String::new();
        if !inputs.is_empty() {
            tensor::write_kineto_operator_inputs(&mut kineto, inputs);
            if !call.more[1].is_empty() {
                kineto.push_str(", ");
            }
        }
        kineto.push_str(call.more[1]);
        let texts = [call.name, &host, &attrs, &kineto];
        let template = self.program.intern_template(call.role, texts);
        self.program.ops.push(ProgramOperator {
            template,
            args,
            inputs: count as u16,
            outputs: (all - count) as u16,
            seq: call.seq,
            flow: call.flow,
            number: call.number,
        });
        (self.program.ops.len() - 1) as u32
    }

    /// Adds an operator that encloses everything that `body` adds.
    pub(super) fn add_operator_enclosing_body(
        &mut self,
        call: OperatorNameAndAutogradRole<'_>,
        inputs: &[OperatorOperand<'_>],
        outputs: &[OperatorOperand<'_>],
        body: impl FnOnce(&mut Self),
    ) {
        let op = self.declare_operator(call, inputs, outputs);
        self.program.instrs.push(ThreadInstruction::Enter(op));
        body(self);
        self.program.instrs.push(ThreadInstruction::Exit);
    }

    /// Adds an operator without children.
    pub(super) fn add_operator_without_children(
        &mut self,
        name: &str,
        inputs: &[OperatorOperand<'_>],
        outputs: &[OperatorOperand<'_>],
    ) {
        self.add_operator_enclosing_body(plain_operator_call(name), inputs, outputs, |_| {});
    }

    /// Adds the time that Python takes before the next operator.
    pub(super) fn add_python_time(&mut self) {
        self.program.instrs.push(ThreadInstruction::Busy(PYTHON));
    }

    /// Adds an operator's computation, on the thread itself or as a kernel.
    pub(super) fn add_work(&mut self, kernel: &str, flops: u128, bytes: u128) {
        let ns = cost::simulated_kernel_duration(self.options, flops, bytes);
        if !self.is_on_cuda() {
            self.program.instrs.push(ThreadInstruction::Busy(ns));
            return;
        }
        let grid = (bytes / 1024).clamp(1, 65_535);
        let args = format!(
            "\n      \"registers per thread\": 32,\n      \"shared memory\": 0,\n      \
             \"blocks per SM\": {}.{:06},\n      \"warps per SM\": {}.{:06},\n      \
             \"grid\": [{grid}, 1, 1],\n      \"block\": [128, 1, 1],\n      \
             \"est. achieved occupancy %\": {}",
            grid / 132,
            grid % 132 * 1_000_000 / 132,
            grid * 4 / 132,
            grid * 4 % 132 * 1_000_000 / 132,
            (grid * 100 / 132 / 16).min(100),
        );
        let kernel = self.program.intern_kernel(kernel, ns, &args, None);
        self.program.instrs.push(ThreadInstruction::Launch(kernel));
    }

    /// Adds a copy between the host and the device, if there is a device.
    pub(super) fn add_host_device_copy(&mut self, copy: CopyDirection, bytes: u64) {
        if !self.is_on_cuda() {
            return;
        }
        let name = match copy {
            CopyDirection::ToDevice => "Memcpy HtoD (Pinned -> Device)",
            CopyDirection::ToHost => "Memcpy DtoH (Device -> Pinned)",
        };
        // Copies run at 20 GB/s.
        let ns = 1_000 + bytes.div_ceil(20);
        let rate = bytes * 1000 / ns;
        let (whole, part) = (rate / 1000, rate % 1000);
        let args =
            format!("\n      \"bytes\": {bytes}, \"memory bandwidth (GB/s)\": {whole}.{part:03}");
        let kernel = self.program.intern_kernel(name, ns, &args, Some(copy));
        self.program.instrs.push(ThreadInstruction::Launch(kernel));
    }

    /// Adds a meeting (collective or message) with the annotation `op`. The caller must add the point at which the
    /// meeting starts.
    pub(super) fn add_exchange(
        &mut self,
        exchange: CommunicationOperation,
        axis: GroupAxis,
        bytes: u64,
        op: u32,
    ) -> u32 {
        let nth = self.counts[axis as usize];
        self.counts[axis as usize] += 1;
        self.asked.push((exchange, bytes, nth));
        self.program
            .meets
            .push(CommunicationMemberOperatorAndKernel {
                global: 0,
                axis,
                op,
                kernel: None,
            });
        (self.program.meets.len() - 1) as u32
    }

    /// Assigns the number of the next meeting (collective or message) along `axis` to the next operator, and returns
    /// this number.
    pub(super) fn assign_next_exchange_number_to_operator(
        &mut self,
        axis: GroupAxis,
    ) -> (u32, u32) {
        let op = self.program.ops.len() as u32;
        self.numbered.push((op, axis));
        (self.counts[axis as usize], 0)
    }

    /// Assigns the number of the last meeting (collective or message) along `axis` to the next operator again.
    pub(super) fn repeat_exchange_number_for_operator(&mut self, axis: GroupAxis) {
        let op = self.program.ops.len() as u32;
        self.numbered.push((op, axis));
    }

    /// Adds an instruction to the program as it is.
    pub(super) fn push_instruction(&mut self, instr: ThreadInstruction) {
        self.program.instrs.push(instr);
    }
}
