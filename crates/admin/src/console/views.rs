//! The pages that read.

use chancery_admin_proto::v1 as pb;
use chancery_console::{
    Page, cluster as cluster_view, history as history_view, load as load_view, mcp as mcp_view,
    node as node_view, nodes as nodes_view, problems as problems_view, resolve as resolve_view,
    resource as resource_view, resources as resources_view,
};

use super::{
    reads::{acknowledged, or_stale, part, pieces},
    visit::Visit,
};
use crate::{AdminError, ctx::Call, operations, params::whole_number, redact, resources::Listing};

/// The number of rows of a page.
const ROWS: u32 = 100;
/// The number of revisions on the page about a resource.
const VERSIONS_MAX: u32 = 10;

/// Returns the pieces of a list of resources as one message.
fn whole(mut listing: Listing) -> pb::ListResourcesResponse {
    let mut all = listing.head();
    while let Some(piece) = listing.next_piece() {
        all.resources.extend(piece.resources);
    }
    all
}

/// Returns a number that a form gives; `None` if it is empty.
pub(super) fn number(name: &str, text: &str) -> Result<Option<u64>, AdminError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let number = whole_number(text).map(Some);
    number.ok_or_else(|| {
        AdminError::Parameter(format!("the {name} is {text:?}; it must be a whole number from 0"))
    })
}

pub(super) async fn nodes(mut visit: Visit) -> Result<Page, AdminError> {
    let params = &mut visit.params;
    let query = nodes_view::Query {
        id: params.text("id")?,
        state: params.text("state")?,
        behind: params.text("behind")?,
        sort: params.text("sort")?,
        cursor: params.text("cursor")?,
    };
    params.finish()?;
    let request = pb::ListNodesRequest {
        id: query.id.clone(),
        state: query.state.clone(),
        behind: number("revision", &query.behind)?,
        cursor: query.cursor.clone(),
        limit: ROWS,
        ..pb::ListNodesRequest::default()
    };
    let list = pieces(operations::list_nodes(&visit.call, request).await?).await?;
    Ok(nodes_view::page(&query, list))
}

pub(super) async fn node(mut visit: Visit) -> Result<Page, AdminError> {
    let id = visit.params.required_text("id")?;
    visit.params.finish()?;
    let call = &visit.call;
    let status = pb::GetNodeRequest { id: id.clone(), ..Default::default() };
    let explanation = pb::ExplainRequest { node: id.clone(), ..Default::default() };
    let resources = pb::ListResourcesRequest {
        view_of_node: id.clone(),
        without_body: true,
        limit: ROWS,
        ..Default::default()
    };
    let (status, explanation, resources) = tokio::join!(
        operations::get_node(call, status),
        operations::explain(call, explanation),
        operations::list_resources(call, resources)
    );
    let (status, explanation) = (part(status), part(explanation));
    let resources = part(resources.map(whole));
    Ok(node_view::page(&node_view::Node { id, status, explanation, resources }))
}

pub(super) async fn resolve(mut visit: Visit) -> Result<Page, AdminError> {
    let (node, url) = (visit.params.required_text("node")?, visit.params.text("url")?);
    visit.params.finish()?;
    let request = pb::ResolveRequest { node: node.clone(), url: url.clone(), ..Default::default() };
    let answer = operations::resolve(&visit.call, request).await;
    Ok(resolve_view::page(&node, &url, &part(answer)))
}

pub(super) async fn resources(mut visit: Visit) -> Result<Page, AdminError> {
    let params = &mut visit.params;
    let query = resources_view::Query {
        scope: params.text("scope")?,
        r#type: params.text("type")?,
        name: params.text("name")?,
        cursor: params.text("cursor")?,
    };
    params.finish()?;
    let request = pb::ListResourcesRequest {
        scope: query.scope.clone(),
        r#type: query.r#type.clone(),
        name: query.name.clone(),
        cursor: query.cursor.clone(),
        without_body: true,
        limit: ROWS,
        ..Default::default()
    };
    let read = |stale| {
        operations::list_resources(
            &visit.call,
            pb::ListResourcesRequest { stale, ..request.clone() },
        )
    };
    let (list, note) = or_stale(read).await?;
    let mut page = resources_view::page(&query, &whole(list));
    page.notes.extend(note);
    Ok(page)
}

pub(super) async fn resource(mut visit: Visit) -> Result<Page, AdminError> {
    let params = &mut visit.params;
    let (type_url, name) = (params.required_text("type")?, params.required_text("name")?);
    let scope = params.text("scope")?;
    params.finish()?;
    let call = &visit.call;
    let request = pb::DescribeResourceRequest {
        r#type: type_url.clone(),
        name: name.clone(),
        scope: scope.clone(),
        ..Default::default()
    };
    let versions = pb::ListHistoryRequest {
        limit: VERSIONS_MAX,
        scope: scope.clone(),
        r#type: type_url.clone(),
        name: name.clone(),
        ..Default::default()
    };
    let (description, versions) = tokio::join!(
        operations::describe_resource(call, request),
        operations::list_history(call, versions)
    );
    let mut description = description?;
    let bodies = description.scopes.iter_mut().map(|one| yaml(one.resource.as_mut())).collect();
    let blame = match description.scopes.as_slice() {
        [only] => Some(part(blame(call, &description, only).await)),
        _ => None,
    };
    let type_url = description.type_url.clone();
    let versions = part(versions);
    let page =
        resource_view::Resource { type_url, name, scope, description, bodies, blame, versions };
    Ok(resource_view::page(&page, &visit.viewer))
}

/// Takes the body of a resource, and returns it as YAML.
fn yaml(resource: Option<&mut pb::Resource>) -> String {
    let body = resource.and_then(|resource| resource.body.take());
    let json = body.map(|body| redact::body_to_json(&body)).unwrap_or_default();
    chancery_diff::field_lines(&json).join("\n")
}

async fn blame(
    call: &Call,
    description: &pb::DescribeResourceResponse,
    only: &pb::ResourceInScope,
) -> Result<pb::BlameResponse, AdminError> {
    let scope = only.resource.as_ref().map(|resource| resource.scope.clone());
    let request = pb::BlameRequest {
        r#type: description.type_url.clone(),
        name: description.name.clone(),
        scope: scope.unwrap_or_default(),
        stale: false,
    };
    operations::blame(call, request).await
}

pub(super) async fn history(mut visit: Visit) -> Result<Page, AdminError> {
    let params = &mut visit.params;
    let query = history_view::Query {
        scope: params.text("scope")?,
        r#type: params.text("type")?,
        name: params.text("name")?,
        author: params.text("author")?,
        label: params.text("label")?,
        cursor: params.text("cursor")?,
    };
    params.finish()?;
    let request = pb::ListHistoryRequest {
        limit: ROWS,
        cursor: query.cursor.clone(),
        scope: query.scope.clone(),
        r#type: query.r#type.clone(),
        name: query.name.clone(),
        author: query.author.clone(),
        label: query.label.clone(),
        ..Default::default()
    };
    let read = |stale| {
        operations::list_history(&visit.call, pb::ListHistoryRequest { stale, ..request.clone() })
    };
    let (list, note) = or_stale(read).await?;
    let mut page = history_view::page(&query, &list, &visit.viewer);
    page.notes.extend(note);
    Ok(page)
}

pub(super) async fn revision(mut visit: Visit) -> Result<Page, AdminError> {
    let revision = visit.params.required_number("revision")?;
    let cursor = visit.params.text("cursor")?;
    visit.params.finish()?;
    let request = pb::GetRevisionRequest { revision, limit: ROWS, cursor, stale: false };
    let (changes, live) = tokio::join!(
        operations::get_revision(&visit.call, request),
        acknowledged(&visit.call, revision)
    );
    let page = history_view::Revision { changes: changes?, live: part(live) };
    Ok(history_view::revision_page(&page, &visit.viewer))
}

pub(super) async fn diff(mut visit: Visit) -> Result<Page, AdminError> {
    let params = &mut visit.params;
    let (from, to) = (params.text("from")?, params.text("to")?);
    let (scope, cursor) = (params.text("scope")?, params.text("cursor")?);
    params.finish()?;
    let answer = match number("revision `from`", &from)? {
        None => None,
        first => {
            let request = pb::CompareRevisionsRequest {
                from: first,
                to: number("revision `to`", &to)?,
                scope: scope.clone(),
                limit: ROWS,
                cursor,
                ..Default::default()
            };
            Some(operations::compare_revisions(&visit.call, request).await?)
        }
    };
    Ok(history_view::diff_page(&from, &to, &scope, answer.as_ref()))
}

pub(super) async fn cluster(mut visit: Visit) -> Result<Page, AdminError> {
    visit.params.finish()?;
    let status = operations::get_cluster(&visit.call, pb::GetClusterRequest {}).await?;
    Ok(cluster_view::page(&status))
}

pub(super) async fn problems(mut visit: Visit) -> Result<Page, AdminError> {
    let params = &mut visit.params;
    let query = problems_view::Query {
        scope: params.text("scope")?,
        rule: params.text("rule")?,
        cursor: params.text("cursor")?,
    };
    params.finish()?;
    let request = pb::AnalyzeRequest {
        scope: query.scope.clone(),
        cursor: query.cursor.clone(),
        limit: if query.rule.is_empty() { ROWS } else { 10 * ROWS },
        stale: false,
    };
    let answer = operations::analyze(&visit.call, request).await?;
    Ok(problems_view::page(&query, &answer))
}

pub(super) async fn mcp(mut visit: Visit) -> Result<Page, AdminError> {
    visit.params.finish()?;
    let request = pb::GetMcpStatusRequest { limit: ROWS, ..Default::default() };
    Ok(mcp_view::page(&operations::get_mcp_status(&visit.call, request).await?))
}

pub(super) async fn load(mut visit: Visit) -> Result<Page, AdminError> {
    let (cluster, cursor) = (visit.params.text("cluster")?, visit.params.text("cursor")?);
    visit.params.finish()?;
    let request = pb::GetLoadRequest {
        cluster: cluster.clone(),
        cursor,
        limit: ROWS,
        ..pb::GetLoadRequest::default()
    };
    let status = operations::get_load(&visit.call, request).await?;
    Ok(load_view::page(&cluster, &status))
}
