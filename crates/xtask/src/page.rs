//! Pages about the tests, which commands write below the target directory.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::{paths::Paths, say::say};

/// A generated page.
#[derive(Debug)]
pub(crate) struct Page {
    /// The name of the file.
    pub(crate) name: &'static str,
    /// The text. Links that begin with `/` lead to files of the workspace.
    pub(crate) text: String,
    /// Contradictions between the lists and the tests.
    pub(crate) problems: Vec<String>,
}

impl Page {
    /// Writes the page, and prints the problems.
    pub(crate) fn write(&self, paths: &Paths) -> Result<()> {
        let dir = paths.target.join("pages");
        let file = dir.join(self.name);
        let text = self.text.replace("](/", &format!("]({}/", paths.root.display()));
        fs::create_dir_all(&dir)
            .and_then(|()| fs::write(&file, text))
            .with_context(|| format!("write {}", file.display()))?;
        for problem in &self.problems {
            say!("{problem}");
        }
        say!("wrote {}", file.display());
        Ok(())
    }

    /// Fails if there are problems.
    pub(crate) fn check(self) -> Result<()> {
        if self.problems.is_empty() {
            return Ok(());
        }
        bail!("{}:\n  {}", self.name, self.problems.join("\n  "))
    }
}
