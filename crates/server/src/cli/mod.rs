//! The commands that connect to a replica: arguments, requests and output.

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

use chancery_admin::json::JsonMessage;
use chancery_model::{Printable, TypeUrl, is_unprintable, types};
use serde_json::Value;

use args::{Command, Output};
pub(crate) use failure::Failure;

/// The destination and the format of a command's output.
pub(crate) struct Answer<'a> {
    pub(crate) out: &'a mut dyn Write,
    pub(crate) output: Output,
}

impl Answer<'_> {
    /// Writes a message as JSON or YAML, or as text with `text`.
    fn show<M: JsonMessage>(
        &mut self,
        message: &M,
        text: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        match self.output {
            Output::Text => self.text(text)?,
            Output::Json => self.json(&message.to_json())?,
            Output::Yaml => self.yaml(&message.to_json())?,
        }
        Ok(())
    }

    /// Writes lines of text, with escapes for characters that could control the terminal.
    pub(crate) fn text(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        let mut text = Vec::new();
        write(&mut text)?;
        for line in String::from_utf8_lossy(&text).lines() {
            writeln!(self.out, "{}", Printable(line))?;
        }
        Ok(())
    }

    /// Writes indented JSON.
    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        writeln!(self.out, "{}", printable_json(&format!("{value:#}")))?;
        Ok(())
    }

    fn yaml(&mut self, value: &Value) -> Result<(), Failure> {
        self.out.write_all(manifest::yaml(value)?.as_bytes())?;
        Ok(())
    }
}

/// Runs a command. `server` is a list of servers, separated by commas; the command uses the first
/// one that answers.
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
    // The input is read first, so that a missing file is reported even if no server is reachable.
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
            Err(Failure::new("this command does not connect to a server"))
        }
    }
}

/// Returns the first alias of a type, or its message name.
fn short_type(type_url: &str) -> String {
    let Ok(type_url) = TypeUrl::new(type_url) else { return type_url.to_owned() };
    match types::properties(&type_url).aliases.first() {
        Some(alias) => (*alias).to_owned(),
        None => type_url.message_name().to_owned(),
    }
}

/// Returns the priority of an assignment as text. The initial assignment of a new store has the
/// lowest priority.
fn priority(priority: i64) -> String {
    if priority == i64::MIN { "lowest".to_owned() } else { priority.to_string() }
}

/// Returns a number with a noun: `1 node`, `2 nodes`.
fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Returns foreign text as one line, with escapes for characters that could control the terminal.
fn plain(text: &str) -> String {
    Printable(text).to_string()
}

/// Escapes unprintable characters in JSON. They occur only in strings.
fn printable_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c != '\n' && is_unprintable(c) {
            true => {
                out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")))
            }
            false => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters that every output format escapes.
    const ODD: &str = "a\u{2028}b\u{202e}c\u{200b}d\u{9b}e\u{3164}f\u{115f}g\u{34f}h\u{e0041}";

    #[test]
    fn text_for_people_has_no_unprintable_characters() {
        let (mut out, output) = (Vec::new(), Output::Text);
        Answer { out: &mut out, output }
            .text(|out| writeln!(out, "one {ODD}\ntwo {:?}", "\u{3164}"))
            .unwrap();
        let escaped = r"a\u{2028}b\u{202e}c\u{200b}d\u{9b}e\u{3164}f\u{115f}g\u{34f}h\u{e0041}";
        let expected = format!("one {escaped}\ntwo \"\\u{{3164}}\"\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn json_and_yaml_escape_unprintable_characters_and_keep_their_values() {
        let literal = r"C:\uFFFF0000202E \u202e";
        let value = serde_json::json!({
            "text": ODD, "lines": format!("x\ny\t{ODD}"), ODD: [ODD, literal, "\u{ffff}", "a: #\u{202e}"],
            "plain": "line\nline\n", "long": format!("{} {ODD}", "word ".repeat(40)),
        });
        let (mut out, output) = (Vec::new(), Output::Json);
        Answer { out: &mut out, output }.json(&value).unwrap();
        let json = String::from_utf8(out).unwrap();
        let yaml = manifest::yaml(&value).unwrap();
        let odd = |text: &str| text.chars().any(|c| c != '\n' && is_unprintable(c));
        assert!(
            !odd(&json) && json.contains(r"b\u202ec") && json.contains(r"h\udb40\udc41"),
            "{json}"
        );
        assert!(!odd(&yaml) && yaml.contains(r"b\U0000202Ec"), "{yaml}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), value, "{yaml}");
    }
}
