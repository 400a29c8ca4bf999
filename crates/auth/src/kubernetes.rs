//! Service account tokens of Kubernetes, which are verified with the public keys of the cluster.
//!
//! A bound token names its service account twice: in the subject, and in the claim `kubernetes.io`. The tokens of old
//! Secrets have neither an expiry nor an audience, so that they are refused before.

use chancery_model::Principal;
use serde_json::Value;

use crate::{
    error::{AuthError, Method, Reason},
    signed::Claims,
};

/// Returns the principal of a service account.
///
/// # Errors
/// Fails if the token is not one of a service account.
pub(crate) fn principal(cluster: &str, claims: &Claims) -> Result<Principal, AuthError> {
    let refused = |text: &str| AuthError::new(Method::Kubernetes, Reason::Claim, text);
    let parts: Vec<&str> = claims.subject.split(':').collect();
    let ["system", "serviceaccount", namespace, account] = parts.as_slice() else {
        return Err(refused("the subject of the token is not a service account"));
    };
    let bound = claims.kubernetes.as_ref();
    let bound = bound.ok_or_else(|| refused("the token has no claim `kubernetes.io`"))?;
    let is_same = bound.get("namespace").and_then(Value::as_str) == Some(*namespace)
        && bound.pointer("/serviceaccount/name").and_then(Value::as_str) == Some(*account);
    if !is_same {
        return Err(refused("the claims `sub` and `kubernetes.io` of the token differ"));
    }
    Principal::service_account(cluster, namespace, account)
        .map_err(|error| refused(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(subject: &str, kubernetes: Option<Value>) -> Result<String, &'static str> {
        let claims = Claims {
            issuer: "i".to_owned(),
            subject: subject.to_owned(),
            audience: vec!["chancery".to_owned()],
            expires: 2,
            issued: 1,
            not_before: None,
            kubernetes,
        };
        let principal = principal("eu1", &claims).map(|principal| principal.to_string());
        principal.map_err(|error| error.reason())
    }

    /// attack 33: a token that is bound to a node and not to a pod has no more rights than its service account.
    #[test]
    fn subject_and_bound_claims_must_agree() {
        let bound =
            |ns: &str, sa: &str| Some(json!({"namespace": ns, "serviceaccount": {"name": sa}}));
        let cart = "system:serviceaccount:shop:cart";
        assert_eq!(of(cart, bound("shop", "cart")), Ok("k8s:eu1/shop/cart".to_owned()));
        let on_node =
            json!({"namespace": "shop", "serviceaccount": {"name": "cart"}, "node": {"name": "n"}});
        assert_eq!(of(cart, Some(on_node)), Ok("k8s:eu1/shop/cart".to_owned()));
        for (subject, kubernetes) in [
            (cart, None),
            (cart, bound("shop", "pay")),
            (cart, bound("prod", "cart")),
            (cart, Some(json!("shop"))),
            (cart, Some(json!({"namespace": 7, "serviceaccount": []}))),
            ("system:serviceaccount:shop", bound("shop", "")),
            ("system:serviceaccount:shop:cart:x", bound("shop", "cart")),
            ("system:serviceaccount::", bound("", "")),
            ("system:node:n", bound("shop", "cart")),
            ("alice", bound("shop", "cart")),
        ] {
            assert_eq!(of(subject, kubernetes.clone()), Err("claim"), "{subject} {kubernetes:?}");
        }
    }
}
