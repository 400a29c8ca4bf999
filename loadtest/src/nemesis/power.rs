//! Power cuts, which make a disk lose all unsynced data.
//!
//! The data of a replica are on ext4 in an image on a loop device. `EXT4_IOC_SHUTDOWN` with
//! NOLOGFLUSH ends the file system at once, without writing its journal or any dirty page. Mounted
//! again, it has exactly the synced data. Python makes the ioctl, because this program has no
//! unsafe code.
//!
//! Without root or loop devices, `strace` delays every sync of the process from some time on. The
//! data are copied then, and the copy replaces them later. The copy contains all acknowledged
//! writes, because no write is acknowledged without a sync. Later writes are lost.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::{process::Command, time::sleep};

/// The size of a replica's file system in bytes: enough for a long run, because the log is purged.
pub(super) const SIZE: u64 = 320 << 20;
/// A script that opens all mount points first, so that all disks fail at nearly the same time.
const SHUT_DOWN: &str = "\
import fcntl, os, struct, sys
EXT4_IOC_SHUTDOWN, NOLOGFLUSH = 0x8004587D, struct.pack('I', 2)
for disk in [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]:
    fcntl.ioctl(disk, EXT4_IOC_SHUTDOWN, NOLOGFLUSH)
";
/// The maximum time for which the kernel uses a file system after its last process has ended.
const UNMOUNT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// The methods of a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PowerCut {
    /// The file system is shut down.
    Image,
    /// A copy of the synced data replaces the data.
    Copy,
}

/// An ext4 file system in a file. The file is on a separate tmpfs, so that syncs cost little.
#[derive(Debug)]
pub(crate) struct Image {
    backing: PathBuf,
    file: PathBuf,
}

/// Runs a command on a path. Returns whether it succeeded.
pub(super) fn succeeds(program: &str, arguments: &[&str], path: &Path) -> bool {
    let mut command = std::process::Command::new(program);
    command.args(arguments).arg(path).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Image {
    /// Creates an image and mounts it. Returns `None` if that, or cutting its power, is not
    /// possible.
    pub(crate) fn mounted_at(path: &Path) -> Result<Option<Self>> {
        let backing = path.with_extension("backing");
        fs::create_dir_all(&backing)?;
        let options = format!("size={},mode=700", SIZE + (8 << 20));
        if !succeeds("mount", &["-t", "tmpfs", "-o", &options, "chancery-nemesis"], &backing) {
            return Ok(None);
        }
        let image = Self { file: backing.join("image"), backing };
        fs::File::create(&image.file)?.set_len(SIZE)?;
        let options = ["-q", "-F", "-m", "0", "-N", "8192", "-E", "nodiscard"];
        let is_possible = succeeds("mkfs.ext4", &options, &image.file)
            && succeeds("python3", &["-c", "import fcntl, struct, sys"], Path::new(""))
            && image.mount(path);
        Ok(is_possible.then_some(image))
    }

    fn mount(&self, path: &Path) -> bool {
        let file = self.file.to_string_lossy();
        succeeds("mount", &["-t", "ext4", "-o", "loop", &file], path)
    }

    /// Unmounts the file system and mounts it again. No process may use it.
    pub(crate) async fn mount_again(&self, path: &Path) -> Result<()> {
        let deadline = Instant::now() + UNMOUNT;
        while !succeeds("umount", &[], path) {
            ensure!(Instant::now() < deadline, "{} cannot be unmounted", path.display());
            sleep(POLL).await;
        }
        ensure!(self.mount(path), "{} cannot be mounted again", path.display());
        Ok(())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A failure shows when the directory is removed later.
        succeeds("umount", &["--lazy"], &self.backing);
    }
}

/// Cuts the power of the disks that are mounted at these paths.
pub(crate) async fn cut(paths: &[PathBuf]) -> Result<()> {
    let mut python = Command::new("python3");
    let ended = python.args(["-c", SHUT_DOWN]).args(paths).stdin(Stdio::null()).output();
    let ended = ended.await.context("start python3")?;
    let words = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "cannot shut down the file systems: {words}");
    Ok(())
}
