//! Files as etcd's keys, transactions as etcd's.

use bytes::Bytes;
use ebla_proto::etcd::{
    Compare as Condition, CompareResult, CompareTarget, DeleteRangeRequest, KeyValue, Member, Operand, Operation,
    PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader, TxnRequest,
};

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

    fn key(&self, path: &str) -> Bytes {
        format!("{}{path}", self.prefix).into()
    }

    /// The keys of all paths that begin with `prefix`, as `[first, end)`.
    pub(super) fn range(&self, prefix: &str) -> (Bytes, Bytes) {
        let key = self.key(prefix);
        let end = prefix_end(&key);
        (key, end)
    }

    /// The file that a key holds; `None` for a key that is none of ours.
    pub(super) fn file(&self, kv: KeyValue) -> Option<File> {
        let path = std::str::from_utf8(&kv.key).ok()?.strip_prefix(&self.prefix)?.to_owned();
        let lease = (kv.lease != 0).then(|| LeaseId::new(unsigned(kv.lease)));
        let (created, modified) = (unsigned(kv.create_revision), unsigned(kv.mod_revision));
        Some(File { path, value: kv.value, created: Revision::new(created), modified: Revision::new(modified), lease })
    }

    fn condition(&self, compare: &Compare) -> Vec<Condition> {
        let condition = |path: &str, result: CompareResult, operand: Operand| {
            let target = match operand {
                Operand::CreateRevision(_) => CompareTarget::Create,
                Operand::ModRevision(_) => CompareTarget::Mod,
            };
            let (result, target) = (result.into(), target.into());
            Condition { result, target, key: self.key(path), target_union: Some(operand) }
        };
        let exists = |path| condition(path, CompareResult::Greater, Operand::CreateRevision(0));
        match compare {
            Compare::Absent(path) => vec![condition(path, CompareResult::Equal, Operand::CreateRevision(0))],
            Compare::Exists(path) => vec![exists(path)],
            // etcd calls the revisions of a missing key 0; here a missing file has none.
            Compare::Modified(path, at) => {
                vec![exists(path), condition(path, CompareResult::Equal, Operand::ModRevision(signed(at.get())))]
            }
            Compare::Created(path, at) => {
                vec![exists(path), condition(path, CompareResult::Equal, Operand::CreateRevision(signed(at.get())))]
            }
        }
    }

    fn operation(&self, write: Write) -> RequestOp {
        let request = match write {
            Write::Put { path, value, lease } => {
                let lease = lease.map_or(0, |lease| signed(lease.get()));
                Operation::Put(PutRequest { key: self.key(&path), value, lease })
            }
            Write::Delete { path } => Operation::DeleteRange(DeleteRangeRequest { key: self.key(&path) }),
        };
        RequestOp { request: Some(request) }
    }
}

/// The first key after all that begin with `prefix`.
fn prefix_end(prefix: &[u8]) -> Bytes {
    let kept = prefix.iter().rposition(|&byte| byte < u8::MAX).map_or(0, |at| at.saturating_add(1));
    let mut end = prefix.get(..kept).unwrap_or_default().to_vec();
    match end.last_mut() {
        Some(last) => *last = last.saturating_add(1),
        // No key is above a prefix of nothing but 0xff: etcd writes "to the end of all keys" as one zero byte.
        None => end.push(0),
    }
    end.into()
}

/// The revision of an answer.
pub(super) fn revision(header: Option<ResponseHeader>) -> Revision {
    Revision::new(header.map_or(0, |header| unsigned(header.revision)))
}

async fn range(members: &Members, key: Bytes, range_end: Bytes) -> Result<RangeResponse, Error> {
    let request = RangeRequest { key, range_end };
    let call = |member: Member| {
        let request = request.clone();
        async move { member.range(request).await }
    };
    members.ask(Repeat::Freely, BOUND, call).await
}

/// One file.
pub(super) async fn read(members: &Members, keys: &Keys, path: &str) -> Result<Option<File>, Error> {
    let answer = range(members, keys.key(path), Bytes::new()).await?;
    Ok(answer.kvs.into_iter().next().and_then(|kv| keys.file(kv)))
}

/// All files under a prefix, and as of when. etcd answers in order of keys.
pub(super) async fn list(members: &Members, keys: &Keys, prefix: &str) -> Result<(Vec<File>, Revision), Error> {
    let (key, range_end) = keys.range(prefix);
    let answer = range(members, key, range_end).await?;
    Ok((answer.kvs.into_iter().filter_map(|kv| keys.file(kv)).collect(), revision(answer.header)))
}

/// The revision of the store now, as a majority sees it.
pub(super) async fn now(members: &Members, keys: &Keys) -> Result<Revision, Error> {
    range(members, keys.key(""), Bytes::new()).await.map(|answer| revision(answer.header))
}

/// A transaction. Always one that goes through etcd's log: one without changes would be answered from what the member
/// happens to know, which may be old, so it deletes the one key that is never there.
pub(super) async fn transact(
    members: &Members,
    keys: &Keys,
    compares: &[Compare],
    writes: Vec<Write>,
) -> Result<Outcome, Error> {
    let (repeat, success) = if writes.is_empty() {
        (Repeat::Freely, vec![keys.operation(Write::delete(NOWHERE))])
    } else {
        (Repeat::IfUnsent, writes.into_iter().map(|write| keys.operation(write)).collect())
    };
    let compare = compares.iter().flat_map(|compare| keys.condition(compare)).collect();
    let request = TxnRequest { compare, success };
    let call = |member: Member| {
        let request = request.clone();
        async move { member.txn(request).await }
    };
    let answer = members.ask(repeat, BOUND, call).await?;
    Ok(if answer.succeeded { Outcome::Done(revision(answer.header)) } else { Outcome::Conflict })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_behind_all_that_begin_with_it() {
        assert_eq!(prefix_end(b"/ebla/s"), "/ebla/t");
        assert_eq!(prefix_end(b"a\xff\xff"), "b");
        assert_eq!(prefix_end(b"\xff"), Bytes::from_static(b"\0"));
        assert_eq!(prefix_end(b""), Bytes::from_static(b"\0"));
    }

    #[test]
    fn a_key_of_another_prefix_is_no_file() {
        let keys = Keys::new("/ebla/");
        let kv = |key: &'static [u8]| KeyValue { key: Bytes::from_static(key), lease: 7, ..Default::default() };
        let file = keys.file(kv(b"/ebla/servers/3")).unwrap();
        assert_eq!((file.path.as_str(), file.lease), ("servers/3", Some(LeaseId::new(7))));
        assert_eq!(keys.file(kv(b"/other/servers/3")), None);
        assert_eq!(keys.file(kv(b"/ebla/\xff")), None);
    }
}
