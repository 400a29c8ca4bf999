//! The parts of a bootstrap that an import did not store, as text.

use std::io::{self, Write};

use chancery_admin_proto::v1 as pb;

use crate::text::{count, plain};

/// The maximum number of parts that are printed. JSON has all of them.
const SHOWN_MAX: usize = 20;

/// Prints the parts that were not stored, on standard error.
pub(super) fn report_left_out(parts: &[pb::LeftOut]) {
    let mut stderr = io::stderr().lock();
    for line in lines(parts) {
        drop(writeln!(stderr, "note: {}", plain(&line)));
    }
}

/// Returns a line for each of the first parts, and the number of the others.
fn lines(parts: &[pb::LeftOut]) -> Vec<String> {
    let mut lines: Vec<String> = parts.iter().take(SHOWN_MAX).map(line).collect();
    match parts.len().saturating_sub(SHOWN_MAX) {
        0 => {}
        n => lines.push(format!("import does not store {}", count(n as u64, "further part"))),
    }
    lines
}

fn line(part: &pb::LeftOut) -> String {
    let pb::LeftOut { file, line, column, field_path, entries, reason } = part;
    let at = if *line > 0 { format!("{file}:{line}:{column}") } else { file.clone() };
    let entries = if *entries > 1 { format!(" ({entries} entries)") } else { String::new() };
    format!("{at}: import does not store {field_path}{entries}: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_parts_are_printed_and_the_others_are_counted() {
        let part = |n: u64| pb::LeftOut {
            file: "envoy.yaml".into(),
            line: 3,
            column: 1,
            field_path: "stats_sinks".into(),
            entries: n,
            reason: "x".into(),
        };
        let parts: Vec<pb::LeftOut> = (1..=22).map(part).collect();
        let all = lines(&parts);
        assert_eq!(all.len(), 21);
        assert_eq!(all[0], "envoy.yaml:3:1: import does not store stats_sinks: x");
        assert_eq!(all[1], "envoy.yaml:3:1: import does not store stats_sinks (2 entries): x");
        assert_eq!(all[20], "import does not store 2 further parts");
        assert_eq!(
            lines(&[pb::LeftOut { line: 0, ..part(1) }]),
            ["envoy.yaml: import does not store stats_sinks: x"]
        );
    }
}
