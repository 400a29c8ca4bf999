//! Contexts: the file, the commands, and the order of the settings.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::support::{Done, chancery, run};

/// A home directory.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join(".config/chancery/contexts.toml")
    }

    fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> Done {
        let mut command = chancery();
        command.env("HOME", self.0.path()).current_dir(self.0.path());
        command.args(args).envs(variables.iter().copied());
        run(command, "")
    }

    fn ok(&self, args: &[&str]) -> String {
        let done = self.run(args, &[]);
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{args:?}: {}", done.out);
        done.out
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["-o", "json"]].concat())).unwrap()
    }

    fn error(&self, args: &[&str]) -> String {
        let done = self.run(args, &[]);
        assert_ne!(done.code, 0, "{args:?}: {}", done.out);
        done.err
    }

    /// Returns the server to which a command tries to connect.
    fn server(&self, args: &[&str], variables: &[(&str, &str)]) -> String {
        let done = self.run(&[&["get"], args].concat(), variables);
        let start = "error: cannot reach the server at ";
        let rest = done.err.strip_prefix(start).unwrap_or_else(|| panic!("{done:?}"));
        rest.split(": ").next().unwrap().to_owned()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn context_is_created_used_changed_and_deleted() {
    let home = Home::new();
    assert_eq!(home.ok(&["context", "list"]), "there are no contexts\n");
    let set = ["context", "set", "prod", "--server", "127.0.0.1:2", "--ca-cert", "certs/ca.pem"];
    assert_eq!(
        home.ok(&[&set, ["--token-file", "/run/token"].as_slice()].concat()),
        "context prod is created\n"
    );
    assert_eq!((mode(&home.file()), mode(home.file().parent().unwrap())), (0o600, 0o700));
    assert_eq!(
        home.ok(&["context", "set", "dev", "--server", "127.0.0.1:3"]),
        "context dev is created\n"
    );
    home.ok(&["context", "use", "prod"]);
    let list = home.ok(&["context", "list"]);
    let expected =
        "CURRENT  NAME  SERVER\n-        dev   127.0.0.1:3\n*        prod  127.0.0.1:2\n";
    assert_eq!(list, expected);
    // Relative paths were relative to the directory of the command.
    let ca = home.0.path().canonicalize().unwrap().join("certs/ca.pem").display().to_string();
    let shown = home.json(&["context", "show"]);
    let settings = json!({"server": "127.0.0.1:2", "ca_cert": ca, "token_file": "/run/token"});
    assert_eq!(shown, json!({"name": "prod", "settings": settings}));
    home.ok(&[
        "context",
        "set",
        "prod",
        "--unset",
        "ca-cert,token-file",
        "--server",
        "127.0.0.1:4",
    ]);
    assert_eq!(
        home.ok(&["context", "show", "prod"]),
        "name        prod\nserver      127.0.0.1:4\n"
    );
    let deleted = home.ok(&["context", "delete", "prod"]);
    assert_eq!(deleted, "context prod is deleted; commands now use no context\n");
    assert_eq!(home.json(&["context", "list"])["current"], Value::Null);
    let error = home.error(&["context", "use", "prod"]);
    assert!(
        error.contains("there is no context \"prod\"") && error.contains("the contexts are dev"),
        "{error}"
    );
    let error = home.error(&["context", "set", "half", "--cert", "c"]);
    assert!(error.contains("needs both of --cert and --cert-key"), "{error}");
    let error = home.error(&["context", "set", "x", "--server", "https://me:hush@h:1"]);
    assert!(
        error.contains("--server must not contain a user") && !error.contains("hush"),
        "{error}"
    );
    let error = home.error(&["context", "set", "a b", "--server", "h:1"]);
    assert!(error.contains("is not the name of a context"), "{error}");
}

/// Flags come first. Then the context of `--context`, variables, the context of other origins, and the default.
#[test]
fn setting_comes_from_the_first_origin_that_has_it() {
    let home = Home::new();
    home.ok(&["context", "set", "a", "--server", "127.0.0.1:2"]);
    home.ok(&["context", "set", "b", "--server", "127.0.0.1:3"]);
    home.ok(&["context", "set", "none"]);
    let server = ("CHANCERY_SERVER", "127.0.0.1:4");
    let named = ("CHANCERY_CONTEXT", "b");
    assert_eq!(home.server(&[], &[server]), "127.0.0.1:4");
    assert_eq!(home.server(&[], &[named]), "127.0.0.1:3");
    home.ok(&["context", "use", "a"]);
    assert_eq!(home.server(&[], &[]), "127.0.0.1:2");
    assert_eq!(home.server(&[], &[named]), "127.0.0.1:3");
    assert_eq!(home.server(&[], &[server, named]), "127.0.0.1:4");
    assert_eq!(home.server(&["--context", "a"], &[server, named]), "127.0.0.1:2");
    assert_eq!(home.server(&["--context", "none"], &[server]), "127.0.0.1:4");
    let flags = ["--context", "a", "--server", "127.0.0.1:5"];
    assert_eq!(home.server(&flags, &[server, named]), "127.0.0.1:5");
    // The other settings of the context still apply.
    home.ok(&["context", "set", "a", "--token-file", "none"]);
    let done = home.run(&["get", "--server", "127.0.0.1:5"], &[]);
    assert!(done.err.contains("cannot read the token file "), "{done:?}");
    let done = home.run(&["get"], &[("CHANCERY_CONTEXT", "prd")]);
    assert!(done.err.contains("there is no context \"prd\" (CHANCERY_CONTEXT)"), "{done:?}");
    // Commands without a server use no context.
    let done = home.run(&["config", "check"], &[("CHANCERY_CONTEXT", "prd")]);
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
}

#[test]
fn contexts_file_that_others_can_write_is_refused() {
    let home = Home::new();
    home.ok(&["context", "set", "a", "--server", "127.0.0.1:2"]);
    let file = home.file();
    for (unsafe_mode, safe_mode) in [(0o620, 0o640), (0o602, 0o644)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(unsafe_mode)).unwrap();
        for args in [["get", "--context", "a"].as_slice(), &["get"], &["context", "use", "a"]] {
            let error = home.error(args);
            let shown = file.display();
            let expected = format!(
                "error: the contexts file {shown} is not used: its mode {unsafe_mode:o} lets other users write it; run \
                 chmod 600 {shown}\n"
            );
            assert_eq!(error, expected, "{args:?}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(safe_mode)).unwrap();
        assert_eq!(home.server(&["--context", "a"], &[]), "127.0.0.1:2");
    }
}

#[test]
fn contexts_file_may_be_elsewhere_and_name_relative_paths() {
    let home = Home::new();
    let other = home.0.path().join("other");
    fs::create_dir(&other).unwrap();
    let real = other.join("real.toml");
    fs::write(&real, "current = 'a'\n[contexts.a]\ntoken_file = 'token'\n").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
    let link = home.0.path().join("link.toml");
    symlink(&real, &link).unwrap();
    let at = |path: &Path| [("CHANCERY_CONTEXTS", path.display().to_string())];
    let run = |args: &[&str], path: &Path| {
        let [(name, path)] = at(path);
        home.run(args, &[(name, &path)])
    };
    let done = run(&["get"], &real);
    let token = other.join("token");
    assert!(done.err.contains(&token.display().to_string()), "{done:?}");
    // A change replaces the file behind the link, and not the link.
    assert_eq!(run(&["context", "set", "b"], &link).code, 0);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert!(fs::read_to_string(&real).unwrap().contains("[contexts.b]"));
    let done = home.run(&["context", "set", "c"], &[("XDG_CONFIG_HOME", other.to_str().unwrap())]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(other.join("chancery/contexts.toml").is_file());
    let done = home.run(&["context", "set", "c"], &[("CHANCERY_CONTEXTS", "")]);
    assert!(done.err.contains("there is no place for the contexts file"), "{done:?}");
}

/// Concurrent changes do not lose each other.
#[test]
fn concurrent_changes_are_all_kept() {
    let home = Home::new();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let home = &home;
            scope.spawn(move || home.ok(&["context", "set", &format!("c{n}")]));
        }
    });
    assert_eq!(home.json(&["context", "list"])["contexts"].as_object().unwrap().len(), 8);
}
