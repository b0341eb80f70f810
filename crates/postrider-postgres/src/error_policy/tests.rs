//! The whole table of the error policy as a snapshot.

use super::*;
use crate::names::{Names, TableName, Times};
use expect_test::expect_file;
use pg_replication::error::ServerReport;
use postrider_core::store::PipelineKey;
use std::fmt::Write;

fn server(state: &str) -> SourceErrorKind {
    SourceErrorKind::Server(Box::new(ServerReport {
        severity: "ERROR".to_owned(),
        sqlstate: SqlState::parse(state).unwrap(),
        message: "the server's words".to_owned(),
        detail: None,
        hint: None,
        constraint: None,
        associated_lsn: None,
    }))
}

fn error(kind: SourceErrorKind) -> SourceError {
    SourceError::new(kind, "do something")
}

const STATES: &[&str] = &[
    "08006", "09000", "0A000", "22021", "22023", "22P02", "22P05", "23505", "23514", "25006",
    "25P02", "25P03", "26000", "28000", "28P01", "3D000", "3F000", "40001", "40P01", "42501",
    "42601", "42602", "42703", "42704", "42804", "42P01", "44000", "53100", "53200", "53300",
    "53400", "54000", "55000", "55006", "55P03", "57014", "57P01", "57P02", "57P03", "57P05",
    "58030", "58P01", "P0001", "XX000", "XX001", "ZZ999",
];

fn kinds() -> Vec<(String, SourceErrorKind)> {
    let second = Duration::from_secs(1);
    let own = [
        ("settings", SourceErrorKind::Settings),
        ("unreachable", SourceErrorKind::Unreachable),
        ("timeout", SourceErrorKind::Timeout(second)),
        ("tls", SourceErrorKind::Tls),
        ("auth refused", SourceErrorKind::AuthRefused),
        ("session attrs", SourceErrorKind::SessionAttrs),
        ("protocol", SourceErrorKind::Protocol),
        ("closed", SourceErrorKind::Closed),
        ("silent", SourceErrorKind::Silent(second)),
        ("too large", SourceErrorKind::TooLarge { size: 2, limit: 1 }),
        ("stopped", SourceErrorKind::Stopped),
        ("server stopping", SourceErrorKind::ServerStopping),
        ("system", SourceErrorKind::System),
    ];
    let own = own.into_iter().map(|(name, kind)| (name.to_owned(), kind));
    own.chain(STATES.iter().map(|state| ((*state).to_owned(), server(state)))).collect()
}

fn rendered(action: Action) -> String {
    match action {
        Action::Reconnect(class) => class.name().to_owned(),
        Action::Later(class) => format!("later {}", class.name()),
        Action::StandBy => "STAND BY".to_owned(),
        Action::Recheck(reason) => format!("RECHECK {}", reason.name()),
        Action::Halt(reason) => format!("HALT {}", reason.name()),
    }
}

#[test]
fn the_whole_table() {
    let mut out = String::from("error | proven | connect | handshake | start | stream | control\n");
    for (name, kind) in kinds() {
        let error = error(kind);
        for proven in [false, true] {
            let row = Phase::ALL.map(|phase| rendered(action(&error, phase, proven)));
            let row = if row.iter().all(|cell| *cell == row[0]) {
                row[0].clone()
            } else {
                row.join(" | ")
            };
            let both = Phase::ALL
                .iter()
                .all(|phase| action(&error, *phase, false) == action(&error, *phase, true));
            match (both, proven) {
                (true, false) => writeln!(out, "{name} | any | {row}").unwrap(),
                (true, true) => {}
                (false, _) => writeln!(out, "{name} | {proven} | {row}").unwrap(),
            }
        }
    }
    expect_file!["snapshots/table.txt"].assert_eq(&out);
}

/// The table for our own statements, by SQLSTATE. The phase does not matter, because the walsender runs none of them.
#[test]
fn the_whole_table_by_statement() {
    let names: Vec<&str> = Statement::ALL.iter().map(|statement| statement.name()).collect();
    let mut out = format!("error | proven | {}\n", names.join(" | "));
    for state in STATES {
        let row = |proven: bool| {
            let cell = |statement: &Statement| {
                let error = error(server(state)).of(*statement);
                let [first, others @ ..] = Phase::ALL.map(|phase| action(&error, phase, proven));
                assert!(others.iter().all(|other| *other == first), "{state} {statement:?}");
                rendered(first)
            };
            let cells: Vec<String> = Statement::ALL.iter().map(cell).collect();
            if cells.iter().all(|cell| *cell == cells[0]) {
                cells[0].clone()
            } else {
                cells.join(" | ")
            }
        };
        let (new, proven) = (row(false), row(true));
        if new == proven {
            writeln!(out, "{state} | any | {new}").unwrap();
        } else {
            writeln!(out, "{state} | false | {new}\n{state} | true | {proven}").unwrap();
        }
    }
    expect_file!["snapshots/statements.txt"].assert_eq(&out);
}

/// Only the stream uses the publication and the slot, so no error of our own statements is about them.
#[test]
fn no_error_of_a_statement_of_ours_is_taken_for_one_of_slot_or_publication() {
    for state in STATES {
        for statement in Statement::ALL {
            let action = action(&error(server(state)).of(*statement), Phase::Stream, true);
            let (Action::Halt(reason) | Action::Recheck(reason)) = action else { continue };
            let own = matches!(reason, HaltReason::TableUnfit | HaltReason::SchemaUnfit);
            assert!(own, "{state} of {statement:?}: {reason:?}");
        }
    }
}

/// Every halt that one of our own statements leads to has a meaning and a hint, and following the hint loses no event.
#[test]
fn every_halt_of_a_statement_names_what_to_change_and_gives_nothing_up() {
    let names = names();
    let mut out = String::new();
    for statement in Statement::ALL {
        for state in STATES {
            let error = error(server(state)).of(*statement);
            let (Action::Halt(reason) | Action::Recheck(reason)) =
                action(&error, Phase::Stream, true)
            else {
                continue;
            };
            let halt = explain(reason, &error, &names);
            for loses in ["DROP", "DELETE FROM", "pg_drop_replication_slot", "TRUNCATE"] {
                assert!(!halt.hint.contains(loses), "{state} of {statement:?}: {}", halt.hint);
            }
            let statement = statement.name();
            writeln!(
                out,
                "## {statement} {state}\n\n{halt}\nmeans: {}\nfix:   {}\n",
                halt.meaning, halt.hint
            )
            .unwrap();
        }
    }
    expect_file!["snapshots/statement_halts.md"].assert_eq(&out);
}

fn names() -> Names {
    Names {
        key: PipelineKey::first("orders"),
        slot: "postrider_orders".to_owned(),
        publication: "postrider_orders".to_owned(),
        table: Some(TableName::new("public", "outbox")),
        captured: Vec::new(),
        times: Times::default(),
        auto: false,
        in_transactions: false,
        updates: false,
    }
}

#[test]
fn every_halt_of_the_policy_has_a_meaning_and_a_remediation() {
    let names = names();
    let mut out = String::new();
    for (name, kind) in kinds() {
        let error = error(kind);
        let mut seen = Vec::new();
        for phase in Phase::ALL {
            let (Action::Halt(reason) | Action::Recheck(reason)) = action(&error, phase, false)
            else {
                continue;
            };
            if seen.contains(&reason) {
                continue;
            }
            seen.push(reason);
            let halt = explain(reason, &error, &names);
            writeln!(out, "## {name}\n\n{halt}\nmeans: {}\nfix:   {}\n", halt.meaning, halt.hint)
                .unwrap();
        }
    }
    expect_file!["snapshots/halts.md"].assert_eq(&out);
}

#[test]
fn once_it_has_streamed_no_refused_login_halts() {
    for (name, kind) in kinds() {
        let error = error(kind);
        let told = rendered(action(&error, Phase::Connect, true));
        let definite = ["HALT protocol", "HALT poison_event"].contains(&told.as_str());
        assert!(definite || !told.starts_with("HALT"), "{name}: {told}");
    }
}

#[test]
fn the_third_failure_at_one_position_is_wedged_and_any_movement_forgets() {
    let mut repeats = Repeats::default();
    let here: Lsn = "0/1000".parse().unwrap();
    let there: Lsn = "0/2000".parse().unwrap();
    let poison = error(server("22021"));
    assert!(!repeats.wedged(&poison, here));
    assert!(!repeats.wedged(&poison, here));
    assert!(!repeats.wedged(&poison, there));
    assert!(!repeats.wedged(&poison, here));
    assert!(!repeats.wedged(&error(server("53200")), here), "memory may come back");
    assert!(!repeats.wedged(&poison, here));
    assert!(repeats.wedged(&poison, here));
}
