//! The maximum memory that a piece of code allocates, counted on its thread.
#![expect(
    unsafe_code,
    reason = "the trait of allocators is unsafe; this one counts and calls the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread::AccessError;

thread_local! {
    /// Bytes that are allocated, and their maximum.
    static TAKEN: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Meter;

#[global_allocator]
static METER: Meter = Meter;

fn count(bytes: isize) {
    // A thread that ends no longer has a counter.
    let _counted: Result<(), AccessError> = TAKEN.try_with(|taken| {
        let (now, most) = taken.get();
        let now = now.wrapping_add(bytes);
        taken.set((now, most.max(now)));
    });
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// The maximum number of bytes that `work` had allocated at a time, not counting those allocated before.
pub(crate) fn most(work: impl FnOnce()) -> usize {
    let before = TAKEN.with(|taken| {
        let (now, _) = taken.get();
        taken.set((now, now));
        now
    });
    work();
    let (_, most) = TAKEN.with(Cell::get);
    usize::try_from(most - before).unwrap_or(0)
}
