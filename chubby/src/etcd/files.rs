//! Files as etcd's keys, transactions as etcd's.

use bytes::Bytes;
use etcd_client::{
    Compare as Condition, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, ResponseHeader, Txn, TxnOp,
};

use super::member::Member;
use super::members::{Members, Repeat};
use super::{BOUND, signed, unsigned};
use crate::{Compare, Error, File, LeaseId, Outcome, Revision, Write};

/// The path that no file has.
const NOWHERE: &str = "";

/// How paths become keys: one prefix before all of them.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// The key of a path; of a prefix of paths, the prefix of their keys.
    pub(super) fn key(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// The path that a key stands for; `None` for a key that is none of ours.
    pub(super) fn path(&self, key: &[u8]) -> Option<String> {
        Some(std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.to_owned())
    }

    /// The file that a key holds.
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
            // etcd calls the revisions of a missing key 0; here a missing file has none.
            Compare::Modified(path, at) => {
                let modified = Condition::mod_revision(self.key(path), CompareOp::Equal, signed(at.get()));
                vec![exists(path), modified]
            }
            Compare::Created(path, at) => {
                vec![exists(path), created(path, CompareOp::Equal, signed(at.get()))]
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

/// The revision of an answer.
pub(super) fn revision(header: Option<&ResponseHeader>) -> Revision {
    Revision::new(header.map_or(0, |header| unsigned(header.revision())))
}

async fn get(members: &Members, key: &str, options: &GetOptions) -> Result<GetResponse, Error> {
    let call = |member: Member| member.get(key.to_owned(), options.clone());
    members.ask(Repeat::Freely, BOUND, call).await
}

/// One file.
pub(super) async fn read(members: &Members, keys: &Keys, path: &str) -> Result<Option<File>, Error> {
    let answer = get(members, &keys.key(path), &GetOptions::new()).await?;
    Ok(answer.kvs().first().and_then(|kv| keys.file(kv)))
}

/// All files under a prefix, and as of when. etcd answers in order of keys.
pub(super) async fn list(members: &Members, keys: &Keys, prefix: &str) -> Result<(Vec<File>, Revision), Error> {
    let answer = get(members, &keys.key(prefix), &GetOptions::new().with_prefix()).await?;
    Ok((answer.kvs().iter().filter_map(|kv| keys.file(kv)).collect(), revision(answer.header())))
}

/// The revision of the store now, as a majority sees it.
pub(super) async fn now(members: &Members, keys: &Keys) -> Result<Revision, Error> {
    get(members, &keys.key(NOWHERE), &GetOptions::new()).await.map(|answer| revision(answer.header()))
}

/// A transaction. Always one that goes through etcd's log: one without changes would be answered from what the member
/// happens to know, which may be old, so it deletes the one key that is never there.
pub(super) async fn transact(
    members: &Members,
    keys: &Keys,
    compares: &[Compare],
    writes: Vec<Write>,
) -> Result<Outcome, Error> {
    let (repeat, operations) = if writes.is_empty() {
        (Repeat::Freely, vec![keys.operation(&Write::delete(NOWHERE))])
    } else {
        (Repeat::IfUnsent, writes.iter().map(|write| keys.operation(write)).collect())
    };
    let conditions: Vec<_> = compares.iter().flat_map(|compare| keys.conditions(compare)).collect();
    let txn = Txn::new().when(conditions).and_then(operations);
    let answer = members.ask(repeat, BOUND, |member: Member| member.txn(txn.clone())).await?;
    Ok(if answer.succeeded() { Outcome::Done(revision(answer.header())) } else { Outcome::Conflict })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_another_prefix_is_no_file() {
        let keys = Keys::new("/ebla/");
        assert_eq!(keys.path(keys.key("servers/3").as_bytes()).as_deref(), Some("servers/3"));
        assert_eq!(keys.path(b"/other/servers/3"), None);
        assert_eq!(keys.path(b"/ebla/\xff"), None);
    }
}
