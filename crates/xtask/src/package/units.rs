//! The check of the systemd units: systemd accepts them, and their exposure is low.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{paths::Paths, proc, say::say, setup};

const UNITS: &str = "deploy/systemd";
/// The services, whose exposure is measured.
const SERVICES: &[&str] = &["chancery.service", "chancery-backup.service"];
const TIMER: &str = "chancery-backup.timer";
/// The files with a configuration of the unit.
const CONFIGURATIONS: &[&str] = &["deploy/systemd/chancery.toml", "docs/install-systemd.md"];
/// The only key that has to agree with the unit. It is the path of `StateDirectory=`.
const DATA_DIR: &str = "data_dir = \"/var/lib/chancery\"";
/// The program in the units. It is not installed on this machine, so the check replaces it with another one.
const PROGRAM: &str = "/usr/bin/chancery";
const SUBSTITUTE: &str = "/bin/true";
/// The maximum exposure, from 0 (safe) to 10, in tenths.
const EXPOSURE_MAX: u32 = 15;

/// Checks the units.
pub(super) fn check(paths: &Paths) -> Result<()> {
    setup::unit_tools(paths)?;
    for file in CONFIGURATIONS {
        let text =
            fs::read_to_string(paths.root.join(file)).with_context(|| format!("read {file}"))?;
        check_data_dir(file, &text)?;
    }
    let dir = super::scratch::fresh_dir(paths, "units")?;
    for unit in SERVICES.iter().chain([&TIMER]) {
        let path = paths.root.join(UNITS).join(unit);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        check_rules(unit, &text)?;
        fs::write(dir.join(unit), text.replace(PROGRAM, SUBSTITUTE))
            .with_context(|| format!("copy {unit}"))?;
    }
    let units: Vec<_> = SERVICES.iter().chain([&TIMER]).map(|unit| dir.join(unit)).collect();
    let mut verify = Command::new("systemd-analyze");
    // The manual pages of the program are not installed.
    let verified = verify.args(["verify", "--man=no"]).args(&units).output();
    let verified = verified.context("start systemd-analyze")?;
    // An unknown key is only a warning of systemd.
    let warnings = String::from_utf8_lossy(&verified.stderr);
    ensure!(
        verified.status.success() && warnings.is_empty(),
        "systemd-analyze verify rejects the units:\n{warnings}"
    );
    for service in SERVICES {
        let exposure = exposure(&dir.join(service))?;
        ensure!(
            exposure <= EXPOSURE_MAX,
            "systemd-analyze gives {service} the exposure {}.{}, and at most {}.{} is allowed",
            exposure / 10,
            exposure % 10,
            EXPOSURE_MAX / 10,
            EXPOSURE_MAX % 10
        );
        say!("{service}: exposure {}.{}", exposure / 10, exposure % 10);
    }
    Ok(())
}

/// Checks that a configuration has the directory of the unit, also for commands that run outside of the unit.
fn check_data_dir(file: &str, text: &str) -> Result<()> {
    ensure!(
        text.lines().any(|line| line == DATA_DIR),
        "{file}: the configuration does not set the directory of the unit; write `{DATA_DIR}`"
    );
    Ok(())
}

/// Checks that nothing runs before the program, and that the unit sets no key of the configuration.
///
/// `serve` checks its configuration itself. It also starts where another check would fail: without its keys, a replica
/// serves everything but secrets. Commands do not see the variables of the unit.
fn check_rules(unit: &str, text: &str) -> Result<()> {
    for line in text.lines() {
        ensure!(
            !line.starts_with("Environment=CHANCERY_"),
            "{unit}: `{line}` is unknown to `chancery doctor`; set the key in the configuration file"
        );
        ensure!(
            !line.starts_with("ExecStartPre=") && !line.starts_with("ExecCondition="),
            "{unit}: `{line}` can keep a replica down that `serve` would start; remove it"
        );
    }
    Ok(())
}

/// Returns the exposure that systemd computes, in tenths.
fn exposure(service: &std::path::Path) -> Result<u32> {
    let mut analyze = Command::new("systemd-analyze");
    let report = proc::output(analyze.args(["security", "--offline=yes"]).arg(service))?;
    parse_exposure(&report).with_context(|| format!("no exposure in the report:\n{report}"))
}

fn parse_exposure(report: &str) -> Option<u32> {
    let (_, rest) = report.rsplit_once("Overall exposure level for ")?;
    let (_, rest) = rest.split_once(": ")?;
    let (whole, tenths) = rest.split_whitespace().next()?.split_once('.')?;
    Some(whole.parse::<u32>().ok()? * 10 + tenths.parse::<u32>().ok()?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_before_the_program_and_key_in_the_unit_are_refused() {
        let start = "[Service]\nExecStart=/usr/bin/chancery serve\n";
        super::check_rules("a.service", start).unwrap();
        let before = format!("{start}ExecStartPre=/usr/bin/chancery config check\n");
        let refused = |text: &str| super::check_rules("a.service", text).unwrap_err().to_string();
        let expected = "a.service: `ExecStartPre=/usr/bin/chancery config check` can keep a replica down that `serve` \
                        would start; remove it";
        assert_eq!(refused(&before), expected);
        let set = format!("{start}Environment=CHANCERY_STORE_DATA_DIR=/d\n");
        let expected = "a.service: `Environment=CHANCERY_STORE_DATA_DIR=/d` is unknown to `chancery doctor`; set the \
                        key in the configuration file";
        assert_eq!(refused(&set), expected);
    }

    #[test]
    fn configuration_without_directory_of_the_unit_is_refused() {
        super::check_data_dir("a.toml", "[store]\ndata_dir = \"/var/lib/chancery\"\n").unwrap();
        let refused = super::check_data_dir("a.toml", "[store]\n").unwrap_err().to_string();
        let expected = "a.toml: the configuration does not set the directory of the unit; write `data_dir = \
                        \"/var/lib/chancery\"`";
        assert_eq!(refused, expected);
    }

    #[test]
    fn exposure_is_the_number_at_the_end() {
        let report = "x 0.2\n\n→ Overall exposure level for a.service: 1.3 OK :-)\n";
        assert_eq!(super::parse_exposure(report), Some(13));
        assert_eq!(super::parse_exposure("nothing"), None);
    }
}
