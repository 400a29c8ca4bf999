//! The pages of actions: what an action would do, and the form that confirms it.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    history::{access_changes, assignment_changes, changes},
    page::{Live, Page, Section, Viewer},
    parts::{Part, hidden, lacking, or_dash, replicas_without_answer, revision_link, table, time},
    text::{address, count, number, shell},
};

/// An action with a dry run.
#[derive(Debug)]
pub struct Plan {
    /// The title, such as `Undo revision 7`.
    pub title: String,
    /// The address to which the form posts.
    pub action: &'static str,
    /// The fields of the request.
    pub fields: Vec<(&'static str, String)>,
    /// The command with the same effect.
    pub command: String,
    /// The random ID of the request, so that a repeated form takes effect once.
    pub request_id: String,
    /// The result of the dry run.
    pub trial: Part<pb::WriteResponse>,
}

/// Returns the page that shows what an action would do, and asks for a confirmation.
#[must_use]
pub fn plan_page(plan: &Plan, viewer: &Viewer) -> Page {
    Page {
        section: Section::History,
        title: plan.title.clone(),
        command: format!("{0} --dry-run\n{0}", plan.command),
        live: Live::Off,
        not_asked: Vec::new(),
        notes: Vec::new(),
        body: match &plan.trial {
            Err(reason) => html! {
                p.problem role="alert" { "The dry run failed: " (reason) }
                p { a href="/ui/history" { "Go to the history" } }
            },
            Ok(trial) => html! { (effects(trial)) (confirmation(plan, trial, viewer)) },
        },
    }
}

fn effects(trial: &pb::WriteResponse) -> Markup {
    let changed = trial.changed + trial.removed + trial.assignments + trial.access;
    html! {
        p.sentence {
            @if changed == 0 { "This changes nothing." }
            @else {
                "This changes " (count(trial.changed, "resource")) ", removes " (number(trial.removed))
                ", and changes " (count(trial.assignments, "assignment")) " and "
                (count(trial.access, "access rule or quota")) ". Nothing is written yet."
            }
        }
        (replicas_without_answer(&trial.not_asked))
        @for guard in &trial.guards {
            div.problem role="alert" {
                p { b { "Guard " (guard.guard) } ": this may take down nodes." }
                ul { @for effect in &guard.effects { li { (effect) } } }
                @if guard.effects_omitted > 0 { p { (count(guard.effects_omitted, "further effect")) "." } }
            }
        }
        @if !trial.warnings.is_empty() {
            h2 { "Warnings" }
            ul { @for one in &trial.warnings { li { (one.resource) " " (one.field_path) " " (one.message) " " (one.fix) } } }
        }
        h2 { "Changes" }
        (changes(&trial.changes))
        (assignment_changes(&trial.assignment_changes))
        (access_changes(&trial.access_changes))
        @if trial.changes_omitted > 0 { p { (count(trial.changes_omitted, "further change")) "." } }
    }
}

fn confirmation(plan: &Plan, trial: &pb::WriteResponse, viewer: &Viewer) -> Markup {
    html! {
        form.confirm method="post" action=(plan.action) {
            h2 { "Confirm" }
            (hidden("csrf", &viewer.csrf))
            (hidden("request_id", &plan.request_id))
            (hidden("if_revision", &trial.revision.to_string()))
            @for (name, value) in &plan.fields { (hidden(name, value)) }
            @for guard in &trial.guards {
                label.check {
                    input type="checkbox" name="confirm" value=(guard.guard) required;
                    " I accept the effects of the guard " (guard.guard) "."
                }
            }
            label { "Reason" input type="text" name="reason" maxlength="1000"; }
            button.danger type="submit" { (plan.title) }
            " " a href="/ui/history" { "Cancel" }
        }
    }
}

/// Returns the page with the freezes, and the form for a further one.
#[must_use]
pub fn freezes_page(
    list: &Part<pb::ListFreezesResponse>,
    scope: &str,
    request_id: &str,
    viewer: &Viewer,
) -> Page {
    let may_freeze = viewer.may("freeze") || viewer.may("freeze.all");
    Page {
        section: Section::History,
        title: "Freezes".to_owned(),
        command: format!(
            "chancery freezes\nchancery freeze {}",
            shell(if scope.is_empty() { "SCOPE" } else { scope })
        ),
        live: Live::Off,
        not_asked: Vec::new(),
        notes: Vec::new(),
        body: html! {
            @match list {
                Err(reason) => { (lacking(reason)) },
                Ok(list) => { (freezes(&list.freezes, may_freeze)) },
            }
            @if may_freeze { (freeze_form(scope, request_id, viewer)) }
            @else { p.note { "Your identity may not freeze scopes." } }
        },
    }
}

fn freezes(freezes: &[pb::Freeze], may_thaw: bool) -> Markup {
    let rows = html! {
        @for one in freezes {
            tr {
                th scope="row" { @if one.scope.is_empty() { "all scopes" } @else { (one.scope) } }
                td.number { (revision_link(one.revision)) }
                td { (time(one.time_ms)) }
                td { (time(one.until_ms.unwrap_or_default())) }
                td { (or_dash(&one.author)) }
                td.cause { (or_dash(&one.reason)) }
                td { (count(one.held_resources, "resource")) @if one.held_assignments { ", assignments" } }
                td {
                    @if may_thaw {
                        a href=(thaw_address(&one.scope, false)) { "Thaw" } " "
                        a href=(thaw_address(&one.scope, true)) { "Discard" }
                    }
                }
            }
        }
    };
    html! {
        @if freezes.is_empty() { p.empty { "Nothing is frozen." } }
        @else {
            (table("Freezes", &["scope", "revision", "since", "until", "author", "reason", "held", "action"], &rows))
        }
    }
}

fn thaw_address(scope: &str, discard: bool) -> String {
    let all = if scope.is_empty() { "true" } else { "" };
    let discard = if discard { "true" } else { "" };
    address("/ui/thaw", &[("scope", scope), ("all", all), ("discard", discard)])
}

fn freeze_form(scope: &str, request_id: &str, viewer: &Viewer) -> Markup {
    html! {
        form.confirm method="post" action="/ui/freeze" {
            h2 { "Freeze" }
            p { "A freeze holds changes back: writes commit, and clients keep what they have. It has no dry run, because it changes nothing for clients." }
            (hidden("csrf", &viewer.csrf))
            (hidden("request_id", request_id))
            label { "Scope (empty with “all scopes”)" input type="text" name="scope" value=(scope); }
            label.check { input type="checkbox" name="all" value="true"; " All scopes and the assignments" }
            label { "End after (such as 30m or 2h; empty for no end)" input type="text" name="for" pattern="[0-9]+(s|m|h)"; }
            label { "Reason" input type="text" name="reason" maxlength="1000"; }
            label.check { input type="checkbox" name="sure" value="true" required; " Hold changes of this scope back from clients" }
            button.danger type="submit" { "Freeze" }
        }
    }
}

/// Returns the page that asks which revision to restore.
#[must_use]
pub fn rollback_form(scope: &str) -> Page {
    Page {
        section: Section::History,
        title: "Roll back".to_owned(),
        command: String::new(),
        live: Live::Off,
        not_asked: Vec::new(),
        notes: Vec::new(),
        body: html! {
            form.filters method="get" action="/ui/rollback" {
                label { "Restore revision" input type="text" inputmode="numeric" name="to" required; }
                label { "Scope" input type="text" name="scope" value=(scope); }
                label.check { input type="checkbox" name="all" value="true"; " All scopes" }
                button type="submit" { "Show what changes" }
            }
        },
    }
}
