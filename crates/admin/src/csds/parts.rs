//! The size of a gRPC message with the status of clients. Most gRPC clients accept at most 4 MiB by default.

use std::mem;

use chancery_proto::csds::{ClientConfig, ClientStatusResponse};
use prost::{Message, encoding::encoded_len_varint};
use tonic::Status;

/// The maximum size of a unary response in bytes.
const UNARY_BYTES_MAX: usize = 4 << 20;
/// The size in bytes at which a part of a streamed response ends. A part has at least one resource.
const PART_BYTES_TARGET: usize = 2 << 20;

/// Checks the size of a unary response.
pub(super) fn check_unary(response: &ClientStatusResponse) -> Result<(), Status> {
    let n_bytes = response.encoded_len();
    if n_bytes <= UNARY_BYTES_MAX {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "the response has {n_bytes} bytes, at most {UNARY_BYTES_MAX} are allowed; call StreamClientStatus, which sends parts, \
         select fewer clients with `node_matchers`, or set `exclude_resource_contents`"
    )))
}

/// Splits a response. A client whose resources do not fit into one part is repeated in the next one, with the further
/// resources.
pub(super) fn split(all: Vec<ClientConfig>) -> Vec<ClientStatusResponse> {
    let (mut parts, mut part, mut n_bytes) = (Vec::new(), ClientStatusResponse::default(), 0);
    for mut client in all {
        let resources = mem::take(&mut client.generic_xds_configs);
        let head = field_len(client.encoded_len());
        let mut next = client.clone();
        let mut next_bytes = head;
        for resource in resources {
            let len = field_len(resource.encoded_len());
            let is_full = n_bytes + next_bytes + len > PART_BYTES_TARGET;
            let has_content = !part.config.is_empty() || !next.generic_xds_configs.is_empty();
            if is_full && has_content {
                if !next.generic_xds_configs.is_empty() {
                    part.config.push(mem::replace(&mut next, client.clone()));
                }
                parts.push(mem::take(&mut part));
                (n_bytes, next_bytes) = (0, head);
            }
            next_bytes += len;
            next.generic_xds_configs.push(resource);
        }
        n_bytes += next_bytes;
        part.config.push(next);
    }
    parts.push(part);
    parts
}

/// Returns the size of a nested message with its length and its key, of one byte.
fn field_len(n_bytes: usize) -> usize {
    1 + encoded_len_varint(n_bytes as u64) + n_bytes
}

#[cfg(test)]
mod tests {
    use chancery_proto::csds::GenericXdsConfig;

    use super::*;

    fn client(scope: &str, sizes: &[usize]) -> ClientConfig {
        let resource =
            |n: &usize| GenericXdsConfig { name: "x".repeat(*n), ..GenericXdsConfig::default() };
        ClientConfig {
            client_scope: scope.to_owned(),
            generic_xds_configs: sizes.iter().map(resource).collect(),
            ..ClientConfig::default()
        }
    }

    /// CSDS-02: the parts have all clients and resources in their order, and each has a moderate size.
    #[test]
    fn parts_have_every_resource_once() {
        let (kib, mib) = (1 << 10, 1 << 20);
        let all = vec![
            client("a", &[kib, kib]),
            client("empty", &[]),
            client("b", &[mib, mib, kib, 3 * mib, kib]),
            client("c", &[mib]),
        ];
        let parts = split(all.clone());
        let mut joined: Vec<ClientConfig> = Vec::new();
        for one in parts.iter().flat_map(|part| &part.config) {
            match joined.last_mut().filter(|last| last.client_scope == one.client_scope) {
                Some(last) => last.generic_xds_configs.extend(one.generic_xds_configs.clone()),
                None => joined.push(one.clone()),
            }
        }
        assert_eq!(joined, all);
        for part in &parts {
            let resources = part.config.iter().flat_map(|one| &one.generic_xds_configs);
            let is_small = part.encoded_len() <= PART_BYTES_TARGET;
            assert!(is_small || resources.count() == 1, "{} bytes", part.encoded_len());
        }
        assert!(parts.len() >= 4, "{} parts", parts.len());
        assert_eq!(split(Vec::new()), [ClientStatusResponse::default()]);
    }

    #[test]
    fn large_unary_response_is_refused_with_the_way_out() {
        let of = |n| ClientStatusResponse { config: vec![client("a", &[n])] };
        check_unary(&of(UNARY_BYTES_MAX - 100)).unwrap();
        let refused = check_unary(&of(UNARY_BYTES_MAX)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("call StreamClientStatus"), "{refused}");
    }
}
