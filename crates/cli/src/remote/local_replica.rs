//! The replica on this machine that uses a data directory, as the kernel sees its process.

use std::{fs, path::Path};

/// A running replica.
pub(super) struct LocalReplica {
    pub(super) pid: u32,
}

impl LocalReplica {
    /// Finds the process that uses a data directory.
    ///
    /// # Errors
    /// Returns the reason if no process uses it, or if this user may not read the lock.
    pub(super) fn find(data_dir: &Path) -> Result<Self, String> {
        let lock = data_dir.join("LOCK");
        let text = fs::read_to_string(&lock)
            .map_err(|error| format!("cannot read {}: {error}", lock.display()))?;
        let pid = text.trim().parse();
        let pid = pid.map_err(|_| format!("{} has no process ID", lock.display()))?;
        let replica = Self { pid };
        let name = replica.read("comm")?;
        match name.trim() {
            "chancery" => Ok(replica),
            _ => Err(format!("no replica uses {}", data_dir.display())),
        }
    }

    /// Reads a file of the process.
    pub(super) fn read(&self, file: &str) -> Result<String, String> {
        let path = format!("/proc/{}/{file}", self.pid);
        fs::read_to_string(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!("no process has the ID {}", self.pid),
            _ => format!("cannot read {path}: {error}"),
        })
    }

    /// Returns the limit of open files; `None` if it is unlimited.
    pub(super) fn open_files_max(&self) -> Result<Option<u64>, String> {
        let limits = self.read("limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let soft = line.and_then(|rest| rest.split_whitespace().next());
        match soft {
            Some("unlimited") => Ok(None),
            Some(limit) => {
                limit.parse().map(Some).map_err(|_| "the limit is not a number".to_owned())
            }
            None => Err("the kernel shows no limit of open files".to_owned()),
        }
    }
}
