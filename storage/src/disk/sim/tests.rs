//! What the disk in memory keeps and loses.

use super::*;

fn written(disk: &SimDisk, name: &str, fill: u8) -> Arc<dyn DiskFile> {
    let file = disk.create(name).unwrap();
    file.write_at(0, &[fill; 4 * SECTOR]).unwrap();
    file
}

#[test]
fn what_was_synced_survives_and_what_was_not_may_not() {
    let (disk, rng) = (SimDisk::new(), Rng::seeded(1));
    let file = written(&disk, "a", 1);
    file.sync().unwrap();
    disk.sync_dir().unwrap();
    file.write_at(0, &[2; SECTOR]).unwrap();
    written(&disk, "b", 3);
    disk.power_cut(Loss::All, &rng);
    assert_eq!(disk.content("a").unwrap(), [1; 4 * SECTOR]);
    assert_eq!(disk.content("b"), None);
    assert!(file.sync().is_err(), "a handle from before the power cut fails");
}

#[test]
fn a_write_through_is_durable_at_its_return() {
    let (disk, rng) = (SimDisk::new(), Rng::seeded(1));
    written(&disk, "a", 1);
    disk.sync_dir().unwrap();
    disk.open("a", Durability::OnWrite).unwrap().write_at(0, &[2; SECTOR]).unwrap();
    disk.power_cut(Loss::All, &rng);
    assert_eq!(disk.content("a").unwrap(), [2; SECTOR]);
}

#[test]
fn a_torn_write_keeps_any_subset_of_its_sectors() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let (disk, rng) = (SimDisk::new(), Rng::seeded(seed));
        let file = written(&disk, "a", 0);
        file.sync().unwrap();
        disk.sync_dir().unwrap();
        disk.arm(1, Fault::PowerFails);
        assert!(file.write_at(0, &[1; 4 * SECTOR]).is_err());
        disk.power_cut(Loss::Some, &rng);
        let firsts: Vec<u8> = disk.content("a").unwrap().chunks(SECTOR).map(|sector| sector[0]).collect();
        outcomes.insert(firsts);
    }
    assert_eq!(outcomes.len(), 16);
}

#[test]
fn a_failed_sync_leaves_pages_that_no_later_sync_saves() {
    let (disk, rng) = (SimDisk::new(), Rng::seeded(1));
    let file = written(&disk, "a", 1);
    disk.sync_dir().unwrap();
    disk.arm(1, Fault::SyncFails);
    assert!(file.sync().is_err());
    assert_eq!(disk.content("a").unwrap(), [1; 4 * SECTOR], "still readable");
    file.sync().unwrap();
    disk.power_cut(Loss::Nothing, &rng);
    assert_eq!(disk.content("a").unwrap(), []);
}

#[test]
fn of_unsynced_names_a_prefix_survives() {
    let (disk, rng) = (SimDisk::new(), Rng::seeded(3));
    written(&disk, "a", 1).sync().unwrap();
    disk.sync_dir().unwrap();
    disk.rename("a", "b").unwrap();
    disk.rename("b", "c").unwrap();
    disk.power_cut(Loss::Some, &rng);
    assert_eq!(disk.list().unwrap().len(), 1);
}

#[test]
fn a_flip_changes_one_bit_of_the_sector() {
    let (disk, rng) = (SimDisk::new(), Rng::seeded(1));
    written(&disk, "a", 0).sync().unwrap();
    assert!(disk.flip_bit("a", 2, &rng));
    assert!(!disk.flip_bit("a", 9, &rng));
    let ones: Vec<u32> = disk.content("a").unwrap().chunks(SECTOR).map(ones_in).collect();
    assert_eq!(ones, [0, 0, 1, 0]);
}

fn ones_in(bytes: &[u8]) -> u32 {
    bytes.iter().map(|byte| byte.count_ones()).sum()
}

#[test]
fn on_a_full_disk_files_do_not_grow_and_their_bytes_can_be_overwritten() {
    let disk = SimDisk::new();
    let file = written(&disk, "a", 1);
    disk.fill();
    let full = |outcome: io::Result<()>| outcome.unwrap_err().kind() == io::ErrorKind::StorageFull;
    assert!(full(file.write_at(4 * SECTOR as u64 - 1, &[2; 2])));
    assert!(full(disk.create("b").map(drop)));
    let expected = [vec![1; 4 * SECTOR - 1], vec![2]].concat();
    assert_eq!((disk.content("a").unwrap(), disk.content("b")), (expected, None), "what has room is written");
    file.write_at(0, &[2; SECTOR]).unwrap();
    file.sync().unwrap();
    disk.make_room();
    file.write_at(4 * SECTOR as u64, &[3; SECTOR]).unwrap();
    assert_eq!(file.len().unwrap(), 5 * SECTOR as u64);
}

#[test]
fn settled_bytes_are_those_before_the_last_two_writes() {
    let disk = SimDisk::new();
    let file = written(&disk, "a", 1);
    assert_eq!(disk.settled_bytes("a"), 0);
    file.write_at(4 * SECTOR as u64, &[2; SECTOR]).unwrap();
    file.write_at(5 * SECTOR as u64, &[2; SECTOR]).unwrap();
    assert_eq!(disk.settled_bytes("a"), 4 * SECTOR);
    file.write_at(0, &[3; SECTOR]).unwrap();
    assert_eq!((disk.settled_bytes("a"), disk.settled_bytes("b")), (0, 0));
}

#[test]
fn an_erased_disk_is_empty_and_its_handles_fail() {
    let disk = SimDisk::new();
    let file = written(&disk, "a", 1);
    disk.erase();
    assert!(disk.list().unwrap().is_empty() && file.sync().is_err());
    written(&disk, "a", 2).sync().unwrap();
}
