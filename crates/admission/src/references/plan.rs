//! The fields of each message that lead to references, computed once from the tables and the descriptors.

use std::{
    collections::{BTreeSet, HashMap},
    sync::LazyLock,
};

use chancery_model::{TypeUrl, types};
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

use super::chains::Chains;
use super::table::{
    CLUSTER_FIELDS, CONFIG_SOURCE, EXTENSION_SOURCE, NAME_FIELD, Name, REQUESTS,
    SCOPED_ROUTE_FIELD, SKIPPED, THIS_SERVER,
};

const ANY: &str = "google.protobuf.Any";

/// The messages that may contain references, by index.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) messages: Vec<Message>,
    by_name: HashMap<String, usize>,
    pub(super) chains: Option<Chains>,
    /// The numbers of the fields of `ConfigSource` that name the server of the resource itself.
    pub(super) this_server: Vec<u32>,
}

/// A message, with the fields that lead to references.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) steps: Vec<Step>,
    pub(super) request: Option<Request>,
    /// Whether the message is an entry of a map: the key is field 1, the value field 2.
    pub(super) is_map_entry: bool,
}

/// A field that leads to references.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) number: u32,
    pub(super) field: String,
    pub(super) is_list: bool,
    pub(super) is_map: bool,
    pub(super) action: Action,
}

/// The content of a field.
#[derive(Debug)]
pub(super) enum Action {
    /// The name of a resource of this type.
    Name(TypeUrl),
    /// The message with this index.
    Nested(usize),
    /// An `Any`.
    Any,
    /// The source of an extension: the message with the index `inner`. The name of the extension is in the
    /// field with the number `name` beside it.
    Extension { name: u32, source: u32, type_url: TypeUrl, inner: usize },
}

/// The request of a resource.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) source: u32,
    /// The number and the name of the field with the name of the resource.
    pub(super) field: Option<(u32, &'static str)>,
    pub(super) name: Name,
    pub(super) type_url: TypeUrl,
}

impl Plan {
    /// Returns the plan for Envoy's descriptors.
    pub(super) fn get() -> &'static Self {
        static PLAN: LazyLock<Plan> = LazyLock::new(|| Plan::of(chancery_proto::envoy_pool()));
        &PLAN
    }

    fn of(pool: &DescriptorPool) -> Self {
        let all: Vec<MessageDescriptor> = pool.all_messages().collect();
        let index: HashMap<String, usize> =
            all.iter().enumerate().map(|(at, one)| (one.full_name().to_owned(), at)).collect();
        let mut messages: Vec<Message> = all.iter().map(|one| message(one, &index)).collect();
        let useful = useful(&messages);
        for message in &mut messages {
            let leads =
                |step: &Step| !matches!(step.action, Action::Nested(at) if !useful.contains(&at));
            message.steps.retain(leads);
        }
        let by_name = index.into_iter().filter(|(_, at)| useful.contains(at)).collect();
        let source = pool.get_message_by_name(CONFIG_SOURCE);
        let number =
            |field: &str| source.as_ref()?.get_field_by_name(field).map(|found| found.number());
        let this_server = THIS_SERVER.into_iter().filter_map(number).collect();
        Self { messages, by_name, chains: Chains::of(pool), this_server }
    }

    /// Returns the index of a message; `None` if it contains no references.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
}

fn message(descriptor: &MessageDescriptor, index: &HashMap<String, usize>) -> Message {
    let name = descriptor.full_name();
    let number = |field: &str| descriptor.get_field_by_name(field).map(|found| found.number());
    let request = REQUESTS.iter().find(|request| request.message == name);
    let request = request.and_then(|request| {
        let field = match request.name {
            Name::Field(field)
            | Name::FieldOrOwn(field)
            | Name::FieldOrAll(field)
            | Name::List(field) => Some((number(field)?, field)),
            Name::BelowOwn => None,
        };
        let (source, type_url) = (number(request.source)?, TypeUrl::from_static(request.type_url));
        Some(Request { source, field, name: request.name, type_url })
    });
    let steps = descriptor.fields().filter_map(|field| {
        let action = action(name, &field, index, number(NAME_FIELD))?;
        let (is_list, is_map) = (field.is_list(), field.is_map());
        let (number, field) = (field.number(), field.name().to_owned());
        Some(Step { number, field, is_list, is_map, action })
    });
    Message { steps: steps.collect(), request, is_map_entry: descriptor.is_map_entry() }
}

fn action(
    message: &str,
    field: &FieldDescriptor,
    index: &HashMap<String, usize>,
    name: Option<u32>,
) -> Option<Action> {
    match field.kind() {
        Kind::String => {
            let found = (message, field.name());
            let type_url = match found {
                SCOPED_ROUTE_FIELD => types::ROUTE,
                found if CLUSTER_FIELDS.contains(&found) => types::CLUSTER,
                _ => return None,
            };
            Some(Action::Name(TypeUrl::from_static(type_url)))
        }
        Kind::Message(inner) if inner.full_name() == ANY => Some(Action::Any),
        Kind::Message(inner) if inner.full_name() == EXTENSION_SOURCE => {
            let source = inner.fields().find(is_source)?.number();
            let type_url = TypeUrl::from_static(types::EXTENSION);
            let inner = *index.get(inner.full_name())?;
            Some(Action::Extension { name: name?, source, type_url, inner })
        }
        Kind::Message(inner) if SKIPPED.contains(&inner.full_name()) => None,
        Kind::Message(inner) => index.get(inner.full_name()).map(|at| Action::Nested(*at)),
        _ => None,
    }
}

fn is_source(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Message(inner) if inner.full_name() == CONFIG_SOURCE)
}

/// Returns the messages that contain references, or may do so in an `Any`.
fn useful(messages: &[Message]) -> BTreeSet<usize> {
    let mut useful = BTreeSet::new();
    loop {
        let before = useful.len();
        for (at, message) in messages.iter().enumerate() {
            let leads = |step: &Step| match step.action {
                Action::Nested(inner) => useful.contains(&inner),
                _ => true,
            };
            if message.request.is_some() || message.steps.iter().any(leads) {
                useful.insert(at);
            }
        }
        if useful.len() == before {
            return useful;
        }
    }
}
