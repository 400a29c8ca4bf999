//! The measured operations and the growth that each may have.

use std::fmt;

/// The growth that the cost of an operation may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// No growth, except for a factor log M for look-ups.
    Flat,
    /// Growth with the number of bytes. The report shows the cost per KiB and does not check it.
    Throughput,
}

macro_rules! cases {
    ($($name:ident $growth:ident $text:literal / $unit:literal;)*) => {
        /// A measured operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Case { $(#[doc = $text] $name,)* }

        impl Case {
            /// All operations, in the order of the report.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Returns the unit of one operation.
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
    CommitOwn Flat "commit: 1 resource of a view's private scope" / "commit";
    Changed Flat "view: find the collections that a commit changed" / "commit";
    Resolve Flat "view: resolve a view and its version in the new state" / "view";
    DiffFirst Flat "diff: two views one commit apart, the first time" / "commit";
    DiffNext Flat "diff: the same for each further view" / "view";
    DeltaPoll Flat "delta wildcard: mark and poll after a commit" / "session";
    DeltaEncode Flat "delta wildcard: encode the response" / "session";
    DeltaAck Flat "delta wildcard: ACK" / "session";
    DeltaNack Flat "delta wildcard: NACK" / "session";
    DeltaFirstNack Flat "delta wildcard: NACK of the first state" / "session";
    DeltaFirstAck Flat "delta wildcard: later ACK of 1 resource of that state" / "session";
    SotwAck Flat "SotW wildcard: ACK" / "session";
    SotwNack Flat "SotW wildcard: NACK" / "session";
    DeltaNamedPoll Flat "delta, 100 names: mark and poll after a commit" / "session";
    DeltaNamedEncode Flat "delta, 100 names: encode the response" / "session";
    DeltaNamedAck Flat "delta, 100 names: ACK" / "session";
    DeltaNamedNack Flat "delta, 100 names: NACK" / "session";
    DeltaSubscribe Flat "delta, 100 names: subscribe to 1 more" / "session";
    DeltaSubscribed Flat "delta, 100 names: poll for the new name" / "session";
    SotwNamedPoll Flat "SotW, 100 names: mark and poll after a commit" / "session";
    SotwNamedEncode Flat "SotW, 100 names: encode the response" / "session";
    SotwNamedAck Flat "SotW, 100 names: ACK" / "session";
    SotwNamedNack Flat "SotW, 100 names: NACK" / "session";
    SotwSubscribe Flat "SotW, 100 names: subscribe to 1 more" / "session";
    SotwSubscribed Flat "SotW, 100 names: poll for the new name" / "session";
    McpPoll Flat "MCP, differences: mark and poll after a commit" / "session";
    McpEncode Flat "MCP, differences: encode the response" / "session";
    McpAck Flat "MCP, differences: ACK" / "session";
    RestCurrent Flat "REST wildcard: decide a poll of a current client" / "poll";
    RestChanged Flat "REST wildcard: decide a poll after a commit" / "poll";
    RestNamedCurrent Flat "REST, 100 names: decide a poll of a current client" / "poll";
    RestNamedChanged Flat "REST, 100 names: decide a poll after a commit" / "poll";
    Renew Flat "delta wildcard: heartbeat of 1 resource" / "session";
    RenewEncode Flat "delta wildcard: encode the heartbeat" / "session";
    DeltaFull Throughput "delta: first state, in parts" / "KiB";
    SotwFull Throughput "SotW: first state, in one response" / "KiB";
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}
