//! `make fuzz`, or `cargo fuzz run cell_codec`: see `targets::cell_codec`.

#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code, reason = "each target is a program of its own and runs one function")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::cell_codec(bytes);
});
