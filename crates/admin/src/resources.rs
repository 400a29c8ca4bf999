//! Reads of resources: lists, and the view of one node.

use std::{collections::BTreeMap, sync::Arc};

use chancery_admin_proto::v1 as pb;
use chancery_model::{
    Collection, DynamicParameters, Resource, ResourceKey, ResourceName, Revision, ScopeName, State,
    Target, TypeUrl, Verb, show_parameters, types,
};
use chancery_store::Selection;
use chancery_view::View;
use futures::{Stream, stream};

use crate::{
    AdminError,
    ctx::Ctx,
    deps::Freshness,
    found_node::{FoundNode, find_node},
    page::Page,
    past,
    record::{SecretsRead, record_secrets_read},
};

/// Whether the body of a resource is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    Shown,
    LeftOut,
}

/// Converts a resource to a message, without its secrets.
pub(crate) fn show(
    scope: &ScopeName,
    type_url: &TypeUrl,
    resource: &Resource,
    body: Body,
) -> pb::Resource {
    let labels = resource.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    pb::Resource {
        scope: scope.to_string(),
        type_url: type_url.to_string(),
        name: resource.base_name().to_string(),
        version: resource.version().to_string(),
        revision: resource.version().revision.0,
        bytes: resource.body_len() as u64,
        labels,
        ttl_ms: resource.ttl().map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        aliases: resource.aliases().iter().map(ToString::to_string).collect(),
        // Operations that show bodies refuse resources that are not opened.
        body: resource.body().filter(|_| body == Body::Shown).map(|bytes| prost_types::Any {
            type_url: type_url.to_string(),
            value: chancery_admission::redacted(type_url, &bytes).to_vec(),
        }),
        variant: variant_text(resource.name()),
        dynamic_parameter_constraints: resource
            .constraints()
            .map(chancery_admission::constraints_any),
    }
}

/// Returns the constraints in the name of a variant as text for people; empty for any other name.
pub(crate) fn variant_text(name: &ResourceName) -> String {
    name.constraints().map(|constraints| constraints.to_string()).unwrap_or_default()
}

/// Returns the resources of a published name: the resource itself, or its variants. With
/// parameters, only what matches them.
pub(crate) fn resources_of(
    collection: &Collection,
    name: &ResourceName,
    parameters: &DynamicParameters,
) -> Vec<Arc<Resource>> {
    let all = collection.resources.get(name).into_iter();
    let all = all.chain(collection.variants.of(name.as_str()));
    all.filter(|one| parameters.is_empty() || one.matches(parameters)).cloned().collect()
}

/// Returns the resource that a client with these parameters receives from one scope.
pub(crate) fn select<'a>(
    state: &'a State,
    scope: &ScopeName,
    key: &ResourceKey,
    parameters: &DynamicParameters,
) -> Option<&'a Arc<Resource>> {
    let collection = state.collection(scope, &key.type_url)?;
    let plain = collection.resources.get(&key.name);
    plain.or_else(|| collection.variants.select(key.name.as_str(), parameters))
}

/// Returns the reason why a name with variants has nothing for these parameters. `place` is the start of
/// the sentence's end, such as ` in scope "a"`. Returns `None` if the name has no variants.
pub(crate) fn mismatch(
    key: &ResourceKey,
    place: &str,
    variants: &[Arc<Resource>],
    parameters: &DynamicParameters,
) -> Option<String> {
    let known = variants.iter().filter_map(|one| one.constraints());
    let known: Vec<String> = known.take(10).map(|one| format!("[{one}]")).collect();
    let count = match variants.len() {
        0 => return None,
        1 => "1 variant".to_owned(),
        n => format!("{n} variants"),
    };
    let parameters = if parameters.is_empty() {
        "a client without parameters".to_owned()
    } else {
        show_parameters(parameters)
    };
    let known = known.join(", ");
    Some(format!(
        "{key} has {count}{place}, but none matches {parameters}; select a variant by its parameters: {known}"
    ))
}

/// Returns all variants of a name in the given scope, or in all scopes.
pub(crate) fn all_variants(
    state: &State,
    scope: Option<&ScopeName>,
    key: &ResourceKey,
) -> Vec<Arc<Resource>> {
    let collections =
        scope_names(state, scope).filter_map(|scope| state.collection(scope, &key.type_url));
    collections.flat_map(|one| one.variants.of(key.name.as_str())).cloned().collect()
}

/// Parses a type as an author writes it.
pub(crate) fn parse_type(text: &str) -> Result<TypeUrl, AdminError> {
    if text.is_empty() {
        let text =
            "the required parameter `type` is missing; give an alias such as cds, or a type URL";
        return Err(AdminError::Parameter(text.to_owned()));
    }
    types::by_alias(text).map_err(AdminError::Parameter)
}

/// Returns `None` for an empty text.
pub(crate) fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// A list of the resources of one state, in pieces. Only one piece at a time is in memory in its
/// shown form, and all pieces have the same revision.
#[derive(Debug)]
pub(crate) struct Listing {
    revision: u64,
    /// The cursor of the next page.
    next: String,
    body: Body,
    pieces: Vec<Piece>,
    /// The index in `pieces`.
    at: usize,
    /// The name of the last listed resource of the current piece.
    after: Option<ResourceName>,
    is_started: bool,
}

/// Resources of one type and one scope.
#[derive(Debug)]
enum Piece {
    /// All resources.
    All(Arc<Collection>),
    /// The given resources.
    Some(ScopeName, TypeUrl, Vec<Arc<Resource>>),
}

/// The maximum size of the bodies, and the maximum number of resources, of one piece.
const PIECE_BYTES_MAX: usize = 256 << 10;
const PIECE_RESOURCES_MAX: usize = 200;

impl Listing {
    /// Returns a piece without resources.
    pub(crate) fn head(&self) -> pb::ListResourcesResponse {
        let (revision, next) = (self.revision, self.next.clone());
        pb::ListResourcesResponse { revision, resources: Vec::new(), next }
    }

    /// Returns the pieces as a stream. Each piece is created when the client can receive it, and
    /// other tasks run between two pieces.
    pub(crate) fn into_stream(self) -> impl Stream<Item = pb::ListResourcesResponse> + Send {
        stream::unfold(self, |mut listing| async move {
            tokio::task::yield_now().await;
            let piece = listing.next_piece()?;
            Some((piece, listing))
        })
    }

    /// Returns the next piece, or `None` after the last one. There is at least one piece.
    pub(crate) fn next_piece(&mut self) -> Option<pb::ListResourcesResponse> {
        let mut resources = Vec::new();
        let mut bytes = 0;
        while let Some(piece) = self.pieces.get(self.at) {
            let n_left = PIECE_RESOURCES_MAX - resources.len();
            let (scope, type_url) = piece.scope_and_type();
            let after = self.after.take();
            for resource in piece.after(after.as_ref().map(ResourceName::as_str)).take(n_left) {
                bytes += resource.body_len();
                resources.push(show(scope, type_url, resource, self.body));
                self.after = Some(resource.name().clone());
                if bytes >= PIECE_BYTES_MAX {
                    break;
                }
            }
            if bytes >= PIECE_BYTES_MAX || resources.len() == PIECE_RESOURCES_MAX {
                break;
            }
            self.at += 1;
            self.after = None;
        }
        if resources.is_empty() && self.is_started {
            return None;
        }
        self.is_started = true;
        Some(pb::ListResourcesResponse { resources, ..self.head() })
    }
}

/// The key of a resource in a list: its scope, its type, and its name inside the server.
type Key = (String, String, String);

/// Returns the resources of a page, and the cursor of the next one.
fn page_of(pieces: Vec<Piece>, page: &Page<Key>) -> (Vec<Piece>, String) {
    let (mut left, mut next) = (page.limit(), String::new());
    let mut of_page: Vec<Piece> = Vec::new();
    for piece in pieces {
        let (scope, type_url) = piece.scope_and_type();
        let place = (scope.as_str(), type_url.as_str());
        let after = page
            .after()
            .map(|(scope, type_url, name)| ((scope.as_str(), type_url.as_str()), name.as_str()));
        let after = match after {
            Some((last, _)) if place < last => continue,
            Some((last, name)) if place == last => Some(name),
            _ => None,
        };
        if after.is_none() && piece.len() <= left {
            left -= piece.len();
            of_page.push(piece);
            continue;
        }
        let mut rest = piece.after(after);
        let resources: Vec<Arc<Resource>> = rest.by_ref().take(left).cloned().collect();
        left -= resources.len();
        let is_end = rest.next().is_none();
        drop(rest);
        if !resources.is_empty() {
            of_page.push(Piece::Some(scope.clone(), type_url.clone(), resources));
        }
        if !is_end {
            next = of_page.last().map(|last| page.cursor(&last.last_key())).unwrap_or_default();
            break;
        }
    }
    (of_page, next)
}

/// Returns the error for a body that is sealed and that this replica cannot open.
pub(crate) fn unopened(scope: &ScopeName, type_url: &TypeUrl) -> AdminError {
    AdminError::Unavailable(format!(
        "this replica cannot open sealed resources of type {} in scope {scope:?}: it lacks their key (`chancery keys \
         status`); ask another replica, or list them without bodies",
        type_url.shown_name()
    ))
}

impl Piece {
    /// Returns the key of the last resource.
    fn last_key(&self) -> Key {
        let (scope, type_url) = self.scope_and_type();
        let name = match self {
            Self::All(collection) => collection.resources.get_max().map(|(name, _)| name),
            Self::Some(_, _, resources) => resources.last().map(|one| one.name()),
        };
        let name = name.map(|name| name.as_str().to_owned()).unwrap_or_default();
        (scope.to_string(), type_url.to_string(), name)
    }

    fn len(&self) -> usize {
        match self {
            Self::All(collection) => collection.resources.len(),
            Self::Some(_, _, resources) => resources.len(),
        }
    }

    /// Fails if the body of a resource is not readable.
    fn check_opened(&self) -> Result<(), AdminError> {
        let (scope, type_url) = self.scope_and_type();
        let is_opened = match self {
            Self::All(collection) => collection.sealed.n_unopened() == 0,
            Self::Some(_, _, resources) => resources.iter().all(|one| one.is_opened()),
        };
        is_opened.then_some(()).ok_or_else(|| unopened(scope, type_url))
    }

    fn scope_and_type(&self) -> (&ScopeName, &TypeUrl) {
        match self {
            Self::All(collection) => (&collection.scope, &collection.type_url),
            Self::Some(scope, type_url, _) => (scope, type_url),
        }
    }

    /// Returns the resources after the given name, sorted by name.
    fn after<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Resource>> + 'a> {
        use std::ops::Bound::{Excluded, Unbounded};
        match (self, name) {
            (Self::All(collection), None) => Box::new(collection.resources.values()),
            (Self::All(collection), Some(name)) => {
                let rest = collection.resources.range::<_, str>((Excluded(name), Unbounded));
                Box::new(rest.map(|(_, resource)| resource))
            }
            (Self::Some(_, _, resources), None) => Box::new(resources.iter()),
            (Self::Some(_, _, resources), Some(name)) => {
                let start = resources.partition_point(|resource| resource.name().as_str() <= name);
                Box::new(resources[start..].iter())
            }
        }
    }
}

/// Returns the state that a request lists, as far as the caller may read it.
async fn state_to_list(
    ctx: &Ctx,
    request: &pb::ListResourcesRequest,
    scope: Option<&ScopeName>,
    type_url: Option<&TypeUrl>,
) -> Result<Arc<State>, AdminError> {
    let freshness = Freshness::of(request.stale);
    let Some(revision) = request.revision.map(Revision) else {
        let state = ctx.deps.state(freshness).await?;
        let is_view = !request.view_of_node.is_empty();
        return Ok(if is_view { ctx.visible_to_clients(&state) } else { ctx.visible(&state) });
    };
    if !request.view_of_node.is_empty() {
        let text = "the view of a node is known only for the newest revision";
        return Err(AdminError::Parameter(text.to_owned()));
    }
    ctx.authorize(Verb::History, Target::Cluster)?;
    let (scope, type_url) = (scope.cloned(), type_url.cloned());
    let selection = Selection { scope, type_url, name: None };
    Ok(ctx.visible(&past::state_at(ctx, revision, selection, freshness).await?))
}

/// Starts a list of resources.
pub(crate) async fn list_resources(
    ctx: &Ctx,
    request: pb::ListResourcesRequest,
) -> Result<Listing, AdminError> {
    let page = Page::parse_or_all("resources", request.limit, &request.cursor)?;
    let type_url = given(&request.r#type).map(parse_type).transpose()?;
    let parameters = request.dynamic_parameters.clone();
    if request.name.is_empty() && !parameters.is_empty() {
        return Err(AdminError::Parameter("parameters need a name".to_owned()));
    }
    let scope = given(&request.scope).map(ScopeName::new).transpose()?;
    let named = match (given(&request.name), &type_url) {
        (None, _) => None,
        (Some(name), Some(type_url)) => {
            ResourceName::canonical(name)?;
            Some((name, type_url))
        }
        (Some(_), None) => return Err(AdminError::Parameter("a name needs a type".to_owned())),
    };
    let state = state_to_list(ctx, &request, scope.as_ref(), type_url.as_ref()).await?;
    let name = named.map(|(name, url)| stored_name(&state, scope.as_ref(), url, name));
    let name = name.transpose()?;
    let name = name.as_ref().map(|name| (name, &parameters));
    let wanted = |url: &TypeUrl| type_url.as_ref().is_none_or(|type_url| type_url == url);
    let pieces = match given(&request.view_of_node) {
        None => pieces_of_scopes(&state, scope.as_ref(), &wanted, name),
        Some(id) => {
            ctx.authorize(Verb::Nodes, Target::Cluster)?;
            let found = find_node(ctx, id).await?;
            pieces_of_view(&state, &found, scope.as_ref(), &wanted, name)
        }
    };
    if let (true, Some((name, parameters)), Some(type_url)) = (pieces.is_empty(), name, &type_url)
        && !parameters.is_empty()
    {
        let key = ResourceKey { type_url: type_url.clone(), name: name.clone() };
        let variants = all_variants(&state, scope.as_ref(), &key);
        if let Some(reason) = mismatch(&key, "", &variants, parameters) {
            return Err(AdminError::NotFound(reason));
        }
    }
    let (pieces, next) = page_of(pieces, &page);
    let body = if request.without_body { Body::LeftOut } else { Body::Shown };
    if body == Body::Shown {
        pieces.iter().try_for_each(Piece::check_opened)?;
    }
    let secrets = pieces.iter().filter(|piece| piece.scope_and_type().1.as_str() == types::SECRET);
    let n_secrets: usize = secrets.map(Piece::len).sum();
    if n_secrets > 0 {
        let read = SecretsRead {
            operation: "get",
            scope: &request.scope,
            name: &request.name,
            n_secrets,
            with_bodies: body == Body::Shown,
        };
        record_secrets_read(ctx, read).await?;
    }
    let revision = state.revision.0;
    Ok(Listing { revision, next, body, pieces, at: 0, after: None, is_started: false })
}

/// Returns the name of the resource that an operator means: its canonical form, or the given text if a
/// resource has exactly this name. A release without structured names stored them as plain text.
pub(crate) fn stored_name(
    state: &State,
    scope: Option<&ScopeName>,
    type_url: &TypeUrl,
    text: &str,
) -> Result<ResourceName, AdminError> {
    let canonical = ResourceName::canonical(text)?;
    let given = ResourceName::new(text).ok().filter(|given| *given != canonical);
    let given = given.map(|name| ResourceKey { type_url: type_url.clone(), name });
    let is_stored =
        |key: &ResourceKey| scope_names(state, scope).any(|scope| state.get(scope, key).is_some());
    Ok(given.filter(is_stored).map_or(canonical, |key| key.name))
}

pub(crate) fn scope_names<'a>(
    state: &'a State,
    only: Option<&'a ScopeName>,
) -> Box<dyn Iterator<Item = &'a ScopeName> + 'a> {
    match only {
        Some(scope) => Box::new(std::iter::once(scope)),
        None => Box::new(state.scopes.keys()),
    }
}

fn pieces_of_scopes(
    state: &State,
    scope: Option<&ScopeName>,
    wanted: &dyn Fn(&TypeUrl) -> bool,
    name: Option<(&ResourceName, &DynamicParameters)>,
) -> Vec<Piece> {
    scope_names(state, scope)
        .filter_map(|scope| state.scopes.get(scope))
        .flat_map(|scope| scope.types.values())
        .filter(|collection| wanted(&collection.type_url))
        .filter_map(|collection| match name {
            None => Some(Piece::All(Arc::clone(collection))),
            Some((name, parameters)) => {
                let found = resources_of(collection, name, parameters);
                let (scope, type_url) = (collection.scope.clone(), collection.type_url.clone());
                (!found.is_empty()).then(|| Piece::Some(scope, type_url, found))
            }
        })
        .collect()
}

/// Returns the resources in the view of a node, each under the scope from which it comes. Names of other nodes are
/// not in the view (XDSTP-08).
fn pieces_of_view(
    state: &State,
    found: &FoundNode,
    scope: Option<&ScopeName>,
    wanted: &dyn Fn(&TypeUrl) -> bool,
    name: Option<(&ResourceName, &DynamicParameters)>,
) -> Vec<Piece> {
    let view = View::resolve(state, &found.scopes);
    let mut seen: BTreeMap<(ScopeName, TypeUrl), Vec<Arc<Resource>>> = BTreeMap::new();
    for (from, collection) in found
        .scopes
        .iter()
        .filter(|from| scope.is_none_or(|scope| scope == *from))
        .filter_map(|from| Some((from, state.scopes.get(from)?)))
        .flat_map(|(from, scope)| scope.types.values().map(move |collection| (from, collection)))
        .filter(|(_, collection)| wanted(&collection.type_url))
    {
        let of_node = found.node.dynamic_parameters.get(collection.type_url.as_str());
        let given = name.map(|(_, parameters)| parameters).filter(|all| !all.is_empty());
        let parameters = given.or(of_node).cloned().map(Arc::new);
        let of_type = view.of_type(&collection.type_url).with_parameters(parameters);
        let of_type = of_type.hiding_other_nodes(|| Some(Arc::clone(&found.node)));
        let visible = |resource: &&Arc<Resource>| {
            of_type.get(resource.name().as_str()).is_some_and(|top| Arc::ptr_eq(top, resource))
        };
        let resources: Vec<Arc<Resource>> = match name {
            None => collection.resources.values().filter(visible).cloned().collect(),
            Some((name, parameters)) => resources_of(collection, name, parameters)
                .into_iter()
                .filter(|r| visible(&r))
                .collect(),
        };
        if !resources.is_empty() {
            seen.insert((from.clone(), collection.type_url.clone()), resources);
        }
    }
    seen.into_iter()
        .map(|((scope, type_url), resources)| Piece::Some(scope, type_url, resources))
        .collect()
}
