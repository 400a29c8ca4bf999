//! References between resources, as text.

use std::io::{self, Write};

use chancery_proto::admin::v1 as pb;

use super::parameters::with_variant;
use crate::cli::text::{plain, short_type};

/// Writes a line for each reference: its direction, the other resource, the scope or state of that, and the field.
pub(super) fn write_references(
    direction: &str,
    references: &[pb::Reference],
    n_omitted: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    for reference in references {
        let name = with_variant(&format!("{:?}", reference.name), &reference.variant);
        let place = match (reference.state.as_str(), reference.scope.as_str()) {
            ("present", scope) => format!("in {scope}"),
            ("missing-in-some-views", scope) => format!("in {scope}, missing in some views"),
            ("other-authority", _) => "of another authority".to_owned(),
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
