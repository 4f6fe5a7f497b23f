//! The host: its times to launch work, and the operations at which it waits for the device.

use chakram_base::units::Span;

/// Operations at which the host waits for the device, in addition to a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostWait {
    /// The host never waits: it runs ahead until its queue is full.
    #[default]
    Never,
    /// The host waits at messages that it receives.
    Receives,
    /// The host waits at messages that it sends or receives.
    Messages,
    /// The host waits at messages, and at the begin and end of passes in a stage: the embedding and
    /// the loss. Frameworks do this if they synchronize to measure each pass, or read the loss.
    Passes,
}

impl HostWait {
    /// Every variant with its name in files.
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
    /// Time to launch a kernel, including its share of the framework's work.
    pub launch: Span,
    /// Time to launch a kernel of a backward pass, without the framework's interpreter.
    pub backward: Span,
    /// Time to launch a collective.
    pub collective: Span,
    /// Time to launch one end of a message.
    pub message: Span,
    /// Time to launch an optimizer's step.
    pub step: Span,
    /// Number of launches by which the host may run ahead of its device, at least one.
    pub queue: u32,
    /// Operations at which the host also waits for the device.
    pub waits: HostWait,
    /// Relative error of these times, one standard deviation.
    pub error: f64,
    /// Standard deviation of the time at which a host of a group arrives at a collective. The additional wait of a
    /// group for its last host is not predicted; the jitter only widens the interval of a prediction.
    pub jitter: Span,
}
