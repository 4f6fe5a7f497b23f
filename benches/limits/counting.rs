//! Defines an allocator that counts allocated bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts the currently allocated bytes, and their maximum.
struct PeakCountingAllocator;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for PeakCountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(
            HELD.fetch_add(layout.size(), Relaxed) + layout.size(),
            Relaxed,
        );
        // SAFETY: the caller meets the allocator's requirements.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller meets the allocator's requirements.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let held = HELD.fetch_add(size, Relaxed) + size - layout.size();
        HELD.fetch_sub(layout.size(), Relaxed);
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller meets the allocator's requirements.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: PeakCountingAllocator = PeakCountingAllocator;

/// Returns the bytes allocated in addition to `before`: the current number, and the maximum since
/// [`reset_peak_to_held_bytes`] was last called.
pub fn held_and_peak_bytes_since(before: usize) -> (f64, f64) {
    let since = |now: usize| now.saturating_sub(before) as f64;
    (since(HELD.load(Relaxed)), since(PEAK.load(Relaxed)))
}

/// Returns the number of currently allocated bytes, and resets the maximum to it.
pub fn reset_peak_to_held_bytes() -> usize {
    let now = HELD.load(Relaxed);
    PEAK.store(now, Relaxed);
    now
}
