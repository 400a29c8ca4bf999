//! The types of the table of dashboards.

/// One dashboard.
#[derive(Debug)]
pub(in crate::mixin) struct Board {
    /// The fixed ID, which is also the name of the file.
    pub(in crate::mixin) uid: &'static str,
    pub(in crate::mixin) title: &'static str,
    pub(in crate::mixin) description: &'static str,
    pub(in crate::mixin) rows: &'static [Row],
}

/// A titled group of panels.
#[derive(Debug)]
pub(in crate::mixin) struct Row {
    pub(in crate::mixin) title: &'static str,
    pub(in crate::mixin) panels: &'static [Panel],
}

#[derive(Debug)]
pub(in crate::mixin) struct Panel {
    pub(in crate::mixin) kind: Kind,
    pub(in crate::mixin) title: &'static str,
    /// A unit of Grafana.
    pub(in crate::mixin) unit: &'static str,
    pub(in crate::mixin) description: &'static str,
    /// The queries, each with the legend of its series.
    pub(in crate::mixin) queries: &'static [(&'static str, &'static str)],
    /// The alerts whose value the panel shows. The first constant limit is the threshold of the panel.
    pub(in crate::mixin) alerts: &'static [&'static str],
}

/// The kinds of panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mixin) enum Kind {
    /// The newest value.
    Stat,
    /// Lines over time.
    Lines,
    /// The buckets of a histogram over time.
    Heatmap,
    /// The newest values of all series.
    Table,
}

/// Returns a panel of small numbers.
pub(super) const fn stat(
    title: &'static str,
    unit: &'static str,
    description: &'static str,
    query: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { kind: Kind::Stat, title, unit, description, queries: query, alerts: &[] }
}

/// Returns a panel of lines.
pub(super) const fn lines(
    title: &'static str,
    unit: &'static str,
    description: &'static str,
    queries: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { kind: Kind::Lines, title, unit, description, queries, alerts: &[] }
}

impl Panel {
    /// Changes the kind of the panel.
    pub(super) const fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Adds the alerts whose value the panel shows.
    pub(super) const fn alerts(self, alerts: &'static [&'static str]) -> Self {
        Self { alerts, ..self }
    }
}
