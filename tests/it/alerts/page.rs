//! `docs/operations/alerts.md`: each alert with its meaning, what to do, and when it fired and cleared in a live run.
//!
//! Meanings are the summaries of `config/alerts.yml`, with an example's names. A live test that has produced a fault
//! calls [`hold`]: with `POSTRIDER_BLESS=1` the row of the alert is written, otherwise it must be about this fault and
//! this test. The durations of a row are those of the run that wrote it.

use crate::prometheus::root;
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};
use yaml_rust2::{Yaml, YamlLoader};

const PAGE: &str = "docs/operations/alerts.md";

/// One test at a time writes the page.
static WRITING: Mutex<()> = Mutex::new(());

/// What to do about each alert, in the order of the rules.
const ACTIONS: [(&str, &str); 30] = [
    (
        "PostriderHalted",
        "`postrider status` prints code, reason and remedy. Fix it, then restart the process: [halt \
         codes](../operations.md#halts)",
    ),
    (
        "PostriderGone",
        "Start the process; its log says why it ended ([exit codes](running.md#exit-codes)). Until then its slots retain \
         WAL: [slots and WAL](database.md#slots-and-wal)",
    ),
    (
        "PostriderIntakeGone",
        "Start `postrider inbox run`. Records are not lost as long as their topics keep them; requests of webhooks are \
         not received, and only a sender that repeats them loses none",
    ),
    (
        "PostriderIntakeBlocked",
        "`postrider status` prints why, and whether a person has to decide: [blocked \
         partitions](../sql/inbox-run.md#blocked-partitions)",
    ),
    (
        "PostriderIntakeDown",
        "`postrider status` prints the error and what to check: [states](../sql/inbox-run.md#states)",
    ),
    (
        "PostriderIntakeFull",
        "Start more workers, or see what they fail at; the limit is [`pending_max`](../sql/inbox-run.md#keys)",
    ),
    (
        "PostriderPipelineGone",
        "Start its process: its slot retains WAL. If it was removed on purpose, [remove the slot](removing.md)",
    ),
    (
        "PostriderSourceDown",
        "`postrider status` prints the error and what to check. Postrider retries without a limit",
    ),
    (
        "PostriderBrokerDown",
        "`postrider status` prints the error, and whether it is the broker or [one \
         topic](parked-events.md#a-topic-that-takes-no-records). Nothing is lost; watch the WAL that the slot retains",
    ),
    (
        "PostriderStandingBy",
        "Find the session that has the slot: [PR020](halts.md#pr020-relay_running) has the query",
    ),
    (
        "PostriderParkingFull",
        "`postrider parked list`, then retry, skip or replace the events: [parked events](parked-events.md). Or raise \
         `parking.rows_max`",
    ),
    (
        "PostriderSlotLosingWal",
        "Lost or missing: [PR001](halts.md#pr001-slot_lost), [PR002](halts.md#pr002-slot_missing). Otherwise raise \
         `max_slot_wal_keep_size`: [slots and WAL](database.md#slots-and-wal)",
    ),
    (
        "PostriderPaused",
        "`postrider resume NAME` ends the pause; `postrider status` prints who has requested it, and why: \
         [pausing](running.md#pausing-a-pipeline)",
    ),
    (
        "PostriderLagging",
        "`postrider status` prints what the pipeline waits for: [`waits_for`](logs.md#what-a-backlog-waits-for), [how the \
         lag is measured](../metrics.md#lag)",
    ),
    (
        "PostriderParked",
        "`postrider parked list` prints why. Fix the cause, then `postrider parked retry --all`: [parked \
         events](parked-events.md)",
    ),
    (
        "PostriderAttempts",
        "`postrider parked list --state waiting` prints the event and the error: [parked events](parked-events.md)",
    ),
    (
        "PostriderDeadLetters",
        "`postrider parked list --state dead`, then retry, replace or skip them: [parked events](parked-events.md)",
    ),
    (
        "PostriderRetainsWal",
        "`postrider status` prints what the pipeline waits for. Watch the free disk of the database: [slots and \
         WAL](database.md#slots-and-wal)",
    ),
    (
        "PostriderWalBudget",
        "Fix what stops the pipeline, usually the broker, before [PR017](halts.md#pr017-wal_budget)",
    ),
    (
        "PostriderReconnects",
        "The log has each lost connection and its error: a network or a server that comes and goes",
    ),
    (
        "PostriderGroupBehind",
        "`postrider groups lag NAME` prints which hash partitions are behind: [alerts of event \
         logs](../sql/running.md#alerts)",
    ),
    (
        "PostriderGroupEvicted",
        "Find out what it has missed, then `postrider groups resume NAME`: [eviction](../sql/running.md#what-retention-drops)",
    ),
    (
        "PostriderGroupUnhealthy",
        "Start its consumers; `postrider groups list` prints the groups: [alerts of event logs](../sql/running.md#alerts)",
    ),
    (
        "PostriderLogMaintenance",
        "`postrider status` prints which step, why, and the statement that fixes it: [alerts of event \
         logs](../sql/running.md#alerts)",
    ),
    (
        "PostriderRetentionBlocked",
        "`postrider retain --dry-run` prints what blocks it, and what ends that: [retention](retention.md)",
    ),
    (
        "PostriderRetention",
        "`postrider status --json` has the reason under `maintenance.retention`, and the statement that fixes it: \
         [retention](retention.md)",
    ),
    (
        "PostriderInboxDead",
        "See `error` in the view `postrider_inbox.dlq_NAME`, then replay or skip them: [alerts of \
         inboxes](../sql/inbox.md#alerts)",
    ),
    (
        "PostriderInboxGap",
        "`SELECT * FROM postrider.inbox_ordering_gaps('NAME')` has the missing numbers: [alerts of \
         inboxes](../sql/inbox.md#alerts)",
    ),
    (
        "PostriderInboxDegraded",
        "Start its workers, or see what they fail at; `postrider status` prints the numbers: [alerts of \
         inboxes](../sql/inbox.md#alerts)",
    ),
    (
        "PostriderInboxMaintenance",
        "`postrider status` prints which step, why, and the statement that fixes it: [alerts of \
         inboxes](../sql/inbox.md#alerts)",
    ),
];

/// The page above its first table.
const HEAD: &str = "\
# Alerts

An alert calls: what does it mean, and what do I do? The rules are in [config/alerts.yml](../../config/alerts.yml);
their annotation `runbook` is the row here. If you have a symptom and no alert: [the page for the night](../night.md).
What each metric is: [metrics.md](../metrics.md); the same in Grafana: [the dashboard](../metrics.md#the-dashboard).

Severity `page` is for what stops events or endangers them, `ticket` for the next working day. Meanings are examples: a
pipeline `orders`, an intake `mail`, a group `billing`.

| alert | severity, after | means | do |
|---|---|---|---|
";

/// Between the two tables.
const LIVE: &str = "
## Fired and cleared

The tests in `tests/it/alerts/live.rs` cause the fault of each row for running relays and intakes, which a live
Prometheus scrapes four times a second, and fix it. *Fires* is the time from the fault to the first evaluation in which
the alert fired, *clears* the time from the fix to the first one in which it did not. The thresholds are those of the
shipped rules. Only spans of time are shorter: `for` in seconds instead of minutes, hours or days; 20 s instead of 15
minutes for the rate of reconnects; 90 s instead of an hour for failures of retention. With the shipped rules an alert
fires later by the difference. `promtool` tests the shipped spans
(`alerts::alerts_call_when_they_should_and_not_before`).

The rows are written by the tests, on a machine of two processors that runs other tests at the same time
(`POSTRIDER_BLESS=1 scripts/test it alerts::live`).

| alert | fault | fires | clears | test |
|---|---|---|---|---|
";

/// A rule of `config/alerts.yml`.
struct Rule {
    name: String,
    severity: String,
    /// `for`, as the rule has it.
    after: Option<String>,
    summary: String,
}

fn rules() -> Vec<Rule> {
    let text = fs::read_to_string(root().join("config/alerts.yml")).expect("the rules");
    let parsed = YamlLoader::load_from_str(&text).expect("YAML");
    let rules = parsed[0]["groups"][0]["rules"].as_vec().expect("rules").clone();
    let word = |value: &Yaml| value.as_str().map(str::to_owned);
    let rule = |rule: &Yaml| {
        let name = word(&rule["alert"]).expect("a name");
        let runbook = word(&rule["annotations"]["runbook"]);
        assert_eq!(runbook, Some(format!("{PAGE}#{}", name.to_lowercase())), "{name}");
        Rule {
            severity: word(&rule["labels"]["severity"]).expect("a severity"),
            after: word(&rule["for"]),
            summary: word(&rule["annotations"]["summary"]).expect("a summary"),
            name,
        }
    };
    rules.iter().map(rule).collect()
}

/// The summary with an example's names.
fn example(summary: &str) -> String {
    let text = [
        ("{{ $labels.pipeline }}", "orders"),
        ("{{ $labels.code }}", "PR002"),
        ("{{ $labels.intake }}", "mail"),
        ("{{ $labels.inbox }}", "mail"),
        ("{{ $labels.log }}", "orders"),
        ("{{ $labels.group }}", "billing"),
        ("{{ $labels.reason }}", "replay"),
        ("{{ $labels.side }}", "sink"),
        ("{{ $labels.class }}", "transient"),
        ("{{ $value | humanizeDuration }}", "2m 5s"),
        ("{{ $value | humanize1024 }}", "11.2Gi"),
        ("{{ $value }}", "12"),
    ]
    .into_iter()
    .fold(summary.to_owned(), |text, (name, example)| text.replace(name, example));
    assert!(!text.contains("{{"), "a name without an example: {text}");
    text
}

fn page() -> String {
    fs::read_to_string(root().join(PAGE)).unwrap_or_default()
}

/// The rows of the second table, by alert.
fn rows(page: &str) -> BTreeMap<String, String> {
    let (_, table) = page.split_once(LIVE).unwrap_or_default();
    let row = |line: &str| {
        let alert = line.strip_prefix("| `")?.split('`').next()?;
        Some((alert.to_owned(), line.to_owned()))
    };
    table.lines().filter_map(row).collect()
}

fn rendered(rows: &BTreeMap<String, String>) -> String {
    let rules = rules();
    let names: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ACTIONS.map(|(alert, _)| alert), "ACTIONS has the alerts of the rules");
    let first = rules.iter().zip(ACTIONS).map(|(rule, (_, action))| {
        let Rule { name, severity, after, summary } = rule;
        let after =
            after.as_ref().map_or_else(|| "at once".to_owned(), |after| format!("after {after}"));
        let id = name.to_lowercase();
        format!(
            "| <a id=\"{id}\"></a>`{name}` | {severity}, {after} | {} | {action} |\n",
            example(summary)
        )
    });
    let second = names.iter().filter_map(|name| rows.get(*name)).map(|row| format!("{row}\n"));
    let (first, second): (String, String) = (first.collect(), second.collect());
    format!("{HEAD}{first}{LIVE}{second}")
}

/// A duration in whole seconds from 10 s on, so that a row has no digits that mean nothing.
fn duration(seconds: f64) -> String {
    if seconds < 9.95 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

/// An alert has fired so many seconds after its fault, and has cleared so many seconds after the fix.
pub(super) fn hold(alert: &str, fault: &str, fired: f64, cleared: f64) {
    // The runner names each test's thread after it, but for one that runs alone.
    let thread = std::thread::current();
    let mut name = thread.name().unwrap_or_default().rsplitn(3, "::");
    let (Some(test), Some(module)) = (name.next(), name.next()) else {
        panic!("{alert}: not on a test's own thread; leave out --test-threads 1");
    };
    let (begins, ends) = (format!("| `{alert}` | {fault} | "), format!(" | `{module}::{test}` |"));
    let row = format!("{begins}{} | {}{ends}", duration(fired), duration(cleared));
    crate::pipeline::show(&row);
    let _one = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut held = rows(&page());
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        held.insert(alert.to_owned(), row);
        fs::write(root().join(PAGE), rendered(&held)).expect("the page");
        return;
    }
    let line = held.get(alert).map_or("(no row)", String::as_str);
    assert!(
        line.starts_with(&begins) && line.ends_with(&ends),
        "{PAGE} has\n  {line}\nand the row is now\n  {row}\nif that is right: POSTRIDER_BLESS=1 scripts/test it {test}"
    );
}

/// Each alert has fired and cleared in a live test that still causes this fault, and the page was not edited by hand.
#[test]
fn page_is_what_the_rules_and_the_live_tests_wrote() {
    let held = rows(&page());
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        let _one = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        fs::write(root().join(PAGE), rendered(&rows(&page()))).expect("the page");
    }
    assert!(page() == rendered(&held), "{PAGE} was changed by hand, or the rules were");
    let source = include_str!("live.rs");
    let flat = source.split_whitespace().collect::<Vec<_>>().join(" ");
    for (alert, _) in ACTIONS {
        let row = held.get(alert).unwrap_or_else(|| panic!("{alert} has no row in {PAGE}"));
        let cells: Vec<&str> = row.split(" | ").collect();
        let test = row.rsplit('`').nth(1).and_then(|test| test.rsplit("::").next());
        let test = test.unwrap_or_else(|| panic!("no test in {row}"));
        for part in [format!("fn {test}("), format!("\"{alert}\""), cells[1].replace('"', "\\\"")] {
            assert!(flat.contains(&part), "{alert}: live.rs has no {part}");
        }
    }
}
