//! A scanner for a stream of responses, which does not store the messages.
//!
//! A load generator that decoded every response of 3 MiB on a hundred streams would measure itself.
//! This scanner knows three levels (gRPC frame, response, resource) and a few fields. It skips
//! everything else without a copy. At most one resource is in memory, and only if the caller reads its content.

/// The maximum length of a stored string: a name, version or nonce.
const STRING_BYTES_MAX: u64 = 1 << 16;
/// The capacity for the content of a resource that a scanner keeps.
const BODY_BYTES_KEPT: usize = 1 << 11;
/// The length of the prefix of each message: a flag, and a length of four bytes.
const PREFIX_BYTES: u64 = 5;

/// A part of a response.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A resource of the current response. Its name and version are empty in state-of-the-world responses. `body` is the
    /// encoded `google.protobuf.Any`, or empty if the scanner skips contents.
    Resource {
        /// The name.
        name: &'a [u8],
        /// The version.
        version: &'a [u8],
        /// The content.
        body: &'a [u8],
    },
    /// A removed name.
    Removed {
        /// The name.
        name: &'a [u8],
    },
    /// The end of the response.
    End(End<'a>),
}

/// The fields of a response that its acknowledgment needs.
#[derive(Debug, PartialEq, Eq)]
pub struct End<'a> {
    /// The type of the resources.
    pub type_url: &'a [u8],
    /// The nonce of the response.
    pub nonce: &'a [u8],
    /// `version_info` of a state-of-the-world response; `system_version_info` of a delta response.
    pub version: &'a [u8],
    /// The length on the wire, including the prefix.
    pub bytes: u64,
}

/// The responses that a scanner reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Responses {
    /// `DeltaDiscoveryResponse`, whose contents are skipped.
    DeltaNames,
    /// `DeltaDiscoveryResponse` with contents.
    Delta,
    /// `DiscoveryResponse` with contents.
    Sotw,
}

/// An input that no server should send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The flag of a message says that it is compressed.
    #[error("a message is compressed (flag {0})")]
    Compressed(u8),
    /// A field has a wire type that protobuf does not have.
    #[error("field {field} has the wire type {wire_type}")]
    WireType {
        /// The number of the field.
        field: u64,
        /// The wire type.
        wire_type: u64,
    },
    /// A number is too long.
    #[error("a number has more than 10 bytes")]
    Number,
    /// A field ends after its message.
    #[error("field {field} has {len} bytes, but only {left} are left in its message")]
    Overrun {
        /// The number of the field.
        field: u64,
        /// The length of the field.
        len: u64,
        /// The bytes that are left of the message.
        left: u64,
    },
    /// A name, version or nonce is too long.
    #[error("a string has {0} bytes, but the maximum is 65536")]
    LongString(u64),
}

/// The meaning of the next byte of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Prefix,
    Key,
    Length {
        field: u64,
    },
    /// A number whose value is ignored.
    Number,
    Skip(u64),
    Take {
        what: What,
        left: u64,
    },
}

/// Strings that are stored until the end of the message that contains them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Nonce,
    TypeUrl,
    StateVersion,
    Removed,
    Version,
    Name,
    Body,
}

/// Scans one stream. The input may be split at any byte.
#[derive(Debug)]
pub struct Scanner {
    responses: Responses,
    step: Step,
    prefix: Vec<u8>,
    number: u64,
    shift: u32,
    /// The bytes that are left of the message.
    left: u64,
    /// The bytes that are left of the resource, if the scanner is inside one.
    resource_left: Option<u64>,
    bytes: u64,
    nonce: Vec<u8>,
    type_url: Vec<u8>,
    state_version: Vec<u8>,
    removed: Vec<u8>,
    version: Vec<u8>,
    name: Vec<u8>,
    body: Vec<u8>,
}

impl Scanner {
    /// Returns a scanner for a new stream.
    #[must_use]
    pub fn new(responses: Responses) -> Self {
        Self {
            responses,
            step: Step::Prefix,
            prefix: Vec::new(),
            number: 0,
            shift: 0,
            left: 0,
            resource_left: None,
            bytes: 0,
            nonce: Vec::new(),
            type_url: Vec::new(),
            state_version: Vec::new(),
            removed: Vec::new(),
            version: Vec::new(),
            name: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Scans the next bytes, and calls `on` for each event.
    ///
    /// # Errors
    /// Fails if the bytes are no response.
    pub fn feed(
        &mut self,
        mut chunk: &[u8],
        on: &mut impl FnMut(Event<'_>),
    ) -> Result<(), ScanError> {
        while let Some((&first, rest)) = chunk.split_first() {
            match self.step {
                Step::Prefix => {
                    chunk = rest;
                    self.prefix_byte(first, on)?;
                }
                Step::Key | Step::Length { .. } | Step::Number => {
                    chunk = rest;
                    self.consume(1);
                    if self.number_byte(first)? {
                        let number = std::mem::take(&mut self.number);
                        self.number_done(number)?;
                        self.close(on);
                    }
                }
                Step::Skip(left) => {
                    let (done, rest) = split(chunk, left);
                    chunk = rest;
                    let left = left - len(done);
                    self.consume(len(done));
                    self.step = if left == 0 { Step::Key } else { Step::Skip(left) };
                    self.close(on);
                }
                Step::Take { what, left } => {
                    let (done, rest) = split(chunk, left);
                    chunk = rest;
                    let left = left - len(done);
                    self.consume(len(done));
                    self.string(what).extend_from_slice(done);
                    self.step = Step::Take { what, left };
                    if left == 0 {
                        self.taken(what, on);
                        self.close(on);
                    }
                }
            }
        }
        Ok(())
    }

    fn prefix_byte(&mut self, byte: u8, on: &mut impl FnMut(Event<'_>)) -> Result<(), ScanError> {
        self.prefix.push(byte);
        let Ok(&[flag, a, b, c, d]) = <&[u8; 5]>::try_from(self.prefix.as_slice()) else {
            return Ok(());
        };
        if flag != 0 {
            return Err(ScanError::Compressed(flag));
        }
        self.prefix.clear();
        self.left = u64::from(u32::from_be_bytes([a, b, c, d]));
        self.bytes = self.left + PREFIX_BYTES;
        self.nonce.clear();
        self.type_url.clear();
        self.state_version.clear();
        self.step = Step::Key;
        self.close(on);
        Ok(())
    }

    /// Returns whether the number is complete.
    fn number_byte(&mut self, byte: u8) -> Result<bool, ScanError> {
        if self.shift >= 70 {
            return Err(ScanError::Number);
        }
        self.number |= u64::from(byte & 0x7f).checked_shl(self.shift).unwrap_or(0);
        self.shift += 7;
        let is_last = byte & 0x80 == 0;
        if is_last {
            self.shift = 0;
        }
        Ok(is_last)
    }

    fn number_done(&mut self, number: u64) -> Result<(), ScanError> {
        match self.step {
            Step::Key => {
                let (field, wire_type) = (number >> 3, number & 7);
                self.step = match wire_type {
                    0 => Step::Number,
                    1 => self.skip(field, 8)?,
                    2 => Step::Length { field },
                    5 => self.skip(field, 4)?,
                    _ => return Err(ScanError::WireType { field, wire_type }),
                };
            }
            Step::Length { field } => self.step = self.field(field, number)?,
            _ => self.step = Step::Key,
        }
        Ok(())
    }

    /// Returns the next step for a field of `len` bytes.
    fn field(&mut self, field: u64, len: u64) -> Result<Step, ScanError> {
        let what = match (self.resource_left, field, self.responses) {
            (None, 2, Responses::Sotw) => What::Body,
            (None, 2, _) => {
                self.skip(field, len)?;
                self.version.clear();
                self.name.clear();
                self.release_body();
                self.resource_left = Some(len);
                return Ok(Step::Key);
            }
            (None, 1, _) => What::StateVersion,
            (None, 4, _) => What::TypeUrl,
            (None, 5, _) => What::Nonce,
            (None, 6, Responses::Delta | Responses::DeltaNames) => What::Removed,
            (Some(_), 1, _) => What::Version,
            (Some(_), 2, Responses::Delta) => What::Body,
            (Some(_), 3, _) => What::Name,
            _ => return self.skip(field, len),
        };
        if len > STRING_BYTES_MAX && what != What::Body {
            return Err(ScanError::LongString(len));
        }
        self.skip(field, len)?;
        self.string(what).clear();
        Ok(Step::Take { what, left: len })
    }

    /// Returns the step that skips `len` bytes. Fails if the message has fewer.
    fn skip(&self, field: u64, len: u64) -> Result<Step, ScanError> {
        let left = self.resource_left.unwrap_or(self.left).min(self.left);
        if len > left { Err(ScanError::Overrun { field, len, left }) } else { Ok(Step::Skip(len)) }
    }

    fn string(&mut self, what: What) -> &mut Vec<u8> {
        match what {
            What::Nonce => &mut self.nonce,
            What::TypeUrl => &mut self.type_url,
            What::StateVersion => &mut self.state_version,
            What::Body => &mut self.body,
            What::Removed => &mut self.removed,
            What::Version => &mut self.version,
            What::Name => &mut self.name,
        }
    }

    fn taken(&mut self, what: What, on: &mut impl FnMut(Event<'_>)) {
        self.step = Step::Key;
        if what == What::Removed {
            on(Event::Removed { name: &self.removed });
        }
        if what == What::Body && self.resource_left.is_none() {
            on(Event::Resource { name: &[], version: &[], body: &self.body });
            self.release_body();
        }
    }

    /// Forgets the content of a resource. An idle stream keeps little memory.
    fn release_body(&mut self) {
        self.body.clear();
        self.body.shrink_to(BODY_BYTES_KEPT);
    }

    fn consume(&mut self, n: u64) {
        self.left = self.left.saturating_sub(n);
        self.resource_left = self.resource_left.map(|left| left.saturating_sub(n));
    }

    /// Ends the resource and the message if they have no bytes left.
    fn close(&mut self, on: &mut impl FnMut(Event<'_>)) {
        match self.step {
            Step::Skip(0) => self.step = Step::Key,
            Step::Take { what, left: 0 } => self.taken(what, on),
            _ => {}
        }
        if self.step != Step::Key {
            return;
        }
        if self.resource_left == Some(0) {
            self.resource_left = None;
            on(Event::Resource { name: &self.name, version: &self.version, body: &self.body });
            self.release_body();
        }
        if self.left == 0 {
            on(Event::End(End {
                type_url: &self.type_url,
                nonce: &self.nonce,
                version: &self.state_version,
                bytes: self.bytes,
            }));
            self.step = Step::Prefix;
        }
    }
}

fn split(chunk: &[u8], at: u64) -> (&[u8], &[u8]) {
    chunk.split_at(usize::try_from(at).unwrap_or(usize::MAX).min(chunk.len()))
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut as _, Bytes, BytesMut};
    use chancery_proto::discovery::{
        Any, ControlPlane, DeltaDiscoveryResponse, DiscoveryResponse, Resource,
    };

    use super::*;

    fn framed(response: &impl prost::Message) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(0);
        out.put_u32(u32::try_from(response.encoded_len()).unwrap());
        response.encode(&mut out).unwrap();
        out.freeze()
    }

    fn resource(name: &str, body: usize) -> Resource {
        Resource {
            name: name.to_owned(),
            version: format!("v-{name}"),
            resource: Some(Any { type_url: "t".into(), value: Bytes::from(vec![0x12; body]) }),
            aliases: vec!["also".into()],
            ..Resource::default()
        }
    }

    fn stream() -> (Bytes, Vec<String>) {
        let first = DeltaDiscoveryResponse {
            system_version_info: "9-x".into(),
            resources: vec![resource("a", 1000), resource("b", 0), resource("", 3)],
            type_url: "t".into(),
            nonce: "n1".into(),
            removed_resources: vec!["gone".into(), String::new()],
            control_plane: Some(ControlPlane { identifier: "me".into() }),
            ..DeltaDiscoveryResponse::default()
        };
        let second = DeltaDiscoveryResponse::default();
        let (one, two) = (framed(&first), framed(&second));
        let expected = vec![
            // With the type `t`, the content of 1000 bytes is 1006 bytes long.
            "+a v-a 1006".to_owned(),
            "+b v-b 3".to_owned(),
            "+ v- 8".to_owned(),
            "-gone".to_owned(),
            "-".to_owned(),
            format!("end t n1 9-x {}", one.len()),
            format!("end    {}", two.len()),
        ];
        (Bytes::from([one, two].concat()), expected)
    }

    fn shown(event: Event<'_>) -> String {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match event {
            Event::Resource { name, version, body } => {
                format!("+{} {} {}", text(name), text(version), body.len())
            }
            Event::Removed { name } => format!("-{}", text(name)),
            Event::End(End { type_url, nonce, version, bytes }) => {
                format!("end {} {} {} {bytes}", text(type_url), text(nonce), text(version))
            }
        }
    }

    #[test]
    fn scan_result_is_independent_of_chunking() {
        let (bytes, expected) = stream();
        for size in [1, 2, 3, 7, 100, 999, bytes.len()] {
            let mut scanner = Scanner::new(Responses::Delta);
            let mut seen = Vec::new();
            for chunk in bytes.chunks(size) {
                scanner.feed(chunk, &mut |event| seen.push(shown(event))).unwrap();
            }
            assert_eq!(seen, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn contents_are_skipped_on_request() {
        let mut seen = Vec::new();
        let mut scanner = Scanner::new(Responses::DeltaNames);
        scanner.feed(&stream().0, &mut |event| seen.push(shown(event))).unwrap();
        assert_eq!(seen[0], "+a v-a 0");
    }

    #[test]
    fn state_of_the_world_has_contents_without_names() {
        let content = |n| Any { type_url: "t".into(), value: Bytes::from(vec![0x12; n]) };
        let response = DiscoveryResponse {
            version_info: "7".into(),
            resources: vec![content(1000), Any::default()],
            type_url: "t".into(),
            nonce: "n".into(),
            ..DiscoveryResponse::default()
        };
        let bytes = framed(&response);
        for size in [1, 5, bytes.len()] {
            let (mut seen, mut scanner) = (Vec::new(), Scanner::new(Responses::Sotw));
            for chunk in bytes.chunks(size) {
                scanner.feed(chunk, &mut |event| seen.push(shown(event))).unwrap();
            }
            let end = format!("end t n 7 {}", bytes.len());
            assert_eq!(seen, ["+  1006", "+  0", end.as_str()], "in pieces of {size}");
        }
    }

    #[test]
    fn invalid_server_message_is_an_error() {
        let error = |bytes: &[u8]| {
            Scanner::new(Responses::DeltaNames).feed(bytes, &mut |_| {}).unwrap_err()
        };
        assert_eq!(error(&[1, 0, 0, 0, 1]), ScanError::Compressed(1));
        assert_eq!(
            error(&[0, 0, 0, 0, 2, 0x0b, 0]),
            ScanError::WireType { field: 1, wire_type: 3 }
        );
        assert_eq!(
            error(&[0, 0, 0, 0, 3, 0x2a, 9, 0]),
            ScanError::Overrun { field: 5, len: 9, left: 1 }
        );
        // A string that is longer than the resource that contains it.
        assert_eq!(
            error(&[0, 0, 0, 0, 9, 0x12, 2, 0x1a, 5, 0]),
            ScanError::Overrun { field: 3, len: 5, left: 0 }
        );
        assert_eq!(error(&[[0, 0, 0, 0, 20].as_slice(), &[0xff; 11]].concat()), ScanError::Number);
        let long = [0, 0, 1, 0x80, 0, 0x2a, 0x81, 0x80, 0x04];
        assert_eq!(error(&long), ScanError::LongString(0x1_0001));
    }
}
