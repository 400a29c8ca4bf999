//! The commands `context`: named sets of connection settings.

use std::path::{self, Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::{
    answer::{Answer, Output},
    contexts::{Context, Contexts, Setting, check_name, check_servers},
    failure::Failure,
    help::examples,
    remote::ConnectionFlags,
    table::Table,
    text::plain,
};

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List the contexts; `*` marks the one that commands use
    List,
    /// Let commands use this context unless they name another one
    #[command(after_help = examples(&["context use prod"]))]
    Use {
        /// Name of the context
        name: String,
    },
    /// Create a context, or change the given settings of one
    ///
    /// Paths are stored as absolute paths. In the file, a relative path begins at the directory of the file.
    #[command(after_help = examples(&[
        "context set prod --server https://a.example:18001,https://b.example:18001 --ca-cert ca.pem --token-file token",
        "context set prod --unset token-file",
    ]))]
    Set(Set),
    /// Show the settings of a context; no file that it names is read
    Show {
        /// Name of the context [default: the one that commands use]
        name: Option<String>,
    },
    /// Delete a context
    #[command(after_help = examples(&["context delete prod"]))]
    Delete {
        /// Name of the context
        name: String,
    },
}

/// The arguments of `context set`. They have the names of the global flags, and take their place.
#[derive(Debug, Args)]
pub(crate) struct Set {
    /// Name of the context
    name: String,
    /// Addresses of admin ports, separated by commas
    #[arg(long, value_name = "ADDR")]
    server: Option<String>,
    /// CAs that may sign the certificates of servers (PEM)
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// Certificate of the caller (PEM)
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    cert_key: Option<PathBuf>,
    /// File with the token of the caller; the token itself is never stored
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Remove these settings
    #[arg(long, value_enum, value_name = "KEY[,KEY]", value_delimiter = ',')]
    unset: Vec<Setting>,
}

impl ContextCommand {
    /// Runs the command.
    pub(crate) fn run(
        self,
        flags: &ConnectionFlags,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        match self {
            Self::List => list(flags, answer),
            Self::Use { name } => {
                Contexts::update(|contexts| {
                    contexts.get(&name, "NAME")?;
                    contexts.current = Some(name.clone());
                    Ok(())
                })?;
                done(&name, "is now used by commands that name no other one", answer)
            }
            Self::Set(set) => set.run(answer),
            Self::Show { name } => show(name, flags, answer),
            Self::Delete { name } => {
                let was_current = Contexts::update(|contexts| {
                    contexts.get(&name, "NAME")?;
                    contexts.named.remove(&name);
                    let was_current = contexts.current.as_ref() == Some(&name);
                    if was_current {
                        contexts.current = None;
                    }
                    Ok(was_current)
                })?;
                let what = if was_current {
                    "is deleted; commands now use no context"
                } else {
                    "is deleted"
                };
                done(&name, what, answer)
            }
        }
    }
}

impl Set {
    fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        check_name(&self.name).map_err(Failure::new)?;
        if let Some(servers) = &self.server {
            check_servers(servers).map_err(|rule| Failure::new(format_args!("--server {rule}")))?;
        }
        let mut given = Vec::new();
        given.extend(self.server.map(|servers| (Setting::Server, servers)));
        for (key, path) in [
            (Setting::CaCert, self.ca_cert),
            (Setting::Cert, self.cert),
            (Setting::CertKey, self.cert_key),
            (Setting::TokenFile, self.token_file),
        ] {
            if let Some(path) = path {
                given.push((key, absolute(&path)?));
            }
        }
        let name = self.name;
        let is_new = Contexts::update(|contexts| {
            let is_new = !contexts.named.contains_key(&name);
            let Context(settings) = contexts.named.entry(name.clone()).or_default();
            self.unset.iter().for_each(|key| drop(settings.remove(key)));
            settings.extend(given);
            if settings.contains_key(&Setting::Cert) == settings.contains_key(&Setting::CertKey) {
                Ok(is_new)
            } else {
                Err(Failure::new("a context needs both of --cert and --cert-key, or none of them"))
            }
        })?;
        done(&name, if is_new { "is created" } else { "is changed" }, answer)
    }
}

/// Returns an absolute path as text. Commands may use the context in any directory.
fn absolute(path: &Path) -> Result<String, Failure> {
    let absolute = path::absolute(path)
        .map_err(|error| Failure::new(format_args!("cannot find {}: {error}", path.display())))?;
    absolute.into_os_string().into_string().map_err(|path| {
        Failure::new(format_args!("cannot store the path {}: it is not UTF-8 text", path.display()))
    })
}

/// Reports a change.
fn done(name: &str, what: &str, answer: &mut Answer<'_>) -> Result<(), Failure> {
    match answer.output {
        Output::Text | Output::Wide => {
            answer.text(|out| writeln!(out, "context {} {what}", plain(name)))
        }
        Output::Yaml => answer.yaml(&json!({"context": name})),
        Output::Json | Output::Sarif => answer.json(&json!({"context": name})),
    }
}

fn list(flags: &ConnectionFlags, answer: &mut Answer<'_>) -> Result<(), Failure> {
    let contexts = Contexts::load()?;
    let chosen = flags.chosen(&contexts)?.map(|(name, _)| name);
    if matches!(answer.output, Output::Text | Output::Wide) {
        let mut table = Table::new(["CURRENT", "NAME", "SERVER"]);
        for (name, context) in &contexts.named {
            let mark = if chosen.as_ref() == Some(name) { "*" } else { "" };
            let server = context.0.get(&Setting::Server).cloned().unwrap_or_default();
            table.row([mark.to_owned(), name.clone(), server]);
        }
        return answer.text(|out| {
            if table.is_empty() {
                writeln!(out, "there are no contexts")
            } else {
                table.write(out, "")
            }
        });
    }
    let all =
        contexts.named.iter().map(|(name, context)| (name.clone(), settings(&contexts, context)));
    let all: Map<String, Value> = all.collect();
    write(&json!({"current": chosen, "contexts": all}), answer)
}

fn show(
    name: Option<String>,
    flags: &ConnectionFlags,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let contexts = Contexts::load()?;
    let (name, chosen_by) = match name {
        Some(name) => (name, "NAME"),
        None => flags.chosen(&contexts)?.ok_or_else(|| {
            Failure::new("no context is in use; name one, or run `chancery context use NAME`")
        })?,
    };
    let settings = settings(&contexts, contexts.get(&name, chosen_by)?);
    if matches!(answer.output, Output::Text | Output::Wide) {
        return answer.text(|out| {
            writeln!(out, "{:<12}{}", "name", plain(&name))?;
            for (key, value) in settings.as_object().into_iter().flatten() {
                writeln!(out, "{key:<12}{}", plain(value.as_str().unwrap_or_default()))?;
            }
            Ok(())
        });
    }
    write(&json!({"name": name, "settings": settings}), answer)
}

/// Returns the settings with absolute paths.
fn settings(contexts: &Contexts, context: &Context) -> Value {
    let setting = |(key, value): (&Setting, &String)| {
        let value = match key {
            Setting::Server => value.clone(),
            _ => contexts.resolve(value).display().to_string(),
        };
        (key.name().to_owned(), value.into())
    };
    Value::Object(context.0.iter().map(setting).collect())
}

fn write(value: &Value, answer: &mut Answer<'_>) -> Result<(), Failure> {
    match answer.output {
        Output::Yaml => answer.yaml(value),
        _ => answer.json(value),
    }
}
