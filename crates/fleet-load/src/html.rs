//! A report as one HTML file, which needs nothing else.

use crate::{
    plan::to_f64,
    report::{Percentiles, PhaseReport, Report},
};

/// The size of a plot in pixels.
const PLOT: [f64; 2] = [720.0, 180.0];
/// The space for the labels of the axes.
const MARGIN: f64 = 44.0;
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
    color-scheme:light dark}table{border-collapse:collapse;margin:1rem 0}th,td{padding:.2rem .8rem;text-align:right;\
    border-bottom:1px solid #8884}th:first-child,td:first-child{text-align:left}.bad{font-weight:bold;color:#c33}\
    svg{width:100%;height:auto}svg text{fill:currentColor;font-size:11px}svg .axis{stroke:currentColor;opacity:.4}\
    .p50{stroke:#27c;fill:none}.p99{stroke:#d70;fill:none;stroke-dasharray:5 3}pre{white-space:pre-wrap}";

/// Returns the report as an HTML file.
#[must_use]
pub fn html(report: &Report) -> String {
    let mut out =
        vec!["<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">".to_owned()];
    let title = format!("{} clients of {}", report.plan.clients, report.servers.join(", "));
    let mut put = |text: String| out.push(text);
    put(format!(
        "<title>{0}</title><style>{STYLE}</style></head><body><h1>{0}</h1>",
        escaped(&title)
    ));
    match &report.generator.invalid {
        Some(reason) => put(format!("<p class=\"bad\">Not valid: {}</p>", escaped(reason))),
        None => put(format!(
            "<p>The generator used {:.0} % of a processor per thread, and was late by {:.1} ms (p99).</p>",
            report.generator.cpu_share * 100.0,
            report.generator.lag_p99_ms
        )),
    }
    let verdict = if report.correctness.holds() {
        "<p>Every client has exactly what a new client has, in order and once.</p>"
    } else {
        "<p class=\"bad\">Not every client has what it should have; the text below says which.</p>"
    };
    put(verdict.to_owned());
    for phase in &report.phases {
        put(format!("<h2>{}</h2>", escaped(&phase.name)));
        put(plot(phase));
        put(table(phase));
    }
    put(format!("<h2>All figures</h2><pre>{}</pre></body></html>", escaped(&report.text())));
    out.join("\n")
}

/// Returns the table of a phase.
fn table(phase: &PhaseReport) -> String {
    let mut out = String::from(
        "<table><tr><th>milliseconds</th><th>p50</th><th>p90</th><th>p99</th><th>max</th><th>n</th></tr>",
    );
    for (name, times) in [
        ("answer to the author", &phase.answer_ms),
        ("to each client", &phase.delivery_ms),
        ("to the first client", &phase.first_client_ms),
        ("to 99 % of the clients", &phase.most_clients_ms),
        ("to the last client", &phase.last_client_ms),
        ("from the first client to the others", &phase.spread_ms),
        ("first state after a reconnection", &phase.first_state_ms),
    ] {
        if let Some(Percentiles { n, p50, p90, p99, max }) = times {
            out += &format!(
                "<tr><td>{name}</td><td>{p50:.2}</td><td>{p90:.2}</td><td>{p99:.2}</td><td>{max:.2}</td><td>{n}</td></tr>"
            );
        }
    }
    out + "</table>"
}

/// Returns the plot of the deliveries of a phase by second.
fn plot(phase: &PhaseReport) -> String {
    let seconds = &phase.by_second;
    let max = seconds.iter().map(|second| second.p99).fold(0.0, f64::max);
    if seconds.len() < 2 || max <= 0.0 {
        return String::new();
    }
    let [width, height] = PLOT;
    let x = |n: usize| MARGIN + to_f64(n) * (width - MARGIN) / to_f64(seconds.len() - 1);
    let y = |value: f64| (height - MARGIN / 2.0) * (1.0 - value / max) + 4.0;
    let line = |class: &str, of: fn(&crate::Second) -> f64| {
        let points: Vec<String> = seconds
            .iter()
            .enumerate()
            .map(|(n, second)| format!("{:.1},{:.1}", x(n), y(of(second))))
            .collect();
        format!("<polyline class=\"{class}\" stroke-width=\"2\" points=\"{}\"/>", points.join(" "))
    };
    let bottom = y(0.0);
    let last = seconds.len() - 1;
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"p50 and p99 of deliveries by second\">\
         <line class=\"axis\" x1=\"{MARGIN}\" y1=\"{bottom:.1}\" x2=\"{width}\" y2=\"{bottom:.1}\"/>\
         <text x=\"0\" y=\"14\">{max:.1} ms</text><text x=\"0\" y=\"{bottom:.1}\">0</text>\
         <text x=\"{MARGIN}\" y=\"{height}\">0 s</text>\
         <text x=\"{width}\" y=\"{height}\" text-anchor=\"end\">{last} s</text>{}{}\
         <text x=\"{width}\" y=\"14\" text-anchor=\"end\">solid: p50, dashed: p99</text></svg>",
        line("p50", |second| second.p50),
        line("p99", |second| second.p99),
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
