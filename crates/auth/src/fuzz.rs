//! The entry for fuzzing: the parsers of everything that a caller may send as a token.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};

use crate::{bearer, credentials::TokenLookup, key_set::KeySet, signed, static_token};

/// Parses an input as the value of an `authorization` header, and as a key set. The lines of an input with several lines
/// are the decoded parts of a JSON Web Token.
pub fn token(input: &[u8]) {
    if input.contains(&b'\n') {
        let parts: Vec<String> = input
            .splitn(3, |byte| *byte == b'\n')
            .map(|part| URL_SAFE_NO_PAD.encode(part))
            .collect();
        drop(signed::parse(&parts.join(".")));
    }
    drop(KeySet::parse(input));
    let Ok(value) = HeaderValue::from_bytes(input) else { return };
    let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
    let Ok(Some(text)) = bearer::find(&headers) else { return };
    let nobody: &TokenLookup<'_> = &|_| None;
    drop(static_token::prove(text, 0, nobody));
    drop(signed::parse(text));
}
