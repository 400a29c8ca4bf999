//! The command `delete`.

use chancery_admin_proto::v1 as pb;
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{
    client::Servers,
    parameters::Parameters,
    write::{Body, Request, Write},
};
use crate::{answer::Answer, failure::Failure};

/// The arguments of `delete`.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Resource type: an alias or a type URL
    #[arg(value_name = "TYPE")]
    type_name: String,
    /// Names of the resources
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Delete from this scope
    #[arg(long, default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    scope: String,
    /// Reject the deletion unless the resource has this version, as `get` shows it; only with one
    /// NAME
    #[arg(long, value_name = "VERSION", value_parser = NonEmptyStringValueParser::new())]
    if_version: Option<String>,
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    write: Write,
}

/// Deletes resources.
pub(super) async fn run(
    delete: Delete,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let Delete { type_name, names, scope, if_version, parameters, write } = delete;
    let dynamic_parameters = parameters.into_map()?;
    if if_version.is_some() && names.len() > 1 {
        let n = names.len();
        return Err(Failure::new(format_args!(
            "--if-version applies to one resource, but {n} are named"
        )));
    }
    let if_version = if_version.unwrap_or_default();
    let resource = |name| pb::ResourceRef {
        r#type: type_name.clone(),
        name,
        if_version: if_version.clone(),
        dynamic_parameters: dynamic_parameters.clone(),
    };
    let resources = names.into_iter().map(resource).collect();
    let body = |options| Body::Delete(pb::DeleteRequest { resources, scope, options });
    Request::new(&write, body)?.run(servers, answer).await
}
