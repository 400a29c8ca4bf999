//! The first bytes of a connection, which tell whether the client uses HTTP/1, HTTP/2 or TLS.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::http2::PREFACE;

/// The first byte of a TLS connection: the record type of a handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// The first bytes of a connection. [`GuardedIo`](crate::GuardedIo) delivers them again.
#[derive(Debug, Default)]
pub struct FirstBytes {
    bytes: [u8; PREFACE.len()],
    len: usize,
}

impl FirstBytes {
    /// Reads until the bytes are the HTTP/2 preface or cannot become it.
    ///
    /// # Errors
    /// Fails if the client closes the connection, or reading fails.
    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut first = Self::default();
        while first.len < PREFACE.len() && first.bytes() == &PREFACE[..first.len] {
            match stream.read(&mut first.bytes[first.len..]).await? {
                0 => {
                    let kind = io::ErrorKind::UnexpectedEof;
                    return Err(io::Error::new(kind, "it closed the connection"));
                }
                more => first.len += more,
            }
        }
        Ok(first)
    }

    /// Returns whether the client uses HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.bytes() == PREFACE
    }

    /// Returns whether the client may use HTTP/1: the first byte is that of a method.
    #[must_use]
    pub fn is_http1(&self) -> bool {
        !self.is_http2() && self.bytes().first().is_some_and(u8::is_ascii_uppercase)
    }

    /// Returns whether the client begins a TLS handshake.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.bytes().first() == Some(&TLS_HANDSHAKE)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_bytes_end_with_the_preface_or_the_first_wrong_byte() {
        let read = async |mut bytes: &[u8]| {
            let before = bytes.len();
            let first = FirstBytes::read(&mut bytes).await?;
            assert_eq!(first.len, before - bytes.len());
            io::Result::Ok((first.is_http2(), first.is_tls()))
        };
        let whole = [PREFACE.as_slice(), b"more"].concat();
        let http1 = async |mut bytes: &[u8]| FirstBytes::read(&mut bytes).await.unwrap().is_http1();
        assert!(http1(b"GET / HTTP/1.1\r\n").await && http1(b"PRIM").await);
        assert!(!http1(&whole).await && !http1(b"\x16\x03\x01").await && !http1(b"get").await);
        assert_eq!(read(&whole).await.unwrap(), (true, false));
        assert_eq!(read(b"GET / HTTP/1.1\r\n").await.unwrap(), (false, false));
        assert_eq!(read(b"PRIM").await.unwrap(), (false, false));
        assert_eq!(read(b"\x16\x03\x01\x02\x00").await.unwrap(), (false, true));
        for early in [b"".as_slice(), &PREFACE[..23]] {
            let error = read(early).await.unwrap_err();
            assert_eq!(error.to_string(), "it closed the connection");
        }
    }
}
