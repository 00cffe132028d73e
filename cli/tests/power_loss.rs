//! Power losses of a whole `ebla up` on a real file system, under a verifying load: everything that was acknowledged is there afterwards.
//!
//! The data folder is on ext4 on a loop device. `EXT4_IOC_SHUTDOWN` without a flush of the journal ends the file system as a power loss
//! does: what was not synced is gone, file names and lengths too. A kill leaves all of that in the page cache, so kills alone cannot show a
//! missing sync. Needs root.
//!
//! `EBLA_POWER_LOSSES` sets the number of rounds (8 when unset).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ebla_model::schema::TableName;
use ebla_runtime::{Clock, Runtime};
use ebla_workload::verify::{Load, Plan, create_table, endpoints};

use crate::support::{self, Up, run};

/// `ioctl(folder, EXT4_IOC_SHUTDOWN, &EXT4_GOING_FLAGS_NOLOGFLUSH)`; the number is `_IOR('X', 125, __u32)`.
const SHUTDOWN: &str =
    "import fcntl,os,struct,sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

/// Timeout until nothing uses the file system after it was unmounted.
const RELEASED_MAX: Duration = Duration::from_secs(30);

/// A file system on a loop device, unmounted when dropped.
struct Ext4 {
    image: PathBuf,
    at: PathBuf,
}

impl Ext4 {
    /// A new file system of two sparse gibibytes, mounted.
    ///
    /// # Errors
    /// Which command failed: without root nothing can be mounted.
    fn create(folder: &Path) -> Result<Self, String> {
        let disk = Self { image: folder.join("image"), at: folder.join("disk") };
        std::fs::create_dir(&disk.at).unwrap();
        std::fs::File::create(&disk.image).unwrap().set_len(2 << 30).unwrap();
        succeeds(Command::new("/sbin/mkfs.ext4").arg("-q").arg(&disk.image))?;
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<(), String> {
        succeeds(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.at))
    }

    fn data(&self) -> PathBuf {
        self.at.join("data")
    }

    /// Nothing reaches the disk from now on, and every call fails.
    fn cut_power(&self) {
        succeeds(Command::new("python3").args(["-c", SHUTDOWN]).arg(&self.at)).unwrap();
    }

    /// Mounts what was on the disk. No process may use the file system.
    fn restore_power(&self) {
        succeeds(Command::new("umount").arg(&self.at)).unwrap();
        self.wait_until_released();
        self.mount().unwrap();
    }

    /// Returns when the loop device is free. A container that starts has a copy of all mounts for a moment; until it has dropped them the file system
    /// exists, and a mount would return the one without power again.
    fn wait_until_released(&self) {
        let clock = Clock::system();
        let deadline = clock.monotonic() + RELEASED_MAX;
        loop {
            let devices = Command::new("/sbin/losetup").arg("--associated").arg(&self.image).output().unwrap();
            assert!(devices.status.success(), "{devices:?}");
            if devices.stdout.is_empty() {
                return;
            }
            assert!(clock.monotonic() < deadline, "still in use: {}", String::from_utf8_lossy(&devices.stdout));
            support::pause();
        }
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.at).status());
    }
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let failure = || format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    output.status.success().then_some(()).ok_or_else(failure)
}

#[test]
fn power_losses_of_the_whole_cluster_lose_nothing_that_was_acknowledged() {
    let rounds: u64 = std::env::var("EBLA_POWER_LOSSES").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let folder = tempfile::tempdir().unwrap();
    match Ext4::create(folder.path()) {
        Ok(disk) => support::block_on(power_losses(&disk, rounds)),
        Err(reason) => eprintln!("skipped: no file system could be mounted: {reason}"),
    }
}

async fn power_losses(disk: &Ext4, rounds: u64) {
    let runtime = Runtime::system("power");
    let table = TableName::from_parts("test", "test", "verified").unwrap();
    let start = || Up::start(&disk.data(), &["--disk-reserve", "64M"]);
    let mut up = start();
    let plan = Plan::default();
    create_table(&up.addresses[0], &table, plan.slots, &runtime).await.unwrap();
    let mut load = Load::new(plan, &runtime);
    let (mut unknown, mut slowest_start) = (0, Duration::ZERO);
    for round in 0..rounds {
        let running = load.start(&endpoints(&up.addresses, &table, &runtime)).await.unwrap();
        let before = load.acknowledged();
        while running.acknowledged() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(runtime.rng.jitter(Duration::from_millis(800))).await;
        // Chubby's journal is on the same disk.
        run(&up.addresses[0], &["table", "create", &format!("round-{round}"), "--family", "f"]);
        disk.cut_power();
        up.kill();
        unknown += load.finish(running).await.unknown;
        disk.restore_power();
        up = start();
        slowest_start = slowest_start.max(up.took());
        let tables = run(&up.addresses[0], &["table", "list"]);
        for created in 0..=round {
            assert!(
                tables.contains(&format!("round-{created}")),
                "power loss {round}: round-{created} is lost: {tables}"
            );
        }
        let one = &up.addresses[(round % 3) as usize..][..1];
        let report = load.check(&endpoints(one, &table, &runtime)).await.unwrap();
        assert!(report.is_good(), "after power loss {round}\n{}", report.text());
    }
    println!(
        "{rounds} power losses: {} writes acknowledged, {unknown} unknown, no anomalies; slowest start {slowest_start:?}",
        load.acknowledged()
    );
}
