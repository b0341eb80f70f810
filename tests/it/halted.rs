//! A run that halts: what it said on its last line, and how its process ended.

use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::relay::{Ended, Relay};
use crate::server::Client;
use serde_json::Value;
use std::time::Duration;

/// How long a run may take from its start, or from what breaks it, to its end: a look comes every 5 s.
const HALT_DEADLINE: Duration = SOON;

/// What an operator reads of a halt.
#[derive(Debug)]
pub(crate) struct Halted {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) meaning: String,
    pub(crate) hint: String,
    pub(crate) ended: Ended,
}

/// `postrider run` whose log can be read by [`halt_of`].
pub(crate) fn spawn(config: &str) -> Relay {
    Relay::spawn_with(config, &["--log-format", "json", "--fail-fast"], &[])
}

/// Runs until the end, which must be a halt.
pub(crate) async fn run_to_halt(config: &str) -> Halted {
    halt_of(spawn(config)).await
}

/// Waits for the end of a process with one pipeline and `--fail-fast`, which must be a halt: exit 3, in four parts.
pub(crate) async fn halt_of(relay: Relay) -> Halted {
    let ended = relay.ended(HALT_DEADLINE).await;
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let mut halts = halt_lines(&ended.stderr);
    assert_eq!(halts.len(), 1, "one line says why:\n{}", ended.stderr);
    let line = halts.remove(0);
    let field = |name: &str| {
        let text = line[name].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "the halt has no {name}: {line}");
        text.to_owned()
    };
    let (code, message) = (field("code"), field("message"));
    let (meaning, hint) = (field("meaning"), field("hint"));
    Halted { code, message, meaning, hint, ended }
}

/// The lines of halts in a log.
pub(crate) fn halt_lines(log: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    // A parked event has a code too, and no meaning for the data.
    lines.filter(|line| line["code"].is_string() && line["meaning"].is_string()).collect()
}

impl Halted {
    /// The code, words of the message, and words of the hint.
    pub(crate) fn assert_says(&self, code: &str, message: &[&str], hint: &[&str]) {
        assert_eq!(self.code, code, "{self:#?}");
        for word in message {
            assert!(self.message.contains(word), "no {word:?} in the message: {self:#?}");
        }
        for word in hint {
            assert!(self.hint.contains(word), "no {word:?} in the hint: {self:#?}");
        }
    }
}

impl Pipeline {
    /// The slot's position, over a new session.
    pub(crate) async fn confirmed_lsn(&self) -> Option<String> {
        let session = Client::connect(&self.url).await.expect("a session");
        let sql = format!(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{}'",
            self.slot()
        );
        session.text(&sql).await
    }

    /// Statements with `{slot}`, `{publication}` and `{pipeline}` filled in. One by one: a slot can't be made in a
    /// transaction that has written.
    pub(crate) async fn sql(&self, statements: &str) {
        let filled = statements
            .replace("{slot}", &self.slot())
            .replace("{publication}", &self.slot())
            .replace("{pipeline}", &self.name);
        for statement in filled.split("; ") {
            self.sql.batch(statement).await;
        }
    }

    /// The configuration with one more line in `[pipelines.NAME.TABLE]`.
    pub(crate) fn with_line(&self, table: &str, line: &str) -> String {
        let head = format!("[pipelines.{}.{table}]\n", self.name);
        assert!(self.config.contains(&head), "{}", self.config);
        self.config.replacen(&head, &format!("{head}{line}\n"), 1)
    }

    /// The configuration under which a poison event halts the pipeline.
    pub(crate) fn stops(&self) -> String {
        self.with_parking(&self.config, "on_poison = \"stop\"")
    }

    /// A configuration with lines for `[parking]`.
    pub(crate) fn with_parking(&self, config: &str, lines: &str) -> String {
        format!("{config}\n[pipelines.{}.parking]\n{lines}\n", self.name)
    }
}
