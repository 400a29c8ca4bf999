//! The static files: a style sheet, a script and an icon. The address of a file contains a hash of its content, so that
//! browsers may keep it.

use std::sync::LazyLock;

const STYLE: &str = include_str!("assets/console.css");
const SCRIPT: &str = include_str!("assets/console.js");
const ICON: &str = include_str!("assets/icon.svg");

/// A static file.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    /// The content type.
    pub content_type: &'static str,
    /// The content.
    pub content: &'static str,
}

/// The addresses of the static files.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub(crate) style: String,
    pub(crate) script: String,
    pub(crate) icon: String,
}

pub(crate) static ADDRESSES: LazyLock<Addresses> = LazyLock::new(|| Addresses {
    style: address("console", STYLE, "css"),
    script: address("console", SCRIPT, "js"),
    icon: address("icon", ICON, "svg"),
});

/// Returns the static file at a path.
#[must_use]
pub fn asset(path: &str) -> Option<Asset> {
    let found = |content_type, content| Some(Asset { content_type, content });
    let addresses = &*ADDRESSES;
    match path {
        path if path == addresses.style => found("text/css; charset=utf-8", STYLE),
        path if path == addresses.script => found("text/javascript; charset=utf-8", SCRIPT),
        path if path == addresses.icon => found("image/svg+xml", ICON),
        _ => None,
    }
}

fn address(name: &str, content: &str, extension: &str) -> String {
    // FNV-1a. The hash tells versions of a file apart, and protects nothing.
    let hash = content.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("/ui/static/{name}-{hash:016x}.{extension}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_files_have_addresses_with_hashes() {
        let script = asset(&ADDRESSES.script).map(|file| file.content);
        assert_eq!(script, Some(SCRIPT));
        assert!(asset(&ADDRESSES.style).is_some() && asset(&ADDRESSES.icon).is_some());
        assert!(asset("/ui/static/console.css").is_none());
    }
}
