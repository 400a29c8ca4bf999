use chancery_admission::{Manifest, Options, Prune, admit};
use chancery_model::{Incarnation, Outcome};

use super::*;

struct World {
    state: State,
    validation: Validation,
}

impl World {
    /// Stores resources in the scope `edge`.
    fn with(resources: &str) -> Self {
        let state = State::new(Incarnation(1));
        let validation = Validation::of(ValidationMode::Enforce);
        let mut world = Self { state, validation };
        world.state = world.apply("edge", resources).state;
        world
    }

    fn apply(&self, scope: &str, resources: &str) -> Applied {
        let content = format!("resources:\n{resources}");
        let manifest = Manifest { file: "a.yaml".to_owned(), content };
        let options =
            Options { prune: Prune::Keep, ..Options::new(ScopeName::new(scope).unwrap()) };
        let applied = self.state.apply(&admit(&[manifest], &options).unwrap());
        assert!(matches!(applied.outcome, Outcome::Committed(_)), "{:?}", applied.outcome);
        applied
    }

    /// Returns the findings about a write to a scope, without the fixes.
    fn writes_to(&self, scope: &str, resources: &str) -> Vec<String> {
        let applied = self.apply(scope, resources);
        let index = ReferenceIndex::of(&self.state).advanced(&applied.state);
        let needs_index = |change| changes_secret(&self.state, change, &self.validation);
        let index = applied.changes.iter().any(needs_index).then_some(index);
        let found = replaced(&self.state, &applied, index.as_ref(), &self.validation);
        let text = |finding: &Finding| {
            let Problem { field_path, rule, id, .. } = &finding.problem;
            let subject = finding.subject.as_ref().unwrap();
            let rule = rule.split(';').next().unwrap();
            format!("{} {}: {rule} [{id}]", subject.1.name, field_path.as_deref().unwrap())
        };
        found.iter().map(text).collect()
    }

    fn writes(&self, resources: &str) -> Vec<String> {
        self.writes_to("edge", resources)
    }
}

const NONE: [&str; 0] = [];

fn listener(ports: &[u16], more: &str) -> String {
    let at = |port| format!("{{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}");
    let others: Vec<String> =
        ports[1..].iter().map(|port| format!("{{address: {}}}", at(port))).collect();
    format!(
        "- {{'@type': {}, name: l, address: {}, additional_addresses: [{}], filter_chains: [{{}}]{more}}}\n",
        types::LISTENER,
        at(&ports[0]),
        others.join(", ")
    )
}

/// The verdicts are those of Envoy 1.40.
#[test]
fn listener_that_cannot_share_its_port_keeps_all_or_none_of_its_addresses() {
    let fixed = ", enable_reuse_port: false";
    let world = World::with(&listener(&[80, 81], fixed));
    let expected =
        ["l address: keeps 127.0.0.1:80, and other addresses change [listener.fixed_address]"];
    assert_eq!(world.writes(&listener(&[80, 82], fixed)), expected);
    assert_eq!(world.writes(&listener(&[82, 80], fixed)), expected);
    assert_eq!(world.writes(&listener(&[80], fixed)), expected);
    assert_eq!(world.writes(&listener(&[80, 81, 82], fixed)), expected);
    for (ports, more) in [(&[81, 80], ""), (&[82, 83], ""), (&[80, 81], ", stat_prefix: x")] {
        assert_eq!(world.writes(&listener(ports, &format!("{fixed}{more}"))), NONE);
    }
    let shared = World::with(&listener(&[80, 81], ""));
    assert_eq!(shared.writes(&listener(&[80, 82], "")), NONE);
    assert_eq!(shared.writes(&listener(&[80, 82], ", enable_reuse_port: true")), NONE);
    let expected =
        ["l enable_reuse_port: differs from that of the stored listener [listener.fixed_address]"];
    assert_eq!(shared.writes(&listener(&[80, 81], fixed)), expected);
    assert_eq!(world.writes(&listener(&[80, 81], "")), expected);
}

fn scopes(keys: &[(&str, &str)]) -> String {
    let one = |(name, key): &(&str, &str)| {
        format!(
            "- {{'@type': {}, name: {name}, route_configuration_name: r, key: {{fragments: [{{string_key: '{key}'}}]}}}}\n",
            types::SCOPED_ROUTE
        )
    };
    keys.iter().map(one).collect()
}

/// Envoy 1.40 loses one key of a swap, also if the write has further scopes. A chain is applied in its order.
#[test]
fn scoped_routes_that_exchange_their_keys_are_a_warning() {
    let world = World::with(&scopes(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]));
    let expected = |names: &str| {
        vec![format!(
            "a key: {names} exchange their keys in one write [scoped_route.exchanged_key]"
        )]
    };
    assert_eq!(world.writes(&scopes(&[("a", "2"), ("b", "1")])), expected("\"a\", \"b\""));
    let circle = scopes(&[("a", "2"), ("b", "3"), ("c", "1"), ("d", "5")]);
    assert_eq!(world.writes(&circle), expected("\"a\", \"b\", \"c\""));
    assert_eq!(world.writes(&scopes(&[("a", "2"), ("b", "5")])), NONE);
    assert_eq!(world.writes(&scopes(&[("a", "5"), ("e", "1")])), NONE);
    assert_eq!(world.writes(&scopes(&[("a", "1"), ("b", "2")])), NONE);
    let two = scopes(&[("a", "2"), ("b", "1"), ("c", "4"), ("d", "3")]);
    assert_eq!(world.writes(&two).len(), 2);
}

const ADS: &str = "sds_config: {ads: {}, resource_api_version: V3}";

fn user(field: &str) -> String {
    let context =
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    format!(
        "- {{'@type': {}, name: l, address: {{socket_address: {{address: 127.0.0.1, port_value: 80}}}}, filter_chains: \
         [{{transport_socket: {{name: tls, typed_config: {{'@type': {context}, common_tls_context: {{{field}}}}}}}}}]}}\n",
        types::LISTENER
    )
}

fn secret(content: &str) -> String {
    format!("- {{'@type': {}, name: s, {content}}}\n", types::SECRET)
}

/// Envoy acknowledges the secret of another kind, and verifies no client.
#[test]
fn secret_of_another_kind_than_its_referrer_needs_is_a_warning() {
    let authority = secret("validation_context: {}");
    let generic = secret("generic_secret: {secret: {inline_string: x}}");
    let verified = user(&format!("validation_context_sds_secret_config: {{name: s, {ADS}}}"));
    let combined = user(&format!(
        "combined_validation_context: {{default_validation_context: {{}}, validation_context_sds_secret_config: {{name: s, {ADS}}}}}"
    ));
    for user in [verified, combined] {
        let world = World::with(&format!("{user}{authority}"));
        assert_eq!(
            world.writes(&generic),
            [
                "s generic_secret: has generic_secret, but Listener \"l\" in scope \"edge\" needs validation_context [secret.kind]"
            ]
        );
        assert_eq!(
            world.writes(&secret("validation_context: {allow_expired_certificate: true}")),
            NONE
        );
        // No view shows the other scope together with the listener.
        assert_eq!(world.writes_to("other", &generic), NONE);
        let world = World::with(&generic);
        let found = world.writes(&user);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains(
                "refers to Secret \"s\", which has generic_secret, not validation_context"
            ),
            "{found:?}"
        );
    }
    let served = user(&format!("tls_certificate_sds_secret_configs: [{{name: s, {ADS}}}]"));
    let world = World::with(&served);
    assert_eq!(world.writes(&secret("tls_certificate: {}")), NONE);
    assert_eq!(world.writes(&authority).len(), 1);
}
