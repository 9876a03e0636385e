//! What commands with very many values take: bytes that do not depend on the machine.

#![allow(clippy::unwrap_used, reason = "a panic is this test's report")]
#![allow(unsafe_code, reason = "an allocator is unsafe to write")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bson::raw::{RawArrayBuf, RawDocumentBuf};
use bson::rawdoc;
use quorate_node::{Command, Node, NodeOptions, Outcome};
use quorate_storage::ModelStore;
use support::{context, now};

/// Values of a list.
const VALUES: usize = 200_000;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Remembers the most bytes that were in use.
struct Peak;

fn note(before: usize, after: usize) {
    let used = USED.fetch_add(after, Ordering::Relaxed) + after;
    USED.fetch_sub(before, Ordering::Relaxed);
    MOST.fetch_max(used, Ordering::Relaxed);
}

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Peak {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(0, layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(layout.size(), 0);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(layout.size(), size);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Peak = Peak;

/// The bytes that a command takes for each of its values, beside its message.
fn bytes_per_value(node: &Node, body: RawDocumentBuf) -> usize {
    let context = context();
    let command = Command::from_raw(&body, Vec::new()).unwrap();
    let before = USED.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let Outcome::Reply(reply) = node.run(&context, command) else { panic!("it waits") };
    assert_eq!(reply.body.get_f64("ok").unwrap(), 1.0, "{:?}", reply.body);
    (MOST.load(Ordering::Relaxed) - before) / VALUES
}

#[test]
fn long_lists_take_little_beside_their_message() {
    let node = Node::open(Arc::new(ModelStore::new()), NodeOptions::default(), now()).unwrap();
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1, "a": 1 }], "$db": "db" };
    bytes_per_value(&node, insert);
    let mut values = RawArrayBuf::new();
    (0..VALUES as i32).for_each(|value| values.push(value));
    // They are parsed once, and each has a key of the index beside that.
    for (field, most) in [("a", 260), ("_id", 420)] {
        let mut filter = RawDocumentBuf::new();
        let name: bson::raw::CString = field.try_into().unwrap();
        filter.append(&*name, rawdoc! { "$in": values.clone() });
        let taken = bytes_per_value(&node, rawdoc! { "find": "c", "filter": filter, "$db": "db" });
        assert!(taken < most, "{taken} bytes for each value of {field}");
    }
}
