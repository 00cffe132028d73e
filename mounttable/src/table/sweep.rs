//! The sweep: rows and intents that were left behind and can never become live. Safe while others work.

use crate::error::Error;
use crate::node::{Epoch, Node, Reference};
use crate::store::{Change, Children, Store, Surroundings};
use crate::table::Table;

/// How many rows one call lists.
const PAGE: usize = 1_000;

/// What a sweep found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Rows that nobody refers to, removed.
    pub orphans: usize,
    /// Intents that were too old, taken back.
    pub intents: usize,
    /// Deletions that were finished.
    pub deletions: usize,
}

impl<S: Store + Surroundings> Table<S> {
    /// Goes through the whole table once.
    ///
    /// # Errors
    /// `DAMAGED`, `UNAVAILABLE`, `CONTENTION`: then what comes behind was not looked at.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let mut after: Option<String> = None;
        loop {
            let keys = self.store.keys(after.as_deref(), PAGE).await?;
            let Some(last) = keys.last().cloned() else { return Ok(swept) };
            for key in keys {
                self.sweep_row(&key, &mut swept).await?;
            }
            after = Some(last);
        }
    }

    async fn sweep_row(&self, key: &str, swept: &mut Swept) -> Result<(), Error> {
        let name = crate::key::name_of(key)?;
        let Some(node) = self.node(&name, &Children::All).await? else { return Ok(()) };
        if let Some((parent, element)) = name.split_last() {
            // The child was read first: a row whose intent is written later has another incarnation.
            let parent = self.parent(&parent, element).await?;
            let reference =
                parent.filter(|parent| parent.incarnation == node.parent).and_then(|it| it.reference(element));
            if reference.is_none_or(|reference| reference.incarnation() != node.incarnation) {
                let is_gone = self.store.change_if(key, node.unchanged(), vec![Change::DeleteRow]).await?;
                swept.orphans = swept.orphans.saturating_add(usize::from(is_gone));
                return Ok(());
            }
            if node.epoch == Epoch::Dead {
                swept.deletions = swept.deletions.saturating_add(1);
                return self.finish(&name, node.incarnation).await;
            }
        }
        self.sweep_intents(&node, swept).await
    }

    async fn sweep_intents(&self, node: &Node, swept: &mut Swept) -> Result<(), Error> {
        let now = self.store.now();
        for (element, (reference, since)) in &node.children {
            if matches!(reference, Reference::Pending(_)) && now.since(*since) >= self.options.grace {
                self.unrefer(&node.name, element, *reference).await?;
                swept.intents = swept.intents.saturating_add(1);
            }
        }
        Ok(())
    }
}
