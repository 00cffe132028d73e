//! Bytes of files that change on a disk: which ones, and when the damage is repaired.
//!
//! | file | bytes | the product's answer |
//! |---|---|---|
//! | segment of the commit log | a bit that a later durable batch follows, so that it cannot look like a torn tail | the groups are quarantined at the next start or read |
//! | table of a store | a byte | the replica is quarantined when a read, a compaction, the scrubber or the opening meets it |
//! | registry | a byte | the server does not start; its folder is emptied, as the error says, and a new server joins |
//!
//! One replica of a group is damaged at a time: the next damage waits until all groups have all their replicas and the damaged file does
//! not exist any more. A group that was created while servers were down has fewer replicas at first, and then nothing is damaged either: it
//! cannot do without any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ebla_model::id::{GroupId, ServerId};
use ebla_runtime::Rng;
use ebla_storage::disk::Disk;
use ebla_storage::disk::sim::SECTOR;
use ebla_storage::store::{Scrub, StoreError};
use ebla_tests::faults::fault::RottenFile;

use crate::cluster::{SimCluster, SimHost};

/// Batches of the commit log begin at multiples of this, and most end in the first sector: the rest is not read.
const BLOCK: usize = 4 << 10;
/// Changed bits of a table's byte.
const MASK: u8 = 0xA5;

/// A damaged file that may still exist, or whose replicas may not have been replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Damaged {
    /// A segment of the commit log of this server, by its number among the servers.
    Segment(usize, String),
    /// A table, by its inode: folders of a server share tables by hard links.
    Table(usize, u64),
    /// The registry, until the folder was emptied.
    Registry(usize),
}

/// Changes bytes of a file of a server, unless other damage is not repaired yet or a group has too few voters; returns the name of the file.
pub(crate) fn damage(cluster: &SimCluster, number: usize, file: RottenFile, rng: &Rng) -> Option<String> {
    let mut damaged = cluster.damaged.lock();
    if damaged.is_some() || !cluster.incomplete_groups.lock().is_empty() {
        return None;
    }
    let host = &cluster.servers[number];
    let (found, name) = match file {
        RottenFile::Log | RottenFile::LogTail => {
            let name = flip_in_log(host, file, rng)?;
            (Damaged::Segment(number, name.clone()), name)
        }
        RottenFile::Table => {
            let path = pick(&tables(&host.folder), rng)?.clone();
            let inode = path.metadata().ok()?.ino();
            flip(&path, rng)?;
            (Damaged::Table(number, inode), "table".to_owned())
        }
        RottenFile::Registry => {
            host.disk.flip_bit("registry", 0, rng).then_some(())?;
            host.has_rotten_registry.store(true, Ordering::Relaxed);
            (Damaged::Registry(number), "registry".to_owned())
        }
    };
    *damaged = Some(found);
    Some(name)
}

/// Allows the next damage once the last one is repaired. Called often: many files are damaged while their server is down, and then nothing is
/// known about its replicas.
pub(crate) fn forget_repaired(cluster: &SimCluster) {
    note_incomplete_groups(cluster);
    let mut damaged = cluster.damaged.lock();
    if damaged.as_ref().is_some_and(|damaged| !exists(cluster, damaged)) && is_whole(cluster) {
        *damaged = None;
    }
}

/// Notes which groups have too few voters by what the running replicas know. A group none of whose replicas runs stays as it was noted.
fn note_incomplete_groups(cluster: &SimCluster) {
    let full = cluster.servers.len().min(3);
    let mut incomplete = cluster.incomplete_groups.lock();
    let hosted = cluster.servers.iter().filter_map(|host| host.hosted());
    for group in hosted.flat_map(|hosted| hosted.groups()) {
        let is_complete = group.descriptor().membership.voters.iter().all(|voters| voters.len() >= full);
        if is_complete {
            incomplete.remove(&group.id());
        } else {
            incomplete.insert(group.id());
        }
    }
}

/// Empties the folder of a host whose registry cannot be read, as an operator does. Returns whether there was reason to.
pub(crate) fn empty(host: &SimHost) -> bool {
    let is_rotten = host.has_rotten_registry.swap(false, Ordering::Relaxed);
    if is_rotten {
        fs::remove_dir_all(&host.folder).unwrap();
        host.disk.erase();
    }
    is_rotten
}

fn exists(cluster: &SimCluster, damaged: &Damaged) -> bool {
    match damaged {
        Damaged::Segment(number, name) => cluster.servers[*number].disk.content(name).is_some(),
        Damaged::Table(number, inode) => {
            let tables = tables(&cluster.servers[*number].folder);
            tables.iter().any(|table| table.metadata().is_ok_and(|found| found.ino() == *inode))
        }
        Damaged::Registry(number) => cluster.servers[*number].has_rotten_registry.load(Ordering::Relaxed),
    }
}

/// Whether each group has all its replicas, all voters, on servers that run, and no server has another one. A damaged replica that stays,
/// because its group had no majority without it, is going to be replaced, also when its damaged file does not exist any more.
fn is_whole(cluster: &SimCluster) -> bool {
    let mut groups: BTreeMap<GroupId, BTreeSet<ServerId>> = BTreeMap::new();
    for host in &cluster.servers {
        let Some(hosted) = host.hosted() else { return false };
        let kept = hosted.scrub_results().state(Duration::ZERO).kept;
        if kept > 0 || !hosted.quarantined().is_empty() || !hosted.idle().is_empty() {
            return false;
        }
        for group in hosted.groups() {
            let membership = group.descriptor().membership;
            if membership.voters.len() != 1 || !membership.is_voter(group.replica()) {
                return false;
            }
            groups.entry(group.id()).or_default().insert(hosted.server());
        }
    }
    groups.values().all(|servers| servers.len() == cluster.servers.len().min(3))
}

/// The stores of running replicas that have damaged blocks, as text. They are read in place: a copy, as the scrubber makes one, would flush them, and
/// flushes lead to compactions.
pub(crate) fn damaged_stores(cluster: &SimCluster) -> Vec<String> {
    let mut found = Vec::new();
    for host in &cluster.servers {
        for group in host.hosted().iter().flat_map(|hosted| hosted.groups()) {
            // Other errors: a file was removed while the store was being opened.
            if let Err(error @ StoreError::Damaged { .. }) = Scrub::check(group.state_machine().store().dir()) {
                found.push(format!("the store of group {} on {} is in use: {error}", group.id(), host.name));
            }
        }
    }
    found
}

/// Flips a bit of a segment that a later durable batch follows; returns its name.
fn flip_in_log(host: &SimHost, file: RottenFile, rng: &Rng) -> Option<String> {
    let mut segments = host.disk.list().ok()?;
    segments.retain(|name| name.ends_with(".log"));
    segments.sort();
    let last = segments.last().cloned();
    if file == RottenFile::LogTail {
        segments.retain(|name| last.as_ref() == Some(name));
    }
    let settled_bytes = |name: &String| match host.disk.content(name) {
        Some(content) if last.as_ref() != Some(name) => content.len(),
        _ => host.disk.settled_bytes(name),
    };
    let candidates: Vec<(String, usize)> = segments
        .iter()
        .map(|name| (name.clone(), settled_bytes(name) / BLOCK))
        .filter(|(_name, blocks)| *blocks > 0)
        .collect();
    let (name, blocks) = pick(&candidates, rng)?;
    let block = usize::try_from(rng.below(*blocks as u64)).unwrap();
    host.disk.flip_bit(name, block * (BLOCK / SECTOR), rng).then(|| name.clone())
}

/// Changes a byte of a file.
fn flip(path: &Path, rng: &Rng) -> Option<()> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    let length = file.metadata().ok()?.len();
    if length == 0 {
        return None;
    }
    let at = rng.below(length);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).ok()?;
    file.write_all_at(&[byte[0] ^ MASK], at).ok()
}

/// The tables of all stores in a folder, sorted.
fn tables(folder: &Path) -> Vec<PathBuf> {
    let list = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut tables: Vec<PathBuf> = list(folder.join("groups")).flat_map(list).collect();
    tables.retain(|path| path.extension().is_some_and(|extension| extension == "sst"));
    tables.sort();
    tables
}

fn pick<'a, T>(all: &'a [T], rng: &Rng) -> Option<&'a T> {
    all.get(usize::try_from(rng.below(all.len() as u64)).unwrap())
}
