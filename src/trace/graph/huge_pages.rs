//! Allocates large vectors on huge pages.

use chakram_base::bounds;

/// Minimum size in bytes of vectors for which huge pages are requested.
#[cfg(target_os = "linux")]
const LARGE: usize = 4 << 20;

/// Returns an empty vector with capacity for `count` entries. For large vectors, requests huge pages: on small pages,
/// page faults would take a third of the time to fill a vector. The system ignores the request if it has no huge pages
/// or too little memory.
pub fn huge_page_vec<T>(count: usize) -> Vec<T> {
    let mut list = Vec::new();
    let fits =
        bounds::check_items_fit_memory("a list", count as u64, size_of::<T>() as u64, "").is_ok();
    if fits && list.try_reserve_exact(count).is_ok() {
        advise_huge_pages(&mut list);
    }
    list
}

/// Returns a vector of `count` copies of `value`, allocated like [`huge_page_vec`].
pub fn allocate_filled<T: Clone>(count: usize, value: T) -> Vec<T> {
    let mut list = huge_page_vec(count);
    list.resize(count, value);
    list
}

#[cfg(target_os = "linux")]
fn advise_huge_pages<T>(list: &mut Vec<T>) {
    const PAGE: usize = 1 << 21;
    let room = list.spare_capacity_mut();
    let bytes = size_of_val(room);
    if bytes < LARGE {
        return;
    }
    let start = room.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(PAGE);
    // SAFETY: the range consists of whole pages within the vector's own capacity, and the advice does not change
    // their contents.
    unsafe {
        libc::madvise(
            start.add(skipped).cast(),
            (bytes - skipped) & !(PAGE - 1),
            libc::MADV_HUGEPAGE,
        );
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages<T>(_: &mut Vec<T>) {}

#[cfg(test)]
mod tests {
    #[test]
    fn huge_page_vec_holds_any_number_of_values() {
        for count in [0, 1000, 5 << 20] {
            let mut list = super::huge_page_vec::<u64>(count);
            assert!(list.capacity() >= count);
            list.extend(0..count as u64);
            assert!(list.iter().enumerate().all(|(i, &x)| x == i as u64));
        }
    }
}
