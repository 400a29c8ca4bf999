//! Names that a client asks for and does not see.

use chancery_fanout::{Fanout, StreamContents, StreamStatus};
use chancery_model::{StructuredName, TypeUrl};
use chancery_protocol::{ContentsReader, ResourceState, ResourceStatus};

/// The maximum number of streams whose names are read.
const STREAMS_MAX: usize = 4;
/// The maximum number of names in a sentence.
const NAMES_MAX: usize = 5;

/// Returns a sentence for each stream that asks for names of a type that its node does not see. Reads the first page of
/// names.
pub(super) async fn missing_names(
    fanout: &Fanout,
    streams: &[&StreamStatus],
    type_url: &TypeUrl,
) -> Vec<String> {
    let names_some = |stream: &&&StreamStatus| {
        let mut subscriptions = stream.subscriptions.iter();
        subscriptions.any(|one| one.type_url == *type_url && !one.wildcard && one.n_names > 0)
    };
    let mut sentences = Vec::new();
    for stream in streams.iter().filter(names_some).take(STREAMS_MAX) {
        let contents = fanout.contents(&stream.stream, type_url, None).await;
        let Some(StreamContents { page, .. }) = contents else { continue };
        sentences.extend(sentence(&ContentsReader::default().read(page)));
    }
    sentences
}

fn sentence(names: &[ResourceStatus]) -> Option<String> {
    let has_members = |name: &str| {
        StructuredName::parse(name).is_ok_and(|glob| {
            glob.is_glob() && names.iter().any(|one| glob.has_member(one.name.as_str()))
        })
    };
    let is_missing = |one: &&ResourceStatus| {
        one.state == ResourceState::Unknown && !has_members(one.name.as_str())
    };
    let missing: Vec<String> =
        names.iter().filter(is_missing).map(|one| format!("{:?}", one.name.to_string())).collect();
    let listed = missing.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = match missing.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    (!missing.is_empty()).then(|| {
        format!(
            "The stream asks for {listed}{more}, which the node does not see. The client may wait until they are published."
        )
    })
}
