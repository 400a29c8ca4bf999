//! Packages: the container image, the Debian package and the other files of a release, and their checks.
//!
//! Invariant: a package depends on the commit, the program and `Cargo.lock` only. Entries of archives are sorted, their
//! times are that of the commit, and owners are numbers. Two runs with the same program therefore write equal bytes.

mod archive;
mod compose;
mod deb;
mod dependencies;
mod dist;
mod image;
mod image_check;
mod install;
mod machine;
mod notices;
mod release;
mod root_certificates;
mod sbom;
mod scratch;
mod units;

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::{
    paths::Paths,
    program::{self, Profile},
    say::say,
    setup,
};
use release::Release;
use scratch::fresh_dir;

/// Writes the image (`cargo xtask image`).
pub(crate) fn image(paths: &Paths, flags: &[&str]) -> Result<()> {
    let flags = Flags::parse("image", flags)?;
    if flags.is_check {
        return check_image(paths, flags.profile);
    }
    let release = Release::of(paths)?;
    let program = static_program(paths, flags.profile)?;
    let dir = fresh_dir(paths, "image")?;
    let digest = image::write(&release, &program, &dir)?;
    say!("the image is {} ({digest}), tag {}", dir.display(), release.version);
    Ok(())
}

/// Writes the image twice, compares the digests, and runs a replica from the image.
fn check_image(paths: &Paths, profile: Profile) -> Result<()> {
    setup::image_tools(paths)?;
    let release = Release::of(paths)?;
    let program = static_program(paths, profile)?;
    image_check::run(paths, &release, &program)
}

/// Writes all files of a release (`cargo xtask dist`).
pub(crate) fn dist(paths: &Paths, flags: &[&str]) -> Result<()> {
    let flags = Flags::parse("dist", flags)?;
    setup::build_needs(paths)?;
    let program = program::build_static(paths, flags.profile)?;
    let release = Release::of(paths)?;
    if flags.is_check {
        return dist::check(paths, &release, &program);
    }
    let dir = dist::write(paths, &release, &program)?;
    say!("the files of the release are in {}", dir.display());
    Ok(())
}

/// Follows the page about the installation on three machines (`cargo xtask install`).
pub(crate) fn install(paths: &Paths, flags: &[&str]) -> Result<()> {
    let flags = Flags::parse("install", flags)?;
    setup::bare_needs()?;
    setup::demo_needs(paths)?;
    let program = program::build_static(paths, flags.profile)?;
    let release = Release::of(paths)?;
    let dir = dist::write(paths, &release, &program)?;
    install::run(paths, &dir.join(deb::file_name(&release)))
}

/// Checks the systemd units, the Dockerfile and the Compose file (`cargo xtask packages`).
pub(crate) fn check_files(paths: &Paths) -> Result<()> {
    units::check(paths)?;
    compose::check(paths)
}

/// The flags of a command that builds packages.
#[derive(Debug)]
struct Flags {
    /// Whether to check the packages.
    is_check: bool,
    /// The profile of the program.
    profile: Profile,
}

impl Flags {
    fn parse(command: &str, flags: &[&str]) -> Result<Self> {
        if let Some(unknown) = flags.iter().find(|flag| !["--check", "--dev"].contains(flag)) {
            bail!("unknown flag {unknown:?} of {command}: the flags are --check and --dev");
        }
        let is_dev = flags.contains(&"--dev");
        let profile = if is_dev { Profile::Dev } else { Profile::Release };
        Ok(Self { is_check: flags.contains(&"--check"), profile })
    }
}

/// Builds the static program, and returns it without symbols.
fn static_program(paths: &Paths, profile: Profile) -> Result<Vec<u8>> {
    setup::build_needs(paths)?;
    let program = program::build_static(paths, profile)?;
    fs::read(&program).with_context(|| format!("read {}", program.display()))
}
