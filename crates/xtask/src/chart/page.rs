//! The examples in `docs/kubernetes.md`: the chart accepts the values, and Kubernetes accepts the objects.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::render::{Chart, RELEASE, succeeded};
use crate::paths::Paths;

pub(super) const PAGE: &str = "docs/kubernetes.md";

/// A block of YAML, with the number of its first line.
type Block = (usize, String);

/// Checks the examples.
pub(super) fn check(chart: &Chart, paths: &Paths) -> Result<()> {
    let (objects, values) = examples(paths)?;
    ensure!(!objects.is_empty() && !values.is_empty(), "{PAGE} has no examples");
    for (line, block) in &values {
        let file = chart.scratch.join("example.yaml");
        fs::write(&file, block).with_context(|| format!("write {}", file.display()))?;
        succeeded(chart.helm("template", RELEASE).arg("-f").arg(&file))
            .with_context(|| format!("{PAGE}:{line}: the values"))?;
    }
    for (line, block) in &objects {
        chart
            .validate_texts(paths, &[("example", block)])
            .with_context(|| format!("{PAGE}:{line}: the objects"))?;
    }
    Ok(())
}

/// Returns the examples of objects, and those of values.
pub(super) fn examples(paths: &Paths) -> Result<(Vec<Block>, Vec<Block>)> {
    let page = fs::read_to_string(paths.root.join(PAGE)).with_context(|| format!("read {PAGE}"))?;
    Ok(blocks(&page).into_iter().partition(|(_, block)| block.starts_with("apiVersion:")))
}

/// Returns the YAML blocks of a page without their indentation, each with the number of its first line.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let Some(indent) = line.strip_suffix("```yaml") else { continue };
        let inside = lines.by_ref().map(|(line, _)| line.strip_prefix(indent).unwrap_or(line));
        let block: Vec<_> = inside.take_while(|line| *line != "```").collect();
        blocks.push((number + 1, block.join("\n")));
    }
    blocks
}

#[cfg(test)]
mod tests {
    #[test]
    fn indented_block_is_found_with_its_line() {
        let page = "text\n```yaml\na: 1\n```\n\n1. x\n\n   ```yaml\n   b:\n     c: 1\n   ```\n```sh\nls\n```\n";
        let expected = [(3, "a: 1".to_owned()), (9, "b:\n  c: 1".to_owned())];
        assert_eq!(super::blocks(page), expected);
    }
}
