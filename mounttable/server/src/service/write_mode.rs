//! Whether a server accepts changes: a switch for operators, for one server, until it restarts.
//!
//! In read-only mode the server refuses callers' changes and starts no sweep. Changes in progress, heartbeats, and the
//! removal of expired servers continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ebla_mounttable_tree::error::{Error, Reason};

/// Whether changes are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteMode {
    /// They are.
    ReadWrite,
    /// They are refused with `READ_ONLY`, until an operator switches back.
    ReadOnly,
}

/// The switch. Clones share it; changes are accepted at first.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteSwitch(Arc<AtomicBool>);

impl WriteSwitch {
    /// Sets the mode; returns the previous one.
    pub(super) fn set(&self, to: WriteMode) -> WriteMode {
        write_mode(self.0.swap(to == WriteMode::ReadOnly, Ordering::SeqCst))
    }

    /// The current mode.
    pub(super) fn get(&self) -> WriteMode {
        write_mode(self.0.load(Ordering::SeqCst))
    }

    /// Called before a change begins.
    ///
    /// # Errors
    /// `READ_ONLY`.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.get() {
            WriteMode::ReadWrite => Ok(()),
            WriteMode::ReadOnly => {
                Err(Error::new(Reason::ReadOnly, "this server is read-only; use another server of the table"))
            }
        }
    }
}

const fn write_mode(is_read_only: bool) -> WriteMode {
    if is_read_only { WriteMode::ReadOnly } else { WriteMode::ReadWrite }
}
