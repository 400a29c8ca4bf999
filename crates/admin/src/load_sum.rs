//! Sums of the load that clients have reported to several replicas.

use chancery_admin_proto::v1 as pb;

/// Adds the load of another replica.
pub(crate) fn add(to: &mut pb::LoadStatus, other: pb::LoadStatus) {
    to.since_ms = to.since_ms.max(other.since_ms);
    to.streams += other.streams;
    to.reports += other.reports;
    add_sum(&mut to.total, other.total);
    to.clusters_omitted += other.clusters_omitted;
    merge(&mut to.clusters, other.clusters, key, add_cluster);
    let key = |one: &pb::OmittedLoad| one.kind.clone();
    merge(&mut to.omitted, other.omitted, key, |to, other| to.count += other.count);
}

/// The key by which clusters are ordered: the name and the service name.
pub(crate) type Key = (String, String);

/// Returns the key of a cluster.
pub(crate) fn key(cluster: &pb::ClusterLoad) -> Key {
    (cluster.cluster_name.clone(), cluster.cluster_service_name.clone())
}

/// Returns the last cluster of a replica that has more clusters.
pub(crate) fn end(status: &pb::LoadStatus) -> Option<Key> {
    status.clusters.last().filter(|_| status.clusters_omitted > 0).map(key)
}

/// Leaves the clusters up to `end`, at most `max`, and counts those after them. After `end`, the load of some replica is
/// missing.
pub(crate) fn limit(status: &mut pb::LoadStatus, end: Option<&Key>, max: usize) {
    let n = status.clusters.len();
    if let Some(end) = end {
        status.clusters.retain(|cluster| key(cluster) <= *end);
    }
    status.clusters.truncate(max);
    status.clusters_omitted += (n - status.clusters.len()) as u64;
}

/// Adds items to a list. Items with the same key become one. The list is then ordered by key.
fn merge<T, K: Ord>(
    to: &mut Vec<T>,
    others: Vec<T>,
    key: impl Fn(&T) -> K,
    add: impl Fn(&mut T, T),
) {
    let mut by_key: std::collections::BTreeMap<K, T> =
        to.drain(..).map(|item| (key(&item), item)).collect();
    for other in others {
        match by_key.get_mut(&key(&other)) {
            Some(known) => add(known, other),
            None => drop(by_key.insert(key(&other), other)),
        }
    }
    to.extend(by_key.into_values());
}

fn add_cluster(to: &mut pb::ClusterLoad, other: pb::ClusterLoad) {
    add_sum(&mut to.sum, other.sum);
    let key = |one: &pb::DroppedLoad| one.category.clone();
    merge(&mut to.dropped, other.dropped, key, |to, other| to.requests += other.requests);
    let key = |one: &pb::LocalityLoad| {
        let place = [&one.region, &one.zone, &one.sub_zone].map(Clone::clone);
        (one.priority, place)
    };
    merge(&mut to.localities, other.localities, key, add_locality);
    to.streams += other.streams;
    to.reports += other.reports;
    to.reported_ms_ago = to.reported_ms_ago.min(other.reported_ms_ago);
}

fn add_locality(to: &mut pb::LocalityLoad, other: pb::LocalityLoad) {
    add_sum(&mut to.sum, other.sum);
    add_metrics(&mut to.metrics, other.metrics);
    let key = |one: &pb::EndpointLoad| one.address.clone();
    merge(&mut to.endpoints, other.endpoints, key, |to, other| {
        to.issued += other.issued;
        to.succeeded += other.succeeded;
        to.failed += other.failed;
        add_metrics(&mut to.metrics, other.metrics);
    });
}

fn add_metrics(to: &mut Vec<pb::MetricLoad>, others: Vec<pb::MetricLoad>) {
    let key = |one: &pb::MetricLoad| one.name.clone();
    merge(to, others, key, |to, other| {
        to.requests += other.requests;
        to.total += other.total;
    });
}

fn add_sum(to: &mut Option<pb::LoadSum>, other: Option<pb::LoadSum>) {
    let Some(other) = other else { return };
    let to = to.get_or_insert_default();
    to.issued += other.issued;
    to.succeeded += other.succeeded;
    to.failed += other.failed;
    to.new_connections += other.new_connections;
    to.failed_connections += other.failed_connections;
    to.in_progress += other.in_progress;
    to.active_connections += other.active_connections;
    to.issued_per_second += other.issued_per_second;
    to.succeeded_per_second += other.succeeded_per_second;
    to.failed_per_second += other.failed_per_second;
    to.dropped += other.dropped;
    to.dropped_per_second += other.dropped_per_second;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_of_replicas_is_added_by_cluster_locality_and_endpoint() {
        let sum = |issued| Some(pb::LoadSum { issued, ..Default::default() });
        let endpoint = |address: &str, issued| pb::EndpointLoad {
            address: address.to_owned(),
            issued,
            ..Default::default()
        };
        let cluster = |name: &str, issued, ago, endpoints| pb::ClusterLoad {
            cluster_name: name.to_owned(),
            sum: sum(issued),
            reported_ms_ago: ago,
            localities: vec![pb::LocalityLoad {
                sum: sum(issued),
                endpoints,
                ..Default::default()
            }],
            ..Default::default()
        };
        let status = |reports, clusters| pb::LoadStatus {
            reports,
            total: sum(reports),
            clusters,
            ..Default::default()
        };
        let mut all = status(1, vec![cluster("web", 10, 500, vec![endpoint("a", 10)])]);
        let web = cluster("web", 5, 200, vec![endpoint("a", 2), endpoint("b", 3)]);
        add(&mut all, status(2, vec![cluster("api", 1, 9, Vec::new()), web]));
        let issued = |sum: &Option<pb::LoadSum>| sum.unwrap_or_default().issued;
        assert_eq!((all.reports, issued(&all.total)), (3, 3));
        let names: Vec<&str> = all.clusters.iter().map(|one| one.cluster_name.as_str()).collect();
        assert_eq!(names, ["api", "web"]);
        let web = &all.clusters[1];
        assert_eq!((issued(&web.sum), web.reported_ms_ago, web.localities.len()), (15, 200, 1));
        let endpoints: Vec<(&str, u64)> = web.localities[0]
            .endpoints
            .iter()
            .map(|one| (one.address.as_str(), one.issued))
            .collect();
        assert_eq!(endpoints, [("a", 12), ("b", 3)]);
        let mut ended = pb::LoadStatus { clusters_omitted: 7, ..all.clone() };
        assert_eq!((end(&all), end(&ended)), (None, Some(("web".to_owned(), String::new()))));
        limit(&mut ended, Some(&("tea".to_owned(), String::new())), 5);
        assert_eq!((ended.clusters.len(), ended.clusters_omitted), (1, 8));
        limit(&mut all, None, 1);
        assert_eq!((all.clusters.len(), all.clusters_omitted), (1, 1));
    }
}
