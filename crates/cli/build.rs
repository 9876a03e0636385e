//! Leaves the symbol table out of an optimised program, which is a quarter of it.
//!
//! The profiles say so with `strip`, but cargo (1.95) forgets that for a package whose optimisation they set apart from
//! the others'. A build with debug information keeps its symbols: it is made to be looked into.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if is("PROFILE", "release") && is("DEBUG", "false") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}
