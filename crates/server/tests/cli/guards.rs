//! Guards, as an author sees them on the command line.

use crate::support::Server;

/// Returns a manifest with a list of `n` endpoints.
fn endpoints(n: u16) -> String {
    let one = "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 80}}}}";
    let all = vec![one; usize::from(n)].join(", ");
    format!(
        "resources: [{{'@type': type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, cluster_name: web, \
         endpoints: [{{lb_endpoints: [{all}]}}]}}]"
    )
}

#[test]
fn guarded_write_is_rejected_until_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let apply = |args: &[&str], n| {
        server.run_with_input(&[&["apply", "-f", "-"], args].concat(), &endpoints(n))
    };
    assert_eq!(apply(&[], 3).code, 0);

    let rejected = apply(&[], 0);
    assert_eq!((rejected.code, rejected.out.as_str()), (1, ""), "{rejected:?}");
    assert_eq!(
        rejected.err,
        "error: guard `empty-endpoints` rejects the write: view default (no connected node): 3 → 0 endpoints of \"web\"; \
         nothing was written; to write it anyway, pass `--confirm empty-endpoints` (HTTP: confirm=empty-endpoints)\n"
    );
    let dry_run = apply(&["--dry-run"], 0);
    let would = "error: guard `empty-endpoints` would reject the write; to write it anyway, pass `--confirm empty-endpoints`\n";
    assert_eq!((dry_run.code, &*dry_run.err), (1, would));
    assert_eq!(apply(&["--dry-run", "--exit-zero"], 0).code, 0);
    assert!(
        dry_run.out.ends_with(
            "guard empty-endpoints:\n\
             \x20 view default (no connected node): 3 → 0 endpoints of \"web\"\n\
             the write is rejected without --confirm empty-endpoints\n\
             dry run, nothing written; revision 1: 1 changed, 0 removed, 0 unchanged\n"
        ),
        "{}",
        dry_run.out
    );
    assert_eq!(server.json(&["get", "eds"], "")["revision"], 1);

    let unknown = apply(&["--confirm", "endpoints"], 0);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.err.contains("\"endpoints\" is not a guard; the guards are "), "{unknown:?}");
    let confirmed = apply(&["--confirm", "view-change, empty-endpoints"], 0);
    assert_eq!(confirmed.code, 0, "{confirmed:?}");
    assert!(confirmed.out.contains("guard empty-endpoints, confirmed:\n"), "{confirmed:?}");
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn disabled_guards_reject_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let off = [("CHANCERY_GUARDS_OFF", "all")];
    let server = Server::start_with(&directory.path().join("data"), &off);
    for n in [3, 0] {
        let written = server.run_with_input(&["apply", "-f", "-"], &endpoints(n));
        assert_eq!(written.code, 0, "{written:?}");
    }
}
