//! The declaration of a section and its keys.

use super::bounds::Bounds;

/// A key of a section.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) bounds: Bounds,
    /// The lines of the description.
    pub(super) lines: &'static [&'static str],
}

impl Key {
    /// Returns the description of the key with its range.
    pub(super) fn about(&self) -> String {
        let mut about = self.lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        about.extend(self.bounds.range().map(|range| format!(" The value is {range}.")));
        about
    }
}

/// Declares a section: a structure with a field for each key, its defaults, and the table of its keys (`KEYS`).
///
/// ```text
/// section! {
///     /// The section `[example]`: …
///     pub(crate) struct Example {
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
        pub(crate) struct $name:ident {
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
        pub(crate) struct $name {
            $(pub(crate) $key: $type,)+
            $(#[serde(skip)] pub(crate) $field: $field_type,)?
        }

        impl $name {
            /// The keys in the order in which they are printed.
            pub(super) const KEYS: &'static [$crate::config::section::Key] = &[
                $($crate::config::section::Key {
                    name: stringify!($key),
                    bounds: section!(@first $($bounds,)? $crate::config::bounds::FREE),
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
pub(super) use section;

/// Declares the type of a key whose value is one of a few words, and the list of the words (`WORDS`).
macro_rules! one_of {
    (
        $(#[doc = $about:literal])+
        pub(crate) enum $name:ident { $($variant:ident = $word:literal,)+ }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub(crate) enum $name {
            $(#[serde(rename = $word)] $variant,)+
        }

        impl $name {
            pub(super) const WORDS: &'static [&'static str] = &[$($word),+];
        }
    };
}
pub(super) use one_of;
