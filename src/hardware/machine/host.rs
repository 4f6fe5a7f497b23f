//! The host: what it takes to launch work, and when it waits for the device.

use chakram_base::units::Span;

/// Operations at which the host waits for the device, besides a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostWait {
    /// For none: it runs ahead until its queue is full.
    #[default]
    Never,
    /// For messages that it receives.
    Receives,
    /// For messages that it sends or receives.
    Messages,
    /// For messages, and where passes begin and end in a stage: at the embedding and at the loss. So do frameworks that
    /// synchronize to measure each pass, or read the loss.
    Passes,
}

impl HostWait {
    /// All of them with their words in files.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Never, "never"),
        (Self::Receives, "receives"),
        (Self::Messages, "messages"),
        (Self::Passes, "passes"),
    ];
}

/// Host of an NPU: a thread that launches kernels, collectives and messages one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// Time to launch a kernel, with its share of the framework's work.
    pub launch: Span,
    /// Time to launch a kernel of a backward pass, for which frameworks run no interpreter.
    pub backward: Span,
    /// Time to launch a collective.
    pub collective: Span,
    /// Time to launch half of a message.
    pub message: Span,
    /// Time to launch an optimizer's step.
    pub step: Span,
    /// Launches by which it runs ahead of its device, at least one.
    pub queue: u32,
    /// Operations at which it waits for the device besides.
    pub waits: HostWait,
    /// Relative error of these times, one standard deviation.
    pub error: f64,
    /// Standard deviation of the time at which a host of a group comes to a collective. What the group waits longer for the
    /// last one is not predicted, and counts for the interval of a prediction.
    pub jitter: Span,
}
