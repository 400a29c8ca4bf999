//! The flag that names the only resource without a name.

use chancery_admission::Options;
use clap::{Args, builder::NonEmptyStringValueParser};

/// The name of the only resource of the input without a name.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct OnlyName {
    /// Use this name for the only resource of the input without a name [default: none]
    ///
    /// The input is rejected if all resources have names, or if several have none. Without this flag, a
    /// listener without a name gets one from its address, such as listener_0.0.0.0_8080.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
}

impl OnlyName {
    /// Returns the name as requests have it; empty without the flag.
    pub(super) fn to_text(&self) -> String {
        self.name.clone().unwrap_or_default()
    }

    /// Adds the name to the options of admission.
    pub(super) fn add_to(&self, options: Options) -> Options {
        Options { name: self.name.clone(), ..options }
    }
}
