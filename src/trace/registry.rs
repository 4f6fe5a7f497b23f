//! Lists that a handler of signals may read: no lock is held, and nothing is freed.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Things that are there for a while.
pub struct Registry<T: 'static> {
    first: AtomicPtr<Entry<T>>,
}

/// One of them. It takes its few bytes until the program ends, because a handler may be reading it.
pub struct Entry<T: 'static> {
    value: T,
    live: AtomicBool,
    next: AtomicPtr<Entry<T>>,
}

#[expect(clippy::new_without_default, reason = "it stands in statics")]
impl<T: Send + Sync> Registry<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self {
            first: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Adds `value`.
    pub fn add(&self, value: T) -> &'static Entry<T> {
        let entry: &'static mut Entry<T> = Box::leak(Box::new(Entry {
            value,
            live: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let mut first = self.first.load(Ordering::Acquire);
        loop {
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

    /// Those that are there.
    pub fn iter(&self) -> impl Iterator<Item = &'static T> {
        let mut at = self.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            loop {
                // SAFETY: entries are leaked, so what is not null lives as long as the program, and nobody
                // writes to one but through its atomics.
                let entry: &'static Entry<T> = unsafe { at.as_ref() }?;
                at = entry.next.load(Ordering::Relaxed);
                if entry.live.load(Ordering::Acquire) {
                    return Some(&entry.value);
                }
            }
        })
    }
}

impl<T> Entry<T> {
    /// The thing.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Takes it off the list.
    pub fn remove(&self) {
        self.live.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_is_gone() {
        static LIST: Registry<u32> = Registry::new();
        let entries: Vec<_> = (0..3).map(|i| LIST.add(i)).collect();
        entries[1].remove();
        let left: Vec<u32> = LIST.iter().copied().collect();
        assert_eq!(left, [2, 0]);
    }
}
