//! The configuration as TOML, which `chancery config print` shows.

use toml::{Table, Value};

use super::Config;

/// Converts a configuration to a table of sections.
pub(crate) fn table(config: &Config) -> Table {
    Table::try_from(config).expect("all keys are text, and TOML can represent all values")
}

/// Converts a configuration to a TOML file, with a comment for each key.
pub(crate) fn render(config: &Config) -> String {
    let table = table(config);
    let mut out =
        "# The variable CHANCERY_<SECTION>_<KEY> overrides a key, and a flag overrides both.\n"
            .to_owned();
    for (section, keys) in Config::SECTIONS {
        out.push_str(&format!("\n[{section}]\n"));
        for key in *keys {
            let value = table.get(*section).and_then(|section| section.get(key.name));
            let value = value.map(Value::to_string).unwrap_or_default();
            out.push_str(&format!("# {}\n", key.about()));
            for field in key.fields() {
                out.push_str(&format!("# - {}: {}\n", field.title(), field.about()));
            }
            out.push_str(&format!("{} = {value}\n", key.name));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_configuration_parses_as_the_same_configuration() {
        let config = Config::default();
        assert_eq!(toml::from_str::<Config>(&render(&config)).unwrap(), config);
    }

    /// The page on hostile clients names keys, and has rows `| \`xds.key\` | \`default\` |`.
    #[test]
    fn hostile_clients_page_shows_the_actual_keys_and_defaults() {
        let page = include_str!("../../../docs/hostile-clients.md");
        let table = table(&Config::default());
        let mut n_limits = 0;
        for line in page.lines() {
            for name in line.split('`').skip(1).step_by(2) {
                let Some((section, key)) = name.split_once('.') else { continue };
                let Some(keys) = table.get(section).and_then(Value::as_table) else { continue };
                assert!(keys.contains_key(key), "no key {name}");
            }
            let row = line.strip_prefix("| `xds.").and_then(|row| row.split_once('`'));
            let Some((key, rest)) = row else { continue };
            // Rows of other tables have a sentence in this column.
            let Some(rest) = rest.strip_prefix(" | `") else { continue };
            let shown = rest.split('`').next().unwrap();
            let value = &table["xds"][key];
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            assert_eq!(shown, value, "{key}");
            n_limits += 1;
        }
        assert!(n_limits > 20, "only {n_limits} limits were found");
    }
}
