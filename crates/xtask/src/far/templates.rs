//! Manifests and configuration files with `{{NAME}}` in place of values, and the example of the documentation.

use anyhow::{Context as _, Result, bail};

use super::lab::Lab;
use crate::setup;

pub(super) const PROXY: &str = include_str!("manifests/proxy.yaml");
pub(super) const PROXYLESS: &str = include_str!("manifests/proxyless.yaml");
pub(super) const SERVICE: &str = include_str!("manifests/service.yaml");
pub(super) const SERVICES: &str = include_str!("manifests/services.yaml");
pub(super) const MOVED: &str = include_str!("manifests/moved.yaml");
pub(super) const ENVOY: &str = include_str!("manifests/envoy.yaml");
pub(super) const ARMERIA: &str = include_str!("manifests/armeria.json");
pub(super) const KUBECONFIG: &str = include_str!("manifests/kubeconfig.yaml");

/// Returns the template with each `{{NAME}}` replaced by its value.
pub(super) fn fill(template: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut filled = template.to_owned();
    for (name, value) in values {
        filled = filled.replace(&format!("{{{{{name}}}}}"), value);
    }
    match filled.split_once("{{") {
        Some((_, rest)) => bail!("no value for {:?}", rest.split("}}").next().unwrap_or(rest)),
        None => Ok(filled),
    }
}

/// Returns the first YAML block below a heading of a page in `docs`.
pub(super) fn example(lab: &Lab<'_>, page: &str, heading: &str) -> Result<String> {
    let text = setup::read(&lab.paths.root.join("docs").join(page))?;
    block(&text, heading).with_context(|| format!("docs/{page} has no YAML below {heading:?}"))
}

/// Returns the manifest with the example of a name table.
pub(super) fn name_table(lab: &Lab<'_>) -> Result<String> {
    example(lab, "clients.md", "### Name tables")
}

fn block(page: &str, heading: &str) -> Option<String> {
    let (_, section) = page.split_once(&format!("\n{heading}\n"))?;
    let (_, block) = section.split_once("```yaml\n")?;
    Some(block.split_once("```")?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_filled_and_unknown_name_is_an_error() {
        assert_eq!(fill("a: {{A}}, b: {{B}}", &[("A", "1"), ("B", "x")]).unwrap(), "a: 1, b: x");
        assert_eq!(fill("{{Z}}", &[("A", "1")]).unwrap_err().to_string(), "no value for \"Z\"");
    }

    #[test]
    fn example_is_the_first_block_below_the_heading() {
        let page = "# a\n\n```yaml\n0\n```\n\n## b\n\n```toml\n1\n```\n\n```yaml\n2: 3\n```\n\n```yaml\n4\n```\n";
        assert_eq!(block(page, "## b").unwrap(), "2: 3\n");
        assert_eq!(block(page, "## c"), None);
    }
}
