//! A client that keeps what it receives and acknowledges every response at once, like a real one.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::{
    ctx::Ctx,
    kind::Kind,
    outcome::{Failed, Outcome, Stop, ensure, violation},
    reply::{Reply, listed},
    stream::{RequestFields, Stream, Variant},
};

/// A resource that the client holds.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedVersion {
    generation: Option<u32>,
    /// The version of the resource (delta) or of its type (SotW).
    version: String,
    nonce: String,
}

/// The client's side of one stream.
pub(crate) struct Client {
    variant: Variant,
    stream: Stream,
    /// The subscription of each type, for SotW requests.
    names: BTreeMap<Kind, Vec<String>>,
    /// The newest version and nonce of each type.
    newest: BTreeMap<Kind, (String, String)>,
    held: BTreeMap<(Kind, String), ReceivedVersion>,
    removed: Vec<(Kind, String)>,
}

impl Client {
    pub(crate) async fn open(ctx: &Ctx, variant: Variant, kind: Kind) -> Result<Self, Stop> {
        let stream = ctx.open(variant, kind).await?;
        let (names, newest, held) = Default::default();
        Ok(Self { variant, stream, names, newest, held, removed: Vec::new() })
    }

    /// Subscribes to names. A SotW request replaces the subscription, a delta request adds to it.
    pub(crate) async fn subscribe(&mut self, kind: Kind, names: &[&str]) {
        let (version, nonce) = self.newest.get(&kind).cloned().unwrap_or_default();
        // An acknowledgment in delta would only repeat what the client has sent.
        let nonce = if self.variant == Variant::Delta { String::new() } else { nonce };
        let ask =
            RequestFields { version: &version, nonce: &nonce, ..RequestFields::names(kind, names) };
        self.stream.ask(ask).await;
        self.names.insert(kind, names.iter().map(|name| (*name).to_owned()).collect());
        if self.variant == Variant::Sotw {
            self.held.retain(|(held, name), _| {
                *held != kind || names.is_empty() || names.contains(&name.as_str())
            });
        }
    }

    /// Unsubscribes from a name, in delta.
    pub(crate) async fn unsubscribe(&mut self, kind: Kind, name: &str) {
        let ask = RequestFields { unsubscribe: &[name], ..RequestFields::names(kind, &[]) };
        self.stream.ask(ask).await;
        self.held.remove(&(kind, name.to_owned()));
    }

    /// Forgets everything of a type that the client holds.
    pub(crate) fn forget(&mut self, kind: Kind) {
        self.held.retain(|(held, _), _| *held != kind);
    }

    async fn on_reply(&mut self, reply: &Reply) {
        let Some(kind) = reply.kind() else { return };
        if self.variant == Variant::Sotw && kind.is_full_state() {
            self.forget(kind);
        }
        for item in &reply.items {
            let version = match self.variant {
                Variant::Sotw => reply.version.clone(),
                Variant::Delta => item.version.clone(),
            };
            let (generation, nonce) = (item.generation, reply.nonce.clone());
            self.held
                .insert((kind, item.name.clone()), ReceivedVersion { generation, version, nonce });
        }
        for name in &reply.removed {
            self.held.remove(&(kind, name.clone()));
            self.removed.push((kind, name.clone()));
        }
        self.newest.insert(kind, (reply.version.clone(), reply.nonce.clone()));
        let names = self.names.get(&kind).cloned().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.stream.ack(reply, &names).await;
    }

    /// Receives until a condition holds.
    async fn receive(
        &mut self,
        requirement: &str,
        expected: &str,
        holds: impl Fn(&Self) -> bool,
    ) -> Outcome {
        let end = Instant::now() + self.stream.timeout();
        while !holds(self) {
            if Instant::now() >= end {
                return violation(requirement, expected, self.shown());
            }
            let reply =
                self.stream.next(requirement, expected).await.map_err(|stop| match stop {
                    Stop::Failed(failed) => {
                        let observed = format!("{}; {}", failed.observed, self.shown());
                        Stop::Failed(Failed { observed, ..failed })
                    }
                    skipped => skipped,
                })?;
            self.on_reply(&reply).await;
        }
        Ok(())
    }

    /// Waits until the client holds these resources.
    pub(crate) async fn until(
        &mut self,
        requirement: &str,
        kind: Kind,
        expected: &[(&str, u32)],
    ) -> Outcome {
        let text = format!("resources {}", listed(kind, expected));
        self.receive(requirement, &text, |this| {
            expected.iter().all(|(name, generation)| {
                this.held(kind, name).is_some_and(|held| held.generation == Some(*generation))
            })
        })
        .await
    }

    /// Waits until the server has removed a name.
    pub(crate) async fn until_removed(
        &mut self,
        requirement: &str,
        kind: Kind,
        name: &str,
    ) -> Outcome {
        let text = format!("{} {name} in removed_resources", kind.label());
        let removed = (kind, name.to_owned());
        self.receive(requirement, &text, |this| this.removed.contains(&removed)).await
    }

    fn held(&self, kind: Kind, name: &str) -> Option<&ReceivedVersion> {
        self.held.get(&(kind, name.to_owned()))
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&str, &ReceivedVersion)> {
        let own = self.held.iter().filter(move |((held, _), _)| *held == kind);
        own.map(|((_, name), held)| (name.as_str(), held))
    }

    /// Describes what the client holds.
    fn shown(&self) -> String {
        let all = self.held.iter().map(|((kind, name), held)| {
            let generation = held.generation.map_or("?".to_owned(), |n| n.to_string());
            format!("{} {name}@{generation}", kind.label())
        });
        format!("the client holds [{}]", all.collect::<Vec<_>>().join(", "))
    }

    /// Fails if the client holds other resources of a type than these.
    pub(crate) fn only(&self, requirement: &str, kind: Kind, names: &[&str]) -> Outcome {
        let holds = self.of_kind(kind).all(|(name, _)| names.contains(&name));
        let expected = format!("no {} besides [{}]", kind.label(), names.join(" "));
        ensure(requirement, holds, expected, || self.shown())
    }

    /// Fails if the resources of a type did not come in one response.
    pub(crate) fn one_response(&self, requirement: &str, kind: Kind) -> Outcome {
        let nonces: Vec<&str> = self.of_kind(kind).map(|(_, held)| held.nonce.as_str()).collect();
        let holds = nonces.windows(2).all(|pair| pair[0] == pair[1]);
        ensure(requirement, holds, format!("all {} in one response", kind.label()), || {
            format!("resources from responses with nonces {}", nonces.join(", "))
        })
    }

    /// Fails if another resource of the type came in the same response as this one.
    pub(crate) fn alone(&self, requirement: &str, kind: Kind, name: &str) -> Outcome {
        let nonce = self.held(kind, name).map(|held| held.nonce.clone());
        let mut others = self.of_kind(kind).filter(|(other, _)| *other != name);
        let other = others.find(|(_, held)| Some(&held.nonce) == nonce.as_ref());
        let expected = format!("{name} in a response of its own");
        ensure(requirement, other.is_none(), expected, || {
            format!("{} came with it", other.map_or("", |(name, _)| name))
        })
    }

    /// Returns the version of a resource.
    pub(crate) fn version(&self, kind: Kind, name: &str) -> Option<String> {
        self.held(kind, name).map(|held| held.version.clone())
    }

    /// Fails if anything more comes within the quiet time.
    pub(crate) async fn quiet(&mut self, requirement: &str, expected: &str) -> Outcome {
        self.stream.quiet(requirement, expected).await
    }

    /// Receives what comes until the quiet time has passed without a response.
    pub(crate) async fn settle(&mut self, requirement: &str) -> Outcome {
        let end = Instant::now() + self.stream.timeout();
        while let Some(reply) = self.stream.maybe(requirement).await? {
            self.on_reply(&reply).await;
            if Instant::now() >= end {
                return violation(requirement, "responses end", reply.to_string());
            }
        }
        Ok(())
    }
}
