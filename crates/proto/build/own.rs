//! Generates the Rust code of our own APIs, and their descriptors for reflection.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::Path,
};

use crate::{cargo, linked::Linked, resolver::Resolver, tree};
use anyhow::Context;

/// A module of the generated code, named after one part of a package name. `package` is set if the
/// module has a generated file.
#[derive(Default)]
struct Module {
    package: Option<String>,
    children: BTreeMap<String, Module>,
}

/// Compiles all files under `root`, if it exists. `OUT_DIR/own.rs` contains the modules: the package
/// `chancery.admin.v1` becomes the module `admin::v1`.
pub(crate) fn generate(root: &Path, out: &Path) -> anyhow::Result<()> {
    // Cargo watches the directory recursively, or waits for its creation if it does not exist.
    cargo::rerun_if_changed(root)?;
    let files = if root.is_dir() { tree::protos(root)? } else { Vec::new() };
    let resolver = Resolver::new(Linked::new(), vec![root.to_owned()]);
    let mut compiler = protox::Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).include_source_info(true);
    for file in &files {
        compiler.open_file(file).with_context(|| file.display().to_string())?;
    }
    fs::write(out.join("own.fds"), compiler.encode_file_descriptor_set())?;
    let set = compiler.file_descriptor_set();
    // prost-types provides the well-known types, but the generator needs their descriptors.
    let packages: BTreeSet<String> = set
        .file
        .iter()
        .map(|file| file.package().to_owned())
        .filter(|package| package != "google.protobuf")
        .collect();
    tonic_prost_build::configure()
        .bytes(".")
        .boxed(".chancery.raft.v1.Transaction.meta")
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
