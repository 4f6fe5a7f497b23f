//! A rank's program for one step: instructions, and the texts that they record.

use super::cost::CommunicationOperation;
use super::tensor::{NUMBER, TENSOR};
use std::collections::BTreeMap;

/// An action of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum ThreadInstruction {
    /// An operator starts.
    Enter(u32),
    /// The innermost operator of the thread ends.
    Exit,
    /// The thread computes for this many ns.
    Busy(u64),
    /// A collective is queued for its group's workers; a message starts immediately.
    Issue(u32),
    /// The thread waits until a meeting (collective or message) has ended.
    Block(u32),
    /// A kernel is launched on the compute stream.
    Launch(u32),
    /// A collective's kernel is launched on its group's stream. The kernel starts after all work
    /// that was launched before it.
    Collective(u32),
    /// The compute stream waits for a meeting (collective or message).
    StreamWait(u32),
    /// The thread waits until the compute stream is idle.
    Synchronize,
    /// The following instructions run on this thread.
    Thread(u8),
}

/// A placeholder that comes after a part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateTextHoleKind {
    Tensor,
    Number,
    End,
}

/// A text in parts, with a placeholder after each part except the last.
pub(super) type TextPartsWithHoles = Box<[(Box<str>, TemplateTextHoleKind)]>;

/// Splits a text at its placeholders.
pub(super) fn split_template_at_placeholders(mut rest: &str) -> TextPartsWithHoles {
    let mut parts = Vec::new();
    loop {
        let Some(at) = rest.find([TENSOR, NUMBER]) else {
            parts.push((rest.into(), TemplateTextHoleKind::End));
            return parts.into();
        };
        let hole = match rest.as_bytes()[at] {
            1 => TemplateTextHoleKind::Tensor,
            _ => TemplateTextHoleKind::Number,
        };
        parts.push((rest[..at].into(), hole));
        rest = &rest[at + 1..];
    }
}

/// An operator's role in autograd, which decides the operator's category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AutogradRole {
    /// An operator outside autograd.
    Plain,
    /// An operator of the forward pass, with a sequence number.
    Forward,
    /// The autograd engine's record around a node of the backward pass.
    Evaluate,
    /// A node of the backward pass.
    Backward,
    /// An annotation.
    Annotation,
}

/// The part that operators with the same texts share.
#[derive(Debug)]
pub(super) struct OperatorTextTemplate {
    pub role: AutogradRole,
    pub name: TextPartsWithHoles,
    /// `inputs` and `outputs` of the host node.
    pub host: TextPartsWithHoles,
    /// Last part of the host node's attributes, from the schema to the end.
    pub attrs: TextPartsWithHoles,
    /// Arguments of the Kineto event, after the ids; may be empty.
    pub kineto: TextPartsWithHoles,
}

/// One operator of a generated program.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramOperator {
    pub template: u32,
    /// Index in [`StepProgram::args`] of the operator's first tensor: inputs come first, then
    /// outputs.
    pub args: u32,
    pub inputs: u16,
    pub outputs: u16,
    /// Autograd's sequence number within a step, counting from 0.
    pub seq: Option<u32>,
    /// `true` if a flow arrow from the forward to the backward pass starts or ends here.
    pub flow: bool,
    /// Gives [`TemplateTextHoleKind::Number`] its value: the first number, plus the second number times the step.
    pub number: (u32, u32),
}

/// A kernel or copy.
#[derive(Debug)]
pub(super) struct ProgramKernel {
    pub name: Box<str>,
    pub ns: u64,
    /// The event's arguments after its ids.
    pub args: TextPartsWithHoles,
    pub copy: Option<CopyDirection>,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyDirection {
    ToDevice,
    ToHost,
}

/// One member's part in a collective or message.
#[derive(Debug)]
pub(super) struct CommunicationMemberOperatorAndKernel {
    /// Index of the meeting in the list of all ranks' meetings in a step.
    pub global: u32,
    pub axis: GroupAxis,
    /// Index of the operator that stands for Gloo's annotation, or for NCCL's surrounding record.
    pub op: u32,
    /// Index of NCCL's kernel.
    pub kernel: Option<u32>,
}

/// Axis along which a group's ranks communicate, with its own workers or stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupAxis {
    Data,
    Tensor,
    Pair,
}

/// The properties that all members of a meeting (collective or message) share.
#[derive(Clone, Debug)]
pub(super) struct GroupCommunication {
    pub exchange: CommunicationOperation,
    /// Index of the group in the job's list of groups.
    pub group: u32,
    /// Number of the group's earlier meetings (collectives or messages) in this step.
    pub nth: u32,
    /// Bytes of a member's input or output, whichever is larger.
    pub bytes: u64,
}

/// A step of one rank.
#[derive(Debug, Default)]
pub(super) struct StepProgram {
    pub instrs: Vec<ThreadInstruction>,
    pub ops: Vec<ProgramOperator>,
    pub args: Vec<u32>,
    pub templates: Vec<OperatorTextTemplate>,
    pub kernels: Vec<ProgramKernel>,
    pub meets: Vec<CommunicationMemberOperatorAndKernel>,
    /// For each tensor slot, the slot that shares its storage (possibly itself), and `true` if the tensor exists for
    /// all steps.
    pub slots: Vec<(u32, bool)>,
    /// Number of sequence numbers that autograd uses in a step.
    pub seqs: u32,
    known: BTreeMap<(AutogradRole, String), u32>,
    known_kernels: BTreeMap<String, u32>,
}

impl StepProgram {
    /// Returns the index of the operator template with these texts (with placeholders), adding it if it is new.
    pub(super) fn intern_template(&mut self, role: AutogradRole, texts: [&str; 4]) -> u32 {
        let key = (role, texts.join("\u{3}"));
        let templates = &mut self.templates;
        *self.known.entry(key).or_insert_with(|| {
            let [name, host, attrs, kineto] = texts.map(split_template_at_placeholders);
            templates.push(OperatorTextTemplate {
                role,
                name,
                host,
                attrs,
                kineto,
            });
            (templates.len() - 1) as u32
        })
    }

    /// Returns the index of the kernel with this name, duration and texts, adding it if it is new.
    pub(super) fn intern_kernel(
        &mut self,
        name: &str,
        ns: u64,
        args: &str,
        copy: Option<CopyDirection>,
    ) -> u32 {
        let kernels = &mut self.kernels;
        let key = format!("{name}\u{3}{ns}\u{3}{args}");
        *self.known_kernels.entry(key).or_insert_with(|| {
            kernels.push(ProgramKernel {
                name: name.into(),
                ns,
                args: split_template_at_placeholders(args),
                copy,
            });
            (kernels.len() - 1) as u32
        })
    }
}
