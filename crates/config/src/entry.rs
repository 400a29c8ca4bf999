//! The declaration of the tables in a list, such as `mcp.sources`.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize as _, Deserializer, Serialize, de::DeserializeOwned, de::Error};
use toml::{Table, Value};

/// A field of the tables in a list.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    /// The default of an optional field. It has no value if the field is then absent.
    pub(crate) default: Option<fn() -> Option<Value>>,
    /// The lines of the description.
    pub(crate) lines: &'static [&'static str],
}

impl Field {
    /// Returns the name in a file.
    pub(crate) fn name(&self) -> &'static str {
        in_file(self.name)
    }

    /// Returns the name with the default, as people read it.
    pub(crate) fn title(&self) -> String {
        match (self.default, self.default_value()) {
            (None, _) => format!("{} (required)", self.name()),
            (Some(_), None) => self.name().to_owned(),
            (Some(_), Some(value)) => format!("{} = {value}", self.name()),
        }
    }

    /// Returns the description in one line.
    pub(crate) fn about(&self) -> String {
        in_one_line(self.lines)
    }

    /// Returns the value of the field if a table lacks it.
    pub(crate) fn default_value(&self) -> Option<Value> {
        self.default.and_then(|default| default())
    }
}

/// Returns the name of a field in a file. A word of Rust has a prefix in the code.
pub(crate) fn in_file(name: &'static str) -> &'static str {
    name.trim_start_matches("r#")
}

/// Returns the lines of a description as one.
pub(crate) fn in_one_line(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Texts,
    Listen,
    Flag,
    Count,
}

/// A type that a field can have.
pub(crate) trait HasForm {
    const FORM: Form;
}

macro_rules! forms {
    ($($type:ty: $form:ident,)+) => {
        $(impl HasForm for $type {
            const FORM: Form = Form::$form;
        })+
    };
}

forms! {
    String: Text,
    PathBuf: Text,
    Vec<String>: Texts,
    SocketAddr: Listen,
    bool: Flag,
    u32: Count,
    usize: Count,
}

impl<T: HasForm> HasForm for Option<T> {
    const FORM: Form = T::FORM;
}

/// Reads a table without other fields.
pub(crate) fn read_table<'de, D: Deserializer<'de>>(
    from: D,
    fields: &[Field],
) -> Result<Table, D::Error> {
    let table = Table::deserialize(from)?;
    if let Some(unknown) = table.keys().find(|key| fields.iter().all(|one| one.name() != *key)) {
        let names: Vec<String> = fields.iter().map(|one| format!("`{}`", one.name())).collect();
        let names = names.join(", ");
        return Err(Error::custom(format!("unknown field `{unknown}`, expected one of {names}")));
    }
    Ok(table)
}

/// Removes the value of a field from a table, and returns it, or else its default.
pub(crate) fn take<T: DeserializeOwned, E: Error>(
    table: &mut Table,
    name: &'static str,
    default: Option<fn() -> T>,
) -> Result<T, E> {
    match (table.remove(name), default) {
        (Some(value), _) => {
            value.try_into().map_err(|error| E::custom(format!("{name}: {}", error.message())))
        }
        (None, Some(default)) => Ok(default()),
        (None, None) => Err(E::missing_field(name)),
    }
}

/// Returns a value as it stands in a file, or nothing if it is absent there.
pub(crate) fn shown(value: impl Serialize) -> Option<Value> {
    Value::try_from(value).ok()
}

/// Declares the tables of a list: a structure with a field for each key, and the table of its fields (`FIELDS`).
///
/// ```text
/// entry! {
///     /// An entry of `sources`.
///     pub struct Source {
///         /// The description that `config print`, `config schema` and the manual page show.
///         name: String;
///         /// …
///         incremental: bool = true;
///     }
/// }
/// ```
///
/// A field without a default is required.
macro_rules! entry {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $(
                $(#[doc = $line:literal])+
                $field:ident: $type:ty $(= $default:expr)?;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
        pub struct $name {
            $($field: $type,)+
        }

        impl $name {
            /// The fields, in the order of the structure.
            pub(crate) const FIELDS: &'static [$crate::entry::Field] = &[
                $($crate::entry::Field {
                    name: stringify!($field),
                    form: <$type as $crate::entry::HasForm>::FORM,
                    default: entry!(@shown $type $(, $default)?),
                    lines: &[$($line),+],
                }),+
            ];
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let mut table = $crate::entry::read_table(from, Self::FIELDS)?;
                Ok(Self {
                    $($field: $crate::entry::take(
                        &mut table,
                        $crate::entry::in_file(stringify!($field)),
                        entry!(@default $type $(, $default)?),
                    )?,)+
                })
            }
        }
    };
    (@shown $type:ty) => { None };
    (@shown $type:ty, $default:expr) => {
        Some(|| {
            let default: $type = $default;
            $crate::entry::shown(default)
        })
    };
    (@default $type:ty) => { None::<fn() -> $type> };
    (@default $type:ty, $default:expr) => { Some((|| $default) as fn() -> $type) };
}
pub(crate) use entry;
