//! The contexts file: named sets of connection settings.
//!
//! The file names the files with certificates and tokens, and contains no secret itself. It is replaced
//! atomically, with mode 600. A file that other users can write is refused: they could send the token to a server of
//! their choice.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{self, Path, PathBuf},
};

use chancery_config::read_text;
use clap::ValueEnum;
use toml::{Table, Value};

use super::{address, failure::Failure, text::did_you_mean};

/// The environment variable with the path of the file. If it is empty, there is no file.
const VARIABLE: &str = "CHANCERY_CONTEXTS";
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The first line of the file.
const COMMENT: &str = "# Connections of the command line. `chancery context` rewrites this file.\n";
/// The permissions to write for other users.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const NAME_CHARACTERS_MAX: usize = 64;

/// A setting of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Setting {
    /// The addresses of servers
    Server,
    /// The CAs that may sign the certificates of servers
    CaCert,
    /// The certificate of the caller
    Cert,
    /// The private key of the certificate
    CertKey,
    /// The file with the token of the caller
    TokenFile,
}

/// The settings of a context, as they are in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Context(pub(crate) BTreeMap<Setting, String>);

/// The content of a contexts file, which may not exist.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    /// The path; `None` if the environment names no directory for it.
    pub(crate) path: Option<PathBuf>,
    /// The name of the context for commands that name none.
    pub(crate) current: Option<String>,
    pub(crate) named: BTreeMap<String, Context>,
}

impl Setting {
    /// Returns the name of the key in the file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::CaCert => "ca_cert",
            Self::Cert => "cert",
            Self::CertKey => "cert_key",
            Self::TokenFile => "token_file",
        }
    }
}

impl Contexts {
    /// Reads the file of this process's environment. A file that does not exist has no contexts.
    ///
    /// # Errors
    /// Fails if the file is unusable, or if other users can write it.
    pub(crate) fn load() -> Result<Self, Failure> {
        match location() {
            Some(path) => Self::read(path),
            None => Ok(Self::default()),
        }
    }

    /// Changes the file, unless `change` fails. Concurrent changes wait for each other.
    pub(crate) fn update<T>(
        change: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(path) = location() else {
            return Err(Failure::new(format_args!(
                "there is no place for the contexts file: neither {VARIABLE} nor HOME names one; set {VARIABLE} to a path"
            )));
        };
        let failed = |error: io::Error| cannot("write", &path, &error);
        let dir = directory(&path);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let lock = fs::File::open(dir).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut contexts = Self::read(path.clone())?;
        let done = change(&mut contexts)?;
        contexts.write(&path).map_err(failed)?;
        Ok(done)
    }

    fn read(path: PathBuf) -> Result<Self, Failure> {
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path: Some(path), ..Self::default() });
            }
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        if !metadata.is_file() {
            return Err(cannot("read", &path, &"it is not a regular file"));
        }
        let file = fs::File::open(&path).map_err(|error| cannot("read", &path, &error))?;
        check_owner(&path, &file)?;
        let text =
            read_text(file, FILE_BYTES_MAX).map_err(|error| cannot("read", &path, &error))?;
        Self::parse(path, &text)
    }

    fn parse(path: PathBuf, text: &str) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let refused = |what: String| Failure::new(format_args!("{shown}: {what}"));
        let file: Table = text.parse().map_err(|error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
            // The whole error would quote the line.
            Failure::new(format_args!("{shown}:{line}: {}", error.message()))
        })?;
        let mut contexts = Self { path: Some(path), ..Self::default() };
        for (key, value) in file {
            match (key.as_str(), value) {
                ("current", Value::String(name)) => contexts.current = Some(name),
                ("current", _) => return Err(refused("`current` must be a text".to_owned())),
                ("contexts", Value::Table(named)) => {
                    for (name, settings) in named {
                        let context = context(&name, settings).map_err(refused)?;
                        contexts.named.insert(name, context);
                    }
                }
                ("contexts", _) => {
                    return Err(refused("`contexts` must be a table of contexts".to_owned()));
                }
                (key, _) => {
                    let hint = did_you_mean(key, ["contexts", "current"]);
                    return Err(refused(format!(
                        "`{key}` is not a key; the keys are `current` and `contexts.NAME`{hint}"
                    )));
                }
            }
        }
        Ok(contexts)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        // A symbolic link stays, and the file to which it leads is replaced.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut file = tempfile::Builder::new()
            .prefix(".contexts-")
            .suffix(".tmp")
            .permissions(fs::Permissions::from_mode(0o600))
            .tempfile_in(directory(&target))?;
        file.write_all(COMMENT.as_bytes())?;
        file.write_all(self.to_toml().to_string().as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&target).map(drop).map_err(|error| error.error)
    }

    fn to_toml(&self) -> Table {
        let settings = |context: &Context| {
            let setting =
                |(key, value): (&Setting, &String)| (key.name().to_owned(), value.clone().into());
            Value::Table(context.0.iter().map(setting).collect())
        };
        let mut table = Table::new();
        if let Some(current) = &self.current {
            table.insert("current".to_owned(), current.clone().into());
        }
        let named = self.named.iter().map(|(name, context)| (name.clone(), settings(context)));
        table.insert("contexts".to_owned(), Value::Table(named.collect()));
        table
    }

    /// Returns the context of this name.
    ///
    /// # Errors
    /// Fails if the context does not exist. `chosen_by` is the origin of the name.
    pub(crate) fn get(&self, name: &str, chosen_by: &str) -> Result<&Context, Failure> {
        self.named.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.named.keys().map(String::as_str).collect();
            let place = match &self.path {
                Some(path) => path.display().to_string(),
                None => format!("a contexts file, because neither HOME nor {VARIABLE} is set"),
            };
            let hint = match did_you_mean(name, known.iter().copied()) {
                hint if !hint.is_empty() => hint,
                _ if known.is_empty() => "; `chancery context set NAME` creates one".to_owned(),
                _ => format!("; the contexts are {}", known.join(", ")),
            };
            Failure::new(format_args!(
                "there is no context {name:?} ({chosen_by}) in {place}{hint}"
            ))
        })
    }

    /// Returns the path of a setting. A relative path begins at the directory of the contexts file.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        match &self.path {
            Some(file) => {
                let file = path::absolute(file).unwrap_or_else(|_| file.clone());
                directory(&file).join(path)
            }
            None => PathBuf::from(path),
        }
    }
}

/// Returns the path of the file.
fn location() -> Option<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE) {
        return (!path.is_empty()).then(|| PathBuf::from(path));
    }
    let is_usable = |dir: &PathBuf| dir.is_absolute();
    let config = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(is_usable);
    let home = || env::var_os("HOME").map(PathBuf::from).filter(is_usable);
    let config = config.or_else(|| Some(home()?.join(".config")))?;
    Some(config.join("chancery/contexts.toml"))
}

/// Returns the directory of a file.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Fails if another user can write the file.
fn check_owner(path: &Path, file: &fs::File) -> Result<(), Failure> {
    let metadata = file.metadata().map_err(|error| cannot("read", path, &error))?;
    let (owner, own) = (metadata.uid(), rustix::process::geteuid().as_raw());
    let mode = metadata.mode() & 0o777;
    let shown = path.display();
    if owner != own && owner != 0 {
        return Err(Failure::new(format_args!(
            "the contexts file {shown} is not used: it belongs to the user {owner}, not to {own}; use a file of your own"
        )));
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(Failure::new(format_args!(
            "the contexts file {shown} is not used: its mode {mode:o} lets other users write it; run chmod 600 {shown}"
        )));
    }
    Ok(())
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format_args!("cannot {what} the contexts file {}: {error}", path.display()))
}

/// Reads the settings of a context.
fn context(name: &str, settings: Value) -> Result<Context, String> {
    check_name(name)?;
    let Value::Table(settings) = settings else {
        return Err(format!("[contexts.{name}] must be a table"));
    };
    let mut context = Context::default();
    for (key, value) in settings {
        let Some(known) = Setting::value_variants().iter().find(|known| known.name() == key) else {
            let known: Vec<&str> = Setting::value_variants().iter().map(|key| key.name()).collect();
            let hint = match key.as_str() {
                "token" => {
                    "; a token is never in this file: set token_file to the file with it".to_owned()
                }
                key => did_you_mean(key, known.iter().copied()),
            };
            let known = known.join(", ");
            return Err(format!(
                "[contexts.{name}]: `{key}` is not a key; the keys are {known}{hint}"
            ));
        };
        // The message does not show the value, which could be a secret in the wrong place.
        let text = value.as_str().filter(|text| !text.is_empty()).ok_or_else(|| {
            format!("[contexts.{name}]: `{key}` must be a text that is not empty; remove the key instead")
        })?;
        if *known == Setting::Server {
            check_servers(text).map_err(|rule| format!("[contexts.{name}]: `server` {rule}"))?;
        }
        context.0.insert(*known, text.to_owned());
    }
    Ok(context)
}

/// Checks the name of a context.
///
/// # Errors
/// Returns the rule that the name breaks.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=NAME_CHARACTERS_MAX).contains(&name.len()) && name.chars().all(is_allowed) {
        Ok(())
    } else {
        Err(format!(
            "{name:?} is not the name of a context: it must have 1 to {NAME_CHARACTERS_MAX} letters, digits, '.', '_' \
             and '-'"
        ))
    }
}

/// Checks a list of servers.
///
/// # Errors
/// Returns the rule that the list breaks, without the list: it may contain a password.
pub(crate) fn check_servers(list: &str) -> Result<(), String> {
    if list.contains('@') {
        return Err("must not contain a user or a password; use cert or token_file".to_owned());
    }
    let are_valid = list.split(',').all(|server| address::is_valid(server.trim()));
    let rule = "must be HOST:PORT or https://HOST:PORT, or a list of these, separated by commas";
    if are_valid { Ok(()) } else { Err(rule.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Contexts, String> {
        let parsed = Contexts::parse("/home/a/contexts.toml".into(), text);
        parsed.map_err(|failure| failure.lines.join("; "))
    }

    #[test]
    fn file_is_read_as_it_was_written() {
        let text = "current = \"prod\"\n[contexts.prod]\nserver = \"https://a:1,https://b:1\"\n\
                    ca_cert = \"ca.pem\"\ntoken_file = \"/run/token\"\n[contexts.\"dev.1\"]\n";
        let contexts = parsed(text).unwrap();
        let again = parsed(&contexts.to_toml().to_string()).unwrap();
        assert_eq!((&again.current, &again.named), (&contexts.current, &contexts.named));
        let prod = &contexts.named["prod"].0;
        assert_eq!(contexts.resolve(&prod[&Setting::CaCert]), Path::new("/home/a/ca.pem"));
        assert_eq!(contexts.resolve(&prod[&Setting::TokenFile]), Path::new("/run/token"));
    }

    #[test]
    fn wrong_file_is_refused_without_its_values() {
        for (text, expected) in [
            (
                "curent = 'hush'",
                "`curent` is not a key; the keys are `current` and `contexts.NAME`; did you mean \"current\"?",
            ),
            ("current = 1", "`current` must be a text"),
            ("contexts = 'hush'", "`contexts` must be a table of contexts"),
            ("[contexts]\na = 'hush'", "[contexts.a] must be a table"),
            (
                "[contexts.a]\nsever = 'hush'",
                "[contexts.a]: `sever` is not a key; the keys are server, ca_cert, cert, cert_key, token_file; did you \
                 mean \"server\"?",
            ),
            (
                "[contexts.a]\ntoken = 'hush'",
                "[contexts.a]: `token` is not a key; the keys are server, ca_cert, cert, cert_key, token_file; a token \
                 is never in this file: set token_file to the file with it",
            ),
            (
                "[contexts.a]\ncert = ''",
                "[contexts.a]: `cert` must be a text that is not empty; remove the key instead",
            ),
            (
                "[contexts.a]\nserver = 'https://user:hush@a:1'",
                "[contexts.a]: `server` must not contain a user or a password; use cert or token_file",
            ),
            (
                "[contexts.a]\nserver = 'a'",
                "[contexts.a]: `server` must be HOST:PORT or https://HOST:PORT, or a list of these, separated by commas",
            ),
            (
                "[contexts.'a b']",
                "\"a b\" is not the name of a context: it must have 1 to 64 letters, digits, '.', '_' and '-'",
            ),
        ] {
            let error = parsed(text).unwrap_err();
            assert_eq!(error, format!("/home/a/contexts.toml: {expected}"));
        }
        let error = parsed("current = 'a'\n[contexts.a\ntoken = 'hush'").unwrap_err();
        assert!(
            error.starts_with("/home/a/contexts.toml:2: ") && !error.contains("hush"),
            "{error}"
        );
    }

    #[test]
    fn unknown_context_is_an_error_with_the_nearest_name() {
        let contexts = parsed("[contexts.prod]\n[contexts.dev]\n").unwrap();
        let error = |name: &str| contexts.get(name, "--context").unwrap_err().lines.join("; ");
        let start = |name: &str| {
            format!("there is no context {name:?} (--context) in /home/a/contexts.toml")
        };
        assert_eq!(error("prd"), start("prd") + "; did you mean \"prod\"?");
        assert_eq!(error("other"), start("other") + "; the contexts are dev, prod");
    }
}
