// The rules and dashboards of Chancery in the layout of monitoring mixins. docs/monitoring.md describes them.
{
  _config+:: {
    // The address of a copy of the repository, with a slash at the end.
    runbookBase: '',
  },

  prometheusAlerts+:: {
    groups+: [
      group {
        rules: [
          rule { annotations+: { runbook_url: $._config.runbookBase + super.runbook_url } }
          for rule in group.rules
        ],
      }
      for group in std.parseYaml(importstr 'alerts.yaml').groups
    ],
  },

  prometheusRules+:: {
    groups+: std.parseYaml(importstr 'recording.yaml').groups,
  },

  grafanaDashboards+:: {
    'chancery-overview.json': import 'dashboards/chancery-overview.json',
    'chancery-pushes.json': import 'dashboards/chancery-pushes.json',
    'chancery-security.json': import 'dashboards/chancery-security.json',
    'chancery-store.json': import 'dashboards/chancery-store.json',
  },
}
