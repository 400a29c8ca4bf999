//! The declaration of a section and its keys.

use super::{
    bounds::{Bounds, Unit},
    entry::{Field, in_one_line},
};

/// A key of a section.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) bounds: Bounds,
    /// The lines of the description.
    pub(crate) lines: &'static [&'static str],
}

impl Key {
    /// Returns the fields of the tables in a list.
    pub(crate) fn fields(&self) -> &'static [Field] {
        match self.bounds.unit {
            Unit::Tables(fields) => fields,
            _ => &[],
        }
    }

    /// Returns the description of the key with its range.
    pub(crate) fn about(&self) -> String {
        let mut about = in_one_line(self.lines);
        about.extend(self.bounds.range().map(|range| format!(" The value is {range}.")));
        about
    }
}

/// Declares a section: a structure with a field for each key, its defaults, and the table of its keys (`KEYS`).
///
/// ```text
/// section! {
///     /// The section `[example]`: …
///     pub struct Example {
///         let settings = other_crate::Settings::default();
///
///         /// The description that `config print`, `config schema` and the manual page show.
///         peers_max: usize = settings.peers_max, count(1, 1000);
///         /// …
///         ca_file: String;
///     }
/// }
/// ```
///
/// The type of a key is followed by its default and its bounds. Without a default, a key has the default of its type.
/// Without bounds, it accepts every value of its type. `#[doc = NAME]` stands for a description that several keys
/// share. A field after `internal` is not a key.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $(let $local:ident = $settings:expr;)*
            $(
                $(#[doc = $line:expr])+
                $key:ident: $type:ty $(= $default:expr)? $(, $bounds:expr)?;
            )+
            $(internal $field:ident: $field_type:ty = $field_default:expr;)?
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $(pub $key: $type,)+
            $(#[serde(skip)] pub $field: $field_type,)?
        }

        impl $name {
            /// The keys in the order in which they are printed.
            pub(crate) const KEYS: &'static [$crate::section::Key] = &[
                $($crate::section::Key {
                    name: stringify!($key),
                    bounds: section!(@first $($bounds,)? $crate::bounds::FREE),
                    lines: &[$($line),+],
                }),+
            ];
        }

        impl Default for $name {
            fn default() -> Self {
                $(let $local = $settings;)*
                Self {
                    $($key: section!(@first $($default,)? <$type>::default()),)+
                    $($field: $field_default,)?
                }
            }
        }
    };
    (@first $first:expr $(, $other:expr)?) => { $first };
}
pub(crate) use section;

/// Declares the type of a key whose value is one of a few words, and the list of the words (`WORDS`).
macro_rules! one_of {
    (
        $(#[doc = $about:literal])+
        pub enum $name:ident { $($variant:ident = $word:literal,)+ }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(
                #[doc = concat!("`", $word, "`")]
                #[serde(rename = $word)]
                $variant,
            )+
        }

        impl $name {
            pub(crate) const WORDS: &'static [&'static str] = &[$($word),+];
        }
    };
}
pub(crate) use one_of;
