//! What each server of the connection string has of the pipeline's slot: whether it could take over. Every host is
//! queried with a session of its own, because a session that must write never sees a standby.

use super::facts;
use crate::catalog::{self, SlotRow};
use crate::control::Control;
use pg_replication::conninfo::Conninfo;
use pg_replication::error::SourceError;
use postrider_core::error::Chain;
use postrider_core::finding::Finding;
use std::time::Duration;

/// The longest time for the queries to one host, with the login.
const HOST_MAX: Duration = Duration::from_secs(15);

/// The first version that carries slots over to standbys.
const CARRIES_SLOTS: u32 = 170_000;

/// What [`standbys`] is to read.
#[derive(Clone, Copy, Debug)]
pub struct StandbyQuery<'a> {
    /// The connection string with all hosts.
    pub conninfo: &'a Conninfo,
    /// `application_name` of the sessions.
    pub application_name: &'a str,
    /// The pipeline's slot; `None` if the pipeline has none.
    pub slot: Option<&'a str>,
    /// Whether the slot is to be a failover slot.
    pub failover: bool,
}

/// What one host answered.
enum HostAnswer {
    Primary,
    Standby(StandbyFacts),
    Unknown(String),
}

struct StandbyFacts {
    version: u32,
    syncs: bool,
    feedback: bool,
    /// `primary_slot_name` is set.
    has_primary_slot: bool,
    slot: Option<SlotRow>,
}

/// Queries each host, and returns what it means for a failover. Only reads.
pub async fn standbys(query: &StandbyQuery<'_>) -> Vec<Finding> {
    let hosts = query.conninfo.each_host();
    let asked = hosts.iter().map(|host| ask(query, host));
    let answers = futures_util::future::join_all(asked).await;
    let mut findings = Vec::new();
    let mut standbys = 0_usize;
    for (host, answer) in hosts.iter().zip(&answers) {
        let host = host.hosts();
        match answer {
            HostAnswer::Primary => {}
            HostAnswer::Unknown(reason) => findings.push(
                Finding::warning("standby_slot", format!("{host} could not be queried"))
                    .why(format!("it is not known whether this server could take over: {reason}")),
            ),
            HostAnswer::Standby(facts) => {
                standbys += 1;
                findings.push(standby(query, &host, facts));
            }
        }
    }
    if hosts.len() == 1 && standbys == 0 && findings.is_empty() {
        findings.push(
            Finding::info("failover_hosts", "source.url names one host").why(
                "a failover is followed if the address always leads to the primary. Otherwise name all hosts, with \
                 target_session_attrs=read-write: then standbys are checked here too",
            ),
        );
    } else if standbys == 0 && findings.is_empty() {
        findings.push(
            Finding::info("failover_hosts", "no host of source.url is a standby")
                .why("after the loss of this server there is none that could take over"),
        );
    }
    findings
}

async fn ask(query: &StandbyQuery<'_>, host: &Conninfo) -> HostAnswer {
    match tokio::time::timeout(HOST_MAX, read(query, host)).await {
        Ok(Ok(None)) => HostAnswer::Primary,
        Ok(Ok(Some(facts))) => HostAnswer::Standby(facts),
        Ok(Err(error)) => HostAnswer::Unknown(Chain(&error).to_string()),
        Err(_elapsed) => HostAnswer::Unknown(format!("no answer in {} s", HOST_MAX.as_secs())),
    }
}

/// The facts of a standby; `None` if the host is a primary.
async fn read(
    query: &StandbyQuery<'_>,
    host: &Conninfo,
) -> Result<Option<StandbyFacts>, SourceError> {
    let control = Control::connect(host, query.application_name).await?;
    let client = control.client();
    let failed = |e| SourceError::control("read whether the server is a standby", e);
    let sql = "SELECT pg_catalog.pg_is_in_recovery(), \
                 pg_catalog.current_setting('server_version_num')::pg_catalog.int4, \
                 coalesce(pg_catalog.current_setting('primary_slot_name', true), '') <> ''";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    if !row.try_get::<_, bool>(0).map_err(failed)? {
        return Ok(None);
    }
    let version = row.try_get::<_, i32>(1).map_err(failed)?.unsigned_abs();
    let settings = facts::settings(client).await?;
    let is_on = |name: &str| settings.get(name).is_some_and(|value| value == "on");
    let slot = match query.slot {
        Some(slot) => catalog::read_slot(client, version, slot).await?,
        None => None,
    };
    Ok(Some(StandbyFacts {
        version,
        syncs: is_on("sync_replication_slots"),
        feedback: is_on("hot_standby_feedback"),
        has_primary_slot: row.try_get(2).map_err(failed)?,
        slot,
    }))
}

/// What a standby means for the pipeline.
fn standby(query: &StandbyQuery<'_>, host: &str, facts: &StandbyFacts) -> Finding {
    let Some(name) = query.slot else {
        return Finding::ok("standby_slot", format!("{host} is a standby; polling needs no slot"));
    };
    if !query.failover {
        return Finding::info("standby_slot", format!("{host} is a standby without slot {name}"))
            .why("source.failover is false: after a promotion the pipeline halts with PR002");
    }
    if facts.version < CARRIES_SLOTS {
        return Finding::info(
            "standby_slot",
            format!("{host} is a standby of PostgreSQL {}", facts.version / 10_000),
        )
        .why(
            "PostgreSQL before 17 carries no slot over: after a promotion the pipeline halts with PR002, unless \
             Patroni (permanent slots), pg_failover_slots or the storage carries the slot over",
        );
    }
    let finding = match &facts.slot {
        None => Finding::warning("standby_slot", format!("{host} does not have slot {name}")).why(
            format!(
                "after a promotion of this standby the pipeline halts with PR002, and postrider repair publishes the \
                 missed events from the table{}",
                missing_settings(host, facts)
            ),
        ),
        Some(slot) if slot.lost() => {
            let reason = slot.invalidation_reason.as_deref().unwrap_or("lost");
            Finding::warning(
                "standby_slot",
                format!("slot {name} was invalidated on {host} ({reason})"),
            )
            .why(
                "after a promotion of this standby now the pipeline halts with PR002. The standby drops the slot and \
                 synchronises it again, as long as the slot of the primary is valid",
            )
        }
        Some(slot) if !slot.synced => Finding::warning(
            "standby_slot",
            format!("slot {name} on {host} is the standby's own, not a synchronised one"),
        )
        .why(
            "a slot of this name that was created on the standby keeps the primary's from being synchronised: find \
             out who uses it, and give it another name",
        ),
        Some(slot) if slot.temporary => Finding::warning(
            "standby_slot",
            format!("slot {name} on {host} is not ready yet: it is temporary"),
        )
        .why(
            "a promotion of this standby now loses the slot (PR002). The slot becomes persistent once the slot of the \
             primary has advanced to the oldest WAL and the oldest rows that the standby has kept: later events must \
             be published and confirmed first",
        ),
        Some(slot) => {
            let at = slot.confirmed_flush_lsn.map_or_else(String::new, |at| format!(" at {at}"));
            return of_settings(
                host,
                facts,
                Finding::ok("standby_slot", format!("{host} has slot {name}{at}, synchronised")),
            );
        }
    };
    with_settings(finding, facts)
}

/// The setting that is missing although the slot is there: the slot does not stay usable.
fn of_settings(host: &str, facts: &StandbyFacts, ready: Finding) -> Finding {
    if facts.syncs && facts.feedback && facts.has_primary_slot {
        return ready;
    }
    let finding = Finding::warning(
        "standby_slot",
        format!("{host} has the slot, and does not keep it up to date"),
    )
    .why(format!("the slot falls behind, or is invalidated{}", missing_settings(host, facts)));
    with_settings(finding, facts)
}

/// The settings that the standby lacks, in words.
fn missing_settings(host: &str, facts: &StandbyFacts) -> String {
    let mut missing = Vec::new();
    if !facts.syncs {
        missing.push("sync_replication_slots = on");
    }
    if !facts.feedback {
        missing.push("hot_standby_feedback = on");
    }
    if !facts.has_primary_slot {
        missing.push("primary_slot_name, the name of a physical slot on the primary");
    }
    if missing.is_empty() {
        format!(
            ". The settings that can be read on {host} are right: see its log for lines about slot synchronisation, \
             and whether its primary_conninfo has a dbname"
        )
    } else {
        format!(". The standby lacks {}", missing.join(", and "))
    }
}

/// The lines for an administrator of the standby.
fn with_settings(finding: Finding, facts: &StandbyFacts) -> Finding {
    let mut finding = finding;
    for (has, setting) in
        [(facts.syncs, "sync_replication_slots"), (facts.feedback, "hot_standby_feedback")]
    {
        if !has {
            finding = finding.sql(format!("ALTER SYSTEM SET {setting} = on;"));
        }
    }
    if facts.syncs && facts.feedback { finding } else { finding.sql("SELECT pg_reload_conf();") }
}
