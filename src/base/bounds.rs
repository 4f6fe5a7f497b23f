//! Limits on the process's memory and on the expansion of compressed input. Both are checked before memory is
//! allocated.
//!
//! Limits are global to the process and never change a result: they either cause an error or have no effect. Code calls
//! [`check_items_fit_memory`] before an allocation of known size, so that the error can say what the allocation is for.
//! The binary's allocator ([`allocator::CountingAllocator`]) rejects all other allocations that exceed the limit. It
//! knows only the size of an allocation, so its message cannot say what the allocation is for. A program that must
//! survive tasks over the limit calls [`allocator::disable_exit_at_limit`]. The allocator then only counts memory, and
//! a task that exceeds the limit ends at its next interruption check.

use crate::setting::SettingKey;
use crate::units::Bytes;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

pub mod allocator;
mod machine;

/// Default maximum size of a decompressed input, as a multiple of its compressed size; [`set_process_limits`] changes
/// it. Traces expand to between 10 and 50 times their compressed size, and zeros to 30,000 times.
pub const RATIO: u64 = 200;

/// Decompressed size in bytes that is always allowed, even for the smallest input.
pub const ALWAYS_UNPACKED: u64 = 16 << 20;

/// Marks a limit that no caller has set.
const UNSET: u64 = 0;

static MEMORY: AtomicU64 = AtomicU64::new(UNSET);
static RATIO_SET: AtomicU64 = AtomicU64::new(RATIO);

/// Sets the limits of the process. The default of `memory` is three quarters of the memory of the machine or container.
pub fn set_process_limits(memory: Option<Bytes>, ratio: u64) {
    let memory = memory.map_or_else(default_memory_limit_bytes, |bytes| bytes.0);
    MEMORY.store(memory.max(1), Ordering::Relaxed);
    RATIO_SET.store(ratio, Ordering::Relaxed);
    allocator::set_memory_bound(memory);
}

/// Sets the memory limit of the process, and returns the previous limit.
pub fn set_memory_limit(memory: Bytes) -> Bytes {
    let before = MEMORY.swap(memory.0.max(1), Ordering::Relaxed);
    allocator::set_memory_bound(memory.0.max(1));
    match before {
        UNSET => Bytes(u64::MAX),
        bytes => Bytes(bytes),
    }
}

/// Sets the maximum expansion of compressed inputs, and returns the previous maximum.
pub fn set_expansion_limit(ratio: u64) -> u64 {
    RATIO_SET.swap(ratio, Ordering::Relaxed)
}

/// Returns the default memory limit: three quarters of the memory of the machine or container.
pub fn default_memory_limit() -> Bytes {
    Bytes(default_memory_limit_bytes())
}

fn default_memory_limit_bytes() -> u64 {
    machine::detect_memory_limit().map_or(u64::MAX, |bytes| bytes / 4 * 3)
}

/// Returns the memory limit of the process.
pub fn memory_limit() -> Bytes {
    match MEMORY.load(Ordering::Relaxed) {
        UNSET => Bytes(u64::MAX),
        bytes => Bytes(bytes),
    }
}

/// Returns the number of bytes that the process may still allocate below [`memory_limit`].
pub fn remaining_bytes() -> u64 {
    memory_limit()
        .0
        .saturating_sub(allocator::allocated_bytes())
}

/// Error about an allocation that would exceed the memory limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} would take at least {asked}, and memory is bounded at {bound}\n  try: {hint}, or {} SIZE where the machine has more",
    SettingKey::MaxMemory
)]
pub struct MemoryLimitError {
    what: String,
    asked: Bytes,
    bound: Bytes,
    hint: String,
}

impl MemoryLimitError {
    /// Returns the memory that the allocation needs, or a lower bound on that memory.
    pub fn requested_memory(&self) -> Bytes {
        self.asked
    }

    /// Returns the memory limit at the time of the error.
    pub fn memory_limit(&self) -> Bytes {
        self.bound
    }

    /// Returns advice on how to use less memory.
    pub fn advice_to_use_less_memory(&self) -> &str {
        &self.hint
    }
}

/// Checks that the allocated memory is within the process's limit.
///
/// # Errors
///
/// Fails if the allocated memory exceeds the limit.
#[inline]
pub fn check_process_memory_within_limit() -> Result<(), MemoryLimitError> {
    match allocator::allocated_bytes() {
        held if held <= memory_limit().0 => Ok(()),
        held => Err(memory_exceeded_error(held)),
    }
}

/// Builds the error for a process whose `held` allocated bytes exceed the limit.
#[cold]
pub(crate) fn memory_exceeded_error(held: u64) -> MemoryLimitError {
    MemoryLimitError {
        what: "the run".to_owned(),
        asked: Bytes(held),
        bound: memory_limit(),
        hint: "a smaller job".to_owned(),
    }
}

/// Checks that `count` items of at least `each` bytes fit into the remaining memory.
///
/// # Errors
///
/// Fails if the items do not fit. The message begins with `what`, which names the items, and ends with `hint`.
pub fn check_items_fit_memory(
    what: impl Display,
    count: u64,
    each: u64,
    hint: impl Display,
) -> Result<(), MemoryLimitError> {
    let asked = count.saturating_mul(each);
    if asked <= remaining_bytes() {
        return Ok(());
    }
    Err(MemoryLimitError {
        what: what.to_string(),
        asked: Bytes(asked),
        bound: memory_limit(),
        hint: hint.to_string(),
    })
}

/// Error about a compressed input that expands beyond its limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its {packed} unpack to more than {limit}, the bound {}\n  try: {} {}, if you trust the file", self.describe_limit_rule(), SettingKey::MaxRatio, self.sufficient_expansion_limit_text())]
pub struct UnpackLimitError {
    limit: Bytes,
    packed: Bytes,
    ratio: u64,
    /// The smallest expansion ratio that would allow the whole output, or `None` if the output's size is unknown.
    needed: Option<u64>,
}

impl UnpackLimitError {
    fn sufficient_expansion_limit_text(&self) -> String {
        self.needed
            .map_or("N".to_owned(), |ratio| ratio.to_string())
    }

    fn describe_limit_rule(&self) -> String {
        if self.limit.0 > ALWAYS_UNPACKED {
            format!("at {} times the size", self.ratio)
        } else {
            "of small inputs".to_owned()
        }
    }
}

/// Checks that `packed` compressed bytes may expand to the `unpacked` bytes decompressed so far.
///
/// # Errors
///
/// Fails if `unpacked` exceeds the limit.
pub fn check_unpacked_size(packed: u64, unpacked: u64) -> Result<(), UnpackLimitError> {
    let ratio = RATIO_SET.load(Ordering::Relaxed);
    let limit = packed.saturating_mul(ratio).max(ALWAYS_UNPACKED);
    if unpacked <= limit {
        return Ok(());
    }
    Err(UnpackLimitError {
        limit: Bytes(limit),
        packed: Bytes(packed),
        ratio,
        needed: None,
    })
}

/// Checks an output whose total size is known to be `unpacked` against the same limit as [`check_unpacked_size`].
///
/// # Errors
///
/// Fails for the same reason as [`check_unpacked_size`]. The message also names the smallest expansion limit that would
/// allow the output.
pub fn check_stated_unpacked_size(packed: u64, unpacked: u64) -> Result<(), UnpackLimitError> {
    check_unpacked_size(packed, unpacked).map_err(|error| UnpackLimitError {
        needed: Some(unpacked.div_ceil(packed.max(1))),
        ..error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_inputs_may_unpack_to_16_mib_and_others_to_their_ratio() {
        // 200 times 1 MB is 200 MB, whereas 200 times 1 kB is less than the size that is always allowed.
        assert_eq!(check_unpacked_size(1_000, ALWAYS_UNPACKED), Ok(()));
        let small = check_unpacked_size(1_000, ALWAYS_UNPACKED + 1).unwrap_err();
        assert!(small.to_string().contains("small inputs"), "{small}");
        assert_eq!(check_unpacked_size(1_000_000, 200_000_000), Ok(()));
        let large = check_unpacked_size(1_000_000, 200_000_001).unwrap_err();
        assert!(large.to_string().contains("200 times"), "{large}");
        assert_eq!(check_unpacked_size(u64::MAX, u64::MAX), Ok(()));
        // The ratio is 80 MB / 1,387 B = 57,678.4.
        let claimed = check_stated_unpacked_size(1_387, 80_000_000).unwrap_err();
        assert!(claimed.to_string().contains("57679, if"), "{claimed}");
    }

    #[test]
    fn item_sizes_beyond_64_bits_saturate_and_pass_without_a_memory_limit() {
        // Without a limit, every size that fits into 64 bits is allowed. Products that exceed 64 bits saturate.
        assert_eq!(
            check_items_fit_memory("a list", u64::MAX, 16, "less"),
            Ok(())
        );
    }
}
