//! The shortest part of a failing program that still fails: steps are left out in halves, quarters, one by one.

use super::endpoint::Endpoint;
use super::program::Step;
use super::{Difference, execute};

/// How many shorter programs are tried.
const ATTEMPTS_MAX: usize = 300;

/// The shortest program found, and what it does differently. The last step is the one that differs.
pub(crate) async fn shrink(
    endpoints: &mut [Endpoint],
    mut program: Vec<Step>,
    mut difference: Difference,
) -> (Vec<Step>, Difference) {
    program.truncate(difference.at + 1);
    let mut attempts = 0;
    let mut piece = program.len() / 2;
    while piece > 0 {
        let mut start = 0;
        while start < program.len() && attempts < ATTEMPTS_MAX {
            attempts += 1;
            let end = program.len().min(start + piece);
            let shorter: Vec<_> = program[..start].iter().chain(&program[end..]).cloned().collect();
            match execute(endpoints, &shorter).await {
                Err(found) => {
                    program = shorter;
                    program.truncate(found.at + 1);
                    difference = found;
                }
                Ok(_) => start = end,
            }
        }
        piece /= 2;
    }
    (program, difference)
}
