//! A small disk for the parked table, which can be full: a tmpfs, if mounting one is permitted. Otherwise a trigger
//! raises the same error as PostgreSQL does then (53100).

use crate::private::PrivatePostgres;
use crate::server::Client;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Size of the disk.
const MEBIBYTES: u32 = 48;

/// The disk, or the trigger that replaces it.
pub(crate) struct Disk {
    /// Mount point; `None` for the trigger.
    mounted: Option<PathBuf>,
}

impl Disk {
    /// Mounts the disk, and moves the parked table to it.
    pub(crate) async fn mount(dir: &Path, server: &PrivatePostgres, sql: &Client) -> Self {
        let place = dir.join("small");
        fs::create_dir_all(&place).expect("a directory");
        let (uid, gid) = server.owner();
        let options = format!("size={MEBIBYTES}m,mode=700,uid={uid},gid={gid}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&place)
            .stderr(Stdio::null())
            .status();
        if mount.is_ok_and(|status| status.success()) {
            let tablespace = place.join("space");
            fs::create_dir(&tablespace).expect("a directory");
            chown(&tablespace, Some(uid), Some(gid)).expect("the server's own directory");
            let create = format!("create tablespace small location '{}'", tablespace.display());
            sql.batch(&create).await;
            sql.batch("alter table postrider.parked set tablespace small").await;
            Self { mounted: Some(place) }
        } else {
            sql.batch(
                "create function full_disk() returns trigger language plpgsql as $$ begin \
                 raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$",
            )
            .await;
            Self { mounted: None }
        }
    }

    /// What the disk is, for the report.
    pub(crate) const fn words(&self) -> &'static str {
        if self.mounted.is_some() {
            "a tmpfs of 48 MiB, filled"
        } else {
            "a trigger that says 53100"
        }
    }

    /// Fills the disk.
    pub(crate) async fn fill(&self, sql: &Client) {
        if let Some(place) = &self.mounted {
            let mut file = fs::File::create(place.join("filler")).expect("a file");
            let zeroes = vec![0; 1 << 16];
            while file.write_all(&zeroes).is_ok() {}
        } else {
            let trigger = "create or replace trigger full_disk before insert on postrider.parked \
                           for each statement execute function full_disk()";
            drop(sql.batch_execute(trigger).await);
        }
    }

    /// Frees the disk.
    pub(crate) async fn empty(&self, sql: &Client) {
        if let Some(place) = &self.mounted {
            drop(fs::remove_file(place.join("filler")));
        } else {
            drop(sql.batch_execute("drop trigger if exists full_disk on postrider.parked").await);
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(place) = &self.mounted {
            drop(Command::new("umount").arg("-l").arg(place).status());
        }
    }
}
