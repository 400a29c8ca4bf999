//! The disk of a replica, which can fill up, become slow, fail, or lose power.
//!
//! - Full: the data are on a separate small file system, where mounting is permitted, and a file
//!   takes all remaining space. The replica gets a real ENOSPC.
//! - Power cut: the file system is ext4 in an image on a loop device, where root may create one. It
//!   is shut down without writing its journal (`EXT4_IOC_SHUTDOWN`, NOLOGFLUSH) and mounted again,
//!   which loses all unsynced data. Elsewhere the data are on tmpfs or in a directory: `strace`
//!   delays every sync, the data are copied, and the copy replaces them ([`power`]).
//! - Slow and failing: `strace`, where it is installed and may attach, delays `fdatasync`, `fsync`
//!   and the writes of the process, or makes the syncs return EIO without effect. FUSE is not
//!   needed.
//!
//! This method cannot produce failing reads or short writes.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::process::{Child, Command};

use super::power::{self, Image, PowerCut, SIZE};

/// The maximum number of bytes that are written to fill a disk.
const FILL_MAX: u64 = 400 << 20;

/// The disk faults that are possible on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PossibleFaults {
    pub(crate) mount: bool,
    pub(crate) strace: bool,
    /// The method of a power cut, if there is one.
    pub(crate) power: Option<PowerCut>,
}

/// The faults of the syncs of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncFault {
    /// Syncs take longer.
    Slow(Duration),
    /// Syncs fail.
    Fail,
    /// Syncs do not return.
    Hold,
}

/// The disk of one replica.
#[derive(Debug)]
pub(crate) struct Disk {
    path: PathBuf,
    is_mounted: bool,
    /// The image of the file system, if its power can be cut.
    image: Option<Image>,
    strace: Option<Child>,
}

impl Disk {
    /// Mounts a separate file system, or uses a directory where mounting is not permitted.
    pub(crate) fn new(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        let image = Image::mounted_at(&path)?;
        let options = format!("size={SIZE},mode=700");
        let is_mounted = image.is_some()
            || power::succeeds(
                "mount",
                &["-t", "tmpfs", "-o", &options, "chancery-nemesis"],
                &path,
            );
        Ok(Self { path, is_mounted, image, strace: None })
    }

    /// Returns the faults that are possible on this machine.
    pub(crate) fn possible(&self) -> PossibleFaults {
        let mut strace = std::process::Command::new("strace");
        strace.args(["-e", "trace=none", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
        let strace = strace.status().is_ok_and(|status| status.success());
        let power = match (&self.image, strace) {
            (Some(_), _) => Some(PowerCut::Image),
            (None, true) => Some(PowerCut::Copy),
            (None, false) => None,
        };
        PossibleFaults { mount: self.is_mounted, strace, power }
    }

    /// Returns the directory of the disk.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the data while no sync can return. The copy contains all acknowledged writes.
    pub(crate) fn copy_synced(&self) -> Result<()> {
        copy(&self.data(), &self.synced())
    }

    /// Restores exactly the synced data after a power cut. No process may use the disk.
    pub(crate) async fn power_up(&mut self) -> Result<()> {
        if let Some(image) = &self.image {
            return image.mount_again(&self.path).await;
        }
        self.put_back()
    }

    /// Replaces the data by the copy. No process may use the data.
    pub(crate) fn put_back(&self) -> Result<()> {
        fs::remove_dir_all(self.data()).context("remove the data")?;
        fs::rename(self.synced(), self.data()).context("move the copy to the data directory")
    }

    fn synced(&self) -> PathBuf {
        self.path.join("synced")
    }

    /// Returns the data directory on the disk.
    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Fills the disk.
    pub(crate) fn fill(&self) -> Result<()> {
        ensure!(self.is_mounted, "{} is not a separate file system", self.path.display());
        let mut file = fs::File::options().create(true).append(true).open(self.filler())?;
        let mut piece = vec![1_u8; 256 << 10];
        let mut written = 0;
        while !piece.is_empty() && written < FILL_MAX {
            match file.write(&piece) {
                Ok(n @ 1..) => written += crate::stats::count(n),
                // The last pages need small pieces.
                _ => piece.truncate(piece.len() / 2),
            }
        }
        Ok(())
    }

    /// Removes the file that fills the disk.
    pub(crate) fn free(&self) -> Result<()> {
        match fs::remove_file(self.filler()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Starts a fault of the syncs of a process.
    pub(crate) fn start_sync_fault(&mut self, pid: u32, how: SyncFault) -> Result<()> {
        let (calls, what) = match how {
            SyncFault::Slow(by) => {
                ("fdatasync,fsync,pwrite64", format!("delay_enter={}", by.as_micros()))
            }
            SyncFault::Fail => ("fdatasync,fsync", "error=EIO".to_owned()),
            SyncFault::Hold => ("fdatasync,fsync", "delay_enter=30000000".to_owned()),
        };
        let child = Command::new("strace")
            .args(["-qq", "-f", "-p", &pid.to_string()])
            .args(["-e", &format!("trace={calls}"), "-e", "signal=none"])
            .args(["-e", &format!("inject={calls}:{what}")])
            .args(["-o", "/dev/null"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("start strace")?;
        self.strace = Some(child);
        Ok(())
    }

    /// Ends all faults of the disk.
    pub(crate) async fn heal(&mut self) -> Result<()> {
        self.end_sync_fault().await?;
        self.free()
    }

    /// Ends the fault of the syncs.
    pub(crate) async fn end_sync_fault(&mut self) -> Result<()> {
        if let Some(mut strace) = self.strace.take() {
            strace.kill().await.context("end strace")?;
        }
        Ok(())
    }

    /// Copies the data to a directory that is kept.
    pub(crate) fn keep(&self, to: &Path) -> Result<()> {
        copy(&self.path, to)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    let copied = copied.context("start cp")?;
    ensure!(copied.success(), "copy {} to {}: {copied}", from.display(), to.display());
    Ok(())
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            let mut unmount = std::process::Command::new("umount");
            unmount.arg("--lazy").arg(&self.path).stdout(Stdio::null()).stderr(Stdio::null());
            // A failure shows when the directory is removed later.
            drop(unmount.status());
        }
    }
}
