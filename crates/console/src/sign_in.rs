//! The page that asks for a bearer token.

use maud::html;

use crate::{
    page::{Live, Page, Section, Viewer},
    parts::hidden,
};

/// Returns the page. `next` is the address to which the sign-in leads, and `problem` says why the browser is here.
#[must_use]
pub fn page(next: &str, problem: &str, csrf: &str, viewer: &Viewer) -> String {
    let page = Page {
        section: Section::Other,
        title: "Sign in".to_owned(),
        command: "chancery whoami".to_owned(),
        live: Live::Off,
        not_asked: Vec::new(),
        notes: Vec::new(),
        body: html! {
            @if !problem.is_empty() { p.problem role="alert" { (problem) } }
            p {
                "Paste a token of Chancery, or a token of an issuer that the configuration names. "
                "With a client certificate in the browser, no token is needed."
            }
            form.confirm method="post" action="/ui/sign-in" {
                (hidden("csrf", csrf))
                (hidden("next", next))
                label { "Token" input type="password" name="token" autocomplete="off" required; }
                button type="submit" { "Sign in" }
            }
            p.hint {
                "The browser keeps the token in a cookie until it is closed or you sign out. Scripts cannot read it."
            }
        },
    };
    page.document(viewer)
}
