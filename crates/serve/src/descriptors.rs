//! The descriptor sets that operators configure (`xds.descriptor_sets`).

use std::fmt::Display;

use chancery_config::read_descriptor_set;
use tracing::warn;

use crate::Failure;

/// Adds the descriptors in the files to those of Envoy.
///
/// # Errors
/// Fails with the name of the file if a file cannot be read or is not a valid descriptor set.
pub(super) fn load(paths: &[String]) -> Result<(), Failure> {
    if paths.is_empty() {
        return Ok(());
    }
    let fail = |path: &str, reason: &dyn Display| {
        Failure::new(format_args!("cannot use {path} (xds.descriptor_sets): {reason}"))
    };
    let read = |path: &String| read_descriptor_set(path).map_err(|error| fail(path, &error));
    let sets = paths.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let left_out = chancery_proto::add_descriptor_sets(&sets)
        .map_err(|(index, reason)| fail(paths.get(index).map_or("", String::as_str), &reason))?;
    if !left_out.is_empty() {
        let files = left_out.join(", ");
        warn!(
            files,
            "files of xds.descriptor_sets have the name of a built-in file and other types; the built-in file counts"
        );
    }
    Ok(())
}
