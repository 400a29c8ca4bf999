//! The lines and columns of problems.
//!
//! A document has no positions in memory. If it has problems, its text is read once more, as a stream of
//! events. The reader follows only the paths of problems, so it needs memory for these paths alone.

use std::collections::HashMap;

use serde_saphyr::granit_parser::{Event, Parser};

use crate::{
    file_encoding::FileEncoding,
    problem::{Problem, shortened},
    source,
};

/// The maximum nesting that is followed.
const DEPTH_MAX: usize = 1000;

/// Adds positions to the problems of files, orders the problems by file and position, and then shortens long
/// paths of fields.
///
/// A file is its name and its content.
pub(crate) fn locate(files: &[(&str, &str)], problems: &mut [Problem]) {
    let place = |problem: &Problem| {
        files.iter().position(|(name, _)| *name == problem.file).unwrap_or(usize::MAX)
    };
    problems.sort_by_cached_key(place);
    for part in problems.chunk_by_mut(|a, b| a.file == b.file) {
        let file = part.first().and_then(|problem| files.get(place(problem)));
        if let Some((_, content)) = file.filter(|(name, _)| is_text(name)) {
            locate_in_file(content, part);
        }
        // A problem of a whole document or file has no position, and comes first.
        part.sort_by_key(|problem| (problem.document, problem.position));
    }
    for path in problems.iter_mut().filter_map(|problem| problem.field_path.as_mut()) {
        *path = shortened(std::mem::take(path));
    }
}

/// Returns whether the content of a file is what its author wrote. A file in another encoding was converted.
fn is_text(file: &str) -> bool {
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    !matches!(
        FileEncoding::of_extension(extension),
        Some(FileEncoding::Binary | FileEncoding::Text)
    )
}

fn locate_in_file(content: &str, problems: &mut [Problem]) {
    let is_lost = |problem: &Problem| {
        problem.position.is_none() && (problem.resource.is_some() || problem.field_path.is_some())
    };
    if !problems.iter().any(is_lost) {
        return;
    }
    let content = content.strip_prefix('\u{feff}').unwrap_or(content);
    for (index, text, lines_before) in source::texts(content) {
        let mut paths = Paths::default();
        let mut lost: Vec<(&mut Problem, Vec<usize>)> = problems
            .iter_mut()
            .filter(|problem| is_lost(problem) && problem.document.unwrap_or(1) == index)
            .map(|problem| {
                let ends = paths.add(problem);
                (problem, ends)
            })
            .collect();
        if lost.is_empty() {
            continue;
        }
        paths.follow(text);
        for (problem, ends) in &mut lost {
            // If two places match equally many elements of the path, the problem gets the first of them.
            let found = ends.iter().rev().filter_map(|end| paths.nearest(*end));
            let found = found.max_by_key(|(depth, _)| *depth);
            problem.position = found.map(|(_, (line, column))| (lines_before + line, column));
        }
    }
}

/// A step from a value to a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    /// A field, or a key of a map.
    Key(String),
    Index(usize),
}

/// The paths of problems, as a tree. The first entry is the root of the document.
struct Paths(Vec<Part>);

#[derive(Default)]
struct Part {
    parent: usize,
    depth: usize,
    parts: HashMap<Step, usize>,
    position: Option<(u32, u32)>,
}

impl Default for Paths {
    fn default() -> Self {
        Self(vec![Part::default()])
    }
}

impl Paths {
    /// Adds the places that a problem may mean. A field of a wrapped resource is inside or outside the body.
    fn add(&mut self, problem: &Problem) -> Vec<usize> {
        // `resources[3] Cluster "web"`
        let resource = problem.resource.as_deref().and_then(|text| text.split(' ').next());
        let start = self.add_steps(0, steps(resource.unwrap_or_default()));
        let field = steps(problem.field_path.as_deref().unwrap_or_default());
        let mut ends = vec![self.add_steps(start, field.clone())];
        for key in ["resource", "body"] {
            let body = self.add_steps(start, vec![Step::Key(key.to_owned())]);
            ends.push(self.add_steps(body, field.clone()));
        }
        ends
    }

    fn add_steps(&mut self, start: usize, steps: Vec<Step>) -> usize {
        let mut at = start;
        for step in steps {
            let (parent, next) = (at, self.0.len());
            let depth = self.0[parent].depth + 1;
            at = *self.0[parent].parts.entry(step).or_insert(next);
            if at == next {
                self.0.push(Part { parent, depth, ..Part::default() });
            }
        }
        at
    }

    /// Returns the depth and the position of a part, or of the innermost part around it that has one.
    fn nearest(&self, end: usize) -> Option<(usize, (u32, u32))> {
        let mut at = end;
        loop {
            let part = &self.0[at];
            match part.position {
                Some(position) => return Some((part.depth, position)),
                None if at == 0 => return None,
                None => at = part.parent,
            }
        }
    }

    fn part(&self, parent: Option<usize>, step: &Step) -> Option<usize> {
        let parts = &self.0[parent?].parts;
        match (parts.get(step), step) {
            (Some(part), _) => Some(*part),
            (None, Step::Key(key)) => parts.get(&Step::Key(snake_case(key))).copied(),
            (None, Step::Index(_)) => None,
        }
    }

    /// Reads a document, and records the positions of the parts that it has.
    fn follow(&mut self, text: &str) {
        let mut open: Vec<Container> = Vec::new();
        for next in Parser::new_from_str(text) {
            // The rest of a document that the parser does not accept has no positions.
            let Ok((event, span)) = next else { return };
            let position = (to_u32(span.start.line()), to_u32(span.start.col() + 1));
            let is_map = match event {
                Event::Scalar(ref text, ..) => {
                    if let Some(Container::Map { part, value }) = open.last_mut()
                        && value.is_none()
                    {
                        let found = self.part(*part, &Step::Key(text.to_string()));
                        *value = Some(found);
                        self.put(found, position);
                        continue;
                    }
                    let part = self.value(open.last());
                    self.put(part, position);
                    complete(&mut open);
                    continue;
                }
                Event::Alias(..) => {
                    let part = self.value(open.last());
                    self.put(part, position);
                    complete(&mut open);
                    continue;
                }
                Event::MappingStart(..) => true,
                Event::SequenceStart(..) => false,
                Event::MappingEnd | Event::SequenceEnd => {
                    open.pop();
                    complete(&mut open);
                    continue;
                }
                _ => continue,
            };
            if open.len() >= DEPTH_MAX {
                return;
            }
            let part = self.value(open.last());
            self.put(part, position);
            open.push(if is_map {
                Container::Map { part, value: None }
            } else {
                Container::List { part, index: 0 }
            });
        }
    }

    /// Returns the part of the value that begins in a container.
    fn value(&self, container: Option<&Container>) -> Option<usize> {
        match container {
            None => Some(0),
            Some(Container::Map { value, .. }) => value.flatten(),
            Some(Container::List { part, index }) => self.part(*part, &Step::Index(*index)),
        }
    }

    /// Records a position. The position of a field is that of its key.
    fn put(&mut self, part: Option<usize>, position: (u32, u32)) {
        if let Some(part) = part {
            self.0[part].position.get_or_insert(position);
        }
    }
}

/// A container that is open.
enum Container {
    /// `value` has the part of the value that follows, after its key.
    Map {
        part: Option<usize>,
        value: Option<Option<usize>>,
    },
    List {
        part: Option<usize>,
        index: usize,
    },
}

/// Notes the end of a key or a value.
fn complete(open: &mut [Container]) {
    match open.last_mut() {
        Some(Container::Map { value, .. }) => {
            // A key that is not a scalar leads to no part.
            *value = if value.is_some() { None } else { Some(None) };
        }
        Some(Container::List { index, .. }) => *index += 1,
        None => {}
    }
}

fn to_u32(n: usize) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

/// Returns the name of a field whose JSON name is given.
fn snake_case(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 4);
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// Returns the steps of a path such as `filters[0].typed_config.fields["a b"]`, up to where a long path is
/// cut.
fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let read = match rest.strip_prefix('[') {
            Some(inside) if inside.starts_with('"') => key(inside),
            Some(inside) => inside
                .split_once(']')
                .and_then(|(index, rest)| Some((Step::Index(index.parse().ok()?), rest))),
            None => {
                let end = rest.find(['.', '[', '…']).unwrap_or(rest.len());
                let (name, rest) = rest.split_at(end);
                (!name.is_empty()).then(|| (Step::Key(name.to_owned()), rest))
            }
        };
        let Some((step, after)) = read else { break };
        steps.push(step);
        rest = after.strip_prefix('.').unwrap_or(after);
    }
    steps
}

/// Reads a quoted key, and the bracket after it.
fn key(quoted: &str) -> Option<(Step, &str)> {
    let mut is_escaped = false;
    let end = quoted.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })?;
    let (text, rest) = quoted.split_at(end + 2);
    let key = serde_json::from_str(text).ok()?;
    Some((Step::Key(key), rest.strip_prefix(']')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(file: &str, content: &str, places: &[(&str, &str)]) -> Vec<Option<(u32, u32)>> {
        let problem = |(resource, field): &(&str, &str)| Problem {
            file: file.to_owned(),
            document: Some(1),
            resource: Some((*resource).to_owned()),
            field_path: Some((*field).to_owned()),
            ..Problem::default()
        };
        places
            .iter()
            .map(|place| {
                let mut problems = [problem(place)];
                locate(&[(file, content)], &mut problems);
                problems[0].position
            })
            .collect()
    }

    const YAML: &str = "resources:
- '@type': x
  name: a
- resource:
    '@type': x
    lbPolicy: b
    filters:
    - {name: c, typed_config: {stat_prefix: d}}
    - fields: {\"a.b\": {port: 1}}
  ttl: 1s
";

    #[test]
    fn field_has_the_position_of_its_key() {
        let at = |field: &str| located("a.yaml", YAML, &[("resources[1] X \"a b\"", field)])[0];
        assert_eq!(at("lb_policy"), Some((6, 5)));
        assert_eq!(at("filters[0].typed_config.stat_prefix"), Some((8, 32)));
        assert_eq!(at("filters[1].fields[\"a.b\"].port"), Some((9, 24)));
        assert_eq!(at("ttl"), Some((10, 3)));
    }

    #[test]
    fn absent_field_has_the_position_of_what_should_contain_it() {
        let at = |field: &str| located("a.yaml", YAML, &[("resources[1]", field)])[0];
        assert_eq!(at("filters[0].typed_config.route_config.name"), Some((8, 17)));
        assert_eq!(at("filters[7]"), Some((7, 5)));
        assert_eq!(at("filters[0]…stat_prefix"), Some((8, 7)));
        assert_eq!(located("a.yaml", YAML, &[("resources[0]", "lb_policy")]), [Some((2, 3))]);
    }

    #[test]
    fn json_has_positions_and_binary_input_has_none() {
        let json = "{\"resources\": [\n\t{\"@type\": \"x\",\n\t \"name\": 5}]}";
        assert_eq!(located("a.json", json, &[("resources[0]", "name")]), [Some((3, 3))]);
        assert_eq!(located("a.pb", json, &[("resources[0]", "name")]), [None]);
    }

    #[test]
    fn positions_count_the_lines_of_earlier_documents() {
        let content = format!("# one\n---\na: 1\n---\n{YAML}");
        let problem = |document, resource: &str| Problem {
            file: "a.yaml".to_owned(),
            document: Some(document),
            resource: Some(resource.to_owned()),
            ..Problem::default()
        };
        let mut problems = [problem(2, "resources[1]"), problem(2, "resources[0]")];
        locate(&[("a.yaml", &content)], &mut problems);
        let positions: Vec<_> = problems.iter().map(|problem| problem.position).collect();
        assert_eq!(positions, [Some((6, 3)), Some((8, 3))]);
    }
}
