//! Texts: addresses, times, numbers and sizes.

use std::fmt::Write as _;

/// Returns the address of a page with parameters. Omits those without a value.
#[must_use]
pub fn address(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut address = path.to_owned();
    let mut separator = '?';
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        address.push(separator);
        address.push_str(name);
        address.push('=');
        encode(&mut address, value);
        separator = '&';
    }
    address
}

fn encode(to: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            to.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(to, "%{byte:02X}");
        }
    }
}

/// Returns a time of day with its date and zone: `2026-12-01 01:02:03 UTC`.
pub(crate) fn utc(ms: u64) -> String {
    let (date, time) = date_and_time(ms);
    format!("{date} {time} UTC")
}

/// Returns a time in the form of the attribute `datetime`.
pub(crate) fn iso(ms: u64) -> String {
    let (date, time) = date_and_time(ms);
    format!("{date}T{time}Z")
}

fn date_and_time(ms: u64) -> (String, String) {
    let seconds = ms / 1000;
    let (year, month, day) = civil(seconds / 86_400);
    let of_day = seconds % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    (format!("{year:04}-{month:02}-{day:02}"), format!("{hour:02}:{minute:02}:{second:02}"))
}

/// Returns the date of a day since 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// Returns a number with separators: `100,000`.
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number with its noun: `1 node`, `3 nodes`.
pub(crate) fn count(n: u64, noun: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", number(n))
}

/// Returns a size in bytes with its unit.
pub(crate) fn bytes(n: u64) -> String {
    let mut size = format!("{n} B");
    let mut whole = n;
    for unit in ["KiB", "MiB", "GiB", "TiB"] {
        if whole < 1024 {
            break;
        }
        size = format!("{}.{} {unit}", whole / 1024, whole % 1024 * 10 / 1024);
        whole /= 1024;
    }
    size
}

/// Returns the last part of a type URL: `Cluster`.
pub(crate) fn short_type(type_url: &str) -> &str {
    type_url.rsplit(['.', '/']).next().unwrap_or(type_url)
}

/// Returns an argument as a shell reads it.
pub(crate) fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/:=,@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_encode_their_values() {
        assert_eq!(address("/ui/nodes", &[("id", ""), ("state", "")]), "/ui/nodes");
        let page = address("/ui/node", &[("id", "a b&c=\"<é>"), ("page", "2")]);
        assert_eq!(page, "/ui/node?id=a%20b%26c%3D%22%3C%C3%A9%3E&page=2");
    }

    #[test]
    fn times_have_their_zone() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_709_210_096_000), "2024-02-29 12:34:56 UTC");
        assert_eq!(iso(1_709_210_096_999), "2024-02-29T12:34:56Z");
    }

    #[test]
    fn numbers_and_sizes_are_readable() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1536, 5 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
        assert_eq!((count(1, "node"), count(2, "node")), ("1 node".into(), "2 nodes".into()));
        assert_eq!(short_type("type.googleapis.com/envoy.config.cluster.v3.Cluster"), "Cluster");
    }

    #[test]
    fn commands_quote_what_a_shell_would_read_differently() {
        assert_eq!(shell("edge-1"), "edge-1");
        assert_eq!(shell("a b's"), r"'a b'\''s'");
    }
}
