//! Generates the code and the descriptors of a directory of `.proto` files, without protoc. For build scripts.

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use tonic_prost_build::Builder;

/// Compiles the files in the directories `packages` under `root`, which is also the root of their imports. Below the
/// `OUT_DIR` of the build script, `own.rs` has a module for each part of a package name, and `own.fds` the descriptors of
/// the files and their imports. `configure` may change the generator.
///
/// # Errors
/// Fails if a file is not valid, or if the script is not run by cargo.
pub fn generate(
    root: &Path,
    packages: &[&str],
    configure: impl FnOnce(Builder) -> Builder,
) -> anyhow::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let mut compiler = protox::Compiler::new([root])?;
    compiler.include_imports(true).include_source_info(true);
    for package in packages {
        let package = root.join(package);
        // Cargo watches the directory recursively.
        writeln!(io::stdout(), "cargo:rerun-if-changed={}", package.display())?;
        for file in protos(&package)? {
            compiler.open_file(&file).with_context(|| file.display().to_string())?;
        }
    }
    fs::write(out.join("own.fds"), compiler.encode_file_descriptor_set())?;
    let builder = tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .out_dir(out)
        .include_file("own.rs");
    configure(builder).compile_fds(compiler.file_descriptor_set()).context("generating code")
}

/// Returns all `.proto` files under `root`, sorted by name so that builds are reproducible.
///
/// # Errors
/// Fails if a directory cannot be listed.
pub fn protos(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = fs::read_dir(&directory)
            .with_context(|| format!("cannot list {}", directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "proto") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
