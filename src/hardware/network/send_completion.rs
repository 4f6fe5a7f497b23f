//! The rule for when a send between two ranks completes.

use std::fmt;

/// The rule for when a send between two ranks completes, so that dependent nodes may begin. It does not affect the
/// message's arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendCompletionRule {
    /// The message's last byte has left: the sender's buffer may be reused.
    #[default]
    Injected,
    /// The message's last byte has arrived, whether or not the receive is posted.
    Delivered,
}

impl SendCompletionRule {
    /// Both choices, with their names in machine files.
    pub const ALL: [(Self, &'static str); 2] =
        [(Self::Injected, "injected"), (Self::Delivered, "delivered")];
}

impl fmt::Display for SendCompletionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}
