//! Views: the parts of the state that nodes with one list of scopes see.

use std::{ops::Bound, sync::Arc};

use chancery_model::{
    Collection, DynamicParameters, Incarnation, LifetimeClass, Node, Resource, ResourceName,
    Revision, Scope, ScopeName, SecretsRight, State, StructuredName, TypeUrl, TypeVersion, base_of,
    base_of_located, is_of_node, parameters_of, types,
};
use smallvec::SmallVec;

/// The resources that nodes with one list of scopes see at one revision.
///
/// A view is immutable and cheap to clone.
#[derive(Debug, Clone)]
pub struct View {
    revision: Revision,
    floor: Revision,
    incarnation: Incarnation,
    /// The existing scopes, in the order of the list.
    scopes: SmallVec<[Arc<Scope>; 2]>,
    /// The last revision that changed the access rules.
    access_changed: Revision,
    /// The secrets that the client may receive; `None` for all.
    secrets: Option<Arc<SecretsRight>>,
    /// The node of the client, if the view belongs to a client.
    node: Option<Arc<Node>>,
}

impl View {
    /// Creates a view of `state` whose layers are the given scopes. An earlier scope shadows a later
    /// one. The cost is O(scopes · log of all scopes).
    #[must_use]
    pub fn resolve(state: &State, scopes: &[ScopeName]) -> Self {
        Self {
            revision: state.revision,
            // A node gets another list of scopes only when the assignments change. With the revision
            // of that change as lower bound, the node's versions never decrease, and no version
            // repeats with different content (SOTW-15).
            floor: state.assignments.changed,
            incarnation: state.incarnation,
            scopes: scopes.iter().filter_map(|name| state.scopes.get(name).cloned()).collect(),
            access_changed: state.access.changed,
            secrets: None,
            node: None,
        }
    }

    /// Hides the secrets that the client may not receive, as if they did not exist: they do not shadow secrets of later
    /// scopes. `None` hides nothing.
    #[must_use]
    pub fn with_secrets(self, secrets: Option<Arc<SecretsRight>>) -> Self {
        Self { secrets, ..self }
    }

    /// Sets the node of the client.
    #[must_use]
    pub fn with_node(self, node: Arc<Node>) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Returns the node of the client, if the view belongs to a client.
    #[must_use]
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// Returns the revision of the state that the view shows.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns whether the view has resources of a type that the replica has not opened, in O(scopes). Shadowed
    /// resources count, too. Nothing may be sent of such a type: its resources would look absent.
    #[must_use]
    pub fn has_unopened(&self, type_url: &TypeUrl) -> bool {
        let collections = self.scopes.iter().filter_map(|scope| scope.types.get(type_url));
        collections.into_iter().any(|collection| collection.sealed.n_unopened() > 0)
    }

    /// Returns the part of the view with one type, in O(scopes).
    #[must_use]
    pub fn of_type(&self, type_url: &TypeUrl) -> TypeView {
        let secrets = self.secrets.clone().filter(|_| types::is_secret(type_url));
        // Clients with other rights see other content of one revision. A client whose rights change gets
        // another stream, whose versions must not repeat those of the previous one (SOTW-15).
        let floor = match &secrets {
            Some(_) => self.floor.max(self.access_changed),
            None => self.floor,
        };
        TypeView {
            floor,
            incarnation: self.incarnation,
            layers: self.scopes.iter().filter_map(|s| s.types.get(type_url).cloned()).collect(),
            hidden_child: None,
            parameters: None,
            secrets,
            node: None,
        }
    }
}

/// The resources of one type in a view.
///
/// A type view is immutable and cheap to clone.
#[derive(Debug, Clone)]
pub struct TypeView {
    floor: Revision,
    incarnation: Incarnation,
    pub(crate) layers: SmallVec<[Arc<Collection>; 2]>,
    /// Resources with a child of this type are not found by name.
    hidden_child: Option<&'static str>,
    /// The dynamic parameters of plain names and of the wildcard; `None` if there are none.
    parameters: Option<Arc<DynamicParameters>>,
    /// The secrets that the client may receive; `None` for all, and for other types.
    secrets: Option<Arc<SecretsRight>>,
    /// The node whose names the view has, and no names of other nodes; `None` if names of all nodes are there.
    node: Option<Arc<Node>>,
}

/// The parameters of a client without parameters.
static NO_PARAMETERS: DynamicParameters = DynamicParameters::new();

impl TypeView {
    /// Creates a view without resources.
    #[must_use]
    pub fn empty() -> Self {
        let (floor, incarnation) = (Revision(0), Incarnation(0));
        Self {
            floor,
            incarnation,
            layers: SmallVec::new(),
            hidden_child: None,
            parameters: None,
            secrets: None,
            node: None,
        }
    }

    /// Finds a resource by name or alias, in the first layer that contains it. A name in any layer
    /// takes precedence over an alias.
    ///
    /// A name with variants means the variant that matches the parameters: those in the name of a
    /// subscription, or else those of the view (DYN-03, DYN-09). Looking up a variant by its
    /// internal name fails unless the view's parameters select it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        let found = self.find(name)?;
        let is_hidden = self.hidden_child.is_some_and(|hidden| {
            found.children().iter().any(|child| child.type_url.as_str() == hidden)
        });
        (!is_hidden).then_some(found)
    }

    /// Returns whether the client may receive a resource of a layer. Every lookup skips the other resources, so that
    /// they do not shadow those of later layers.
    fn permits(&self, layer: &Collection, resource: &Resource) -> bool {
        let secrets = self.secrets.as_ref();
        secrets.is_none_or(|secrets| secrets.permits(&layer.scope, resource.base_name()))
            && self.node.as_ref().is_none_or(|node| is_of_node(resource.base_name().as_str(), node))
    }

    /// Returns whether one of the first `n_above` layers shadows a resource of a later layer.
    fn is_shadowed(&self, n_above: usize, name: &ResourceName) -> bool {
        self.layers[..n_above].iter().any(|layer| match &self.secrets {
            None => layer.resources.contains_key(name),
            Some(_) => layer.resources.get(name).is_some_and(|one| self.permits(layer, one)),
        })
    }

    /// Returns whether some resources of the view are hidden from the client.
    #[must_use]
    pub fn has_hidden(&self) -> bool {
        self.secrets.is_some() || self.node.is_some()
    }

    /// Returns whether different nodes decide which names the views have.
    pub(crate) fn is_of_other_node(&self, other: &Self) -> bool {
        let nodes = self.node.as_ref().zip(other.node.as_ref());
        nodes.is_some_and(|(own, other)| own != other)
    }

    fn find(&self, name: &str) -> Option<&Arc<Resource>> {
        if self.has_variants() {
            return self.find_variant(name);
        }
        let of_name = |name: &str| self.by_name(name).or_else(|| self.by_alias(name));
        of_name(name).or_else(|| of_name(base_of_located(name)?))
    }

    fn find_variant(&self, name: &str) -> Option<&Arc<Resource>> {
        let base = base_of(name);
        let own = parameters_of(name);
        if base.len() < name.len() && own.is_none() {
            let variant = self.by_name(name)?;
            let shown = self.select(base, self.parameters());
            return shown.filter(|shown| Arc::ptr_eq(shown, variant));
        }
        let selected = self.select(base, own.as_ref().unwrap_or(self.parameters()));
        selected.or_else(|| self.by_alias(base))
    }

    /// Finds a resource by name or alias in the first layer with one.
    fn by_alias(&self, name: &str) -> Option<&Arc<Resource>> {
        self.layers.iter().find_map(|layer| layer.find(name).filter(|one| self.permits(layer, one)))
    }

    /// Returns the resource or variant of a name in the first layer with one that matches.
    pub(crate) fn select(
        &self,
        base: &str,
        parameters: &DynamicParameters,
    ) -> Option<&Arc<Resource>> {
        self.layers.iter().find_map(|layer| {
            let plain = layer.resources.get(base);
            let selected = plain.or_else(|| layer.variants.select(base, parameters));
            selected.filter(|one| self.permits(layer, one))
        })
    }

    /// Returns whether the view shows this resource under its own name.
    #[must_use]
    pub fn has(&self, resource: &Resource) -> bool {
        self.get(resource.name().as_str()).is_some_and(|shown| shown.name() == resource.name())
    }

    /// Returns whether any layer has variants. If not, variants cost nothing else.
    #[must_use]
    pub fn has_variants(&self) -> bool {
        self.layers.iter().any(|layer| !layer.variants.is_empty())
    }

    /// Returns the parameters of plain names and of the wildcard.
    #[must_use]
    pub fn parameters(&self) -> &DynamicParameters {
        self.parameters.as_deref().unwrap_or(&NO_PARAMETERS)
    }

    /// Sets the parameters of plain names and of the wildcard.
    #[must_use]
    pub fn with_parameters(self, parameters: Option<Arc<DynamicParameters>>) -> Self {
        Self { parameters, ..self }
    }

    /// Returns a filter for the resources of the topmost layer with their name: whether variants do not hide the
    /// resource. Without variants, the filter costs nothing.
    fn shows(&self) -> impl Fn(&Arc<Resource>) -> bool {
        let has_variants = self.has_variants();
        move |resource| {
            let shown = || self.select(resource.base_name().as_str(), self.parameters());
            !has_variants || shown().is_some_and(|shown| Arc::ptr_eq(shown, resource))
        }
    }

    /// Hides the resources with a child of this type from [`TypeView::get`].
    #[must_use]
    pub fn hiding_parents_of(self, child_type: &'static str) -> Self {
        Self { hidden_child: Some(child_type), ..self }
    }

    /// Hides the names that have parameters of another node (XDSTP-08), for a client that does not ask for them by
    /// name. A view without such names stays as it is, in O(layers).
    #[must_use]
    pub fn hiding_other_nodes(self, node: impl FnOnce() -> Option<Arc<Node>>) -> Self {
        let has_any = self.layers.iter().any(|layer| layer.n_of_nodes > 0);
        Self { node: has_any.then(node).flatten(), ..self }
    }

    /// Finds a resource by name, and ignores aliases.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Resource>> {
        self.layers
            .iter()
            .find_map(|layer| layer.resources.get(name).filter(|one| self.permits(layer, one)))
    }

    /// Returns the incarnation of the cluster.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the version of the type (`version_info`, `system_version_info`).
    #[must_use]
    pub fn version(&self) -> TypeVersion {
        let newest = self.layers.iter().max_by_key(|layer| layer.changed);
        let newest = newest.filter(|layer| layer.changed >= self.floor);
        TypeVersion {
            revision: newest.map_or(self.floor, |layer| layer.changed),
            incarnation: self.incarnation,
            label: newest.and_then(|layer| layer.label.clone()),
        }
    }

    /// Iterates over the collections of the view, the one that shadows all others first.
    pub fn layers(&self) -> impl Iterator<Item = &Collection> {
        self.layers.iter().map(|layer| &**layer)
    }

    /// Iterates over all visible resources, layer by layer and by name within each layer. The cost
    /// is O(M · layers · log M).
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let shown = self.layers.iter().enumerate().flat_map(move |(at, layer)| {
            let own = layer.resources.iter().filter(move |(name, resource)| {
                self.permits(layer, resource) && !self.is_shadowed(at, name)
            });
            own.map(|(_, resource)| resource)
        });
        let shows = self.shows();
        shown.filter(move |resource| shows(resource))
    }

    /// Returns the number of resources in all layers, in O(layers). It includes shadowed resources.
    #[must_use]
    pub fn n_resources(&self) -> usize {
        self.layers.iter().map(|layer| layer.resources.len()).sum()
    }

    /// Returns the length of the `resources` fields of a SotW response with all layers, in O(layers). It
    /// includes shadowed resources.
    #[must_use]
    pub fn sotw_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.sotw_bytes).sum()
    }

    /// Iterates over the visible members of a glob collection, layer by layer (XDSTP-15). The cost is
    /// O((members + deeper segments) · layers · log M).
    pub fn members<'a>(
        &'a self,
        glob: &'a StructuredName<'_>,
    ) -> impl Iterator<Item = &'a Arc<Resource>> {
        let shows = self.shows();
        let members = self.layers.iter().enumerate().flat_map(move |(at, layer)| {
            members_of(layer, glob).filter(move |member| {
                self.permits(layer, member) && !self.is_shadowed(at, member.name())
            })
        });
        members.filter(move |member| shows(member))
    }

    /// Returns the resource with the smallest name after `name`, or the first resource without a
    /// `name`. The cost is O(layers · log M), and more after hidden variants and secrets.
    #[must_use]
    pub fn next_after(&self, name: Option<&ResourceName>) -> Option<&Arc<Resource>> {
        let mut next = self.next_of_any(name)?;
        let shows = self.shows();
        while !shows(next) {
            next = self.next_of_any(Some(next.name()))?;
        }
        Some(next)
    }

    fn next_of_any(&self, name: Option<&ResourceName>) -> Option<&Arc<Resource>> {
        let from = (name.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut smallest: Option<(&ResourceName, &Arc<Resource>)> = None;
        for layer in &self.layers {
            let mut later = layer.resources.range::<_, ResourceName>(from);
            let next = later.find(|(_, resource)| self.permits(layer, resource));
            // For equal names, the earlier layer wins.
            if let Some(next) = next.filter(|next| smallest.is_none_or(|best| next.0 < best.0)) {
                smallest = Some(next);
            }
        }
        smallest.map(|(_, resource)| resource)
    }

    /// Iterates over the classes of lifetimes. A class of several layers occurs several times, and a
    /// class may have no visible resource. The cost is O(layers + classes).
    pub fn lifetimes(&self) -> impl Iterator<Item = LifetimeClass> {
        self.layers.iter().flat_map(|layer| layer.lifetimes.classes())
    }

    /// Iterates over the visible resources whose lifetime is of this class. The cost is
    /// O(resources of the class · layers · log M).
    pub fn with_lifetime(&self, class: LifetimeClass) -> impl Iterator<Item = &Arc<Resource>> {
        let shows = self.shows();
        let of_class = self.layers.iter().enumerate().flat_map(move |(at, layer)| {
            let own = layer.lifetimes.names(class).filter_map(|name| layer.resources.get(name));
            own.filter(move |resource| {
                self.permits(layer, resource) && !self.is_shadowed(at, resource.name())
            })
        });
        of_class.filter(move |resource| shows(resource))
    }

    /// Returns the number of resources whose lifetime is of this class, in O(layers). It includes
    /// resources that another layer shadows.
    #[must_use]
    pub fn n_with_lifetime(&self, class: LifetimeClass) -> usize {
        self.layers.iter().map(|layer| layer.lifetimes.n_names(class)).sum()
    }

    /// Returns whether both views have identical layers, which implies an empty difference. The
    /// check compares pointers and costs O(layers).
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|(a, b)| Arc::ptr_eq(a, b))
            && self.secrets == other.secrets
            && self.node == other.node
            && (!self.has_variants() || self.parameters() == other.parameters())
    }
}

/// Iterates over the members of a glob collection in one layer. Resources with the same start are
/// adjacent, because the names are sorted.
fn members_of<'a>(
    layer: &'a Collection,
    glob: &'a StructuredName<'_>,
) -> impl Iterator<Item = &'a Arc<Resource>> {
    let from =
        |start: &str| layer.resources.range::<_, str>((Bound::Included(start), Bound::Unbounded));
    let parent = glob.parent();
    let mut names = from(parent);
    std::iter::from_fn(move || {
        loop {
            let (name, resource) = names.next()?;
            let rest = name.as_str().strip_prefix(parent)?;
            if glob.has_member(name.base()) {
                return Some(resource);
            }
            // All names below a deeper segment are adjacent, too: `0` follows `/`.
            if let Some((segment, _)) = rest.split('?').next().and_then(|id| id.split_once('/')) {
                names = from(&[parent, segment, "0"].concat());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use chancery_model::{ResourceDraft, ResourceKey, Transaction, Upsert};

    use super::*;

    /// XDSTP-15: the members of a glob are the visible resources of one level. The view sorts other names
    /// between them: deeper levels, other parameters and similar parents.
    #[test]
    fn members_are_the_visible_resources_of_one_level() {
        let type_url = TypeUrl::from_static("type.googleapis.com/t.T");
        let scopes = ["upper", "lower"].map(|scope| ScopeName::new(scope).unwrap());
        let mut transaction = Transaction::default();
        let parts =
            ["p", "p!", "p-q", "p/", "p/a", "p/a!", "p/a/b", "p/a/c/d", "p/a0", "p/b/a", "p/z"];
        for (at, part) in parts.iter().enumerate() {
            for (n, parameters) in ["", "?k=/", "?k=v"].iter().enumerate() {
                for (m, scope) in scopes.iter().enumerate() {
                    if (at + n + m) % 3 == 0 {
                        continue;
                    }
                    let name = format!("xdstp://a/t.T/{part}{parameters}");
                    let name = ResourceName::new(&name).unwrap();
                    let key = ResourceKey { type_url: type_url.clone(), name };
                    let draft = ResourceDraft::new(key, bytes::Bytes::new());
                    transaction.upserts.push(Upsert { scope: scope.clone(), draft });
                }
            }
        }
        let state = State::new(Incarnation(1)).apply(&transaction).state;
        let view = View::resolve(&state, &scopes).of_type(&type_url);
        assert!(view.n_resources() > 30);
        let mut n = 0;
        for parent in ["", "p/", "p/a/", "p/a/c/", "none/"] {
            for parameters in ["", "?k=/", "?k=v"] {
                let name = format!("xdstp://a/t.T/{parent}*{parameters}");
                let glob = StructuredName::parse(&name).unwrap();
                let mut found: Vec<_> = view.members(&glob).map(|member| member.name()).collect();
                let is_member = |name: &&ResourceName| glob.has_member(name.as_str());
                let mut expected: Vec<_> =
                    view.iter().map(|one| one.name()).filter(is_member).collect();
                found.sort();
                expected.sort();
                assert_eq!(found, expected, "{name}");
                n += found.len();
            }
        }
        assert!(n > 20, "{n} members");
    }
}
