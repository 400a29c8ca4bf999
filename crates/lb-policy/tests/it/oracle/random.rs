//! Random policies: valid and invalid ones of every type that grpc-go converts, nested up to 18 levels.
//!
//! They leave out what grpc-go is known to treat otherwise:
//! - explicit zeros of sizes and counts, which it takes for unset fields;
//! - invalid durations, which it clamps;
//! - a `TypedStruct` without value, which it writes as `null`;
//! - type URLs with another prefix, which it does not know.

use chancery_lb_policy::{
    proto::{
        ClientSideWeightedRoundRobin, LeastRequest, LoadBalancingPolicy, PickFirst, Policy,
        RingHash, TypedStruct, WrrLocality,
        prost_types::{Any, Duration, ListValue, Struct, Value, value::Kind},
    },
    types,
};
use prost::Message;

pub(crate) struct Random {
    rng: fastrand::Rng,
    /// Whether some messages end early.
    malformed: bool,
}

impl Random {
    pub(crate) fn new(seed: u64, malformed: bool) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), malformed }
    }

    pub(crate) fn policy(&mut self) -> LoadBalancingPolicy {
        // One of 20 is a chain near the maximum of 16 levels.
        if self.one_of(20) {
            let leaf = self.list(0);
            return (0..self.rng.usize(12..18)).fold(leaf, |child, _| {
                let message = WrrLocality { endpoint_picking_policy: Some(child) };
                let policy = any(types::WRR_LOCALITY, message.encode_to_vec());
                LoadBalancingPolicy { policies: vec![Policy::new(policy)] }
            });
        }
        self.list(4)
    }

    fn one_of(&mut self, n: usize) -> bool {
        self.rng.usize(..n) == 0
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.rng.bool().then(|| value(self))
    }

    fn list(&mut self, depth: usize) -> LoadBalancingPolicy {
        let n = if self.one_of(15) { 0 } else { self.rng.usize(1..4) };
        let policies = (0..n).map(|_| {
            if self.one_of(40) {
                return Policy::default();
            }
            let mut any = self.entry(depth);
            if self.malformed && self.one_of(40) {
                let len = self.rng.usize(..=any.value.len());
                any.value.truncate(len);
            }
            Policy::new(any)
        });
        LoadBalancingPolicy { policies: policies.collect() }
    }

    fn entry(&mut self, depth: usize) -> Any {
        match self.rng.usize(..if depth == 0 { 9 } else { 12 }) {
            0 => any(types::ROUND_ROBIN, Vec::new()),
            1 => any(types::RING_HASH, self.ring_hash().encode_to_vec()),
            2 => {
                let choice_count = self.maybe(|it| it.rng.u32(1..15));
                any(types::LEAST_REQUEST, LeastRequest { choice_count }.encode_to_vec())
            }
            3 => any(types::WEIGHTED_ROUND_ROBIN, self.weighted_round_robin().encode_to_vec()),
            4 => {
                let message = PickFirst { shuffle_address_list: self.rng.bool() };
                any(types::PICK_FIRST, message.encode_to_vec())
            }
            5 => {
                let value = if self.malformed { vec![0x0a] } else { Vec::new() };
                any("envoy.extensions.load_balancing_policies.maglev.v3.Maglev", value)
            }
            6 => any("myorg.v1.Unknown", Vec::new()),
            7 | 8 => self.typed_struct(),
            _ => {
                let child = if self.one_of(20) { None } else { Some(self.list(depth - 1)) };
                let message = WrrLocality { endpoint_picking_policy: child };
                any(types::WRR_LOCALITY, message.encode_to_vec())
            }
        }
    }

    fn ring_hash(&mut self) -> RingHash {
        let sizes = [1, 512, 1024, 4096, 8_388_608, 8_388_609, u64::MAX];
        let size = |it: &mut Self| sizes[it.rng.usize(..sizes.len())];
        RingHash {
            hash_function: if self.one_of(6) { self.rng.i32(0..4) } else { 1 },
            minimum_ring_size: self.maybe(size),
            maximum_ring_size: self.maybe(size),
        }
    }

    fn weighted_round_robin(&mut self) -> ClientSideWeightedRoundRobin {
        let known = if self.rng.bool() { 5 } else { 8 };
        let penalties = [0.0, 0.1, 1.0, 2.5, 1e10, -1.0, f32::NAN, f32::INFINITY];
        ClientSideWeightedRoundRobin {
            enable_oob_load_report: self.maybe(|it| it.rng.bool()),
            oob_reporting_period: self.maybe(Self::duration),
            blackout_period: self.maybe(Self::duration),
            weight_expiration_period: self.maybe(Self::duration),
            weight_update_period: self.maybe(Self::duration),
            error_utilization_penalty: self.maybe(|it| penalties[it.rng.usize(..known)]),
            metric_names_for_computing_utilization: vec!["a".to_owned(); self.rng.usize(..2)],
        }
    }

    fn duration(&mut self) -> Duration {
        let sign: i32 = if self.one_of(5) { -1 } else { 1 };
        let nanos = [0, 1, 1_000, 20_000_000, 999_999_999][self.rng.usize(..5)];
        Duration { seconds: self.rng.i64(0..100_000) * i64::from(sign), nanos: nanos * sign }
    }

    fn typed_struct(&mut self) -> Any {
        let (name, value) = match self.rng.usize(..9) {
            0 => ("round_robin", object([])),
            1 => {
                let numbers = [1.0, 2.5, 1024.0, 5000.0, 9e6, -1.0];
                let min = Value::from(numbers[self.rng.usize(..6)]);
                ("ring_hash_experimental", object([("minRingSize", min)]))
            }
            2 => {
                let count = if self.one_of(5) {
                    Value::from("2")
                } else {
                    Value::from(f64::from(self.rng.u8(1..5)))
                };
                ("least_request_experimental", object([("choiceCount", count)]))
            }
            3 => ("pick_first", object([("shuffleAddressList", self.value(0))])),
            4 => {
                let texts =
                    ["1s", "0.5s", "1", "s", "-1s", "1.0000000001s", "315576000001s", ".5s"];
                let text = Value::from(texts[self.rng.usize(..texts.len())]);
                ("weighted_round_robin", object([("blackoutPeriod", text)]))
            }
            5 => {
                let names = ["round_robin", "myorg.custom", "myorg.unknown"];
                let entries = (0..self.rng.usize(..3))
                    .map(|_| object([(names[self.rng.usize(..3)], object([]))]));
                let list =
                    Value { kind: Some(Kind::ListValue(ListValue { values: entries.collect() })) };
                let key = if self.one_of(5) { "other" } else { "childPolicy" };
                ("xds_wrr_locality_experimental", object([(key, list)]))
            }
            6 => ("myorg.unknown", object([("a", self.value(3))])),
            _ => ("myorg.custom", object([("a", self.value(3)), ("", self.value(1))])),
        };
        let prefix = ["type.googleapis.com/", "", "/", "a/b/"][self.rng.usize(..4)];
        let Some(Kind::StructValue(value)) = value.kind else { unreachable!("it is an object") };
        let message = TypedStruct { type_url: format!("{prefix}{name}"), value: Some(value) };
        let types = [types::TYPED_STRUCT, types::UDPA_TYPED_STRUCT];
        any(types[self.rng.usize(..2)], message.encode_to_vec())
    }

    fn value(&mut self, depth: usize) -> Value {
        let finite = if self.one_of(10) { 8 } else { 6 };
        let numbers =
            [0.0, -0.0, 1.0, 0.1, 1e300, 9_007_199_254_740_993.0, f64::NAN, f64::INFINITY];
        let kind = match self.rng.usize(..if depth == 0 { 5 } else { 7 }) {
            0 => Kind::NullValue(0),
            1 => Kind::BoolValue(self.rng.bool()),
            2 => Kind::NumberValue(numbers[self.rng.usize(..finite)]),
            3 => Kind::StringValue(["", "é\n\"", "text"][self.rng.usize(..3)].to_owned()),
            4 if self.one_of(10) => return Value { kind: None },
            4 => Kind::StringValue("a".repeat(self.rng.usize(..5))),
            5 => {
                let values = (0..self.rng.usize(..3)).map(|_| self.value(depth - 1)).collect();
                Kind::ListValue(ListValue { values })
            }
            _ => return object([("x", self.value(depth - 1)), ("y", self.value(depth - 1))]),
        };
        Value { kind: Some(kind) }
    }
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let fields = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Value { kind: Some(Kind::StructValue(Struct { fields })) }
}

fn any(type_name: &str, value: Vec<u8>) -> Any {
    Any { type_url: format!("type.googleapis.com/{type_name}"), value }
}
