//! What a changed configuration would lead to at the next start: the same as `run` says.

use crate::driver::{
    LeftBehind, Mode, PipelineSpec, Settings, left_behind, look_for_changes, polls_now,
};
use crate::error::Chain;
use crate::finding::{Finding, Severity};
use crate::postgres::control::{Ask, Control};
use crate::postgres::ownership::Acting;
use crate::postgres::schema::{self, SchemaState};
use crate::postgres::{Conninfo, SourceError};
use crate::sink::{self, SinkSpec};

/// What the server knows the session by.
const APPLICATION_NAME: &str = "postrider check";

/// On top of what every control session pins: nothing is written.
const READ_ONLY: &str = "SET default_transaction_read_only = on; SET lock_timeout = '2s'";

/// Looks, where the database was found fit to be looked at. `found`: what is known already.
pub(super) async fn findings(
    spec: &PipelineSpec,
    login: Option<&Conninfo>,
    found: &[Finding],
) -> Vec<Finding> {
    let has = |id: &str| found.iter().any(|finding| finding.id == id);
    if has("standby") {
        return Vec::new();
    }
    // Whether a broker answers was found out before; asking one that does not takes half a minute.
    let answers = has("broker");
    // What keeps the session from being opened is a finding already.
    let Ok(control) = Control::connect(login.unwrap_or(&spec.conninfo), APPLICATION_NAME).await
    else {
        return Vec::new();
    };
    let acting = match login {
        Some(login) if login.user() != spec.conninfo.user() => Acting::Administrator,
        Some(_) | None => Acting::OwnLogin,
    };
    match look(spec, &control, acting, answers).await {
        Ok(findings) => findings,
        Err(error) => vec![
            Finding::warning("changes_unread", Chain(&error).to_string()).why(
                "whether the configuration was changed since the pipeline reached its position could not be found out; \
                 run finds it out before it publishes",
            ),
        ],
    }
}

async fn look(
    spec: &PipelineSpec,
    control: &Control,
    acting: Acting,
    answers: bool,
) -> Result<Vec<Finding>, SourceError> {
    let client = control.client();
    let pinned = client.batch_execute(READ_ONLY).await;
    pinned.map_err(|e| SourceError::control("make the session read-only", e))?;
    let state = schema::read(client, acting).await;
    // A schema that is missing, older or not to be read is a finding already.
    if !matches!(state, Ok(SchemaState::Version(schema::VERSION))) {
        return Ok(Vec::new());
    }
    let columns = spec.columns();
    let facts = control.facts(&Ask { acting, ..spec.ask(&None, &columns) }).await?;
    if spec.names.table.is_some() && facts.table.is_none() {
        return Ok(Vec::new());
    }
    let cluster = if answers && matches!(spec.sink, SinkSpec::Kafka(_)) {
        let sink = spec.sink.clone();
        tokio::task::spawn_blocking(move || sink::cluster(&sink)).await.unwrap_or_default()
    } else {
        None
    };
    let settings = Settings {
        spec,
        cluster: cluster.as_deref(),
        table_oid: facts.table.as_ref().map(|table| table.oid),
        repairs: false,
        polls: polls_now(spec, &facts, APPLICATION_NAME).await,
        thorough: true,
    };
    let change = look_for_changes(client, settings).await?;
    let mut findings = Vec::new();
    if let Some(halt) = change.halt {
        let why = format!("{} ({}); {}", halt.meaning, halt.reason.code(), halt.hint);
        let finding = Finding::error("pipeline_changed", halt.message).why(why);
        findings.push(match change.sql {
            Some(sql) => finding.sql(sql),
            None => finding,
        });
    }
    for note in change.notes {
        let finding = Finding::warning("setting_changed", note.message).why(note.why);
        findings.push(match note.sql {
            Some(sql) => finding.sql(sql),
            None => finding,
        });
    }
    if change.hands_over {
        findings.push(
            Finding::info("hand_over", "mode was \"poll\" and is \"auto\"").why(
                "run polls the table to its end, drops the slot of this pipeline if there is one, makes a new one, and \
                 streams from it: nothing is lost, and only what is in flight may come twice",
            ),
        );
    }
    if spec.mode == Mode::Poll
        && !findings.iter().any(|finding| finding.severity == Severity::Error)
        && let Some(left) = left_behind(client, spec).await?
    {
        findings.push(
            Finding::warning("slot_left_behind", left.message())
                .why(LeftBehind::WHY)
                .sql(left.line()),
        );
    }
    Ok(findings)
}
