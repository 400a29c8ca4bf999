//! A driver of one session, with an in-memory client: subscribe, ACK, and receive a change.
//!
//! ```sh
//! cargo run -p chancery-protocol --example driver
//! ```

#![expect(clippy::print_stdout, reason = "the example prints each step")]

use std::{error::Error, sync::Arc};

use bytes::Bytes;
use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction, TypeUrl,
    Upsert, types::CLUSTER,
};
use chancery_protocol::{
    Config, InterestChange, Protocol, Request, Response, Session, SotwRequest, StreamKind,
};
use chancery_view::{Differ, View, changed_collections};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A driver: it owns the session, the state and the clock.
struct Driver {
    session: Session,
    state: State,
    scope: ScopeName,
    now: u64,
}

impl Driver {
    fn new() -> Outcome<Self> {
        let kind = StreamKind { protocol: Protocol::Sotw, type_url: None };
        Ok(Self {
            session: Session::new(kind, Arc::new(Config::default())),
            state: State::new(Incarnation(1)),
            scope: ScopeName::new("default")?,
            now: 0,
        })
    }

    fn view(&self) -> View {
        View::resolve(&self.state, std::slice::from_ref(&self.scope))
    }

    /// Commits a cluster, and marks the change in the session.
    fn commit(&mut self, name: &str, body: &'static str) -> Outcome<()> {
        let key = ResourceKey { type_url: TypeUrl::new(CLUSTER)?, name: ResourceName::new(name)? };
        let draft = ResourceDraft::new(key, Bytes::from_static(body.as_bytes()));
        let upserts = vec![Upsert { scope: self.scope.clone(), draft }];
        let applied = self.state.apply(&Transaction { upserts, ..Transaction::default() });
        let before = std::mem::replace(&mut self.state, applied.state);
        for delta in changed_collections(&Differ::new(), &before, &self.state) {
            self.session.on_changes(&delta);
        }
        Ok(())
    }

    /// Passes a request of the client to the session.
    fn receive(&mut self, nonce: &str) -> Outcome<()> {
        let request = SotwRequest {
            type_url: CLUSTER.to_owned(),
            response_nonce: nonce.to_owned(),
            ..SotwRequest::default()
        };
        let view = self.view();
        let receipt = self.session.on_request(Request::Sotw(request), Some(&view), self.now)?;
        println!("client: {:?} (nonce {nonce:?})", receipt.kind);
        for interest in self.session.drain_interest() {
            if let InterestChange::Wildcard(type_url) = interest {
                println!("driver: mark all changes of {type_url}");
            }
        }
        Ok(())
    }

    /// Sends responses until the session has none. Returns the nonce of the last one.
    fn poll(&mut self) -> String {
        let (view, differ) = (self.view(), Differ::new());
        let mut nonce = String::new();
        while let Some(response) = self.session.poll(Some(&view), &differ, self.now) {
            nonce = response.nonce();
            let names = response.resources().map(|resource| resource.name().as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            let n_bytes = send(response);
            println!("server: response {nonce} with {names} ({n_bytes} bytes)");
        }
        nonce
    }
}

/// Stands for the transport. Returns the number of bytes.
fn send(response: Response) -> usize {
    response.into_message("example").map(|piece| piece.len()).sum()
}

fn main() -> Outcome<()> {
    let mut driver = Driver::new()?;
    driver.commit("reviews", "one")?;
    driver.commit("ratings", "one")?;
    // A list without names requests all clusters.
    driver.receive("")?;
    let nonce = driver.poll();
    driver.now += 5;
    driver.receive(&nonce)?;
    assert!(driver.poll().is_empty(), "the client has everything");
    driver.commit("reviews", "two")?;
    let nonce = driver.poll();
    driver.receive(&nonce)?;
    match driver.session.wake_at(driver.now) {
        Some(at) => println!("driver: poll again at {at} ms"),
        None => println!("driver: no deadline is pending"),
    }
    Ok(())
}
