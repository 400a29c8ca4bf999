//! The output of a command, in the format that the user chose.

use std::io::Write;

use chancery_admin::json::JsonMessage;
use chancery_model::Printable;
use clap::ValueEnum;
use serde_json::Value;

use super::{failure::Failure, text::printable_json, yaml::yaml};

/// The format of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text for people
    Text,
    /// Text with long values in full
    #[value(skip)]
    Wide,
    /// JSON
    Json,
    /// YAML; `get` and `assignments list` print a manifest
    Yaml,
    /// SARIF, for findings in code
    #[value(skip)]
    Sarif,
}

/// The destination and the format of a command's output.
pub(crate) struct Answer<'a> {
    pub(crate) out: &'a mut dyn Write,
    pub(crate) output: Output,
    /// Whether the command has shown something.
    has_shown: bool,
}

impl<'a> Answer<'a> {
    /// Creates the output of a command.
    pub(crate) fn new(out: &'a mut dyn Write, output: Output) -> Self {
        Self { out, output, has_shown: false }
    }

    /// Shows a failure as JSON or YAML, in the form of the HTTP API, if the command has shown nothing else.
    pub(crate) fn show_failure(&mut self, failure: &Failure) -> Result<(), Failure> {
        let has_text = !failure.lines.is_empty() && !failure.is_warning();
        match self.output {
            Output::Json if has_text && !self.has_shown => self.json(&failure.to_json()),
            Output::Yaml if has_text && !self.has_shown => self.yaml(&failure.to_json()),
            _ => Ok(()),
        }
    }

    /// Writes a message as JSON or YAML, or as text with `text`.
    pub(crate) fn show<M: JsonMessage>(
        &mut self,
        message: &M,
        text: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        match self.output {
            Output::Text | Output::Wide => self.text(text)?,
            Output::Json | Output::Sarif => self.json(&message.to_json())?,
            Output::Yaml => self.yaml(&message.to_json())?,
        }
        Ok(())
    }

    /// Writes lines of text, with escapes for characters that could control the terminal.
    pub(crate) fn text(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        self.has_shown = true;
        let mut text = Vec::new();
        write(&mut text)?;
        for line in String::from_utf8_lossy(&text).lines() {
            writeln!(self.out, "{}", Printable(line))?;
        }
        Ok(())
    }

    /// Writes indented JSON.
    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        self.has_shown = true;
        writeln!(self.out, "{}", printable_json(&format!("{value:#}")))?;
        Ok(())
    }

    pub(crate) fn yaml(&mut self, value: &Value) -> Result<(), Failure> {
        self.has_shown = true;
        self.out.write_all(yaml(value)?.as_bytes())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::is_unprintable;

    use super::*;

    /// Characters that every output format escapes.
    const ODD: &str = "a\u{2028}b\u{202e}c\u{200b}d\u{9b}e\u{3164}f\u{115f}g\u{34f}h\u{e0041}";

    #[test]
    fn text_output_has_no_unprintable_characters() {
        let (mut out, output) = (Vec::new(), Output::Text);
        Answer::new(&mut out, output)
            .text(|out| writeln!(out, "one {ODD}\ntwo {:?}", "\u{3164}"))
            .unwrap();
        let escaped = r"a\u{2028}b\u{202e}c\u{200b}d\u{9b}e\u{3164}f\u{115f}g\u{34f}h\u{e0041}";
        let expected = format!("one {escaped}\ntwo \"\\u{{3164}}\"\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn json_and_yaml_escape_unprintable_characters_and_keep_their_values() {
        let literal = r"C:\uFFFF0000202E \u202e";
        let value = serde_json::json!({
            "text": ODD, "lines": format!("x\ny\t{ODD}"), ODD: [ODD, literal, "\u{ffff}", "a: #\u{202e}"],
            "plain": "line\nline\n", "long": format!("{} {ODD}", "word ".repeat(40)),
        });
        let (mut out, output) = (Vec::new(), Output::Json);
        Answer::new(&mut out, output).json(&value).unwrap();
        let json = String::from_utf8(out).unwrap();
        let yaml = super::yaml(&value).unwrap();
        let odd = |text: &str| text.chars().any(|c| c != '\n' && is_unprintable(c));
        assert!(
            !odd(&json) && json.contains(r"b\u202ec") && json.contains(r"h\udb40\udc41"),
            "{json}"
        );
        assert!(!odd(&yaml) && yaml.contains(r"b\U0000202Ec"), "{yaml}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), value, "{yaml}");
    }
}
