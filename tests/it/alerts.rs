//! `config/alerts.yml`, judged by promtool: whether it can be read, and when it calls.

mod live;
mod page;

use crate::prometheus::{promtool, root};
use std::process::Output;

/// The rules for a live run. Their numbers are as they are shipped; three kinds of spans of time are shorter:
///
/// - `for`: as many seconds as there are minutes, hours or days.
/// - The range of the rate of reconnects: 20 s for 15 minutes. The rate itself is per second. A range has to be longer
///   than the pause between two reconnects (`RECONNECT_MAX`, 15 s), and as in the shipped rules it is shorter than the
///   rule's `for`: one reconnect raises no alert.
/// - The range of failed passes of retention: 90 s for an hour.
pub(crate) fn shortened_rules() -> String {
    let rules = std::fs::read_to_string(root().join("config/alerts.yml")).expect("the rules");
    let spans = regex::Regex::new(r"(?m)^(\s+for: \d+)[mhd]$").expect("a pattern");
    assert_eq!(rules.matches(" for: ").count(), spans.find_iter(&rules).count(), "{rules}");
    for range in ["[15m]", "[1h]"] {
        assert_eq!(rules.matches(range).count(), 1, "{range}: {rules}");
    }
    spans.replace_all(&rules, "${1}s").replace("[15m]", "[20s]").replace("[1h]", "[90s]")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn rules_are_rules() {
    let output = promtool(&["check", "rules", "config/alerts.yml"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("30 rules found"), "{}", said(&output));
}

/// One series for half an hour, and which alert it is after six minutes and after one.
fn case(series: &str, values: &str, alert: &str, after_1m: bool, after_6m: bool) -> String {
    let expect = |minutes: u32, fires: bool| {
        let list = if fires { "[ { exp_labels: LABELS } ]" } else { "[]" };
        format!("      - {{ eval_time: {minutes}m, alertname: {alert}, exp_alerts: {list} }}\n")
    };
    format!(
        "  - interval: 1m\n    input_series:\n      - {{ series: '{series}', values: '{values}' }}\n    \
         alert_rule_test:\n{}{}",
        expect(1, after_1m),
        expect(6, after_6m)
    )
}

/// While versions before the label `shard` are replaced: a process of this version stands by beside one that publishes,
/// and the series of the replaced process end.
fn beside_a_version_without_shards() -> [String; 3] {
    let ours = r#"postrider_state{pipeline="orders",shard="0",state="standing_by"}"#;
    let before = r#"postrider_state{pipeline="orders",state="standing_by"}"#;
    let page = "{ severity: page, pipeline: orders, shard: 0 }";
    let expects = |alert: &str, minutes: u32, fires: bool| {
        let list = if fires { format!("[ {{ exp_labels: {page} }} ]") } else { "[]".to_owned() };
        format!(
            "      - {{ eval_time: {minutes}m, alertname: Postrider{alert}, exp_alerts: {list} }}\n"
        )
    };
    let case = |values: [&str; 2], expects: String| {
        let [of_ours, of_before] = values;
        format!(
            "  - interval: 1m\n    input_series:\n      - {{ series: '{ours}', values: '{of_ours}' }}\n      \
               - {{ series: '{before}', values: '{of_before}' }}\n    alert_rule_test:\n{expects}"
        )
    };
    [
        case(
            ["1x30", "0x10 stale"],
            expects("StandingBy", 9, false)
                + &expects("StandingBy", 18, true)
                + &expects("PipelineGone", 20, false),
        ),
        case(["1x30", "0x30"], expects("StandingBy", 29, false)),
        case(["0x10 stale", "_x10 0x20"], expects("PipelineGone", 20, false)),
    ]
}

/// A group with events and no living consumer; one of both is no reason to call.
fn groups_without_a_consumer() -> [String; 3] {
    let labels = r#"pipeline="orders",shard="0",log="orders",group="billing""#;
    let case = |lag: &str, alive: &str, fires: bool| {
        let of_group = "severity: ticket, pipeline: orders, shard: 0, log: orders, group: billing";
        let list =
            if fires { format!("[ {{ exp_labels: {{ {of_group} }} }} ]") } else { "[]".to_owned() };
        format!(
            "  - interval: 1m\n    input_series:\n      \
               - {{ series: 'postrider_group_lag_events{{{labels}}}', values: '{lag}' }}\n      \
               - {{ series: 'postrider_group_consumers{{{labels},state=\"alive\"}}', values: '{alive}' }}\n      \
               - {{ series: 'postrider_group_consumers{{{labels},state=\"silent\"}}', values: '0x30' }}\n    \
             alert_rule_test:\n      \
               - {{ eval_time: 4m, alertname: PostriderGroupUnhealthy, exp_alerts: [] }}\n      \
               - {{ eval_time: 6m, alertname: PostriderGroupUnhealthy, exp_alerts: {list} }}\n"
        )
    };
    [case("1x30", "0x30", true), case("0x30", "0x30", false), case("1x30", "1x30", false)]
}

/// Intakes: one that is blocked, down, full or gone; and installations without a pipeline, or with nothing at all.
fn intakes() -> Vec<String> {
    let case = |series: &[(&str, &str)], expects: &[(u32, &str, &str)]| {
        let series: Vec<String> = series
            .iter()
            .map(|(name, values)| format!("      - {{ series: '{name}', values: '{values}' }}\n"))
            .collect();
        let expects: Vec<String> = expects
            .iter()
            .map(|(minutes, alert, labels)| {
                let list = match *labels {
                    "" => "[]".to_owned(),
                    labels => format!("[ {{ exp_labels: {{ {labels} }} }} ]"),
                };
                format!(
                    "      - {{ eval_time: {minutes}m, alertname: Postrider{alert}, exp_alerts: {list} }}\n"
                )
            })
            .collect();
        let (series, expects) = (series.concat(), expects.concat());
        format!("  - interval: 1m\n    input_series:\n{series}    alert_rule_test:\n{expects}")
    };
    let (page, ticket) = ("severity: page, intake: mail", "severity: ticket, intake: mail");
    let state = |state: &str| format!(r#"postrider_intake_state{{intake="mail",state="{state}"}}"#);
    let pipeline = r#"postrider_state{pipeline="orders",shard="0",state="streaming"}"#;
    let blocked = r#"postrider_intake_blocked_partitions{intake="mail"}"#;
    let mut all = vec![
        case(
            &[(blocked, "0 1x30")],
            &[(2, "IntakeBlocked", ""), (4, "IntakeBlocked", page), (9, "IntakeBlocked", page)],
        ),
        // A broker was restarted.
        case(&[(blocked, "0 1 0x30")], &[(2, "IntakeBlocked", ""), (4, "IntakeBlocked", "")]),
        case(
            &[(&state("full"), "1x30")],
            &[(9, "IntakeFull", ""), (11, "IntakeFull", ticket), (11, "IntakeDown", "")],
        ),
        case(
            &[(&state("storing"), "1x10 stale")],
            &[(10, "IntakeGone", ""), (14, "IntakeGone", page), (14, "Gone", "severity: page")],
        ),
        // Nobody expects a pipeline there.
        case(
            &[(&state("storing"), "1x30")],
            &[(20, "Gone", ""), (20, "PipelineGone", ""), (20, "IntakeGone", "")],
        ),
        case(&[(pipeline, "1x30")], &[(20, "Gone", ""), (20, "IntakeGone", "")]),
        case(
            &[(pipeline, "1x10 stale"), (&state("storing"), "1x30")],
            &[(14, "PipelineGone", "severity: page, pipeline: orders, shard: 0"), (14, "Gone", "")],
        ),
        case(&[("up", "0x30")], &[(1, "Gone", ""), (3, "Gone", "severity: page")]),
    ];
    for down in ["broker_down", "database_down", "listener_down"] {
        let series = state(down);
        all.push(case(&[(&series, "1x30")], &[(1, "IntakeDown", ""), (3, "IntakeDown", page)]));
    }
    all
}

/// A pause calls after an hour, and the lag that it causes does not.
fn paused() -> String {
    let labels = r#"pipeline="orders",shard="0""#;
    let expect = |minutes: u32, alert: &str, list: &str| {
        format!("      - {{ eval_time: {minutes}m, alertname: {alert}, exp_alerts: {list} }}\n")
    };
    let ticket = "[ { exp_labels: { severity: ticket, pipeline: orders, shard: 0 } } ]";
    format!(
        "  - interval: 1m\n    input_series:\n      \
           - {{ series: 'postrider_state{{{labels},state=\"paused\"}}', values: '1x90' }}\n      \
           - {{ series: 'postrider_lag_seconds{{{labels}}}', values: '0+60x90' }}\n    alert_rule_test:\n{}{}{}",
        expect(59, "PostriderPaused", "[]"),
        expect(61, "PostriderPaused", ticket),
        expect(61, "PostriderLagging", "[]")
    )
}

/// Retention that is blocked for a day, or whose passes fail again and again.
fn retention() -> Vec<String> {
    let one = |interval: &str, series: &str, values: &str, alert: &str, at: [(&str, &str); 2]| {
        let expected = at.map(|(time, labels)| {
            let list = if labels.is_empty() {
                "[]".to_owned()
            } else {
                format!("[ {{ exp_labels: {{ severity: ticket{labels} }} }} ]")
            };
            format!("      - {{ eval_time: {time}, alertname: {alert}, exp_alerts: {list} }}\n")
        });
        format!(
            "  - interval: {interval}\n    input_series:\n      - {{ series: '{series}', values: '{values}' }}\n    \
             alert_rule_test:\n{}",
            expected.concat()
        )
    };
    let of = ", pipeline: orders";
    vec![
        one(
            "1m",
            "postrider_retention_blocked{pipeline=\"orders\",shard=\"0\",reason=\"repair\"}",
            "1x1700",
            "PostriderRetentionBlocked",
            [("20h", ""), ("26h", ", pipeline: orders, reason: repair")],
        ),
        one(
            "1m",
            "postrider_retention_failures_total{pipeline=\"orders\"}",
            "0+0x20 1+1x40",
            "PostriderRetention",
            [("20m", ""), ("40m", of)],
        ),
    ]
}

#[test]
#[expect(clippy::too_many_lines, reason = "the alerts, one after the other")]
fn alerts_call_when_they_should_and_not_before() {
    let cases = [
        ("postrider_lag_seconds", "61x30", "PostriderLagging", false, true),
        ("postrider_lag_seconds", "60x30", "PostriderLagging", false, false),
        ("outbox_dlq_depth", "0 0 1x30", "PostriderDeadLetters", false, true),
        ("postrider_parked_attempts", "10 10 11x30", "PostriderAttempts", false, true),
        ("postrider_slot_safe_bytes", "9e8x30", "PostriderSlotLosingWal", true, true),
        ("postrider_slot_safe_bytes", "2e9x30", "PostriderSlotLosingWal", false, false),
        ("postrider_halted{code=\"PR001\"}", "0 1x30", "PostriderHalted", true, true),
        ("postrider_slot_retained_bytes", "11e9x30", "PostriderRetainsWal", false, true),
        ("postrider_slot_retained_bytes", "9e9x30", "PostriderRetainsWal", false, false),
        ("postrider_group_lag_seconds", "301x30", "PostriderGroupBehind", false, true),
        ("postrider_group_lag_seconds", "300x30", "PostriderGroupBehind", false, false),
        ("postrider_group_evicted", "0 1x30", "PostriderGroupEvicted", true, true),
        (
            "postrider_log_maintenance_last_run_seconds",
            "61x30",
            "PostriderLogMaintenance",
            false,
            true,
        ),
        (
            "postrider_log_maintenance_last_run_seconds",
            "60x30",
            "PostriderLogMaintenance",
            false,
            false,
        ),
        ("postrider_inbox_dead_messages", "0 1x30", "PostriderInboxDead", false, true),
        ("postrider_inbox_dead_messages", "0x30", "PostriderInboxDead", false, false),
        ("postrider_inbox_gaps", "1x30", "PostriderInboxGap", false, true),
        ("postrider_inbox_gaps", "1x3 0x30", "PostriderInboxGap", false, false),
        ("postrider_inbox_degraded", "1x30", "PostriderInboxDegraded", false, true),
        ("postrider_inbox_degraded", "1x3 0x30", "PostriderInboxDegraded", false, false),
        (
            "postrider_inbox_maintenance_last_run_seconds",
            "61x30",
            "PostriderInboxMaintenance",
            false,
            true,
        ),
        (
            "postrider_inbox_maintenance_last_run_seconds",
            "60x30",
            "PostriderInboxMaintenance",
            false,
            false,
        ),
    ];
    let rules = root().join("config/alerts.yml");
    let mut tests: Vec<String> = cases
        .map(|(series, values, alert, after_1m, after_6m)| {
            let page = ["Lagging", "SlotLosingWal", "Halted", "Evicted"]
                .iter()
                .any(|name| alert.ends_with(name));
            let severity = if page { "page" } else { "ticket" };
            let code = if series.contains("code=") { ", code: PR001" } else { "" };
            let labels = format!("{{ severity: {severity}{code} }}");
            case(series, values, alert, after_1m, after_6m).replace("LABELS", &labels)
        })
        .into();
    // Reconnects an hour: 72 are the limit. They have to go on for half an hour, after the range of the rate.
    for (every_s, after_20m, after_50m) in [(45, false, true), (55, false, false)] {
        let values = format!("0+{}x60", 60.0 / f64::from(every_s));
        let expect = |minutes: u32, fires: bool| {
            let labels = "[ { exp_labels: { severity: ticket } } ]";
            let list = if fires { labels } else { "[]" };
            format!(
                "      - {{ eval_time: {minutes}m, alertname: PostriderReconnects, exp_alerts: {list} }}\n"
            )
        };
        tests.push(format!(
            "  - interval: 1m\n    input_series:\n      - {{ series: postrider_reconnects_total, values: '{values}' }}\n    \
             alert_rule_test:\n{}{}",
            expect(20, after_20m),
            expect(50, after_50m)
        ));
    }
    tests.extend(beside_a_version_without_shards());
    tests.extend(groups_without_a_consumer());
    tests.extend(intakes());
    tests.extend(retention());
    tests.push(paused());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tests.yml");
    // What is checked here is when, not in which words.
    let wordless: Vec<String> = std::fs::read_to_string(rules)
        .unwrap()
        .lines()
        .filter(|line| {
            !["annotations:", "summary:", "description:", "runbook:"]
                .iter()
                .any(|word| line.contains(word))
        })
        .map(str::to_owned)
        .collect();
    std::fs::write(dir.path().join("rules.yml"), wordless.join("\n")).unwrap();
    std::fs::write(&file, format!("rule_files: [rules.yml]\ntests:\n{}", tests.concat())).unwrap();
    let output = promtool(&["test", "rules", file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
}
