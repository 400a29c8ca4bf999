//! The HTTP routes of operations, and the requests that are read from parameters and bodies.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    body::{Body, to_bytes},
    extract::{
        Query, RawPathParams, Request, State,
        rejection::{QueryRejection, RawPathParamsRejection},
    },
    response::IntoResponse,
    routing::{MethodFilter, MethodRouter},
};
use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use http::HeaderValue;
use http_body::Body as _;
use http_body_util::LengthLimitError;
use percent_encoding::percent_decode_str;

use crate::{
    AdminError,
    ctx::Call,
    deps::Deps,
    params::{Params, whole_number},
    probes::Probes,
    reply::HttpReply,
    resources::parse_type,
};

/// The state of the handlers.
#[derive(Clone)]
pub(crate) struct Http {
    pub(crate) deps: Arc<Deps>,
    pub(crate) probes: Probes,
    pub(crate) request_bytes_max: u64,
}

pub(crate) type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;
pub(crate) type PathParams = Result<RawPathParams, RawPathParamsRejection>;

/// The HTTP routes by path.
pub(crate) struct Routes(pub(crate) BTreeMap<&'static str, MethodRouter<Http>>);

impl Routes {
    /// Adds an operation. `read` reads the request, and `run` runs the operation.
    pub(crate) fn add<M, R, Read, Run>(
        &mut self,
        path: &'static str,
        method: MethodFilter,
        read: impl FnOnce(Input) -> Read + Clone + Send + Sync + 'static,
        run: impl FnOnce(Call, M) -> Run + Clone + Send + Sync + 'static,
    ) where
        M: Send,
        R: HttpReply + Send,
        Read: Future<Output = Result<M, AdminError>> + Send,
        Run: Future<Output = Result<R, AdminError>> + Send,
    {
        let handler = |State(http): State<Http>,
                       path: PathParams,
                       pairs: Pairs,
                       request: Request| async move {
            let call = Call::of(&http.deps, request.extensions());
            let reply = async {
                let input = Input::new(pairs, path, request, http.request_bytes_max)?;
                run(call, read(input).await?).await
            };
            reply.await.map_or_else(IntoResponse::into_response, HttpReply::into_http)
        };
        let methods = self.0.remove(path).unwrap_or_default();
        self.0.insert(path, methods.on(method, handler));
    }
}

/// The parts of a request from which its message is read.
pub(crate) struct Input {
    pub(crate) params: Params,
    pub(crate) body: Body,
    request_bytes_max: u64,
    /// The headers `Last-Event-ID`. A client that resumes a stream of server-sent events sends one.
    last_event_ids: Vec<HeaderValue>,
}

impl Input {
    pub(crate) fn new(
        pairs: Pairs,
        path: PathParams,
        request: Request,
        request_bytes_max: u64,
    ) -> Result<Self, AdminError> {
        check_text(request.uri().query().unwrap_or_default())?;
        let Query(pairs) = pairs.map_err(|error| AdminError::Parameter(error.body_text()))?;
        let path = path.map_err(|error| AdminError::Parameter(error.body_text()))?;
        let params = Params::new(pairs).with_path(&path);
        let last_event_ids = request.headers().get_all("last-event-id");
        let last_event_ids = last_event_ids.iter().cloned().collect();
        Ok(Self { params, body: request.into_body(), request_bytes_max, last_event_ids })
    }

    /// Reads the body as a manifest.
    async fn manifest(self) -> Result<pb::File, AdminError> {
        let max = self.request_bytes_max;
        let content = body_text(self.body, max, " (admin.request_bytes_max)").await?;
        Ok(pb::File { name: "request body".to_owned(), content })
    }
}

/// Checks whether the query of an address is UTF-8 text. The extractor would replace other bytes, so that the request
/// would be about another name.
fn check_text(query: &str) -> Result<(), AdminError> {
    for pair in query.split('&') {
        if percent_decode_str(pair).decode_utf8().is_err() {
            let text = format!("the parameter {pair:?} is not UTF-8 text with percent-encoding");
            return Err(AdminError::Parameter(text));
        }
    }
    Ok(())
}

/// Reads a body as text of at most `max` bytes. `key` names the setting of the limit.
pub(crate) async fn body_text(body: Body, max: u64, key: &str) -> Result<String, AdminError> {
    let too_large =
        || AdminError::TooLarge(format!("the request has more than {max} bytes, the maximum{key}"));
    if body.size_hint().lower() > max {
        return Err(too_large());
    }
    let limit = usize::try_from(max).unwrap_or(usize::MAX);
    let bytes = to_bytes(body, limit).await.map_err(|error| {
        let source = std::error::Error::source(&error);
        if source.is_some_and(|source| source.is::<LengthLimitError>()) {
            return too_large();
        }
        AdminError::Parameter(format!("the request body ended early: {error}"))
    })?;
    String::from_utf8(bytes.into()).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        AdminError::Parameter(format!("byte {at} of the request body is not UTF-8 text"))
    })
}

/// Reads a request to publish manifests.
pub(crate) async fn read_apply(mut input: Input) -> Result<pb::ApplyRequest, AdminError> {
    let params = &mut input.params;
    let apply = pb::ApplyRequest {
        files: Vec::new(),
        scope: params.given_text("scope")?,
        prune: params.flag("prune")?,
        name: params.text("name")?,
        options: params.options()?,
    };
    params.finish()?;
    Ok(pb::ApplyRequest { files: vec![input.manifest().await?], ..apply })
}

/// Reads a request to publish a bootstrap.
pub(crate) async fn read_import(mut input: Input) -> Result<pb::ImportRequest, AdminError> {
    let params = &mut input.params;
    let import = pb::ImportRequest {
        file: None,
        scope: params.given_text("scope")?,
        name: params.text("name")?,
        options: params.options()?,
    };
    params.finish()?;
    Ok(pb::ImportRequest { file: Some(input.manifest().await?), ..import })
}

/// Reads a request to delete resources of one type.
pub(crate) async fn read_delete(mut input: Input) -> Result<pb::DeleteRequest, AdminError> {
    let params = &mut input.params;
    let type_name = params.text("type")?;
    let names = params.list("name");
    let scope = params.given_text("scope")?;
    let if_version = params.text("if_version")?;
    let dynamic_parameters = params.pairs("parameter")?;
    let options = params.options()?;
    params.finish()?;
    if names.len() > 1 && !if_version.is_empty() {
        let n = names.len();
        let text = format!("if_version applies to one resource, but {n} are named");
        return Err(AdminError::Parameter(text));
    }
    if type_name.is_empty() || names.is_empty() {
        let text = "a delete needs the parameters type and name; repeat name for several resources";
        return Err(AdminError::Parameter(text.to_owned()));
    }
    parse_type(&type_name)?;
    let resources = names
        .into_iter()
        .map(|name| {
            let (r#type, if_version) = (type_name.clone(), if_version.clone());
            let dynamic_parameters = dynamic_parameters.clone();
            pb::ResourceRef { r#type, name, if_version, dynamic_parameters }
        })
        .collect();
    Ok(pb::DeleteRequest { resources, scope, options })
}

/// Reads a request to watch. A browser resumes a stream with the header `Last-Event-ID`, which lacks the position of
/// clients and members.
pub(crate) async fn read_watch(mut input: Input) -> Result<pb::WatchRequest, AdminError> {
    let params = &mut input.params;
    let request = pb::WatchRequest {
        after_revision: params.number("after_revision")?,
        kinds: params.list("kind"),
        scope: params.given_text("scope")?,
        local: params.flag("local")?,
        position: None,
    };
    params.finish()?;
    Ok(match last_revision(&input.last_event_ids)? {
        None => request,
        last => pb::WatchRequest { after_revision: last, position: Some(Bytes::new()), ..request },
    })
}

/// Returns the revision in the header `Last-Event-ID`.
fn last_revision(ids: &[HeaderValue]) -> Result<Option<u64>, AdminError> {
    let text = match ids {
        [] => return Ok(None),
        [id] => match id.to_str().ok().and_then(whole_number) {
            Some(revision) => return Ok(Some(revision)),
            None => format!(
                "the header `Last-Event-ID` is {id:?}; it must be a revision in decimal digits"
            ),
        },
        several => {
            format!("the header `Last-Event-ID` occurs {} times; send it once", several.len())
        }
    };
    Err(AdminError::Parameter(text))
}

/// Reads the settings of load reports. A parameter `cluster` without a value is an empty list.
pub(crate) async fn read_load_settings(
    mut input: Input,
) -> Result<pb::SetLoadSettingsRequest, AdminError> {
    let params = &mut input.params;
    let mut names = params.list("cluster");
    let interval_ms = params.millis("interval")?;
    let endpoints = params.optional_flag("endpoints")?;
    params.finish()?;
    let is_given = !names.is_empty();
    if names == [""] {
        names.clear();
    }
    let clusters = is_given.then_some(pb::ClusterNames { names });
    Ok(pb::SetLoadSettingsRequest { clusters, interval_ms, endpoints })
}

/// Reads the request whose path is to be found.
pub(crate) async fn read_resolve(mut input: Input) -> Result<pb::ResolveRequest, AdminError> {
    let params = &mut input.params;
    let request = pb::ResolveRequest {
        node: params.text("node")?,
        url: params.text("url")?,
        method: params.text("method")?,
        header: params.list("header"),
        listener: params.text("listener")?,
        local: params.flag("local")?,
    };
    params.finish()?;
    Ok(request)
}
