//! The names that a client asks for, and those of them that its node does not see.

use chancery_fanout::{Fanout, StreamContents, StreamStatus};
use chancery_model::{ResourceKey, ResourceName, StructuredName, TypeUrl};
use chancery_protocol::{ContentsReader, ResourceState, ResourceStatus, SubscriptionStatus};

/// The maximum number of subscriptions of a node whose names are read.
const SUBSCRIPTIONS_MAX: usize = 16;
/// The maximum number of names that are read of a subscription.
const NAMES_READ_MAX: usize = 20_000;
/// The maximum number of names in a sentence.
const NAMES_MAX: usize = 5;

/// The names of one type that a stream asks for.
struct Requested {
    names: Vec<ResourceStatus>,
    collections: Vec<ResourceName>,
    /// Whether these are all names.
    is_complete: bool,
}

/// Returns a clause for each subscription with names that the node does not see: `asks for "a", which the node does not
/// see`, with the type of the subscription. `type_url` selects one type.
pub(crate) async fn missing_names(
    fanout: &Fanout,
    streams: &[&StreamStatus],
    type_url: Option<&TypeUrl>,
) -> Vec<(TypeUrl, String)> {
    let mut clauses = Vec::new();
    for (stream, type_url) in by_name(streams, type_url).take(SUBSCRIPTIONS_MAX) {
        let requested = Requested::read(fanout, stream, type_url).await;
        let clause = requested.and_then(|requested| requested.missing());
        clauses.extend(clause.map(|clause| (type_url.clone(), clause)));
    }
    clauses
}

/// Returns a sentence for each stream that asks for resources of a type by name. It says whether the stream asks for
/// this one.
pub(crate) async fn requests_of(
    fanout: &Fanout,
    streams: &[&StreamStatus],
    key: &ResourceKey,
) -> Vec<String> {
    let mut sentences = Vec::new();
    for (stream, type_url) in by_name(streams, Some(&key.type_url)).take(SUBSCRIPTIONS_MAX) {
        let requested = Requested::read(fanout, stream, type_url).await;
        sentences.extend(requested.map(|requested| requested.about(&key.name)));
    }
    sentences
}

/// Iterates over the types that streams ask for only by name.
fn by_name<'a>(
    streams: &'a [&'a StreamStatus],
    type_url: Option<&'a TypeUrl>,
) -> impl Iterator<Item = (&'a StreamStatus, &'a TypeUrl)> {
    let is_named = move |one: &&SubscriptionStatus| {
        !one.wildcard && one.n_names > 0 && type_url.is_none_or(|only| one.type_url == *only)
    };
    streams.iter().flat_map(move |stream| {
        let named = stream.subscriptions.iter().filter(is_named);
        named.map(|one| (*stream, &one.type_url))
    })
}

impl Requested {
    /// Reads the names page by page. Returns `None` if the stream has ended.
    async fn read(fanout: &Fanout, stream: &StreamStatus, type_url: &TypeUrl) -> Option<Self> {
        let mut requested = Self { names: Vec::new(), collections: Vec::new(), is_complete: false };
        let (mut reader, mut after) = (ContentsReader::default(), None);
        while !requested.is_complete && requested.names.len() < NAMES_READ_MAX {
            let contents = fanout.contents(&stream.stream, type_url, after).await;
            let StreamContents { page, .. } = contents?;
            after = page.next().cloned();
            requested.is_complete = after.is_none();
            requested.collections.extend_from_slice(page.collections());
            requested.names.extend(reader.read(page));
        }
        Some(requested)
    }

    /// Returns the clause about the names that the node does not see, if there are any.
    fn missing(&self) -> Option<String> {
        let is_missing = |one: &&ResourceStatus| one.state == ResourceState::Unknown;
        let names = self.names.iter().filter(is_missing).map(|one| &one.name);
        let empty =
            self.collections.iter().filter(|name| self.is_complete && !self.has_members(name));
        let missing: Vec<&ResourceName> = names.chain(empty).collect();
        let of_read = match self.is_complete {
            _ if missing.is_empty() => return None,
            true => String::new(),
            false => format!(" (of the first {} names)", self.names.len()),
        };
        Some(format!("asks for {}, which the node does not see{of_read}", list(&missing)))
    }

    fn has_members(&self, collection: &ResourceName) -> bool {
        StructuredName::parse(collection.as_str())
            .is_ok_and(|glob| self.names.iter().any(|one| glob.has_member(one.name.as_str())))
    }

    /// Returns the sentence that says whether the client asks for the resource of this name.
    fn about(&self, name: &ResourceName) -> String {
        let is_it = |one: &&ResourceStatus| {
            let stored = one.resource.as_ref().map(|resource| resource.name().base());
            one.name.as_str() == name.base() || stored == Some(name.base())
        };
        if self.names.iter().any(|one| is_it(&one)) {
            return format!("The stream asks for {name}.");
        }
        if !self.is_complete {
            let n = self.names.len();
            return format!("{name} is not among the first {n} names that the stream asks for.");
        }
        let collections = self.collections.iter();
        let names: Vec<&ResourceName> =
            collections.chain(self.names.iter().map(|one| &one.name)).collect();
        format!("The stream does not ask for {name}: it asks for {}.", list(&names))
    }
}

/// Returns some names in quotes, and the number of others.
fn list(names: &[&ResourceName]) -> String {
    let listed: Vec<String> =
        names.iter().take(NAMES_MAX).map(|name| format!("{:?}", name.to_string())).collect();
    let more = match names.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{}{more}", listed.join(", "))
}
