//! The moment at which a send between two ranks completes.

use std::fmt;

/// The moment at which a send between two ranks completes and its dependents may begin. The message itself is not
/// affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendCompletion {
    /// The message's last byte has left: the sender's buffer may be reused.
    #[default]
    Injected,
    /// The message's last byte has arrived, even if the receive is not posted.
    Delivered,
}

impl SendCompletion {
    /// Both times at which a send can complete, with names in machine files.
    pub const ALL: [(Self, &'static str); 2] =
        [(Self::Injected, "injected"), (Self::Delivered, "delivered")];
}

impl fmt::Display for SendCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}
