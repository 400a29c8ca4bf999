//! The section `[load_reports]`: the load reporting service (LRS).

use super::{
    bounds::{GIB, HOUR, MIB, SECOND, bytes, time},
    section::section,
    units::{ByteSize, Span},
};

section! {
    /// The section `[load_reports]`: the load reporting service (LRS) on the port for xDS clients.
    pub struct LoadReports {
        let settings = chancery_load::Settings::default();
        let limits = chancery_load::Limits::default();

        /// Whether clients may report their load (LRS) on the port for xDS clients. If false, the
        /// service answers UNIMPLEMENTED.
        enabled: bool = true;
        /// The names of the clusters that clients report. The only item * means all clusters, an
        /// empty list none. `chancery load set` overrides clusters, interval and endpoints until
        /// the replica restarts.
        clusters: Vec<String> = settings.clusters.to_list();
        /// The time between two reports of a client.
        interval: Span = Span::new(settings.interval), time(SECOND, HOUR);
        /// Whether clients report the load of each endpoint. Only Envoy supports this.
        endpoints: bool = settings.endpoints;
        /// The maximum memory for the sums of all reports. Items beyond it are not kept;
        /// chancery_load_omitted_total counts them.
        bytes_max: ByteSize = ByteSize::new(limits.bytes_max as u64), bytes(MIB, 64 * GIB);
    }
}
