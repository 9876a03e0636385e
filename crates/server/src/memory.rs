//! Which allocator a server's program uses, and that memory which was freed goes back to the system.
//!
//! An allocator keeps what threads free for the next time. After many large operations a process would stay
//! as large as it ever was. So the server looks at its size once a second, and asks the allocator to give
//! back what is free when that is likely to be much. A second after the start it also lets go of the code that only the start needed.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io};

use mimalloc::MiMalloc;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::host_info::kilobytes;

/// The allocator for programs that serve: they make it their `#[global_allocator]`.
///
/// Updates and transactions take a third less time with it than with that of the C library, which searches
/// ever longer lists of free pieces for the middle-sized ones that documents are made of
/// (`docs/benchmarks.md`).
#[derive(Debug)]
pub struct Allocator;

/// The alignment that the allocator gives every piece of memory.
const WORD: usize = size_of::<usize>();

// mimalloc's own implementation asks for an alignment each time, which takes a third more instructions, and nearly
// everything needs none but that of a word.
#[allow(unsafe_code, reason = "an allocator is unsafe to implement")]
// SAFETY: memory comes from mimalloc's functions alone, any of which may free what another gave. All of them align it
// to a word at least; what needs more goes through its implementation.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match layout.align() <= WORD {
            true => unsafe { libmimalloc_sys::mi_malloc(layout.size()).cast() },
            false => unsafe { MiMalloc.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match layout.align() <= WORD {
            true => unsafe { libmimalloc_sys::mi_zalloc(layout.size()).cast() },
            false => unsafe { MiMalloc.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match layout.align() <= WORD {
            true => unsafe { libmimalloc_sys::mi_realloc(memory.cast(), size).cast() },
            false => unsafe { MiMalloc.realloc(memory, layout, size) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { MiMalloc.dealloc(memory, layout) }
    }
}

/// The name of the allocator that this program has: not every one that serves need have ours.
pub(crate) fn allocator_name() -> &'static str {
    let probe = Box::new(0_u64);
    let place: *const u64 = &*probe;
    #[allow(unsafe_code, reason = "mimalloc is asked through its C functions")]
    // SAFETY: the function takes any pointer, and only compares it with the regions that it has.
    let is_ours = unsafe { libmimalloc_sys::mi_is_in_heap_region(place.cast()) };
    if is_ours { "mimalloc" } else { "system" }
}

/// By how much the process must have grown, or its operations must hold less, since the last purge.
const NOTABLE: u64 = 32 << 20;

/// The memory of operations from which freed memory is given back at once.
const MUCH: u64 = 128 << 20;

/// The place of `mi_option_purge_delay` among the allocator's options, which its crate does not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// How long the allocator keeps freed memory: its own default.
const KEPT_MILLIS: std::ffi::c_long = 1000;

/// Memory is not given back by a process smaller than this.
const SMALL: u64 = 64 << 20;

/// The most checks between two purges of a larger process, if the last purge freed little.
const SELDOM: u32 = 60;

/// The same, if the last purge freed much, or if operations were in flight.
const SOON: u32 = 5;

/// The interval between two checks.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Checks until the start is over, and its code is given back.
const START: u32 = 2;

/// The time and the result of the last purge.
#[derive(Debug)]
pub(crate) struct FreedMemory {
    /// Checks that are left of the start.
    start: u32,
    looks: u32,
    /// The most checks until the next purge.
    pause: u32,
    resident: u64,
    held: u64,
}

impl Default for FreedMemory {
    fn default() -> Self {
        Self { start: START, looks: 0, pause: SELDOM, resident: 0, held: 0 }
    }
}

impl FreedMemory {
    /// Gives back what is free if it is time. `held` is what the operations of clients hold. Returns whether the
    /// workers of [`runtime`] should do so too, which each does before it rests.
    pub(crate) fn look(&mut self, held: u64) -> bool {
        set_thrift(held);
        if self.start > 0 {
            self.start -= 1;
            if self.start == 0 {
                give_code_back();
            }
        }
        let Some(before) = resident_bytes() else { return false };
        let due = self.due(before, held);
        if let Some(due) = due {
            ASKED.fetch_add(1, Ordering::Relaxed);
            give_back();
            self.purged(due, before, resident_bytes().unwrap_or(before), held);
        }
        due.is_some()
    }

    fn due(&mut self, resident: u64, held: u64) -> Option<Due> {
        self.looks += 1;
        self.resident = self.resident.min(resident);
        let has_grown = resident >= self.resident + NOTABLE;
        let has_ended = held + NOTABLE <= self.held;
        self.held = self.held.max(held);
        if resident <= SMALL {
            None
        } else if has_grown || has_ended {
            Some(Due::Changed)
        } else {
            (self.looks >= self.pause).then_some(Due::Paused)
        }
    }

    /// A purge is over. One after a change that freed little came before what grew was freed: the next one is soon.
    fn purged(&mut self, due: Due, before: u64, resident: u64, held: u64) {
        let freed_little = resident + NOTABLE / 4 > before;
        let pause = if due == Due::Paused && freed_little { SELDOM } else { SOON };
        *self = Self { start: self.start, looks: 0, pause, resident, held };
    }
}

/// Why it is time for a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The process has grown, or large operations have ended.
    Changed,
    /// The pause since the last one is over.
    Paused,
}

/// How often workers were asked to give back what they have freed.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// How long a thread for long commands rests before it ends, and what the allocator kept for it is free for others.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// The runtime for programs that serve. The allocator keeps what a thread freed for that thread, and no other
/// thread can give it back: after thousands of connections have closed that is all of their memory. So each
/// worker does it itself, before it rests, when it was asked to.
///
/// # Errors
///
/// If the system gives no threads or no poll.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .enable_all()
        .on_thread_park(give_back_as_asked)
        .thread_keep_alive(KEEP_ALIVE)
        .build()
}

/// Wakes workers that rest, so that they see what they were asked.
pub(crate) fn wake_workers() {
    for _ in 0..Handle::current().metrics().num_workers() {
        tokio::spawn(async {});
    }
}

fn give_back_as_asked() {
    thread_local! {
        static DONE: Cell<u32> = const { Cell::new(0) };
    }
    let asked = ASKED.load(Ordering::Relaxed);
    if DONE.replace(asked) != asked {
        collect();
    }
}

/// Has the allocator give freed memory back at once while operations hold much, and keep it for a second
/// otherwise, which makes small operations a tenth faster. Without this, what large operations free one after
/// another adds up to several times what they may hold.
pub(crate) fn set_thrift(held: u64) {
    static IS_THRIFTY: AtomicBool = AtomicBool::new(false);
    let (is_thrifty, much) = (IS_THRIFTY.load(Ordering::Relaxed), held >= MUCH);
    // Operations that hold a little less for a moment change nothing.
    if is_thrifty == much || is_thrifty && held >= NOTABLE {
        return;
    }
    IS_THRIFTY.store(much, Ordering::Relaxed);
    let delay = if much { 0 } else { KEPT_MILLIS };
    #[allow(unsafe_code, reason = "the allocator offers it in no other way")]
    // SAFETY: it sets a number that the allocator reads anew each time.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, delay);
    }
}

/// How many bytes of this process are in the machine's memory.
fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(kilobytes(&status, "VmRSS:")? * 1024)
}

/// Asks both allocators, that of the program and that of the C library, which libraries in C use.
#[allow(unsafe_code, reason = "the allocators offer it in no other way")]
fn give_back() {
    collect();
    // SAFETY: it takes a number, may be called by any thread at any time, and touches only memory that was freed.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets the system take the pages of code out of this process. Those that are used come back from the system's cache of
/// files, which costs a microsecond for sixteen of them; what only the start has run, half of all, does not.
#[cfg(target_os = "linux")]
fn give_code_back() {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
    for (start, length) in maps.lines().filter_map(code_of_file) {
        #[allow(unsafe_code, reason = "the system offers it in no other way")]
        // SAFETY: the pages are those of a file that is mapped for reading and running, and are not written to: positions are
        // independent of where it is mapped. Each is read again from the file, whose bytes cannot change while it runs.
        unsafe {
            libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn give_code_back() {}

/// Where the code of a file is mapped, if a line of `maps` tells of it: its address and its length.
#[cfg(target_os = "linux")]
fn code_of_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_whitespace();
    let (place, rights) = (fields.next()?, fields.next()?);
    let is_of_file = fields.nth(3).is_some_and(|path| path.starts_with('/'));
    let (start, end) = place.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    (rights == "r-xp" && is_of_file).then_some((start, end.checked_sub(start)?))
}

/// Asks the allocator of the program, about this thread.
#[allow(unsafe_code, reason = "the allocator offers it in no other way")]
fn collect() {
    // SAFETY: it may be called by any thread at any time, and touches only memory that was freed.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_our_allocator_does_not_name_it() {
        assert_eq!(allocator_name(), "system");
    }

    #[test]
    fn memory_is_given_back_after_growth_after_large_operations_and_from_time_to_time() {
        let mebibyte = 1 << 20;
        let after = |resident, pause| FreedMemory { start: 0, looks: 0, pause, resident, held: 0 };
        let mut freed = after(100 * mebibyte, SELDOM);
        assert_eq!(freed.due(110 * mebibyte, 10 * mebibyte), None);
        assert_eq!(freed.due(140 * mebibyte, 10 * mebibyte), Some(Due::Changed), "by 40 MiB");
        let mut freed = after(900 * mebibyte, SELDOM);
        assert_eq!(freed.due(910 * mebibyte, 800 * mebibyte), None);
        assert_eq!(freed.due(910 * mebibyte, 0), Some(Due::Changed), "operations ended");
        let looks_until_due = |mut freed: FreedMemory| {
            (1..=60).find(|_| freed.due(100 * mebibyte, 0) == Some(Due::Paused))
        };
        assert_eq!(looks_until_due(after(100 * mebibyte, SELDOM)), Some(60));
        assert_eq!(looks_until_due(after(100 * mebibyte, SOON)), Some(5));
        let mut small = FreedMemory::default();
        assert!((0..200).all(|_| small.due(50 * mebibyte, 0).is_none()));
    }

    /// Ten thousand connections that are open when the process is seen to have grown close later.
    #[test]
    fn a_purge_while_memory_is_still_in_use_is_soon_followed_by_another() {
        let mebibyte = 1 << 20;
        for (due, before, after, pause) in [
            (Due::Changed, 220, 220, SOON),
            (Due::Changed, 220, 110, SOON),
            (Due::Paused, 220, 110, SOON),
            (Due::Paused, 220, 218, SELDOM),
        ] {
            let mut freed = FreedMemory { looks: SOON, pause: SOON, ..FreedMemory::default() };
            freed.purged(due, before * mebibyte, after * mebibyte, 0);
            assert_eq!(freed.pause, pause, "{due:?}, {before} to {after}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn code_is_what_is_mapped_from_a_file_to_be_run() {
        let code = "55d000-55f800 r-xp 00001000 fe:00 12 /usr/bin/a program (deleted)";
        assert_eq!(code_of_file(code), Some((0x55d000, 0x2800)));
        for other in [
            "55d000-55f800 r--p 00001000 fe:00 12 /usr/bin/program",
            "55d000-55f800 rwxp 00001000 fe:00 12 /usr/bin/program",
            "7ffe2b5000-7ffe2b7000 r-xp 00000000 00:00 0 [vdso]",
            "7ffe2b5000-7ffe2b7000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(code_of_file(other), None, "{other}");
        }
    }

    /// Kilobytes of code that are in the machine's memory for this process.
    #[cfg(target_os = "linux")]
    fn resident_code() -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut is_code, mut kilobytes) = (false, 0);
        for line in smaps.lines() {
            match line.strip_prefix("Rss:") {
                Some(rest) if is_code => {
                    kilobytes += rest.trim_end_matches(" kB").trim().parse::<u64>().unwrap();
                }
                Some(_) => {}
                None if line.contains('-') => is_code = code_of_file(line).is_some(),
                None => {}
            }
        }
        kilobytes
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn code_is_given_back_when_the_start_is_over() {
        use std::os::unix::fs::FileExt;
        // Reading them brings the pages of the code in.
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let memory = fs::File::open("/proc/self/mem").unwrap();
        for (start, length) in maps.lines().filter_map(code_of_file) {
            memory.read_exact_at(&mut vec![0; length], start as u64).unwrap();
        }
        let before = resident_code();
        let mut freed = FreedMemory::default();
        freed.look(0);
        assert!(resident_code() >= before, "the start is not over");
        freed.look(0);
        let after = resident_code();
        assert!(after < before / 2, "{before} KiB of code before, {after} after");
    }
}
