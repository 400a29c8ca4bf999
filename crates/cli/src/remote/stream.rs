//! The output about one stream of a node.

use std::io::{self, Write};

use chancery_admin_proto::v1 as pb;

use crate::{
    table::Table,
    text::{plain, short_type},
    time::{age, timestamp},
};

/// Returns the state of a node, how long it has lasted, and its message.
pub(super) fn in_words(condition: &pb::Condition, now: u64) -> String {
    let pb::Condition { state, since_ms, message } = condition;
    let message = plain(message);
    let reason = match (state.as_str(), message.as_str()) {
        (_, "") => String::new(),
        ("waiting", name) => format!(" for {name}"),
        (_, text) => format!(": {text}"),
    };
    let time = match since_ms {
        0 => String::new(),
        since => format!(" for {}", age(*since, now)),
    };
    format!("{state}{time}{reason}")
}

/// Writes a stream with its subscriptions and rejections.
pub(super) fn write_stream(
    stream: &pb::StreamStatus,
    now: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let kind = if stream.type_url.is_empty() {
        "aggregated".to_owned()
    } else {
        short_type(&stream.type_url)
    };
    let (peer, protocol) = (&stream.peer, &stream.protocol);
    let who = match stream.identity.as_str() {
        "" | "anonymous" => String::new(),
        identity => format!(", {}", plain(identity)),
    };
    let age = age(stream.since_ms, now);
    let replica = match stream.replica_id {
        0 => String::new(),
        id => format!(" to replica {id}"),
    };
    writeln!(out, "stream from {peer}{replica}{who}, {protocol}, {kind}, {age} old")?;
    match stream.assignment.as_str() {
        "" => writeln!(out, "  no assignment matches this node")?,
        assignment => {
            writeln!(out, "  assignment {assignment}, scopes {}", stream.scopes.join(", "))?;
        }
    }
    let mut table = Table::new(["TYPE", "SUBSCRIBED", "SENT", "ACKED", "STATE"]);
    for subscription in &stream.subscriptions {
        let subscribed = match (subscription.wildcard, subscription.names) {
            (true, 0) => "all".to_owned(),
            (true, n) => format!("all, {n} by name"),
            (false, 0) => "nothing: the list is empty".to_owned(),
            (false, n) => format!("{n} by name"),
        };
        let held = match subscription.held_removals {
            0 => String::new(),
            n => format!(" ({n} removals held back)"),
        };
        table.row([
            short_type(&subscription.type_url),
            subscribed,
            subscription.sent_version.clone(),
            subscription.acked_version.clone(),
            format!("{}{held}", subscription.state),
        ]);
    }
    if !table.is_empty() {
        table.write(out, "  ")?;
    }
    for nack in &stream.nacks {
        let (time, type_name) = (timestamp(nack.time_ms), short_type(&nack.type_url));
        writeln!(out, "  rejected {type_name} at {time}: {}", plain(&nack.message))?;
    }
    Ok(())
}
