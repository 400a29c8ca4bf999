//! The console: pages over the API, and the protection of their forms.

use axum::{Router, body::Body};
use chancery_admin::{AdminDeps, router};
use chancery_auth::TransportPeer;
use chancery_model::types;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use crate::{
    access::{Who, done, rules, token},
    support::{Client, Server, clusters, eventually},
};

/// The pages that an empty cluster has.
const PAGES: [&str; 16] = [
    "/ui",
    "/ui/nodes",
    "/ui/nodes?id=a*&state=rejected&behind=0&sort=state",
    "/ui/node?id=a",
    "/ui/resolve?node=a&url=http://b/",
    "/ui/resources",
    "/ui/resources?scope=default&type=cds",
    "/ui/resource?type=cds&name=a",
    "/ui/history",
    "/ui/diff",
    "/ui/cluster",
    "/ui/problems",
    "/ui/mcp",
    "/ui/load",
    "/ui/freezes",
    "/ui/rollback",
];

/// Text that would be markup or leave an attribute, if a page did not escape it.
const MARKUP: &str = r#"<script>alert(1)</script>"'><img src=x onerror=alert(2)>&lt;"#;

const CSRF: &str = "0123456789abcdef0123456789abcdef";

/// An answer of the console.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Returns the value of a cookie that the answer sets.
    fn cookie(&self, name: &str) -> Option<String> {
        let all = self.headers.get_all(header::SET_COOKIE).iter();
        let mut all = all.map(|value| value.to_str().unwrap());
        all.find_map(|text| text.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    }
}

async fn send(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Answer { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

/// Returns a request of a browser.
fn browse(method: &str, uri: &str, cookies: &str) -> http::request::Builder {
    let request = Request::builder().method(method).uri(uri).header("host", "localhost:18001");
    let request = request.header("sec-fetch-site", "same-origin");
    if cookies.is_empty() { request } else { request.header("cookie", cookies) }
}

async fn get(server: &Server, uri: &str) -> Answer {
    send(&server.router, browse("GET", uri, "").body(Body::empty()).unwrap()).await
}

/// Returns the page at an address that a test expects to work.
async fn page(server: &Server, uri: &str) -> String {
    let answer = get(server, uri).await;
    assert_eq!(answer.status, 200, "{uri}: {}", answer.body);
    answer.body
}

/// Sends a form of a page, with the cookies of the browser.
async fn post(server: &Server, uri: &str, fields: &str, cookies: &str) -> Answer {
    let cookies = format!("chancery_csrf={CSRF}; {cookies}");
    let request = browse("POST", uri, &cookies)
        .header("origin", "http://localhost:18001")
        .header("content-type", "application/x-www-form-urlencoded");
    let body = format!("csrf={CSRF}&{fields}");
    send(&server.router, request.body(Body::from(body)).unwrap()).await
}

/// Checks what every answer of the console has.
fn check_headers(uri: &str, answer: &Answer) {
    let policy = answer.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{uri}: {policy}");
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(answer.header("x-frame-options"), "DENY", "{uri}");
    assert_eq!(answer.header("x-content-type-options"), "nosniff", "{uri}");
    assert_eq!(answer.header("cross-origin-opener-policy"), "same-origin", "{uri}");
}

/// Checks that a page has no inline script or style, and refers to nothing outside of the console.
fn check_page(uri: &str, body: &str) {
    let lower = body.to_lowercase();
    for forbidden in [
        " style=",
        "<style",
        "javascript:",
        "<iframe",
        "src=\"http",
        "href=\"http",
        " onerror=alert(2)>",
    ] {
        let is_there =
            lower.contains(forbidden) && !lower.contains(&format!("&lt;img src=x{forbidden}"));
        assert!(!is_there, "{uri} has {forbidden}: {body}");
    }
    assert_eq!(lower.matches("<script").count(), 1, "{uri}: {body}");
    assert!(lower.contains("<script src=\"/ui/static/console-"), "{uri}");
    assert!(body.len() < 400 << 10, "{uri} has {} bytes", body.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_works_on_an_empty_cluster() {
    let server = Server::start().await;
    for uri in PAGES {
        let answer = get(&server, uri).await;
        let is_missing = uri.starts_with("/ui/resource?");
        let expected = if is_missing { 404 } else { 200 };
        assert_eq!(answer.status, expected, "{uri}: {}", answer.body);
        assert_eq!(answer.header("content-type"), "text/html; charset=utf-8", "{uri}");
        assert_eq!(answer.header("cache-control"), "no-store", "{uri}");
        check_headers(uri, &answer);
        check_page(uri, &answer.body);
    }
    let unknown = get(&server, "/ui/unknown").await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.header("content-type")),
        (404, "text/html; charset=utf-8")
    );
    let wrong = get(&server, "/ui/nodes?stat=x").await;
    assert!(wrong.status == 400 && wrong.body.contains("unknown parameter"), "{}", wrong.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn static_files_may_be_kept_and_the_console_may_be_off() {
    let server = Server::start().await;
    let body = page(&server, "/ui").await;
    let style = body.split('"').find(|text| text.ends_with(".css")).unwrap();
    let answer = get(&server, style).await;
    assert_eq!(answer.header("content-type"), "text/css; charset=utf-8");
    assert!(answer.header("cache-control").contains("immutable"));
    check_headers(style, &answer);
    assert_eq!(get(&server, "/ui/static/console.css").await.status, 404);

    let (off, _task) = router(&AdminDeps { console: None, ..server.deps.clone() });
    for uri in ["/ui", "/ui/sign-in", style] {
        let answer = send(&off, browse("GET", uri, "").body(Body::empty()).unwrap()).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("content-type")),
            (404, "application/json")
        );
    }
    let form = browse("POST", "/ui/freeze", "").header("origin", "http://localhost:18001");
    assert_eq!(send(&off, form.body(Body::empty()).unwrap()).await.status, 403);
    server.stop().await;
}

/// Attack 51: names, messages, labels and values of others are text on every page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_markup_is_shown_as_text() {
    let server = Server::start().await;
    let manifest = json!({
        "resources": [{"resource": {
            "@type": types::CLUSTER, "name": MARKUP, "connect_timeout": "1s", "alt_stat_name": MARKUP,
        }, "labels": {"team": "a"}}],
    });
    let reason = "%3Cscript%3Ealert(1)%3C/script%3E";
    let uri = format!("/v1/apply?reason={reason}&author={reason}&labels=a={reason}");
    server.done("POST", &uri, &manifest.to_string()).await;
    let mut client = Client::open(&server, MARKUP);
    client.subscribe(types::CLUSTER).await;
    let response = client.response().await;
    client.answer(&response, Some(MARKUP)).await;
    let rejected = async || page(&server, "/ui").await.contains("rejected").then_some(());
    eventually(rejected, "the rejection is shown").await;
    let name = "%3Cscript%3Ealert(1)%3C/script%3E%22'%3E%3Cimg%20src=x%20onerror=alert(2)%3E%26lt;";
    let pages = [
        "/ui".to_owned(),
        "/ui/nodes".to_owned(),
        format!("/ui/nodes?id={name}"),
        format!("/ui/node?id={name}"),
        format!("/ui/resolve?node={name}&url={name}"),
        "/ui/resources".to_owned(),
        format!("/ui/resource?type=cds&name={name}"),
        format!("/ui/history?author={name}"),
        "/ui/history".to_owned(),
        "/ui/revision?revision=1".to_owned(),
        "/ui/diff?from=0".to_owned(),
        "/ui/problems".to_owned(),
        "/ui/undo?revision=1".to_owned(),
        format!("/ui/freezes?scope={name}"),
        format!("/ui/load?cluster={name}"),
    ];
    let mut n_shown = 0;
    for uri in pages {
        let body = get(&server, &uri).await.body;
        check_page(&uri, &body);
        n_shown += usize::from(body.contains("&lt;script&gt;alert(1)"));
    }
    assert!(n_shown >= 12, "only {n_shown} pages show the text");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_hidden_on_every_page() {
    let server = Server::start().await;
    let content = "q9Zx-7Jv!mW2_pL4";
    let secret = json!({"resources": [{
        "@type": types::SECRET, "name": "cert",
        "generic_secret": {"secret": {"inline_string": content}},
    }]});
    server.done("POST", "/v1/apply", &secret.to_string()).await;
    let body = page(&server, "/ui/resource?type=sds&name=cert").await;
    assert!(body.contains("[redacted]"), "{body}");
    for uri in ["/ui/resource?type=sds&name=cert", "/ui/revision?revision=1", "/ui/undo?revision=1"]
    {
        let body = get(&server, uri).await.body;
        assert!(!body.contains(content), "{uri} shows the secret: {body}");
    }
    server.stop().await;
}

/// The pages say which nodes lack what, and why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_and_nodes_show_who_rejected_and_why() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["web"], "1s")).await;
    let (mut good, mut bad) = (Client::open(&server, "edge-1"), Client::open(&server, "edge-2"));
    for (client, verdict) in [(&mut good, None), (&mut bad, Some("no such transport socket"))] {
        client.subscribe(types::CLUSTER).await;
        let response = client.response().await;
        client.answer(&response, verdict).await;
    }
    let shown = async || {
        let body = page(&server, "/ui").await;
        body.contains("1 of 2 nodes lacks something: 1 rejected.").then_some(body)
    };
    let body = eventually(shown, "the verdict").await;
    assert!(body.contains("no such transport socket"), "{body}");
    assert!(body.contains("replica 1") && body.contains("Nodes by client and version"), "{body}");
    let body = page(&server, "/ui/nodes?state=rejected").await;
    assert!(body.contains("edge-2") && !body.contains("edge-1<"), "{body}");
    assert!(body.contains("chancery nodes --state rejected"), "{body}");
    let body = page(&server, "/ui/node?id=edge-2").await;
    for text in
        ["no such transport socket", "Assignments in the order", "web", "chancery explain edge-2"]
    {
        assert!(body.contains(text), "{text}: {body}");
    }
    let body = page(&server, "/ui/revision?revision=1").await;
    assert!(body.contains("1 of 2 sessions") && body.contains("edge-2"), "{body}");
    server.stop().await;
}

/// Returns the fields of the form of a plan, as the browser sends them.
fn form_fields(body: &str) -> String {
    let form = body.split("<form class=\"confirm\"").nth(1).unwrap();
    let form = form.split("</form>").next().unwrap();
    let mut fields = Vec::new();
    for input in form.split("<input ").skip(1) {
        let value = |name: &str| {
            let found = input.split(&format!("{name}=\"")).nth(1);
            found.and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned()
        };
        if value("name") != "csrf" && value("type") != "text" {
            fields.push(format!("{}={}", value("name"), value("value")));
        }
    }
    fields.join("&")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actions_show_a_dry_run_and_write_after_a_confirmation() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["a", "b"], "1s")).await;
    server.done("POST", "/v1/apply", &clusters(&["a"], "2s")).await;
    for uri in
        ["/ui/undo?revision=2", "/ui/rollback?to=1&scope=default", "/ui/rollback?to=1&all=true"]
    {
        let body = page(&server, uri).await;
        assert!(
            body.contains("Nothing is written yet") && body.contains("connect_timeout"),
            "{uri}: {body}"
        );
        check_page(uri, &body);
    }
    let body = page(&server, "/ui/undo?revision=2").await;
    let fields = format!("{}&reason=too%20slow", form_fields(&body));
    let answer = post(&server, "/ui/undo", &fields, "").await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("location")),
        (303, "/ui/revision?revision=3"),
        "{}",
        answer.body
    );
    // A form that is sent twice takes effect once.
    let answer = post(&server, "/ui/undo", &fields, "").await;
    assert_eq!(answer.header("location"), "/ui/revision?revision=3", "{}", answer.body);
    let body = page(&server, "/ui/revision?revision=3").await;
    assert!(body.contains("too slow") && body.contains("connect_timeout"), "{body}");

    let body = page(&server, "/ui/freezes?scope=default").await;
    let fields = format!("{}&scope=default&for=30m", form_fields(&body).replace("all=true&", ""));
    let answer = post(&server, "/ui/freeze", &fields, "").await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    server.done("POST", "/v1/apply", &clusters(&["a"], "9s")).await;
    let body = page(&server, "/ui").await;
    assert!(body.contains("A freeze holds changes of the scope"), "{body}");
    let body = page(&server, "/ui/thaw?scope=default").await;
    assert!(body.contains("connect_timeout"), "{body}");
    let answer = post(&server, "/ui/thaw", &form_fields(&body), "").await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    assert!(page(&server, "/ui/freezes").await.contains("Nothing is frozen"));
    server.stop().await;
}

/// Attack 50: no other site can use the forms, whatever the browser adds to its requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forms_of_other_sites_are_refused() {
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["a"], "1s")).await;
    let form = |origin: Option<&str>, site: Option<&str>, cookie: &str, body: &str| {
        let mut request = Request::post("/ui/freeze").header("host", "localhost:18001");
        request = request.header("content-type", "application/x-www-form-urlencoded");
        for (name, value) in [("origin", origin), ("sec-fetch-site", site)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request.header("cookie", cookie).body(Body::from(body.to_owned())).unwrap()
    };
    let own = Some("http://localhost:18001");
    let cookie = format!("chancery_csrf={CSRF}");
    let fields = format!("csrf={CSRF}&scope=default&sure=true");
    let refused = [
        form(Some("http://evil.example"), Some("cross-site"), &cookie, &fields),
        form(Some("null"), None, &cookie, &fields),
        form(own, Some("same-site"), &cookie, &fields),
        // No sign of a browser, no cookie, another value, no value, and several cookies.
        form(None, None, &cookie, &fields),
        form(own, Some("same-origin"), "", &fields),
        form(own, Some("same-origin"), &cookie, &fields.replace('0', "1")),
        form(own, Some("same-origin"), &cookie, "scope=default&sure=true"),
        form(own, Some("same-origin"), "chancery_csrf=", "csrf=&scope=default&sure=true"),
        form(own, Some("same-origin"), &format!("{cookie}; {cookie}"), &fields),
    ];
    for (at, request) in refused.into_iter().enumerate() {
        let answer = send(&server.router, request).await;
        assert_eq!(answer.status, 403, "request {at}: {}", answer.body);
        check_headers("/ui/freeze", &answer);
    }
    let freezes = server.done("GET", "/v1/freezes", "").await;
    assert_eq!(freezes["freezes"], json!([]));
    // A page of the console cannot write over the API either.
    let api =
        browse("POST", "/v1/freeze?scope=default", "").header("origin", "http://localhost:18001");
    assert_eq!(send(&server.router, api.body(Body::empty()).unwrap()).await.status, 403);
    let foreign = Request::get("/ui").header("host", "evil.example").body(Body::empty()).unwrap();
    assert_eq!(send(&server.router, foreign).await.status, 403);
    server.stop().await;
}

/// A link on another site opens a page that links to the address. The replica runs no operation for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn link_of_another_site_shows_only_the_address() {
    let server = Server::start().await;
    let request = Request::get("/ui/nodes?id=%22%3E%3Cscript%3E")
        .header("host", "localhost:18001")
        .header("sec-fetch-site", "cross-site")
        .header("sec-fetch-mode", "navigate")
        .header("sec-fetch-dest", "document");
    let answer = send(&server.router, request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("href=\"/ui/nodes?id=%22%3E%3Cscript%3E\""), "{}", answer.body);
    assert!(!answer.body.contains("<form"), "{}", answer.body);
    check_page("link", &answer.body);
    server.stop().await;
}

/// The token is in a cookie that scripts cannot read, and the rights are those of the API.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sign_in_gives_the_rights_of_the_token() {
    let server = Server::start_enforced().await;
    done(&server, Who::Admin, "POST", "/v1/apply", &clusters(&["a"], "1s")).await;
    done(&server, Who::Admin, "POST", "/v1/apply", &clusters(&["a"], "2s")).await;
    let allow = json!([{"verbs": ["get"], "scopes": ["default"]}, {"verbs": ["nodes", "history"]}]);
    let grants = json!([{"name": "read", "identity": "token:reader", "allow": allow}]);
    rules(&server, grants).await;
    let reader = token(&server, "reader").await;

    let answer = get(&server, "/ui/nodes?id=a").await;
    assert_eq!(answer.status, 401);
    assert!(
        answer.body.contains("name=\"token\"") && answer.body.contains("value=\"/ui/nodes?id=a\""),
        "{}",
        answer.body
    );
    check_headers("/ui/nodes", &answer);
    assert!(answer.cookie("chancery_csrf").is_some());
    for wrong in ["chy_wrong", "", "a%20b"] {
        let answer = post(&server, "/ui/sign-in", &format!("token={wrong}&next=/ui"), "").await;
        assert_eq!(answer.status, 401, "{}", answer.body);
        assert_eq!(answer.cookie("chancery_token"), None);
    }
    for (next, location) in [
        ("/ui/nodes?id=a", "/ui/nodes?id=a"),
        ("//evil.example/ui", "/ui"),
        ("https://evil.example/ui", "/ui"),
    ] {
        let next = next.replace('?', "%3F").replace('=', "%3D");
        let answer = post(&server, "/ui/sign-in", &format!("token={reader}&next={next}"), "").await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("location")),
            (303, location),
            "{}",
            answer.body
        );
        let cookie = answer.cookie("chancery_token").unwrap();
        assert_eq!(cookie, format!("{reader}; Path=/ui; HttpOnly; SameSite=Strict"));
    }
    let cookie = format!("chancery_token={reader}");
    let show = async |uri: &str| {
        send(&server.router, browse("GET", uri, &cookie).body(Body::empty()).unwrap()).await
    };
    let body = show("/ui").await.body;
    assert!(
        body.contains("token:reader") && body.contains("read-only") && body.contains("Sign out"),
        "{body}"
    );
    assert!(!body.contains(&reader), "the page has the token: {body}");
    // The reader may not see the cluster, and may not write.
    assert_eq!(show("/ui/cluster").await.status, 403);
    let body = show("/ui/undo?revision=2").await.body;
    assert!(
        body.contains("The dry run failed") && !body.contains("<form class=\"confirm\""),
        "{body}"
    );
    let answer = post(&server, "/ui/undo", "revision=2", &cookie).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    // The cookie is no credential of the API.
    let api = browse("GET", "/v1/nodes", &cookie).body(Body::empty()).unwrap();
    assert_eq!(send(&server.router, api).await.status, 401);

    let answer = post(&server, "/ui/sign-out", "", &cookie).await;
    assert_eq!((answer.status.as_u16(), answer.header("location")), (303, "/ui/sign-in"));
    assert!(answer.cookie("chancery_token").unwrap().contains("Max-Age=0"));
    done(&server, Who::Admin, "DELETE", "/v1/tokens?name=reader", "").await;
    let answer = show("/ui/history").await;
    assert_eq!(answer.status, 401);
    assert!(answer.body.contains("no longer accepted"), "{}", answer.body);
    assert!(answer.cookie("chancery_token").unwrap().contains("Max-Age=0"));
    server.stop().await;
}

/// A certificate or the user of the socket signs in without a form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_with_an_identity_needs_no_token() {
    let server = Server::start_enforced().await;
    let mut request = browse("GET", "/ui", "").body(Body::empty()).unwrap();
    request.extensions_mut().insert(TransportPeer::UnixUser(0));
    let answer = send(&server.router, request).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("unix:0") && answer.body.contains("may write"), "{}", answer.body);
    server.stop().await;
}

/// The events say only that something changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_follow_changes() {
    let server = Server::start().await;
    let request = browse("GET", "/ui/events", "").body(Body::empty()).unwrap();
    let response = server.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    server.done("POST", "/v1/apply", &clusters(&["a"], "1s")).await;
    let next = async || {
        let frame = body.frame().await?.ok()?.into_data().ok()?;
        String::from_utf8(frame.to_vec()).ok().filter(|text| text.starts_with("event: change"))
    };
    let event = eventually(next, "the event of the revision").await;
    assert_eq!(event, "event: change\ndata: 1\n\n");
    server.stop().await;
}

/// Pages stay fast and small with many nodes. The number of nodes is lower without `CHANCERY_TEST_LONG`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_stay_fast_and_small_with_many_nodes() {
    let is_long = std::env::var_os("CHANCERY_TEST_LONG").is_some();
    let n_nodes = if is_long { 100_000 } else { 2_000 };
    let server = Server::start().await;
    server.done("POST", "/v1/apply", &clusters(&["web"], "1s")).await;
    let mut clients = Vec::new();
    for n in 0..n_nodes {
        let mut client = Client::open(&server, &format!("node-{n:06}"));
        client.subscribe(types::CLUSTER).await;
        clients.push(client);
    }
    let pages = [
        "/ui",
        "/ui/nodes",
        "/ui/nodes?state=pending",
        "/ui/nodes?id=*9&sort=state",
        "/ui/nodes?behind=1",
        "/ui/node?id=node-000042",
        "/ui/resource?type=cds&name=web",
        "/ui/history",
        "/ui/revision?revision=1",
        "/ui/problems",
        "/ui/cluster",
    ];
    for uri in pages {
        let since = std::time::Instant::now();
        let body = page(&server, uri).await;
        let passed = since.elapsed();
        println!("{uri}: {passed:?}, {} bytes", body.len());
        assert!(body.len() < 100 << 10, "{uri} has {} bytes", body.len());
        assert!(passed.as_secs() < 10, "{uri} took {passed:?}");
    }
    drop(clients);
    server.stop().await;
}
