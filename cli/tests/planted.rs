//! The program that people get has no planted fault in it.

/// The variable that chooses a planted fault: its name stands in every program that has them.
const MARK: &[u8] = b"EBLA_PLANTED_BUG";

#[test]
fn the_program_has_no_planted_fault() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_ebla")).unwrap();
    assert!(!program.windows(MARK.len()).any(|bytes| bytes == MARK), "built with the feature `planted`");
}
