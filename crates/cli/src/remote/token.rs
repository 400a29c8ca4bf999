//! The commands `token create`, `token list` and `token delete`.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt, path::PathBuf};

use chancery_admin::time_limits::TOKEN;
use chancery_admin_proto::v1::{self as pb, access_service_client::AccessServiceClient};
use chancery_config::Span;
use clap::Subcommand;

use super::{client::refusal, connector::Channel, read::Read};
use crate::{
    answer::Answer,
    failure::Failure,
    help::examples,
    table::Table,
    time::{time_in, timestamp},
};

/// The subcommands of `token`.
#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Create a token, whose identity is `token:NAME`
    ///
    /// The token is shown once. Replicas store only its digest. A name may have two tokens, so that a new token can
    /// replace an old one.
    #[command(after_help = examples(&[
        "token create ci --out ci.token",
        "token create edge --valid-for 24h",
    ]))]
    Create {
        /// Name: a-z, 0-9 and '-', at most 64 characters
        name: String,
        /// Time for which the token is valid, from 1s to 8784h (366 days) [default: 2160h (90 days)]
        #[arg(long, value_name = "TIME", value_parser = time_in(TOKEN))]
        valid_for: Option<Span>,
        /// Write the token to a new file with mode 0600, instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List the tokens without their secret parts
    List {
        #[command(flatten)]
        read: Read,
    },
    /// Delete the tokens of a name, or one of them; their streams and calls end
    #[command(after_help = examples(&["token delete ci", "token delete ci --id 5c1f0a9e33b7d210"]))]
    Delete {
        /// Name of the tokens
        name: String,
        /// Delete only the token with this ID, as `token list` shows it
        #[arg(long)]
        id: Option<String>,
    },
}

/// Runs a subcommand.
pub(super) async fn run(
    command: Token,
    channel: Channel,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let mut client = AccessServiceClient::new(channel);
    match command {
        Token::Create { name, valid_for, out } => {
            // The file comes first, so that a token that cannot be kept is not created.
            let file = out.as_deref().map(|path| new_file(path).map(|file| (path, file)));
            let file = file.transpose()?;
            let valid_seconds = valid_for.map_or(0, |span| span.duration().as_secs());
            let request = pb::CreateTokenRequest { name: name.clone(), valid_seconds };
            let created = client.create_token(request).await;
            let created = match created {
                Ok(response) => response.into_inner(),
                Err(status) => {
                    if let Some((path, _)) = &file {
                        drop(fs::remove_file(path));
                    }
                    return Err(refusal(&status));
                }
            };
            let info = created.info.clone().unwrap_or_default();
            if let Some((path, mut file)) = file {
                let written = writeln!(file, "{}", created.token).and_then(|()| file.sync_all());
                let shown = path.display();
                written.map_err(|error| {
                    Failure::new(format_args!(
                        "cannot write the token to {shown}: {error}; delete it: chancery token delete {name} --id {}",
                        info.id
                    ))
                })?;
                let bare = pb::CreateTokenResponse { token: String::new(), ..created };
                return answer.show(&bare, |out| {
                    writeln!(out, "wrote the token {} ({}) to {shown}", info.name, info.id)
                });
            }
            answer.show(&created, |out| writeln!(out, "{}", created.token))
        }
        Token::List { read } => {
            let listed = client
                .list_tokens(pb::ListTokensRequest { stale: read.stale, ..Default::default() })
                .await;
            let list = listed.map_err(|status| refusal(&status))?.into_inner();
            answer.show(&list, |out| {
                if list.tokens.is_empty() {
                    return writeln!(out, "no tokens");
                }
                let mut table = Table::new(["NAME", "ID", "CREATED", "EXPIRES"]);
                for token in &list.tokens {
                    table.row([
                        token.name.clone(),
                        token.id.clone(),
                        timestamp(token.created_ms),
                        timestamp(token.expires_ms),
                    ]);
                }
                table.write(out, "")
            })
        }
        Token::Delete { name, id } => {
            let request = pb::DeleteTokenRequest { name, id: id.unwrap_or_default() };
            let deleted = client.delete_token(request).await;
            let response = deleted.map_err(|status| refusal(&status))?.into_inner();
            answer.show(&response, |out| {
                let n = response.access;
                let tokens = if n == 1 { "token" } else { "tokens" };
                writeln!(out, "revision {}: deleted {n} {tokens}", response.revision)
            })
        }
    }
}

fn new_file(path: &std::path::Path) -> Result<fs::File, Failure> {
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(|error| Failure::new(format_args!("cannot create {}: {error}", path.display())))
}
