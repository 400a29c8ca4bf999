//! JSON Web Tokens of issuers and of clusters.

use std::{net::TcpListener, time::Duration};

use chancery_auth::{Algorithm, IssuerKind};
use serde_json::{Value, json};
use tokio::time::advance;

use crate::support::*;

#[tokio::test]
async fn token_of_each_algorithm_proves_its_subject() {
    let keys = [Key::es256(), Key::rs256(), Key::ed_dsa()];
    let public: Vec<Value> = keys.iter().map(|key| key.public(key.algorithm())).collect();
    let auth = Auth::new(IssuerKind::Jwt, &public);
    for key in &keys {
        let token = key.token(key.algorithm(), &claims());
        for _ in 0..2 {
            let proof = auth.identify(&bearer(&token), None, NOW).await.unwrap();
            assert_eq!(proof.identity.principal.as_str(), "jwt:corp/alice", "{}", key.algorithm());
            assert_eq!(proof.expires, Some(at(NOW + 3600)));
        }
    }
    let slash = keys[0].token("ES256", &claims_with("sub", "a/b".into()));
    assert_eq!(auth.principal(&slash).await, Ok("jwt:corp/a%2Fb".to_owned()));
}

/// attack 27: no algorithm, a symmetric one with the public key as its secret, the algorithm of another kind of key,
/// an unknown one, and one that is not allowed.
#[tokio::test]
async fn algorithm_of_the_token_cannot_choose_how_a_key_is_used() {
    let (rsa, ec) = (Key::rs256(), Key::es256());
    let public = rsa.public("rsa");
    let auth = Auth::with(IssuerKind::Jwt, &[public.clone(), ec.public("ec")], |settings| {
        settings.issuers[0].algorithms = vec![Algorithm::Rs256, Algorithm::Es256];
    });
    let header = |alg: &str, kid: &str| json!({"alg": alg, "kid": kid});
    for alg in ["none", "None", "NONE", "HS256", "HS512", "rs256", "XX256", "EdDSA", ""] {
        let unsigned = rsa.token_with(&header(alg, "rsa"), &claims());
        assert_eq!(auth.principal(&unsigned).await, Err("algorithm"), "{alg}");
        let stripped = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
        assert_eq!(auth.principal(&stripped).await, Err("algorithm"), "{alg}");
    }
    let secrets = [public.to_string(), public["n"].as_str().unwrap().to_owned()];
    for secret in &secrets {
        let forged = symmetric(secret.as_bytes(), &header("HS256", "rsa"), &claims());
        assert_eq!(auth.principal(&forged).await, Err("algorithm"));
    }
    let cases = [
        (&ec, "ES256", "rsa"),
        (&rsa, "RS256", "ec"),
        (&ec, "RS256", "rsa"),
        (&rsa, "ES256", "ec"),
    ];
    for (key, alg, kid) in cases {
        let forged = key.token_with(&header(alg, kid), &claims());
        assert_eq!(auth.principal(&forged).await, Err("signature"), "{alg} {kid}");
    }
    let stripped = rsa.token("rsa", &claims());
    let stripped = format!("{}.", stripped.rsplit_once('.').unwrap().0);
    assert_eq!(auth.principal(&stripped).await, Err("signature"));
}

#[tokio::test]
async fn token_with_a_changed_claim_or_of_another_key_is_refused() {
    let (key, other) = (Key::es256(), Key::es256());
    let auth = Auth::new(IssuerKind::Jwt, &[key.public("k")]);
    assert_eq!(auth.principal(&other.token("k", &claims())).await, Err("signature"));
    assert_eq!(auth.principal(&other.token("o", &claims())).await, Err("unknown_key"));
    let (mine, forged) =
        (key.token("k", &claims()), key.token("k", &claims_with("sub", "root".into())));
    let parts = |token: &str| token.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (mine, forged) = (parts(&mine), parts(&forged));
    let mixed = [&*mine[0], &*forged[1], &*mine[2]].join(".");
    assert_eq!(auth.principal(&mixed).await, Err("signature"));
}

/// attack 28: each claim that is wrong for its own reason.
#[tokio::test]
async fn token_with_a_wrong_claim_is_refused_with_its_reason() {
    let key = Key::es256();
    let auth = Auth::new(IssuerKind::Jwt, &[key.public("k")]);
    let day = 24 * 3600;
    for (name, value, expected) in [
        ("aud", json!("other"), "audience"),
        ("aud", json!(["chancery2", "Chancery"]), "audience"),
        ("aud", json!([]), "audience"),
        ("aud", Value::Null, "claim"),
        ("iss", json!("https://idp.example/"), "issuer"),
        ("iss", json!("https://IDP.example"), "issuer"),
        ("sub", json!(""), "claim"),
        ("exp", Value::Null, "claim"),
        ("exp", json!("1700003600"), "claim"),
        ("exp", json!(4_102_444_800_u64), "lifetime"),
        ("exp", json!(NOW + day), "lifetime"),
        ("exp", json!(NOW), "expired"),
        ("exp", json!(0), "expired"),
        ("iat", Value::Null, "claim"),
        ("iat", json!(NOW + 31), "not_yet_valid"),
        ("nbf", json!(NOW + 31), "not_yet_valid"),
        ("nbf", json!("now"), "claim"),
    ] {
        let token = key.token("k", &claims_with(name, value.clone()));
        assert_eq!(auth.principal(&token).await, Err(expected), "{name} {value}");
    }
    for (name, value) in [
        ("aud", json!("chancery")),
        ("exp", json!(NOW + day - 10)),
        ("exp", json!(NOW + 1)),
        ("iat", json!(NOW + 30)),
        ("nbf", json!(NOW + 30)),
        ("nbf", Value::Null),
    ] {
        let token = key.token("k", &claims_with(name, value.clone()));
        assert!(auth.principal(&token).await.is_ok(), "{name} {value}");
    }
}

#[tokio::test]
async fn refusal_says_which_token_and_from_when() {
    let key = Key::es256();
    let auth = Auth::new(IssuerKind::Jwt, &[key.public("k")]);
    let token = key.token("k", &claims());
    let error = auth.identify(&bearer(&token), None, NOW + 3600).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the token of the issuer \"corp\" expired at Tue, 14 Nov 2023 23:13:20 GMT; get a new one"
    );
}

/// A token that was verified before is checked for its end, too, and a clock that jumps back does not extend it.
#[tokio::test(start_paused = true)]
async fn known_token_ends_with_its_expiry() {
    let key = Key::es256();
    let auth = Auth::new(IssuerKind::Jwt, &[key.public("k")]);
    let token = key.token("k", &claims());
    assert!(auth.principal_at(&token, NOW).await.is_ok());
    advance(Duration::from_secs(3599)).await;
    assert!(auth.principal_at(&token, NOW + 3599).await.is_ok());
    advance(Duration::from_secs(1)).await;
    assert_eq!(auth.principal_at(&token, NOW + 3600).await, Err("expired"));
    assert_eq!(auth.principal_at(&token, NOW).await, Err("expired"));
}

/// One wrong moment of the wall clock refused all tokens until the restart, and accepted tokens of the future.
#[tokio::test(start_paused = true)]
async fn wrong_moment_of_the_wall_clock_passes() {
    let key = Key::es256();
    let auth = Auth::new(IssuerKind::Jwt, &[key.public("k")]);
    let token = key.token("k", &claims());
    assert!(auth.principal_at(&token, NOW).await.is_ok());
    let wrong = NOW + 100 * 24 * 3600;
    assert_eq!(auth.principal_at(&token, wrong).await, Err("expired"));
    let mut later = claims();
    (later["iat"], later["nbf"], later["exp"]) =
        (wrong.into(), wrong.into(), (wrong + 3600).into());
    let later = key.token("k", &later);
    assert!(auth.principal_at(&later, wrong).await.is_ok());
    advance(Duration::from_secs(1)).await;
    assert!(auth.principal_at(&token, NOW + 1).await.is_ok());
    assert_eq!(auth.principal_at(&later, NOW + 1).await, Err("not_yet_valid"));
    advance(Duration::from_secs(3600)).await;
    assert_eq!(auth.principal_at(&token, NOW).await, Err("expired"), "the wall clock jumped back");
}

/// attack 31: addresses and keys in the header are not used, and nobody is asked.
#[tokio::test]
async fn key_in_the_header_is_ignored_and_nothing_is_fetched() {
    let (key, evil) = (Key::es256(), Key::es256());
    let auth = Auth::new(IssuerKind::Jwt, &[key.public("k")]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let mut header = json!({"alg": "ES256", "kid": "evil", "jku": url, "x5u": url});
    header["jwk"] = evil.public("evil");
    assert_eq!(auth.principal(&evil.token_with(&header, &claims())).await, Err("unknown_key"));
    header["kid"] = "k".into();
    assert_eq!(auth.principal(&evil.token_with(&header, &claims())).await, Err("signature"));
    assert!(auth.principal(&key.token_with(&header, &claims())).await.is_ok());
    header["crit"] = json!(["jku"]);
    assert_eq!(auth.principal(&key.token_with(&header, &claims())).await, Err("header"));
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// attack 33: a token for another audience, a token of an old Secret, and claims that contradict each other.
#[tokio::test]
async fn only_bound_service_account_tokens_for_chancery_are_accepted() {
    let key = Key::rs256();
    let auth = Auth::with(IssuerKind::Kubernetes, &[key.public("k")], |settings| {
        settings.issuers[0].name = "eu1".to_owned();
    });
    let mut claims = account_claims("shop", "cart");
    let token = key.token("k", &claims);
    assert_eq!(auth.principal(&token).await, Ok("k8s:eu1/shop/cart".to_owned()));
    claims["aud"] = json!(["https://kubernetes.default.svc"]);
    assert_eq!(auth.principal(&key.token("k", &claims)).await, Err("audience"));
    let legacy = json!({"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:shop:cart",
        "kubernetes.io/serviceaccount/namespace": "shop", "kubernetes.io/serviceaccount/service-account.name": "cart"});
    assert_eq!(auth.principal(&key.token("k", &legacy)).await, Err("claim"));
    let mut claims = account_claims("shop", "cart");
    claims["sub"] = "system:serviceaccount:shop:admin".into();
    assert_eq!(auth.principal(&key.token("k", &claims)).await, Err("claim"));
    assert_eq!(
        auth.principal(&key.token("k", &claims_with("sub", "alice".into()))).await,
        Err("claim")
    );
}

/// Every cluster may call its issuer `https://kubernetes.default.svc`. The keys tell the clusters apart.
#[tokio::test]
async fn clusters_with_equal_issuer_urls_have_different_identities_by_their_keys() {
    let (first, second) = (Key::es256(), Key::rs256());
    let auth = Auth::with(IssuerKind::Kubernetes, &[first.public("k")], |settings| {
        let file = match &settings.issuers[0].keys {
            chancery_auth::KeyLocation::File(path) => path.with_file_name("second.json"),
            chancery_auth::KeyLocation::Url { .. } => panic!("the keys are in a file"),
        };
        std::fs::write(&file, json!({"keys": [second.public("k")]}).to_string()).unwrap();
        settings.issuers.push(issuer("eu2", IssuerKind::Kubernetes, file));
    });
    let claims = account_claims("shop", "cart");
    assert_eq!(
        auth.principal(&first.token("k", &claims)).await,
        Ok("k8s:corp/shop/cart".to_owned())
    );
    assert_eq!(
        auth.principal(&second.token("k", &claims)).await,
        Ok("k8s:eu2/shop/cart".to_owned())
    );
    let other = Key::es256();
    assert_eq!(auth.principal(&other.token("k", &claims)).await, Err("signature"));
    assert_eq!(auth.principal(&other.token("o", &claims)).await, Err("unknown_key"));
}

/// A token loses its validity with its key, although it was verified before.
#[tokio::test]
async fn token_of_a_removed_key_is_refused() {
    let (old, new) = (Key::es256(), Key::es256());
    let auth = Auth::new(IssuerKind::Jwt, &[old.public("old")]);
    let (of_old, of_new) = (old.token("old", &claims()), new.token("new", &claims()));
    assert!(auth.principal(&of_old).await.is_ok());
    let fresh = tokio::spawn(auth.authenticator.clone().keep_fresh());
    let write = |keys: Value| {
        let file = auth.dir.path().join("keys.json");
        std::fs::write(file.with_extension("new"), json!({"keys": keys}).to_string()).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
    };
    write(json!([old.public("old"), new.public("new")]));
    until(async || auth.principal(&of_new).await.is_ok()).await;
    assert!(auth.principal(&of_old).await.is_ok());
    write(json!([new.public("new")]));
    until(async || auth.principal(&of_old).await == Err("unknown_key")).await;
    assert!(auth.principal(&of_new).await.is_ok());
    fresh.abort();
}

/// Waits until something holds.
async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), wait).await.unwrap();
}
