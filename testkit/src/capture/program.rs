//! A rank's program for one step: instructions, with the texts of what they record.

use super::cost::Exchange;
use super::tensor::{NUMBER, TENSOR};
use std::collections::BTreeMap;

/// Next action of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instr {
    /// An operator begins.
    Enter(u32),
    /// The innermost operator of the thread ends.
    Exit,
    /// The thread computes for this long.
    Busy(u64),
    /// A collective goes to the workers of its group, a message starts at once.
    Issue(u32),
    /// The thread waits until a meeting has ended.
    Block(u32),
    /// A kernel goes to the compute stream.
    Launch(u32),
    /// A meeting's kernel goes to the stream of its group, behind what was launched before.
    Collective(u32),
    /// The compute stream waits for a meeting.
    StreamWait(u32),
    /// The thread waits until the compute stream is idle.
    Synchronize,
    /// Marks that the following happens on this thread.
    Thread(u8),
}

/// Hole behind a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hole {
    Tensor,
    Number,
    End,
}

/// A text with holes.
pub(super) type Text = Box<[(Box<str>, Hole)]>;

/// Cuts a text at its holes.
pub(super) fn text(mut rest: &str) -> Text {
    let mut parts = Vec::new();
    loop {
        let Some(at) = rest.find([TENSOR, NUMBER]) else {
            parts.push((rest.into(), Hole::End));
            return parts.into();
        };
        let hole = match rest.as_bytes()[at] {
            1 => Hole::Tensor,
            _ => Hole::Number,
        };
        parts.push((rest[..at].into(), hole));
        rest = &rest[at + 1..];
    }
}

/// Place of an operator in autograd, and its category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// An operator that autograd does not see.
    Plain,
    /// An operator of the forward pass, with a sequence number.
    Forward,
    /// The engine's frame around a node of the backward pass.
    Evaluate,
    /// A node of the backward pass.
    Backward,
    /// An annotation.
    Annotation,
}

/// All that operators with the same texts share.
#[derive(Debug)]
pub(super) struct Template {
    pub role: Role,
    pub name: Text,
    /// `inputs` and `outputs` of the host node.
    pub host: Text,
    /// The end of the host node's attributes, from the schema on.
    pub attrs: Text,
    /// Arguments of the Kineto event behind its ids; may be empty.
    pub kineto: Text,
}

/// One operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub template: u32,
    /// Its tensors in [`Program::args`]: inputs, then outputs.
    pub args: u32,
    pub inputs: u16,
    pub outputs: u16,
    /// The sequence number within a step, from 0.
    pub seq: Option<u32>,
    /// Whether the flow from forward to backward begins or ends here.
    pub flow: bool,
    /// Value of [`Hole::Number`]: this, and the second once for every step.
    pub number: (u32, u32),
}

/// A kernel or copy.
#[derive(Debug)]
pub(super) struct Kernel {
    pub name: Box<str>,
    pub ns: u64,
    /// The arguments of the event behind its ids.
    pub args: Text,
    pub copy: Option<Copy>,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    ToDevice,
    ToHost,
}

/// One end of a collective or message.
#[derive(Debug)]
pub(super) struct Meet {
    /// The meeting in the step's list of all ranks.
    pub global: u32,
    pub axis: Axis,
    /// The annotation of Gloo, or the frame of NCCL.
    pub op: u32,
    /// The kernel of NCCL.
    pub kernel: Option<u32>,
}

/// Along which groups ranks meet; each has its own workers or stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Data,
    Tensor,
    Pair,
}

/// A meeting, as all of its members see it.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    pub exchange: Exchange,
    /// The group in the job's list.
    pub group: u32,
    /// Number of those before it in the group and step.
    pub nth: u32,
    /// The larger of a member's input and output.
    pub bytes: u64,
}

/// A step of one rank.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub instrs: Vec<Instr>,
    pub ops: Vec<Op>,
    pub args: Vec<u32>,
    pub templates: Vec<Template>,
    pub kernels: Vec<Kernel>,
    pub meets: Vec<Meet>,
    /// By slot: the slot whose storage it shares, which may be itself, and whether it outlives steps.
    pub slots: Vec<(u32, bool)>,
    /// Number of sequence numbers that a step uses, which are also the flows.
    pub seqs: u32,
    known: BTreeMap<(Role, String), u32>,
    known_kernels: BTreeMap<String, u32>,
}

impl Program {
    /// The template with these texts.
    pub(super) fn template(&mut self, role: Role, texts: [&str; 4]) -> u32 {
        let key = (role, texts.join("\u{3}"));
        let templates = &mut self.templates;
        *self.known.entry(key).or_insert_with(|| {
            let [name, host, attrs, kineto] = texts.map(text);
            templates.push(Template {
                role,
                name,
                host,
                attrs,
                kineto,
            });
            (templates.len() - 1) as u32
        })
    }

    /// The kernel with this name, duration and texts.
    pub(super) fn kernel(&mut self, name: &str, ns: u64, args: &str, copy: Option<Copy>) -> u32 {
        let kernels = &mut self.kernels;
        let key = format!("{name}\u{3}{ns}\u{3}{args}");
        *self.known_kernels.entry(key).or_insert_with(|| {
            kernels.push(Kernel {
                name: name.into(),
                ns,
                args: text(args),
                copy,
            });
            (kernels.len() - 1) as u32
        })
    }
}
