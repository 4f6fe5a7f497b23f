//! How much memory the process may take, and how far compressed input may unpack: the bounds, what is held of them,
//! and the check before more is asked for.
//!
//! Bounds belong to the process and reach no answer: they refuse, or nothing happens. Where an amount is known before
//! it is needed, [`check`] refuses it by name. Everything else is caught by the allocator of the binary
//! ([`allocator::Counting`]), which knows the amount but not what it is for.

use crate::units::Bytes;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

pub mod allocator;
mod machine;

/// How many times its size a compressed input may unpack to, unless [`set`] says otherwise. Traces unpack to 10 to 50
/// times their size, zeros to 30,000 times.
pub const RATIO: u64 = 200;

/// What any compressed input may unpack to, however small it is.
pub const ALWAYS_UNPACKED: u64 = 16 << 20;

/// Nothing has been set.
const UNSET: u64 = 0;

static MEMORY: AtomicU64 = AtomicU64::new(UNSET);
static RATIO_SET: AtomicU64 = AtomicU64::new(RATIO);

/// Sets the bounds of the process. Without `memory` it is three quarters of what the machine, or the container, has.
pub fn set(memory: Option<Bytes>, ratio: u64) {
    let memory = memory.map_or_else(usual, |bytes| bytes.0);
    MEMORY.store(memory.max(1), Ordering::Relaxed);
    RATIO_SET.store(ratio, Ordering::Relaxed);
    allocator::bound(memory);
}

fn usual() -> u64 {
    machine::memory().map_or(u64::MAX, |bytes| bytes / 4 * 3)
}

/// The bytes that the process may hold.
pub fn memory() -> Bytes {
    match MEMORY.load(Ordering::Relaxed) {
        UNSET => Bytes(u64::MAX),
        bytes => Bytes(bytes),
    }
}

/// The bytes that are left of [`memory`].
pub fn left() -> u64 {
    memory().0.saturating_sub(allocator::held())
}

/// More than the process may hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} would take at least {asked}, and memory is bounded at {bound}\n  try: {hint}, or --max-memory SIZE where the machine has more"
)]
pub struct TooMuch {
    what: String,
    asked: Bytes,
    bound: Bytes,
    hint: &'static str,
}

/// Whether `count` things of at least `each` bytes fit beside what is held.
///
/// # Errors
///
/// When they do not; `what` they are and what to try say how the message goes on.
pub fn check(what: impl Display, count: u64, each: u64, hint: &'static str) -> Result<(), TooMuch> {
    let asked = count.saturating_mul(each);
    if asked <= left() {
        return Ok(());
    }
    Err(TooMuch {
        what: what.to_string(),
        asked: Bytes(asked),
        bound: memory(),
        hint,
    })
}

/// A compressed input that unpacks to more than it may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its {packed} unpack to more than {limit}, the bound {}\n  try: --max-ratio N, if it is to be trusted", self.rule())]
pub struct Unpacked {
    limit: Bytes,
    packed: Bytes,
    ratio: u64,
}

impl Unpacked {
    /// Where the limit comes from.
    fn rule(&self) -> String {
        match self.limit.0 > ALWAYS_UNPACKED {
            true => format!("at {} times the size", self.ratio),
            false => "of small inputs".to_owned(),
        }
    }
}

/// Whether `packed` bytes may unpack to `unpacked` ones.
///
/// # Errors
///
/// When they may not.
pub fn check_unpacked(packed: u64, unpacked: u64) -> Result<(), Unpacked> {
    let ratio = RATIO_SET.load(Ordering::Relaxed);
    let limit = packed.saturating_mul(ratio).max(ALWAYS_UNPACKED);
    if unpacked <= limit {
        return Ok(());
    }
    Err(Unpacked {
        limit: Bytes(limit),
        packed: Bytes(packed),
        ratio,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_inputs_may_unpack_to_16_mib_and_others_to_their_ratio() {
        // 200 times 1 MB are 200 MB; 200 times 1 kB are less than what is always allowed.
        assert_eq!(check_unpacked(1_000, ALWAYS_UNPACKED), Ok(()));
        let small = check_unpacked(1_000, ALWAYS_UNPACKED + 1).unwrap_err();
        assert!(small.to_string().contains("small inputs"), "{small}");
        assert_eq!(check_unpacked(1_000_000, 200_000_000), Ok(()));
        let large = check_unpacked(1_000_000, 200_000_001).unwrap_err();
        assert!(large.to_string().contains("200 times"), "{large}");
        assert_eq!(check_unpacked(u64::MAX, u64::MAX), Ok(()));
    }

    #[test]
    fn amounts_beyond_64_bits_are_refused_and_not_wrapped() {
        // Without a bound all that 64 bits count fits, and what they do not count is as much as they do.
        assert_eq!(check("a list", u64::MAX, 16, "less"), Ok(()));
    }
}
