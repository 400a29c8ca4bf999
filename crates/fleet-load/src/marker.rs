//! The marker in each resource of a test, from which a client knows the write.

use memchr::memmem::Finder;

/// The digits of the number of a write.
const DIGITS: usize = 10;

/// The markers of one run.
#[derive(Debug)]
pub(crate) struct Markers {
    prefix: String,
    finder: Finder<'static>,
}

impl Markers {
    /// Returns the markers of the run with this ID.
    pub(crate) fn new(run: &str) -> Self {
        let prefix = format!("{run}-write-");
        Self { finder: Finder::new(prefix.as_bytes()).into_owned(), prefix }
    }

    /// Returns the marker of a write.
    pub(crate) fn of(&self, write: u32) -> String {
        format!("{}{write:0DIGITS$}", self.prefix)
    }

    /// Returns the write of the first marker in a resource.
    pub(crate) fn find(&self, body: &[u8]) -> Option<u32> {
        let at = self.finder.find(body)? + self.prefix.len();
        let digits = body.get(at..at + DIGITS)?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_is_found_in_a_resource_of_its_run() {
        let markers = Markers::new("lt-1");
        let body = format!("name {} and more", markers.of(42));
        assert_eq!(markers.find(body.as_bytes()), Some(42));
        assert_eq!(Markers::new("lt-2").find(body.as_bytes()), None);
        assert_eq!(markers.find(b"lt-1-write-00"), None);
    }
}
