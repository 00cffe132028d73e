//! Files as etcd keys, transactions as etcd transactions.

use bytes::Bytes;
use etcd_client::{
    Compare as Condition, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, ResponseHeader, Txn, TxnOp,
};

use super::member::Member;
use super::members::{Members, RetryPolicy};
use super::{CALL_TIMEOUT, signed, unsigned};
use crate::{Compare, Error, File, LeaseId, Revision, TransactionOutcome, Write};

/// A path that no file has.
const NO_SUCH_PATH: &str = "";

/// Maps paths to keys: one prefix before each.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// The key of a path; for a prefix of paths, the prefix of their keys.
    pub(super) fn key(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// The path of a key; `None` for a key outside of the prefix.
    pub(super) fn path(&self, key: &[u8]) -> Option<String> {
        Some(std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.to_owned())
    }

    /// The file stored under a key.
    pub(super) fn file(&self, kv: &KeyValue) -> Option<File> {
        let path = self.path(kv.key())?;
        let lease = (kv.lease() != 0).then(|| LeaseId::new(unsigned(kv.lease())));
        let (created, modified) = (unsigned(kv.create_revision()), unsigned(kv.mod_revision()));
        let value = Bytes::copy_from_slice(kv.value());
        Some(File { path, value, created: Revision::new(created), modified: Revision::new(modified), lease })
    }

    fn conditions(&self, compare: &Compare) -> Vec<Condition> {
        let created = |path: &str, how, at| Condition::create_revision(self.key(path), how, at);
        let exists = |path| created(path, CompareOp::Greater, 0);
        match compare {
            Compare::Absent(path) => vec![created(path, CompareOp::Equal, 0)],
            Compare::Exists(path) => vec![exists(path)],
            // etcd gives a missing key the revision 0; here a missing file has no revision.
            Compare::Modified(path, at) => {
                let modified = Condition::mod_revision(self.key(path), CompareOp::Equal, signed(at.get()));
                vec![exists(path), modified]
            }
            Compare::Created(path, at) => {
                vec![exists(path), created(path, CompareOp::Equal, signed(at.get()))]
            }
            // Without a key in the range etcd compares with revision 0, which is earlier than any.
            Compare::Unchanged(prefix, at) => {
                let after = signed(at.get()).saturating_add(1);
                vec![Condition::mod_revision(self.key(prefix), CompareOp::Less, after).with_prefix()]
            }
        }
    }

    fn operation(&self, write: &Write) -> TxnOp {
        match write {
            Write::Put { path, value, lease } => {
                let options = lease.map(|lease| PutOptions::new().with_lease(signed(lease.get())));
                TxnOp::put(self.key(path), value.to_vec(), options)
            }
            Write::Delete { path } => TxnOp::delete(self.key(path), None),
        }
    }
}

/// The revision of a response.
pub(super) fn revision(header: Option<&ResponseHeader>) -> Revision {
    Revision::new(header.map_or(0, |header| unsigned(header.revision())))
}

async fn get(members: &Members, key: &str, options: &GetOptions) -> Result<GetResponse, Error> {
    let call = |member: Member| member.get(key.to_owned(), options.clone());
    members.call(RetryPolicy::Always, CALL_TIMEOUT, call).await
}

/// Reads one file.
pub(super) async fn read(members: &Members, keys: &Keys, path: &str) -> Result<Option<File>, Error> {
    let answer = get(members, &keys.key(path), &GetOptions::new()).await?;
    Ok(answer.kvs().first().and_then(|kv| keys.file(kv)))
}

/// Lists the files under a prefix, and the revision of the list. etcd sorts by key.
pub(super) async fn list(members: &Members, keys: &Keys, prefix: &str) -> Result<(Vec<File>, Revision), Error> {
    let answer = get(members, &keys.key(prefix), &GetOptions::new().with_prefix()).await?;
    Ok((answer.kvs().iter().filter_map(|kv| keys.file(kv)).collect(), revision(answer.header())))
}

/// The current revision of the store, confirmed by a majority.
pub(super) async fn now(members: &Members, keys: &Keys) -> Result<Revision, Error> {
    get(members, &keys.key(NO_SUCH_PATH), &GetOptions::new()).await.map(|answer| revision(answer.header()))
}

/// Commits a transaction, always through etcd's log. A transaction without writes would be answered from the member's
/// own state, which may be stale, so it deletes a key that never exists.
pub(super) async fn transact(
    members: &Members,
    keys: &Keys,
    compares: &[Compare],
    writes: Vec<Write>,
) -> Result<TransactionOutcome, Error> {
    let (retry, operations) = if writes.is_empty() {
        (RetryPolicy::Always, vec![keys.operation(&Write::delete(NO_SUCH_PATH))])
    } else {
        (RetryPolicy::IfNotSent, writes.iter().map(|write| keys.operation(write)).collect())
    };
    let conditions: Vec<_> = compares.iter().flat_map(|compare| keys.conditions(compare)).collect();
    let txn = Txn::new().when(conditions).and_then(operations);
    let answer = members.call(retry, CALL_TIMEOUT, |member: Member| member.txn(txn.clone())).await?;
    Ok(if answer.succeeded() {
        TransactionOutcome::Committed(revision(answer.header()))
    } else {
        TransactionOutcome::Conflict
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_another_prefix_is_not_a_file() {
        let keys = Keys::new("/ebla/");
        assert_eq!(keys.path(keys.key("servers/3").as_bytes()).as_deref(), Some("servers/3"));
        assert_eq!(keys.path(b"/other/servers/3"), None);
        assert_eq!(keys.path(b"/ebla/\xff"), None);
    }
}
