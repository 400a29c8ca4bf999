//! The token that the command line sends: its source, and the header of each request.
//!
//! A token is a secret. It never appears in an error, in an argument or in the log, and never leaves this
//! machine without TLS ([`super::connector::Security::of_scheme`]).

use std::{
    fmt, fs,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
};

/// The maximum size of a token in bytes. Servers refuse longer ones.
const TOKEN_BYTES_MAX: u64 = 16 << 10;
/// The environment variable with the token itself.
pub(crate) const VARIABLE: &str = "CHANCERY_TOKEN";

/// The source of a token.
#[derive(Clone)]
pub(crate) enum TokenSource {
    /// A file, which is read for each request, because tokens change.
    File(PathBuf),
    /// The value of [`VARIABLE`].
    Variable(String),
}

/// Adds the token, if there is one, to each request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bearer(Option<Arc<TokenSource>>);

impl TokenSource {
    /// Returns the value of the header `authorization`.
    ///
    /// # Errors
    /// Returns the reason why there is no usable token, without its text.
    pub(crate) fn header(&self) -> Result<MetadataValue<Ascii>, String> {
        let (token, advice) = match self {
            Self::File(path) => (read(path)?, "the file must contain the token, and nothing else"),
            Self::Variable(token) => (token.clone(), "set it to the token, and nothing else"),
        };
        let token = token.trim_ascii();
        if token.is_empty() {
            return Err(format!("{self} is empty; {advice}"));
        }
        if token.len() as u64 > TOKEN_BYTES_MAX {
            return Err(format!("{self} has more than {TOKEN_BYTES_MAX} bytes; {advice}"));
        }
        // The characters of RFC 6750 (`b64token`).
        let is_allowed = |c: u8| c.is_ascii_alphanumeric() || b"-._~+/=".contains(&c);
        if !token.bytes().all(is_allowed) {
            let what = if token.bytes().any(|c| c.is_ascii_whitespace()) {
                "white space between other characters"
            } else {
                "a character that no token has"
            };
            return Err(format!("{self} has {what}; {advice}, without \"Bearer\""));
        }
        let mut value = MetadataValue::try_from(format!("Bearer {token}"))
            .map_err(|_| format!("{self} cannot be sent in a header"))?;
        // HTTP/2 does not add the value to its compression tables.
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Reads a token file. Its size includes white space at its end.
fn read(path: &Path) -> Result<String, String> {
    let failed = |reason: &dyn fmt::Display| {
        format!("cannot read the token file {}: {reason}", path.display())
    };
    let metadata = fs::metadata(path).map_err(|error| failed(&error))?;
    if !metadata.is_file() {
        return Err(failed(&format_args!(
            "it is not a regular file, and is read for each request; use {VARIABLE}"
        )));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|error| failed(&error))?;
    file.take(TOKEN_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    if bytes.len() as u64 > TOKEN_BYTES_MAX {
        return Err(failed(&format_args!(
            "it has more than {TOKEN_BYTES_MAX} bytes, the maximum of a token"
        )));
    }
    String::from_utf8(bytes).map_err(|_| failed(&"it is not text"))
}

/// The name of the source, without the token.
impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the token file {}", path.display()),
            Self::Variable(_) => f.write_str(VARIABLE),
        }
    }
}

/// Without the token.
impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenSource({self})")
    }
}

impl Bearer {
    pub(crate) fn new(source: Option<TokenSource>) -> Self {
        Self(source.map(Arc::new))
    }

    /// Returns the source of the token, if requests have one.
    pub(crate) fn source(&self) -> Option<&TokenSource> {
        self.0.as_deref()
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(source) = &self.0 {
            let value = source.header().map_err(Status::unauthenticated)?;
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(content: &[u8]) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        let source = TokenSource::File(file.path().to_owned());
        let header = source.header().map(|value| value.to_str().unwrap().to_owned());
        header.map_err(|error| error.replace(file.path().to_str().unwrap(), "FILE"))
    }

    #[test]
    fn white_space_around_a_token_is_ignored() {
        for content in ["a.b-c_d~e+f/g==", "a.b-c_d~e+f/g==\n", " a.b-c_d~e+f/g== \r\n\n"] {
            assert_eq!(header(content.as_bytes()).unwrap(), "Bearer a.b-c_d~e+f/g==");
        }
        let longest = "x".repeat(16 << 10);
        assert_eq!(header(longest.as_bytes()).unwrap(), format!("Bearer {longest}"));
    }

    #[test]
    fn unusable_token_is_refused_without_its_text() {
        let longest = "x".repeat((16 << 10) + 1);
        let end = "the file must contain the token, and nothing else";
        for (content, expected) in [
            (b"".as_slice(), format!("the token file FILE is empty; {end}")),
            (b" \n\n", format!("the token file FILE is empty; {end}")),
            (
                longest.as_bytes(),
                "cannot read the token file FILE: it has more than 16384 bytes, the maximum of a token".into(),
            ),
            (
                b"Bearer hush",
                format!(
                    "the token file FILE has white space between other characters; {end}, without \"Bearer\""
                ),
            ),
            (
                b"hush\"",
                format!("the token file FILE has a character that no token has; {end}, without \"Bearer\""),
            ),
            (b"hush\xff", "cannot read the token file FILE: it is not text".into()),
        ] {
            let error = header(content).unwrap_err();
            assert_eq!(error, expected);
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn debug_output_contains_no_token() {
        let bearer = Bearer::new(Some(TokenSource::Variable("hush".into())));
        assert!(!format!("{bearer:?}").contains("hush"));
        let value = bearer.source().unwrap().header().unwrap();
        assert!(!format!("{value:?}").contains("hush"), "{value:?}");
    }
}
