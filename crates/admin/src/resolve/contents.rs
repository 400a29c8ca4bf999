//! The resources that a node has, as far as the server knows.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use chancery_fanout::{StreamContents, StreamStatus};
use chancery_model::{
    Resource, ResourceName, TypeUrl,
    types::{
        CLUSTER, ENDPOINT, EXTENSION, FILTER_CHAIN, LISTENER, ROUTE, SCOPED_ROUTE, VIRTUAL_HOST,
    },
};
use chancery_protocol::{ContentsPage, ContentsReader, ResourceState, ResourceStatus};
use chancery_resolve::Resources;

use crate::{AdminError, csds::check_scopes, ctx::Ctx};

/// The types that the path of a request needs. Secrets are not among them.
const TYPES: [&str; 8] =
    [LISTENER, FILTER_CHAIN, ROUTE, SCOPED_ROUTE, VIRTUAL_HOST, CLUSTER, ENDPOINT, EXTENSION];
/// The maximum number of resources of a node.
const RESOURCES_MAX: usize = 500_000;

/// The pages of each subscription.
pub(super) type Collected = Vec<(TypeUrl, Vec<ContentsPage>)>;

/// Returns the pages of a node's streams, oldest stream first. `None` if it has no stream, or all have ended.
///
/// # Errors
/// Fails if the caller may not get the resources of the node, or if there are too many.
pub(super) async fn collect(
    ctx: &Ctx,
    streams: &[StreamStatus],
) -> Result<Option<Collected>, AdminError> {
    const WHAT: &str = "get the resources of the node";
    let (mut collected, mut n_resources, mut is_open) = (Collected::new(), 0, false);
    for stream in streams {
        check_scopes(ctx, Some(&stream.scopes), WHAT)?;
        let subscriptions = stream.subscriptions.iter().map(|one| &one.type_url);
        let mut has_ended = false;
        for type_url in subscriptions.filter(|one| TYPES.contains(&one.as_str())) {
            let (mut pages, mut after) = (Vec::new(), None);
            loop {
                let contents = ctx.deps.fanout.contents(&stream.stream, type_url, after).await;
                let Some(StreamContents { page, scopes }) = contents else {
                    has_ended = true;
                    break;
                };
                // The client may have resources of scopes that its node no longer has.
                check_scopes(ctx, scopes.as_deref(), WHAT)?;
                n_resources += page.len();
                if n_resources > RESOURCES_MAX {
                    return Err(AdminError::TooLarge(format!(
                        "the node has more than {RESOURCES_MAX} resources, the maximum"
                    )));
                }
                after = page.next().cloned();
                pages.push(page);
                if after.is_none() {
                    break;
                }
            }
            collected.push((type_url.clone(), pages));
        }
        is_open |= !has_ended;
    }
    Ok(is_open.then_some(collected))
}

/// The resources of a node by type and name.
pub(super) struct Contents {
    by_type: HashMap<TypeUrl, BTreeMap<ResourceName, (Arc<Resource>, String)>>,
}

impl Contents {
    /// Finds the state of each resource.
    pub(super) fn new(collected: Collected) -> Self {
        let mut by_type = HashMap::<TypeUrl, BTreeMap<_, _>>::new();
        for (type_url, pages) in collected {
            let mut reader = ContentsReader::default();
            let known = by_type.entry(type_url).or_default();
            for page in pages {
                for status in reader.read(page) {
                    let doubt = doubt(&status);
                    let ResourceStatus { name, resource, .. } = status;
                    known.extend(resource.map(|resource| (name, (resource, doubt))));
                }
            }
        }
        Self { by_type }
    }
}

/// Returns the reason why the node may have another version of a resource; empty if it has this one.
fn doubt(status: &ResourceStatus) -> String {
    let version = &status.version;
    match status.state {
        ResourceState::Unknown | ResourceState::Synced => String::new(),
        ResourceState::NotSent => {
            format!("version {version:?} was not sent yet; the node may have an older one, or none")
        }
        ResourceState::Stale => {
            format!("version {version:?} was sent, and the node has not acknowledged it")
        }
        ResourceState::Rejected => match &status.unchanged_since {
            Some(acked) => format!(
                "the node rejected version {version:?} as a whole; the resource has not changed since version {acked:?}, \
                 which the node acknowledged"
            ),
            None => {
                format!("the node rejected version {version:?}, and keeps an older one, or none")
            }
        },
    }
}

impl Resources for Contents {
    fn get(&self, type_url: &str, name: &str) -> Option<chancery_resolve::Resource> {
        let type_url = TypeUrl::new(type_url).ok()?;
        let name = ResourceName::requested(name).ok()?;
        let (resource, doubt) = self.by_type.get(&type_url)?.get(&name)?;
        // CSDS-14: the answer has no secrets.
        let body = resource.body().map(|body| chancery_admission::redacted(&type_url, &body));
        let doubt = match &body {
            Some(_) => doubt.clone(),
            None => "the replica cannot decrypt the resource".to_owned(),
        };
        Some(chancery_resolve::Resource { body: body.unwrap_or_else(Bytes::new), doubt })
    }

    fn names(&self, type_url: &str) -> Vec<String> {
        let resources = TypeUrl::new(type_url).ok().and_then(|one| self.by_type.get(&one));
        resources.into_iter().flat_map(BTreeMap::keys).map(ToString::to_string).collect()
    }
}
