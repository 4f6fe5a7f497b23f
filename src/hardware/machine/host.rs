//! The host: how long it takes to launch work, and at which operations it waits for the device.

use chakram_base::units::Span;

/// Operations at which the host waits for its device. The host also waits when its queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostBlockingOperations {
    /// The host never waits: it runs ahead until its queue is full.
    #[default]
    Never,
    /// The host waits at receives, but not at sends.
    Receives,
    /// The host waits at sends and at receives.
    Messages,
    /// The host waits at messages, and at the beginning and end of passes (in the stages that compute the embedding and
    /// the loss). It waits at passes if the framework synchronizes with the device to measure each pass or to read the
    /// loss.
    Passes,
}

impl HostBlockingOperations {
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
    /// Time to launch a kernel, including the framework's work per kernel.
    pub launch: Span,
    /// Time to launch a kernel of a backward pass. Such launches bypass the framework's interpreter.
    pub backward: Span,
    /// Time to launch a collective.
    pub collective: Span,
    /// Time to launch a message's send or receive.
    pub message: Span,
    /// Time to launch an optimizer step.
    pub step: Span,
    /// Maximum number of launches that the host may issue ahead of its device, at least one.
    pub queue: u32,
    /// Operations at which the host waits for its device, even if the queue is not full.
    pub waits: HostBlockingOperations,
    /// Relative error of these times, as one standard deviation.
    pub error: f64,
    /// Standard deviation of the times at which the hosts of a group arrive at a collective. The predicted time
    /// excludes the wait for the group's last host; the jitter only widens a prediction's interval.
    pub jitter: Span,
}
