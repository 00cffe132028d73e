//! `make fuzz`, or `cargo fuzz run log_command`: see `targets::log_command`.

#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code, reason = "each target is a program of its own and runs one function")]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::log_command(bytes);
});
