//! Our own APIs: messages, clients and servers as Rust, and the descriptors for reflection.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::Path,
};

use crate::{cargo, resolver::Resolver, tree};
use anyhow::Context;

/// Modules, named by the parts of a package; the one that has a file has a package name.
#[derive(Default)]
struct Module {
    package: Option<String>,
    children: BTreeMap<String, Module>,
}

/// Compiles all that is under `root`, which need not exist. `OUT_DIR/own.rs` has the modules:
/// package `chancery.admin.v1` is module `admin::v1`.
pub(crate) fn generate(root: &Path, out: &Path) -> anyhow::Result<()> {
    // A directory is watched with all that is in it; one that is not there yet, for its coming.
    cargo::rerun_if_changed(root)?;
    let files = if root.is_dir() { tree::protos(root)? } else { Vec::new() };
    let mut compiler = protox::Compiler::with_file_resolver(Resolver::new(vec![root.to_owned()]));
    compiler.include_imports(true).include_source_info(true);
    for file in &files {
        compiler.open_file(file).with_context(|| file.display().to_string())?;
    }
    fs::write(out.join("own.fds"), compiler.encode_file_descriptor_set())?;
    let set = compiler.file_descriptor_set();
    // The well-known types are those of prost-types; the generator still has to see them.
    let packages: BTreeSet<String> = set
        .file
        .iter()
        .map(|file| file.package().to_owned())
        .filter(|package| package != "google.protobuf")
        .collect();
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .out_dir(out)
        .compile_fds(set)
        .context("generating code")?;

    let mut modules = Module::default();
    for package in packages {
        let mut module = &mut modules;
        for part in package.strip_prefix("chancery.").unwrap_or(&package).split('.') {
            module = module.children.entry(part.to_owned()).or_default();
        }
        module.package = Some(package);
    }
    let mut code = String::new();
    write_modules(&modules, "", &mut code)?;
    fs::write(out.join("own.rs"), code)?;
    Ok(())
}

fn write_modules(module: &Module, indent: &str, code: &mut String) -> anyhow::Result<()> {
    if let Some(package) = &module.package {
        writeln!(code, "{indent}include!(concat!(env!(\"OUT_DIR\"), \"/{package}.rs\"));")?;
    }
    for (name, child) in &module.children {
        writeln!(code, "{indent}pub mod {name} {{")?;
        write_modules(child, &format!("{indent}    "), code)?;
        writeln!(code, "{indent}}}")?;
    }
    Ok(())
}
