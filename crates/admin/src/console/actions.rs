//! The actions: rollback, undo, freeze and thaw. GET shows the result of a dry run, and POST writes.

use axum::{
    extract::{Request, State},
    response::Response,
};
use chancery_admin_proto::v1 as pb;
use chancery_console::{Page, actions as view, address};

use super::{
    answer::error_page,
    present,
    reads::part,
    session,
    views::number,
    visit::{Visit, viewer},
};
use crate::{AdminError, ctx::Call, operations, params::Params, routes::Http};

/// Returns the options of a dry run.
fn dry_run() -> Option<pb::WriteOptions> {
    Some(pb::WriteOptions { dry_run: true, ..pb::WriteOptions::default() })
}

/// Returns the ID of a request that a form will send.
fn request_id() -> Result<String, AdminError> {
    present::random_text()
        .ok_or_else(|| AdminError::Internal("the system has no random numbers".to_owned()))
}

/// Reads the options that the form of a plan has.
fn options(fields: &mut Params) -> Result<Option<pb::WriteOptions>, AdminError> {
    Ok(Some(pb::WriteOptions {
        if_revision: fields.number("if_revision")?,
        reason: fields.text("reason")?,
        request_id: fields.text("request_id")?,
        confirm: fields.list("confirm"),
        ..pb::WriteOptions::default()
    }))
}

/// Reads the form of an action, and runs the action. Shows the revision that it wrote.
async fn act<R, Run>(
    http: Http,
    request: Request,
    read: impl FnOnce(&mut Params) -> Result<R, AdminError> + Send,
    run: impl FnOnce(Call, R) -> Run + Send,
) -> Response
where
    R: Send,
    Run: Future<Output = Result<pb::WriteResponse, AdminError>> + Send,
{
    let (parts, body) = request.into_parts();
    let call = Call::of(&http.deps, &parts.extensions);
    let viewer = viewer(&http, &call, &parts.extensions).await.unwrap_or_default();
    let answer = async {
        let mut fields = session::fields(&parts, body).await?;
        let message = read(&mut fields)?;
        fields.finish()?;
        Box::pin(run(call, message)).await
    };
    match answer.await {
        Ok(written) => {
            let revision = written.revision.to_string();
            session::redirect(&address("/ui/revision", &[("revision", &revision)]), None)
        }
        Err(error) => error_page(&error, &viewer),
    }
}

fn read_undo(fields: &mut Params) -> Result<pb::UndoRequest, AdminError> {
    let revision = fields.required_number("revision")?;
    Ok(pb::UndoRequest { revision, options: None })
}

pub(super) async fn undo_plan(mut visit: Visit) -> Result<Page, AdminError> {
    let request = read_undo(&mut visit.params)?;
    visit.params.finish()?;
    let revision = request.revision;
    let request = pb::UndoRequest { options: dry_run(), ..request };
    let trial = operations::undo(&visit.call, request).await;
    let plan = view::Plan {
        title: format!("Undo revision {revision}"),
        action: "/ui/undo",
        fields: vec![("revision", revision.to_string())],
        command: format!("chancery undo {revision}"),
        request_id: request_id()?,
        trial: part(trial),
    };
    Ok(view::plan_page(&plan, &visit.viewer))
}

pub(super) async fn undo(State(http): State<Http>, request: Request) -> Response {
    let read = |fields: &mut Params| {
        let options = options(fields)?;
        Ok(pb::UndoRequest { options, ..read_undo(fields)? })
    };
    act(http, request, read, async move |call, request| operations::undo(&call, request).await)
        .await
}

fn read_rollback(fields: &mut Params) -> Result<pb::RollbackRequest, AdminError> {
    Ok(pb::RollbackRequest {
        to: number("revision", &fields.text("to")?)?,
        scope: fields.text("scope")?,
        all: fields.flag("all")?,
        r#type: fields.text("type")?,
        name: fields.text("name")?,
        options: None,
    })
}

pub(super) async fn rollback_plan(mut visit: Visit) -> Result<Page, AdminError> {
    let request = read_rollback(&mut visit.params)?;
    visit.params.finish()?;
    let Some(to) = request.to else { return Ok(view::rollback_form(&request.scope)) };
    let pb::RollbackRequest { scope, all, r#type, name, .. } = request.clone();
    let what = match (scope.as_str(), name.as_str()) {
        ("", _) => "--all".to_owned(),
        (scope, "") => scope.to_owned(),
        (scope, name) => format!("{scope} {type} {name}", r#type = r#type),
    };
    let title = match what.as_str() {
        "--all" => format!("Roll everything back to revision {to}"),
        what => format!("Roll {what} back to revision {to}"),
    };
    let trial =
        operations::rollback(&visit.call, pb::RollbackRequest { options: dry_run(), ..request });
    let all = if all { "true" } else { "false" };
    let plan = view::Plan {
        title,
        action: "/ui/rollback",
        fields: vec![
            ("to", to.to_string()),
            ("scope", scope),
            ("all", all.to_owned()),
            ("type", r#type),
            ("name", name),
        ],
        command: format!("chancery rollback {what} --to {to}"),
        request_id: request_id()?,
        trial: part(trial.await),
    };
    Ok(view::plan_page(&plan, &visit.viewer))
}

pub(super) async fn rollback(State(http): State<Http>, request: Request) -> Response {
    let read = |fields: &mut Params| {
        let options = options(fields)?;
        Ok(pb::RollbackRequest { options, ..read_rollback(fields)? })
    };
    act(http, request, read, async move |call, request| operations::rollback(&call, request).await)
        .await
}

pub(super) async fn freezes(mut visit: Visit) -> Result<Page, AdminError> {
    let scope = visit.params.text("scope")?;
    visit.params.finish()?;
    let list = operations::list_freezes(&visit.call, pb::ListFreezesRequest::default()).await;
    Ok(view::freezes_page(&part(list), &scope, &request_id()?, &visit.viewer))
}

pub(super) async fn freeze(State(http): State<Http>, request: Request) -> Response {
    let read = |fields: &mut Params| {
        let is_sure = fields.flag("sure")?;
        let for_ms = match fields.one("for")?.filter(|text| !text.is_empty()) {
            Some(text) => Params::new(vec![("for".to_owned(), text)]).millis("for")?,
            None => None,
        };
        if !is_sure {
            return Err(AdminError::Parameter("the freeze is not confirmed".to_owned()));
        }
        Ok(pb::FreezeRequest {
            scope: fields.text("scope")?,
            all: fields.flag("all")?,
            for_ms,
            options: options(fields)?,
        })
    };
    act(http, request, read, async move |call, request| operations::freeze(&call, request).await)
        .await
}

fn read_thaw(fields: &mut Params) -> Result<pb::ThawRequest, AdminError> {
    Ok(pb::ThawRequest {
        scope: fields.text("scope")?,
        all: fields.flag("all")?,
        discard: fields.flag("discard")?,
        options: None,
    })
}

pub(super) async fn thaw_plan(mut visit: Visit) -> Result<Page, AdminError> {
    let request = read_thaw(&mut visit.params)?;
    visit.params.finish()?;
    let pb::ThawRequest { scope, all, discard, .. } = request.clone();
    let trial = operations::thaw(&visit.call, pb::ThawRequest { options: dry_run(), ..request });
    let what = if all { "all scopes" } else { &scope };
    let title = if discard {
        format!("Discard the held changes of {what}")
    } else {
        format!("Thaw {what}")
    };
    let flags = if discard { " --discard" } else { "" };
    let command = format!("chancery thaw {}{flags}", if all { "--all" } else { &scope });
    let flag = |is_set: bool| if is_set { "true" } else { "false" }.to_owned();
    let plan = view::Plan {
        title,
        action: "/ui/thaw",
        fields: vec![("scope", scope), ("all", flag(all)), ("discard", flag(discard))],
        command,
        request_id: request_id()?,
        trial: part(trial.await),
    };
    Ok(view::plan_page(&plan, &visit.viewer))
}

pub(super) async fn thaw(State(http): State<Http>, request: Request) -> Response {
    let read = |fields: &mut Params| {
        let options = options(fields)?;
        Ok(pb::ThawRequest { options, ..read_thaw(fields)? })
    };
    act(http, request, read, async move |call, request| operations::thaw(&call, request).await)
        .await
}
