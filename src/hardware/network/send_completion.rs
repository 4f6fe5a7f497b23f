//! When a send between two ranks is complete.

use std::fmt;

/// When a send between two ranks is complete, and what depends on it may begin. Its message is the same either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendCompletion {
    /// When its last byte has left: the sender's buffer may be used again.
    #[default]
    Injected,
    /// When its last byte has arrived, whether or not the receive is posted.
    Delivered,
}

impl SendCompletion {
    /// Both, with their names in machine files.
    pub const ALL: [(Self, &'static str); 2] =
        [(Self::Injected, "injected"), (Self::Delivered, "delivered")];
}

impl fmt::Display for SendCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}
