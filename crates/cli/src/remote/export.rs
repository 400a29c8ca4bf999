//! The command `export`: everything as a directory of manifests.

use std::path::PathBuf;

use chancery_admin_proto::v1 as pb;
use clap::{Args, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};

use super::{client::Servers, mirror::file_name};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    progress::{Progress, Stage, on_thread},
    text::{count, plain, type_alias},
    yaml::yaml,
};

mod directory;
mod entries;
mod source;

use directory::{Directory, Replaced};
use entries::Entries;
use source::Source;

/// The maximum number of files that one request of `apply` may have.
const APPLY_FILES_MAX: u64 = 10_000;

/// The arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Directory to write; created if it does not exist
    ///
    /// The files are assignments.yaml, access.yaml, quotas.yaml, and scopes/SCOPE/TYPE.yaml. The command replaces
    /// files of an earlier export, and removes those without content. It keeps all other files, and
    /// lists them. If one of them is in the way, the command fails and changes nothing.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Export only the resources of this scope [default: everything]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
}

/// The numbers of an export.
#[derive(Debug, Default)]
struct Counts {
    revision: u64,
    resources: u64,
    /// The resources whose entries keep the stored resource.
    kept: u64,
}

/// Writes a directory of manifests.
pub(super) async fn run(
    export: Export,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let Export { directory, scope } = export;
    let only = scope.as_deref().map(scope_directory);
    let mut progress = Progress::new()?;
    let stage = progress.stage();
    let path = directory.clone();
    let read = async {
        let mut directory = Directory::open(&path).map_err(|error| failed(&path, &error))?;
        let counts = write_all(servers, scope.as_deref(), &mut directory, &stage).await?;
        Ok::<_, Failure>((directory, counts))
    };
    let name = directory.display();
    let unchanged = |why: &str| format!("interrupted: {why}; run the command again ({name})");
    let (staged, counts) = progress
        .run(read)
        .await
        .map_err(|stopped| stopped.failure([unchanged("no file was changed")]))??;
    stage.begin("replacing files");
    let replace = on_thread(move || staged.replace(only.as_deref()));
    let replaced = progress
        .run(replace)
        .await
        .map_err(|stopped| stopped.failure([unchanged("some files may not be replaced")]))??
        .map_err(|error| failed(&directory, &error))?;
    show(&counts, &replaced, answer)
}

fn failed(path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::new(format_args!("cannot export to {}: {error}", path.display()))
}

/// Writes all files next to their places.
async fn write_all(
    servers: &Servers,
    scope: Option<&str>,
    directory: &mut Directory,
    stage: &Stage,
) -> Result<Counts, Failure> {
    stage.begin("reading");
    let mut source = Source::open(servers, scope).await?;
    let mut counts = Counts { revision: source.revision, ..Counts::default() };
    if let Some(rules) = source.rules.take() {
        for (key, list) in
            [("assignments", rules.assignments), ("access", rules.access), ("quotas", rules.quotas)]
        {
            directory.begin(format!("{key}.yaml"))?;
            directory.write(&yaml(&json!({ key: list }))?)?;
        }
    }
    let mut last = None;
    while let Some(resources) = source.next().await? {
        let of_one_file =
            |a: &pb::Resource, b: &pb::Resource| (&a.scope, &a.type_url) == (&b.scope, &b.type_url);
        for part in resources.chunk_by(of_one_file) {
            let place = (part[0].scope.clone(), part[0].type_url.clone());
            if last.as_ref() != Some(&place) {
                let (scope, type_url) = &place;
                directory.begin(format!(
                    "{}/{}.yaml",
                    scope_directory(scope),
                    type_file(type_url)
                ))?;
                directory.write(&entries::head(scope)?)?;
                last = Some(place);
            }
            let Entries { text, kept } = entries::entries(part)?;
            directory.write(&text)?;
            counts.resources += part.len() as u64;
            counts.kept += kept;
        }
        stage.set(counts.resources, 0, "resources");
        // The next pieces may be there already. The progress and a signal need a turn in between.
        tokio::task::yield_now().await;
    }
    Ok(counts)
}

fn scope_directory(scope: &str) -> String {
    format!("scopes/{}", file_name(scope))
}

/// Returns the file name of a type, without its extension. A type URL has a slash, so that it has another file name
/// than each alias.
fn type_file(type_url: &str) -> String {
    type_alias(type_url).map_or_else(|| file_name(type_url), str::to_owned)
}

fn show(counts: &Counts, replaced: &Replaced, answer: &mut Answer<'_>) -> Result<(), Failure> {
    let Counts { revision, resources, kept } = counts;
    let Replaced { written, unchanged, removed, left, left_omitted } = replaced;
    let files = written + unchanged;
    if *kept > 0 {
        note(&format!(
            "{} with secrets or unknown fields: the entries keep what is stored (`unchanged`)",
            count(*kept, "resource")
        ));
    }
    for path in left {
        note(&format!("left {path}, which `chancery export` did not write"));
    }
    if *left_omitted > 0 {
        note(&format!("left {}", count(*left_omitted, "further file")));
    }
    if files > APPLY_FILES_MAX {
        note(&format!(
            "the directory has {files} files, but one `apply` accepts {APPLY_FILES_MAX}; apply its subdirectories separately"
        ));
    }
    let json = || -> Value {
        json!({
            "revision": revision, "resources": resources, "kept": kept, "files": files, "written": written,
            "unchanged": unchanged, "removed": removed, "left": left, "left_omitted": left_omitted,
        })
    };
    match answer.output {
        Output::Json | Output::Sarif => answer.json(&json()),
        Output::Yaml => answer.yaml(&json()),
        Output::Text | Output::Wide => answer.text(|out| {
            let (resources, files) = (count(*resources, "resource"), count(files, "file"));
            writeln!(
                out,
                "revision {revision}: {resources} in {files}: {written} written, {unchanged} unchanged, {removed} removed"
            )
        }),
    }
}

fn note(text: &str) {
    // A failure to write to standard error cannot be reported anywhere.
    drop(std::io::Write::write_fmt(
        &mut std::io::stderr(),
        format_args!("note: {}\n", plain(text)),
    ));
}

#[cfg(test)]
mod tests {
    use chancery_model::types;

    use super::*;

    #[test]
    fn each_type_has_a_file_of_its_own() {
        assert_eq!(type_file(types::CLUSTER), "cluster");
        assert_eq!(type_file("example.com/a.B"), "example.com%2Fa.B");
        assert_ne!(type_file("type.googleapis.com/a.B"), type_file("example.com/a.B"));
        assert_eq!(scope_directory("node/a"), "scopes/node%2Fa");
    }
}
