//! The scopes that a stream had before and no longer has.
//!
//! The client holds resources of these scopes until their removal is announced, and the responses of a full-state
//! type repeat them meanwhile (ADS-08). The same applies to the scopes of an earlier stream that the stream resumes.
//! A stream therefore lasts only as long as its client may read all of them, and its resume data has all of them.

use chancery_model::ScopeName;

/// The maximum number of scopes that are remembered.
const SCOPES_MAX: usize = 32;

/// The earlier scopes of a stream, without its present ones.
#[derive(Debug, Default)]
pub(crate) struct PastScopes {
    scopes: Vec<ScopeName>,
    /// Whether there were more than [`SCOPES_MAX`].
    is_overfull: bool,
}

impl PastScopes {
    /// Returns the scopes, or `None` if they are not all known.
    pub(crate) fn known(&self) -> Option<&[ScopeName]> {
        (!self.is_overfull).then_some(&self.scopes)
    }

    /// Returns the earlier scopes after a move from `old` scopes to `new` ones.
    pub(crate) fn after_move(&self, old: &[ScopeName], new: &[ScopeName]) -> Self {
        let mut past = Self { scopes: Vec::new(), is_overfull: self.is_overfull };
        past.add(self.scopes.iter().chain(old), new);
        past
    }

    /// Adds further earlier scopes, except `present` ones.
    pub(crate) fn add<'a>(
        &mut self,
        scopes: impl Iterator<Item = &'a ScopeName>,
        present: &[ScopeName],
    ) {
        for scope in scopes {
            if present.contains(scope) || self.scopes.contains(scope) {
                continue;
            }
            if self.scopes.len() == SCOPES_MAX {
                self.is_overfull = true;
                return;
            }
            self.scopes.push(scope.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(names: &[&str]) -> Vec<ScopeName> {
        names.iter().map(|name| ScopeName::new(name).unwrap()).collect()
    }

    #[test]
    fn scopes_are_remembered_until_there_are_too_many() {
        let past = PastScopes::default().after_move(&scopes(&["a", "b"]), &scopes(&["b", "c"]));
        assert_eq!(past.known().unwrap(), scopes(&["a"]));
        let past = past.after_move(&scopes(&["b", "c"]), &scopes(&["a"]));
        assert_eq!(past.known().unwrap(), scopes(&["b", "c"]));
        let many: Vec<ScopeName> =
            (0..=SCOPES_MAX).flat_map(|n| scopes(&[&n.to_string()])).collect();
        assert_eq!(PastScopes::default().after_move(&many[1..], &[]).known(), Some(&many[1..]));
        let past = PastScopes::default().after_move(&many, &[]);
        assert!(past.known().is_none());
        assert!(past.after_move(&[], &many).known().is_none(), "the dropped ones stay unknown");
    }
}
