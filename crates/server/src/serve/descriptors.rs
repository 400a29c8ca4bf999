//! The descriptor sets that operators configure (`xds.descriptor_sets`).

use std::{fs, io::Read};

use crate::cli::Failure;

/// The maximum size of a descriptor set in bytes. The whole Envoy API takes 4 MB.
const BYTES_MAX: u64 = 64 << 20;

/// Adds the descriptors in the files to those of Envoy.
///
/// # Errors
/// Fails with the name of the file if a file cannot be read or is not a valid descriptor set.
pub(super) fn load(paths: &[String]) -> Result<(), Failure> {
    if paths.is_empty() {
        return Ok(());
    }
    let fail = |path: &str, reason: &dyn std::fmt::Display| {
        Failure::new(format_args!("cannot use {path} (xds.descriptor_sets): {reason}"))
    };
    let mut sets = Vec::new();
    for path in paths {
        let mut set = Vec::new();
        let file = fs::File::open(path).map_err(|error| fail(path, &error))?;
        file.take(BYTES_MAX + 1).read_to_end(&mut set).map_err(|error| fail(path, &error))?;
        if set.len() as u64 > BYTES_MAX {
            return Err(fail(path, &format_args!("it has more than {BYTES_MAX} bytes")));
        }
        sets.push(set);
    }
    chancery_proto::add_descriptor_sets(&sets)
        .map_err(|(index, reason)| fail(paths.get(index).map_or("", String::as_str), &reason))
}
