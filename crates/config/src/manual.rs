//! The manual page chancery.toml(5), from the same table as the printed configuration.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use toml::Value;

use super::{Config, render::table};

const DESCRIPTION: [&str; 2] = [
    "The configuration of a replica is one TOML file. Every key has a default, and the file may be absent. The \
     environment variable CHANCERY_<SECTION>_<KEY> overrides a key, and a flag of the command overrides both. Lists in \
     variables are separated by commas.",
    "Sizes are numbers with KiB, MiB or GiB, or without a unit for bytes. Times are numbers with ms, s, m or h. A \
     replica does not start with an unknown key or a value out of range.",
];

/// The commands of the section on related pages.
const SEE_ALSO: [&str; 4] =
    ["chancery-serve", "chancery-config-check", "chancery-config-print", "chancery-config-schema"];

/// Returns the manual page in the language of roff.
pub fn manual(version: &str) -> String {
    let mut page = Roff::new();
    let source = format!("chancery {version}");
    page.control("TH", ["chancery.toml", "5", "", source.as_str(), ""]);
    page.control("SH", ["NAME"]);
    page.text([roman("chancery.toml - configuration of the xDS control plane Chancery")]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([bold("chancery serve --config"), roman(" "), italic("FILE")]);
    page.control("SH", ["DESCRIPTION"]);
    for paragraph in DESCRIPTION {
        page.text([roman(paragraph)]);
        page.control("PP", []);
    }
    let defaults = table(&Config::default());
    for (section, keys) in Config::SECTIONS {
        page.control("SH", [format!("[{section}]").as_str()]);
        for key in *keys {
            let default = defaults.get(*section).and_then(|keys| keys.get(key.name));
            page.control("TP", []);
            page.text([bold(key.name), roman(" = "), default_value(default)]);
            page.text([roman(key.about())]);
            if key.fields().is_empty() {
                continue;
            }
            page.control("RS", []);
            for field in key.fields() {
                page.control("TP", []);
                page.text([roman(field.title())]);
                page.text([roman(field.about())]);
            }
            page.control("RE", []);
        }
    }
    page.control("SH", ["SEE ALSO"]);
    let last = SEE_ALSO.len() - 1;
    let names = SEE_ALSO.iter().enumerate().flat_map(|(index, name)| {
        [bold(*name), roman(if index == last { "(1)" } else { "(1), " })]
    });
    page.text(names.collect::<Vec<_>>());
    page.to_roff()
}

fn default_value(value: Option<&Value>) -> Inline {
    roman(value.map(Value::to_string).unwrap_or_default())
}
