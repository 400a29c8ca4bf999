//! Explanations why a node does or does not receive a resource.

mod by_id;

use std::{collections::BTreeSet, sync::Arc};

use chancery_admin_proto::v1 as pb;
use chancery_fanout::StreamStatus;
use chancery_model::{
    Assignment, DynamicParameters, Node, ResourceKey, ResourceName, ScopeName, State, TypeUrl,
    has_node_parameters, is_of_node, show_parameters,
};
use chancery_protocol::SyncState;

use crate::{
    AdminError,
    ctx::Ctx,
    deps::Freshness,
    fleet::{self, FleetRequest},
    held_changes::held_sentences,
    nodes,
    nodes::{INLINE_STREAMS_MAX, show_stream},
    references::{self, ReferenceIndex, ReferenceSettings, ReferenceView, Shown},
    requested::{missing_names, requests_of, states_of},
    resources::{mismatch, parse_type, select, stored_name, variant_text},
    unrequested_collections,
    unrequested_collections::Unrequested,
    work::Size,
};

/// Explains how a node gets its resources. The replica to which it is connected explains it.
pub(crate) async fn explain_node(
    ctx: &Ctx,
    request: pb::ExplainRequest,
) -> Result<pb::ExplainResponse, AdminError> {
    if request.node.is_empty() {
        return Err(AdminError::Parameter("the node ID is empty".to_owned()));
    }
    About::parse(&request)?;
    let forwarded = pb::ExplainRequest { local: true, stale: true, ..request.clone() };
    let mut there = fleet::ask_unless(request.local, ctx, &forwarded).await;
    let replies = std::mem::take(&mut there.replies);
    let is_elsewhere = !replies.is_empty();
    let unknown = Unasked { extent: nodes::extent(&there), n_replicas: there.n_not_asked };
    let here = explain_here(ctx, request, unknown).await;
    let explained = match (here, is_elsewhere) {
        (Ok(here), true) if !here.connected => merged(None, replies),
        (Ok(here), _) => merged(Some((ctx.deps.replica.id(), here)), replies),
        (Err(error), _) => return Err(error),
    };
    let mut explained = explained?;
    if explained.connected && there.n_not_asked > 0 {
        let unknown = match there.not_asked.as_slice() {
            [] => nodes::not_asked(there.n_not_asked),
            missing => nodes::unanswered(missing),
        };
        explained.conclusions.push(format!("The node may have further streams: {unknown}."));
    }
    explained.replicas_not_asked = there.n_not_asked;
    explained.not_asked = there.not_asked;
    Ok(explained)
}

/// Merges the explanations of replicas to which a node is connected. That of the newest stream counts.
fn merged(
    here: Option<(u64, pb::ExplainResponse)>,
    there: Vec<(u64, pb::ExplainResponse)>,
) -> Result<pb::ExplainResponse, AdminError> {
    let since = |one: &pb::ExplainResponse| {
        one.streams.iter().map(|stream| stream.since_ms).max().unwrap_or_default()
    };
    let is_here = here.is_some();
    let mut all: Vec<(u64, pb::ExplainResponse)> = here.into_iter().chain(there).collect();
    all.sort_by_key(|(_, one)| since(one));
    let Some((replica_id, mut explained)) = all.pop() else {
        return Err(AdminError::Internal("no replica has explained the node".to_owned()));
    };
    if !all.is_empty() || !is_here {
        let text =
            format!("This is what replica {replica_id} knows, to which the node is connected.");
        explained.conclusions.push(text);
    }
    for (replica_id, other) in all {
        let n = nodes::number(other.streams.len(), "such stream");
        explained
            .conclusions
            .push(format!("The node is also connected to replica {replica_id}, with {n}."));
        explained.streams.splice(0..0, other.streams);
    }
    Ok(explained)
}

/// The replicas whose streams of a node are not known.
struct Unasked {
    /// Which replicas know nothing of a node that is not connected, as a part of a sentence.
    extent: String,
    n_replicas: u64,
}

impl FleetRequest for pb::ExplainRequest {
    const NAME: &'static str = "chancery.admin.v1.ExplainRequest";
    type Reply = pb::ExplainResponse;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::ExplainResponse, AdminError> {
        let unknown = Unasked { extent: String::new(), n_replicas: 0 };
        let explained = explain_here(ctx, self, unknown).await?;
        if explained.connected { Ok(explained) } else { Err(AdminError::NotFound(String::new())) }
    }
}

/// Explains what this replica knows of a node.
async fn explain_here(
    ctx: &Ctx,
    request: pb::ExplainRequest,
    unasked: Unasked,
) -> Result<pb::ExplainResponse, AdminError> {
    let about = About::parse(&request)?;
    let parameters = request.dynamic_parameters;
    if about.key().is_none() && !parameters.is_empty() {
        return Err(AdminError::Parameter("parameters need a name".to_owned()));
    }
    let whole = ctx.deps.state(Freshness::of(request.stale)).await?;
    let state = ctx.visible_to_clients(&whole);
    let newest = ctx.visible(&whole);
    let about = about.stored_as(&state, &request.name)?;
    let streams = nodes::streams_of_node(ctx, &request.node).await?;
    let (index, settings) =
        (Arc::clone(&ctx.deps.references), Arc::clone(&ctx.deps.reference_settings));
    let is_small = streams.len() <= INLINE_STREAMS_MAX;
    let of_node: Vec<&StreamStatus> = streams.iter().collect();
    let requested = requested(ctx, &about, &of_node).await;
    let replica_id = ctx.deps.replica.id();
    let collection = about.type_url().filter(|type_url| type_url.is_collection()).cloned();
    let freezes = Arc::clone(&whole);
    let explain = move || {
        let streams: Vec<&StreamStatus> = streams.iter().collect();
        let references = about.key().map(|_| References { index: index.at(&whole), settings });
        let subject = Subject { id: &request.node, replica_id, streams: &streams, unasked };
        let about = Question { about: &about, parameters, newest: &newest };
        explain(&state, &subject, about, references)
    };
    let mut response = ctx.deps.work.run(Size::of(is_small), explain).await?;
    let is_rejected = requested.first().is_some_and(|text| text.starts_with("The client rejects"));
    // The cause comes first.
    let at = if is_rejected { 0 } else { response.conclusions.len() };
    response.conclusions.splice(at..at, requested);
    response.conclusions.extend(needed_by(&response));
    let scopes = response.scopes.iter().filter_map(|scope| ScopeName::new(&scope.scope).ok());
    let scopes: Vec<ScopeName> = scopes.collect();
    response.conclusions.extend(held_sentences(&freezes, &scopes));
    if let Some(collection) = collection.filter(|_| response.streams.is_empty()) {
        let unrequested =
            unrequested_collections::find_unrequested(ctx, BTreeSet::from([collection])).await;
        let sentence = |one: &Unrequested| format!("Across all replicas, {}.", one.text());
        response.conclusions.extend(unrequested.found.iter().map(sentence));
        let unasked = unrequested.not_asked.iter().map(|one| {
            format!(
                "Replica {} {}, and may have nodes that ask for the collection.",
                one.replica_id, one.message
            )
        });
        response.conclusions.extend(unasked);
    }
    Ok(response)
}

/// Returns sentences about the names that the streams of a node ask for.
async fn requested(ctx: &Ctx, about: &About, streams: &[&StreamStatus]) -> Vec<String> {
    match about {
        About::Everything => Vec::new(),
        About::Type(type_url) => {
            let missing = missing_names(&ctx.deps.fanout, streams, Some(type_url)).await;
            let sentence = |(_, clause)| {
                format!("The stream {clause}. The client may wait until they are published.")
            };
            missing.into_iter().map(sentence).collect()
        }
        About::Resource(key) => {
            let mut sentences = states_of(&ctx.deps.fanout, streams, key).await;
            sentences.extend(requests_of(&ctx.deps.fanout, streams, key).await);
            sentences
        }
    }
}

/// Returns the sentence that a missing resource is needed, if a resource in the view refers to it.
fn needed_by(explained: &pb::ExplainResponse) -> Option<String> {
    let is_missing =
        explained.scopes.iter().all(|scope| scope.version.is_empty() && !scope.unknown);
    let referrer = explained.referrers.first().filter(|_| is_missing && explained.connected)?;
    let more = match explained.referrers.len() as u64 + explained.referrers_omitted - 1 {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let type_name = TypeUrl::new(&referrer.type_url).ok()?;
    Some(format!(
        "{:?} is missing, although {} {:?}{more} needs it ({}).",
        explained.name,
        type_name.shown_name(),
        referrer.name,
        referrer.field_path
    ))
}

/// The subject of the question.
enum About {
    Everything,
    Type(TypeUrl),
    Resource(ResourceKey),
}

impl About {
    fn parse(request: &pb::ExplainRequest) -> Result<Self, AdminError> {
        match (request.r#type.as_str(), request.name.as_str()) {
            ("", "") => Ok(Self::Everything),
            ("", _) => Err(AdminError::Parameter("a name needs a type".to_owned())),
            (type_url, "") => Ok(Self::Type(parse_type(type_url)?)),
            (type_url, name) => {
                let (type_url, name) = (parse_type(type_url)?, ResourceName::canonical(name)?);
                Ok(Self::Resource(ResourceKey { type_url, name }))
            }
        }
    }

    /// Returns the subject with the name under which a resource is stored, if that is `text`.
    fn stored_as(self, state: &State, text: &str) -> Result<Self, AdminError> {
        Ok(match self {
            Self::Resource(ResourceKey { type_url, .. }) => {
                let name = stored_name(state, None, &type_url, text)?;
                Self::Resource(ResourceKey { type_url, name })
            }
            other => other,
        })
    }

    fn type_url(&self) -> Option<&TypeUrl> {
        match self {
            Self::Everything => None,
            Self::Type(type_url) => Some(type_url),
            Self::Resource(key) => Some(&key.type_url),
        }
    }

    fn key(&self) -> Option<&ResourceKey> {
        match self {
            Self::Resource(key) => Some(key),
            _ => None,
        }
    }
}

/// The references of the explained state.
struct References {
    index: ReferenceIndex,
    settings: Arc<ReferenceSettings>,
}

impl References {
    /// Returns the references of the resource in a list of scopes.
    fn of(&self, state: &State, seen: &[ScopeName], about: &Question<'_>) -> Option<Shown> {
        let key = about.key()?;
        let view = ReferenceView::new(state, seen);
        let resource = seen.iter().find_map(|scope| select(state, scope, key, &about.parameters));
        let resource = resource.map(|found| &**found);
        Some(references::of_view(state, &self.index, &self.settings, view, key, resource))
    }
}

/// A question with the parameters of the subscription.
struct Question<'a> {
    about: &'a About,
    parameters: DynamicParameters,
    /// The newest content. A freeze may hold some of it back from clients.
    newest: &'a State,
}

impl Question<'_> {
    fn type_url(&self) -> Option<&TypeUrl> {
        self.about.type_url()
    }

    fn key(&self) -> Option<&ResourceKey> {
        self.about.key()
    }
}

/// The node of a question.
struct Subject<'a> {
    id: &'a str,
    /// Its streams to this replica, the oldest first.
    streams: &'a [&'a StreamStatus],
    replica_id: u64,
    unasked: Unasked,
}

fn explain(
    state: &State,
    subject: &Subject<'_>,
    question: Question<'_>,
    references: Option<References>,
) -> pb::ExplainResponse {
    let about = question.about;
    let head = pb::ExplainResponse {
        revision: state.revision.0,
        node: subject.id.to_owned(),
        connected: !subject.streams.is_empty(),
        type_url: about.type_url().map(ToString::to_string).unwrap_or_default(),
        name: about.key().map(|key| key.name.to_string()).unwrap_or_default(),
        replicas_not_asked: subject.unasked.n_replicas,
        ..pb::ExplainResponse::default()
    };
    // A node that reconnects may describe itself differently. The newest stream counts.
    let Some(newest) = subject.streams.last() else {
        return explain_by_id(state, subject, &question, references, head);
    };
    let node = &newest.node;
    let of_node = about.type_url().and_then(|url| node.dynamic_parameters.get(url.as_str()));
    let parameters = match (question.parameters.is_empty(), of_node) {
        (true, Some(of_node)) => of_node.clone(),
        _ => question.parameters,
    };
    let about = &Question { parameters, ..question };
    let (trials, matched) = try_assignments(state, node);
    let seen = matched.map(|rule| rule.scopes_for(node)).unwrap_or_default();
    let scopes =
        matched.map(|rule| try_scopes(state, rule, node, &seen, about)).unwrap_or_default();
    let asking: Vec<&StreamStatus> = subject
        .streams
        .iter()
        .copied()
        .filter(|stream| about.type_url().is_none_or(|url| asks_for(stream, url)))
        .collect();
    let mut conclusions = Vec::new();
    conclude_assignment(&mut conclusions, matched, &seen);
    if matched.is_some() {
        conclude_content(&mut conclusions, state, &seen, about, Some(node));
    }
    conclude_streams(&mut conclusions, &asking, about.about);
    let shown = asking.iter().map(|stream| {
        let mut shown = show_stream(subject.replica_id, stream);
        if let Some(type_url) = about.type_url() {
            shown.subscriptions.retain(|subscription| subscription.type_url == type_url.as_str());
            shown.nacks.retain(|nack| nack.type_url == type_url.as_str());
        }
        shown
    });
    let references = references.and_then(|references| references.of(state, &seen, about));
    let answer = pb::ExplainResponse { conclusions, trials, scopes, ..head };
    with_references(pb::ExplainResponse { streams: shown.collect(), ..answer }, references)
}

/// Explains what the ID of a node that is not connected determines, and says what is unknown.
fn explain_by_id(
    state: &State,
    subject: &Subject<'_>,
    about: &Question<'_>,
    references: Option<References>,
    head: pb::ExplainResponse,
) -> pb::ExplainResponse {
    let id = subject.id;
    let extent = &subject.unasked.extent;
    let mut conclusions = vec![format!(
        "Node {id:?} is not connected{extent}. Its cluster, locality, metadata, dynamic parameters and \
         identity are unknown here. The rest says only what its ID determines."
    )];
    let (trials, decision) = by_id::decide(state, id);
    let node = Node { id: id.to_owned(), ..Node::default() };
    let (mut scopes, mut shown) = (Vec::new(), None);
    match decision {
        by_id::Decision::NoMatch => conclude_assignment(&mut conclusions, None, &[]),
        by_id::Decision::Open(rules) => conclusions.push(by_id::open_assignments(&rules)),
        by_id::Decision::Matches(rule) => {
            let (seen, open) = by_id::scopes(rule, &node);
            scopes = try_scopes(state, rule, &node, &seen, about);
            if open.is_empty() {
                conclude_assignment(&mut conclusions, Some(rule), &seen);
                if by_id::has_unknown_variant(state, &seen, about.key(), &about.parameters) {
                    let key = about.key().map(ToString::to_string).unwrap_or_default();
                    conclusions.push(format!(
                        "{key} has variants. The variant that the node sees depends on its dynamic parameters."
                    ));
                } else {
                    conclude_content(&mut conclusions, state, &seen, about, None);
                    shown = references.and_then(|references| references.of(state, &seen, about));
                }
            } else {
                conclusions.push(format!(
                    "Assignment {:?} matches the node. Its scope templates {} depend on values that are unknown here, \
                     and so does what the node sees.",
                    rule.name,
                    open.join(", ")
                ));
                scopes.iter_mut().for_each(|scope| by_id::hide_unknown(scope, &open));
            }
        }
    }
    let unknown = by_id::UNKNOWN.map(str::to_owned).to_vec();
    with_references(pb::ExplainResponse { conclusions, trials, scopes, unknown, ..head }, shown)
}

fn with_references(answer: pb::ExplainResponse, shown: Option<Shown>) -> pb::ExplainResponse {
    let references = shown.unwrap_or_default();
    pb::ExplainResponse {
        referents: references.referents,
        referents_omitted: references.n_referents_omitted,
        referrers: references.referrers,
        referrers_omitted: references.n_referrers_omitted,
        ..answer
    }
}

/// Returns the assignments up to the first match, and the matching assignment.
fn try_assignments<'a>(
    state: &'a State,
    node: &Node,
) -> (Vec<pb::AssignmentTrial>, Option<&'a Assignment>) {
    let mut trials = Vec::new();
    for rule in &state.assignments.rules {
        let mismatch = rule.matcher.mismatch(node);
        let matched = mismatch.is_none();
        trials.push(pb::AssignmentTrial {
            name: rule.name.to_string(),
            priority: rule.priority,
            matched,
            reason: mismatch.unwrap_or_default(),
            unknown: false,
        });
        if matched {
            return (trials, Some(rule));
        }
    }
    (trials, None)
}

fn try_scopes(
    state: &State,
    rule: &Assignment,
    node: &Node,
    seen: &[ScopeName],
    about: &Question<'_>,
) -> Vec<pb::ScopeTrial> {
    let select = |scope: &ScopeName| select(state, scope, about.key()?, &about.parameters);
    let top = seen.iter().find(|scope| select(scope).is_some());
    let resolved: Vec<Option<ScopeName>> =
        rule.scopes.iter().map(|template| template.resolve(node)).collect();
    let mut trials = Vec::new();
    for (index, template) in rule.scopes.iter().enumerate() {
        // If a scope is listed twice, its first position counts.
        let scope = resolved[index]
            .as_ref()
            .filter(|scope| resolved[..index].iter().flatten().all(|earlier| earlier != *scope));
        let resource = scope.and_then(select);
        let resources =
            scope.and_then(|scope| state.scopes.get(scope)).map_or(0, |held| {
                match about.type_url() {
                    None => held.len(),
                    Some(url) => {
                        held.types.get(url).map_or(0, |collection| collection.resources.len())
                    }
                }
            });
        let shadowed_by = top.filter(|top| resource.is_some() && scope != Some(*top));
        trials.push(pb::ScopeTrial {
            template: template.as_str().to_owned(),
            scope: scope.map(ToString::to_string).unwrap_or_default(),
            resources: resources as u64,
            version: resource.map(|found| found.version().to_string()).unwrap_or_default(),
            shadowed_by: shadowed_by.map(ToString::to_string).unwrap_or_default(),
            variant: resource.map(|found| variant_text(found.name())).unwrap_or_default(),
            unknown: false,
        });
    }
    trials
}

fn asks_for(stream: &StreamStatus, type_url: &TypeUrl) -> bool {
    stream.subscriptions.iter().any(|subscription| subscription.type_url == *type_url)
}

fn conclude_assignment(out: &mut Vec<String>, matched: Option<&Assignment>, seen: &[ScopeName]) {
    let Some(rule) = matched else {
        out.push("No assignment matches the node: it receives no response.".to_owned());
        return;
    };
    if seen.is_empty() {
        let name = &rule.name;
        out.push(format!(
            "Assignment {name:?} matches the node, but none of its scope templates has a value for it: it sees nothing."
        ));
        return;
    }
    let scopes: Vec<&str> = seen.iter().map(ScopeName::as_str).collect();
    let order = if scopes.len() > 1 { " (an earlier one shadows a later one)" } else { "" };
    out.push(format!(
        "Assignment {:?} gives the node the scopes {}{order}.",
        rule.name,
        scopes.join(", ")
    ));
}

/// Adds the resources that a node with these scopes sees. `node` is `None` if the node is not connected.
fn conclude_content(
    out: &mut Vec<String>,
    state: &State,
    seen: &[ScopeName],
    about: &Question<'_>,
    node: Option<&Node>,
) {
    match about.about {
        About::Everything => {}
        About::Type(type_url) => {
            let collections = || seen.iter().filter_map(|scope| state.collection(scope, type_url));
            let n: usize = collections().map(|collection| collection.resources.len()).sum();
            let has_node_names = collections().any(|collection| collection.n_of_nodes > 0);
            let others = if has_node_names { " and those of other nodes" } else { "" };
            let name = type_url.shown_name();
            out.push(match n {
                0 => format!("These scopes have no {name}."),
                n => format!(
                    "These scopes have {n} resources of {name}, including shadowed ones{others}."
                ),
            });
        }
        About::Resource(key) => conclude_resource(out, state, seen, key, about, node),
    }
}

/// Returns a sentence about a name that a wildcard of the node does not find, or may not find (XDSTP-08).
fn hidden_from_wildcard(
    key: &ResourceKey,
    scope: &ScopeName,
    node: Option<&Node>,
) -> Option<String> {
    let name = key.name.base();
    match node {
        Some(node) if !is_of_node(name, node) => Some(format!(
            "{key} of scope {scope} has parameters that the node does not have. A wildcard of the node does not find it: the \
             node receives it only if it requests the name, without a wildcard for the type."
        )),
        None if has_node_parameters(name) => Some(format!(
            "{key} of scope {scope} has parameters of a node. A wildcard finds it only if the node has all these values."
        )),
        Some(_) | None => None,
    }
}

fn conclude_resource(
    out: &mut Vec<String>,
    state: &State,
    seen: &[ScopeName],
    key: &ResourceKey,
    Question { parameters, newest, .. }: &Question<'_>,
    node: Option<&Node>,
) {
    let found = seen.iter().find_map(|scope| Some((scope, select(state, scope, key, parameters)?)));
    let hidden = found.and_then(|(scope, _)| hidden_from_wildcard(key, scope, node));
    if let Some(sentence) = hidden {
        out.push(sentence);
        return;
    }
    let variants_of = |scope: &ScopeName| {
        let collection = state.collection(scope, &key.type_url);
        collection.map_or(&[][..], |collection| collection.variants.of(key.name.as_str()))
    };
    let others: Vec<String> = seen
        .iter()
        .filter_map(|scope| {
            let place = format!(" in scope {scope}");
            mismatch(key, &place, variants_of(scope), parameters)
        })
        .collect();
    let is_canonical =
        ResourceName::canonical(key.name.base()).is_ok_and(|name| name.as_str() == key.name.base());
    match (found, others.is_empty()) {
        (Some((scope, _)), _) if !is_canonical => out.push(format!(
            "The node sees {key} of scope {scope} only with a wildcard, because an earlier release stored it under this \
             spelling. Apply the resource again."
        )),
        (Some((scope, resource)), _) => match resource.constraints() {
            None => out.push(format!("The node sees {key} of scope {scope}.")),
            Some(constraints) => out.push(format!(
                "With {}, the node sees the variant [{constraints}] of {key} in scope {scope}.",
                show_parameters(parameters)
            )),
        },
        (None, false) => out.extend(others.into_iter().map(|reason| format!("{reason}."))),
        (None, true) => out.push(match seen.iter().find(|scope| has(newest, scope, key)) {
            Some(scope) => format!(
                "A freeze holds {key} of scope {scope} back from clients: the resource was created after the freeze \
                 began."
            ),
            None => not_in_scopes(newest, key),
        }),
    }
}

/// Returns whether a scope has a resource, or variants of it.
fn has(state: &State, scope: &ScopeName, key: &ResourceKey) -> bool {
    let variants = state.collection(scope, &key.type_url);
    let variants = variants.map_or(&[][..], |collection| collection.variants.of(key.name.as_str()));
    state.get(scope, key).is_some() || !variants.is_empty()
}

/// Returns the sentence that a resource is not in the scopes of a node.
fn not_in_scopes(state: &State, key: &ResourceKey) -> String {
    let elsewhere = state.scopes.keys().filter(|scope| has(state, scope, key));
    let elsewhere: Vec<&str> = elsewhere.map(ScopeName::as_str).take(10).collect();
    if elsewhere.is_empty() {
        format!("{key} does not exist in any scope.")
    } else {
        format!("{key} is not in the node's scopes; it exists in {}.", elsewhere.join(", "))
    }
}

fn conclude_streams(out: &mut Vec<String>, asking: &[&StreamStatus], about: &About) {
    let Some(type_url) = about.type_url() else { return };
    let name = type_url.shown_name();
    if asking.is_empty() {
        out.push(format!("No stream of the node subscribes to {name}."));
        return;
    }
    let subscriptions = asking
        .iter()
        .flat_map(|stream| stream.subscriptions.iter())
        .filter(|subscription| subscription.type_url == *type_url);
    for subscription in subscriptions {
        let asked = match (subscription.wildcard, subscription.n_names) {
            (true, 0) => "all resources".to_owned(),
            (true, n) => format!("all resources and {n} by name"),
            (false, 0) => {
                out.push(format!(
                    "The stream asks for no resource of {name}: its list is empty, which is not a wildcard for this type. The \
                     client receives nothing until it names a resource."
                ));
                continue;
            }
            (false, 1) => "1 resource by name".to_owned(),
            (false, n) => format!("{n} resources by name"),
        };
        let asked = format!("{asked} of {name}");
        let acked = subscription.acked.as_ref().map(ToString::to_string);
        let acked = acked.unwrap_or_else(|| "nothing".to_owned());
        out.push(match subscription.state {
            SyncState::Synced => {
                format!("The stream subscribes to {asked}, and has acknowledged all (version {acked}).")
            }
            SyncState::Idle => format!("The stream subscribes to {asked}; there is nothing to send."),
            SyncState::Pending => format!(
                "The stream subscribes to {asked}; a response is being sent or is not yet acknowledged (acknowledged: {acked})."
            ),
            SyncState::Nacked => {
                let message = subscription.nack.as_ref().map(|nack| nack.message.as_str());
                let message = message.unwrap_or_default();
                format!(
                    "The stream subscribes to {asked}, and has rejected a response (still uses: {acked}): {message}"
                )
            }
        });
    }
}

#[cfg(test)]
mod tests;
