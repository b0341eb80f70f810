//! Errors of our own statements on the tables of schema `postrider`, provoked on a real server: what each leads to,
//! that it names the statement and what mends it, and that nothing is lost or confirmed before it is durable.

use crate::await_that::{SOON, await_that};
use crate::halted::{halt_of, spawn};
use crate::parking::{Scene, assert_in_order};
use crate::relay::Relay;
use crate::server::Version;
use serde_json::Value;
use tokio::task::{JoinSet, LocalSet};

/// A statement of ours, and how it is brought about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ours {
    /// The row of an event that has to be parked.
    Insert,
    /// What became of a parked event.
    Update,
    /// The cursor row.
    Cursor,
}

/// What an error leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leads {
    /// The stream goes on, and the statement is made again until it succeeds.
    Waits,
    /// A halt for this code, whose hint has this.
    Halts(&'static str, &'static str),
}

/// A way to make a statement fail: SQLSTATE, what makes it so, what takes that away, and what it leads to. `{table}`
/// and `{verb}` are the statement's, `{role}` is the relay's.
struct Way {
    state: &'static str,
    refuse: &'static str,
    allow: &'static str,
    leads: Leads,
}

/// Parked events are tried all the time.
const OFTEN: &str = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";

/// They are not tried at all.
const NEVER: &str = "attempts_max = 1000\nbackoff = { step = \"1h\", steps_max = 1 }";

const HALTS: Leads = Leads::Halts("PR010", "postrider setup");

const fn raises(state: &'static str, leads: Leads) -> Way {
    Way {
        state,
        refuse: "create function refuse() returns trigger language plpgsql as \
                 $$ begin raise exception 'no' using errcode = '{state}'; end $$ ;; \
                 create trigger refuse before {verb} on {table} for each row execute function refuse()",
        allow: "drop trigger refuse on {table} ;; drop function refuse()",
        leads,
    }
}

/// Those that every statement can meet.
const WAYS: &[Way] = &[
    raises("P0001", Leads::Halts("PR010", "trigger, rule or constraint")),
    raises("55P03", Leads::Waits),
    raises("40001", Leads::Waits),
    raises("40P01", Leads::Waits),
    Way {
        state: "23514",
        refuse: "alter table {table} add constraint no check (false) not valid",
        allow: "alter table {table} drop constraint no",
        leads: Leads::Halts("PR010", "trigger, rule or constraint"),
    },
    Way {
        state: "42501",
        refuse: "revoke {verb} on {table} from {role}",
        allow: "grant {verb} on {table} to {role}",
        leads: HALTS,
    },
    Way {
        state: "42703",
        refuse: "alter table {table} rename column {column} to was",
        allow: "alter table {table} rename column was to {column}",
        leads: HALTS,
    },
    Way {
        state: "42804",
        refuse: "alter table {table} alter column {retyped} type {other}",
        allow: "alter table {table} alter column {retyped} type {own}",
        leads: HALTS,
    },
];

impl Ours {
    /// Words of the error that name it.
    fn named(self, way: &Way) -> &'static str {
        match self {
            Self::Insert | Self::Update => "write parked events",
            // A missing column is looked into by a new start, whose first write of the row needs it too.
            Self::Cursor if way.state == "42703" => "take pipeline",
            Self::Cursor => "write the cursor",
        }
    }

    fn fill(self, sql: &str, way: &Way, role: &str) -> String {
        let (table, verb, column) = match self {
            Self::Insert => ("postrider.parked", "insert", "event_type"),
            // Not read at a start.
            Self::Update => ("postrider.parked", "update", "acted_by"),
            Self::Cursor => ("postrider.cursor", "update", "updated_at"),
        };
        let (retyped, other, own) = match self {
            Self::Insert => ("timestamp_ms", "boolean using false", "bigint using null"),
            Self::Update => ("acted_reason", "boolean using false", "text using null"),
            // The others are in constraints, which keep their types.
            Self::Cursor => (
                "updated_at drop default ;; alter table postrider.cursor alter column updated_at",
                "boolean using false",
                "timestamptz using now() ;; alter table postrider.cursor alter column updated_at set default now()",
            ),
        };
        sql.replace("{table}", table)
            .replace("{verb}", verb)
            .replace("{column}", column)
            .replace("{retyped}", retyped)
            .replace("{other}", other)
            .replace("{own}", own)
            .replace("{state}", way.state)
            .replace("{role}", role)
    }
}

/// A pipeline whose relay has a role of its own, with no more rights than it needs.
async fn scene(lines: &str) -> (Scene, String) {
    let mut scene = Scene::set_with(Version::Pg17, "own", lines).await;
    let role = scene.pipeline.name.clone();
    scene
        .pipeline
        .sql
        .batch(&format!(
            "create role {role} login replication; grant usage on schema postrider to {role}; \
             grant all on all tables in schema postrider to {role}; grant select on outbox to {role}"
        ))
        .await;
    let config = scene.config.replace("user=postgres", &format!("user={role}"));
    scene.config = config.replace("postgres@", &format!("{role}@"));
    (scene, role)
}

async fn statements(scene: &Scene, sql: &str) {
    for statement in sql.split(" ;; ") {
        scene.pipeline.sql.batch(statement).await;
    }
}

fn reason(status: &Value) -> &str {
    status["pipelines"][0]["reason"].as_str().unwrap_or_default()
}

/// No position is confirmed behind which an event stands that is neither in the topic nor parked.
async fn nothing_is_confirmed_past(scene: &Scene, lsn: &str) {
    let sql = format!(
        "select (confirmed_flush_lsn < '{lsn}')::text from pg_replication_slots where slot_name = '{}'",
        scene.pipeline.slot()
    );
    assert_eq!(scene.pipeline.sql.text(&sql).await.as_deref(), Some("true"), "past {lsn}");
}

/// One way, from a stream that is well to one that is well again.
async fn meets(ours: Ours, way: &Way) {
    let (mut scene, role) = scene(OFTEN).await;
    let what = format!("{ours:?} {}", way.state);
    let relay = spawn(&scene.config);
    relay.await_state("streaming", SOON).await;
    scene.insert(&["b"]).await;
    scene.await_last("b", 1).await;
    let mut numbers = 1;
    if ours == Ours::Update {
        // Refused now and then: each refusal is an update.
        scene.insert(&["!a"]).await;
        numbers += 1;
        scene.await_rows("a waiting").await;
    }
    statements(&scene, &ours.fill(way.refuse, way, &role)).await;
    let last = if ours == Ours::Insert { "!a" } else { "b" };
    scene.insert(&[last]).await;
    let behind = scene.pipeline.wal_end().await;
    numbers += 1;
    if ours == Ours::Insert {
        scene.insert(&["b"]).await;
        numbers += 1;
    }
    let relay = match way.leads {
        Leads::Waits => {
            let told = |status: &Value| {
                let words = [ours.named(way), way.state];
                words.iter().all(|word| reason(status).contains(word))
            };
            relay.await_status(&format!("{what}: it is told"), SOON, told).await;
            // All that needs no such row is published.
            scene.await_last("b", numbers).await;
            if ours != Ours::Update {
                nothing_is_confirmed_past(&scene, &behind).await;
            }
            statements(&scene, &ours.fill(way.allow, way, &role)).await;
            relay
        }
        Leads::Halts(code, hint) => {
            let halted = halt_of(relay).await;
            halted.assert_says(code, &[ours.named(way), way.state], &[hint]);
            if ours != Ours::Update {
                nothing_is_confirmed_past(&scene, &behind).await;
            }
            statements(&scene, &ours.fill(way.allow, way, &role)).await;
            spawn(&scene.config)
        }
    };
    if ours != Ours::Cursor {
        scene.await_rows("a waiting").await;
        scene.insert(&["a"]).await;
        scene.raise_the_limit().await;
    }
    scene.insert(&["b"]).await;
    all_arrives(&scene, ours, relay, &what).await;
    scene.pipeline.sql.batch(&format!("drop owned by {role}; drop role {role}")).await;
}

/// The ledger: each event of each aggregate, in order; confirmed to the end.
async fn all_arrives(scene: &Scene, ours: Ours, relay: Relay, what: &str) {
    scene.await_rows("").await;
    let wal_end = scene.pipeline.wal_end().await;
    await_that(&format!("{what}: all is confirmed"), SOON, || scene.pipeline.confirmed(&wal_end))
        .await;
    // Parked behind one that was not known to be published yet.
    scene.await_rows("").await;
    let (a, b): (&[u64], &[u64]) = match ours {
        Ours::Insert | Ours::Update => (&[2, 4], &[1, 3, 5]),
        Ours::Cursor => (&[], &[1, 2, 3]),
    };
    let delivered = scene.delivered().await;
    assert_in_order(&delivered["b"], b);
    if !a.is_empty() {
        assert_in_order(&delivered["a"], a);
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0), "{what}");
}

/// All ways, several at a time: they mostly wait.
async fn all(ours: Ours) {
    for some in WAYS.chunks(4) {
        let together = async {
            let mut ways = JoinSet::new();
            for way in some {
                ways.spawn_local(meets(ours, way));
            }
            ways.join_all().await;
        };
        LocalSet::new().run_until(together).await;
    }
}

#[tokio::test]
async fn row_of_an_event_that_can_not_be_parked_halts_or_waits_and_loses_nothing() {
    all(Ours::Insert).await;
}

#[tokio::test]
async fn change_to_a_parked_row_that_is_refused_halts_or_waits_and_loses_nothing() {
    all(Ours::Update).await;
}

#[tokio::test]
async fn cursor_row_that_is_refused_halts_or_waits_and_loses_nothing() {
    all(Ours::Cursor).await;
}

/// What makes a look at the parked table fail, and what takes that away.
const LOOKS: &[(&str, &str, &str)] = &[
    ("P0001", VIEW, NO_VIEW),
    ("55P03", VIEW, NO_VIEW),
    ("40001", VIEW, NO_VIEW),
    (
        "42501",
        "revoke select on postrider.parked from {role}",
        "grant select on postrider.parked to {role}",
    ),
    (
        "42703",
        "alter table postrider.parked rename column requested_action to was",
        "alter table postrider.parked rename column was to requested_action",
    ),
    (
        "42804",
        "alter table postrider.parked rename column requested_action to was ;; \
         alter table postrider.parked add column requested_action boolean default true",
        "alter table postrider.parked drop column requested_action ;; \
         alter table postrider.parked rename column was to requested_action",
    ),
];

/// A view in the table's place, whose rows can't be read. In one transaction: no look may find nothing there.
const VIEW: &str = "begin; create function refuse() returns boolean language plpgsql as \
                    $$ begin raise exception 'no' using errcode = '{state}'; end $$; \
                    alter table postrider.parked rename to was; \
                    create view postrider.parked as select * from postrider.was where refuse(); \
                    grant all on postrider.parked to {role}; commit";

const NO_VIEW: &str = "begin; drop view postrider.parked; alter table postrider.was rename to parked; \
                       drop function refuse(); commit";

/// People wait for requests, and no event does: a look that fails is logged, made again, and holds up nothing.
#[tokio::test]
async fn requests_that_can_not_be_read_hold_up_no_event_and_are_carried_out_later() {
    let (mut scene, role) = scene(NEVER).await;
    let relay = spawn(&scene.config);
    scene.insert(&["!a", "b"]).await;
    scene.await_rows("a waiting").await;
    let mut last = 2;
    for (state, refuse, allow) in LOOKS {
        let fill = |sql: &str| sql.replace("{state}", state).replace("{role}", &role);
        statements(&scene, &fill(refuse)).await;
        let notify = format!("select pg_notify('postrider_parked', '{}')", scene.pipeline.name);
        scene.pipeline.sql.batch(&notify).await;
        let logged = |log: &str| {
            let failed = log.lines().filter(|line| line.contains("\"event\":\"look_failed\""));
            failed.filter(|line| line.contains(&format!("(SQLSTATE {state})"))).count()
        };
        await_that(&format!("{state} is logged"), SOON, || async {
            let log = relay.stderr();
            if logged(&log) > 0 { Ok(()) } else { Err(log) }
        })
        .await;
        scene.insert(&["b"]).await;
        last += 1;
        scene.await_last("b", last).await;
        statements(&scene, &fill(allow)).await;
    }
    let skip = "update postrider.parked set requested_action = 'skip', requested_by = 'a person', requested_at = now()";
    scene.pipeline.sql.batch(skip).await;
    scene.await_rows("").await;
    let state = "select state || ' ' || acted_action from postrider.parked";
    assert_eq!(scene.pipeline.sql.text(state).await.as_deref(), Some("skipped skip"));
    let log = relay.stderr();
    assert!(!log.contains("connecting to the database again"), "{log}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    scene.pipeline.sql.batch(&format!("drop owned by {role}; drop role {role}")).await;
}

/// The record of an event that is to be tried again is read from its row: where that is refused, the pipeline halts or
/// waits as for a write.
#[tokio::test]
async fn record_of_a_retry_that_can_not_be_read_halts_or_waits_and_loses_nothing() {
    for (state, halts) in [("40001", false), ("55P03", false), ("P0001", true), ("42501", true)] {
        let (mut scene, role) = scene(OFTEN).await;
        let relay = spawn(&scene.config);
        scene.insert(&["!a", "b", "a"]).await;
        scene.await_rows("a waiting, a behind").await;
        let (refuse, allow) = LOOKS
            .iter()
            .find(|(of, ..)| *of == state)
            .map(|(_, refuse, allow)| (*refuse, *allow))
            .expect("a way");
        let fill = |sql: &str| sql.replace("{state}", state).replace("{role}", &role);
        statements(&scene, &fill(refuse)).await;
        let relay = if halts {
            let halted = halt_of(relay).await;
            halted.assert_says("PR010", &["parked events", state], &["postrider setup"]);
            statements(&scene, &fill(allow)).await;
            spawn(&scene.config)
        } else {
            await_that(&format!("{state} is logged"), SOON, || async {
                let log = relay.stderr();
                let words = ["could not fetch parked events", state];
                let told = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
                if told { Ok(()) } else { Err(log) }
            })
            .await;
            scene.insert(&["b"]).await;
            scene.await_last("b", 4).await;
            statements(&scene, &fill(allow)).await;
            relay
        };
        scene.raise_the_limit().await;
        scene.await_rows("").await;
        scene.await_last("a", 3).await;
        assert_eq!(scene.delivered().await["a"], [1, 3], "{state}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0), "{state}");
        scene.pipeline.sql.batch(&format!("drop owned by {role}; drop role {role}")).await;
    }
}
