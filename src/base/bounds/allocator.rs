//! Allocator that counts allocated bytes and ends the process before they exceed the limit.
//!
//! Rust answers an allocation that fails with SIGABRT, and an allocator must not unwind, so the only other end is an
//! exit: with a message and code 2, as for any input that cannot be dealt with. The same is said where the system
//! itself has no more.

use crate::setting::SettingKey;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Counting wrapper of the system's allocator.
#[derive(Debug)]
pub struct CountingAllocator;

/// Bytes allocated by all threads, except for what each has not reported yet.
static HELD: AtomicI64 = AtomicI64::new(0);
static BOUND: AtomicU64 = AtomicU64::new(u64::MAX);
static ENDING: AtomicBool = AtomicBool::new(false);

/// What a thread does for which the system has no more memory, in a process that goes on.
static EXHAUSTED: OnceLock<fn()> = OnceLock::new();

/// Makes the allocator only count, for a process that goes on when a task exceeds the limit. A thread for which the system
/// itself has no more calls `exhausted`, after which the process ends all the same. Later calls have no effect.
pub fn only_count(exhausted: fn()) {
    // One policy for the process.
    let _ = EXHAUSTED.set(exhausted);
}

/// Each thread reports its balance when that reaches this many bytes, so that threads do not contend for the
/// counter at each small allocation.
const PIECE: i64 = 1 << 16;

thread_local! {
    static OWN: Cell<i64> = const { Cell::new(0) };
}

/// Sets the limit in bytes, which takes effect if [`CountingAllocator`] is the allocator.
pub(super) fn bound(bytes: u64) {
    BOUND.store(bytes, Ordering::Relaxed);
}

/// Returns the allocated bytes; 0 if [`CountingAllocator`] is not the allocator.
pub fn allocated() -> u64 {
    HELD.load(Ordering::Relaxed).max(0) as u64
}

/// Hands memory that was freed back to the system, where its allocator keeps it for later: what was held between two large
/// tasks is not needed by the second.
pub fn return_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it touches nothing that is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the system's allocator keep memory that was freed, so much of it, for what is allocated next. By itself it hands back what
/// is free at the end of a heap beyond 128 kB: graphs that are built one after another had each its pages cleared anew, half of
/// all page faults of a step on a wafer. Only lists on huge pages (`graph/huge_pages.rs`) come from the system one by one.
pub fn keep_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets parameters, before there are other threads.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
        libc::mallopt(libc::M_TOP_PAD, 1 << 20);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
    }
}

/// Counts `bytes`, which are negative if they were freed.
#[inline]
fn count(bytes: i64) {
    // The local counter of a thread that is ending is already gone.
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
    // The total is negative while a thread has reported frees of what another has not reported yet.
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
    // Exit handlers allocate too, and must not end up here again.
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
    say(&text[..length]);
    std::process::exit(2);
}

/// Writes to standard error, bypassing the locks that the thread may hold.
#[cfg(unix)]
fn say(text: &[u8]) {
    use std::os::fd::FromRawFd;
    // SAFETY: standard error stays open; the file that stands for it is never dropped.
    let file = unsafe { std::fs::File::from_raw_fd(2) };
    let _ = std::mem::ManuallyDrop::new(file).write_all(text);
}

#[cfg(not(unix))]
fn say(text: &[u8]) {
    let _ = std::io::stderr().write_all(text);
}

/// Returns `memory`, or ends the process if the system had none.
#[inline]
fn had(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() {
        if let Some(exhausted) = EXHAUSTED.get() {
            exhausted();
        }
        exit_out_of_memory(
            size as u64,
            allocated() + size as u64,
            format_args!(
                "more than the system has; {} is not the reason",
                SettingKey::MaxMemory
            ),
        );
    }
    memory
}

// SAFETY: every call is handed to the system's allocator as it came, and its answer is given back.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are the ones that the system's allocator asks for; so below.
        had(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: see above.
        had(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: see above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: see above.
        had(unsafe { System.realloc(memory, layout, size) }, size)
    }
}
