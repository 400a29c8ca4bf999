//! The section `[mcp]`: the sources of MCP from which this cluster takes over resources, and the sinks to which it
//! connects.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use chancery_mcp::{Direction, Guard, Remote, Settings};
use chancery_model::{ScopeName, TypeUrl};
use chancery_store::check_address;
use chancery_tls::{ClientCertificates, MinVersion, TlsConfig, TlsPort, check_server_name};

use super::{
    bounds::{GIB, KIB, bytes, tables},
    entry::entry,
    section::section,
    units::ByteSize,
};

section! {
    /// The section `[mcp]`.
    pub struct Mcp {
        /// The MCP sources whose collections the leader stores in scopes. All replicas need the
        /// same sources.
        sources: Vec<Source>, tables(Source::FIELDS);
        /// The addresses (HOST:PORT) of MCP sinks to which the leader connects as a source. All
        /// replicas need the same list.
        sinks: Vec<String>;
        /// Whether the first message to a sink is a trigger: the collection $triggerCollection
        /// without resources. Without a first message, sinks of older Istio releases send nothing.
        sinks_trigger: bool = true;
        /// Whether unencrypted connections to sources and sinks may use addresses other than
        /// loopback.
        allow_plaintext: bool;
        /// The PEM file with the certificate for connections to MCP sources and sinks, whoever
        /// opens them, and its intermediate certificates. With tls_cert, tls_key and tls_ca, all
        /// these connections use TLS.
        tls_cert: String;
        /// The PEM file with the private key of the certificate.
        tls_key: String;
        /// The PEM file with the CAs whose certificates sources and sinks need. The certificate of
        /// a remote address also has to name its host.
        tls_ca: String;
        /// A PEM file with revocation lists of the CAs in tls_ca, for the certificates of sources
        /// that connect.
        tls_crl: String;
        /// The maximum size of a message of a source. A collection in one message must fit.
        message_bytes_max: ByteSize = ByteSize::mib(64), bytes(64 * KIB, GIB);
        // The maximum number of connections of a port for a source, of which only one has a stream.
        // `serve` lowers it if the process may open few files.
        internal connections_max: usize = 16;
    }
}

entry! {
    /// An entry of `sources`.
    pub struct Source {
        /// The name of the source, which the authors of its writes contain.
        name: String;
        /// The address (HOST:PORT) to which the leader connects.
        address: Option<String> = None;
        /// The address to which the source connects, instead of `address`.
        listen: Option<SocketAddr> = None;
        /// With `listen`, the certificate of the source needs one of these SPIFFE IDs or DNS names.
        peer_names: Vec<String> = Vec::new();
        /// The scope of the resources.
        scope: String;
        /// The collections that the source provides.
        collections: Vec<String>;
        /// Whether the source may send incremental responses.
        incremental: bool = true;
        /// A message that deletes more than this percentage of a collection is held until it is confirmed.
        deletion_percent: u32 = Guard::default().deletion_percent;
        /// The number of resources of a collection from which deletions are held.
        deletion_resources_min: usize = Guard::default().deletion_resources_min;
    }
}

/// The start of a SPIFFE ID.
const SPIFFE: &str = "spiffe://";
/// The maximum length of the name of a source. The author of its writes contains it.
const NAME_BYTES_MAX: usize = 64;

impl Mcp {
    /// Returns the key and the rule of each value that is not valid.
    pub(crate) fn rules(&self) -> Vec<(&'static str, String)> {
        let (mut broken, mut names, mut owned) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let mut listening = BTreeSet::new();
        for source in &self.sources {
            broken.extend(source.rules(self.protection()));
            if !names.insert(&source.name) {
                broken.push(format!("two sources have the name {:?}", source.name));
            }
            if let Some(listen) = source.listen
                && !listening.insert(listen)
            {
                let name = &source.name;
                broken.push(format!(
                    "source {name:?}: listen: another source has {listen}; each source needs its own port"
                ));
            }
            for collection in &source.collections {
                if !owned.insert((&source.scope, collection)) {
                    let scope = &source.scope;
                    let name = &source.name;
                    broken.push(format!(
                        "source {name:?}: the collection {collection:?} in the scope {scope:?} is repeated; each \
                         collection of a scope has one source"
                    ));
                }
            }
        }
        let of_sources = broken.into_iter().map(|rule| ("sources", rule));
        let of_sinks = self.sink_rules().into_iter().map(|rule| ("sinks", rule));
        of_sources.chain(of_sinks).chain(self.tls_rules()).collect()
    }

    fn protection(&self) -> Protection {
        match self.tls() {
            Some(_) => Protection::Tls,
            None if self.allow_plaintext => Protection::TrustedNetwork,
            None => Protection::None,
        }
    }

    /// Returns the files for TLS, or `None` without TLS.
    pub fn tls(&self) -> Option<TlsConfig> {
        let files = self.tls_files();
        let all = [&files.cert, &files.key, &files.ca];
        all.iter().all(|path| !path.as_os_str().is_empty()).then_some(files)
    }

    /// Returns the files for TLS. A path that is not set is empty.
    pub(crate) fn tls_files(&self) -> TlsConfig {
        TlsConfig {
            port: TlsPort::Mcp,
            cert: PathBuf::from(&self.tls_cert),
            key: PathBuf::from(&self.tls_key),
            ca: PathBuf::from(&self.tls_ca),
            crl: PathBuf::from(&self.tls_crl),
            min_version: MinVersion::Tls12,
            clients: ClientCertificates::default(),
        }
    }

    fn tls_rules(&self) -> impl Iterator<Item = (&'static str, String)> {
        let all =
            [("tls_cert", &self.tls_cert), ("tls_key", &self.tls_key), ("tls_ca", &self.tls_ca)];
        let is_set = all.iter().any(|(_, path)| !path.is_empty());
        let missing = all.into_iter().filter(move |(_, path)| is_set && path.is_empty());
        let missing = missing.map(|(key, _)| {
            let rule =
                "is missing; set all of mcp.tls_cert, mcp.tls_key and mcp.tls_ca, or none of them";
            (key, rule.to_owned())
        });
        let useless = (!is_set && !self.tls_crl.is_empty()).then(|| {
            ("tls_crl", "has no effect without mcp.tls_ca; set mcp.tls_ca too".to_owned())
        });
        missing.chain(useless)
    }

    /// Returns the names and the addresses of the sources that connect.
    pub fn listening(&self) -> impl Iterator<Item = (&str, SocketAddr)> {
        self.sources.iter().filter_map(|source| Some((source.name.as_str(), source.listen?)))
    }

    fn sink_rules(&self) -> Vec<String> {
        let rule = |(index, address): (usize, &String)| {
            if self.sinks[..index].contains(address) {
                Some(format!("{address:?} is listed twice"))
            } else {
                address_rule(address, self.protection())
            }
        };
        self.sinks.iter().enumerate().filter_map(rule).collect()
    }

    /// Returns the sources. The rules of the configuration exclude values that are not valid.
    pub(crate) fn remotes(&self, sink_id: &str) -> Vec<Remote> {
        let remote = |source: &Source| {
            let collections = source.collections.iter();
            Some(Remote {
                direction: match (&source.address, source.listen) {
                    (Some(address), _) => Direction::Connect(address.clone()),
                    (None, listen) => Direction::Listen(listen?),
                },
                peer_names: source.peer_names.iter().map(|name| own_spelling(name)).collect(),
                message_bytes_max: self.message_bytes_max.size(),
                sink: Settings {
                    source: source.name.clone(),
                    sink_id: sink_id.to_owned(),
                    scope: ScopeName::new(&source.scope).ok()?,
                    collections: collections.filter_map(|name| TypeUrl::new(name).ok()).collect(),
                    incremental: source.incremental,
                    guard: Guard {
                        deletion_percent: source.deletion_percent,
                        deletion_resources_min: source.deletion_resources_min,
                    },
                },
            })
        };
        self.sources.iter().filter_map(remote).collect()
    }
}

/// The protection of the connections against other parties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protection {
    None,
    /// No TLS, in a network that the operator trusts.
    TrustedNetwork,
    Tls,
}

impl Source {
    fn rules(&self, protection: Protection) -> Vec<String> {
        let mut broken = Vec::new();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_name = !self.name.is_empty() && self.name.len() <= NAME_BYTES_MAX;
        if !is_name || !self.name.chars().all(allowed) {
            broken.push(format!(
                "name must have 1 to {NAME_BYTES_MAX} letters, digits, '.', '-' and '_'"
            ));
        }
        match (&self.address, self.listen) {
            (Some(address), None) => {
                let rule = address_rule(address, protection);
                broken.extend(rule.map(|rule| format!("address: {rule}")));
            }
            (None, Some(listen)) => {
                let rule = listen_rule(listen, protection);
                broken.extend(rule.map(|rule| format!("listen: {rule}")));
            }
            _ => broken.push(
                "exactly one of address (Chancery connects) and listen (the source connects) is required".to_owned(),
            ),
        }
        broken.extend(self.peer_names_rules(protection));
        broken.extend(ScopeName::new(&self.scope).err().map(|error| format!("scope: {error}")));
        if self.collections.is_empty() {
            broken.push("collections must name at least one collection".to_owned());
        }
        let is_collection = |name: &str| TypeUrl::new(name).is_ok_and(|url| url.is_collection());
        let wrong = self.collections.iter().filter(|name| !is_collection(name));
        broken.extend(wrong.map(|name| {
            format!(
                "collections: {name:?} is not the name of a collection, such as \
                 istio/networking/v1alpha3/virtualservices"
            )
        }));
        if !(1..=100).contains(&self.deletion_percent) {
            broken.push("deletion_percent must be from 1 to 100".to_owned());
        }
        if !(1..=100_000_000).contains(&self.deletion_resources_min) {
            broken.push("deletion_resources_min must be from 1 to 100000000".to_owned());
        }
        broken.iter().map(|rule| format!("source {:?}: {rule}", self.name)).collect()
    }

    fn peer_names_rules(&self, protection: Protection) -> Vec<String> {
        let mut broken = Vec::new();
        if self.peer_names.is_empty() {
            // With TLS, any certificate of the CAs would do: also that of a proxy, if the CAs sign for proxies.
            let listen = self.listen.filter(|listen| !listen.ip().is_loopback());
            if let Some(listen) = listen.filter(|_| protection == Protection::Tls) {
                broken.push(format!(
                    "peer_names: is missing, and {listen} is not a loopback address: every certificate of mcp.tls_ca \
                     could write the collections; set the SPIFFE IDs or DNS names of the source"
                ));
            }
            return broken;
        }
        if self.listen.is_none() {
            broken.push(
                "peer_names: needs listen; a source with an address is checked by its host"
                    .to_owned(),
            );
        }
        if protection != Protection::Tls {
            broken.push("peer_names: needs mcp.tls_cert, mcp.tls_key and mcp.tls_ca".to_owned());
        }
        let is_name = |name: &str| {
            name.starts_with(SPIFFE)
                || (name.parse::<IpAddr>().is_err() && check_server_name(name).is_ok())
        };
        let wrong = self.peer_names.iter().filter(|name| !is_name(name));
        broken.extend(wrong.map(|name| {
            format!("peer_names: {name:?} is neither a SPIFFE ID (spiffe://...) nor a DNS name")
        }));
        broken
    }
}

/// Returns a name of a certificate as the certificate spells it: DNS names are in lower case.
fn own_spelling(name: &str) -> String {
    if name.starts_with(SPIFFE) { name.to_owned() } else { name.to_ascii_lowercase() }
}

/// Returns the rule that the address of another party breaks.
fn address_rule(address: &str, protection: Protection) -> Option<String> {
    match check_address(address) {
        Err(error) => Some(error.to_string()),
        Ok(()) if protection == Protection::None && !is_loopback(address) => Some(format!(
            "{address:?} is not a loopback address, and the connection is not encrypted; set mcp.tls_cert, mcp.tls_key \
             and mcp.tls_ca, or mcp.allow_plaintext = true if the network is trusted"
        )),
        Ok(()) => None,
    }
}

/// Returns the rule that the address for a source breaks.
fn listen_rule(listen: SocketAddr, protection: Protection) -> Option<String> {
    if listen.port() == 0 {
        return Some("the port must not be 0".to_owned());
    }
    (protection == Protection::None && !listen.ip().is_loopback()).then(|| {
        format!(
            "{listen} is not a loopback address, and everyone who can reach the port can write the collections; set \
             mcp.tls_cert, mcp.tls_key and mcp.tls_ca, or mcp.allow_plaintext = true if the network is trusted"
        )
    })
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(toml: &str) -> Vec<String> {
        let mcp: Mcp = toml::from_str(toml).unwrap();
        mcp.rules().into_iter().map(|(key, rule)| format!("{key}: {rule}")).collect()
    }

    /// MCP-57: the defaults accept incremental responses, and hold deletions of more than half of a collection.
    #[test]
    fn source_has_defaults() {
        let mcp: Mcp = toml::from_str(
            r#"sources = [{name = "pilot", address = "127.0.0.1:9", scope = "mesh", collections = ["a/b/c"]}]"#,
        )
        .unwrap();
        assert_eq!(mcp.rules(), vec![]);
        let remote = mcp.remotes("chancery").remove(0);
        assert_eq!(remote.direction, Direction::Connect("127.0.0.1:9".to_owned()));
        assert_eq!(remote.message_bytes_max, 64 << 20);
        assert!(remote.sink.incremental);
        assert_eq!(remote.sink.guard, Guard::default());
        assert_eq!(remote.sink.collections[0].as_str(), "a/b/c");
    }

    #[test]
    fn wrong_value_of_a_source_is_reported_with_its_name() {
        let source = |name: &str, rest: &str| {
            format!(
                "{{name = \"{name}\", address = \"localhost:9\", scope = \"mesh\", collections = [\"a/b/c\"]{rest}}}"
            )
        };
        let of = |sources: &[String]| broken(&format!("sources = [{}]", sources.join(", ")));
        assert_eq!(of(&[source("a", "")]), Vec::<String>::new());
        assert_eq!(
            of(&[source("a b", "")]),
            [r#"sources: source "a b": name must have 1 to 64 letters, digits, '.', '-' and '_'"#]
        );
        assert_eq!(of(&[source("a", ""), source("a", "")]).len(), 2);
        assert!(of(&[source("a", ""), source("b", "")])[0].contains("has one source"));
        assert!(of(&[source("a", ", deletion_percent = 0")])[0].contains("from 1 to 100"));
        let wrong = broken(
            r#"sources = [{name = "a", address = "x", scope = "", collections = ["x.y/a.B"]}]"#,
        );
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        let far = r#"sources = [{name = "a", address = "pilot:9", scope = "s", collections = ["a/b/c"]}]"#;
        assert!(broken(far)[0].contains("mcp.allow_plaintext"));
        assert!(broken(&format!("allow_plaintext = true\n{far}")).is_empty());
        let six = far.replace("pilot:9", "[::1]:9");
        assert!(broken(&six).is_empty());
    }

    /// MCP-04: a source without an address connects.
    #[test]
    fn address_for_a_source_that_connects_is_checked() {
        let of = |keys: &[&str]| {
            let source = |(index, key): (usize, &&str)| {
                format!("{{name = 'a{index}', scope = 's', collections = ['a/b/c{index}'] {key}}}")
            };
            let sources: Vec<String> = keys.iter().enumerate().map(source).collect();
            format!("sources = [{}]", sources.join(", "))
        };
        let toml = of(&[", listen = '127.0.0.1:9'", ", listen = '127.0.0.1:10'"]);
        assert!(broken(&toml).is_empty());
        let mcp: Mcp = toml::from_str(&toml).unwrap();
        let expected = Direction::Listen("127.0.0.1:9".parse().unwrap());
        assert_eq!(mcp.remotes("chancery")[0].direction, expected);
        let wrong = |keys: &[&str], text: &str| {
            let broken = broken(&of(keys));
            assert!(broken.len() == 1 && broken[0].contains(text), "{broken:?}");
        };
        wrong(&[""], "exactly one of address");
        wrong(&[", listen = '127.0.0.1:9', address = '127.0.0.1:9'"], "exactly one of address");
        wrong(&[", listen = '127.0.0.1:0'"], "must not be 0");
        wrong(&[", listen = '0.0.0.0:9'"], "mcp.allow_plaintext");
        wrong(&[", listen = '[::1]:9'", ", listen = '[::1]:9'"], "another source has [::1]:9");
        let open = format!("allow_plaintext = true\n{}", of(&[", listen = '0.0.0.0:9'"]));
        assert!(broken(&open).is_empty());
    }

    /// MCP-67: on a port that others can reach, a certificate of the CA alone does not suffice.
    #[test]
    fn port_that_others_can_reach_needs_names_of_its_source() {
        let files = "tls_cert = 'c'\ntls_key = 'k'\ntls_ca = 'a'\n";
        let of = |rest: &str| {
            let source = "name = 'a', scope = 's', collections = ['a/b/c']";
            broken(&format!("{files}sources = [{{{source}, {rest}}}]"))
        };
        assert_eq!(
            of("listen = '0.0.0.0:9'"),
            [
                "sources: source \"a\": peer_names: is missing, and 0.0.0.0:9 is not a loopback address: every certificate \
              of mcp.tls_ca could write the collections; set the SPIFFE IDs or DNS names of the source"
            ]
        );
        assert!(of("listen = '0.0.0.0:9', peer_names = ['galley.mesh']").is_empty());
        assert!(of("listen = '127.0.0.1:9'").is_empty());
    }

    /// MCP-67: the names of a certificate are checked, and need a port with TLS.
    #[test]
    fn names_of_a_peer_need_a_port_with_tls() {
        let files = "tls_cert = 'c'\ntls_key = 'k'\ntls_ca = 'a'\n";
        let source = |place: &str, names: &str| {
            format!(
                "sources = [{{name = 'a', {place} = '127.0.0.1:9', scope = 's', collections = ['a/b/c'], peer_names = \
                 [{names}]}}]"
            )
        };
        let good = format!("{files}{}", source("listen", "'spiffe://mesh/Galley', 'Galley.mesh'"));
        assert_eq!(broken(&good), Vec::<String>::new());
        let mcp: Mcp = toml::from_str(&good).unwrap();
        assert_eq!(mcp.remotes("x")[0].peer_names, ["spiffe://mesh/Galley", "galley.mesh"]);
        let wrong = |toml: &str, text: &str| {
            let broken = broken(toml);
            assert!(broken.len() == 1 && broken[0].contains(text), "{broken:?}");
        };
        wrong(&source("listen", "'galley.mesh'"), "needs mcp.tls_cert");
        wrong(&format!("{files}{}", source("address", "'galley.mesh'")), "needs listen");
        for name in ["''", "'10.0.0.1'", "'a b'", "'https://galley'"] {
            wrong(&format!("{files}{}", source("listen", name)), "neither a SPIFFE ID");
        }
    }

    #[test]
    fn addresses_of_sinks_are_checked() {
        let wrong = broken("sinks = ['sink', 'sink:0', 'localhost:1', 'localhost:1', 'far:1']");
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(wrong[2].contains("is listed twice") && wrong[3].contains("mcp.allow_plaintext"));
        assert!(broken("allow_plaintext = true\nsinks = ['[::1]:1', 'far:1']").is_empty());
    }

    #[test]
    fn files_for_tls_allow_all_addresses() {
        let files = "tls_cert = 'c'\ntls_key = 'k'\ntls_ca = 'a'\n";
        assert!(broken(&format!("{files}sinks = ['far:1']")).is_empty());
        assert!(broken(&format!("{files}tls_crl = 'l'")).is_empty());
        let useless = broken("tls_crl = 'l'");
        assert_eq!(useless, ["tls_crl: has no effect without mcp.tls_ca; set mcp.tls_ca too"]);
        let partial = broken("tls_cert = 'c'\nsinks = ['far:1']");
        assert_eq!(partial.len(), 3, "{partial:?}");
        assert!(partial[0].starts_with("sinks: ") && partial[1].starts_with("tls_key: is missing"));
    }
}
