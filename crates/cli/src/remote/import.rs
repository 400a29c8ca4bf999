//! The command `import`.

use std::path::PathBuf;

use chancery_admin_proto::v1 as pb;
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{
    client::Servers,
    input,
    only_name::OnlyName,
    write::{Body, Request, Validate, Write},
};
use crate::{answer::Answer, failure::Failure};

/// The arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// Envoy bootstrap (YAML or JSON), or - for standard input
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// Publish in this scope
    #[arg(long, default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    scope: String,
    #[command(flatten)]
    only_name: OnlyName,
    #[command(flatten)]
    validate: Validate,
    #[command(flatten)]
    write: Write,
}

/// Publishes the static resources of an Envoy bootstrap.
pub(super) async fn run(
    import: Import,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let file = Some(input::read(&import.file)?);
    let Import { scope, only_name, validate, write, .. } = import;
    let name = only_name.to_text();
    let body = |options| {
        let options = validate.add_to(options);
        Body::Import(pb::ImportRequest { file, scope, options, name })
    };
    Request::new(&write, body)?.run(servers, answer).await
}
