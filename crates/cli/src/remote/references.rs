//! References between resources, as text.

use std::io::{self, Write};

use chancery_admin_proto::v1 as pb;

use super::{fleet::unanswered, parameters::with_variant};
use crate::text::{count, plain, short_type};

/// Writes a line for each reference: its direction, the other resource, the scope or state of that, and the field.
/// `unknown_nodes` is the statement about the nodes that may have further views, of [`unknown_nodes`].
pub(super) fn write_references(
    direction: &str,
    references: &[pb::Reference],
    n_omitted: u64,
    unknown_nodes: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    for reference in references {
        let name = with_variant(&format!("{:?}", reference.name), &reference.variant);
        let place = match (reference.state.as_str(), reference.scope.as_str()) {
            ("present", scope) => format!("in {scope}"),
            ("missing-in-some-views", "") => "missing in some views".to_owned(),
            ("missing-in-some-views", scope) => format!("in {scope}, missing in some views"),
            ("other-authority", _) => "of another authority".to_owned(),
            ("unknown", _) => format!("unknown: {unknown_nodes}"),
            (state, _) => state.to_owned(),
        };
        let (kind, field) = (short_type(&reference.type_url), plain(&reference.field_path));
        writeln!(out, "  {direction:<9} {kind} {} ({place}): {field}", plain(&name))?;
    }
    match n_omitted {
        0 => Ok(()),
        n => writeln!(out, "  {direction:<9} … {n} more"),
    }
}

/// Returns the statement that the nodes of `n_replicas` other replicas are not known. `missing` are those that did not
/// answer; it is empty if they were not asked.
pub(super) fn unknown_nodes(n_replicas: u64, missing: &[pb::ReplicaNotAsked]) -> String {
    match missing {
        [] => format!("the nodes of {} were not asked", count(n_replicas, "other replica")),
        missing => unanswered(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_reference_is_not_called_missing() {
        let text = |state: &str, scope: &str| {
            let reference = pb::Reference {
                type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(),
                name: "web".to_owned(),
                field_path: "cluster".to_owned(),
                scope: scope.to_owned(),
                state: state.to_owned(),
                ..pb::Reference::default()
            };
            let mut out = Vec::new();
            let nodes = unknown_nodes(2, &[]);
            write_references("refers to", &[reference], 0, &nodes, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let line = |place: &str| format!("  refers to cluster \"web\" ({place}): cluster\n");
        let unknown = "unknown: the nodes of 2 other replicas were not asked";
        assert_eq!(text("unknown", ""), line(unknown));
        assert_eq!(text("missing", ""), line("missing"));
        assert_eq!(text("missing-in-some-views", ""), line("missing in some views"));
        let partial = line("in edge, missing in some views");
        assert_eq!(text("missing-in-some-views", "edge"), partial);
    }
}
