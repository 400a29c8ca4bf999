//! A client that writes its own HTTP/2 frames, and can therefore write invalid ones.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use super::*;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const ACK: u8 = 1;

/// Error codes (RFC 9113, 7).
pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const FLOW_CONTROL_ERROR: u32 = 3;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// Returns the bytes of a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![len[1], len[2], len[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the HPACK encoding of a header, without tables or compression.
pub(crate) fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        let len = u8::try_from(text.len()).unwrap();
        assert!(len < 127, "longer texts need more bytes for their length");
        bytes.push(len);
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// Returns the headers of a call of a discovery method.
pub(crate) fn call_headers() -> Vec<u8> {
    [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", DELTA_ADS),
        header(":authority", "chancery"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ]
    .concat()
}

/// Returns the frame that opens a stream.
pub(crate) fn open_stream(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &call_headers())
}

/// A connection.
pub(crate) struct Frames {
    pub(crate) stream: TcpStream,
}

impl Frames {
    /// Connects with these settings.
    pub(crate) async fn start_with(server: &Server, settings: &[(u16, u32)]) -> Self {
        let mut this = Self { stream: TcpStream::connect(server.address).await.unwrap() };
        this.greet(settings).await;
        this
    }

    pub(crate) async fn start(server: &Server) -> Self {
        Self::start_with(server, &[]).await
    }

    /// Connects with a small receive buffer, and from another address.
    pub(crate) async fn start_small(
        server: &Server,
        from: [u8; 4],
        settings: &[(u16, u32)],
    ) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind((from, 0).into()).unwrap();
        let mut this = Self { stream: socket.connect(server.address).await.unwrap() };
        this.greet(settings).await;
        this
    }

    async fn greet(&mut self, settings: &[(u16, u32)]) {
        self.stream.set_nodelay(true).unwrap();
        let settings: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()[..]].concat())
            .collect();
        let hello = [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat();
        self.stream.write_all(&hello).await.unwrap();
        let first = self.next().await.expect("closed");
        assert_eq!((first.kind, first.flags), (SETTINGS, 0));
        self.send(&frame(SETTINGS, ACK, 0, &[])).await;
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Opens a stream and subscribes to all clusters on it.
    pub(crate) async fn subscribe(&mut self, stream: u32, id: &str) {
        let request = frame(DATA, 0, stream, &subscription(id));
        self.send(&[open_stream(stream), request].concat()).await;
    }

    /// Returns the next frame; `None` if the connection is closed or reset.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let read = async {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.ok()?;
            let [a, b, c, kind, flags, stream @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.stream.read_exact(&mut payload).await.ok()?;
            Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
        };
        tokio::time::timeout(PATIENCE, read).await.expect("neither a frame nor the end")
    }

    /// Returns the next frame of a kind.
    pub(crate) async fn until(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().await.expect("closed");
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Waits for the end of the connection. Returns the code and the text of the last `GOAWAY`, if one
    /// arrived.
    pub(crate) async fn end(&mut self) -> Option<(u32, String)> {
        let mut last = None;
        while let Some(frame) = self.next().await {
            if frame.kind == GOAWAY {
                let code = u32::from_be_bytes(frame.payload[4..8].try_into().unwrap());
                last = Some((code, String::from_utf8_lossy(&frame.payload[8..]).into_owned()));
            }
        }
        last
    }

    /// Sends `bytes` repeatedly and reads, until the connection ends. Returns the last `GOAWAY`.
    pub(crate) async fn flood(
        self,
        mut bytes: impl FnMut(u32) -> Vec<u8>,
    ) -> Option<(u32, String)> {
        // A correct server ends the connection earlier.
        const ROUNDS: u32 = 2_000_000;
        let (mut reading, mut writing) = {
            let stream = self.stream.into_std().unwrap();
            let other = stream.try_clone().unwrap();
            (
                Self { stream: TcpStream::from_std(stream).unwrap() },
                TcpStream::from_std(other).unwrap(),
            )
        };
        let write = async move {
            for round in 0..ROUNDS {
                if writing.write_all(&bytes(round)).await.is_err() {
                    return;
                }
            }
            panic!("the server accepts everything");
        };
        let (last, ()) =
            tokio::time::timeout(2 * PATIENCE, async { futures::join!(reading.end(), write) })
                .await
                .expect("the connection has not ended");
        last
    }
}
