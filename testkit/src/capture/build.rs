//! Builds a rank's program, which consists of operators around work and meetings. A meeting is a
//! collective or a message.

use super::cost::{self, Exchange, PYTHON};
use super::layout::Layout;
use super::program::{Axis, Copy, Instr, Meet, Op, Program, Role};
use super::schema::schema;
use super::tensor::{self, Arg, Kind, Tensor, dense};
use super::{Device, Options};
use std::fmt::Write;

/// A program under construction.
pub(super) struct Builder<'o> {
    pub program: Program,
    pub options: &'o Options,
    pub layout: &'o Layout,
    pub rank: u32,
    /// Meetings of the program: kind, bytes, and the number of earlier meetings of the same group.
    pub asked: Vec<(Exchange, u64, u32)>,
    /// Operators that get the number of the last meeting along an axis, each with the axis.
    numbered: Vec<(u32, Axis)>,
    counts: [u32; 3],
    device: String,
}

/// An operator's name and its role in autograd.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub name: &'a str,
    pub role: Role,
    pub seq: Option<u32>,
    pub flow: bool,
    pub number: (u32, u32),
    /// Additional attributes of the host node, and additional arguments of the event.
    pub more: [&'a str; 2],
}

/// Returns the call of an operator outside autograd.
pub(super) fn plain(name: &str) -> Call<'_> {
    Call {
        name,
        role: Role::Plain,
        seq: None,
        flow: false,
        number: (0, 0),
        more: [""; 2],
    }
}

/// Returns the call of an annotation.
pub(super) fn annotation(name: &str) -> Call<'_> {
    Call {
        role: Role::Annotation,
        ..plain(name)
    }
}

/// Returns the call of an operator of the forward pass.
pub(super) fn forward(name: &str, seq: u32) -> Call<'_> {
    Call {
        role: Role::Forward,
        seq: Some(seq),
        ..plain(name)
    }
}

impl<'o> Builder<'o> {
    pub(super) fn new(options: &'o Options, layout: &'o Layout, rank: u32) -> Self {
        Self {
            program: Program::default(),
            options,
            layout,
            rank,
            asked: Vec::new(),
            numbered: Vec::new(),
            counts: [0; 3],
            device: match options.device {
                Device::Cpu => "cpu".to_owned(),
                // In the generated job, each host has eight GPUs.
                Device::Cuda => format!("cuda:{}", rank % 8),
            },
        }
    }

    /// Ends the program, and returns it with its meetings.
    pub(super) fn finish(mut self) -> (Program, Vec<(Exchange, u64, u32)>) {
        for (op, axis) in self.numbered {
            self.program.ops[op as usize].number.1 = self.counts[axis as usize];
        }
        (self.program, self.asked)
    }

    pub(super) fn cuda(&self) -> bool {
        self.options.device == Device::Cuda
    }

    fn slot(&mut self, root: Option<u32>, kept: bool) -> u32 {
        let slot = self.program.slots.len() as u32;
        self.program.slots.push((root.unwrap_or(slot), kept));
        slot
    }

    fn tensor(&mut self, shape: &[u64], kind: Kind, kept: bool) -> Tensor {
        Tensor {
            slot: self.slot(None, kept),
            kind,
            strides: dense(shape),
            shape: shape.to_vec(),
            offset: 0,
            host: false,
        }
    }

    /// Creates a tensor that is new in every step.
    pub(super) fn fresh(&mut self, shape: &[u64]) -> Tensor {
        self.tensor(shape, Kind::Float, false)
    }

    /// Creates a tensor that outlives the step.
    pub(super) fn kept(&mut self, shape: &[u64]) -> Tensor {
        self.tensor(shape, Kind::Float, true)
    }

    /// Creates a scalar in host memory.
    pub(super) fn scalar(&mut self) -> Tensor {
        Tensor {
            host: true,
            ..self.tensor(&[], Kind::Double, false)
        }
    }

    /// Creates another tensor that shares the storage of `of`.
    pub(super) fn alias(
        &mut self,
        of: &Tensor,
        shape: &[u64],
        strides: &[u64],
        offset: u64,
    ) -> Tensor {
        let (root, kept) = self.program.slots[of.slot as usize];
        Tensor {
            slot: self.slot(Some(root), kept),
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            offset,
            ..of.clone()
        }
    }

    /// Returns the sequence number of autograd's next node.
    pub(super) fn seq(&mut self) -> u32 {
        self.program.seqs += 1;
        self.program.seqs - 1
    }

    /// Adds an operator to the program's list, but does not start it.
    pub(super) fn declare(
        &mut self,
        call: Call<'_>,
        inputs: &[Arg<'_>],
        outputs: &[Arg<'_>],
    ) -> u32 {
        let args = self.program.args.len() as u32;
        let mut host = String::from("\"inputs\": ");
        tensor::host(&mut host, inputs, &self.device, &mut self.program.args);
        let count = self.program.args.len() as u32 - args;
        host.push_str(",\n        \"outputs\": ");
        tensor::host(&mut host, outputs, &self.device, &mut self.program.args);
        let all = self.program.args.len() as u32 - args;
        let schema = schema(call.name);
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
            tensor::kineto(&mut kineto, inputs);
            if !call.more[1].is_empty() {
                kineto.push_str(", ");
            }
        }
        kineto.push_str(call.more[1]);
        let texts = [call.name, &host, &attrs, &kineto];
        let template = self.program.template(call.role, texts);
        self.program.ops.push(Op {
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
    pub(super) fn op(
        &mut self,
        call: Call<'_>,
        inputs: &[Arg<'_>],
        outputs: &[Arg<'_>],
        body: impl FnOnce(&mut Self),
    ) {
        let op = self.declare(call, inputs, outputs);
        self.program.instrs.push(Instr::Enter(op));
        body(self);
        self.program.instrs.push(Instr::Exit);
    }

    /// Adds an operator without children.
    pub(super) fn leaf(&mut self, name: &str, inputs: &[Arg<'_>], outputs: &[Arg<'_>]) {
        self.op(plain(name), inputs, outputs, |_| {});
    }

    /// Adds the time that Python takes before the next operator.
    pub(super) fn python(&mut self) {
        self.program.instrs.push(Instr::Busy(PYTHON));
    }

    /// Adds the computation of an operator, either on the thread itself or as a kernel.
    pub(super) fn work(&mut self, kernel: &str, flops: u128, bytes: u128) {
        let ns = cost::kernel(self.options, flops, bytes);
        if !self.cuda() {
            self.program.instrs.push(Instr::Busy(ns));
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
        let kernel = self.program.kernel(kernel, ns, &args, None);
        self.program.instrs.push(Instr::Launch(kernel));
    }

    /// Adds a copy between the host and the device, if there is a device.
    pub(super) fn copy(&mut self, copy: Copy, bytes: u64) {
        if !self.cuda() {
            return;
        }
        let name = match copy {
            Copy::ToDevice => "Memcpy HtoD (Pinned -> Device)",
            Copy::ToHost => "Memcpy DtoH (Device -> Pinned)",
        };
        // Copies run at 20 GB/s.
        let ns = 1_000 + bytes.div_ceil(20);
        let rate = bytes * 1000 / ns;
        let (whole, part) = (rate / 1000, rate % 1000);
        let args =
            format!("\n      \"bytes\": {bytes}, \"memory bandwidth (GB/s)\": {whole}.{part:03}");
        let kernel = self.program.kernel(name, ns, &args, Some(copy));
        self.program.instrs.push(Instr::Launch(kernel));
    }

    /// Adds a meeting with the annotation `op`. The caller adds the start of the meeting.
    pub(super) fn meet(&mut self, exchange: Exchange, axis: Axis, bytes: u64, op: u32) -> u32 {
        let nth = self.counts[axis as usize];
        self.counts[axis as usize] += 1;
        self.asked.push((exchange, bytes, nth));
        self.program.meets.push(Meet {
            global: 0,
            axis,
            op,
            kernel: None,
        });
        (self.program.meets.len() - 1) as u32
    }

    /// Assigns the number of the next meeting along `axis` to the next operator, and returns this number.
    pub(super) fn number(&mut self, axis: Axis) -> (u32, u32) {
        let op = self.program.ops.len() as u32;
        self.numbered.push((op, axis));
        (self.counts[axis as usize], 0)
    }

    /// Assigns the number of an earlier meeting along `axis` to the next operator.
    pub(super) fn same_number(&mut self, axis: Axis) {
        let op = self.program.ops.len() as u32;
        self.numbered.push((op, axis));
    }

    /// Adds an instruction as it is.
    pub(super) fn instr(&mut self, instr: Instr) {
        self.program.instrs.push(instr);
    }
}
