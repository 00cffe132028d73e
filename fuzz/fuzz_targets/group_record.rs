//! `make fuzz`, or `cargo fuzz run group_record`: see `targets::group_record`.

#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code, reason = "each target is a program of its own and runs one function")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::group_record(bytes);
});
