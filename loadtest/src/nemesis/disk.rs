//! The disk of a replica, which can fill up, become slow, and fail.
//!
//! - Full: the data are on a small file system of their own (tmpfs, where mounting is permitted), and a
//!   file takes all that is left of it. What the replica gets is a real ENOSPC.
//! - Slow and failing: `strace`, where it is installed and may be attached, delays `fdatasync`, `fsync` and
//!   the writes of the process, or lets the syncs return EIO without doing anything. No FUSE is needed.
//!
//! Not possible this way: reads that fail, short writes, a power cut that forgets what was not synced. What
//! is written outlives the process that is killed, synced or not.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::process::{Child, Command};

/// Enough for the data of a long run, with a log that is purged.
const SIZE: &str = "320m";
/// Never more than that is written to fill a disk.
const FILL_MAX: u64 = 400 << 20;

/// What can be done to disks here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Means {
    pub(crate) mount: bool,
    pub(crate) strace: bool,
}

/// What a process is told of its syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// They take longer.
    Slow(Duration),
    /// They fail.
    Fail,
}

/// The disk of one replica.
#[derive(Debug)]
pub(crate) struct Disk {
    path: PathBuf,
    is_mounted: bool,
    saboteur: Option<Child>,
}

impl Disk {
    /// A file system of its own, or a directory where that is not permitted.
    pub(crate) fn new(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={SIZE},mode=700"), "chancery-nemesis"]);
        mount.arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        Ok(Self { path, is_mounted, saboteur: None })
    }

    /// What is possible here.
    pub(crate) fn means(&self) -> Means {
        let mut strace = std::process::Command::new("strace");
        strace.args(["-e", "trace=none", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
        let strace = strace.status().is_ok_and(|status| status.success());
        Means { mount: self.is_mounted, strace }
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
        if let Some(mut saboteur) = self.saboteur.take() {
            saboteur.kill().await.context("end strace")?;
        }
        self.free()
    }

    /// Copies the data to a directory that stays.
    pub(crate) fn keep(&self, to: &Path) -> Result<()> {
        let mut copy = std::process::Command::new("cp");
        copy.arg("-a").arg(&self.path).arg(to);
        let copied = copy.status().context("copy the data")?;
        ensure!(copied.success(), "copy {} to {}: {copied}", self.path.display(), to.display());
        Ok(())
    }
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
