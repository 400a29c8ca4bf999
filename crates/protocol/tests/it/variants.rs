//! Variants of resources and dynamic parameters (TP2), on the wire.

use std::{collections::BTreeMap, sync::Arc};

use bytes::{Bytes, BytesMut};
use chancery_model::{
    Constraints, DynamicParameters, Incarnation, Outcome, ResourceDraft, ResourceKey, ResourceName,
    ScopeName, State, Transaction, TypeUrl, Upsert, types,
};
use chancery_proto::discovery::{DeltaDiscoveryResponse, DiscoveryResponse, Resource};
use chancery_protocol::{
    Config, DeltaRequest, ErrorDetail, NameList, Protocol, Request, Session, SotwRequest,
    StreamKind,
};
use chancery_view::{Differ, View, changed_collections};
use prost::Message as _;

mod delta;
mod poll;
mod sotw;
mod wildcard;

const WRAPPER: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";

fn scope() -> ScopeName {
    ScopeName::new("default").unwrap()
}

fn value(key: &str, value: &str) -> Constraints {
    Constraints::Value { key: key.into(), value: value.into() }
}

fn without(key: &str) -> Constraints {
    Constraints::Not(Box::new(Constraints::Exists { key: key.into() }))
}

fn env(name: &str) -> Constraints {
    value("env", name)
}

fn parameters(pairs: &[(&str, &str)]) -> DynamicParameters {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A name, and the parameters of its locator.
type Locator<'a> = (&'a str, &'a [(&'a str, &'a str)]);

/// Returns a list as the scan of a request creates it: plain names, and locators.
fn list(names: &[&str], locators: &[Locator<'_>]) -> NameList {
    let field = |out: &mut BytesMut, number, content: &[u8]| {
        chancery_model::wire::put_len_field(out, number, content);
    };
    let (mut plain, mut located) = (BytesMut::new(), BytesMut::new());
    names.iter().for_each(|name| field(&mut plain, 1, name.as_bytes()));
    for (name, parameters) in locators {
        let mut locator = BytesMut::new();
        field(&mut locator, 1, name.as_bytes());
        for (key, value) in *parameters {
            let mut entry = BytesMut::new();
            field(&mut entry, 1, key.as_bytes());
            field(&mut entry, 2, value.as_bytes());
            field(&mut locator, 2, &entry);
        }
        field(&mut located, 2, &locator);
    }
    let has_parameters = locators.iter().any(|(_, parameters)| !parameters.is_empty());
    NameList::encoded(plain.freeze(), 1, names.len()).with_locators(
        located.freeze(),
        2,
        locators.len(),
        has_parameters,
    )
}

/// A server with one stream.
struct World {
    state: State,
    session: Session,
    type_url: &'static str,
    scopes: Vec<ScopeName>,
    now: u64,
}

/// The content of a response: `name[constraints]=body` of each resource, `-name[constraints]` of each
/// removal. Names without constraints have no brackets.
type Said = Vec<String>;

impl World {
    fn new(protocol: Protocol, type_url: &'static str) -> Self {
        Self::with(protocol, type_url, Config::default())
    }

    fn with(protocol: Protocol, type_url: &'static str, config: Config) -> Self {
        let kind = StreamKind { protocol, type_url: None };
        let session = Session::new(kind, Arc::new(config));
        Self { state: State::new(Incarnation(7)), session, type_url, scopes: vec![scope()], now: 1 }
    }

    fn key(&self, name: &str, constraints: &Constraints) -> ResourceKey {
        let name = ResourceName::new(name).unwrap().variant(constraints);
        ResourceKey { type_url: TypeUrl::from_static(self.type_url), name }
    }

    /// Publishes and deletes in one transaction, which must succeed, and marks the changes.
    fn write(&mut self, put: &[(&str, &Constraints, &str)], delete: &[(&str, &Constraints)]) {
        let upsert = |(name, constraints, body): &(&str, &Constraints, &str)| Upsert {
            scope: scope(),
            draft: ResourceDraft::new(self.key(name, constraints), Bytes::from(body.to_string())),
        };
        let upserts = put.iter().map(upsert).collect();
        let deletes = delete.iter().map(|(name, one)| (scope(), self.key(name, one))).collect();
        let transaction = Transaction { upserts, deletes, ..Transaction::default() };
        let applied = self.state.apply(&transaction);
        assert!(matches!(applied.outcome, Outcome::Committed(_)), "{:?}", applied.outcome);
        let before = std::mem::replace(&mut self.state, applied.state);
        for delta in changed_collections(&Differ::new(), &before, &self.state) {
            self.session.handle_changes(&delta);
        }
    }

    fn view(&self) -> View {
        View::resolve(&self.state, &self.scopes)
    }

    fn request(&mut self, request: Request) {
        let view = self.view();
        self.session.handle_request(request, Some(&view), self.now).unwrap();
    }

    fn delta(&mut self, subscribe: NameList, unsubscribe: NameList) {
        let type_url = self.type_url.to_owned();
        self.request(Request::Delta(DeltaRequest {
            type_url,
            subscribe,
            unsubscribe,
            ..DeltaRequest::default()
        }));
    }

    fn sotw(&mut self, resource_names: NameList, nonce: &str) {
        let (type_url, response_nonce) = (self.type_url.to_owned(), nonce.to_owned());
        self.request(Request::Sotw(SotwRequest {
            type_url,
            resource_names,
            response_nonce,
            ..SotwRequest::default()
        }));
    }

    fn poll(&mut self) -> Option<Bytes> {
        let view = self.view();
        let response = self.session.poll(Some(&view), &Differ::new(), self.now)?;
        let mut bytes = BytesMut::new();
        let message = response.into_message("");
        let len = message.len();
        message.for_each(|piece| bytes.extend_from_slice(&piece));
        assert_eq!(bytes.len(), len, "the announced length");
        Some(bytes.freeze())
    }

    /// Returns the next delta response and acknowledges it.
    fn next_delta(&mut self) -> Option<Said> {
        let response = DeltaDiscoveryResponse::decode(self.poll()?).unwrap();
        let (type_url, response_nonce) = (self.type_url.to_owned(), response.nonce.clone());
        self.request(Request::Delta(DeltaRequest {
            type_url,
            response_nonce,
            ..DeltaRequest::default()
        }));
        Some(said(&response))
    }

    /// Returns the next SotW response and its nonce.
    fn next_sotw(&mut self) -> Option<(Said, String)> {
        let response = DiscoveryResponse::decode(self.poll()?).unwrap();
        let mut said: Said = Vec::new();
        for any in &response.resources {
            said.push(match any.type_url.as_str() {
                WRAPPER => {
                    let wrapped = Resource::decode(any.value.clone()).unwrap();
                    assert_eq!(wrapped.version, response.version_info);
                    shown(&wrapped)
                }
                _ => format!("={}", std::str::from_utf8(&any.value).unwrap()),
            });
        }
        said.sort();
        Some((said, response.nonce))
    }
}

fn named(name: &chancery_proto::discovery::ResourceName) -> String {
    match &name.dynamic_parameter_constraints {
        Some(bytes) => format!("{}[{}]", name.name, Constraints::decode(bytes).unwrap()),
        None => name.name.clone(),
    }
}

fn shown(resource: &Resource) -> String {
    let body = resource.resource.as_ref().map(|any| any.value.clone()).unwrap_or_default();
    let name = match &resource.resource_name {
        Some(name) => {
            assert_eq!(resource.name, "", "only one of name and resource_name is set");
            named(name)
        }
        None => resource.name.clone(),
    };
    format!("{name}={}", std::str::from_utf8(&body).unwrap())
}

fn said(response: &DeltaDiscoveryResponse) -> Said {
    let resources = response.resources.iter().map(shown);
    let removed = response.removed_resources.iter().map(|name| format!("-{name}"));
    let variants = response.removed_resource_names.iter().map(|name| format!("-{}", named(name)));
    let mut said: Said = resources.chain(removed).chain(variants).collect();
    said.sort();
    said
}

fn none() -> NameList {
    NameList::default()
}
