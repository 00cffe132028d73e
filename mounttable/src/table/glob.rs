//! Listing: what a pattern asks for, page by page.
//!
//! ```text
//!   a node with live servers     told with its servers, even if the pattern goes on: the rest is asked of them
//!   nothing left of the pattern  told
//!   otherwise                    its children whose names match, each with what is left
//! ```
//!
//! Depth first. At any time there is one page of children for each level in memory, and one entry withheld for each: a
//! directory that may be collected is told of when something is found in it, or else is still there when all is seen.
//! Others work meanwhile, so the whole may be a picture that never was; each node that is told of was there.
//!
//! Invariant: nothing is told of a node on which the caller has no right at all.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;

use crate::error::{Error, Reason};
use crate::glob::Pattern;
use crate::identity::Caller;
use crate::mount::{MountedServer, live};
use crate::name::NodeName;
use crate::node::Node;
use crate::rules::{self, Action};
use crate::store::{Store, Surroundings};
use crate::table::Table;
use crate::table::walk::Page;

/// A node that a pattern asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its name, relative to the receiver; empty for the receiver itself.
    pub name: String,
    /// Its live servers, as far as the caller may know them.
    pub servers: Vec<MountedServer>,
    /// What of the receiver's name is to be asked of the servers: not empty only when they hide the receiver.
    pub suffix: String,
    /// Whether it has children, seen or not.
    pub has_children: bool,
}

/// What a listing came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Entries told.
    pub found: usize,
    /// Something may have been left out for want of rights.
    pub has_omitted: bool,
}

/// Whoever takes what is found, one by one; the listing waits for it. Breaking off ends it.
pub trait Receive: Send {
    /// An entry.
    fn found(&mut self, found: Found) -> impl Future<Output = ControlFlow<()>> + Send;

    /// A node that could not be read, with its name relative to the receiver. The listing goes on.
    fn failed(&mut self, name: &str, error: &Error) -> impl Future<Output = ControlFlow<()>> + Send;
}

/// Entries as they come.
impl Receive for Vec<Found> {
    async fn found(&mut self, found: Found) -> ControlFlow<()> {
        self.push(found);
        ControlFlow::Continue(())
    }

    async fn failed(&mut self, _name: &str, _error: &Error) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Whether a node is there when all below it is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Stays,
    Gone,
}

/// A listing on its way.
struct Search<'a, R> {
    caller: &'a Caller,
    out: &'a mut R,
    /// Entries of directories above that are told of if anything is found in them.
    withheld: Vec<Found>,
    summary: Summary,
}

impl<R: Receive> Search<'_, R> {
    async fn tell(&mut self, found: Found) -> Result<(), Error> {
        let withheld = std::mem::take(&mut self.withheld);
        for entry in withheld.into_iter().chain([found]) {
            self.summary.found = self.summary.found.saturating_add(1);
            proceed(self.out.found(entry).await)?;
        }
        Ok(())
    }
}

fn proceed(flow: ControlFlow<()>) -> Result<(), Error> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::new(Reason::Cancelled, "nobody waits for the rest")),
    }
}

type Boxed<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send + 'a>>;

impl<S: Store + Surroundings> Table<S> {
    /// Tells `out` of every node below `receiver` that `pattern` asks for and `caller` may know of.
    ///
    /// # Errors
    /// `NO_ACCESS` on the way to the receiver, `CANCELLED` when `out` breaks off, `CONTENTION`, `UNAVAILABLE`. A receiver
    /// that is not there is no error.
    pub async fn glob<R: Receive>(
        &self,
        caller: &Caller,
        receiver: &NodeName,
        pattern: &Pattern,
        out: &mut R,
    ) -> Result<Summary, Error> {
        let now = self.store.now();
        let mut search = Search { caller, out, withheld: Vec::new(), summary: Summary::default() };
        let path = self.visit(receiver).await?;
        for node in &path {
            let servers: Vec<_> = live(&node.servers, now).cloned().collect();
            if !servers.is_empty() {
                rules::check(Action::Resolve, caller, &node.permissions)?;
                let suffix = receiver.suffix_below(&node.name).unwrap_or_default().to_owned();
                search.tell(Found { name: String::new(), servers, suffix, has_children: false }).await?;
                return Ok(search.summary);
            }
            if node.name != *receiver {
                rules::check(Action::Traverse, caller, &node.permissions)?;
            }
        }
        if let Some(node) = path.into_iter().next_back().filter(|node| node.name == *receiver) {
            if rules::may(Action::BeListed, caller, &node.permissions) {
                // With its first reference, as every node of a listing.
                let whole = self.node(&node.name, &crate::store::Children::first(1)).await?;
                if let Some(node) = whole.filter(|it| it.incarnation == node.incarnation) {
                    self.list(&mut search, node, String::new(), pattern.clone()).await?;
                }
            } else {
                search.summary.has_omitted = true;
            }
        }
        Ok(search.summary)
    }

    /// Lists a node that was found live and that the caller may know of, as read with its first reference.
    fn list<'a, R: Receive>(
        &'a self,
        search: &'a mut Search<'_, R>,
        node: Node,
        relative: String,
        pattern: Pattern,
    ) -> Boxed<'a> {
        Box::pin(async move {
            let servers: Vec<_> = live(&node.servers, self.store.now()).cloned().collect();
            let has_servers = !servers.is_empty();
            if self.is_empty(&node) {
                self.tidy(std::slice::from_ref(&node)).await?;
                return Ok(Outcome::Gone);
            }
            let may_resolve = rules::may(Action::Resolve, search.caller, &node.permissions);
            let servers = if may_resolve { servers } else { Vec::new() };
            let has_children = !node.children.is_empty();
            let entry = Found { name: relative.clone(), servers, suffix: String::new(), has_children };
            if has_servers || pattern.is_used_up() {
                search.tell(entry).await?;
                return Ok(Outcome::Stays);
            }
            let level = search.withheld.len();
            if pattern.depth() == 0 {
                if self.may_go(&node) { search.withheld.push(entry) } else { search.tell(entry).await? }
            }
            let below = self.list_children(search, &node, &relative, &pattern).await?;
            // Still withheld, so nothing was found in it.
            if search.withheld.len() > level {
                let entry = search.withheld.pop();
                if let Some(entry) = entry.filter(|_| below == Outcome::Stays) {
                    search.tell(entry).await?;
                }
            }
            Ok(if self.may_go(&node) { below } else { Outcome::Stays })
        })
    }

    /// Lists the children that the pattern asks for; `Gone` when there is surely no child at all.
    async fn list_children<R: Receive>(
        &self,
        search: &mut Search<'_, R>,
        node: &Node,
        relative: &str,
        pattern: &Pattern,
    ) -> Result<Outcome, Error> {
        if !rules::may_list(search.caller, &node.permissions, pattern) {
            search.summary.has_omitted = true;
            return Ok(Outcome::Stays);
        }
        let head = pattern.left().first();
        let mut page = match head {
            Some(head) if head.is_fixed() => Page::of_one(head.fixed_prefix()),
            Some(head) => Page::of_prefix(head.fixed_prefix()),
            None => Page::of_all(),
        };
        // Only without a head are all children looked at.
        let mut outcome = if head.is_none() { Outcome::Gone } else { Outcome::Stays };
        while let Some(children) = self.page(node, &mut page).await? {
            for (name, child) in children {
                let Some((_, element)) = name.split_last().filter(|(_, element)| pattern.head_matches(element)) else {
                    outcome = Outcome::Stays;
                    continue;
                };
                let relative = if relative.is_empty() { element.to_owned() } else { format!("{relative}/{element}") };
                match child {
                    Ok(Some(child)) if rules::may(Action::BeListed, search.caller, &child.permissions) => {
                        if self.list(search, child, relative, pattern.tail()).await? == Outcome::Stays {
                            outcome = Outcome::Stays;
                        }
                    }
                    Ok(Some(_)) => {
                        outcome = Outcome::Stays;
                        search.summary.has_omitted = true;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        outcome = Outcome::Stays;
                        proceed(search.out.failed(&relative, &error).await)?;
                    }
                }
            }
        }
        Ok(outcome)
    }
}
