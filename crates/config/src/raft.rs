//! The section `[raft]`: this replica and the other replicas.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
};

use chancery_store::{REPLICA_ID_MAX, TlsConfig, check_address};

use super::{
    bounds::{LISTEN, MINUTE, count, time},
    loopback,
    section::section,
    units::Span,
};

section! {
    /// The section `[raft]`: this replica and the other replicas.
    pub struct Raft {
        /// The ID of this replica, unique in its cluster.
        replica_id: u64 = 1, count(1, REPLICA_ID_MAX);
        /// The address to listen on for other replicas. If it is not set and the default is in use,
        /// a cluster of one replica continues without it.
        address: SocketAddr = loopback(18002), LISTEN;
        /// Whether an unencrypted port may listen on addresses other than loopback.
        allow_plaintext: bool;
        /// The certificate file of this replica (PEM), for both sides of a connection. TLS needs
        /// tls_cert, tls_key and tls_ca; without them there is no TLS. The files are read again
        /// when they change.
        tls_cert: String;
        /// The file with the private key of tls_cert (PEM).
        tls_key: String;
        /// The file of a CA that is used for replicas only (PEM). Everybody with a certificate of
        /// this CA is accepted as a replica, and all others are rejected.
        tls_ca: String;
        /// The DNS name (subjectAltName) in the certificates of all replicas. If it is empty, each
        /// certificate contains the host of its replica's address.
        tls_server_name: String;
        /// The address at which other replicas reach this one, as HOST:PORT. If it is empty, its
        /// entry in peers, or else the address to listen on.
        advertise: String;
        /// Members of the cluster to join, as HOST:PORT; one reachable address is enough. Only for
        /// an empty data directory.
        join: Vec<String>;
        /// All replicas of a new cluster, including this one, as ID=HOST:PORT. The one with the
        /// lowest ID forms the cluster after all others have reported that they are in no cluster.
        /// The others join it. Only for an empty data directory.
        peers: Vec<String>;
        /// Whether this replica joins as a learner, which serves streams and does not become a
        /// voter by itself.
        learner: bool;
        /// A replica that starts and finds no leader within this time serves the state that it has.
        catch_up_timeout: Span = Span::seconds(10), time(100, 10 * MINUTE);
        /// The maximum number of connections from other replicas. A further connection replaces one
        /// that has sent nothing yet, or else the one that has been silent longest.
        // Each of 64 members has three connections, and more while broken connections have
        // not been detected.
        connections_max: usize = 1024, count(256, 65_536);
    }
}

/// Parses a peer: `ID=HOST:PORT`.
fn peer(text: &str) -> Result<(u64, &str), String> {
    let rule = || format!("{text:?} must be ID=HOST:PORT, such as 2=10.0.0.2:18002");
    let (id, address) = text.split_once('=').ok_or_else(rule)?;
    let id = id.trim().parse::<u64>().ok().ok_or_else(rule)?;
    if !(1..=REPLICA_ID_MAX).contains(&id) {
        return Err(format!("{text:?} must begin with a replica ID from 1 to {REPLICA_ID_MAX}"));
    }
    let address = address.trim();
    check_address(address).map_err(|error| if address.contains(':') { error } else { rule() })?;
    Ok((id, address))
}

impl Raft {
    /// Returns the valid peers by replica ID.
    pub fn peers(&self) -> BTreeMap<u64, String> {
        let peers = self.peers.iter().filter_map(|text| peer(text).ok());
        peers.map(|(id, address)| (id, address.to_owned())).collect()
    }

    /// Returns the address at which other replicas reach this one. It is empty if that is the
    /// address to listen on.
    pub fn advertised(&self) -> String {
        if self.advertise.is_empty() {
            self.peers().remove(&self.replica_id).unwrap_or_default()
        } else {
            self.advertise.clone()
        }
    }

    /// Returns whether the configuration mentions other replicas, present or future.
    pub fn names_others(&self) -> bool {
        !self.join.is_empty() || !self.peers.is_empty() || !self.advertise.is_empty()
    }

    /// Returns the files for TLS between replicas, or `None` without TLS.
    pub fn tls(&self) -> Option<TlsConfig> {
        let files = [&self.tls_cert, &self.tls_key, &self.tls_ca];
        files.iter().all(|path| !path.is_empty()).then(|| self.tls_files())
    }

    /// Returns the files for TLS between replicas. The path of a file that is not set is empty.
    pub(crate) fn tls_files(&self) -> TlsConfig {
        let [cert, key, ca] = [&self.tls_cert, &self.tls_key, &self.tls_ca].map(PathBuf::from);
        let server_name = Some(self.tls_server_name.clone()).filter(|name| !name.is_empty());
        TlsConfig { cert, key, ca, server_name }
    }

    fn tls_rules(&self, broken: &mut Vec<(&'static str, String)>) {
        let files =
            [("tls_cert", &self.tls_cert), ("tls_key", &self.tls_key), ("tls_ca", &self.tls_ca)];
        let given = files.iter().filter(|(_, path)| !path.is_empty()).count();
        if (1..files.len()).contains(&given) {
            let missing = files.iter().filter(|(_, path)| path.is_empty());
            broken.extend(missing.map(|(key, _)| {
                let rule = "is missing; set all of raft.tls_cert, raft.tls_key and raft.tls_ca, or none of them";
                (*key, rule.to_owned())
            }));
        }
        if given == 0 && !self.tls_server_name.is_empty() {
            let rule = "has no effect without raft.tls_cert, raft.tls_key and raft.tls_ca; set these keys too";
            broken.push(("tls_server_name", rule.to_owned()));
        }
    }

    /// Returns the key and the rule of each value that breaks a rule.
    pub(crate) fn rules(&self) -> Vec<(&'static str, String)> {
        let mut broken = Vec::new();
        self.tls_rules(&mut broken);
        if !self.address.ip().is_loopback() && !self.allow_plaintext && self.tls().is_none() {
            broken.push((
                "address",
                "is not a loopback address, and the port is not encrypted; set raft.tls_cert, raft.tls_key and \
                 raft.tls_ca, or raft.allow_plaintext = true (--allow-plaintext) if the network is trusted"
                    .to_owned(),
            ));
        }
        if !self.advertise.is_empty() {
            broken.extend(check_address(&self.advertise).err().map(|error| ("advertise", error)));
        }
        let nowhere = self.address.ip().is_unspecified() && self.advertised().is_empty();
        if nowhere {
            broken.push((
                "advertise",
                format!(
                    "must be the address at which other replicas reach this one, because raft.address = {:?} names no host",
                    self.address.to_string()
                ),
            ));
        }
        if self.join.iter().any(|address| address.trim().is_empty()) {
            let rule = "names an empty address; give HOST:PORT of a member, or omit raft.join to form a \
                        cluster";
            broken.push(("join", rule.to_owned()));
        }
        for address in self.join.iter().filter(|address| !address.trim().is_empty()) {
            broken.extend(check_address(address).err().map(|error| ("join", error)));
        }
        let (listens, advertised) = (self.address.to_string(), self.advertised());
        let is_own = |address: &String| [&listens, &advertised].contains(&address);
        if self.peers.is_empty() && !self.join.is_empty() && self.join.iter().all(is_own) {
            let rule = "names only this replica itself; give HOST:PORT of another member, or omit raft.join to form \
                        a cluster";
            broken.push(("join", rule.to_owned()));
        }
        self.peer_rules(&mut broken);
        broken
    }

    fn peer_rules(&self, broken: &mut Vec<(&'static str, String)>) {
        let (mut ids, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        for text in &self.peers {
            match peer(text) {
                Err(rule) => broken.push(("peers", rule)),
                Ok((id, _)) if !ids.insert(id) => {
                    broken.push(("peers", format!("names replica {id} twice")));
                }
                Ok((_, address)) if !addresses.insert(address) => {
                    broken.push(("peers", format!("names {address} twice")));
                }
                Ok(_) => {}
            }
        }
        let id = self.replica_id;
        if !ids.is_empty() && !ids.contains(&id) {
            let text =
                format!("must name all replicas, including this one: raft.replica_id is {id}");
            broken.push(("peers", text));
        }
        if !self.peers.is_empty() && !self.join.is_empty() {
            let text = "cannot be combined with raft.peers; set only one of them";
            broken.push(("join", text.to_owned()));
        }
        let forms = self.join.is_empty() && ids.first().is_none_or(|first| *first == id);
        if self.learner && forms {
            broken.push((
                "learner",
                "cannot be set for the replica that forms the cluster, because that replica votes; a learner needs \
                 raft.join, or raft.peers with a replica ID lower than its own"
                    .to_owned(),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raft(change: impl FnOnce(&mut Raft)) -> Raft {
        let mut raft = Raft::default();
        change(&mut raft);
        raft
    }

    fn list(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn raft_rule_violation_names_its_key() {
        let broken = |change: fn(&mut Raft)| {
            let rules = raft(change).rules();
            assert_eq!(rules.len(), 1, "{rules:?}");
            rules[0].clone()
        };
        let (key, rule) = broken(|raft| raft.peers = list(&["1=a:1", "2"]));
        assert_eq!(
            (key, rule.as_str()),
            ("peers", "\"2\" must be ID=HOST:PORT, such as 2=10.0.0.2:18002")
        );
        let (key, rule) = broken(|raft| raft.peers = list(&["1=a:1", "1=b:1"]));
        assert_eq!((key, rule.as_str()), ("peers", "names replica 1 twice"));
        let (key, rule) = broken(|raft| raft.peers = list(&["1=a:1", "2=a:1"]));
        assert_eq!((key, rule.as_str()), ("peers", "names a:1 twice"));
        let (key, rule) = broken(|raft| raft.peers = list(&["2=a:1"]));
        assert!(key == "peers" && rule.ends_with("raft.replica_id is 1"), "{rule}");
        let (key, rule) = broken(|raft| raft.join = list(&["a"]));
        assert!(key == "join" && rule.starts_with("\"a\" is not the address of"), "{rule}");
        let (key, rule) = broken(|raft| raft.join = list(&["", "a:1", ""]));
        assert!(key == "join" && rule.starts_with("names an empty address"), "{rule}");
        let (key, rule) = broken(|raft| raft.join = list(&["127.0.0.1:18002"]));
        assert!(key == "join" && rule.starts_with("names only this replica itself"), "{rule}");
        let (key, rule) = broken(|raft| {
            raft.advertise = "r1:1".to_owned();
            raft.join = list(&["r1:1", "127.0.0.1:18002"]);
        });
        assert!(key == "join" && rule.starts_with("names only this replica itself"), "{rule}");
        let among = raft(|raft| raft.join = list(&["127.0.0.1:18002", "r2:18002"]));
        assert_eq!(among.rules(), vec![]);
        let (key, rule) = broken(|raft| raft.peers = list(&["1=a:1", "9223372036854775808=b:1"]));
        assert!(key == "peers" && rule.contains("from 1 to 9223372036854775807"), "{rule}");
        for nowhere in ["0.0.0.0:1", "[::]:1"] {
            let rules = raft(|raft| raft.advertise = nowhere.to_owned()).rules();
            assert!(rules[0].0 == "advertise" && rules[0].1.contains("reach it"), "{rules:?}");
        }
        let (key, _) = broken(|raft| {
            (raft.join, raft.peers) = (list(&["a:1"]), list(&["1=a:1", "2=b:1"]));
        });
        assert_eq!(key, "join");
        assert_eq!(broken(|raft| raft.advertise = "a".to_owned()).0, "advertise");
        assert_eq!(broken(|raft| raft.learner = true).0, "learner");
        assert_eq!(broken(|raft| raft.address = "10.0.0.1:1".parse().unwrap()).0, "address");
    }

    /// T15: with certificates a port may listen on any address. With only some of the files it
    /// would accept everybody.
    #[test]
    fn incomplete_certificate_settings_are_rejected() {
        let tls = |cert: &str, key: &str, ca: &str, name: &str| {
            raft(|raft| {
                raft.address = "10.0.0.1:18002".parse().unwrap();
                (raft.tls_cert, raft.tls_key) = (cert.to_owned(), key.to_owned());
                (raft.tls_ca, raft.tls_server_name) = (ca.to_owned(), name.to_owned());
            })
        };
        let keys =
            |raft: &Raft| raft.rules().into_iter().map(|(key, _)| key).collect::<Vec<&str>>();
        let whole = tls("c", "k", "a", "");
        assert_eq!((keys(&whole), whole.tls().unwrap().server_name), (vec![], None));
        let named = tls("c", "k", "a", "all").tls().unwrap();
        assert_eq!((named.cert, named.server_name), (PathBuf::from("c"), Some("all".to_owned())));
        assert_eq!(keys(&tls("c", "", "", "")), ["tls_key", "tls_ca", "address"]);
        assert_eq!(keys(&tls("c", "k", "", "")), ["tls_ca", "address"]);
        assert_eq!(keys(&tls("", "", "", "all")), ["tls_server_name", "address"]);
    }

    #[test]
    fn replica_listening_on_all_addresses_requires_advertise_address() {
        let everywhere = |change: fn(&mut Raft)| {
            raft(|raft| {
                raft.address = "0.0.0.0:18002".parse().unwrap();
                raft.allow_plaintext = true;
                change(raft);
            })
        };
        let rules = everywhere(|_| ()).rules();
        assert_eq!(rules[0].0, "advertise");
        let named = everywhere(|raft| raft.advertise = "r1.example:18002".to_owned());
        assert_eq!((named.rules(), named.advertised()), (vec![], "r1.example:18002".to_owned()));
        let listed = everywhere(|raft| raft.peers = list(&["1=r1:18002", "2=r2:18002"]));
        assert_eq!((listed.rules(), listed.advertised()), (vec![], "r1:18002".to_owned()));
        let learner = everywhere(|raft| {
            (raft.learner, raft.replica_id) = (true, 2);
            raft.peers = list(&["1=r1:18002", "2=r2:18002"]);
        });
        assert_eq!(learner.rules(), vec![]);
    }
}
