//! The commands that talk to a replica: what is typed, what is asked, what is shown.

pub(crate) mod args;
mod backup;
mod client;
mod cluster;
mod explain;
mod failure;
mod input;
mod manifest;
mod members;
mod nodes;
mod resources;
mod table;
mod time;
mod write;

use std::io::Write;

use chancery_admin::json::Shape;
use chancery_model::{TypeUrl, is_unprintable, types};
use serde_json::Value;

use args::{Command, Output};
pub(crate) use failure::Failure;

/// Where answers go, and in which form.
pub(crate) struct Answer<'a> {
    pub(crate) out: &'a mut dyn Write,
    pub(crate) output: Output,
}

impl Answer<'_> {
    /// Writes a message as JSON or YAML; `text` writes it for people.
    fn show<M: Shape>(
        &mut self,
        message: &M,
        text: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        match self.output {
            Output::Text => text(self.out)?,
            Output::Json => self.json(&message.to_json())?,
            Output::Yaml => self.yaml(&message.to_json())?,
        }
        Ok(())
    }

    /// Writes JSON, in lines.
    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        writeln!(self.out, "{value:#}")?;
        Ok(())
    }

    fn yaml(&mut self, value: &Value) -> Result<(), Failure> {
        self.out.write_all(manifest::yaml(value)?.as_bytes())?;
        Ok(())
    }
}

/// Runs a command that talks to a replica: the first of `server`, a list with commas, that answers.
pub(crate) async fn run(
    command: Command,
    server: &str,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let servers = client::Servers::new(server);
    ask(command, &servers, answer).await.map_err(|failure| servers.named(failure))
}

async fn ask(
    command: Command,
    servers: &client::Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    if matches!(command, Command::Version) {
        return cluster::version(servers.connect_any().await.ok(), answer).await;
    }
    match command {
        Command::Backup(backup) => return backup::backup(servers, &backup, answer).await,
        Command::Restore(restore) => return backup::restore(restore, answer),
        _ => {}
    }
    // Input is read first: a missing file is told even if the server can not be reached.
    let write = write::Request::read(&command)?;
    if let Some(write) = write {
        return write.run(servers, answer).await;
    }
    let client = servers.connect_any().await?;
    match command {
        Command::Get(get) => resources::get(client, get, answer).await,
        Command::Describe(describe) => resources::describe(client, describe, answer).await,
        Command::Nodes(nodes) => nodes::list(client, nodes, answer).await,
        Command::Node(node) => nodes::show(client, node, answer).await,
        Command::Explain(explain) => explain::explain(client, explain, answer).await,
        Command::Assignments(args::Assignments::List { read }) => {
            cluster::assignments(client, read, answer).await
        }
        Command::History(history) => cluster::history(client, history, answer).await,
        Command::Cluster(command) => members::run(client, command, answer).await,
        Command::Serve(_)
        | Command::Backup(_)
        | Command::Restore(_)
        | Command::Config(_)
        | Command::Completions { .. }
        | Command::Version
        | Command::Apply(_)
        | Command::Import(_)
        | Command::Delete(_)
        | Command::Assignments(args::Assignments::Delete { .. }) => {
            Err(Failure::new("this command does not talk to a server"))
        }
    }
}

/// A type as it is typed: its first alias, or the message name.
fn short_type(type_url: &str) -> String {
    let Ok(type_url) = TypeUrl::new(type_url) else { return type_url.to_owned() };
    match types::properties(&type_url).aliases.first() {
        Some(alias) => (*alias).to_owned(),
        None => type_url.message_name().to_owned(),
    }
}

/// The priority of an assignment. The lowest one is that of the assignment that a new store has.
fn priority(priority: i64) -> String {
    if priority == i64::MIN { "lowest".to_owned() } else { priority.to_string() }
}

/// `1 node`, `2 nodes`.
fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Text from outside on one line, with nothing in it that steers a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn plain_text_has_no_separators_and_no_bidi_controls() {
        assert_eq!(super::plain("a\nb\u{2028}c\u{202e}d\u{9b}e é"), "a b c d e é");
    }
}
