//! Whether a server makes changes: a switch for operators, of one server, and for as long as that runs.
//!
//! It refuses what callers ask for, and no sweep begins by itself. What goes on: changes that have begun, the server's notes that it
//! can write, and the removal of what has expired by whoever comes by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Reason};

/// Whether changes are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changes {
    /// As ever.
    Made,
    /// With `READ_ONLY`, until an operator says otherwise.
    Refused,
}

/// The switch. Clones are the same one; changes are made at first.
#[derive(Clone, Debug, Default)]
pub(super) struct Switch(Arc<AtomicBool>);

impl Switch {
    /// Turns it; what it was before.
    pub(super) fn turn(&self, to: Changes) -> Changes {
        told(self.0.swap(to == Changes::Refused, Ordering::SeqCst))
    }

    /// What it is.
    pub(super) fn now(&self) -> Changes {
        told(self.0.load(Ordering::SeqCst))
    }

    /// Before a change begins.
    ///
    /// # Errors
    /// `READ_ONLY`.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.now() {
            Changes::Made => Ok(()),
            Changes::Refused => Err(Error::new(Reason::ReadOnly, "this server makes no changes for the time being")),
        }
    }
}

const fn told(is_refused: bool) -> Changes {
    if is_refused { Changes::Refused } else { Changes::Made }
}
