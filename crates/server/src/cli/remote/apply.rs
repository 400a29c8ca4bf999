//! The command `apply`.

use std::path::PathBuf;

use chancery_admission::{Manifest, Options, admit};
use chancery_model::ScopeName;
use chancery_proto::admin::v1::{self as pb, File};
use clap::Args;

use super::{
    client::Servers,
    input::{self, Input},
    write::{Body, Request, Write},
};
use crate::cli::{answer::Answer, failure::Failure};

/// The arguments of `apply`.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// Read manifests (YAML or JSON) from a file, a directory, or standard input (-); repeatable
    ///
    /// A directory is searched with its subdirectories for *.yaml, *.yml and *.json. The files are
    /// read in the order of their paths. Hidden names and links to directories are skipped. Anything
    /// else that is not a regular file is an error.
    ///
    /// All files together are one transaction.
    #[arg(short, long = "file", value_name = "FILE|DIR|-", required = true)]
    files: Vec<PathBuf>,
    /// Use this scope for documents that do not name one
    #[arg(long, default_value = "default")]
    scope: String,
    /// Delete resources that are missing from the input, in the scopes of the input
    ///
    /// These are the scopes that documents name, and --scope if a document with `resources` names no
    /// scope. Resources of other scopes, and assignments, are kept.
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    write: Write,
}

/// Publishes manifests.
pub(super) async fn run(
    apply: Apply,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let files = manifests(&apply)?;
    let Apply { scope, prune, write, .. } = apply;
    let body = |options| Body::Apply(pb::ApplyRequest { files, scope, prune, options });
    Request::new(&write, body)?.run(servers, answer).await
}

/// Reads the manifests. If a file cannot be read, reports the problems of the others too.
fn manifests(apply: &Apply) -> Result<Vec<pb::File>, Failure> {
    let Input { files, mut problems } = input::read_all(&apply.files);
    if problems.is_empty() {
        return Ok(files);
    }
    let manifests: Vec<Manifest> =
        files.into_iter().map(|File { name, content }| Manifest { file: name, content }).collect();
    if let Ok(scope) = ScopeName::new(&apply.scope)
        && !manifests.is_empty()
        && let Err(others) = admit(&manifests, &Options::new(scope))
    {
        problems.extend(others.iter().map(ToString::to_string));
    }
    Err(Failure::lines(problems))
}
