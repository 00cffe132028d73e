//! `make fuzz`, or `cargo fuzz run chubby_file`: see `targets::chubby_file`.

#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code, reason = "each target is a program of its own and runs one function")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::chubby_file(bytes);
});
