//! The section `[access]`: the administrators, who turn access rules on.

use chancery_fanout::AccessControl;
use chancery_model::Principal;

use super::section::section;

section! {
    /// The section `[access]`.
    pub struct Access {
        /// The principals that may do everything, such as ["spiffe://prod.example/ops/anna",
        /// "unix:0"]. If the list is not empty, access rules apply to both ports: all other
        /// identities have only the rights that rules give to them. If the list is empty, every
        /// caller may do everything.
        admins: Vec<String>;
    }
}

impl Access {
    /// Returns the key and the rule of each value that is not valid.
    pub(crate) fn rules(&self, has_socket: bool) -> Vec<(&'static str, String)> {
        let rule = |text: &String| match Principal::new(text) {
            Err(error) => Some(error.to_string()),
            Ok(principal) if principal.is_anonymous() => {
                Some("anonymous cannot be an administrator, because everybody would be one".into())
            }
            Ok(_) if text.starts_with("unix:") && !has_socket => {
                Some(format!("{text:?} has no effect without admin.socket; set this key too"))
            }
            Ok(_) => None,
        };
        self.admins.iter().filter_map(rule).map(|rule| ("admins", rule)).collect()
    }

    /// Returns whether access rules apply.
    pub fn control(&self) -> AccessControl {
        if self.admins.is_empty() { AccessControl::Off } else { AccessControl::Enforced }
    }

    /// Returns the principals of the administrators. The rules of the configuration exclude other texts.
    pub fn admins(&self) -> Vec<Principal> {
        self.admins.iter().filter_map(|text| Principal::new(text).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_are_checked() {
        let rules = |admins: &[&str], has_socket| {
            let admins = admins.iter().map(|text| (*text).to_owned()).collect();
            let rules = Access { admins }.rules(has_socket);
            rules.into_iter().map(|(_, rule)| rule).collect::<Vec<_>>()
        };
        assert!(rules(&["unix:0", "token:root"], true).is_empty());
        assert_eq!(rules(&["unix:0"], false).len(), 1);
        assert_eq!(rules(&["anna", "anonymous"], true).len(), 2);
    }
}
