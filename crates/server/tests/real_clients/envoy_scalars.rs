//! The scalars of YAML as Envoy's loader reads them. The tests of admission compare `import` with the same list.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::support::{envoy::Envoy, in_directory};

/// Each scalar as it is written, with the value that Envoy reads.
const READINGS: &str = include_str!("../../../admission/tests/it/data/envoy_scalars.json");

#[test]
fn list_of_scalars_is_what_envoy_reads() -> Result<()> {
    in_directory(|dir| {
        let readings: Vec<(String, Value)> = serde_json::from_str(READINGS)?;
        let mut yaml = String::from(
            "static_resources:\n  clusters:\n  - name: c\n    type: STATIC\n    metadata:\n      filter_metadata:\n        x:\n",
        );
        for (n, (scalar, _)) in readings.iter().enumerate() {
            writeln!(yaml, "          k{n}: {}", scalar.replace('\n', "\n          "))?;
        }
        let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": 0}});
        let bootstrap = json!({"node": {"id": "s", "cluster": "s"}, "admin": {"address": address}});
        let options = ["--config-yaml", &yaml];
        let envoy = Envoy::start_with_options(dir, "scalars", &bootstrap, &options)?;
        let cluster = envoy.static_cluster("c")?.context("no cluster")?;
        let read = &cluster["metadata"]["filter_metadata"]["x"];
        for (n, (scalar, expected)) in readings.iter().enumerate() {
            let read = &read[format!("k{n}")];
            ensure!(read == expected, "Envoy reads {scalar:?} as {read}, not {expected}");
        }
        Ok(())
    })
}
