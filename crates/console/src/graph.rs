//! The graph of a resource: the resources that refer to it on the left, and those to which it refers on the right.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{parts::resource_address, text::short_type};

/// The maximum number of resources on one side.
const SIDE_MAX: usize = 12;
const ROW: usize = 34;
const WIDTH: usize = 260;
/// The maximum number of characters of a name in the graph.
const NAME_MAX: usize = 30;

/// Returns the graph, or nothing if the resource has no references.
pub(crate) fn graph(
    type_url: &str,
    name: &str,
    referrers: &[pb::Reference],
    referents: &[pb::Reference],
) -> Markup {
    let rows = referrers.len().max(referents.len()).min(SIDE_MAX);
    if rows == 0 {
        return html! {};
    }
    let height = (rows + 1) * ROW;
    let middle = height / 2;
    let label = format!("References of {name}; the tables below have them as text");
    html! {
        svg.graph viewBox=(format!("0 0 {} {height}", 3 * WIDTH + 120)) role="group" aria-label=(label) {
            @for (at, one) in referrers.iter().take(SIDE_MAX).enumerate() {
                @let y = place(at, referrers.len(), height);
                path.edge d=(curve(WIDTH, y, WIDTH + 60, middle)) {}
                (node(0, y, one))
            }
            @for (at, one) in referents.iter().take(SIDE_MAX).enumerate() {
                @let y = place(at, referents.len(), height);
                path.edge d=(curve(2 * WIDTH + 60, middle, 2 * WIDTH + 120, y)) {}
                (node(2 * WIDTH + 120, y, one))
            }
            rect.self x=(WIDTH + 60) y=(middle - 14) width=(WIDTH) height="28" rx="4" {}
            text x=(WIDTH + 60 + WIDTH / 2) y=(middle + 4) text-anchor="middle" {
                (short_type(type_url)) " " (cut(name))
            }
        }
    }
}

fn place(at: usize, n: usize, height: usize) -> usize {
    let n = n.min(SIDE_MAX);
    height / 2 + at * ROW + ROW / 2 - n * ROW / 2
}

fn curve(x1: usize, y1: usize, x2: usize, y2: usize) -> String {
    let middle = usize::midpoint(x1, x2);
    format!("M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}")
}

fn node(x: usize, y: usize, one: &pb::Reference) -> Markup {
    let is_missing = one.state.starts_with("missing");
    let class = if is_missing { "missing" } else { "other" };
    let text = format!("{} {}", short_type(&one.type_url), cut(&one.name));
    html! {
        a href=(resource_address(&one.type_url, &one.name, &one.scope)) {
            title { (one.field_path) " (" (one.state) ")" }
            rect class=(class) x=(x) y=(y - 14) width=(WIDTH) height="28" rx="4" {}
            text x=(x + WIDTH / 2) y=(y + 4) text-anchor="middle" {
                @if is_missing { "✕ " } (text)
            }
        }
    }
}

/// Returns the start of a name.
fn cut(name: &str) -> String {
    let mut cut: String = name.chars().take(NAME_MAX).collect();
    if cut.len() < name.len() {
        cut.push('…');
    }
    cut
}
