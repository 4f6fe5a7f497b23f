//! Lists that signal handlers may read. Readers take no lock, and entries are never freed.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// List of the values that have not been removed.
pub struct SignalSafeList<T: 'static> {
    first: AtomicPtr<SignalSafeEntry<T>>,
}

/// Entry of a list. It is never freed, because a signal handler may still be reading it.
pub struct SignalSafeEntry<T: 'static> {
    value: T,
    live: AtomicBool,
    next: AtomicPtr<SignalSafeEntry<T>>,
}

#[expect(clippy::new_without_default, reason = "it stands in statics")]
impl<T: Send + Sync> SignalSafeList<T> {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self {
            first: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Adds `value`.
    pub fn add_entry(&self, value: T) -> &'static SignalSafeEntry<T> {
        let entry: &'static mut SignalSafeEntry<T> = Box::leak(Box::new(SignalSafeEntry {
            value,
            live: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let mut first = self.first.load(Ordering::Acquire);
        loop {
            // This store needs no ordering, because only the exchange below makes the entry visible.
            entry.next.store(first, Ordering::Relaxed);
            let pushed =
                self.first
                    .compare_exchange_weak(first, entry, Ordering::AcqRel, Ordering::Acquire);
            match pushed {
                Ok(_) => return entry,
                Err(other) => first = other,
            }
        }
    }

    /// Iterates over the values that have not been removed.
    pub fn iter(&self) -> impl Iterator<Item = &'static T> {
        let mut at = self.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            loop {
                // SAFETY: entries are leaked, so a non-null pointer is valid for the life of the program. Entries
                // change only through their atomic fields.
                let entry: &'static SignalSafeEntry<T> = unsafe { at.as_ref() }?;
                at = entry.next.load(Ordering::Relaxed);
                if entry.live.load(Ordering::Acquire) {
                    return Some(&entry.value);
                }
            }
        })
    }
}

impl<T> SignalSafeEntry<T> {
    /// Returns the value.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Removes the value from the list.
    pub fn remove(&self) {
        self.live.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_entries_are_not_iterated() {
        static LIST: SignalSafeList<u32> = SignalSafeList::new();
        let entries: Vec<_> = (0..3).map(|i| LIST.add_entry(i)).collect();
        entries[1].remove();
        let left: Vec<u32> = LIST.iter().copied().collect();
        assert_eq!(left, [2, 0]);
    }
}
