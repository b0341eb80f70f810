//! `postrider doctor`: the findings of `check`, what the running process says of itself, and whether the standbys of
//! the database could take over.

use super::args::{DoctorArgs, Global};
use super::check::{self, Report};
use super::error::{CliError, Exit, printable};
use super::status::{self, StatusAnswer};
use crate::config::{Config, Env};
use crate::error::Chain;
use crate::finding::Finding;
use crate::health::duration_text;
use crate::pipeline::{Mode, PipelineSpec};
use crate::postgres::SourceError;
use crate::postgres::control::Control;
use crate::postgres::preflight::{StandbyQuery, standbys};
use crate::postgres::store::pause::{self, ConnectedProcesses};
use serde_json::Value;

/// `application_name` of the sessions.
const APPLICATION_NAME: &str = "postrider doctor";

/// A slot that is full within this time at the rate of the last minutes is a problem; later it is a warning, up to the
/// second time. Unit: seconds.
const FULL_SOON: f64 = 3_600.0;
const FULL_LATER: f64 = 86_400.0;

/// What is known of the process that listens on `admin.listen`.
enum FoundProcess {
    /// `admin.listen` is off.
    NotAsked,
    /// Nothing answers there.
    Silent,
    /// Something else answers there, or a process with another configuration; why.
    Other(String),
    Answers(StatusAnswer),
}

pub(super) async fn run(
    config: &Config,
    global: &Global,
    args: &DoctorArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let mut reports = check::reports(config, global, false, None).await;
    let process = ask(config, global).await;
    for (spec, report) in config.specs.iter().zip(&mut reports) {
        examine(spec, global, &process, report).await;
    }
    check::print(config, global, args.json, env, &reports)
}

async fn ask(config: &Config, global: &Global) -> FoundProcess {
    let Some(address) = config.admin.listen else { return FoundProcess::NotAsked };
    match status::query(status::reachable(address), config, global).await {
        Ok(answer) => FoundProcess::Answers(answer),
        Err(CliError::Ask { .. }) => FoundProcess::Silent,
        Err(error) => FoundProcess::Other(error.one_line()),
    }
}

/// Adds what `check` does not look at to the findings of a pipeline.
async fn examine(
    spec: &PipelineSpec,
    global: &Global,
    process: &FoundProcess,
    report: &mut Report,
) {
    let mut found = match process {
        FoundProcess::Answers(answer) => of_status(spec.name(), answer),
        FoundProcess::NotAsked | FoundProcess::Silent | FoundProcess::Other(_) => {
            vec![of_database(process, connected(spec).await)]
        }
    };
    if spec.common.mode != Mode::Poll || spec.conninfo.host_list().len() > 1 {
        let slot = (spec.common.mode != Mode::Poll).then_some(spec.names.slot.as_str());
        let (conninfo, failover) = (&spec.conninfo, spec.failover);
        let query = StandbyQuery { conninfo, application_name: APPLICATION_NAME, slot, failover };
        found.extend(standbys(&query).await);
    }
    for finding in &mut found {
        check::name_the_file(finding, global);
    }
    report.findings.append(&mut found);
}

/// The processes of the pipeline that are connected to its database.
async fn connected(spec: &PipelineSpec) -> Result<ConnectedProcesses, SourceError> {
    let control = Control::connect(&spec.conninfo, APPLICATION_NAME).await?;
    pause::connected(control.client(), spec.key()).await
}

/// What the database knows, if no process of this configuration answers here.
fn of_database(
    process: &FoundProcess,
    connected: Result<ConnectedProcesses, SourceError>,
) -> Finding {
    let here = match process {
        FoundProcess::NotAsked => "admin.listen is off, so its state is not known".to_owned(),
        FoundProcess::Silent => "none answers at admin.listen: is it on another host?".to_owned(),
        FoundProcess::Other(why) => printable(why),
        FoundProcess::Answers(_) => String::new(),
    };
    match connected {
        Ok(ConnectedProcesses { reads: true, .. }) => {
            Finding::info("process", "a process of the pipeline is connected to the database").why(here)
        }
        Ok(ConnectedProcesses { paused: 1.., .. }) => {
            Finding::warning("process", "a paused process of the pipeline is connected to the database")
                .why(here)
        }
        Ok(ConnectedProcesses { .. }) => {
            Finding::error("process", "no process of the pipeline is connected to the database")
                .why(format!(
                    "nothing is published, and a slot retains WAL meanwhile: the process was not started, has \
                     exited, has halted, or can't reach the database ({here})"
                ))
                .shell("postrider run")
        }
        Err(error) => {
            Finding::warning("process", "it is not known whether a process of the pipeline runs")
                .why(format!("{here}; {}", Chain(&error)))
        }
    }
}

/// What the running process says of the pipeline.
fn of_status(name: &str, answer: &StatusAnswer) -> Vec<Finding> {
    let mut found = Vec::new();
    let ours = env!("CARGO_PKG_VERSION");
    if answer.version() != ours {
        let theirs = printable(answer.version());
        found.push(
            Finding::warning(
                "process",
                format!("the process has version {theirs}, this program is {ours}"),
            )
            .why("the process was not restarted after an upgrade")
            .shell("systemctl restart postrider"),
        );
    }
    let Some(pipeline) = answer.pipeline(name) else {
        found.push(Finding::error("process", "the process does not run this pipeline"));
        return found;
    };
    found.push(state(pipeline));
    found.extend(parked(name, pipeline));
    found.extend(room(pipeline));
    found
}

/// The state, in the words of the process.
fn state(pipeline: &Value) -> Finding {
    let text = |key: &str| printable(pipeline[key].as_str().unwrap_or_default());
    let (state, sentence) = (text("state"), text("sentence"));
    let what = if sentence.is_empty() { state.clone() } else { sentence };
    let hint = text("hint");
    let is_ready = pipeline["ready"] == Value::Bool(true);
    let finding = match state.as_str() {
        "halted" | "broker_down" | "source_down" | "parking_full" | "stopped" => {
            Finding::error("state", what)
        }
        "starting" | "standing_by" => Finding::info("state", what),
        "paused" | "draining" => Finding::warning("state", what),
        // A loop that does not turn any more has the state that it had before.
        _ if !pipeline["flow"]["blocked"].is_null() => Finding::error("state", what),
        _ if is_ready => Finding::ok("state", what),
        _ => Finding::warning("state", what),
    };
    // A hint is a sentence or several lines, of which not every one is a command.
    if hint.is_empty() { finding } else { finding.why(hint) }
}

/// Events that a person has to look at.
fn parked(name: &str, pipeline: &Value) -> Option<Finding> {
    let count = |key: &str| pipeline["parked"][key].as_u64().unwrap_or(0);
    let (dead, waiting) = (count("dead"), count("waiting") + count("behind"));
    if dead == 0 && waiting == 0 {
        return None;
    }
    let finding = Finding::warning(
        "parked",
        format!("{dead} events are dead, and {waiting} wait for another attempt or behind one"),
    );
    let state = if dead > 0 { " --state dead" } else { "" };
    Some(
        finding
            .why("a dead event is published only if a person retries or replaces it")
            .shell(format!("postrider parked list{state} -p {name}")),
    )
}

/// A slot that will reach its limit.
fn room(pipeline: &Value) -> Option<Finding> {
    let room = &pipeline["flow"]["slot_room"];
    let seconds = room["full_in_seconds"].as_f64().filter(|seconds| *seconds <= FULL_LATER)?;
    let limit = printable(room["limit"].as_str().unwrap_or_default());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and at most a day"
    )]
    let time = duration_text(seconds.max(0.0) as u64);
    let what = format!("at the rate of the last minutes the slot reaches {limit} in {time}");
    let finding = if seconds <= FULL_SOON {
        Finding::error("slot_room", what)
    } else {
        Finding::warning("slot_room", what)
    };
    Some(finding.why(if limit == "max_slot_wal_keep_size" {
        "the server then removes WAL that the slot needs, and the slot is lost (PR001): remove what the pipeline waits \
         for, or let an administrator raise the setting"
    } else {
        "the pipeline then acts as the setting says (PR017, or polling with mode = \"auto\"): remove what it waits \
         for, or raise the setting"
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use serde_json::json;

    fn severity(state: &str, ready: bool) -> Severity {
        super::state(&json!({ "state": state, "ready": ready, "sentence": "a sentence" })).severity
    }

    #[test]
    fn state_that_publishes_nothing_is_an_error() {
        assert_eq!(severity("streaming", true), Severity::Ok);
        assert_eq!(severity("streaming", false), Severity::Warning);
        assert_eq!(severity("catching_up", false), Severity::Warning);
        assert_eq!(severity("paused", false), Severity::Warning);
        assert_eq!(severity("standing_by", false), Severity::Info);
        for state in ["halted", "broker_down", "source_down", "parking_full"] {
            assert_eq!(severity(state, false), Severity::Error, "{state}");
        }
        let stuck = json!({ "state": "streaming", "ready": true, "flow": { "blocked": { "stage": "read" } } });
        assert_eq!(super::state(&stuck).severity, Severity::Error);
        // A state of a later version.
        assert_eq!(severity("dreaming", false), Severity::Warning);
    }

    #[test]
    fn slot_that_is_full_within_an_hour_is_an_error() {
        let of = |seconds: Value| {
            let room = json!({ "limit": "max_slot_wal_keep_size", "full_in_seconds": seconds });
            let flow = json!({ "slot_room": room });
            super::room(&json!({ "flow": flow })).map(|finding| finding.severity)
        };
        assert_eq!(of(json!(600.0)), Some(Severity::Error));
        assert_eq!(of(json!(7_200.0)), Some(Severity::Warning));
        assert_eq!(of(json!(1e6)), None);
        assert_eq!(of(Value::Null), None);
    }

    #[test]
    fn dead_events_are_listed_by_the_printed_command() {
        let pipeline = json!({ "parked": { "dead": 2, "waiting": 1, "behind": 3 } });
        let finding = parked("orders", &pipeline).unwrap();
        assert_eq!(finding.what, "2 events are dead, and 4 wait for another attempt or behind one");
        assert_eq!(finding.fix[0].line, "postrider parked list --state dead -p orders");
        assert_eq!(parked("orders", &json!({ "parked": { "dead": 0, "due": 7 } })), None);
    }

    #[test]
    fn pipeline_without_a_process_is_an_error() {
        let of = |connected| of_database(&FoundProcess::Silent, Ok(connected)).severity;
        assert_eq!(of(ConnectedProcesses::default()), Severity::Error);
        assert_eq!(of(ConnectedProcesses { reads: true, paused: 0 }), Severity::Info);
        assert_eq!(of(ConnectedProcesses { reads: false, paused: 1 }), Severity::Warning);
    }
}
