//! Random messages of any type, and a random number generator with a seed.

use chancery_proto::envoy_pool;
use prost_reflect::prost::Message;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};

/// A xorshift generator. Equal seeds give equal numbers on all platforms.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    fn text(&mut self) -> String {
        let words = ["", "a", "web", "ä ö", "\"quoted\"", "a\nb", "true", "1", "x/y", "日本", "~"];
        self.pick(&words).to_owned()
    }
}

/// Returns a random message of the type `of` with about `budget` fields.
pub(crate) fn message(of: &MessageDescriptor, rng: &mut Rng, budget: &mut u32) -> DynamicMessage {
    let mut made = DynamicMessage::new(of.clone());
    match of.full_name() {
        // Empty, as some generators of configuration write it.
        "google.protobuf.Any" if rng.one_in(6) => {}
        "google.protobuf.Any" => {
            let types: Vec<MessageDescriptor> = envoy_pool().all_messages().collect();
            let index = usize::try_from(rng.below(types.len() as u64)).unwrap();
            let mut inner = &types[index];
            if inner.is_map_entry() || is_foreign(inner) {
                inner = &types[0];
            }
            let value = message(inner, rng, budget);
            let url = format!("type.googleapis.com/{}", inner.full_name());
            made.set_field_by_name("type_url", Value::String(url));
            made.set_field_by_name("value", Value::Bytes(value.encode_to_vec().into()));
        }
        "google.protobuf.Duration" => {
            let sign = if rng.one_in(2) { 1 } else { -1 };
            let seconds = i64::try_from(rng.below(315_576_000_000)).unwrap();
            let nanos = i32::try_from(rng.below(1_000_000_000)).unwrap();
            made.set_field_by_name("seconds", Value::I64(sign * seconds));
            made.set_field_by_name("nanos", Value::I32(i32::try_from(sign).unwrap() * nanos));
        }
        "google.protobuf.Timestamp" => {
            let seconds = i64::try_from(rng.below(300_000_000_000)).unwrap() - 60_000_000_000;
            made.set_field_by_name("seconds", Value::I64(seconds));
            made.set_field_by_name("nanos", Value::I32(i32::try_from(rng.below(10)).unwrap()));
        }
        "google.protobuf.Value" => {
            let leaf = Value::String(rng.text());
            made.set_field_by_name("string_value", leaf);
            if *budget > 0 && rng.one_in(2) {
                *budget -= 1;
                let name = rng.pick(&[
                    "null_value",
                    "number_value",
                    "bool_value",
                    "list_value",
                    "struct_value",
                ]);
                let field = of.get_field_by_name(name).unwrap();
                let value = single(&field.kind(), rng, budget);
                made.set_field(&field, value);
            }
        }
        _ => {
            for field in of.fields() {
                if *budget == 0 || !rng.one_in(3) {
                    continue;
                }
                *budget -= 1;
                let value = value(&field, rng, budget);
                made.set_field(&field, value);
            }
        }
    }
    // Decoded from the wire format, where fields with default values are absent.
    DynamicMessage::decode(made.descriptor(), &made.encode_to_vec()[..]).unwrap()
}

/// Returns whether a message is not part of the API itself: proto2, with groups and required fields.
pub(crate) fn is_foreign(message: &MessageDescriptor) -> bool {
    let file = message.parent_file();
    file.name() == "google/protobuf/descriptor.proto"
        || file.syntax() != prost_reflect::Syntax::Proto3
}

fn value(field: &FieldDescriptor, rng: &mut Rng, budget: &mut u32) -> Value {
    if field.is_map() {
        let Kind::Message(entry) = field.kind() else { unreachable!("maps have entries") };
        let n = rng.below(4);
        let entries = (0..n).map(|_| {
            let key = map_key(&single(&entry.map_entry_key_field().kind(), rng, budget));
            (key, single(&entry.map_entry_value_field().kind(), rng, budget))
        });
        return Value::Map(entries.collect());
    }
    if field.is_list() {
        let n = rng.below(4);
        return Value::List((0..n).map(|_| single(&field.kind(), rng, budget)).collect());
    }
    single(&field.kind(), rng, budget)
}

fn map_key(value: &Value) -> MapKey {
    match value {
        Value::Bool(value) => MapKey::Bool(*value),
        Value::I32(value) => MapKey::I32(*value),
        Value::I64(value) => MapKey::I64(*value),
        Value::U32(value) => MapKey::U32(*value),
        Value::U64(value) => MapKey::U64(*value),
        Value::String(value) => MapKey::String(value.clone()),
        other => unreachable!("{other} is not a map key"),
    }
}

fn single(kind: &Kind, rng: &mut Rng, budget: &mut u32) -> Value {
    let bits = rng.next();
    let low = u32::try_from(bits & 0xffff_ffff).unwrap();
    match kind {
        Kind::Bool => Value::Bool(bits & 1 == 1),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
            Value::I32(rng.pick(&[0, 1, -1, i32::MIN, i32::MAX, low.cast_signed()]))
        }
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            Value::I64(rng.pick(&[0, 1, -1, i64::MIN, i64::MAX, bits.cast_signed()]))
        }
        Kind::Uint32 | Kind::Fixed32 => Value::U32(rng.pick(&[0, 1, u32::MAX, low])),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(rng.pick(&[0, 1, u64::MAX, bits])),
        Kind::Float => {
            Value::F32(rng.pick(&[0.0, -0.0, 0.1, -1.5, 1e30, f32::MIN_POSITIVE, f32::MAX]))
        }
        Kind::Double => {
            Value::F64(rng.pick(&[0.0, -0.0, 0.1, -1.5, 1e300, f64::MIN_POSITIVE, f64::MAX]))
        }
        Kind::String => Value::String(rng.text()),
        Kind::Bytes => {
            Value::Bytes(bits.to_le_bytes()[..usize::try_from(bits % 9).unwrap()].to_vec().into())
        }
        Kind::Enum(kind) => {
            let numbers: Vec<i32> = kind.values().map(|value| value.number()).collect();
            Value::EnumNumber(rng.pick(&numbers))
        }
        Kind::Message(inner) => {
            *budget = budget.saturating_sub(1);
            Value::Message(message(inner, rng, budget))
        }
    }
}
