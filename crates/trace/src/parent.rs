//! The header `traceparent` of W3C Trace Context.

/// The trace of the caller, from its header `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    pub(crate) trace_id: [u8; 16],
    pub(crate) span_id: [u8; 8],
    pub(crate) is_sampled: bool,
}

impl TraceParent {
    /// Parses the value of the header. Returns `None` for an invalid value, which the caller ignores.
    ///
    /// Future versions may have further fields at the end, and version `ff` is invalid.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let mut fields = value.trim().split('-');
        let (version, trace_id) = (fields.next()?, fields.next()?);
        let (span_id, flags) = (fields.next()?, fields.next()?);
        let [version] = bytes::<1>(version)?;
        let is_valid = version < 0xff && (version > 0 || fields.next().is_none());
        let (trace_id, span_id) = (bytes(trace_id)?, bytes(span_id)?);
        let [flags] = bytes::<1>(flags)?;
        let has_ids = trace_id != [0; 16] && span_id != [0; 8];
        (is_valid && has_ids).then_some(Self { trace_id, span_id, is_sampled: flags & 1 == 1 })
    }
}

/// Parses lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let is_lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
    (is_lower && hex::decode_to_slice(text, &mut bytes).is_ok()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples and the rules of the recommendation, section 3.2.
    #[test]
    fn only_valid_headers_are_continued() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let sampled = TraceParent::parse(&format!("00-{trace}-{span}-01")).unwrap();
        assert!(sampled.is_sampled);
        assert_eq!(hex::encode(sampled.trace_id), trace);
        assert_eq!(hex::encode(sampled.span_id), span);
        assert!(!TraceParent::parse(&format!("00-{trace}-{span}-00")).unwrap().is_sampled);
        assert!(TraceParent::parse(&format!("cc-{trace}-{span}-01-what-the-future")).is_some());
        for invalid in [
            String::new(),
            "00".to_owned(),
            format!("ff-{trace}-{span}-01"),
            format!("00-{trace}-{span}-01-more"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{}-{span}-01", &trace[1..]),
            format!("00-{trace}-{span}-0"),
            format!("0-{trace}-{span}-01"),
            format!("00-{trace}é-{span}-01"),
        ] {
            assert_eq!(TraceParent::parse(&invalid), None, "{invalid:?}");
        }
    }
}
