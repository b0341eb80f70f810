//! How much memory a piece of code takes at most, counted on its own thread.
#![expect(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; this one counts and passes on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread::AccessError;

thread_local! {
    /// Bytes taken and not given back, and the most there ever were.
    static TAKEN: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Meter;

#[global_allocator]
static METER: Meter = Meter;

fn count(bytes: isize) {
    // A thread that ends has no counter any more.
    let _counted: Result<(), AccessError> = TAKEN.try_with(|taken| {
        let (now, most) = taken.get();
        let now = now.wrapping_add(bytes);
        taken.set((now, most.max(now)));
    });
}

// SAFETY: every call goes to the system's allocator as it came.
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

/// The most bytes that `work` held at a time, beyond what was held before.
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
