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

/// Returns a sentence for each stream of a node that has a resource, or asks for it: whether it was sent, acknowledged or
/// rejected. A rejection comes first.
pub(crate) async fn states_of(
    fanout: &Fanout,
    streams: &[&StreamStatus],
    key: &ResourceKey,
) -> Vec<String> {
    let (mut rejected, mut others) = (Vec::new(), Vec::new());
    let has_type = |stream: &&&StreamStatus| {
        stream.subscriptions.iter().any(|one| one.type_url == key.type_url)
    };
    for stream in streams.iter().filter(has_type).take(SUBSCRIPTIONS_MAX) {
        let Some((status, nack)) = state_of(fanout, stream, key).await else { continue };
        let seconds = status.sent_ms_ago.map(|ms| format!(" {} ms ago", ms)).unwrap_or_default();
        let (name, version) = (&key.name, &status.version);
        match status.state {
            ResourceState::Rejected => {
                let reason = nack.map(|text| format!(": {text}")).unwrap_or_default();
                match &status.unchanged_since {
                    Some(acked) => others.push(format!(
                        "{name} has not changed since version {acked}, which the client has acknowledged. The client \
                         rejects the response with {name} in version {version}{reason}"
                    )),
                    None => {
                        rejected
                            .push(format!("The client rejects {name} in version {version}{reason}"));
                    }
                }
            }
            ResourceState::Synced => {
                others.push(format!("The client has acknowledged {name} in version {version}."));
            }
            ResourceState::Stale => others.push(format!(
                "{name} was sent in version {version}{seconds}, and the client has not answered."
            )),
            ResourceState::NotSent => {
                others.push(format!("{name} is new or has changed, and was not sent yet."));
            }
            ResourceState::Unknown => {}
        }
    }
    rejected.extend(others);
    rejected
}

/// Returns the state of a resource on a stream, and the message of the last rejection of its type. `None` if the stream
/// does not have the resource, and does not ask for it.
async fn state_of(
    fanout: &Fanout,
    stream: &StreamStatus,
    key: &ResourceKey,
) -> Option<(ResourceStatus, Option<String>)> {
    let contents = fanout.contents(&stream.stream, &key.type_url, just_before(&key.name)).await;
    let page = contents?.page;
    let nack = page.nack().map(|nack| nack.message.clone());
    let is_it = |one: &ResourceStatus| {
        one.name == key.name
            || one.resource.as_ref().is_some_and(|stored| *stored.name() == key.name)
    };
    let statuses = ContentsReader::default().read(page);
    statuses.into_iter().find(is_it).map(|status| (status, nack))
}

/// Returns a name that is less than `name`, with hardly any name between them. `None` means the first name.
fn just_before(name: &ResourceName) -> Option<ResourceName> {
    let (rest, last) = name.as_str().split_at(name.as_str().char_indices().next_back()?.0);
    let before = char::from_u32(u32::from(last.chars().next()?).checked_sub(1)?)?;
    ResourceName::new(&format!("{rest}{before}{}", char::MAX)).ok()
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
        if missing.is_empty() {
            return None;
        }
        let of_read = if self.is_complete {
            String::new()
        } else {
            format!(" (of the first {} names)", self.names.len())
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
