//! A limit on the number of fields of a gRPC request, before any of them is decoded.
//!
//! 60 million empty files fit into a request of 120 MB, and take 7 GB as decoded messages. The
//! fields are counted as the bytes arrive, whatever the boundaries of the chunks.

use axum::{BoxError, body::Body, extract::Request, middleware::Next, response::Response};
use futures::StreamExt;
use tonic::Status;

/// The maximum number of fields of the outermost message of a request of `chancery.admin.v1.Admin`.
/// Repeated fields are the files of an `Apply` and the names of a `Delete`.
const FIELDS_MAX: usize = 100_000;

const SERVICE: &str = "/chancery.admin.v1.Admin/";

/// Rejects requests with too many fields.
pub(crate) async fn refuse_many_fields(request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with(SERVICE) {
        return next.run(request).await;
    }
    let request = request.map(|body| {
        let mut scan = Scan::default();
        Body::from_stream(body.into_data_stream().map(move |chunk| -> Result<_, BoxError> {
            let chunk = chunk?;
            scan.take(&chunk)?;
            Ok(chunk)
        }))
    });
    next.run(request).await
}

/// A position in the bytes of a request, which is a sequence of gRPC frames with protobuf messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    part: Part,
    /// The number of bytes of the message that have not arrived.
    left: u64,
    fields: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// The header of a frame: the number of bytes that have arrived, and the length so far.
    Header(u32, u64),
    /// A field key, a number, or a length: the value so far, and its number of bits.
    Key(u64, u32),
    Number,
    Length(u64, u32),
    /// The number of bytes to skip.
    Skip(u64),
}

impl Default for Part {
    fn default() -> Self {
        Self::Header(0, 0)
    }
}

impl Scan {
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        const KEY: Part = Part::Key(0, 0);
        while let [byte, rest @ ..] = bytes {
            let in_header = matches!(self.part, Part::Header(..));
            if !in_header && self.left == 0 {
                // The message has ended, possibly within a field. The decoder reports that.
                self.part = Part::default();
                continue;
            }
            if let Part::Skip(n) = self.part {
                let passed = n.min(self.left).min(bytes.len() as u64);
                self.left -= passed;
                self.part = if n == passed { KEY } else { Part::Skip(n - passed) };
                bytes = &bytes[usize::try_from(passed).unwrap_or(bytes.len())..];
                continue;
            }
            bytes = rest;
            if !in_header {
                self.left -= 1;
            }
            let low = u64::from(byte & 0x7f);
            let ends = byte & 0x80 == 0;
            self.part = match self.part {
                // A frame header has five bytes: a compression flag and the length.
                Part::Header(4, length) => {
                    (self.left, self.fields) = (length << 8 | u64::from(*byte), 0);
                    KEY
                }
                Part::Header(0, _) => Part::Header(1, 0),
                Part::Header(n, length) => Part::Header(n + 1, length << 8 | u64::from(*byte)),
                Part::Key(value, bits) if ends => {
                    self.fields += 1;
                    if self.fields > FIELDS_MAX {
                        return Err(Status::resource_exhausted(format!(
                            "the request has more than {FIELDS_MAX} fields; split it into several requests"
                        )));
                    }
                    match (value | shifted(low, bits)) & 7 {
                        0 => Part::Number,
                        1 => Part::Skip(8),
                        2 => Part::Length(0, 0),
                        5 => Part::Skip(4),
                        // The fields of a group are counted like other fields.
                        _ => KEY,
                    }
                }
                Part::Key(value, bits) => {
                    Part::Key(value | shifted(low, bits), bits.saturating_add(7))
                }
                Part::Number if ends => KEY,
                Part::Number => Part::Number,
                Part::Length(value, bits) if ends => match value | shifted(low, bits) {
                    0 => KEY,
                    length => Part::Skip(length),
                },
                Part::Length(value, bits) => {
                    Part::Length(value | shifted(low, bits), bits.saturating_add(7))
                }
                Part::Skip(_) => KEY,
            };
        }
        Ok(())
    }
}

fn shifted(low: u64, bits: u32) -> u64 {
    low.checked_shl(bits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use chancery_admin_proto::v1 as pb;
    use prost::Message;

    use super::*;

    fn frame(message: &impl Message) -> Vec<u8> {
        let message = message.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0], length.as_slice(), &message].concat()
    }

    fn files(n: usize) -> Vec<u8> {
        let file = pb::File { name: "a".repeat(n % 300), content: "b".repeat(n % 7) };
        let options = Some(pb::WriteOptions { if_revision: Some(u64::MAX), ..Default::default() });
        let (files, scope, name) = (vec![file; n], "s".into(), String::new());
        frame(&pb::ApplyRequest { files, scope, prune: true, options, name })
    }

    #[test]
    fn request_field_count_is_independent_of_chunking() {
        for size in [1, 2, 3, 7, 4096, usize::MAX] {
            for (n, fits) in [(0, true), (99_997, true), (99_998, false)] {
                let mut scan = Scan::default();
                let result = files(n).chunks(size).try_for_each(|chunk| scan.take(chunk));
                assert_eq!(result.is_ok(), fits, "{n} files in chunks of {size}");
            }
        }
    }

    #[test]
    fn messages_are_counted_separately_and_damage_is_ignored() {
        let mut scan = Scan::default();
        for _ in 0..3 {
            scan.take(&files(60_000)).unwrap();
        }
        // A length beyond the end of the message, and an endless key.
        for damaged in [vec![0, 0, 0, 0, 2, 0x0a, 0xff], vec![0, 0, 0, 0, 12, 0xff, 0xff, 0xff]] {
            let mut scan = Scan::default();
            scan.take(&damaged).unwrap();
            scan.take(&[0xff; 64]).unwrap();
        }
        assert!(scan.take(&files(200_000)).is_err());
    }
}
