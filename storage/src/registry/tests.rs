//! The registry on a real folder: its state after a crash at each point, and the calls that it rejects.

use ebla_model::id::{ClusterId, LogIndex, ServerId, Term};
use ebla_runtime::Rng;
use tempfile::TempDir;

use super::state::tests::{group, sealed};
use super::*;
use crate::disk::SimDisk;
use crate::disk::sim::{Fault, Loss};

fn identity(server: u64) -> Identity {
    Identity { cluster: ClusterId::new(7), server: ServerId::new(server) }
}

fn make_folder(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::write(path.join("data"), b"content").unwrap();
}

fn create(registry: &Registry, number: u64, replica: u64) -> PathBuf {
    make_folder(&registry.begin_create(group(number, replica), ReplicaOrigin::Empty).unwrap());
    registry.finish_create(group(number, replica)).unwrap()
}

#[test]
fn everything_is_there_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let path = {
        let registry = Registry::open(dir.path()).unwrap();
        registry.set_identity(identity(3)).unwrap();
        registry.accept_epoch(MasterEpoch::new(9)).unwrap();
        registry.record_segment(4).unwrap();
        registry.record_segment(2).unwrap();
        create(&registry, 5, 1)
    };
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(registry.identity(), Some(identity(3)));
    assert_eq!(registry.epoch(), MasterEpoch::new(9));
    assert_eq!(registry.last_segment(), 4);
    assert_eq!(registry.path(group(5, 1)), Some(path.clone()));
    assert!(path.join("data").is_file());
}

#[test]
fn a_folder_has_one_user_and_one_identity() {
    let dir = TempDir::new().unwrap();
    let registry = Registry::open(dir.path()).unwrap();
    assert!(matches!(Registry::open(dir.path()), Err(RegistryError::InUse(_))));
    registry.set_identity(identity(3)).unwrap();
    registry.set_identity(identity(3)).unwrap();
    assert!(matches!(registry.set_identity(identity(4)), Err(RegistryError::Foreign(_))));
}

#[test]
fn requests_of_an_earlier_master_are_refused() {
    let dir = TempDir::new().unwrap();
    let registry = Registry::open(dir.path()).unwrap();
    registry.accept_epoch(MasterEpoch::new(9)).unwrap();
    registry.accept_epoch(MasterEpoch::new(9)).unwrap();
    let refused = registry.accept_epoch(MasterEpoch::new(8)).unwrap_err();
    assert!(matches!(refused, RegistryError::StaleEpoch { .. }));
    assert_eq!(refused.kind(), ErrorKind::GiveUp);
    assert_eq!(registry.epoch(), MasterEpoch::new(9));
}

#[test]
fn a_removed_replica_never_lives_again() {
    let dir = TempDir::new().unwrap();
    let registry = Registry::open(dir.path()).unwrap();
    let path = create(&registry, 5, 1);
    assert!(matches!(registry.begin_create(group(5, 1), ReplicaOrigin::Empty), Err(RegistryError::Exists(_))));
    registry.remove(group(5, 1)).unwrap();
    assert!(!path.exists());
    drop(registry);
    let registry = Registry::open(dir.path()).unwrap();
    assert!(registry.is_removed(group(5, 1)));
    assert!(matches!(registry.begin_create(group(5, 1), ReplicaOrigin::Empty), Err(RegistryError::Removed(_))));
    registry.remove(group(5, 1)).unwrap();
    create(&registry, 5, 2);
}

#[test]
fn a_replica_that_never_existed_can_be_removed() {
    let dir = TempDir::new().unwrap();
    let registry = Registry::open(dir.path()).unwrap();
    registry.remove(group(8, 2)).unwrap();
    assert!(registry.is_removed(group(8, 2)));
}

#[test]
fn a_creation_interrupted_before_its_rename_is_undone() {
    let dir = TempDir::new().unwrap();
    let temporary = {
        let registry = Registry::open(dir.path()).unwrap();
        let temporary = registry.begin_create(group(5, 1), ReplicaOrigin::Empty).unwrap();
        make_folder(&temporary);
        temporary
    };
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(registry.replica(group(5, 1)), None);
    assert!(!temporary.exists());
    create(&registry, 5, 1);
}

#[test]
fn a_creation_interrupted_after_its_rename_is_live() {
    let dir = TempDir::new().unwrap();
    {
        let registry = Registry::open(dir.path()).unwrap();
        let temporary = registry.begin_create(group(5, 1), ReplicaOrigin::Empty).unwrap();
        make_folder(&temporary);
        registry.publish_folder("g5-r1").unwrap();
    }
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(registry.replica(group(5, 1)).unwrap().state, ReplicaState::Live);
}

#[test]
fn an_installation_replaces_the_folder() {
    let dir = TempDir::new().unwrap();
    let last = LogId { term: Term::new(2), index: LogIndex::new(70) };
    let registry = Registry::open(dir.path()).unwrap();
    let old = create(&registry, 5, 1);
    for _ in 0..2 {
        make_folder(&registry.begin_install(group(5, 1)).unwrap());
        registry.finish_install(group(5, 1), last).unwrap();
    }
    let path = registry.path(group(5, 1)).unwrap();
    assert_eq!(path.file_name().unwrap(), "g5-r1.2");
    assert!(path.join("data").is_file());
    assert!(!old.exists());
    drop(registry);
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(registry.replica(group(5, 1)).unwrap().installed, Some(last));
    assert_eq!(folder_names(&dir.path().join(GROUPS)).unwrap().len(), 1);
}

#[test]
fn an_installation_interrupted_before_it_was_recorded_leaves_the_old_folder() {
    let dir = TempDir::new().unwrap();
    let old = {
        let registry = Registry::open(dir.path()).unwrap();
        let old = create(&registry, 5, 1);
        make_folder(&registry.begin_install(group(5, 1)).unwrap());
        registry.publish_folder("g5-r1.1").unwrap();
        old
    };
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(registry.path(group(5, 1)), Some(old));
    assert!(dir.path().join(LOST_AND_FOUND).join("g5-r1.1.0").join("data").is_file());
}

#[test]
fn unknown_folders_are_moved_to_lost_and_found_and_not_deleted() {
    let dir = TempDir::new().unwrap();
    drop(Registry::open(dir.path()).unwrap());
    for round in 0..2 {
        make_folder(&dir.path().join(GROUPS).join("unknown"));
        drop(Registry::open(dir.path()).unwrap());
        let aside = dir.path().join(LOST_AND_FOUND).join(format!("unknown.{round}"));
        assert!(aside.join("data").is_file());
    }
}

#[test]
fn a_live_replica_without_its_folder_is_quarantined() {
    let dir = TempDir::new().unwrap();
    let path = create(&Registry::open(dir.path()).unwrap(), 5, 1);
    fs::remove_dir_all(path).unwrap();
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(registry.replica(group(5, 1)).unwrap().state, ReplicaState::Quarantined);
}

#[test]
fn the_error_of_a_damaged_registry_asks_for_a_new_server() {
    let dir = TempDir::new().unwrap();
    drop(Registry::open(dir.path()).unwrap());
    let path = dir.path().join(FILE);
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = Registry::open(dir.path()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::GiveUp);
    assert!(error.to_string().contains("as a new server"), "{error}");
}

#[test]
fn a_folder_of_a_later_release_is_refused_and_stays_as_it_is() {
    let dir = TempDir::new().unwrap();
    let folder = create(&Registry::open(dir.path()).unwrap(), 5, 1);
    let path = dir.path().join(FILE);
    let later = sealed(b"ebla-registry 2\nwhatever a later release writes\n");
    fs::write(&path, &later).unwrap();
    let error = Registry::open(dir.path()).err().unwrap();
    assert!(matches!(error, RegistryError::LaterFormat { format: 2, .. }), "{error}");
    assert!(!error.to_string().contains("move"), "nothing is lost: {error}");
    assert_eq!(fs::read(&path).unwrap(), later);
    assert!(folder.join("data").is_file());
}

#[test]
fn a_missing_registry_beside_data_is_damage() {
    let dir = TempDir::new().unwrap();
    create(&Registry::open(dir.path()).unwrap(), 5, 1);
    fs::remove_file(dir.path().join(FILE)).unwrap();
    assert!(matches!(Registry::open(dir.path()), Err(RegistryError::Damaged { .. })));
}

#[test]
fn after_a_failed_write_nothing_more_is_accepted() {
    let dir = TempDir::new().unwrap();
    let registry = Registry::open(dir.path()).unwrap();
    // A folder where the new file would be written makes the write fail.
    fs::create_dir(dir.path().join("registry.new")).unwrap();
    assert!(matches!(registry.record_segment(1), Err(RegistryError::Io { .. })));
    fs::remove_dir(dir.path().join("registry.new")).unwrap();
    assert!(matches!(registry.record_segment(1), Err(RegistryError::Failed)));
    assert_eq!(registry.last_segment(), 0);
}

/// The registry's file on a simulated disk.
fn open_on(disk: &SimDisk, dir: &TempDir) -> Result<Registry, RegistryError> {
    Registry::open_on(Arc::new(disk.clone()), dir.path())
}

#[test]
fn a_full_disk_refuses_a_change_and_not_the_next_one() {
    let (dir, disk) = (TempDir::new().unwrap(), SimDisk::new());
    let registry = open_on(&disk, &dir).unwrap();
    disk.fill();
    assert!(matches!(registry.record_segment(1), Err(RegistryError::Lacking { .. })));
    assert_eq!(registry.record_segment(1).unwrap_err().kind(), Reason::ResourceExhausted.kind());
    disk.make_room();
    registry.record_segment(2).unwrap();
    drop(registry);
    disk.fill();
    assert!(matches!(open_on(&disk, &dir), Err(RegistryError::Lacking { .. })), "a start writes the registry");
    disk.make_room();
    assert_eq!(open_on(&disk, &dir).unwrap().last_segment(), 2);
}

#[test]
fn a_failure_is_reported_once() {
    let (dir, disk) = (TempDir::new().unwrap(), SimDisk::new());
    let registry = open_on(&disk, &dir).unwrap();
    let failures = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&failures);
    registry.set_failure_callback(move |error| reported.lock().push(error.to_string()));
    disk.arm(2, Fault::SyncFails);
    assert!(matches!(registry.record_segment(1), Err(RegistryError::Io { .. })));
    assert!(matches!(registry.record_segment(1), Err(RegistryError::Failed)));
    assert_eq!(failures.lock().len(), 1, "{failures:?}");
}

/// A power cut in each operation of a change, with each loss: the registry has the state before or after it, and after it once it has returned.
#[test]
fn a_power_cut_at_any_operation_leaves_the_old_or_the_new_registry() {
    for seed in 0..400 {
        let rng = Rng::seeded(seed);
        let (dir, disk) = (TempDir::new().unwrap(), SimDisk::new());
        let mut durable = 0;
        let mut attempted = 0;
        for _ in 0..4 {
            let registry = open_on(&disk, &dir).unwrap();
            let found = registry.last_segment();
            assert!((durable..=attempted).contains(&found), "seed {seed}: {found}, {durable} was acknowledged");
            disk.arm(1 + rng.below(30), Fault::PowerFails);
            for segment in found + 1..found + 8 {
                attempted = segment;
                if registry.record_segment(segment).is_err() {
                    break;
                }
                durable = segment;
            }
            drop(registry);
            let losses = [Loss::All, Loss::Some, Loss::Garbage, Loss::Nothing];
            disk.power_cut(losses[usize::try_from(rng.below(4)).unwrap()], &rng);
        }
    }
}
