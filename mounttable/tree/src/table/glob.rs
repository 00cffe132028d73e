//! Listing the nodes that match a pattern, page by page.
//!
//! ```text
//!   a node with live servers       reported with its servers; the client continues the pattern there
//!   the pattern is used up         reported
//!   otherwise                      its matching children are listed with the rest of the pattern
//! ```
//!
//! The search is depth first. Memory holds one page of children per level, and one withheld entry per level: a
//! directory that may be collected is reported once a node below it was found, or if it is still there at the end. The
//! table changes meanwhile, so the result may describe a state that never existed as a whole; each reported node did
//! exist.
//!
//! Invariant: nothing is reported about a node on which the caller has no right at all.

use std::future::{Future, ready};
use std::ops::ControlFlow;
use std::pin::Pin;

use crate::error::{Error, Reason};
use crate::glob::Pattern;
use crate::identity::Caller;
use crate::mount::{MountedServer, live};
use crate::name::NodeName;
use crate::node::Node;
use crate::rules::{self, Action};
use crate::store::{Environment, Store};
use crate::table::Table;
use crate::table::walk::Page;

/// A node that matches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GlobMatch {
    /// Its name, relative to the receiver; empty for the receiver itself.
    pub name: String,
    /// Its live servers, if the caller may see them.
    pub servers: Vec<MountedServer>,
    /// The rest of the receiver's name below the servers; empty unless a mount hides the receiver.
    pub suffix: String,
    /// Whether it has children, visible or not.
    pub has_children: bool,
}

/// The outcome of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GlobSummary {
    /// The number of reported entries.
    pub found: usize,
    /// Whether access lists may have hidden matches.
    pub has_omitted: bool,
}

/// Receives the matches one by one; the listing waits for it. `Break` ends the listing.
pub trait GlobSink: Send {
    /// A match.
    fn found(&mut self, found: GlobMatch) -> impl Future<Output = ControlFlow<()>> + Send;

    /// Called before each read of a page of children, so that a listing without matches can be ended too.
    fn next_page(&mut self) -> impl Future<Output = ControlFlow<()>> + Send {
        ready(ControlFlow::Continue(()))
    }

    /// A node that could not be read, with its name relative to the receiver. The listing continues.
    fn failed(&mut self, name: &str, error: &Error) -> impl Future<Output = ControlFlow<()>> + Send;
}

/// Collects the matches.
impl GlobSink for Vec<GlobMatch> {
    async fn found(&mut self, found: GlobMatch) -> ControlFlow<()> {
        self.push(found);
        ControlFlow::Continue(())
    }

    async fn failed(&mut self, _name: &str, _error: &Error) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Whether a node still exists after everything below it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Present,
    Absent,
}

/// A listing in progress.
struct Search<'a, R> {
    caller: &'a Caller,
    out: &'a mut R,
    /// Withheld entries of directories, reported when a node below them is found.
    withheld: Vec<GlobMatch>,
    summary: GlobSummary,
}

impl<R: GlobSink> Search<'_, R> {
    async fn emit(&mut self, found: GlobMatch) -> Result<(), Error> {
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
        ControlFlow::Break(()) => Err(Error::new(Reason::Cancelled, "the listing was cancelled")),
    }
}

type Boxed<'a> = Pin<Box<dyn Future<Output = Result<Presence, Error>> + Send + 'a>>;

impl<S: Store + Environment> Table<S> {
    /// Reports to `out` every node below `receiver` that matches `pattern` and that `caller` may see.
    ///
    /// # Errors
    /// `NO_ACCESS` on the way to the receiver, `CANCELLED` when `out` breaks off, `CONTENTION`, `UNAVAILABLE`. A
    /// missing receiver is not an error.
    pub async fn glob<R: GlobSink>(
        &self,
        caller: &Caller,
        receiver: &NodeName,
        pattern: &Pattern,
        out: &mut R,
    ) -> Result<GlobSummary, Error> {
        let now = self.store.now();
        let mut search = Search { caller, out, withheld: Vec::new(), summary: GlobSummary::default() };
        let path = self.visit(receiver).await?;
        for node in &path {
            let servers: Vec<_> = live(&node.servers, now).cloned().collect();
            if !servers.is_empty() {
                rules::check(Action::Resolve, caller, &node.permissions)?;
                let suffix = receiver.suffix_below(&node.name).unwrap_or_default().to_owned();
                search.emit(GlobMatch { name: String::new(), servers, suffix, has_children: false }).await?;
                return Ok(search.summary);
            }
            if node.name != *receiver {
                rules::check(Action::Traverse, caller, &node.permissions)?;
            }
        }
        if let Some(node) = path.into_iter().next_back().filter(|node| node.name == *receiver) {
            if rules::is_allowed(Action::BeListed, caller, &node.permissions) {
                // With its first reference, as every node of a listing.
                let whole = self.node(&node.name, &crate::store::ChildSelection::first(1)).await?;
                if let Some(node) = whole.filter(|it| it.incarnation == node.incarnation) {
                    self.list(&mut search, node, String::new(), pattern.clone()).await?;
                }
            } else {
                search.summary.has_omitted = true;
            }
        }
        Ok(search.summary)
    }

    /// Lists a live node that the caller may see, read with its first reference.
    fn list<'a, R: GlobSink>(
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
                self.collect_if_empty(std::slice::from_ref(&node)).await?;
                return Ok(Presence::Absent);
            }
            let may_resolve = rules::is_allowed(Action::Resolve, search.caller, &node.permissions);
            let servers = if may_resolve { servers } else { Vec::new() };
            let has_children = !node.children.is_empty();
            let entry = GlobMatch { name: relative.clone(), servers, suffix: String::new(), has_children };
            if has_servers || pattern.is_used_up() {
                search.emit(entry).await?;
                return Ok(Presence::Present);
            }
            let level = search.withheld.len();
            if pattern.depth() == 0 {
                if self.may_go(&node) { search.withheld.push(entry) } else { search.emit(entry).await? }
            }
            let below = self.list_children(search, &node, &relative, &pattern).await?;
            // Still withheld, so nothing was found below it.
            if search.withheld.len() > level {
                let entry = search.withheld.pop();
                if let Some(entry) = entry.filter(|_| below == Presence::Present) {
                    search.emit(entry).await?;
                }
            }
            Ok(if self.may_go(&node) { below } else { Presence::Present })
        })
    }

    /// Lists the children that match; `Absent` when there is certainly no child at all.
    async fn list_children<R: GlobSink>(
        &self,
        search: &mut Search<'_, R>,
        node: &Node,
        relative: &str,
        pattern: &Pattern,
    ) -> Result<Presence, Error> {
        if !rules::can_list(search.caller, &node.permissions, pattern) {
            search.summary.has_omitted = true;
            return Ok(Presence::Present);
        }
        let head = pattern.left().first();
        let mut page = match head {
            Some(head) if head.is_fixed() => Page::of_one(head.fixed_prefix()),
            Some(head) => Page::of_prefix(head.fixed_prefix()),
            None => Page::of_all(),
        };
        // Only a pattern without a head covers all children.
        let mut presence = if head.is_none() { Presence::Absent } else { Presence::Present };
        loop {
            proceed(search.out.next_page().await)?;
            let Some(children) = self.page(node, &mut page).await? else { return Ok(presence) };
            for (name, child) in children {
                let Some((_, element)) = name.split_last().filter(|(_, element)| pattern.head_matches(element)) else {
                    presence = Presence::Present;
                    continue;
                };
                let relative = if relative.is_empty() { element.to_owned() } else { format!("{relative}/{element}") };
                match child {
                    Ok(Some(child)) if rules::is_allowed(Action::BeListed, search.caller, &child.permissions) => {
                        if self.list(search, child, relative, pattern.tail()).await? == Presence::Present {
                            presence = Presence::Present;
                        }
                    }
                    Ok(Some(_)) => {
                        presence = Presence::Present;
                        search.summary.has_omitted = true;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        presence = Presence::Present;
                        proceed(search.out.failed(&relative, &error).await)?;
                    }
                }
            }
        }
    }
}
