//! The commands `rollback` and `undo`.

use chancery_admin_proto::v1 as pb;
use clap::{ArgGroup, Args, builder::NonEmptyStringValueParser};

use super::{
    client::Servers,
    write::{Body, Request, Validate, Write},
};
use crate::{answer::Answer, failure::Failure};

/// The arguments of `rollback`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["scope", "all"]))]
pub(crate) struct Rollback {
    /// Scope to roll back
    #[arg(value_name = "SCOPE", value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    /// Roll back only resources of this type: an alias or a type URL
    #[arg(value_name = "TYPE", requires = "scope", value_parser = NonEmptyStringValueParser::new())]
    type_name: Option<String>,
    /// Roll back only the resource of this name
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Roll back all scopes, the assignments, the access rules and the quotas
    ///
    /// Tokens stay as they are: a deleted token does not become valid again.
    #[arg(long, conflicts_with = "scope")]
    all: bool,
    /// Restore the content of this revision
    #[arg(long, value_name = "REVISION")]
    to: u64,
    #[command(flatten)]
    validate: Validate,
    #[command(flatten)]
    write: Write,
}

/// Restores the content of an earlier revision.
pub(super) async fn rollback(
    rollback: Rollback,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let Rollback { scope, type_name, name, all, to, validate, write } = rollback;
    let body = |options| {
        let options = validate.add_to(options);
        let (r#type, name) = (type_name.unwrap_or_default(), name.unwrap_or_default());
        let scope = scope.unwrap_or_default();
        let to = Some(to);
        Body::Rollback(pb::RollbackRequest { to, scope, all, r#type, name, options })
    };
    Request::new(&write, body)?.run(servers, answer).await
}

/// The arguments of `undo`.
#[derive(Debug, Args)]
pub(crate) struct Undo {
    /// Revision to undo
    #[arg(value_name = "REVISION")]
    revision: u64,
    #[command(flatten)]
    validate: Validate,
    #[command(flatten)]
    write: Write,
}

/// Undoes one revision.
pub(super) async fn undo(
    undo: Undo,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let Undo { revision, validate, write } = undo;
    let body =
        |options| Body::Undo(pb::UndoRequest { revision, options: validate.add_to(options) });
    Request::new(&write, body)?.run(servers, answer).await
}
