//! An allocator that counts what each thread asks of it.

#![allow(unsafe_code, reason = "an allocator that counts is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// Bytes that the thread has allocated and not freed; less than none if it frees what others allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The most of them since the last look.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn held_more(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

/// The system's allocator, counted per thread. A test program makes it its `#[global_allocator]`.
#[derive(Debug)]
pub struct CountingAllocator;

impl CountingAllocator {
    /// How often the present thread has allocated or reallocated.
    pub fn count() -> u64 {
        COUNT.get()
    }

    /// What a piece of work returns, and the most bytes that it held at a time on the present thread.
    pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
        let before = HELD.get();
        PEAK.set(before);
        let result = work();
        (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
    }
}

// SAFETY: every call goes to the system's allocator as it is; counting touches a thread-local cell
// that needs no memory of its own.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        held_more(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        held_more(-layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        held_more(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
