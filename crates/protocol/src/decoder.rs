//! Decodes discovery requests within bounds.
//!
//! The decoder reads one token after the other. It keeps positions in the message, never copies of it, so a
//! request takes only the memory of its bytes. Unused fields are skipped: `error_detail.details`, unknown
//! fields. The caller decodes a large message in steps, and lets other tasks run between them.
//!
//! Truncated strings (a rejection's message, a version, a nonce) are validated only up to the kept
//! length.

use std::ops::Range;

use bytes::Bytes;
use chancery_model::{
    NameError, Revision, Version, escaped_len,
    wire::{Fields, Token, WireError, text},
};

use crate::{
    DeltaRequest, ErrorDetail, McpRequest, NameList, Protocol, Request, SotwRequest, VersionList,
};

/// The number of tokens in one step: less than a millisecond of work.
const STEP_TOKENS: usize = 8192;

/// The number of bytes after which a step ends, too.
const STEP_BYTES: usize = 256 << 10;

/// The maximum number of bytes of versions and nonces that are kept. Those of this program are much
/// shorter, so a longer one comes from another server.
const OPAQUE_BYTES_MAX: usize = 256;

/// The maximum length of a type URL in bytes; see [`chancery_model::TypeUrl::new`].
const TYPE_URL_BYTES_MAX: usize = 512;

/// The limits of a request that is decoded.
#[derive(Debug, Clone, Copy)]
pub struct DecodeLimits {
    /// The maximum number of names, locators, dynamic parameters and reported versions together.
    pub names_max: usize,
    /// The maximum length of a name, and of a locator with its parameters, in bytes.
    pub name_bytes_max: usize,
    /// The length in bytes to which the message of a rejection is truncated.
    pub nack_message_bytes_max: usize,
}

/// The reason why a message is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are not the message of the protocol.
    #[error("malformed {message}: {error}")]
    Malformed {
        /// The name of the message, such as `DiscoveryRequest`.
        message: &'static str,
        /// The problem.
        error: WireError,
    },
    /// The request has more names than the limit.
    #[error("a request names {found} resources, at most {max} are allowed (names_per_request_max)")]
    Names {
        /// The number of names up to the first one over the limit.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A name is longer than the limit.
    #[error(
        "a request names a resource in {len} bytes, at most {max} are allowed (name_bytes_max)"
    )]
    NameLong {
        /// The length of the name in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A resource locator is longer than the limit.
    #[error(
        "a resource locator has {len} bytes of names and dynamic parameters, at most {max} are allowed \
         (name_bytes_max)"
    )]
    LocatorLong {
        /// The length of its name and parameters in bytes, up to the first part over the limit.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The type URL is too long.
    #[error("type_url: {0}")]
    TypeUrl(NameError),
}

/// The decoder of one request, which works in bounded steps.
///
/// It accepts the protobuf encoding of `DiscoveryRequest` (SotW), `DeltaDiscoveryRequest` (delta) or
/// `RequestResources` (MCP). Besides the message, it takes memory for a bounded type URL, version, nonce and rejection
/// text only. [`DecodedRequest::decode`] runs all steps at once.
#[derive(Debug)]
pub struct RequestDecoder {
    message: Bytes,
    numbers: &'static Numbers,
    protocol: Protocol,
    limits: DecodeLimits,
    fields: Fields,
    inner: Option<Inner>,
    /// Whether the locator that is being scanned subscribes.
    is_subscribing: bool,
    n_names: usize,
    found: Found,
}

/// The field numbers of the two messages.
#[derive(Debug)]
struct Numbers {
    message: &'static str,
    node: u32,
    type_url: u32,
    /// `version_info`. Delta requests do not have it.
    version: u32,
    nonce: u32,
    error: u32,
    /// `resource_names` or `resource_names_subscribe`.
    names: u32,
    /// Field numbers that SotW does not use are 0, which is not a valid field number.
    unsubscribe: u32,
    versions: u32,
    /// `resource_locators` or `resource_locators_subscribe`.
    locators: u32,
    unsubscribe_locators: u32,
    /// `incremental` of MCP.
    incremental: u32,
}

const SOTW: Numbers = Numbers {
    message: "DiscoveryRequest",
    version: 1,
    node: 2,
    names: 3,
    type_url: 4,
    nonce: 5,
    error: 6,
    unsubscribe: 0,
    versions: 0,
    locators: 7,
    unsubscribe_locators: 0,
    incremental: 0,
};

const DELTA: Numbers = Numbers {
    message: "DeltaDiscoveryRequest",
    version: 0,
    node: 1,
    type_url: 2,
    names: 3,
    unsubscribe: 4,
    versions: 5,
    nonce: 6,
    error: 7,
    locators: 8,
    unsubscribe_locators: 9,
    incremental: 0,
};

const MCP: Numbers = Numbers {
    message: "RequestResources",
    version: 0,
    node: 1,
    type_url: 2,
    versions: 3,
    nonce: 4,
    error: 5,
    incremental: 6,
    names: 0,
    unsubscribe: 0,
    locators: 0,
    unsubscribe_locators: 0,
};

/// A message inside the request that is being scanned.
#[derive(Debug)]
enum Inner {
    /// `error_detail`.
    Error(Fields),
    /// An entry of `initial_resource_versions`.
    Entry { fields: Fields, name: Range<usize>, version: Range<usize> },
    /// A resource locator, and the bytes of its name and parameters so far.
    Locator { fields: Fields, bytes: usize },
    /// A dynamic parameter of the locator.
    Parameter { fields: Fields, locator: Fields, bytes: usize },
}

/// The positions of a request's fields in the message.
#[derive(Debug, Default)]
struct Found {
    node: Option<Range<usize>>,
    type_url: Range<usize>,
    version: Range<usize>,
    nonce: Range<usize>,
    error: Option<FoundError>,
    names: List,
    unsubscribe: List,
    versions: List,
    locators: List,
    unsubscribe_locators: List,
    newest: Option<Revision>,
    is_incremental: bool,
}

#[derive(Debug, Default)]
struct FoundError {
    code: i32,
    message: Range<usize>,
}

/// The part of the message that contains all entries of a list.
#[derive(Debug, Default)]
struct List {
    bytes: Range<usize>,
    len: usize,
    /// Whether a locator of the list has dynamic parameters.
    has_parameters: bool,
}

/// A decoded request, and what the session does not need of its message.
#[derive(Debug)]
#[non_exhaustive]
pub struct DecodedRequest {
    /// The request. Its lists are slices of the message.
    pub request: Request,
    /// The node, encoded: an `envoy.config.core.v3.Node`, or the `SinkNode` of MCP.
    pub node: Option<Bytes>,
    /// Whether the message of a rejection was longer than the limit.
    pub is_nack_cut: bool,
}

impl DecodedRequest {
    /// Decodes a whole message.
    ///
    /// # Errors
    /// Returns an error if the message is malformed or exceeds a limit.
    pub fn decode(
        protocol: Protocol,
        message: Bytes,
        limits: DecodeLimits,
    ) -> Result<Self, DecodeError> {
        let mut decoder = RequestDecoder::new(protocol, message, limits);
        loop {
            if let Some(decoded) = decoder.step()? {
                return Ok(decoded);
            }
        }
    }
}

impl RequestDecoder {
    /// Creates a decoder of a message.
    #[must_use]
    pub fn new(protocol: Protocol, message: Bytes, limits: DecodeLimits) -> Self {
        let numbers = match protocol {
            Protocol::Sotw => &SOTW,
            Protocol::Delta => &DELTA,
            Protocol::Mcp => &MCP,
        };
        Self {
            numbers,
            protocol,
            limits,
            fields: Fields::new(0, message.len()),
            message,
            inner: None,
            is_subscribing: true,
            n_names: 0,
            found: Found::default(),
        }
    }

    /// Decodes a bounded part of the message: less than a millisecond of work. Returns the request if that was the
    /// last part.
    ///
    /// # Errors
    /// Returns an error if the message is malformed or exceeds a limit. The caller then drops the decoder.
    pub fn step(&mut self) -> Result<Option<DecodedRequest>, DecodeError> {
        let message = self.message.clone();
        let from = self.at();
        for _ in 0..STEP_TOKENS {
            if self.at().saturating_sub(from) >= STEP_BYTES {
                break;
            }
            if self.token(&message)? {
                return Ok(Some(self.finish()));
            }
        }
        Ok(None)
    }

    fn at(&self) -> usize {
        match &self.inner {
            Some(
                Inner::Error(fields)
                | Inner::Entry { fields, .. }
                | Inner::Locator { fields, .. }
                | Inner::Parameter { fields, .. },
            ) => fields.at(),
            None => self.fields.at(),
        }
    }

    /// Scans one token. Returns whether the message has ended.
    fn token(&mut self, message: &[u8]) -> Result<bool, DecodeError> {
        match self.inner.take() {
            None => return self.outer(message),
            Some(Inner::Error(fields)) => self.in_error(fields, message)?,
            Some(Inner::Entry { fields, name, version }) => {
                self.in_entry(fields, name, version, message)?;
            }
            Some(Inner::Locator { fields, bytes }) => self.in_locator(fields, bytes, message)?,
            Some(Inner::Parameter { fields, locator, bytes }) => {
                self.in_parameter(fields, locator, bytes, message)?;
            }
        }
        Ok(false)
    }

    fn outer(&mut self, message: &[u8]) -> Result<bool, DecodeError> {
        let start = self.fields.at();
        let token = self.fields.next(message).map_err(|error| self.malformed(error))?;
        let Some(token) = token else { return Ok(true) };
        let Numbers { node, type_url, version, nonce, error, names, unsubscribe, versions, .. } =
            *self.numbers;
        let Numbers { locators, unsubscribe_locators, incremental, .. } = *self.numbers;
        let (field, content) = match token {
            Token::Bytes { field, content } => (field, content),
            Token::Varint { field, value } if field == incremental => {
                self.found.is_incremental = value != 0;
                return Ok(false);
            }
            Token::Varint { field, .. } | Token::Fixed { field } => {
                let used = [node, type_url, version, nonce, error, names, unsubscribe, versions];
                let is_locator = [locators, unsubscribe_locators].contains(&field);
                return if used.contains(&field) || is_locator || field == incremental {
                    Err(self.malformed(WireError::Kind(field)))
                } else {
                    Ok(false)
                };
            }
            Token::Group => return Ok(false),
        };
        let end = self.fields.at();
        let range = end - content.len()..end;
        if field == node {
            self.found.node = Some(range);
        } else if field == type_url {
            if content.len() > TYPE_URL_BYTES_MAX {
                let (what, len) = ("type URL", content.len());
                let error = NameError::TooLong { what, len, max: TYPE_URL_BYTES_MAX };
                return Err(DecodeError::TypeUrl(error));
            }
            self.check_text(field, content)?;
            self.found.type_url = range;
        } else if field == version {
            self.found.version = self.kept(field, range, OPAQUE_BYTES_MAX, message)?;
        } else if field == nonce {
            self.found.nonce = self.kept(field, range, OPAQUE_BYTES_MAX, message)?;
        } else if field == error {
            // If the field occurs several times, protobuf merges the occurrences.
            self.found.error.get_or_insert_default();
            self.inner = Some(Inner::Error(Fields::new(range.start, range.end)));
        } else if field == names {
            self.name(field, content)?;
            self.found.names.add(start..end);
        } else if field == unsubscribe {
            self.name(field, content)?;
            self.found.unsubscribe.add(start..end);
        } else if field == versions {
            // The entry itself counts, so that empty entries are bounded too.
            self.count()?;
            self.found.versions.add(start..end);
            let fields = Fields::new(range.start, range.end);
            self.inner = Some(Inner::Entry { fields, name: 0..0, version: 0..0 });
        } else if field == locators || field == unsubscribe_locators {
            self.count()?;
            self.found.list_of(field == locators).add(start..end);
            self.is_subscribing = field == locators;
            let fields = Fields::new(range.start, range.end);
            self.inner = Some(Inner::Locator { fields, bytes: 0 });
        } else if field == incremental {
            return Err(self.malformed(WireError::Kind(field)));
        }
        Ok(false)
    }

    /// Scans one token of `error_detail`. Its details are not used.
    fn in_error(&mut self, mut fields: Fields, message: &[u8]) -> Result<(), DecodeError> {
        let token = fields.next(message).map_err(|error| self.malformed(error))?;
        let Some(token) = token else { return Ok(()) };
        let found = self.found.error.get_or_insert_default();
        match token {
            Token::Varint { field: 1, value } => {
                let [a, b, c, d, ..] = value.to_le_bytes();
                found.code = i32::from_le_bytes([a, b, c, d]);
            }
            Token::Bytes { field: 2, content } => {
                let range = fields.at() - content.len()..fields.at();
                found.message = range.clone();
                // Validates only the kept part.
                self.kept(2, range, self.limits.nack_message_bytes_max, message)?;
            }
            Token::Bytes { field: field @ 1, .. }
            | Token::Varint { field: field @ 2, .. }
            | Token::Fixed { field: field @ (1 | 2) } => {
                return Err(self.malformed(WireError::Kind(field)));
            }
            _ => {}
        }
        self.inner = Some(Inner::Error(fields));
        Ok(())
    }

    /// Scans one token of an entry of `initial_resource_versions`.
    fn in_entry(
        &mut self,
        mut fields: Fields,
        mut name: Range<usize>,
        mut version: Range<usize>,
        message: &[u8],
    ) -> Result<(), DecodeError> {
        let token = fields.next(message).map_err(|error| self.malformed(error))?;
        let Some(token) = token else {
            let version = message.get(version).and_then(|text| std::str::from_utf8(text).ok());
            let revision = version.and_then(Version::revision_of);
            self.found.newest = self.found.newest.max(revision);
            return Ok(());
        };
        match token {
            Token::Bytes { field: 1, content } => {
                self.check_name(1, content)?;
                name = fields.at() - content.len()..fields.at();
            }
            Token::Bytes { field: 2, content } => {
                // A long version comes from another server, and is treated as unknown.
                self.check_text(2, content)?;
                version = fields.at() - content.len()..fields.at();
            }
            Token::Varint { field: field @ (1 | 2), .. }
            | Token::Fixed { field: field @ (1 | 2) } => {
                return Err(self.malformed(WireError::Kind(field)));
            }
            _ => {}
        }
        self.inner = Some(Inner::Entry { fields, name, version });
        Ok(())
    }

    /// Scans one token of a resource locator. Each parameter counts like a name.
    fn in_locator(
        &mut self,
        mut fields: Fields,
        bytes: usize,
        message: &[u8],
    ) -> Result<(), DecodeError> {
        let token = fields.next(message).map_err(|error| self.malformed(error))?;
        let mut bytes = bytes;
        match token {
            None => return Ok(()),
            Some(Token::Bytes { field: 1, content }) => {
                self.check_name(1, content)?;
                bytes = self.add_to_locator(bytes, content)?;
            }
            Some(Token::Bytes { field: 2, content }) => {
                self.count()?;
                self.found.list_of(self.is_subscribing).has_parameters = true;
                let end = fields.at();
                let inner = Fields::new(end - content.len(), end);
                self.inner = Some(Inner::Parameter { fields: inner, locator: fields, bytes });
                return Ok(());
            }
            Some(
                Token::Varint { field: field @ (1 | 2), .. }
                | Token::Fixed { field: field @ (1 | 2) },
            ) => {
                return Err(self.malformed(WireError::Kind(field)));
            }
            Some(_) => {}
        }
        self.inner = Some(Inner::Locator { fields, bytes });
        Ok(())
    }

    /// Scans one token of a dynamic parameter: its key or its value.
    fn in_parameter(
        &mut self,
        mut fields: Fields,
        locator: Fields,
        bytes: usize,
        message: &[u8],
    ) -> Result<(), DecodeError> {
        let token = fields.next(message).map_err(|error| self.malformed(error))?;
        let mut bytes = bytes;
        match token {
            None => {
                self.inner = Some(Inner::Locator { fields: locator, bytes });
                return Ok(());
            }
            Some(Token::Bytes { field: field @ (1 | 2), content }) => {
                self.check_text(field, content)?;
                bytes = self.add_to_locator(bytes, content)?;
            }
            Some(
                Token::Varint { field: field @ (1 | 2), .. }
                | Token::Fixed { field: field @ (1 | 2) },
            ) => {
                return Err(self.malformed(WireError::Kind(field)));
            }
            Some(_) => {}
        }
        self.inner = Some(Inner::Parameter { fields, locator, bytes });
        Ok(())
    }

    /// Adds the bytes of a text to those of its locator. An escaped character takes three bytes in the
    /// name of the subscription.
    fn add_to_locator(&self, bytes: usize, content: &[u8]) -> Result<usize, DecodeError> {
        let len = bytes + escaped_len(content) + 1;
        let max = self.limits.name_bytes_max;
        if len > max + 1 { Err(DecodeError::LocatorLong { len, max }) } else { Ok(len) }
    }

    fn name(&mut self, field: u32, content: &[u8]) -> Result<(), DecodeError> {
        self.count()?;
        self.check_name(field, content)
    }

    fn count(&mut self) -> Result<(), DecodeError> {
        self.n_names += 1;
        let (found, max) = (self.n_names, self.limits.names_max);
        if found > max { Err(DecodeError::Names { found, max }) } else { Ok(()) }
    }

    fn check_name(&self, field: u32, content: &[u8]) -> Result<(), DecodeError> {
        let (len, max) = (content.len(), self.limits.name_bytes_max);
        if len > max {
            return Err(DecodeError::NameLong { len, max });
        }
        self.check_text(field, content)
    }

    fn check_text(&self, field: u32, content: &[u8]) -> Result<(), DecodeError> {
        text(field, content).map(|_| ()).map_err(|error| self.malformed(error))
    }

    /// Returns the range of the first `max` bytes of a string, without a partial character.
    fn kept(
        &self,
        field: u32,
        range: Range<usize>,
        max: usize,
        message: &[u8],
    ) -> Result<Range<usize>, DecodeError> {
        let content = message.get(range.clone()).unwrap_or_default();
        let Some(start) = content.get(..max).filter(|_| content.len() > max) else {
            return self.check_text(field, content).map(|()| range);
        };
        match std::str::from_utf8(start) {
            Ok(_) => Ok(range.start..range.start + max),
            // The limit is inside a character.
            Err(error) if error.error_len().is_none() => {
                Ok(range.start..range.start + error.valid_up_to())
            }
            Err(_) => Err(self.malformed(WireError::Utf8(field))),
        }
    }

    fn malformed(&self, error: WireError) -> DecodeError {
        DecodeError::Malformed { message: self.numbers.message, error }
    }

    /// Returns the request after the last token.
    fn finish(&self) -> DecodedRequest {
        let Self { message, numbers, protocol, limits, found, .. } = self;
        let slice = |range: &Range<usize>| message.get(range.clone()).unwrap_or_default();
        let string = |range: &Range<usize>| String::from_utf8_lossy(slice(range)).into_owned();
        let names = |list: &List, field, located: &List, locators| {
            let names = NameList::encoded(message.slice(list.bytes.clone()), field, list.len);
            let bytes = message.slice(located.bytes.clone());
            names.with_locators(bytes, locators, located.len, located.has_parameters)
        };
        let versions = || {
            let bytes = message.slice(found.versions.bytes.clone());
            VersionList::encoded(bytes, numbers.versions, found.versions.len, found.newest)
        };
        let subscribe = names(&found.names, numbers.names, &found.locators, numbers.locators);
        let mut is_nack_cut = false;
        let error_detail = found.error.as_ref().map(|FoundError { code, message: text }| {
            let max = limits.nack_message_bytes_max;
            is_nack_cut = text.len() > max;
            let start = slice(&(text.start..text.end.min(text.start + max)));
            let kept = match std::str::from_utf8(start) {
                Ok(_) => start,
                Err(error) => start.get(..error.valid_up_to()).unwrap_or_default(),
            };
            let message = String::from_utf8_lossy(kept).into_owned();
            ErrorDetail { code: *code, message }
        });
        let (type_url, response_nonce) = (string(&found.type_url), string(&found.nonce));
        let request = match protocol {
            Protocol::Sotw => Request::Sotw(SotwRequest {
                type_url,
                version_info: string(&found.version),
                resource_names: subscribe,
                response_nonce,
                error_detail,
            }),
            Protocol::Delta => Request::Delta(DeltaRequest {
                type_url,
                subscribe,
                unsubscribe: names(
                    &found.unsubscribe,
                    numbers.unsubscribe,
                    &found.unsubscribe_locators,
                    numbers.unsubscribe_locators,
                ),
                initial_resource_versions: versions(),
                response_nonce,
                error_detail,
            }),
            Protocol::Mcp => Request::Mcp(McpRequest {
                collection: type_url,
                initial_resource_versions: versions(),
                response_nonce,
                error_detail,
                incremental: found.is_incremental,
            }),
        };
        let node = found.node.clone().map(|range| message.slice(range));
        DecodedRequest { request, node, is_nack_cut }
    }
}

impl Found {
    /// Returns the list of locators that subscribe or unsubscribe.
    fn list_of(&mut self, subscribes: bool) -> &mut List {
        if subscribes { &mut self.locators } else { &mut self.unsubscribe_locators }
    }
}

impl List {
    fn add(&mut self, token: Range<usize>) {
        let start = if self.len == 0 { token.start } else { self.bytes.start };
        (self.bytes, self.len) = (start..token.end, self.len + 1);
    }
}

#[cfg(test)]
mod tests;
