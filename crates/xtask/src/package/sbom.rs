//! The list of components of the program (SBOM), in the format CycloneDX 1.6.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    dependencies::{Dependency, PROGRAM, ROOT_CERTIFICATES},
    release::Release,
};
use crate::proc;

/// Returns the document.
pub(super) fn write(release: &Release, dependencies: &[Dependency]) -> Result<Vec<u8>> {
    let document = document(release, dependencies, &system_libraries()?);
    Ok(format!("{document:#}\n").into_bytes())
}

/// Returns the libraries of the system that are linked into the program.
fn system_libraries() -> Result<Vec<Value>> {
    let glibc = proc::output(Command::new("ldd").arg("--version"))?;
    let glibc = glibc.lines().next().and_then(|line| line.rsplit(' ').next());
    let cpp = proc::output(Command::new("c++").arg("-dumpfullversion"))?;
    Ok(vec![
        library("glibc", glibc.context("ldd prints no version")?, "LGPL-2.1-or-later"),
        library("libstdc++", cpp.trim(), "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ])
}

fn library(name: &str, version: &str, license: &str) -> Value {
    json!({
        "type": "library",
        "bom-ref": format!("{name}@{version}"),
        "name": name,
        "version": version,
        "licenses": [{"expression": license}],
    })
}

fn document(release: &Release, dependencies: &[Dependency], system: &[Value]) -> Value {
    let mut components: Vec<_> = dependencies.iter().map(component).collect();
    components.extend(system.iter().cloned());
    let root = format!("chancery@{}", release.version);
    let mut graph: Vec<_> = dependencies
        .iter()
        .map(|dependency| {
            let uses: Vec<_> =
                dependency.uses.iter().map(|(name, version)| purl(name, version)).collect();
            json!({"ref": purl(&dependency.name, &dependency.version), "dependsOn": uses})
        })
        .collect();
    let mut direct: Vec<_> = system.iter().map(|library| library["bom-ref"].clone()).collect();
    let of_release = [PROGRAM, ROOT_CERTIFICATES];
    let named = dependencies.iter().filter(|found| of_release.contains(&found.name.as_str()));
    direct.extend(named.map(|found| Value::from(purl(&found.name, &found.version))));
    graph.push(json!({"ref": root, "dependsOn": direct}));
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": release.created(),
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "chancery",
                "version": release.version,
                "licenses": [{"expression": "Apache-2.0"}],
                "properties": [{"name": "revision", "value": release.revision}],
            },
        },
        "components": components,
        "dependencies": graph,
    })
}

fn component(dependency: &Dependency) -> Value {
    let purl = purl(&dependency.name, &dependency.version);
    let mut component = json!({
        "type": "library",
        "bom-ref": purl,
        "name": dependency.name,
        "version": dependency.version,
        "purl": purl,
        "licenses": [{"expression": dependency.license}],
    });
    if let Some(checksum) = &dependency.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn every_reference_names_a_component() {
        let release = Release { version: "1.0.0".into(), revision: "c0ffee".into(), epoch: 0 };
        let dependency = |name: &str, version: &str, uses: &[(&str, &str)]| Dependency {
            name: name.into(),
            version: version.into(),
            license: "MIT".into(),
            dir: PathBuf::new(),
            checksum: None,
            uses: uses.iter().map(|(name, version)| ((*name).into(), (*version).into())).collect(),
        };
        let dependencies = [
            dependency("chancery-server", "1.0.0", &[("sys", "1.0.0+2")]),
            dependency("sys", "1.0.0+2", &[]),
            dependency(ROOT_CERTIFICATES, "1.0.11", &[]),
        ];
        let document = document(&release, &dependencies, &[library("glibc", "2.36", "MIT")]);
        let known: Vec<_> = (document["components"].as_array().unwrap().iter())
            .map(|component| component["bom-ref"].clone())
            .collect();
        assert_eq!(
            known,
            [
                "pkg:cargo/chancery-server@1.0.0",
                "pkg:cargo/sys@1.0.0%2B2",
                "pkg:cargo/webpki-root-certs@1.0.11",
                "glibc@2.36"
            ]
        );
        let graph = document["dependencies"].as_array().unwrap();
        let direct = &graph.last().unwrap()["dependsOn"];
        let expected =
            ["glibc@2.36", "pkg:cargo/chancery-server@1.0.0", "pkg:cargo/webpki-root-certs@1.0.11"];
        assert_eq!(*direct, json!(expected));
        let used = graph.iter().flat_map(|node| node["dependsOn"].as_array().unwrap());
        for reference in used {
            assert!(known.contains(reference), "{reference} is no component");
        }
    }
}
