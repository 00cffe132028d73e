//! Mending what a check finds.

use crate::error::{Error, Reason};
use crate::key::name_of;
use crate::name::{DEPTH_MAX, NodeName};
use crate::node::Reference;
use crate::store::{Store, Surroundings};
use crate::table::Table;
use crate::table::check::Referred;

/// How many rows one call lists.
const PAGE: usize = 256;

impl<S: Store + Surroundings> Table<S> {
    /// Mends what [`Self::check`] finds and can be mended, while others go on: sweeps, removes references that lead
    /// nowhere, and recounts. Damaged rows stay for a person to look at.
    ///
    /// # Errors
    /// `UNAVAILABLE`, `CONTENTION`: then some is mended.
    pub async fn mend(&self) -> Result<(), Error> {
        // A row below an orphan is an orphan only when that is gone: each round sees to one more level.
        for _ in 0..=DEPTH_MAX {
            let swept = self.sweep().await?;
            if swept.orphans.saturating_add(swept.deletions) == 0 {
                break;
            }
        }
        let mut last: Option<String> = None;
        loop {
            let keys = self.store.keys(last.as_deref(), PAGE).await?;
            last = keys.last().cloned();
            for name in keys.iter().filter_map(|key| name_of(key).ok()) {
                match self.mend_references(&name).await {
                    Err(error) if error.reason == Reason::Damaged => {}
                    outcome => outcome?,
                }
            }
            if last.is_none() {
                return self.recount().await.map(drop);
            }
        }
    }

    /// Removes committed references to rows that are not there. No such row ever comes: a row is there before it is
    /// committed, and its reference goes before it.
    async fn mend_references(&self, name: &NodeName) -> Result<(), Error> {
        let mut after = None;
        while let Some(references) = self.references(name, &mut after).await? {
            let is_wrong = |it: &Referred| matches!(it.reference, Reference::Committed(_)) && !it.is_there;
            for wrong in references.into_iter().filter(is_wrong) {
                if let Some((_, element)) = wrong.child.split_last() {
                    self.unrefer(name, element, wrong.reference).await?;
                }
            }
        }
        Ok(())
    }
}
