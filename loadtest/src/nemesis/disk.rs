//! The disk of a replica, which can fill up, become slow, and fail.
//!
//! - Full: the data are on a small file system of their own (where mounting is permitted), and a file takes all
//!   that is left of it. What the replica gets is a real ENOSPC.
//! - Power cut: the file system is ext4 in an image on a loop device (where root may make one; else tmpfs). It is
//!   shut down without writing its journal (`EXT4_IOC_SHUTDOWN`, NOLOGFLUSH) and mounted again: what was not
//!   synced is gone. Elsewhere `strace` holds every sync up, the data are copied, and the copy takes their place
//!   ([`power`]).
//! - Slow and failing: `strace`, where it is installed and may be attached, delays `fdatasync`, `fsync` and
//!   the writes of the process, or lets the syncs return EIO without doing anything. No FUSE is needed.
//!
//! Not possible this way: reads that fail, short writes.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::process::{Child, Command};

use super::power::{self, Image, PowerCut};

/// Enough for the data of a long run, with a log that is purged.
pub(super) const SIZE: u64 = 320 << 20;
/// Never more than that is written to fill a disk.
const FILL_MAX: u64 = 400 << 20;

/// What can be done to disks here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Means {
    pub(crate) mount: bool,
    pub(crate) strace: bool,
    /// How a power cut is done, if it can be.
    pub(crate) power: Option<PowerCut>,
}

/// What a process is told of its syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// They take longer.
    Slow(Duration),
    /// They fail.
    Fail,
    /// They do not return.
    Hold,
}

/// The disk of one replica.
#[derive(Debug)]
pub(crate) struct Disk {
    path: PathBuf,
    is_mounted: bool,
    /// What the file system is in, if its power can be cut.
    image: Option<Image>,
    saboteur: Option<Child>,
}

impl Disk {
    /// A file system of its own, or a directory where that is not permitted.
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
        Ok(Self { path, is_mounted, image, saboteur: None })
    }

    /// What is possible here.
    pub(crate) fn means(&self) -> Means {
        let mut strace = std::process::Command::new("strace");
        strace.args(["-e", "trace=none", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
        let strace = strace.status().is_ok_and(|status| status.success());
        let power = match (&self.image, strace) {
            (Some(_), _) => Some(PowerCut::Image),
            (None, true) => Some(PowerCut::Copy),
            (None, false) => None,
        };
        Means { mount: self.is_mounted, strace, power }
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the data while no sync can return: all that was acknowledged is in the copy.
    pub(crate) fn copy_synced(&self) -> Result<()> {
        copy(&self.data(), &self.synced())
    }

    /// Has what was synced again after its power was cut, and nothing else. Nobody uses it.
    pub(crate) async fn power_up(&mut self) -> Result<()> {
        if let Some(image) = &self.image {
            return image.mount_again(&self.path).await;
        }
        self.put_back()
    }

    /// Puts the copy in the place of the data. Nobody uses them.
    pub(crate) fn put_back(&self) -> Result<()> {
        fs::remove_dir_all(self.data()).context("remove the data")?;
        fs::rename(self.synced(), self.data()).context("put the copy in place")
    }

    fn synced(&self) -> PathBuf {
        self.path.join("synced")
    }

    /// The data directory on it.
    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Takes all that is left of it.
    pub(crate) fn fill(&self) -> Result<()> {
        ensure!(self.is_mounted, "{} is not a disk of its own", self.path.display());
        let mut file = fs::File::options().create(true).append(true).open(self.filler())?;
        let mut piece = vec![1_u8; 256 << 10];
        let mut written = 0;
        while !piece.is_empty() && written < FILL_MAX {
            match file.write(&piece) {
                Ok(n @ 1..) => written += crate::stats::count(n),
                // The last pages go in small pieces.
                _ => piece.truncate(piece.len() / 2),
            }
        }
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn free(&self) -> Result<()> {
        match fs::remove_file(self.filler()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// From now on a process feels this of its disk.
    pub(crate) fn sabotage(&mut self, pid: u32, how: Sabotage) -> Result<()> {
        let (calls, what) = match how {
            Sabotage::Slow(by) => {
                ("fdatasync,fsync,pwrite64", format!("delay_enter={}", by.as_micros()))
            }
            Sabotage::Fail => ("fdatasync,fsync", "error=EIO".to_owned()),
            Sabotage::Hold => ("fdatasync,fsync", "delay_enter=30000000".to_owned()),
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
        self.saboteur = Some(child);
        Ok(())
    }

    /// The disk is as it should be again.
    pub(crate) async fn heal(&mut self) -> Result<()> {
        self.end_sabotage().await?;
        self.free()
    }

    /// Ends the effect of a fault on a process.
    pub(crate) async fn end_sabotage(&mut self) -> Result<()> {
        if let Some(mut saboteur) = self.saboteur.take() {
            saboteur.kill().await.context("end strace")?;
        }
        Ok(())
    }

    /// Copies the data to a directory that stays.
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
            // The directory is removed later, and that will tell.
            drop(unmount.status());
        }
    }
}
