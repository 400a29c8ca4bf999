//! The JSON Schema of the configuration: valid, and consistent with the printed configuration.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};

use super::render::Chart;
use crate::{paths::Paths, proc};

/// Checks what `chancery config schema` prints.
pub(super) fn check(chart: &Chart, paths: &Paths, program: &Path) -> Result<()> {
    let mut python = Command::new(&chart.tools.python);
    python.arg(paths.root.join("crates/xtask/src/chart/config_schema.py"));
    for (name, args) in [("schema.json", "schema"), ("config.json", "print")] {
        let file = chart.scratch.join(name);
        let mut print = Command::new(program);
        print.env_clear().args(["config", args, "-o", "json"]);
        let text = proc::output(&mut print)?;
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        python.arg(file);
    }
    proc::output(&mut python).map(drop)
}
