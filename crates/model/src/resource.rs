//! Resources: named, typed payloads that are stored as the bytes that go on the wire.
//!
//! # One frame, two protocols
//! `DeltaDiscoveryResponse.resources` and `DiscoveryResponse.resources` are both field 2. So is
//! `Resource.resource`, the `Any` inside the delta form. A resource is therefore stored as the
//! delta field, with its `Any` first:
//!
//! ```text
//! 12 <len> │ 12 <len> 0a <type URL> 12 <body> │ 0a <version> 1a <name> 22 <alias>…
//!          └──────── SotW field ─────────────┘
//! └──────────────────── delta field ─────────────────────────────────────────────┘
//! ```
//!
//! A variant has `42 <resource name with constraints>` in place of `1a <name>` (DYN-04).
//!
//! # Collections of MCP
//! The body of a resource in a collection is an `istio.mcp.v1alpha1.Resource`, which contains the version of its
//! author. A suffix after the body overrides it with the version of Chancery (MCP-14): `0a <len> 1a <version>`.
//! Decoders merge the suffix into the field `metadata`. The type URL in the `Any` is that of the message (MCP-06).
//! Clients of MCP over xDS receive this suffix. Sinks receive [`Resource::body`] and another suffix, whose version also
//! identifies the cluster ([`mcp_metadata`]).
//!
//! The SotW field is a slice of the delta field, and the body is a slice of both. One copy of the
//! bytes therefore serves both protocols and every stream. The body is the output of admission and
//! is never encoded again (SVC-18).
//!
//! # Sealed resources
//! A sealed resource is stored and replicated in encrypted form only ([`Sealed`]). A replica that has the keys opens it
//! after it was applied, and replaces it by the opened one ([`Resource::opened`]), which also has a frame. Both are
//! equal for everything that the state computes: versions, sizes, differences. Only [`Resource::body`] differs.

use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};

use crate::{
    Constraints, DynamicParameters, ResourceName, Revision, Sealed, TypeUrl, Version,
    exclusive_keys::exclusive_keys,
    hash::Tag,
    internal_name::encode_resource_name,
    stale_after::stale_after,
    types::Exclusion,
    wire::{len_field_len, put_len_field, put_len_header},
};

/// The identity of a resource inside a scope.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceKey {
    /// The type of the resource.
    pub type_url: TypeUrl,
    /// The name of the resource.
    pub name: ResourceName,
}

impl ResourceKey {
    /// Returns the key with the published name.
    #[must_use]
    pub fn to_base(&self) -> Self {
        Self { type_url: self.type_url.clone(), name: self.name.to_base() }
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.type_url.shown_name(), self.name.base())?;
        self.name.constraints().map_or(Ok(()), |constraints| write!(f, " [{constraints}]"))
    }
}

/// A resource as admission produces it. Its version is assigned when a transaction is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceDraft {
    /// The type and name of the resource.
    pub key: ResourceKey,
    /// The encoded message: `Any.value`. Empty in a sealed draft that has not been opened.
    pub body: Bytes,
    /// The encrypted body. Only this form is stored and replicated.
    pub sealed: Option<Sealed>,
    /// Alternative names by which clients can request the resource (DELTA-29).
    pub aliases: Vec<ResourceName>,
    /// The lifetime of the resource at the client (TTL-01).
    pub ttl: Option<Duration>,
    /// Labels for people and selectors; never sent to clients.
    pub labels: BTreeMap<String, String>,
    /// The resources that a client requests because of this one: the endpoints of an EDS cluster,
    /// the routes of a listener. The list is sorted and has no duplicates.
    pub children: Vec<ResourceKey>,
}

impl ResourceDraft {
    /// Creates a draft with a key and a body, and without optional properties.
    #[must_use]
    pub fn new(key: ResourceKey, body: Bytes) -> Self {
        Self {
            key,
            body,
            sealed: None,
            aliases: vec![],
            ttl: None,
            labels: BTreeMap::new(),
            children: vec![],
        }
    }

    /// Returns the length of the body in bytes, also of a draft that has not been opened.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.sealed.as_ref().map_or(self.body.len(), |sealed| sealed.body_len as usize)
    }

    fn is_opened(&self) -> bool {
        self.body.len() == self.body_len()
    }

    /// Computes the tag of the version. A tag of a sealed body derives from its keyed digest: clients see tags, and
    /// a digest without a key would let them guess short secrets.
    fn tag(&self) -> u32 {
        let mut tag = Tag::default()
            .field(self.key.type_url.as_str().as_bytes())
            .field(self.key.name.as_str().as_bytes())
            .field(self.sealed.as_ref().map_or(&self.body[..], |sealed| &sealed.mac))
            .field(&self.ttl.map_or(0, |ttl| ttl.as_nanos()).to_le_bytes());
        for alias in &self.aliases {
            tag = tag.field(alias.as_str().as_bytes());
        }
        tag.finish()
    }
}

/// A resource in the state, immutable and shared by `Arc`.
#[derive(Clone)]
pub struct Resource {
    name: ResourceName,
    version: Version,
    frame: Bytes,
    any: Range<u32>,
    body: Range<u32>,
    extra: Option<Box<Extra>>,
}

/// The properties that few resources have. Boxed slices save memory, because a state may contain a
/// million of these structs.
#[derive(Clone, Default, PartialEq, Eq)]
struct Extra {
    aliases: Box<[ResourceName]>,
    ttl: Option<Duration>,
    labels: Box<[(String, String)]>,
    children: Box<[ResourceKey]>,
    /// Follows from the body.
    stale_after: Option<Duration>,
    variant: Option<Box<Variant>>,
    sealed: Option<Box<Sealed>>,
}

/// The identity of a variant (DYN-02).
#[derive(Clone, PartialEq, Eq)]
struct Variant {
    /// The published name.
    base: ResourceName,
    constraints: Constraints,
}

impl Extra {
    /// Copies the properties of a draft. A child with the name of its parent shares that allocation.
    fn of(draft: &ResourceDraft) -> Self {
        let ResourceKey { name, .. } = &draft.key;
        let variant = name.is_variant().then(|| name.constraints()).flatten();
        let variant =
            variant.map(|constraints| Box::new(Variant { base: name.to_base(), constraints }));
        let children = draft.children.iter().map(|child| {
            if child.name == *name {
                ResourceKey { type_url: child.type_url.clone(), name: name.clone() }
            } else {
                child.clone()
            }
        });
        Self {
            aliases: draft.aliases.clone().into(),
            ttl: draft.ttl,
            labels: draft.labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            children: children.collect(),
            stale_after: stale_after(&draft.key.type_url, &draft.body),
            variant,
            sealed: draft.sealed.clone().map(Box::new),
        }
    }
}

impl Resource {
    /// Creates a resource whose version has the given revision, which is that of the transaction.
    #[must_use]
    pub fn publish(draft: &ResourceDraft, revision: Revision) -> Self {
        Self::with_version(draft, Version { revision, tag: draft.tag() })
    }

    /// Creates a resource with an existing version, for example when it is loaded from disk.
    #[must_use]
    pub fn with_version(draft: &ResourceDraft, version: Version) -> Self {
        let ResourceKey { type_url, name } = &draft.key;
        let version_text = version.to_string();
        let extra = Extra::of(draft);
        let variant = extra.variant.as_ref();
        let variant = variant.map(|v| encode_resource_name(v.base.as_str(), Some(&v.constraints)));
        let name_len = variant.as_ref().map_or(name.as_str().len(), |encoded| encoded.len());
        let any_url = type_url.message_url();
        let suffix =
            if type_url.is_collection() { mcp_metadata(&version_text) } else { BytesMut::new() };
        let value_len = draft.body_len() + suffix.len();
        let any_len = len_field_len(any_url.len()) + len_field_len(value_len);
        let inner_len = len_field_len(any_len)
            + len_field_len(version_text.len())
            + len_field_len(name_len)
            + draft.aliases.iter().map(|alias| len_field_len(alias.as_str().len())).sum::<usize>();
        let mut frame = BytesMut::with_capacity(len_field_len(inner_len));
        put_len_header(&mut frame, 2, inner_len);
        let any_start = frame.len();
        put_len_header(&mut frame, 2, any_len);
        put_len_field(&mut frame, 1, any_url.as_bytes());
        put_len_header(&mut frame, 2, value_len);
        let body_start = frame.len();
        let body_end = body_start + draft.body_len();
        let any_end = body_end + suffix.len();
        let extra = (extra != Extra::default()).then(|| Box::new(extra));
        let (any, body) =
            (offset(any_start)..offset(any_end), offset(body_start)..offset(body_end));
        if !draft.is_opened() {
            return Self { name: name.clone(), version, frame: Bytes::new(), any, body, extra };
        }
        frame.extend_from_slice(&draft.body);
        frame.extend_from_slice(&suffix);
        put_len_field(&mut frame, 1, version_text.as_bytes());
        match &variant {
            None => put_len_field(&mut frame, 3, name.as_str().as_bytes()),
            Some(encoded) => put_len_field(&mut frame, 8, encoded),
        }
        for alias in &draft.aliases {
            put_len_field(&mut frame, 4, alias.as_str().as_bytes());
        }
        Self { name: name.clone(), version, frame: frame.freeze(), any, body, extra }
    }

    /// Returns the resource with its opened body, for a sealed resource. The version stays the same.
    #[must_use]
    pub fn opened(&self, type_url: &TypeUrl, body: Bytes) -> Self {
        Self::with_version(&ResourceDraft { body, ..self.to_draft(type_url) }, self.version)
    }

    /// Returns the resource in another sealed form of the same body. Everything else stays the same.
    pub(crate) fn resealed(&self, sealed: Sealed) -> Self {
        let mut extra = self.extra.as_deref().cloned().unwrap_or_default();
        extra.sealed = Some(Box::new(sealed));
        Self { extra: Some(Box::new(extra)), ..self.clone() }
    }

    /// Returns the sealed form of the body; `None` if the resource is not sealed.
    #[must_use]
    pub fn sealed(&self) -> Option<&Sealed> {
        self.extra.as_ref()?.sealed.as_deref()
    }

    /// Returns whether the body is readable. A sealed body is not until the replica has opened it.
    #[must_use]
    pub fn is_opened(&self) -> bool {
        !self.frame.is_empty()
    }

    fn to_draft(&self, type_url: &TypeUrl) -> ResourceDraft {
        ResourceDraft {
            key: ResourceKey { type_url: type_url.clone(), name: self.name.clone() },
            body: self.body().unwrap_or_default(),
            sealed: self.sealed().cloned(),
            aliases: self.aliases().to_vec(),
            ttl: self.ttl(),
            labels: self.labels().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            children: self.children().to_vec(),
        }
    }

    /// Replaces the revision in the version of a resource whose bytes nobody else holds. Returns whether that
    /// was possible: the number of digits must stay the same.
    pub(crate) fn set_revision(&mut self, revision: Revision) -> bool {
        let digits = self.version.revision.n_digits();
        if revision.n_digits() != digits {
            return false;
        }
        if !self.is_opened() {
            // There are no bytes yet. Opening the resource writes them with the version that it has then.
            self.version.revision = revision;
            return true;
        }
        let mut frame = match std::mem::take(&mut self.frame).try_into_mut() {
            Ok(frame) => frame,
            Err(shared) => {
                self.frame = shared;
                return false;
            }
        };
        let any_end = self.any.end as usize;
        // The version follows the `Any`, after its key and its length, which is less than 128.
        revision.write_digits(&mut frame[any_end + 2..][..digits]);
        if any_end > self.body.end as usize {
            // The suffix of a collection ends with the version.
            let at = any_end - self.version.to_string().len();
            revision.write_digits(&mut frame[at..][..digits]);
        }
        self.version.revision = revision;
        self.frame = frame.freeze();
        true
    }

    /// Returns the bytes of an opened resource. Callers send resources of views without unopened ones.
    fn frame(&self) -> &Bytes {
        assert!(self.is_opened(), "a sealed resource is encoded for a client before it is opened");
        &self.frame
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &ResourceName {
        &self.name
    }

    /// Returns the published name: that of a variant without its constraints.
    #[must_use]
    pub fn base_name(&self) -> &ResourceName {
        self.variant().map_or(&self.name, |variant| &variant.base)
    }

    /// Returns the constraints of a variant; `None` for any other resource.
    #[must_use]
    pub fn constraints(&self) -> Option<&Constraints> {
        self.variant().map(|variant| &variant.constraints)
    }

    /// Returns whether the resource is for clients with these parameters (DYN-03).
    #[must_use]
    pub fn matches(&self, parameters: &DynamicParameters) -> bool {
        self.constraints().is_none_or(|constraints| constraints.matches(parameters))
    }

    fn variant(&self) -> Option<&Variant> {
        self.extra.as_ref()?.variant.as_deref()
    }

    /// Returns the version that clients see.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the encoded message as its author published it; `None` if it is sealed and this replica has not
    /// opened it. The only access to the body.
    #[must_use]
    pub fn body(&self) -> Option<Bytes> {
        let body = self.body.start as usize..self.body.end as usize;
        self.is_opened().then(|| self.frame.slice(body))
    }

    /// Returns the body of an opened resource, for an encoding of its own.
    #[must_use]
    pub fn sent_body(&self) -> Bytes {
        self.frame().slice(self.body.start as usize..self.body.end as usize)
    }

    /// Returns the length of [`Resource::body`] in bytes.
    #[must_use]
    pub fn body_len(&self) -> usize {
        (self.body.end - self.body.start) as usize
    }

    /// Returns the `resources` field of a `DeltaDiscoveryResponse` with this resource, including key
    /// and length.
    #[must_use]
    pub fn delta_field(&self) -> Bytes {
        self.frame().clone()
    }

    /// Returns the content of [`Resource::delta_field`]: an encoded
    /// `envoy.service.discovery.v3.Resource` without its lifetime. A caller that adds further fields
    /// writes key and length itself.
    #[must_use]
    pub fn delta_content(&self) -> Bytes {
        self.frame().slice(self.any.start as usize..)
    }

    /// Returns the `resources` field of a `DiscoveryResponse` with this resource, including key and
    /// length.
    #[must_use]
    pub fn sotw_field(&self) -> Bytes {
        self.frame().slice(self.any.start as usize..self.any.end as usize)
    }

    /// Returns the length of [`Resource::delta_field`] in bytes.
    #[must_use]
    pub fn delta_len(&self) -> usize {
        self.frame().len()
    }

    /// Returns the length of [`Resource::sotw_field`] in bytes.
    #[must_use]
    pub fn sotw_len(&self) -> usize {
        self.any.len()
    }

    /// Returns the alternative names by which clients can request the resource.
    #[must_use]
    pub fn aliases(&self) -> &[ResourceName] {
        self.extra.as_ref().map_or(&[], |extra| &extra.aliases)
    }

    /// Returns the lifetime of the resource at the client, if it has one.
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        self.extra.as_ref().and_then(|extra| extra.ttl)
    }

    /// Returns the time after which a client marks these endpoints as stale, unless it receives them again
    /// (CLI-E-34).
    #[must_use]
    pub fn stale_after(&self) -> Option<Duration> {
        self.extra.as_ref().and_then(|extra| extra.stale_after)
    }

    /// Returns digests of the keys by which the resource excludes others of its type at a client. `None` if the
    /// content is not known: the body is empty, or is sealed and not opened.
    #[must_use]
    pub fn exclusive_keys(&self, by: Exclusion) -> Option<Vec<u64>> {
        let body = self.body().filter(|body| !body.is_empty())?;
        Some(exclusive_keys(by, self.base_name().as_str(), &body))
    }

    /// Iterates over the labels for people and selectors.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.extra
            .iter()
            .flat_map(|extra| extra.labels.iter())
            .map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Returns the resources that a client requests because of this one.
    #[must_use]
    pub fn children(&self) -> &[ResourceKey] {
        self.extra.as_ref().map_or(&[], |extra| &extra.children)
    }

    /// Compares this resource with a draft that would replace it.
    ///
    /// A change of the lifetime alone makes a new version, so the resource is sent in full. TTL-09
    /// would also allow a heartbeat with the new lifetime. However, a heartbeat has the version that
    /// the client holds (TTL-03), and versions are how sessions and replicas detect a change. A
    /// lifetime that ends needs the full resource in any case.
    ///
    /// `built` is the resource of the draft if it was built already.
    pub(crate) fn compare(&self, draft: &ResourceDraft, built: Option<&Self>) -> Difference {
        let none = Extra::default();
        let extra = self.extra.as_deref().unwrap_or(&none);
        // Nobody but the holders of keys could compare a plain body with a sealed one.
        let has_same_body = match (&extra.sealed, &draft.sealed) {
            (None, None) => {
                self.frame[self.body.start as usize..self.body.end as usize] == draft.body[..]
            }
            (Some(old), Some(new)) => old.mac == new.mac,
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !has_same_body {
            return Difference::Wire;
        }
        let made;
        let new = match built {
            Some(built) => built.extra.as_deref().unwrap_or(&none),
            None => {
                made = Extra::of(draft);
                &made
            }
        };
        if extra.aliases != new.aliases || extra.ttl != new.ttl {
            Difference::Wire
        } else if extra.labels != new.labels || extra.children != new.children {
            // The other properties follow from the name and the body. A sealed form of the same body is kept.
            Difference::Labels
        } else {
            Difference::None
        }
    }
}

/// The difference between a draft and the resource that it would replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Difference {
    /// There is no difference, so nothing is written.
    None,
    /// Only parts that clients never see differ: the resource keeps its version.
    Labels,
    /// Parts that clients see differ: the resource gets a new version.
    Wire,
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bodies may contain secrets and are therefore omitted.
        f.debug_struct("Resource")
            .field("name", &self.name)
            .field("version", &format_args!("{}", self.version))
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Compares name and version only: the version identifies the content.
impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.name == other.name
    }
}
impl Eq for Resource {}

/// Encodes the field `metadata` of an `istio.mcp.v1alpha1.Resource` with a version and nothing else. After the body of
/// a resource, it overrides the version of the author.
#[must_use]
pub fn mcp_metadata(version: &str) -> BytesMut {
    let mut suffix = BytesMut::new();
    put_len_header(&mut suffix, 1, len_field_len(version.len()));
    put_len_field(&mut suffix, 3, version.as_bytes());
    suffix
}

/// Converts an offset to the 32 bits in which it is stored. Admission and the log reject a
/// transaction long before a body reaches 4 GiB.
fn offset(n: usize) -> u32 {
    u32::try_from(n).expect("a resource is smaller than 4 GiB: admission and the log limit it")
}

/// A reference-counted resource.
pub(crate) type Shared = Arc<Resource>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataKeyId;

    fn draft() -> ResourceDraft {
        ResourceDraft::new(
            ResourceKey {
                type_url: TypeUrl::from_static("type.googleapis.com/x.Y"),
                name: ResourceName::new("n").unwrap(),
            },
            Bytes::from_static(b"body"),
        )
    }

    /// DYN-02: resources without constraints pay one pointer for the identity of variants.
    #[test]
    fn identity_of_a_variant_takes_one_pointer_of_a_resource() {
        let rest = 2 * size_of::<Option<Duration>>() + 3 * size_of::<Box<[ResourceName]>>();
        let sealed = size_of::<usize>();
        assert_eq!(size_of::<Extra>(), rest + sealed + size_of::<usize>());
    }

    #[test]
    fn sotw_field_is_slice_of_delta_field() {
        let mut draft = draft();
        draft.aliases = vec![ResourceName::new("other").unwrap()];
        let resource = Resource::publish(&draft, Revision(7));
        let any = [b"\x0a\x17type.googleapis.com/x.Y".as_slice(), b"\x12\x04body"].concat();
        let sotw = [&[0x12, u8::try_from(any.len()).unwrap()], any.as_slice()].concat();
        assert_eq!(resource.sotw_field(), sotw);
        let version = resource.version().to_string();
        let inner = [
            sotw.as_slice(),
            &[0x0a, u8::try_from(version.len()).unwrap()],
            version.as_bytes(),
            b"\x1a\x01n",
            b"\x22\x05other",
        ]
        .concat();
        let delta = [&[0x12, u8::try_from(inner.len()).unwrap()], inner.as_slice()].concat();
        assert_eq!(resource.delta_field(), delta);
        assert_eq!(resource.delta_content(), inner);
        assert_eq!((resource.sotw_len(), resource.delta_len()), (sotw.len(), delta.len()));
        assert_eq!(resource.body().unwrap(), "body");
        assert_eq!(resource.compare(&draft, None), Difference::None);
    }

    #[test]
    fn tag_depends_on_wire_content_only() {
        let base = Resource::publish(&draft(), Revision(1)).version().tag;
        let tag = |change: fn(&mut ResourceDraft)| {
            let mut draft = draft();
            change(&mut draft);
            Resource::publish(&draft, Revision(2)).version().tag
        };
        assert_eq!(base, tag(|d| drop(d.labels.insert("a".into(), "b".into()))));
        assert_ne!(base, tag(|d| d.body = Bytes::from_static(b"other")));
        assert_ne!(base, tag(|d| d.ttl = Some(Duration::from_secs(1))));
        assert_ne!(base, tag(|d| d.aliases.push(ResourceName::new("a").unwrap())));
    }

    #[test]
    fn resource_with_a_new_revision_equals_one_that_was_published_at_it() {
        for url in ["type.googleapis.com/x.Y", "istio/networking/v1alpha3/gateways"] {
            let mut draft = draft();
            draft.key.type_url = TypeUrl::from_static(url);
            draft.aliases = vec![ResourceName::new("other").unwrap()];
            let mut resource = Resource::publish(&draft, Revision(36));
            assert!(resource.set_revision(Revision(1295)));
            let published = Resource::publish(&draft, Revision(1295));
            assert_eq!(resource, published);
            assert_eq!(resource.delta_field(), published.delta_field());
            assert!(!resource.set_revision(Revision(1296)), "another number of digits");
            let held = resource.delta_field();
            assert!(!resource.set_revision(Revision(40)), "somebody else holds the bytes");
            assert_eq!(resource.delta_field(), held);
        }
    }

    #[test]
    fn unopened_resource_with_a_new_revision_opens_with_it() {
        for url in ["type.googleapis.com/x.Y", "istio/networking/v1alpha3/gateways"] {
            let plain = draft();
            let key = ResourceKey { type_url: TypeUrl::from_static(url), ..plain.key };
            let bytes = Bytes::from_static(b"sealed");
            let sealed = Sealed { key: DataKeyId(1), mac: [1; 32], body_len: 4, bytes };
            let draft = ResourceDraft {
                sealed: Some(sealed),
                ..ResourceDraft::new(key.clone(), Bytes::new())
            };
            let mut resource = Resource::publish(&draft, Revision(36));
            assert!(resource.set_revision(Revision(1295)));
            assert!(!resource.set_revision(Revision(1296)), "another number of digits");
            let opened = resource.opened(&key.type_url, plain.body.clone());
            let draft = ResourceDraft { body: plain.body, ..draft };
            let published = Resource::publish(&draft, Revision(1295));
            assert_eq!(opened, published);
            assert_eq!(opened.delta_field(), published.delta_field());
        }
    }

    /// Clients keep versions, which contain the tag, across upgrades of the server.
    #[test]
    fn tag_is_stable_between_releases() {
        assert_eq!(Resource::publish(&draft(), Revision(7)).version().to_string(), "7-abde0be4");
    }
}
