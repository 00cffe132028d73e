//! Replies and requests of the services as values. The translation that clients share is in the tree's crate.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use ebla_mounttable_tree::identity::Caller;
use ebla_mounttable_tree::mount::{Deadline, MountMode, MountedServer, Target, TargetFlags};
use ebla_mounttable_tree::store::Freshness;
use ebla_mounttable_tree::table::{GlobMatch, Mount, Resolved};
use ebla_mounttable_tree::{Error, Reason};
use ebla_proto::mounttable as wire;

pub(crate) use ebla_mounttable_tree::messages::{
    cells, error, failure, permissions_from_wire, permissions_to_wire, row, status,
};

/// Microseconds since the Unix epoch; `None` without a deadline.
pub(super) fn deadline(deadline: Deadline) -> Option<i64> {
    (deadline != Deadline::FOREVER).then(|| deadline.as_micros().get())
}

pub(super) fn server(server: &MountedServer, address: String) -> wire::Server {
    wire::Server {
        address,
        deadline_micros: deadline(server.deadline),
        serves_mount_table: server.target == Target::MountTable,
        is_leaf: server.target == Target::Leaf,
    }
}

fn entry(name: String, servers: Vec<wire::Server>, has_children: bool) -> wire::Entry {
    let serves_mount_table = servers.iter().any(|server| server.serves_mount_table);
    let is_leaf = servers.iter().any(|server| server.is_leaf);
    wire::Entry { name, servers, serves_mount_table, is_leaf, has_children, stale: false }
}

/// The reply to a caller: at most `max` servers, 0 for all, in an order that is stable for each caller and differs
/// between callers, so that callers spread over the servers and each keeps to its own.
pub(super) fn resolved(found: &Resolved, caller: &Caller, max: u32) -> wire::Entry {
    let mut hasher_of_caller = DefaultHasher::new();
    hasher_of_caller.write(caller.names.first().map_or("", |name| name.as_str()).as_bytes());
    let rank = |one: &MountedServer| {
        let mut hasher = hasher_of_caller.clone();
        one.address.as_str().hash(&mut hasher);
        hasher.finish()
    };
    let mut ranked: Vec<_> = found.servers.iter().map(|one| (rank(one), one)).collect();
    if let Ok(max @ 1..) = usize::try_from(max)
        && max < ranked.len()
    {
        ranked.select_nth_unstable_by_key(max, |(rank, _)| *rank);
        ranked.truncate(max);
    }
    ranked.sort_unstable_by_key(|(rank, one)| (*rank, one.address.as_str()));
    let servers = ranked.into_iter().map(|(_, one)| server(one, one.address.to_string())).collect();
    let stale = found.freshness == Freshness::Stale;
    wire::Entry { stale, ..entry(found.suffix.clone(), servers, false) }
}

/// An entry of a listing. A server that hides the receiver is reported with the rest of the receiver's name.
pub(super) fn found(found: &GlobMatch) -> wire::Entry {
    let servers = found.servers.iter().map(|one| server(one, one.address.with_suffix(&found.suffix))).collect();
    entry(found.name.clone(), servers, found.has_children)
}

/// The mount of a request.
///
/// # Errors
/// `BAD_ADDRESS`; `BAD_REQUEST` when both flags are set.
pub(super) fn mount(message: &wire::MountRequest) -> Result<Mount, Error> {
    if message.serves_mount_table && message.is_leaf {
        return Err(Error::new(Reason::BadRequest, "a mount table cannot be a leaf"));
    }
    Ok(Mount {
        address: message.server.parse()?,
        target: Target::from(TargetFlags { serves_mount_table: message.serves_mount_table, is_leaf: message.is_leaf }),
        ttl: Duration::from_millis(message.ttl_millis),
        mode: if message.replace { MountMode::Replace } else { MountMode::Add },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T116
    #[test]
    fn an_answer_says_that_it_is_old() {
        let caller = Caller::new(Vec::new(), &[]);
        for (freshness, stale) in [(Freshness::Recent, false), (Freshness::Stale, true)] {
            let found = Resolved { servers: Vec::new(), suffix: "x".to_owned(), freshness };
            assert_eq!(resolved(&found, &caller, 0).stale, stale);
        }
    }
}
