//! The dashboard as a file of Grafana, and the table of its panels in `docs/metrics.md`.

use super::catalog::{Kind, Metric, PAGE, metrics, page};
use super::panels::{Panel, Query, ROWS, Shows};
use crate::prometheus::root;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The file.
const FILE: &str = "config/grafana/postrider.json";

/// The version of the format. Grafana 10.4 wrote it, and later ones convert it when they load it.
const SCHEMA_VERSION: u32 = 39;

/// Panels are in three columns. Units: those of Grafana's grid, which has 24 columns.
const WIDTH: usize = 8;
const HEIGHT: usize = 8;
const COLUMNS: usize = 3;

/// Metrics that no panel shows, each with the reason.
const NOT_SHOWN: [(&str, &str); 3] = [
    ("outbox_lag_seconds", "the same as postrider_lag_seconds"),
    ("outbox_throughput", "the same as postrider_events_total{outcome=\"published\"}"),
    ("outbox_dlq_depth", "the same as postrider_parked_events{state=\"dead\"}"),
];

/// Between these lines of the page is the table of panels.
const BEGIN: &str = "<!-- generated: the panels -->\n";
const END: &str = "<!-- end -->\n";

fn panels() -> impl Iterator<Item = &'static Panel> {
    ROWS.iter().flat_map(|row| row.panels)
}

/// The metrics that a query names.
fn named(query: &Query, all: &[Metric]) -> BTreeSet<String> {
    let expr = query.expr();
    let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_ours = |word: &&str| {
        ["postrider_", "outbox_", "process_"].iter().any(|prefix| word.starts_with(prefix))
    };
    let base = |word: &str| {
        let known = |name: &str| all.iter().any(|metric| metric.name == name);
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        let base = histogram.filter(|base| !known(word) && known(base)).unwrap_or(word);
        assert!(known(base), "{PAGE} has no {base}, which a panel shows: {expr}");
        base.to_owned()
    };
    words.filter(is_ours).map(base).collect()
}

/// The metrics of a panel, in the order of the page.
fn of_panel<'m>(panel: &Panel, all: &'m [Metric]) -> Vec<&'m Metric> {
    let names: BTreeSet<String> =
        panel.queries.iter().flat_map(|query| named(query, all)).collect();
    all.iter().filter(|metric| names.contains(&metric.name)).collect()
}

/// Unit and name of the axis.
fn unit(shows: Shows) -> (&'static str, String) {
    match shows {
        Shows::States => ("short", String::new()),
        Shows::Seconds => ("s", String::new()),
        Shows::Bytes => ("bytes", String::new()),
        Shows::Count(what) | Shows::Growth(what) | Shows::Total(what) => ("short", what.to_owned()),
        Shows::PerSecond(what) => ("short", format!("{what}/s")),
        Shows::Derived(unit, what) => (unit, what.to_owned()),
    }
}

/// The data source that the reader has chosen.
fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn description(panel: &Panel, all: &[Metric]) -> String {
    let about = |metric: &&Metric| format!("`{}`: {}.", metric.name, metric.about);
    let metrics: Vec<String> = of_panel(panel, all).iter().map(about).collect();
    if metrics.is_empty() {
        return "Alerts of config/alerts.yml that fire: docs/operations/alerts.md.".to_owned();
    }
    metrics.join("\n\n")
}

fn rendered(panel: &Panel, id: usize, (x, y): (usize, usize), all: &[Metric]) -> Value {
    let (unit, axis) = unit(panel.shows);
    let targets = panel.queries.iter().zip("ABCDEFGH".chars()).map(|(query, id)| {
        json!({
            "refId": id.to_string(),
            "datasource": source(),
            "editorMode": "code",
            "expr": query.expr(),
            "legendFormat": query.legend,
            "range": true,
        })
    });
    let targets: Vec<Value> = targets.collect();
    assert_eq!(targets.len(), panel.queries.len());
    let is_states = panel.shows == Shows::States;
    let (kind, defaults, options) = if is_states {
        (
            "state-timeline",
            json!({
                "unit": unit,
                "noValue": "none",
                "mappings": [{ "type": "value", "options": { "1": { "index": 0, "text": "yes" } } }],
                "color": { "mode": "palette-classic" },
                "custom": { "fillOpacity": 70, "lineWidth": 0 },
            }),
            json!({
                "mergeValues": true,
                "rowHeight": 0.9,
                "showValue": "never",
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": false },
                "tooltip": { "mode": "single", "sort": "none" },
            }),
        )
    } else {
        (
            "timeseries",
            json!({
                "unit": unit,
                "min": 0,
                "color": { "mode": "palette-classic" },
                "custom": {
                    "axisLabel": axis,
                    "drawStyle": "line",
                    "fillOpacity": 8,
                    "lineWidth": 1,
                    "showPoints": "auto",
                    "spanNulls": false,
                },
            }),
            json!({
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": true },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
        )
    };
    json!({
        "id": id,
        "type": kind,
        "title": panel.title,
        "description": description(panel, all),
        "datasource": source(),
        "gridPos": { "h": HEIGHT, "w": WIDTH, "x": x, "y": y },
        "fieldConfig": { "defaults": defaults, "overrides": [] },
        "options": options,
        "targets": targets,
    })
}

/// A variable whose values are those of a label. `all`: the expression that stands for all values; without one Grafana
/// lists them.
fn variable(name: &str, title: &str, metric: &str, all: Option<&str>) -> Value {
    let query = format!("label_values({metric}, {name})");
    let mut variable = json!({
        "name": name,
        "label": title,
        "type": "query",
        "datasource": source(),
        "definition": query,
        "query": { "qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery" },
        "refresh": 2,
        "sort": 1,
        "multi": true,
        "includeAll": true,
        "current": { "selected": true, "text": ["All"], "value": ["$__all"] },
        "hide": 0,
    });
    if let Some(all) = all {
        variable["allValue"] = json!(all);
    }
    variable
}

/// The whole file.
fn dashboard() -> Value {
    let all = metrics();
    let (mut id, mut y, mut panels) = (0, 0, Vec::new());
    let mut next = || {
        id += 1;
        id
    };
    for row in ROWS {
        let heading = next();
        let top = y + 1;
        let inside = row.panels.iter().zip(0..).map(|(panel, number)| {
            let at = ((number % COLUMNS) * WIDTH, top + number / COLUMNS * HEIGHT);
            rendered(panel, next(), at, &all)
        });
        let inside: Vec<Value> = inside.collect();
        let height = inside.len().div_ceil(COLUMNS) * HEIGHT;
        let (within, beside) = if row.collapsed { (inside, vec![]) } else { (vec![], inside) };
        panels.push(json!({
            "id": heading,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": { "h": 1, "w": 24, "x": 0, "y": y },
            "panels": within,
        }));
        panels.extend(beside);
        y = if row.collapsed { top } else { top + height };
    }
    json!({
        "uid": "postrider",
        "title": "Postrider",
        "description": "Pipelines, event logs, inboxes and intakes of Postrider. Generated: see docs/metrics.md.",
        "tags": ["postrider", "outbox"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": { "from": "now-3h", "to": "now" },
        "timezone": "",
        "annotations": { "list": [] },
        "links": [],
        "templating": { "list": [
            {
                "name": "datasource",
                "label": "Prometheus",
                "type": "datasource",
                "query": "prometheus",
                "refresh": 1,
                "multi": false,
                "includeAll": false,
                "hide": 0,
            },
            variable("pipeline", "Pipeline", "postrider_state", Some(".*")),
            variable("intake", "Intake", "postrider_intake_state", Some(".*")),
            // Without an expression for all: other processes have metrics of these names, too.
            variable("instance", "Process", "postrider_admin_connections_closed_total", None),
        ] },
        "panels": panels,
    })
}

fn text_of_file() -> String {
    serde_json::to_string_pretty(&dashboard()).expect("JSON") + "\n"
}

/// The table of panels in the page.
fn table() -> String {
    let rows = ROWS.iter().map(|row| {
        let titles: Vec<&str> = row.panels.iter().map(|panel| panel.title).collect();
        format!("| {} | {} |\n", row.title, titles.join("; "))
    });
    let rows: String = rows.collect();
    format!("\n| row | panels |\n|---|---|\n{rows}\n")
}

/// The page with the table.
fn page_with_table() -> String {
    let page = page();
    let (before, rest) = page.split_once(BEGIN).expect("the line before the table");
    let (_, after) = rest.split_once(END).expect("the line after the table");
    format!("{before}{BEGIN}{}{END}{after}", table())
}

fn held(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

#[test]
fn file_and_table_are_what_the_generator_makes() {
    let made = [(FILE, text_of_file()), (PAGE, page_with_table())];
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        for (path, text) in &made {
            let path = root().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
    }
    for (path, text) in made {
        let first = held(path).lines().zip(text.lines()).position(|(held, made)| held != made);
        assert!(
            held(path) == text,
            "{path} is not what the generator makes, from line {first:?} on; \
             if the change is meant: POSTRIDER_BLESS=1 scripts/test it grafana::dashboard"
        );
    }
}

/// A metric that nobody sees at night is one that nobody has.
#[test]
fn each_metric_is_in_a_panel_and_each_panel_has_metrics_that_exist() {
    let all = metrics();
    assert_eq!(all.len(), postrider::metrics::CATALOG.len(), "{PAGE} and the catalog");
    let shown: BTreeSet<&str> = panels()
        .flat_map(|panel| of_panel(panel, &all))
        .map(|metric| metric.name.as_str())
        .collect();
    for metric in &all {
        let left_out = NOT_SHOWN.iter().find(|(name, _)| *name == metric.name);
        assert_ne!(
            shown.contains(metric.name.as_str()),
            left_out.is_some(),
            "{}: either in a panel or in NOT_SHOWN",
            metric.name
        );
        assert!(left_out.is_none_or(|(_, why)| !why.is_empty()));
    }
}

/// Counters are shown by their growth, gauges as they are, both with their unit.
#[test]
fn kinds_and_units_of_panels_are_those_of_their_metrics() {
    let all = metrics();
    for panel in panels() {
        let title = panel.title;
        for metric in of_panel(panel, &all) {
            let within = |what: &str| what.contains(&metric.unit);
            let fits = match panel.shows {
                Shows::States => metric.kind == Kind::Gauge && metric.unit.is_empty(),
                Shows::Seconds => metric.unit == "seconds" || metric.name == "postrider_state",
                Shows::Bytes => metric.unit.starts_with("bytes"),
                Shows::Count(what) => metric.kind == Kind::Gauge && within(what),
                Shows::PerSecond(what) | Shows::Growth(what) | Shows::Total(what) => {
                    (metric.kind == Kind::Counter && within(what))
                        || metric.name == "postrider_state"
                }
                Shows::Derived(..) => true,
            };
            assert!(fits, "{title}: {:?} does not fit {metric:?}", panel.shows);
        }
        for query in panel.queries {
            let expr = query.expr();
            for metric in all.iter().filter(|metric| named(query, &all).contains(&metric.name)) {
                for (at, _) in expr.match_indices(&format!("{}{{", metric.name)) {
                    let before = expr.get(..at).expect("a prefix");
                    let grows = before.ends_with("rate(") || before.ends_with("increase(");
                    let is_counter = metric.kind == Kind::Counter;
                    let total = matches!(panel.shows, Shows::Total(_));
                    assert_eq!(grows, is_counter && !total, "{title}: {} in {expr}", metric.name);
                }
            }
        }
    }
}

/// What Grafana and a reader of the file take for granted.
#[test]
fn file_is_a_dashboard_without_addresses_and_plug_ins() {
    let file = text_of_file();
    for word in ["http:", "https:", "127.0.0.1", "localhost"] {
        assert!(!file.contains(word), "{word}");
    }
    let dashboard = dashboard();
    let headings = dashboard["panels"].as_array().expect("panels");
    let inside = headings.iter().flat_map(|panel| panel["panels"].as_array().into_iter().flatten());
    let everything: Vec<&Value> = headings.iter().chain(inside).collect();
    let ids: BTreeSet<u64> =
        everything.iter().map(|panel| panel["id"].as_u64().expect("an id")).collect();
    assert_eq!(ids.len(), everything.len(), "ids are unique");
    let count = panels().count() + ROWS.len();
    assert_eq!(everything.len(), count);
    let mut places = BTreeSet::new();
    for panel in &everything {
        let kind = panel["type"].as_str().expect("a type");
        assert!(["row", "timeseries", "state-timeline"].contains(&kind), "a core panel: {kind}");
        let place = &panel["gridPos"];
        let of = |name: &str| place[name].as_u64().expect("a number");
        assert!(of("x") + of("w") <= 24, "{panel}");
        // Panels of a closed row are moved down when it is opened.
        let is_open = headings.contains(panel);
        assert!(!is_open || places.insert((of("x"), of("y"))), "two at one place: {panel}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"], source());
        }
    }
    let titles: BTreeSet<&str> = panels().map(|panel| panel.title).collect();
    assert_eq!(titles.len(), panels().count(), "titles are unique");
    assert!(Path::new(FILE).extension().is_some_and(|end| end == "json"));
}

/// An alert whose metric is not shown can't be understood on the dashboard.
#[test]
fn each_metric_of_an_alert_is_in_a_panel() {
    let all = metrics();
    let rules = held("config/alerts.yml");
    let shown: BTreeSet<String> =
        panels().flat_map(|panel| panel.queries).flat_map(|query| named(query, &all)).collect();
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| word.starts_with("postrider_") || word.starts_with("outbox_");
    for word in words.filter(is_metric) {
        let same = NOT_SHOWN.iter().any(|(name, _)| *name == word);
        let is_schema = word == "postrider_inbox";
        assert!(shown.contains(word) || same || is_schema, "{word} is in no panel");
    }
}
