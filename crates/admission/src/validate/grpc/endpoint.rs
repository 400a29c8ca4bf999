//! Endpoint assignments (GRPCV-55 to -66).

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    hash::Hash,
    net::IpAddr,
};

use super::{
    metadata,
    rules::{ALL, At, CPP, Clients, GO, JAVA, NODE, NONE, Rules, SIGNED_MAX, ip},
};
use crate::{node::shown, validate::tree::Message};

const WEIGHTS_MAX: u64 = u32::MAX as u64;
/// Before 1.74, Java resolves the text of an address by DNS.
const JAVA_WITHOUT_DNS: Clients = JAVA.since(74);
/// The versions of Java that read the metadata of localities and endpoints.
const JAVA_WITH_METADATA: Clients = JAVA.since(72);

/// The health states of endpoints that C-core reads: UNKNOWN, HEALTHY and DRAINING.
const HEALTH_OF_CPP: [u64; 3] = [0, 1, 3];

/// The clients that read a locality. All but Node skip a locality without a weight (GRPCV-56).
fn readers(locality: &Message<'_>) -> Clients {
    if weight(locality) == 0 { NODE } else { ALL }
}

fn weight(message: &Message<'_>) -> u64 {
    message.wrapped("load_balancing_weight").unwrap_or(0)
}

pub(super) fn check(assignment: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    let list = at.field("endpoints");
    priorities(assignment, &list, rules);
    repeated_localities(assignment, &list, rules);
    let mut addresses = Addresses::default();
    for (index, locality) in assignment.messages("endpoints").enumerate() {
        let at = list.index(index);
        if !locality.has("locality") {
            // C-core and Java skip a locality without a weight before they look at its name.
            let clients = GO | NODE | CPP.when(weight(locality) > 0);
            let reason = "a locality needs a name";
            let fix = "give locality, for example {zone: a}";
            rules.refuse(&at.field("locality"), clients, "grpc.locality", reason, fix);
        }
        if weight(locality) > SIGNED_MAX {
            dropped(assignment, &at, rules);
        }
        if let Some(leds) = locality.message("leds_cluster_locality_config") {
            leds_source(leds, &at.field("leds_cluster_locality_config"), rules);
        }
        let clients = readers(locality);
        if let Some(own) = locality.message("metadata") {
            rules.only(clients & JAVA_WITH_METADATA, |rules| {
                metadata::check(own, &at.field("metadata"), rules);
            });
        }
        endpoint_weights(locality, clients, &at, rules);
        for (position, endpoint) in locality.messages("lb_endpoints").enumerate() {
            let list = at.field("lb_endpoints");
            addresses.place = (index, position);
            addresses.check(endpoint, clients, &list.index(position), rules);
        }
    }
    if !assignment.messages("endpoints").any(has_usable_endpoint) {
        let rule = "gRPC clients (Java) keep the endpoints of the previous assignment, because this one has no endpoint \
                    that they can use";
        rules.note(&list, JAVA, "grpc.no_endpoint", rule);
    }
    if let Some(policy) = assignment.message("policy") {
        drop_overloads(policy, &at.field("policy"), rules);
    }
}

/// Java drops a locality whose weight is negative as a signed number. It then uses the others.
fn dropped(assignment: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    let at = at.field("load_balancing_weight");
    let is_used = |one: &Message<'_>| (1..=SIGNED_MAX).contains(&weight(one));
    if assignment.messages("endpoints").any(is_used) {
        let rule = format!(
            "gRPC clients (Java) send no RPC to this locality, because its weight is above {SIGNED_MAX}"
        );
        return rules.note(&at, JAVA, "grpc.dropped_locality", rule);
    }
    let effect =
        format!("every RPC fails, because the weights of all localities are above {SIGNED_MAX}");
    rules.effect(&at, JAVA, "grpc.effect.locality_weight", effect, "lower the weights");
}

/// Returns whether gRPC clients use an endpoint of a locality: the locality has a weight, and the endpoint is `HEALTHY` or
/// `UNKNOWN`.
fn has_usable_endpoint(locality: &Message<'_>) -> bool {
    weight(locality) > 0
        && locality.messages("lb_endpoints").any(|endpoint| endpoint.bits("health_status") <= 1)
}

/// The priorities have no gaps, and the sum of the weights of each fits into 32 bits.
fn priorities(assignment: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    for readers in [NODE, ALL - NODE] {
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        for locality in assignment.messages("endpoints") {
            // Node skips only localities without a name.
            let is_read =
                if readers == NODE { locality.has("locality") } else { weight(locality) > 0 };
            if is_read {
                let sum = sums.entry(locality.bits("priority")).or_default();
                *sum = sum.saturating_add(weight(locality));
            }
        }
        let priorities = (0..).zip(sums.keys());
        if let Some((missing, present)) =
            priorities.into_iter().find(|(at, present)| at != *present)
        {
            let reason = format!("there is a priority {present}, but no priority {missing}");
            rules.refuse(at, readers, "priority.gap", reason, "number the priorities from 0");
        }
        for (priority, sum) in sums.into_iter().filter(|(_, sum)| *sum > WEIGHTS_MAX) {
            let reason = format!(
                "the sum of the weights of priority {priority} is {sum}, but may be at most {WEIGHTS_MAX}"
            );
            rules.refuse(at, readers - JAVA, "grpc.locality_weights", reason, "");
        }
    }
}

/// A priority has a locality once (GRPCV-58).
fn repeated_localities(assignment: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    let mut seen: HashMap<_, (usize, Clients)> = HashMap::new();
    for (index, locality) in assignment.messages("endpoints").enumerate() {
        let name = locality.message("locality");
        let part = |field| name.map_or("", |name| name.text(field));
        let place = (locality.bits("priority"), part("region"), part("zone"), part("sub_zone"));
        let clients = readers(locality) - NODE.when(name.is_none());
        let (first, earlier) = *seen.entry(place).or_insert((index, NONE));
        if first != index {
            let reason =
                format!("the locality repeats that of endpoints[{first}] in the same priority");
            let fix = "give each locality of a priority once";
            rules.refuse(&at.index(index), earlier & clients, "locality.duplicate", reason, fix);
        }
        seen.insert(place, (first, earlier | clients));
    }
}

/// Go bounds the sum of the weights in a locality, where an endpoint has the weight 1 by default.
fn endpoint_weights(locality: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    let endpoints = || locality.messages("lb_endpoints");
    let own = |endpoint: &Message<'_>| endpoint.wrapped("load_balancing_weight").unwrap_or(1);
    let sum = endpoints().map(own).fold(0, u64::saturating_add);
    if sum > WEIGHTS_MAX {
        let reason = format!(
            "the sum of the weights of the endpoints is {sum}, but may be at most {WEIGHTS_MAX}"
        );
        let go = clients & GO.since(76);
        rules.refuse(&at.field("lb_endpoints"), go, "grpc.endpoint_weights", reason, "");
    }
    for (index, endpoint) in endpoints().enumerate() {
        if endpoint.wrapped("load_balancing_weight") == Some(0) {
            let list = at.field("lb_endpoints");
            let at = list.index(index);
            let clients = clients & (GO | CPP.when(is_read_by_cpp(endpoint)));
            let reason = "the weight of the endpoint is 0, but must be at least 1";
            let at = at.field("load_balancing_weight");
            rules.refuse(&at, clients, "grpc.endpoint_weight", reason, "set it to at least 1");
        }
    }
}

fn is_read_by_cpp(endpoint: &Message<'_>) -> bool {
    HEALTH_OF_CPP.contains(&endpoint.bits("health_status"))
}

/// The addresses of an assignment, as the clients compare them.
#[derive(Default)]
struct Addresses<'m> {
    /// C-core compares the numbers, and skips endpoints by their health.
    of_cpp: HashMap<(IpAddr, u64), Place>,
    /// Go and Node compare the text. Go reads an absent address as an empty one.
    of_go: HashMap<(&'m str, u64), Place>,
    of_node: HashMap<(&'m str, u64), Place>,
    /// The endpoint that is being checked.
    place: Place,
}

/// The positions of a locality and of an endpoint in it.
type Place = (usize, usize);

impl<'m> Addresses<'m> {
    /// Checks the addresses of an endpoint (GRPCV-61 and -66).
    fn check(&mut self, lb: &Message<'m>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
        let clients = clients - CPP.when(!is_read_by_cpp(lb));
        if let Some(own) = lb.message("metadata") {
            rules.only(clients & JAVA_WITH_METADATA, |rules| {
                metadata::check(own, &at.field("metadata"), rules);
            });
        }
        let at = at.field("endpoint");
        let Some(endpoint) = lb.message("endpoint") else {
            self.compare("", 0, clients & GO, &at, rules);
            let clients = clients & (CPP | NODE | JAVA);
            return rules.refuse(&at, clients, "grpc.address", "the endpoint has no address", "");
        };
        self.address(endpoint.message("address"), clients, &at.field("address"), rules);
        for (index, additional) in endpoint.messages("additional_addresses").enumerate() {
            let list = at.field("additional_addresses");
            let at = list.index(index);
            let clients = clients & (CPP | GO | NODE);
            self.address(additional.message("address"), clients, &at.field("address"), rules);
        }
    }

    fn address(
        &mut self,
        address: Option<&Message<'m>>,
        clients: Clients,
        at: &At<'_>,
        rules: &mut Rules,
    ) {
        const ID: &str = "grpc.address";
        let at = at.field("socket_address");
        let Some(socket) = address.and_then(|address| address.message("socket_address")) else {
            self.compare("", 0, clients & GO, &at, rules);
            let java = if address.is_none() { JAVA } else { JAVA_WITHOUT_DNS };
            let readers = clients & (CPP | NODE | java);
            let fix = "give socket_address with an IP address and a port";
            return rules.refuse(&at, readers, ID, "the endpoint has no socket_address", fix);
        };
        let (text, port) = (socket.text("address"), socket.bits("port_value"));
        if ip(text).is_none() {
            let reason = format!("{} is not an IP address", shown(text));
            let fix = "use an IP address, or a cluster of type LOGICAL_DNS";
            let readers = clients & (CPP | NODE | JAVA_WITHOUT_DNS);
            rules.refuse(&at.field("address"), readers, ID, reason, fix);
        }
        if port == 0 {
            let effect = "RPCs to this endpoint fail, because its port is 0";
            let at = at.field("port_value");
            rules.effect(&at, clients & (GO | JAVA), "grpc.effect.port", effect, "give port_value");
        }
        if port > 65535 {
            let reason = format!("the port {port} is above 65535");
            rules.refuse(&at.field("port_value"), clients & (CPP | JAVA), ID, reason, "");
        }
        if !socket.has("port_value") {
            let reason = "the endpoint has no port number";
            rules.refuse(&at.field("port_value"), clients & NODE, ID, reason, "give port_value");
        }
        self.compare(text, port, clients, &at, rules);
    }

    /// Refuses an address that occurred before.
    fn compare(
        &mut self,
        text: &'m str,
        port: u64,
        clients: Clients,
        at: &At<'_>,
        rules: &mut Rules,
    ) {
        let (place, mut first, mut found) = (self.place, None, NONE);
        let mut add = |known: Option<Place>, client| {
            if known.is_some() {
                (first, found) = (known, found | client);
            }
        };
        let seen_by = rules.seen_by(clients);
        if seen_by.intersects(CPP)
            && let Some(ip) = ip(text)
        {
            add(known(&mut self.of_cpp, (ip, port), place), CPP);
        }
        for (client, seen) in [(GO, &mut self.of_go), (NODE, &mut self.of_node)] {
            if seen_by.intersects(client) {
                add(known(seen, (text, port), place), client);
            }
        }
        if let Some((locality, endpoint)) = first {
            let reason = format!(
                "the address repeats that of endpoints[{locality}].lb_endpoints[{endpoint}]"
            );
            rules.refuse(at, found, "grpc.duplicate_address", reason, "give each address once");
        }
    }
}

/// Adds a place of an address, or returns the place where it occurred first.
fn known<K: Hash + Eq>(seen: &mut HashMap<K, Place>, address: K, place: Place) -> Option<Place> {
    match seen.entry(address) {
        Entry::Occupied(first) => Some(*first.get()),
        Entry::Vacant(entry) => {
            entry.insert(place);
            None
        }
    }
}

fn drop_overloads(policy: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.drop_overload";
    for (index, overload) in policy.messages("drop_overloads").enumerate() {
        let list = at.field("drop_overloads");
        let at = list.index(index);
        if overload.text("category").is_empty() {
            let reason = "the category is missing";
            rules.refuse(&at.field("category"), CPP, ID, reason, "give category");
        }
        let at = at.field("drop_percentage");
        match overload.message("drop_percentage") {
            None => rules.refuse(&at, CPP, ID, "the percentage is missing", ""),
            Some(share) if share.bits("denominator") > 2 => {
                let reason = "the denominator is not HUNDRED, TEN_THOUSAND or MILLION";
                rules.refuse(&at.field("denominator"), CPP | GO | JAVA, ID, reason, "");
            }
            Some(_) => {}
        }
    }
}

/// Clients with gRFC A95 receive a collection of endpoints only from the server of the assignment, by name.
/// Others ignore the field.
fn leds_source(leds: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.leds";
    if leds.message("leds_config").is_none_or(|source| !source.has("self")) {
        let rule = "gRPC clients with gRFC A95 reject a source other than {self: {}}";
        rules.note(&at.field("leds_config"), ALL, ID, rule);
    }
    if leds.text("leds_collection_name").ends_with("/*") {
        let rule = "gRPC clients with gRFC A95 reject a glob collection";
        rules.note(&at.field("leds_collection_name"), ALL, ID, rule);
    }
}
