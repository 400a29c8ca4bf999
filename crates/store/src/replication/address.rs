//! The addresses of replicas.

use std::net::IpAddr;

/// The maximum length of an address in bytes: the longest host name, a colon, and a port.
const ADDRESS_BYTES_MAX: usize = 255 + 6;

/// Checks that an address can be that of a replica: a host and a port.
///
/// # Errors
/// Returns the problem as text.
pub fn check_address(address: &str) -> Result<(), String> {
    let len = address.len();
    if len > ADDRESS_BYTES_MAX {
        return Err(format!(
            "the address of a replica has {len} bytes, at most {ADDRESS_BYTES_MAX} are allowed"
        ));
    }
    if address.contains('@') {
        // The address is not shown, because it may contain a password.
        return Err(
            "the address of a replica contains a user or a password (`@`): expected HOST:PORT"
                .to_owned(),
        );
    }
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if ip.is_ok_and(|ip| ip.is_unspecified()) {
        return Err(format!(
            "{address:?} is not the address of a replica: other replicas cannot reach it at {host}, which \
             means all addresses of a machine"
        ));
    }
    let valid = address.parse::<http::uri::Authority>().is_ok_and(|authority| {
        !authority.host().is_empty() && authority.port_u16().is_some_and(|port| port > 0)
    });
    if valid {
        Ok(())
    } else {
        Err(format!("{address:?} is not the address of a replica: expected HOST:PORT"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_with_a_password_is_refused_without_showing_it() {
        assert_eq!(check_address("replica-1:18002"), Ok(()));
        for address in ["u:SECRET@h:1", "SECRET@h:1"] {
            let error = check_address(address).unwrap_err();
            assert!(
                error.contains("contains a user or a password") && !error.contains("SECRET"),
                "{error}"
            );
        }
    }
}
