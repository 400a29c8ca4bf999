//! A proxy that records everything that passes.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A proxy in front of an address.
pub(super) struct Capture {
    pub(super) address: String,
    passed: Arc<Mutex<Vec<u8>>>,
}

impl Capture {
    /// Starts a proxy. It lasts until the process ends.
    pub(super) fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let passed = Arc::<Mutex<Vec<u8>>>::default();
        let record = Arc::clone(&passed);
        thread::spawn(move || {
            for from in listener.incoming() {
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(&target)) else { continue };
                let back = (to.try_clone().unwrap(), from.try_clone().unwrap());
                for (from, to) in [(from, to), back] {
                    let record = Arc::clone(&record);
                    thread::spawn(move || pass(from, to, &record));
                }
            }
        });
        Self { address, passed }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.passed.lock().unwrap().clone()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, record: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n) = from.read(&mut buffer)
        && n > 0
    {
        record.lock().unwrap().extend_from_slice(&buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Write));
}
