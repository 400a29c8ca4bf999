//! The addresses of the servers that a mirror follows.

use tonic::codegen::http::Uri;

use crate::failure::Failure;

/// Parses the address of an xDS port.
pub(in crate::remote) fn parse(text: &str) -> Result<String, String> {
    let trimmed = text.trim();
    let (_, address) = split(trimmed);
    let uri = format!("http://{address}").parse::<Uri>().ok();
    let authority = uri.as_ref().and_then(Uri::authority).filter(|authority| {
        authority.as_str() == address
            && !authority.host().is_empty()
            && !address.contains('@')
            && authority.port_u16().is_some_and(|port| port > 0)
    });
    match authority {
        Some(_) => Ok(trimmed.to_owned()),
        None => Err("expected HOST:PORT or https://HOST:PORT, such as 127.0.0.1:18000".to_owned()),
    }
}

/// Returns the scheme of an address, and its host and port.
pub(in crate::remote) fn split(address: &str) -> (&'static str, &str) {
    match address.strip_prefix("https://") {
        Some(address) => ("https", address),
        None => ("http", address),
    }
}

/// Fails if no address can be resolved. Later on, a failed lookup may be temporary.
pub(super) async fn check(addresses: &[String]) -> Result<(), Failure> {
    let mut problems = Vec::new();
    for address in addresses {
        match tokio::net::lookup_host(split(address).1).await {
            Ok(_) => return Ok(()),
            Err(error) => problems.push(format!("cannot resolve {address:?} of --xds: {error}")),
        }
    }
    Err(Failure::lines(problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_needs_a_host_and_a_port() {
        for good in ["127.0.0.1:18000", "https://h:1", " xds.example:1 ", "[::1]:18000"] {
            assert_eq!(parse(good).unwrap(), good.trim());
        }
        for bad in [
            "",
            "https://",
            "https://h",
            "localhost",
            "h:0",
            ":1",
            "h:70000",
            "http://h:1",
            "h:1/x",
            "u@h:1",
            "a b:1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
