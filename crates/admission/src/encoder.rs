//! The position of an encoding in a document, and the faults that it has found.

use std::fmt::Write;

use chancery_model::has_private_key;
use prost_reflect::{DescriptorPool, MessageDescriptor};

use crate::{
    credentials, inspect,
    node::{Node, named},
    problem::Fault,
    sensitive,
    yaml_scalars::Doubts,
};

/// The maximum number of faults that are kept of one resource.
const FAULTS_MAX: usize = 20;

/// A step from a message to a part of it.
#[derive(Clone, Copy)]
enum Step<'n> {
    Field(&'n str),
    Index(usize),
    Key(&'n str),
}

/// The state of the encoding of one resource: where it is, and the faults so far.
pub(crate) struct Encoder<'n> {
    pub(crate) pool: &'static DescriptorPool,
    path: Vec<Step<'n>>,
    /// The number of messages around the current one.
    depth: usize,
    /// Whether the current field is sensitive or inside a sensitive field. Faults then hide the content.
    hides: bool,
    /// Ignores fields that a message does not have.
    pub(crate) skips_unknown: bool,
    pub(crate) doubts: Doubts,
    faults: Vec<Fault>,
}

/// The bytes of a value; `None` if it has faults, which the encoder has recorded.
pub(crate) type Encoded<T = Vec<u8>> = Option<T>;

impl<'n> Encoder<'n> {
    pub(crate) fn new(pool: &'static DescriptorPool) -> Self {
        Self {
            pool,
            path: Vec::new(),
            depth: 0,
            hides: false,
            skips_unknown: false,
            doubts: Doubts::default(),
            faults: Vec::new(),
        }
    }

    /// Returns the number of recorded faults.
    pub(crate) fn n_faults(&self) -> usize {
        self.faults.len()
    }

    /// Returns whether further faults are not kept.
    pub(crate) fn is_full(&self) -> bool {
        self.n_faults() >= FAULTS_MAX
    }

    /// Returns whether the current content is sensitive, so that no fault may show it.
    pub(crate) fn hides(&self) -> bool {
        self.hides
    }

    /// Returns the recorded faults.
    pub(crate) fn into_faults(self) -> Vec<Fault> {
        self.faults
    }

    /// Records a fault. `rule` may show the content, and is replaced if the content is sensitive.
    pub(crate) fn fault<T>(&mut self, rule: impl Into<String>) -> Encoded<T> {
        if self.hides {
            self.bare_fault(sensitive::hidden("is not a valid value of the field"))
        } else {
            self.bare_fault(rule)
        }
    }

    /// Records a fault whose rule does not show the content.
    pub(crate) fn bare_fault<T>(&mut self, rule: impl Into<String>) -> Encoded<T> {
        if !self.is_full() {
            let mut path = String::new();
            for step in &self.path {
                let dot = if path.is_empty() { "" } else { "." };
                // Writing to a string cannot fail.
                let _ = match step {
                    Step::Field(name) if has_private_key(name.as_bytes()) => {
                        write!(path, "{dot}{}", sensitive::KEY_MARK)
                    }
                    Step::Field(name) => write!(path, "{dot}{name}"),
                    Step::Index(index) => write!(path, "[{index}]"),
                    Step::Key(key) => write!(path, "[{}]", named(key)),
                };
            }
            self.faults.push(Fault { path, ..Fault::new(rule) });
        }
        None
    }

    pub(crate) fn expected<T>(&mut self, what: &str, found: &Node) -> Encoded<T> {
        if self.hides {
            self.bare_fault(sensitive::hidden(&format!("expected {what}")))
        } else {
            self.bare_fault(format!("expected {what}, found {found}"))
        }
    }

    /// Like [`Self::expected`], in place of one or more messages that may hold a secret.
    pub(crate) fn expected_messages<T>(
        &mut self,
        what: &str,
        message: &MessageDescriptor,
        found: &Node,
    ) -> Encoded<T> {
        if credentials::is_near(message) {
            self.bare_fault(sensitive::hidden(&format!("expected {what}")))
        } else {
            self.expected(what, found)
        }
    }

    /// Encodes a part that is nested `levels` messages deeper.
    pub(crate) fn deeper<T>(
        &mut self,
        levels: usize,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        if self.depth + levels >= inspect::DEPTH_MAX {
            return self.bare_fault(inspect::too_deep());
        }
        self.depth += levels;
        let encoded = encode(self);
        self.depth -= levels;
        encoded
    }

    /// Records the fault of a function that does not know its path.
    pub(crate) fn noted<T>(&mut self, result: Result<T, String>) -> Encoded<T> {
        match result {
            Ok(value) => Some(value),
            Err(rule) => self.fault(rule),
        }
    }

    pub(crate) fn within<T>(
        &mut self,
        field: &'n str,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        self.at(Step::Field(field), encode)
    }

    pub(crate) fn at_key<T>(
        &mut self,
        key: &'n str,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        self.at(Step::Key(if self.hides { "…" } else { key }), encode)
    }

    pub(crate) fn at_index<T>(
        &mut self,
        index: usize,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        self.at(Step::Index(index), encode)
    }

    fn at<T>(
        &mut self,
        step: Step<'n>,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        self.path.push(step);
        let encoded = encode(self);
        self.path.pop();
        encoded
    }

    /// Encodes a part whose content is not shown if `hides`.
    pub(crate) fn hiding<T>(
        &mut self,
        hides: bool,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        let hid = self.hides;
        self.hides |= hides;
        let encoded = encode(self);
        self.hides = hid;
        encoded
    }
}
