//! The frame of every page: head, navigation, notes about missing answers, and the command that gives the same answer.

use chancery_admin_proto::v1 as pb;
use maud::{DOCTYPE, Markup, html};

use crate::{
    assets::ADDRESSES,
    parts::{hidden, replicas_without_answer},
};

/// A page of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// The verdict on the fleet.
    Fleet,
    /// The nodes, and one node.
    Nodes,
    /// The resources, and one resource.
    Resources,
    /// The revisions, and ways back.
    History,
    /// The replicas.
    Cluster,
    /// The findings of the analysis.
    Problems,
    /// The sources of MCP.
    Mcp,
    /// The load reports.
    Load,
    /// A page outside of the navigation.
    Other,
}

const NAVIGATION: [(Section, &str, &str); 8] = [
    (Section::Fleet, "/ui", "Fleet"),
    (Section::Nodes, "/ui/nodes", "Nodes"),
    (Section::Resources, "/ui/resources", "Resources"),
    (Section::History, "/ui/history", "History"),
    (Section::Cluster, "/ui/cluster", "Cluster"),
    (Section::Problems, "/ui/problems", "Problems"),
    (Section::Mcp, "/ui/mcp", "MCP"),
    (Section::Load, "/ui/load", "Load"),
];

/// Whether a page follows the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Live {
    /// The page stays as it is.
    Off,
    /// The script repeats the page when the cluster changes.
    On,
}

/// The person who looks at a page.
#[derive(Debug, Clone, Default)]
pub struct Viewer {
    /// The identity and its rights; `None` if it is not known.
    pub who: Option<pb::WhoAmIResponse>,
    /// Whether a cookie of the console proves the identity.
    pub is_signed_in: bool,
    /// The value that each form repeats.
    pub csrf: String,
    /// The replica that answers.
    pub replica_id: u64,
    /// The version of the program.
    pub version: &'static str,
}

impl Viewer {
    /// Returns whether the viewer may use an operation on some target.
    #[must_use]
    pub fn may(&self, verb: &str) -> bool {
        self.who.as_ref().is_some_and(|who| who.verbs.iter().any(|known| known == verb))
    }
}

/// A page without its frame.
#[derive(Debug)]
pub struct Page {
    /// The place in the navigation.
    pub section: Section,
    /// The title.
    pub title: String,
    /// The command that gives the same answer; empty for none.
    pub command: String,
    /// Whether the page follows the cluster.
    pub live: Live,
    /// The replicas that did not answer.
    pub not_asked: Vec<pb::ReplicaNotAsked>,
    /// Further notes on what the page lacks.
    pub notes: Vec<String>,
    /// The content.
    pub body: Markup,
}

impl Page {
    /// Returns the document.
    #[must_use]
    pub fn document(&self, viewer: &Viewer) -> String {
        let main = html! {
            h1 { (self.title) }
            div data-part="notes" {
                (replicas_without_answer(&self.not_asked))
                @for note in &self.notes {
                    p.note role="note" { (note) }
                }
            }
            (self.body)
            @if !self.command.is_empty() {
                section.command aria-labelledby="command" {
                    h2 #command { "The same on the command line" }
                    pre tabindex="0" { code { (self.command) } }
                }
            }
        };
        frame(self.section, &self.title, self.live, viewer, &main)
    }
}

fn frame(section: Section, title: &str, live: Live, viewer: &Viewer, main: &Markup) -> String {
    let events = (live == Live::On).then_some("/ui/events");
    let body = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Chancery" }
                link rel="icon" href=(ADDRESSES.icon) type="image/svg+xml";
                link rel="stylesheet" href=(ADDRESSES.style);
                script src=(ADDRESSES.script) defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                (header(section, viewer))
                main #main tabindex="-1" data-events=[events] { (main) }
                footer {
                    @if viewer.who.is_some() {
                        span { "Replica " (viewer.replica_id) " · Chancery " (viewer.version) }
                    }
                    span #live role="status" {}
                    @if live == Live::On {
                        button #pause type="button" hidden { "Pause live updates" }
                    }
                }
            }
        }
    };
    body.into_string()
}

fn header(section: Section, viewer: &Viewer) -> Markup {
    html! {
        header {
            a.brand href="/ui" { "Chancery" }
            @if viewer.who.is_some() {
                nav aria-label="Pages" {
                    ul {
                        @for (page, address, name) in NAVIGATION {
                            li {
                                a href=(address) aria-current=[(page == section).then_some("page")] {
                                    (name)
                                }
                            }
                        }
                    }
                }
            }
            (identity(viewer))
        }
    }
}

fn identity(viewer: &Viewer) -> Markup {
    let Some(who) = &viewer.who else { return html! {} };
    let writes = ["apply", "delete", "freeze", "freeze.all", "prune"];
    let rights = match (who.enforced, writes.iter().any(|verb| viewer.may(verb))) {
        (false, _) => "access rules are off",
        (true, true) => "may write",
        (true, false) => "read-only",
    };
    html! {
        div.who {
            span { span.sr { "Identity: " } b { (who.identity) } " (" (rights) ")" }
            @if viewer.is_signed_in {
                form method="post" action="/ui/sign-out" {
                    (hidden("csrf", &viewer.csrf))
                    button type="submit" { "Sign out" }
                }
            } @else if who.enforced {
                a href="/ui/sign-in" { "Sign in" }
            }
        }
    }
}

/// Returns the page of a request that failed.
#[must_use]
pub fn failed(title: &str, message: &str, viewer: &Viewer) -> String {
    let body = html! {
        p.problem role="alert" { (message) }
        p { a href="/ui" { "Go to the fleet" } }
    };
    let page = Page {
        section: Section::Other,
        title: title.to_owned(),
        command: String::new(),
        live: Live::Off,
        not_asked: Vec::new(),
        notes: Vec::new(),
        body,
    };
    page.document(viewer)
}

/// Returns the page that a link on a page of another site opens. The replica does no work for it, and the browser sends
/// the cookie only with the next request.
#[must_use]
pub fn foreign_link(address: &str) -> String {
    let main = html! {
        h1 { "A link from another site" }
        p { "A page of another site links to this address of the console:" }
        p { a href=(address) { (address) } }
    };
    frame(Section::Other, "A link from another site", Live::Off, &Viewer::default(), &main)
}
