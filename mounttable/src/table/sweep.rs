//! The sweep: rows and intents that were left behind and can never become live, and what is to be collected and nobody
//! came by. Safe while others work.

use crate::error::{Error, Reason};
use crate::name::NodeName;
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
    /// Servers whose deadline had come, removed.
    pub expired: usize,
    /// Rows that are not what a node writes, left alone.
    pub damaged: usize,
}

impl<S: Store + Surroundings> Table<S> {
    /// Goes through the whole table once, if it has a root.
    ///
    /// # Errors
    /// `UNAVAILABLE`, `CONTENTION`: then what comes behind was not looked at.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        // Without a root nothing is referred to, and yet all of it may be just what is being restored.
        if self.node(&NodeName::root(), &Children::none()).await?.is_none() {
            return Ok(swept);
        }
        let mut after: Option<String> = None;
        loop {
            let keys = self.store.keys(after.as_deref(), PAGE).await?;
            let Some(last) = keys.last().cloned() else { return Ok(swept) };
            for key in keys {
                match self.sweep_row(&key, &mut swept).await {
                    // One row that nobody understands must not keep the others from being looked at.
                    Err(error) if error.reason == Reason::Damaged => swept.damaged = swept.damaged.saturating_add(1),
                    outcome => outcome?,
                }
            }
            after = Some(last);
        }
    }

    async fn sweep_row(&self, key: &str, swept: &mut Swept) -> Result<(), Error> {
        let name = crate::key::name_of(key)?;
        let Some(mut node) = self.node(&name, &Children::none()).await? else { return Ok(()) };
        if !name.is_root() {
            if self.is_orphan(&node).await? {
                if self.store.change_if(key, node.unchanged(), vec![Change::DeleteRow]).await? {
                    self.give_back_row(&node).await;
                    swept.orphans = swept.orphans.saturating_add(1);
                }
                return Ok(());
            }
            if node.epoch == Epoch::Dead {
                swept.deletions = swept.deletions.saturating_add(1);
                return self.finish(&name, node.incarnation).await.map(drop);
            }
        }
        let servers = node.servers.len();
        self.expire(&mut node).await?;
        swept.expired = swept.expired.saturating_add(servers.saturating_sub(node.servers.len()));
        self.sweep_intents(&name, swept).await?;
        if self.may_go(&node) { self.collect(&name).await } else { Ok(()) }
    }

    /// Whether nobody refers to a row as read, and nobody ever will: the parent was read later, and a row whose intent is
    /// written later has another incarnation.
    async fn is_orphan(&self, node: &Node) -> Result<bool, Error> {
        if self.is_referred_to(node).await? {
            return Ok(false);
        }
        // A table without a root is being restored, and a row may come before its parent. The root comes last: if it is
        // there, so is the parent, for who looks again.
        let has_root = self.node(&NodeName::root(), &Children::none()).await?.is_some();
        Ok(has_root && !self.is_referred_to(node).await?)
    }

    /// Whether the parent, as it is now, refers to this creation of a row; the root needs none.
    pub(super) async fn is_referred_to(&self, node: &Node) -> Result<bool, Error> {
        let Some((parent, element)) = node.name.split_last() else { return Ok(true) };
        let parent = self.parent(&parent, element).await?.filter(|parent| parent.incarnation == node.parent);
        let reference = parent.and_then(|parent| parent.reference(element));
        Ok(reference.is_some_and(|reference| reference.incarnation() == node.incarnation))
    }

    async fn sweep_intents(&self, name: &NodeName, swept: &mut Swept) -> Result<(), Error> {
        let now = self.store.now();
        let mut after = None;
        loop {
            let children = Children::Page { prefix: String::new(), after, limit: PAGE };
            let Some(node) = self.node(name, &children).await? else { return Ok(()) };
            for (element, (reference, since)) in &node.children {
                if matches!(reference, Reference::Pending(_)) && now.since(*since) >= self.options.grace {
                    self.unrefer(&node.name, element, *reference).await?;
                    swept.intents = swept.intents.saturating_add(1);
                }
            }
            after = node.children.into_keys().next_back();
            if after.is_none() {
                return Ok(());
            }
        }
    }
}
