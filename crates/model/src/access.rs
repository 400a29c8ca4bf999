//! Access rules: which identities may use which scopes.

mod principal;

pub use principal::{Identity, PRINCIPAL_BYTES_MAX, Principal, PrincipalError, Token, TokenDigest};
