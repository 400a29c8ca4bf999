//! Generates the following files, without protoc:
//! - the modules and the descriptor set of our own APIs, from every `.proto` under `/proto`;
//! - the descriptor set of the APIs of Envoy and Istio, from the sets under `sets` and the `.proto` tree inside the
//!   package `envoy-types`.

mod cargo;
mod envoy;
mod linked;
mod own;
mod resolver;
mod tree;

use std::{env, path::PathBuf};

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let here =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").context("cargo sets CARGO_MANIFEST_DIR")?);
    for path in ["build", "sets", "Cargo.toml"] {
        cargo::rerun_if_changed(&here.join(path))?;
    }
    own::generate(&here.join("../../proto"), &out).context("our own protos")?;
    envoy::generate(&here, &out).context("the Envoy protos")
}
