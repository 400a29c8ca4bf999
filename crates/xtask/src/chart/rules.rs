//! The rules that all objects of the chart follow.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::render::{name_of, of_kind};

/// The labels of selectors. They must never change, because selectors are immutable.
const SELECTOR: [&str; 3] =
    ["app.kubernetes.io/component", "app.kubernetes.io/instance", "app.kubernetes.io/name"];
/// Further labels of all objects.
const LABELS: [&str; 4] = [
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];
/// The maximum length of most names, because they become labels or host names.
const NAME_MAX: usize = 63;
/// The maximum length of the names of StatefulSets and CronJobs. Kubernetes adds a suffix.
const LONG_SUFFIX_NAME_MAX: usize = 52;

/// Checks the objects of one rendering.
pub(super) fn check(objects: &[Value]) -> Result<()> {
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        let at = || format!("{kind} {}", name_of(object));
        // The values of `ci/everything-on.yaml` add ConfigMaps without labels.
        if kind != "ConfigMap" || object["metadata"]["labels"].is_object() {
            labels(object).with_context(at)?;
        }
        name(kind, name_of(object)).with_context(at)?;
        ensure!(!kind.contains("Role"), "{}: the chart gives rights in Kubernetes", at());
        if let Some(pod) = pod(object) {
            containers(pod).with_context(at)?;
        }
    }
    for set in of_kind(objects, "StatefulSet") {
        let spec = &set["spec"];
        selector(&spec["selector"]["matchLabels"]).context("the selector of a StatefulSet")?;
        for (label, value) in spec["selector"]["matchLabels"].as_object().into_iter().flatten() {
            let pod = &spec["template"]["metadata"]["labels"][label];
            ensure!(pod == value, "the pods of {} have the label {label}: {pod}", name_of(set));
        }
        let service = spec["serviceName"].as_str().unwrap_or_default();
        let found = of_kind(objects, "Service").find(|found| name_of(found) == service);
        let found = found.with_context(|| format!("no Service {service} of a StatefulSet"))?;
        ensure!(found["spec"]["publishNotReadyAddresses"] == true, "{service} hides new replicas");
        ensure!(
            found["spec"]["selector"] == spec["selector"]["matchLabels"],
            "{service} selects others"
        );
    }
    for service in of_kind(objects, "Service") {
        selector(&service["spec"]["selector"]).with_context(|| name_of(service).to_owned())?;
    }
    for budget in of_kind(objects, "PodDisruptionBudget") {
        selector(&budget["spec"]["selector"]["matchLabels"]).context("a PodDisruptionBudget")?;
    }
    references(objects)
}

fn labels(object: &Value) -> Result<()> {
    for label in SELECTOR.iter().chain(&LABELS) {
        let value = &object["metadata"]["labels"][label];
        ensure!(value.is_string(), "the label {label} is missing");
    }
    Ok(())
}

fn name(kind: &str, name: &str) -> Result<()> {
    let max = match kind {
        "StatefulSet" | "CronJob" => LONG_SUFFIX_NAME_MAX,
        _ => NAME_MAX,
    };
    ensure!((1..=max).contains(&name.len()), "the name has {} characters", name.len());
    Ok(())
}

fn selector(labels: &Value) -> Result<()> {
    let labels = labels.as_object().context("there is no selector")?;
    let names: Vec<_> = labels.keys().map(String::as_str).collect();
    ensure!(names == SELECTOR, "the selector has the labels {names:?}");
    Ok(())
}

/// Returns the specification of the pods that an object creates.
pub(super) fn pod(object: &Value) -> Option<&Value> {
    match object["kind"].as_str()? {
        "StatefulSet" => Some(&object["spec"]["template"]["spec"]),
        "CronJob" => Some(&object["spec"]["jobTemplate"]["spec"]["template"]["spec"]),
        "Pod" => Some(&object["spec"]),
        _ => None,
    }
}

fn containers(pod: &Value) -> Result<()> {
    ensure!(pod["securityContext"]["runAsNonRoot"] == true, "the pod may run as root");
    ensure!(pod["automountServiceAccountToken"] == false, "the pod has a token of its account");
    ensure!(pod["enableServiceLinks"] == false, "services set variables of the pod");
    let lists = ["containers", "initContainers"].map(|list| pod[list].as_array());
    for container in lists.into_iter().flatten().flatten() {
        let name = &container["name"];
        let has = |key: &str| container[key].as_object().is_some_and(|value| !value.is_empty());
        ensure!(has("resources"), "the container {name} has no resources");
        ensure!(has("securityContext"), "the container {name} has no securityContext");
        let image = container["image"].as_str().unwrap_or_default();
        let tag = image.rsplit('/').next().and_then(|last| last.split_once(['@', ':']));
        let (_, tag) = tag.with_context(|| format!("the image {image} has no tag"))?;
        ensure!(tag != "latest" && !tag.is_empty(), "the image {image} may change");
    }
    Ok(())
}

/// Checks that each Secret, ConfigMap and claim with a name of the release exists, or that cert-manager creates it.
fn references(objects: &[Value]) -> Result<()> {
    let made = |kind: &'static str| of_kind(objects, kind).map(name_of);
    let issued =
        of_kind(objects, "Certificate").filter_map(|made| made["spec"]["secretName"].as_str());
    let secrets: Vec<_> = made("Secret").chain(issued).collect();
    let maps: Vec<_> = made("ConfigMap").collect();
    let claims: Vec<_> = made("PersistentVolumeClaim").collect();
    let own = |name: &str| {
        objects.iter().any(|object| {
            object["kind"] == "StatefulSet"
                && name.starts_with(name_of(object).trim_end_matches("-learner"))
        })
    };
    for pod in objects.iter().filter_map(pod) {
        for volume in pod["volumes"].as_array().into_iter().flatten() {
            let pairs = [
                (&volume["secret"]["secretName"], &secrets),
                (&volume["configMap"]["name"], &maps),
                (&volume["persistentVolumeClaim"]["claimName"], &claims),
            ];
            for (name, existing) in pairs {
                let Some(name) = name.as_str().filter(|name| own(name)) else { continue };
                ensure!(
                    existing.contains(&name),
                    "a pod mounts {name}, which the chart does not create"
                );
            }
        }
        let variables = pod["containers"][0]["env"].as_array().into_iter().flatten();
        for name in
            variables.filter_map(|from| from["valueFrom"]["configMapKeyRef"]["name"].as_str())
        {
            ensure!(maps.contains(&name), "a pod reads {name}, which the chart does not create");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod_with(container: &Value) -> Value {
        json!({
            "securityContext": {"runAsNonRoot": true}, "automountServiceAccountToken": false,
            "enableServiceLinks": false, "containers": [container],
        })
    }

    #[test]
    fn container_without_limits_or_with_a_moving_image_is_rejected() {
        let good = json!({"name": "a", "image": "r:5000/a:1", "resources": {"limits": {}}, "securityContext": {"privileged": false}});
        containers(&pod_with(&good)).unwrap();
        for (key, value) in [
            ("resources", json!({})),
            ("securityContext", json!(null)),
            ("image", json!("r:5000/a")),
            ("image", json!("a:latest")),
        ] {
            let mut bad = good.clone();
            bad[key] = value;
            assert!(containers(&pod_with(&bad)).is_err(), "{bad}");
        }
        let mut root = pod_with(&good);
        root["securityContext"] = json!({});
        assert!(containers(&root).is_err());
    }

    #[test]
    fn selector_with_a_label_that_changes_is_rejected() {
        let label = |name: &str| format!("app.kubernetes.io/{name}");
        let mut labels =
            json!({label("name"): "a", label("instance"): "b", label("component"): "c"});
        selector(&labels).unwrap();
        labels[label("version")] = json!("1");
        assert!(selector(&labels).is_err());
    }
}
