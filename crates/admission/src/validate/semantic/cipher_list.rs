//! The lists of ciphers, as Envoy's TLS library reads them.

/// The ciphers of TLS 1.2 and earlier: the name in the library, and that in the standard.
const CIPHERS: &[(&str, &str)] = &[
    ("AES128-GCM-SHA256", "TLS_RSA_WITH_AES_128_GCM_SHA256"),
    ("AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
    ("AES256-GCM-SHA384", "TLS_RSA_WITH_AES_256_GCM_SHA384"),
    ("AES256-SHA", "TLS_RSA_WITH_AES_256_CBC_SHA"),
    ("DES-CBC3-SHA", "TLS_RSA_WITH_3DES_EDE_CBC_SHA"),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    ("ECDHE-ECDSA-AES128-SHA", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"),
    ("ECDHE-ECDSA-AES128-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256"),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    ("ECDHE-ECDSA-AES256-SHA", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("ECDHE-PSK-AES128-CBC-SHA", "TLS_ECDHE_PSK_WITH_AES_128_CBC_SHA"),
    ("ECDHE-PSK-AES256-CBC-SHA", "TLS_ECDHE_PSK_WITH_AES_256_CBC_SHA"),
    ("ECDHE-PSK-CHACHA20-POLY1305", "TLS_ECDHE_PSK_WITH_CHACHA20_POLY1305_SHA256"),
    ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
    ("ECDHE-RSA-AES128-SHA", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"),
    ("ECDHE-RSA-AES128-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"),
    ("ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
    ("ECDHE-RSA-AES256-SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"),
    ("ECDHE-RSA-CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("PSK-AES128-CBC-SHA", "TLS_PSK_WITH_AES_128_CBC_SHA"),
    ("PSK-AES256-CBC-SHA", "TLS_PSK_WITH_AES_256_CBC_SHA"),
];

/// The ciphers of TLS 1.3. A list may exclude them, but they are always enabled.
const TLS13: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// The name of a group, and whether a cipher is in it.
type Group = (&'static str, fn(&str) -> bool);

/// The groups of ciphers.
const GROUPS: &[Group] = &[
    ("3DES", |name| name.contains("3DES")),
    ("AES", |name| name.contains("_AES_")),
    ("AES128", |name| name.contains("_AES_128_")),
    ("AES256", |name| name.contains("_AES_256_")),
    ("AESGCM", |name| name.contains("_GCM_")),
    ("ALL", |_| true),
    ("CHACHA20", |name| name.contains("CHACHA20")),
    ("ECDHE", |name| name.starts_with("TLS_ECDHE_")),
    ("ECDSA", |name| name.starts_with("TLS_ECDHE_ECDSA_")),
    ("EECDH", |name| name.starts_with("TLS_ECDHE_")),
    ("FIPS", |_| true),
    ("HIGH", |_| true),
    ("PSK", |name| name.starts_with("TLS_PSK_")),
    ("RSA", |name| name.starts_with("TLS_RSA_")),
    ("SHA", |name| name.ends_with("_SHA")),
    ("SHA1", |name| name.ends_with("_SHA")),
    ("SSLv3", |name| name.ends_with("_SHA")),
    ("TLSv1", |name| name.ends_with("_SHA")),
    ("TLSv1.2", |name| !name.ends_with("_SHA")),
    ("aECDSA", |name| name.contains("_ECDSA_")),
    ("aPSK", |name| name.contains("_PSK_")),
    ("aRSA", |name| name.contains("_RSA_")),
    ("kECDHE", |name| name.starts_with("TLS_ECDHE_")),
    ("kEECDH", |name| name.starts_with("TLS_ECDHE_")),
    ("kPSK", |name| name.starts_with("TLS_PSK_")),
    ("kRSA", |name| name.starts_with("TLS_RSA_")),
];

/// A defect of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Defect {
    /// A name that the library does not know.
    Unknown(String),
    Syntax(&'static str),
}

/// Returns the names of all ciphers.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CIPHERS.iter().map(|(name, _)| *name)
}

/// The state of the library while it reads a list.
#[derive(Debug)]
pub(super) struct CipherList {
    /// The chosen ciphers, as bits at their indices in [`CIPHERS`].
    chosen: u32,
    /// The ciphers that no later rule can choose.
    killed: u32,
    has_bracket: bool,
    is_first: bool,
}

impl CipherList {
    pub(super) fn new() -> Self {
        Self { chosen: 0, killed: 0, has_bracket: false, is_first: true }
    }

    /// Returns whether the list has no cipher.
    pub(super) fn is_empty(&self) -> bool {
        self.chosen == 0
    }

    /// Reads an entry of a list. Envoy joins the entries with colons, which end each rule.
    pub(super) fn add(&mut self, entry: &str) -> Result<(), Defect> {
        let mut rest = entry;
        let is_first = std::mem::replace(&mut self.is_first, false);
        if let Some(after) = rest.strip_prefix("DEFAULT").filter(|_| is_first) {
            self.chosen = members(|_| true);
            rest = after;
        }
        let mut is_inside = false;
        while let Some(first) = rest.chars().next() {
            let after = &rest[first.len_utf8()..];
            let rule = match first {
                ']' if is_inside => {
                    is_inside = false;
                    rest = after;
                    continue;
                }
                '|' if is_inside => {
                    rest = after;
                    continue;
                }
                _ if is_inside && !first.is_ascii_alphanumeric() => {
                    return Err(Defect::Syntax("has an operator between brackets, or no `]`"));
                }
                '[' => {
                    (is_inside, self.has_bracket) = (true, true);
                    rest = after;
                    continue;
                }
                ':' => {
                    rest = after;
                    continue;
                }
                '-' | '+' | '!' | '@' => first,
                _ => '=',
            };
            if self.has_bracket && rule != '=' {
                return Err(Defect::Syntax("has an operator, and a group in brackets before it"));
            }
            rest = self.rule(rule, if rule == '=' { rest } else { after })?;
        }
        if is_inside { Err(Defect::Syntax("has `[` without `]`")) } else { Ok(()) }
    }

    /// Applies a rule without its operator, and returns the text after it.
    fn rule<'t>(&mut self, operator: char, mut rest: &'t str) -> Result<&'t str, Defect> {
        let (mut chosen, mut is_multiple) = (u32::MAX, false);
        loop {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            let (name, after) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
            rest = after;
            let has_more = rest.starts_with('+');
            if operator == '@' && name == "STRENGTH" {
                return Ok(rest.find(':').map_or("", |at| &rest[at..]));
            }
            if name.is_empty() || operator == '@' {
                return Err(Defect::Syntax("has an operator or a separator without a name"));
            }
            // Exact names are not possible in a combination.
            let exact = if is_multiple || has_more { None } else { exact(name) };
            chosen &= match exact.or_else(|| group(name)) {
                Some(found) => found,
                None => return Err(Defect::Unknown(name.to_owned())),
            };
            match rest.strip_prefix('+') {
                Some(after) => (rest, is_multiple) = (after, true),
                None => break,
            }
        }
        match operator {
            '=' => self.chosen |= chosen & !self.killed,
            '-' => self.chosen &= !chosen,
            '!' => {
                self.chosen &= !chosen;
                self.killed |= chosen;
            }
            _ => {}
        }
        Ok(rest)
    }
}

fn members(is_member: impl Fn(&str) -> bool) -> u32 {
    let all = CIPHERS.iter().enumerate().filter(|(_, (_, standard))| is_member(standard));
    all.map(|(at, _)| 1 << at).sum()
}

/// Returns the cipher with a name. A list cannot choose one of TLS 1.3.
fn exact(name: &str) -> Option<u32> {
    let at = CIPHERS.iter().position(|(own, standard)| [*own, *standard].contains(&name));
    at.map(|at| 1 << at).or(TLS13.contains(&name).then_some(0))
}

/// Returns the ciphers of a group. Weak ciphers are only in the group of their kind.
fn group(name: &str) -> Option<u32> {
    let (_, is_member) = GROUPS.iter().find(|(group, _)| *group == name)?;
    let is_weak = |cipher: &str| cipher.contains("3DES") || cipher.ends_with("_CBC_SHA256");
    Some(members(|cipher| is_member(cipher) && (name == "3DES" || !is_weak(cipher))))
}
