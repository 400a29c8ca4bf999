//! The kit against a small server with one planted fault: it must notice the fault, and describe it.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod mute;
mod server;

use std::time::Duration;

use chancery_conformance::{
    Adapter, Case, Command, Plain, Report, Target, Verdict, all, prepare, run,
};

use crate::server::{Fault, Server};

/// A server that serves gRPC and REST on one address, with time limits that suit most cases.
fn target(address: &str, adapter: impl Adapter + 'static) -> Target {
    Target {
        xds: address.to_owned(),
        rest: address.to_owned(),
        transport: Box::new(Plain),
        adapter: Box::new(adapter),
        run: "test".into(),
        timeout: Duration::from_secs(10),
        quiet: Duration::from_secs(1),
    }
}

/// Runs the cases with these names.
async fn report(fault: Fault, names: &[&str]) -> Report {
    let (server, adapter) = Server::start(fault).await;
    let cases: Vec<Case> =
        all().into_iter().filter(|case| names.contains(&case.name.as_str())).collect();
    assert_eq!(cases.len(), names.len(), "{names:?}");
    let mut target = target(&server.address.to_string(), adapter);
    if matches!(fault, Fault::ForgetsNames | Fault::PartialState) {
        // The cases that notice these faults always wait until the timeout ends, so the timeout is short.
        target.timeout = Duration::from_secs(2);
    }
    run(target, cases, 8, std::future::pending()).await
}

/// The cases that the small server passes without a fault, and all faults with the case that notices each, the
/// requirement, and what is observed.
const FAULTS: [(Fault, &str, &str, &str); 9] = [
    (Fault::AnswersEverything, "sotw/ads/acknowledgment-is-silent", "SOTW-25", "CDS [A@1]"),
    (Fault::RepeatsAfterRejection, "sotw/ads/rejection-is-not-repeated", "SOTW-23", "CDS [A@2]"),
    (Fault::RepeatsNonce, "sotw/ads/correction-follows-rejection", "SOTW-10", "nonce=\"n\""),
    (Fault::EmptyVersion, "services/sotw/ads/eds", "SOTW-17", "version=\"\""),
    (Fault::ForeignType, "services/sotw/ads/cds", "SVC-16", "envoy.config.listener.v3.Listener"),
    (Fault::ForgetsNames, "sotw/ads/many-names", "SOTW-49", "no response within 2s"),
    (
        Fault::PartialState,
        "harness/sotw/ads/cds/names-receive-update-full",
        "SOTW-90",
        "the client holds",
    ),
    (Fault::SplitsCommits, "sotw/ads/changes-of-a-commit-come-together", "SOTW-93", "EDS ["),
    (Fault::EndsAtUnknownType, "services/unknown-type", "SVC-10", "the stream ended"),
];

#[tokio::test(flavor = "multi_thread")]
async fn server_without_fault_passes_the_cases_that_notice_faults() {
    let names: Vec<&str> = FAULTS.iter().map(|(_, name, _, _)| *name).collect();
    let report = report(Fault::None, &names).await;
    assert!(report.is_success(), "{report:#?}");
}

/// A fault fails its case with the requirement, what was expected, what was observed, and the messages.
#[tokio::test(flavor = "multi_thread")]
async fn planted_fault_is_described_with_its_requirement() {
    for (fault, name, requirement, observed) in FAULTS {
        let report = report(fault, &[name]).await;
        let Verdict::Failed(failed) = &report.entries[0].verdict else {
            panic!("{fault:?} is not noticed: {report:#?}");
        };
        assert_eq!(failed.requirement, requirement, "{fault:?}: {failed:?}");
        assert!(failed.observed.contains(observed), "{fault:?}: {failed:?}");
        assert!(!failed.expected.is_empty(), "{fault:?}: {failed:?}");
        assert!(report.entries[0].log.iter().any(|line| line.starts_with("> ")), "{fault:?}");
        assert!(!report.is_success(), "{fault:?}");
    }
}

/// A case that needs a variant or a service that the server lacks is skipped with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn missing_variant_is_skipped_with_a_reason() {
    let names = [
        "delta/ads/acknowledgment-is-silent",
        "sotw/own/acknowledgment-is-silent",
        "rest/each-type",
    ];
    let report = report(Fault::None, &names).await;
    for entry in &report.entries {
        let Verdict::Skipped(reason) = &entry.verdict else { panic!("{entry:#?}") };
        let is_named = ["DeltaAggregatedResources", "StreamClusters", "/v3/discovery:clusters"]
            .iter()
            .any(|missing| reason.contains(missing));
        assert!(is_named, "{}: {reason}", entry.name);
    }
    assert!(report.summary().starts_with("0 passed, 0 failed, 3 skipped"), "{}", report.summary());
}

/// After each case, the adapter receives a state without the resources of the case.
#[tokio::test(flavor = "multi_thread")]
async fn case_removes_its_resources_even_if_it_fails() {
    let (server, adapter) = Server::start(Fault::AnswersEverything).await;
    let states = adapter.states();
    let target = target(&server.address.to_string(), adapter);
    let cases = all().into_iter().filter(|case| case.name.starts_with("sotw/ads/acknowledgment"));
    let report = run(target, cases.collect(), 1, std::future::pending()).await;
    assert!(!report.is_success());
    assert!(states.borrow().values().all(std::collections::BTreeMap::is_empty), "{states:?}");
}

/// A case expects an answer of the server even if its rule is about silence.
#[tokio::test(flavor = "multi_thread")]
async fn mute_server_passes_no_case() {
    let address = mute::start().await.to_string();
    let target = Target {
        timeout: Duration::from_millis(500),
        quiet: Duration::from_millis(50),
        ..target(&address, mute::Ignore)
    };
    let report = run(target, all(), 64, std::future::pending()).await;
    let passed = report.entries.iter().filter(|entry| matches!(entry.verdict, Verdict::Passed));
    assert_eq!(passed.map(|entry| entry.name.as_str()).collect::<Vec<_>>(), Vec::<&str>::new());
    assert_eq!(report.entries.len(), all().len());
}

/// An adapter that cannot publish ends the run at the first case, and not at each case again.
#[tokio::test(flavor = "multi_thread")]
async fn ended_adapter_ends_the_run() {
    let address = mute::start().await.to_string();
    let target = Target {
        timeout: Duration::from_secs(60),
        quiet: Duration::from_secs(60),
        ..target(&address, Command::start("read line").unwrap())
    };
    let report = run(target, all(), 4, std::future::pending()).await;
    assert_eq!(report.adapter_failure.as_deref(), Some("the adapter command has ended"));
    assert!(report.entries.len() <= 4 && !report.is_success(), "{report:#?}");
}

/// The loss of the adapter says nothing about the server.
#[tokio::test(flavor = "multi_thread")]
async fn cases_of_a_lost_adapter_are_undecided() {
    let address = mute::start().await.to_string();
    let target = target(&address, mute::Lost);
    let cases = all().into_iter().filter(|case| case.name.starts_with("sotw/ads/acknowledgment"));
    let report = run(target, cases.collect(), 4, std::future::pending()).await;
    assert!(!report.entries.is_empty());
    assert_eq!((report.n_failed(), report.n_undecided()), (0, report.entries.len()), "{report:#?}");
}

/// A server that accepts no connection is an error of the run, and not a violation of each case. Nothing is published.
#[tokio::test(flavor = "multi_thread")]
async fn server_without_a_connection_is_reported_before_anything_is_published() {
    let (server, adapter) = Server::start(Fault::None).await;
    let states = adapter.states();
    let closed = closed_address();
    let mut target = target(&closed, adapter);
    target.timeout = Duration::from_secs(2);
    let target = std::sync::Arc::new(target);
    let error = prepare(&target, &all()).await.unwrap_err();
    assert!(error.to_lowercase().contains("connection refused"), "{error}");
    assert!(error.ends_with("; nothing was written"), "{error}");
    assert!(states.borrow().is_empty(), "{states:?}");
    let served = server.address.to_string();
    let target = std::sync::Arc::new(self::target(&served, mute::Ignore));
    assert_eq!(prepare(&target, &all()).await, Ok(()));
}

/// Returns an address on which nobody listens.
fn closed_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}
