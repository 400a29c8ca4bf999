//! The description of one resource: its scopes, the nodes that see it, their rejections, and its references.

use std::{collections::BTreeSet, sync::Arc};

use chancery_admin_proto::v1 as pb;
use chancery_fanout::{PollRejection, StreamStatus};
use chancery_model::{
    DynamicParameters, Resource, ResourceKey, ResourceName, ScopeName, State, is_of_node, types,
};

use crate::{
    AdminError,
    ctx::Ctx,
    deps::Freshness,
    fleet::{self, FleetRequest},
    held_changes::held_of_write,
    node_groups::{fixed_scopes, may_have},
    nodes,
    record::{SecretsRead, record_secrets_read},
    references::{self, ReferenceIndex, ReferenceSettings, ScopeViews},
    resources::{
        Body, all_variants, given, mismatch, parse_type, resources_of, scope_names, select, show,
        stored_name, unopened,
    },
    work::Size,
};

/// The maximum number of listed nodes that see a resource.
const NODES_MAX: usize = 100;
/// The maximum number of views in which a description looks for references.
const VIEWS_MAX: usize = 100;
/// The maximum number of listed rejections of a resource's type.
const NACKS_MAX: usize = 20;

/// Returns the details of one resource, with the nodes of all replicas.
pub(crate) async fn describe_resource(
    ctx: &Ctx,
    request: pb::DescribeResourceRequest,
) -> Result<pb::DescribeResourceResponse, AdminError> {
    let forwarded = pb::DescribeResourceRequest { local: true, stale: true, ..request.clone() };
    let there = fleet::ask_unless(request.local, ctx, &forwarded).await;
    let (n_not_asked, not_asked) = (there.n_not_asked, there.not_asked.clone());
    let there: Vec<pb::DescribeResourceResponse> = there.into_replies().collect();
    let views = there.iter().flat_map(|reply| &reply.scopes).flat_map(|one| &one.views);
    let elsewhere = Elsewhere { views: views.filter_map(scopes_of).collect(), n_not_asked };
    let mut described = describe_here(ctx, request, elsewhere, For::Author).await?;
    there.into_iter().for_each(|other| add(&mut described, other));
    described.not_asked = not_asked;
    Ok(described)
}

/// Returns a list of scopes of another replica. A list with an invalid name, which no replica sends, is left out.
fn scopes_of(list: &pb::ScopeList) -> Option<Vec<ScopeName>> {
    list.scopes.iter().map(|name| ScopeName::new(name).ok()).collect()
}

/// Adds the nodes and rejections of another replica.
fn add(to: &mut pb::DescribeResourceResponse, other: pb::DescribeResourceResponse) {
    let key = |one: &pb::ResourceInScope| {
        let resource = one.resource.as_ref();
        resource.map(|resource| {
            (resource.scope.clone(), resource.name.clone(), resource.variant.clone())
        })
    };
    for there in other.scopes {
        // A resource that only the other replica has was written meanwhile.
        let Some(here) = to.scopes.iter_mut().find(|here| key(here) == key(&there)) else {
            continue;
        };
        let n_listed = (here.nodes.len() + there.nodes.len()) as u64;
        here.nodes.extend(there.nodes);
        here.nodes.sort_unstable();
        here.nodes.dedup();
        let n_twice = n_listed - here.nodes.len() as u64;
        here.nodes_total += there.nodes_total - n_twice;
        here.nodes.truncate(NODES_MAX);
        here.nodes_shadowed += there.nodes_shadowed;
    }
    to.nacks.extend(other.nacks);
    sort_nacks(&mut to.nacks);
}

impl FleetRequest for pb::DescribeResourceRequest {
    const NAME: &'static str = "chancery.admin.v1.DescribeResourceRequest";
    type Reply = pb::DescribeResourceResponse;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::DescribeResourceResponse, AdminError> {
        describe_here(ctx, self, Elsewhere::default(), For::Replica).await
    }
}

/// The reader of a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    Author,
    /// Another replica, which knows the resource.
    Replica,
}

/// The nodes of other replicas, as far as the references of a resource depend on them.
#[derive(Debug, Default)]
struct Elsewhere {
    /// The lists of scopes of these nodes.
    views: BTreeSet<Vec<ScopeName>>,
    n_not_asked: u64,
}

fn holders_in(
    state: &State,
    scope: Option<&ScopeName>,
    key: &ResourceKey,
    parameters: &DynamicParameters,
) -> Vec<(ScopeName, Arc<Resource>)> {
    let collections = scope_names(state, scope)
        .filter_map(|scope| Some((scope, state.collection(scope, &key.type_url)?)));
    let of_scope = collections.flat_map(|(scope, collection)| {
        let found = resources_of(collection, &key.name, parameters).into_iter();
        found.map(|resource| (scope.clone(), resource))
    });
    of_scope.collect()
}

/// Returns the resource, or each of its variants for these parameters, in each scope that has it.
fn holders(
    state: &State,
    served: &State,
    scope: Option<&ScopeName>,
    key: &ResourceKey,
    parameters: &DynamicParameters,
) -> Result<Vec<(ScopeName, Arc<Resource>)>, AdminError> {
    let holders = holders_in(state, scope, key, parameters);
    if holders.is_empty() {
        let is_served = !holders_in(served, scope, key, parameters).is_empty();
        let variants = all_variants(state, scope, key);
        if let Some(reason) = mismatch(key, "", &variants, parameters) {
            return Err(AdminError::NotFound(reason));
        }
        let place = scope.map_or("any scope".to_owned(), |scope| format!("scope {scope:?}"));
        let held = if is_served {
            "; clients still have it, because a freeze holds its deletion back (`chancery freezes`)"
        } else {
            ""
        };
        return Err(AdminError::NotFound(format!("{key} does not exist in {place}{held}")));
    }
    match holders.iter().find(|(_, resource)| !resource.is_opened()) {
        Some((scope, _)) => Err(unopened(scope, &key.type_url)),
        None => Ok(holders),
    }
}

/// Returns the details of one resource, with the nodes of this replica.
async fn describe_here(
    ctx: &Ctx,
    request: pb::DescribeResourceRequest,
    elsewhere: Elsewhere,
    reader: For,
) -> Result<pb::DescribeResourceResponse, AdminError> {
    let type_url = parse_type(&request.r#type)?;
    ResourceName::canonical(&request.name)?;
    let scope = given(&request.scope).map(ScopeName::new).transpose()?;
    let (whole, state) = ctx.states(Freshness::of(request.stale)).await?;
    let served = ctx.visible_to_clients(&whole);
    let name = stored_name(&state, scope.as_ref(), &type_url, &request.name)?;
    let key = ResourceKey { type_url, name };
    let parameters = request.dynamic_parameters;
    let holders = holders(&state, &served, scope.as_ref(), &key, &parameters)?;
    if key.type_url.as_str() == types::SECRET && reader == For::Author {
        let read = SecretsRead {
            operation: "describe",
            scope: &request.scope,
            name: &request.name,
            n_secrets: holders.len(),
            with_bodies: true,
        };
        record_secrets_read(ctx, read).await?;
    }
    let streams = nodes::streams(ctx).await?;
    let polls = ctx.deps.fanout.poll_rejections();
    let is_small = streams.len() <= nodes::INLINE_STREAMS_MAX;
    let (index, settings) =
        (Arc::clone(&ctx.deps.references), Arc::clone(&ctx.deps.reference_settings));
    let describe = move || {
        let index = index.at(&whole);
        let world = World {
            state: &state,
            served: &served,
            streams: &streams,
            index: &index,
            settings: &settings,
            elsewhere: &elsewhere,
        };
        pb::DescribeResourceResponse {
            revision: state.revision.0,
            type_url: key.type_url.to_string(),
            name: key.name.to_string(),
            scopes: holders
                .iter()
                .map(|(scope, resource)| {
                    let (type_url, name) = (key.type_url.clone(), resource.name().clone());
                    let key = ResourceKey { type_url, name };
                    match reader {
                        For::Author => in_scope(&world, &key, scope, resource),
                        For::Replica => nodes_in_scope(&world, &key, scope, resource),
                    }
                })
                .collect(),
            nacks: nacks(&holders, &streams, &polls, &key),
            replicas_not_asked: elsewhere.n_not_asked,
            not_asked: Vec::new(),
        }
    };
    ctx.deps.work.run(Size::of(is_small), describe).await
}

/// The state, its references, and the connected nodes.
struct World<'a> {
    state: &'a State,
    /// The state that clients receive. A freeze may hold newer content back.
    served: &'a State,
    streams: &'a [StreamStatus],
    index: &'a ReferenceIndex,
    settings: &'a ReferenceSettings,
    /// The nodes that are not in `streams`.
    elsewhere: &'a Elsewhere,
}

impl World<'_> {
    /// Returns the lists of scopes with this scope that connected nodes have.
    fn views_of_nodes(&self, scope: &ScopeName) -> BTreeSet<Vec<ScopeName>> {
        let of_streams = self.streams.iter().map(|stream| &stream.scopes);
        let mut views = BTreeSet::new();
        for scopes in of_streams.chain(&self.elsewhere.views) {
            if views.len() < VIEWS_MAX && scopes.contains(scope) && !views.contains(scopes) {
                views.insert(scopes.clone());
            }
        }
        views
    }

    /// Returns the lists of scopes with this scope: those of connected nodes, and those of assignments
    /// without variables. If no such list has the scope, returns the scope alone.
    fn views_with(&self, scope: &ScopeName) -> ScopeViews {
        let rules = &self.state.assignments.rules;
        let of_rules = rules.iter().filter_map(fixed_scopes);
        let mut views = self.views_of_nodes(scope);
        views.extend(of_rules.filter(|scopes| scopes.contains(scope)));
        let mut known: Vec<Vec<ScopeName>> = views.into_iter().collect();
        known.truncate(VIEWS_MAX);
        let is_used = !known.is_empty();
        if !is_used {
            known.push(vec![scope.clone()]);
        }
        // Nodes of replicas that have not answered have the known lists, and those of assignments with variables.
        let is_open =
            rules.iter().any(|rule| fixed_scopes(rule).is_none() && may_have(rule, scope));
        let replicas_not_asked = if is_open { self.elsewhere.n_not_asked } else { 0 };
        ScopeViews { known, is_used, replicas_not_asked }
    }
}

/// Describes a resource of one scope. A node sees it if it comes from the first scope with a resource for
/// the parameters of the node. Variants for other parameters, and names of other nodes, are not for the node.
fn in_scope(
    world: &World<'_>,
    key: &ResourceKey,
    scope: &ScopeName,
    resource: &Arc<Resource>,
) -> pb::ResourceInScope {
    let World { state, index, settings, .. } = *world;
    let views = world.views_with(scope);
    let references = references::of_scope(state, index, settings, &views, key, resource);
    let children = resource.children().iter().map(|child| pb::Child {
        type_url: child.type_url.to_string(),
        name: child.name.to_string(),
        in_scope: state.get(scope, child).is_some(),
    });
    pb::ResourceInScope {
        resource: Some(show(scope, &key.type_url, resource, Body::Shown)),
        children: children.collect(),
        referents: references.referents,
        referents_omitted: references.n_referents_omitted,
        referrers: references.referrers,
        referrers_omitted: references.n_referrers_omitted,
        replicas_not_asked: views.replicas_not_asked,
        views: Vec::new(),
        held: held_of_write(state, [(scope, key)].into_iter(), &[], false),
        ..nodes_in_scope(world, key, scope, resource)
    }
}

/// Returns which nodes of this replica see a resource, and the lists of scopes of nodes with its scope.
fn nodes_in_scope(
    world: &World<'_>,
    key: &ResourceKey,
    scope: &ScopeName,
    resource: &Arc<Resource>,
) -> pb::ResourceInScope {
    let World { served, streams, .. } = *world;
    let mut seeing: Vec<&str> = Vec::new();
    let mut shadowed: Vec<&str> = Vec::new();
    let none = DynamicParameters::new();
    for stream in streams.iter().filter(|stream| stream.scopes.contains(scope)) {
        let of_node = stream.node.dynamic_parameters.get(key.type_url.as_str()).unwrap_or(&none);
        if !resource.matches(of_node) || !is_of_node(key.name.base(), &stream.node) {
            continue;
        }
        let mut scopes = stream.scopes.iter();
        let Some(of_scope) = select(served, scope, key, of_node) else { continue };
        let seen = scopes.find_map(|scope| select(served, scope, key, of_node));
        if seen.is_some_and(|seen| Arc::ptr_eq(seen, of_scope)) {
            seeing.push(&stream.node.id)
        } else {
            shadowed.push(&stream.node.id)
        }
    }
    for nodes in [&mut seeing, &mut shadowed] {
        nodes.sort_unstable();
        nodes.dedup();
    }
    let list = |scopes: Vec<ScopeName>| pb::ScopeList {
        scopes: scopes.iter().map(ToString::to_string).collect(),
    };
    pb::ResourceInScope {
        resource: Some(show(scope, &key.type_url, resource, Body::LeftOut)),
        nodes_total: seeing.len() as u64,
        nodes: seeing.iter().take(NODES_MAX).map(|id| (*id).to_owned()).collect(),
        nodes_shadowed: shadowed.len() as u64,
        views: world.views_of_nodes(scope).into_iter().map(list).collect(),
        ..pb::ResourceInScope::default()
    }
}

/// Returns the newest rejections of the type by nodes that see the resource.
fn nacks(
    holders: &[(ScopeName, Arc<Resource>)],
    streams: &[StreamStatus],
    polls: &[PollRejection],
    key: &ResourceKey,
) -> Vec<pb::Nack> {
    let sees = |scopes: &[ScopeName]| holders.iter().any(|(scope, _)| scopes.contains(scope));
    let polls = polls.iter().filter(|one| one.type_url == key.type_url && sees(&one.scopes));
    let mut nacks: Vec<pb::Nack> = streams
        .iter()
        .filter(|stream| sees(&stream.scopes) && is_of_node(key.name.base(), &stream.node))
        .flat_map(|stream| stream.nacks.iter().map(move |nack| (stream, nack)))
        .filter(|(_, nack)| nack.type_url == key.type_url)
        .map(|(stream, nack)| nodes::show_nack(&stream.node.id, nack))
        .chain(polls.map(nodes::show_poll_rejection))
        .collect();
    sort_nacks(&mut nacks);
    nacks
}

/// Leaves the newest rejections, sorted by time.
fn sort_nacks(nacks: &mut Vec<pb::Nack>) {
    nacks.sort_by(|a, b| b.time_ms.cmp(&a.time_ms).then_with(|| a.node.cmp(&b.node)));
    nacks.truncate(NACKS_MAX);
}
