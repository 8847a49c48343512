//! Hints to the processor.
//!
//! Owns: nothing. Promises: nothing changes but time. May call: nothing.

/// Asks the processor to fetch a cache line; several can be on their way at once.
#[inline]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a hint; it never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = at;
}
