//! A proxy that records HTTP/2 PING and GOAWAY frames between a client and the server. The clients
//! do not report these frames themselves.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// The number of bytes before a client's first frame (RFC 9113, 3.4).
const PREFACE: usize = 24;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
/// The ACK flag of a PING frame.
const ACK: u8 = 1;

/// Starts a proxy for the server at `xds` that delays everything a client sends. Returns its port. It
/// runs until the test process ends.
pub(crate) fn delay_requests(xds: u16, delay: Duration) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, xds)) {
                drop(splice_delayed(&client, &server, delay));
            }
        }
    });
    Ok(port)
}

fn splice_delayed(client: &TcpStream, server: &TcpStream, delay: Duration) -> Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    for (from, to, delay) in [(client, server, delay), (server, client, Duration::ZERO)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(1 << 16);
        thread::spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            while let Ok(n_bytes @ 1..) = from.read(&mut bytes) {
                if sender.send((Instant::now() + delay, bytes[..n_bytes].to_vec())).is_err() {
                    break;
                }
            }
        });
        thread::spawn(move || {
            for (due, bytes) in receiver {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
            drop(to.shutdown(Shutdown::Write));
        });
    }
    Ok(())
}

/// The recorded frames of all connections.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    pub(crate) n_connections: usize,
    /// PINGs of the client, without its answers to the server's PINGs.
    pub(crate) n_client_pings: usize,
    /// PINGs of the client that the server answered.
    pub(crate) n_answered_pings: usize,
    /// Error codes of the GOAWAY frames that the server sent. 0 is `NO_ERROR`.
    pub(crate) goaways: Vec<u32>,
}

impl Seen {
    /// Fails if the server has sent a GOAWAY with an error code.
    pub(crate) fn expect_no_goaway_error(&self) -> Result<()> {
        if self.goaways.iter().any(|code| *code != 0) {
            bail!("GOAWAY with the codes {:?}", self.goaways);
        }
        Ok(())
    }
}

/// A proxy between clients and the server. It runs until the test process ends.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(crate) port: u16,
    seen: Arc<Mutex<Seen>>,
}

impl Tap {
    /// Starts a proxy for the server at `xds`.
    pub(crate) fn start(xds: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = Arc::clone(&seen);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If no server listens, the client's connection is closed.
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, xds)) {
                    drop(splice(&client, &server, &shared));
                }
            }
        });
        Ok(Self { port, seen })
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

fn splice(client: &TcpStream, server: &TcpStream, seen: &Arc<Mutex<Seen>>) -> Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    seen.lock().unwrap_or_else(PoisonError::into_inner).n_connections += 1;
    for (from, to, side) in [(client, server, Side::Client), (server, client, Side::Server)] {
        let (from, to, seen) = (from.try_clone()?, to.try_clone()?, Arc::clone(seen));
        thread::spawn(move || {
            drop(forward(&from, &to, side, &seen));
            // Only this direction ends. The other direction may still forward the GOAWAY or the status.
            drop(to.shutdown(Shutdown::Write));
        });
    }
    Ok(())
}

fn forward(mut from: &TcpStream, mut to: &TcpStream, side: Side, seen: &Mutex<Seen>) -> Result<()> {
    let mut parser = Parser { skip: if side == Side::Client { PREFACE } else { 0 }, head: vec![] };
    let mut bytes = vec![0; 64 << 10];
    let mut is_taken = true;
    loop {
        let n_bytes = from.read(&mut bytes)?;
        if n_bytes == 0 {
            return Ok(());
        }
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        parser.read(&bytes[..n_bytes], |frame| match (side, frame) {
            (Side::Client, Frame::Ping { is_ack: false }) => seen.n_client_pings += 1,
            (Side::Server, Frame::Ping { is_ack: true }) => seen.n_answered_pings += 1,
            (Side::Server, Frame::GoAway { code }) => seen.goaways.push(code),
            _ => (),
        });
        drop(seen);
        // After a failed write, the loop continues to read. If a socket is closed with unread bytes, the kernel resets
        // the connection, and the peer loses bytes that were already forwarded to it.
        is_taken = is_taken && to.write_all(&bytes[..n_bytes]).is_ok();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Ping { is_ack: bool },
    GoAway { code: u32 },
}

/// A parser of the frames in one direction of a connection.
#[derive(Debug)]
struct Parser {
    /// The number of bytes to skip before the next frame.
    skip: usize,
    /// The start of a frame: its header, and for GOAWAY also the two numbers after it.
    head: Vec<u8>,
}

impl Parser {
    fn read(&mut self, bytes: &[u8], mut on_frame: impl FnMut(Frame)) {
        for byte in bytes {
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.head.push(*byte);
            let [a, b, c, kind, flags, rest @ ..] = self.head.as_slice() else { continue };
            // The stream ID follows the flags.
            let n_of_payload = match rest.len() {
                n @ 4.. => n - 4,
                _ => continue,
            };
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            let wanted = if *kind == GOAWAY { length.min(8) } else { 0 };
            if n_of_payload < wanted {
                continue;
            }
            match (*kind, rest) {
                (PING, _) => on_frame(Frame::Ping { is_ack: flags & ACK != 0 }),
                (GOAWAY, [.., a, b, c, d]) => {
                    on_frame(Frame::GoAway { code: u32::from_be_bytes([*a, *b, *c, *d]) });
                }
                _ => (),
            }
            self.skip = length - wanted;
            self.head.clear();
        }
    }
}

#[test]
fn pings_and_goaways_are_found_in_any_chunking() {
    let mut bytes = vec![b'p'; PREFACE];
    let frame = |kind, flags, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap_or(u8::MAX);
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    };
    bytes.extend(frame(0, 0, &[PING; 20]));
    bytes.extend(frame(PING, 0, &[0; 8]));
    bytes.extend(frame(4, 0, &[]));
    bytes.extend(frame(GOAWAY, 0, &[0, 0, 0, 9, 0, 0, 0, 11, b'x', b'y']));
    bytes.extend(frame(PING, ACK, &[GOAWAY; 8]));
    for size in [1, 2, 7, bytes.len()] {
        let mut parser = Parser { skip: PREFACE, head: vec![] };
        let mut frames = Vec::new();
        for part in bytes.chunks(size) {
            parser.read(part, |frame| frames.push(frame));
        }
        let expected = [
            Frame::Ping { is_ack: false },
            Frame::GoAway { code: 11 },
            Frame::Ping { is_ack: true },
        ];
        assert_eq!(frames, expected, "cut every {size} bytes");
    }
}
