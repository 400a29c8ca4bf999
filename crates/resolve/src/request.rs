//! The request that is resolved, and how the router of a node sees it.

/// The maximum size of a URL in bytes.
const URL_BYTES_MAX: usize = 16 << 10;
/// The maximum number of headers.
const HEADERS_MAX: usize = 100;
/// The maximum size of all headers in bytes.
const HEADER_BYTES_MAX: usize = 64 << 10;

/// A request of an HTTP client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `http` or `https`.
    pub scheme: String,
    /// The host without the port, in lower case.
    pub host: String,
    /// The port in the URL. `None` means the default port of the scheme.
    pub port: Option<u16>,
    /// The header `host`: from the headers, or the host with a port that is not the default one.
    pub authority: String,
    /// The path with the query.
    pub path: String,
    /// The method.
    pub method: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Request {
    /// Parses a URL, a method (empty means `GET`) and headers of the form `NAME:VALUE`.
    ///
    /// # Errors
    /// Returns the reason why an argument is not valid.
    pub fn parse(url: &str, method: &str, headers: &[String]) -> Result<Self, String> {
        if url.len() > URL_BYTES_MAX {
            return Err(format!("the URL has {} bytes, the maximum is {URL_BYTES_MAX}", url.len()));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            format!("{url:?} is not a URL; give one such as `https://shop.example/cart`")
        })?;
        let scheme = scheme.to_ascii_lowercase();
        let default_port = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            other => return Err(format!("the scheme of the URL is {other:?}; give http or https")),
        };
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            let text = "the URL has characters that a request cannot contain; percent-encode them";
            return Err(text.to_owned());
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = split_port(authority);
        let port = port.map(|text| {
            let parsed = text.parse::<u16>().ok().filter(|port| *port != 0);
            parsed.ok_or_else(|| format!("{text:?} is not a port; give a number from 1 to 65535"))
        });
        let port = port.transpose()?;
        if host.is_empty() {
            return Err(format!("the URL {url:?} has no host"));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let (headers, given_host) = parse_headers(headers)?;
        let shown_port = port.filter(|port| *port != default_port);
        let authority = given_host.unwrap_or_else(|| match shown_port {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        });
        let method = if method.is_empty() { "GET" } else { method };
        if !method.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
            return Err(format!("{method:?} is not a method"));
        }
        Ok(Self {
            scheme,
            host: host.trim_matches(['[', ']']).to_ascii_lowercase(),
            port,
            authority,
            path,
            method: method.to_owned(),
            headers,
        })
    }

    /// Returns whether the client uses TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.scheme == "https"
    }

    /// Returns the port to which the client connects.
    pub(crate) fn connected_port(&self) -> u16 {
        self.port.unwrap_or(if self.is_tls() { 443 } else { 80 })
    }

    /// Returns the values of a header, in their order.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let of_name = self.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        of_name.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns all values of a header, joined with commas.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let values = self.headers.iter().filter(|(known, _)| known == name);
        let values: Vec<&str> = values.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(","))
    }
}

type Headers = Vec<(String, String)>;

/// Parses headers. Returns them without `host`, and the value of `host`.
fn parse_headers(headers: &[String]) -> Result<(Headers, Option<String>), String> {
    let n_bytes: usize = headers.iter().map(String::len).sum();
    if headers.len() > HEADERS_MAX || n_bytes > HEADER_BYTES_MAX {
        return Err(format!(
            "there are {} headers of {n_bytes} bytes; the maximum is {HEADERS_MAX} headers of {HEADER_BYTES_MAX} bytes",
            headers.len()
        ));
    }
    let (mut parsed, mut host) = (Vec::new(), None);
    for header in headers {
        let split = header.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
        let is_name = |name: &str| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&byte))
        };
        let Some((name, value)) = split.filter(|(name, _)| is_name(name)) else {
            return Err(format!("{header:?} is not a header; give NAME:VALUE"));
        };
        if value.chars().any(char::is_control) {
            return Err(format!("the value of the header {name:?} has control characters"));
        }
        match name.to_ascii_lowercase() {
            name if name == "host" => host = Some(value.to_owned()),
            name => parsed.push((name, value.to_owned())),
        }
    }
    Ok((parsed, host))
}

/// Splits `HOST:PORT`. A host in brackets may contain colons.
pub(crate) fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rfind(':') {
        Some(colon) if authority.rfind(']').is_none_or(|bracket| bracket < colon) => {
            let (host, port) = authority.split_at(colon);
            (host, Some(&port[1..]).filter(|port| !port.is_empty()))
        }
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Request {
        Request::parse(url, "", &[]).unwrap()
    }

    #[test]
    fn url_has_host_port_and_path_with_query() {
        let request = parse("HTTPS://user@Shop.Example:8443/a/../b?c=d/e#f");
        assert_eq!((request.scheme.as_str(), request.host.as_str()), ("https", "shop.example"));
        assert_eq!(request.authority, "Shop.Example:8443");
        assert_eq!((request.port, request.path.as_str()), (Some(8443), "/a/../b?c=d/e"));
        assert_eq!(request.method, "GET");
        let request = parse("http://[::1]:80?x");
        assert_eq!((request.host.as_str(), request.authority.as_str()), ("::1", "[::1]"));
        assert_eq!((request.connected_port(), request.path.as_str()), (80, "/?x"));
    }

    #[test]
    fn host_header_replaces_authority_and_values_are_joined() {
        let headers = ["Host: other.example", "X-A: 1", "x-a:2"].map(str::to_owned);
        let request = Request::parse("http://shop.example", "post", &headers).unwrap();
        assert_eq!((request.authority.as_str(), request.path.as_str()), ("other.example", "/"));
        assert_eq!(request.header("x-a").as_deref(), Some("1,2"));
        assert_eq!(request.header("host"), None);
    }

    #[test]
    fn invalid_argument_is_rejected_with_reason() {
        for (url, header, part) in [
            ("shop.example/cart", "", "is not a URL"),
            ("ftp://shop.example", "", "the scheme of the URL is \"ftp\""),
            ("http:///cart", "", "has no host"),
            ("http://a:99999/", "", "is not a port"),
            ("http://a/ b", "", "percent-encode"),
            ("http://a/", "nonsense", "is not a header"),
            ("http://a/", "a b:c", "is not a header"),
        ] {
            let headers: Vec<String> = Some(header)
                .filter(|header| !header.is_empty())
                .map(str::to_owned)
                .into_iter()
                .collect();
            let error = Request::parse(url, "GET", &headers).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let long = format!("http://a/{}", "x".repeat(URL_BYTES_MAX));
        assert!(Request::parse(&long, "GET", &[]).unwrap_err().contains("the maximum is"));
        assert!(Request::parse("http://a/", "G T", &[]).unwrap_err().contains("is not a method"));
    }
}
