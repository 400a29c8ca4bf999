//! What is measured, and how each may grow.

use std::fmt;

/// How the cost of an operation may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Not at all, but for a factor log M where it looks something up.
    Flat,
    /// As its bytes do: the cost is per KiB, and is shown, not judged.
    Throughput,
}

macro_rules! cases {
    ($($name:ident $growth:ident $text:literal / $unit:literal;)*) => {
        /// One operation that is measured.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Case { $(#[doc = $text] $name,)* }

        impl Case {
            /// All of them, in the order of the report.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What one operation is.
            pub(crate) fn unit(self) -> &'static str {
                match self { $(Self::$name => $unit,)* }
            }

            pub(crate) fn growth(self) -> Growth {
                match self { $(Self::$name => Growth::$growth,)* }
            }
        }
    };
}

cases! {
    CommitOne Flat "commit: 1 resource of the shared scope" / "commit";
    CommitTen Flat "commit: 10 resources of the shared scope" / "commit";
    CommitOwn Flat "commit: 1 resource of a view's own scope" / "commit";
    Changed Flat "view: which collections a commit changed" / "commit";
    Resolve Flat "view: bring a view and its version to the new state" / "view";
    DiffFirst Flat "diff: two views one commit apart, the first time" / "commit";
    DiffNext Flat "diff: the same for each further view" / "view";
    DeltaPoll Flat "delta wildcard: mark and poll after a commit" / "session";
    DeltaEncode Flat "delta wildcard: encode the response" / "session";
    DeltaAck Flat "delta wildcard: ACK" / "session";
    DeltaNack Flat "delta wildcard: NACK" / "session";
    DeltaFirstNack Flat "delta wildcard: NACK of the first state" / "session";
    DeltaFirstAck Flat "delta wildcard: ACK of 1 resource of it later on" / "session";
    SotwAck Flat "SotW wildcard: ACK" / "session";
    SotwNack Flat "SotW wildcard: NACK" / "session";
    DeltaNamedPoll Flat "delta, 100 names: mark and poll after a commit" / "session";
    DeltaNamedEncode Flat "delta, 100 names: encode the response" / "session";
    DeltaNamedAck Flat "delta, 100 names: ACK" / "session";
    DeltaNamedNack Flat "delta, 100 names: NACK" / "session";
    DeltaSubscribe Flat "delta, 100 names: subscribe to 1 more" / "session";
    DeltaSubscribed Flat "delta, 100 names: poll for it" / "session";
    SotwNamedPoll Flat "SotW, 100 names: mark and poll after a commit" / "session";
    SotwNamedEncode Flat "SotW, 100 names: encode the response" / "session";
    SotwNamedAck Flat "SotW, 100 names: ACK" / "session";
    SotwNamedNack Flat "SotW, 100 names: NACK" / "session";
    SotwSubscribe Flat "SotW, 100 names: subscribe to 1 more" / "session";
    SotwSubscribed Flat "SotW, 100 names: poll for it" / "session";
    DeltaFull Throughput "delta: first state, in parts" / "KiB";
    SotwFull Throughput "SotW: first state, whole" / "KiB";
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}
