//! Generates the following files, without protoc:
//! - the modules and the descriptor set of the messages of MCP, from `/proto/istio` and `/proto/google`;
//! - the descriptor set of the APIs of Envoy and Istio, from the sets under `sets` and the `.proto` tree inside the
//!   package `envoy-types`.

mod cargo;
mod envoy;
mod linked;
mod resolver;

use std::{env, path::PathBuf};

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let here =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").context("cargo sets CARGO_MANIFEST_DIR")?);
    for path in ["build", "sets", "Cargo.toml"] {
        cargo::rerun_if_changed(&here.join(path))?;
    }
    let packages = ["google", "istio"];
    chancery_proto_build::generate(&here.join("../../proto"), &packages, |builder| builder)
        .context("the protos of MCP")?;
    envoy::generate(&here, &out).context("the Envoy protos")
}
