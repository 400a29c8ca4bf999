//! The time in the header `date` of a response (RFC 9110, section 5.6.7).

/// Parses a date such as `Sun, 06 Nov 1994 08:49:37 GMT` to the seconds since 1970.
pub(super) fn parse(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words.as_slice() else { return None };
    let number = |text: &str, range: std::ops::RangeInclusive<i64>| {
        text.parse().ok().filter(|number| range.contains(number))
    };
    let month = i64::try_from(MONTHS.iter().position(|known| known == month)?).ok()?;
    let (day, year) = (number(day, 1..=31)?, number(year, 1970..=9999)?);
    let mut parts = time.split(':');
    let mut part = |max| number(parts.next()?, 0..=max);
    let (hour, minute, second) = (part(23)?, part(59)?, part(60)?);
    // Years that begin in March have the leap day at their end.
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let of_year = (153 * month + 2) / 5 + day - 1;
    // 719,468 days before 1970-01-01 is 0000-03-01.
    let days = 365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_of_a_response_is_parsed() {
        for (text, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Tue, 29 Feb 2000 00:00:00 GMT", Some(951_782_400)),
            ("Thu, 29 Feb 2024 23:59:59 GMT", Some(1_709_251_199)),
            ("Mon, 01 Mar 2100 00:00:00 GMT", Some(4_107_542_400)),
            ("Sun, 06 Nov 1994 08:49:37 UTC", None),
            ("06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Foo 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 06 Nov 99999999999999999999 08:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
