//! The shipped program cannot plant faults.

use ebla_runtime::Failpoint;

/// Contained in every program that can plant a fault: the message that `ebla_runtime::Failpoint` logs.
const MARK: &[u8] = b"EBLA-FAULT-PLANTED-ON-PURPOSE";

fn holds_the_mark(program: &[u8]) -> bool {
    program.windows(MARK.len()).any(|bytes| bytes == MARK)
}

#[test]
fn the_program_has_no_planted_fault() {
    // A program that can plant a fault holds the mark: this one can.
    std::hint::black_box(Failpoint::enable as fn(Failpoint));
    assert!(holds_the_mark(&std::fs::read(std::env::current_exe().unwrap()).unwrap()));
    let program = std::fs::read(env!("CARGO_BIN_EXE_ebla")).unwrap();
    assert!(!holds_the_mark(&program), "the program calls ebla_runtime::Failpoint::enable");
}
