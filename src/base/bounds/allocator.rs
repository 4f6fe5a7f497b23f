//! Allocator that counts allocated bytes and ends the process before they exceed the limit.
//!
//! Rust ends a process with SIGABRT if an allocation fails, and an allocator must not unwind. This allocator instead
//! prints a message and exits with code 2, as for any invalid input. The allocator also exits if the system itself has
//! no memory left.

use crate::setting::SettingKey;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Wrapper around the system's allocator that counts bytes.
#[derive(Debug)]
pub struct CountingAllocator;

/// Bytes that all threads have allocated, as far as the threads have reported them.
static HELD: AtomicI64 = AtomicI64::new(0);
static BOUND: AtomicU64 = AtomicU64::new(u64::MAX);
static ENDING: AtomicBool = AtomicBool::new(false);

/// Function that a thread calls when the system has no memory left. This function is set only if the allocator counts
/// memory without ending the process.
static EXHAUSTED: OnceLock<fn()> = OnceLock::new();

/// Makes the allocator only count memory, so that the process survives a task that exceeds the limit. If the system
/// itself has no memory left, the thread calls `exhausted`. If `exhausted` returns, the process ends. Calls after the
/// first have no effect.
pub fn disable_exit_at_limit(exhausted: fn()) {
    // The first call decides the policy for the whole process.
    let _ = EXHAUSTED.set(exhausted);
}

/// A thread adds its balance to the global counter only when the balance reaches this many bytes, so that threads do
/// not contend for the counter at every small allocation.
const PIECE: i64 = 1 << 16;

thread_local! {
    static OWN: Cell<i64> = const { Cell::new(0) };
}

/// Sets the limit in bytes. It has an effect only if [`CountingAllocator`] is the program's global allocator.
pub(super) fn set_memory_bound(bytes: u64) {
    BOUND.store(bytes, Ordering::Relaxed);
}

/// Returns the allocated bytes, or 0 if [`CountingAllocator`] is not the program's global allocator.
pub fn allocated_bytes() -> u64 {
    HELD.load(Ordering::Relaxed).max(0) as u64
}

/// Makes the system's allocator return its freed memory to the operating system. Call this between large tasks.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call does not affect allocated memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the system's allocator keep more freed memory for later allocations. By default, free memory above 128 kB at
/// the end of a heap goes back to the operating system. If several graphs are built in succession, each therefore gets
/// newly cleared pages. This caused half of all page faults when a training step on a wafer was replayed. Only lists on
/// huge pages (`graph/huge_pages.rs`) still get their memory directly from the operating system.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call only sets parameters, before other threads exist.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
        libc::mallopt(libc::M_TOP_PAD, 1 << 20);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
    }
}

/// Adds `bytes` to the count; `bytes` is negative if memory was freed.
#[inline]
fn count_bytes(bytes: i64) {
    // A thread that is ending has already lost its local counter, so its bytes go directly to the total.
    let own = OWN.try_with(|own| {
        let sum = own.get() + bytes;
        let hand_in = sum.abs() >= PIECE;
        own.set(if hand_in { 0 } else { sum });
        if hand_in { sum } else { 0 }
    });
    let sum = own.unwrap_or(bytes);
    if sum == 0 {
        return;
    }
    let held = HELD.fetch_add(sum, Ordering::Relaxed) + sum;
    // The total may be negative, because one thread may report freed memory before another reports allocating it.
    if sum > 0
        && held > 0
        && held as u64 > BOUND.load(Ordering::Relaxed)
        && EXHAUSTED.get().is_none()
    {
        exit_out_of_memory(
            bytes as u64,
            held as u64,
            format_args!("more than {} allows", SettingKey::MaxMemory),
        );
    }
}

/// Prints the reason and ends the process, without allocating.
#[cold]
fn exit_out_of_memory(asked: u64, held: u64, why: std::fmt::Arguments<'_>) {
    // Exit handlers also allocate and must not recurse into this function.
    if ENDING.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut text = [0; 400];
    let mut rest = &mut text[..];
    let mega = |bytes: u64| bytes as f64 / 1e6;
    let _ = write!(
        rest,
        "error: out of memory: {:.1} MB more would make {:.1} MB, {why} ({:.1} MB)\n  try: a smaller job, or \
         {} SIZE where the machine has more\n",
        mega(asked),
        mega(held),
        mega(BOUND.load(Ordering::Relaxed)),
        SettingKey::MaxMemory
    );
    let left = rest.len();
    let length = text.len() - left;
    write_to_stderr_without_lock(&text[..length]);
    std::process::exit(2);
}

/// Writes to standard error without locking it, because the thread may already hold the lock.
#[cfg(unix)]
fn write_to_stderr_without_lock(text: &[u8]) {
    use std::os::fd::FromRawFd;
    // SAFETY: standard error is not closed, because this file is never dropped.
    let file = unsafe { std::fs::File::from_raw_fd(2) };
    let _ = std::mem::ManuallyDrop::new(file).write_all(text);
}

#[cfg(not(unix))]
fn write_to_stderr(text: &[u8]) {
    let _ = std::io::stderr().write_all(text);
}

/// Returns `memory`, or ends the process if the system had no memory left.
#[inline]
fn exit_if_null(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() {
        if let Some(exhausted) = EXHAUSTED.get() {
            exhausted();
        }
        exit_out_of_memory(
            size as u64,
            allocated_bytes() + size as u64,
            format_args!(
                "more than the system has; {} is not the reason",
                SettingKey::MaxMemory
            ),
        );
    }
    memory
}

// SAFETY: every call is passed unchanged to the system's allocator, and its result is returned.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_bytes(layout.size() as i64);
        // SAFETY: the caller of each method fulfils the requirements of the system's allocator.
        exit_if_null(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_bytes(layout.size() as i64);
        // SAFETY: the caller fulfils the requirements of the system's allocator.
        exit_if_null(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count_bytes(-(layout.size() as i64));
        // SAFETY: the caller fulfils the requirements of the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_bytes(size as i64 - layout.size() as i64);
        // SAFETY: the caller fulfils the requirements of the system's allocator.
        exit_if_null(unsafe { System.realloc(memory, layout, size) }, size)
    }
}
