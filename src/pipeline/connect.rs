//! One try to connect: the full handshake of every start and every reconnect.
//!
//! ```text
//! replication login ─▶ IDENTIFY_SYSTEM ─▶ the pipeline's lock ─▶ control login ─▶ facts ─▶ fence
//!     ─▶ START_REPLICATION ─▶ look at the slot again
//! ```
//!
//! A slot is never made here. Nothing is kept from one try to the next.

use super::claim::Reader;
use super::former::Former;
use super::history::{History, Past};
use super::parked::Desk;
use super::poll::Polling;
use super::slot_monitor::Published;
use super::spec::PipelineSpec;
use super::{halts, settings_change};
use crate::ack::Progress;
use crate::error::{Halt, HaltReason};
use crate::event::{HistoryId, Position};
use crate::lsn::Lsn;
use crate::outbox::Encoding;
use crate::postgres::catalog::{self, Instance};
use crate::postgres::control::{Ask, Control};
use crate::postgres::error_policy::Phase;
use crate::postgres::pipeline_lock::{Locked, lock_stream};
use crate::postgres::poll::{Opened, Poller};
use crate::postgres::schema::{self, SchemaState};
use crate::postgres::start::{self, AfterStart, Decision, Facts, Identity, Resume};
use crate::postgres::store::cursor::{self, Seized, Settled};
use crate::postgres::store::parked::{self, Loaded};
use crate::postgres::wal::SystemIdentity;
use crate::postgres::{
    SourceError, SourceErrorKind, StartReplication, WalConnection, WalStream, repair,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The longest a whole handshake may take. Each step has a time-out of its own; a slot with much WAL to skip takes
/// its time only after START_REPLICATION has answered.
const HANDSHAKE_MAX: Duration = Duration::from_secs(90);

/// The longest wait for the end of a history's second. The wait would be longer only where the clocks of the server and
/// of this host differ, or where a clock went back.
const HISTORY_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long the reason is waited for when a stream seems to have ended as soon as it began.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);

/// What the server's lists show us as.
pub(super) fn application_name(spec: &PipelineSpec) -> String {
    format!("postrider {}", spec.name())
}

/// Both connections, streaming, and where they start.
pub(super) struct Connected {
    pub(super) wal: WalStream,
    pub(super) desk: Desk,
    pub(super) resume: Box<Resume>,
    /// What the server says of its own past.
    pub(super) past: Past,
    /// `server_version_num`.
    pub(super) version: u32,
    /// The outbox table's OID.
    pub(super) table_oid: Option<u32>,
    /// What logical messages are in.
    pub(super) encoding: Encoding,
    /// The publication, where it has a table to publish.
    pub(super) published: Option<Published>,
    /// The parked table's rows.
    pub(super) parked: Vec<Loaded>,
    /// What the cursor row says now that nobody else writes it.
    pub(super) progress: Progress,
}

/// Why a try came to nothing.
pub(super) enum Failure {
    /// A connection failed; `postgres::action` knows what to do.
    Source(SourceError, Phase),
    /// Another process has the slot. Where known: the server's end of WAL, and what that process has confirmed.
    StandBy { active_pid: u32, progress: Option<(Lsn, Lsn)> },
    /// Not now.
    Wait { message: String },
    /// The producer was thrown away: nothing is wrong with the database.
    Reset,
    /// A repair or a backfill was begun, and comes first.
    Unrepaired,
    /// The table has to be polled to its end first: the slot was made meanwhile.
    Unpolled,
    /// The table was polled until now, and the position of the slot means nothing: the table comes first, and a new
    /// slot.
    HandsOver,
    /// There is nothing to repair.
    Sound,
    /// A human must act.
    Halt(Box<Halt>),
}

/// Tries once. `seen`: the highest history that this process has published under.
/// `cluster`: whose brokers answer.
pub(super) async fn open(
    spec: Arc<PipelineSpec>,
    seen: HistoryId,
    cluster: Option<String>,
) -> Result<Connected, Failure> {
    let attempt = tokio::time::timeout(HANDSHAKE_MAX, handshake(&spec, seen, cluster.as_deref()));
    attempt.await.unwrap_or_else(|elapsed| {
        let kind = SourceErrorKind::Timeout(HANDSHAKE_MAX);
        let error = SourceError::new(kind, "finish the handshake with the server");
        Err(Failure::Source(error.caused_by(elapsed), Phase::Connect))
    })
}

/// Whether the stream may start, and where.
fn decided(facts: &Facts) -> Result<Box<Resume>, Failure> {
    match start::decide(facts) {
        Ok(Decision::Resume(resume)) => Ok(resume),
        Ok(Decision::StandBy { pid }) => {
            let confirmed = facts.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn);
            let progress = confirmed.map(|confirmed| (facts.server.wal_end, confirmed));
            Err(Failure::StandBy { active_pid: pid, progress })
        }
        Ok(Decision::Wait { message }) => Err(Failure::Wait { message }),
        Err(halt) => Err(Failure::Halt(Box::new(halt))),
    }
}

/// What comes of a start while another process, of this backend, has the lock. It may be changing what was read: it
/// recreates the slot, and writes the cursor row afterwards. So what looks wrong with these is no reason to halt before
/// the lock is ours; what is wrong with anything else is.
fn not_the_owner(facts: &Facts, pid: Option<u32>) -> Failure {
    match decided(facts) {
        Err(Failure::Halt(halt)) if !changes_with_the_owner(halt.reason) => Failure::Halt(halt),
        Ok(_) | Err(Failure::Halt(_)) => {
            Failure::StandBy { active_pid: pid.unwrap_or_default(), progress: None }
        }
        Err(failure) => failure,
    }
}

/// Whether a reason to halt lies in the slot or in the cursor row.
const fn changes_with_the_owner(reason: HaltReason) -> bool {
    matches!(
        reason,
        HaltReason::SlotLost
            | HaltReason::SlotMissing
            | HaltReason::SlotMoved
            | HaltReason::PositionAhead
            | HaltReason::OtherHistory
    )
}

/// Both connections, to one server.
struct Both {
    wal: WalConnection,
    system: SystemIdentity,
    /// Whether the pipeline's lock is ours, by the replication connection.
    locked: Locked,
    control: Control,
}

async fn connect_both(spec: &PipelineSpec, name: &str) -> Result<Both, Failure> {
    let failed = |error| Failure::Source(error, Phase::Connect);
    let mut wal = WalConnection::connect(&spec.conninfo, name).await.map_err(failed)?;
    let system = wal.identify_system().await.map_err(failed)?;
    // Before anything is read: what is decided of it must be true while the lock is ours.
    let locked = lock_stream(&mut wal, spec.name()).await.map_err(failed)?;
    let control = Control::connect(&spec.conninfo, name).await.map_err(failed)?;
    // Servers of one cluster identifier and timeline: to start here from the other one's cursor could lose events.
    if !catalog::has_backend(control.client(), wal.backend_pid()).await.map_err(failed)? {
        return Err(Failure::Wait { message: catalog::TWO_SERVERS.to_owned() });
    }
    Ok(Both { wal, system, locked, control })
}

async fn handshake(
    spec: &PipelineSpec,
    seen: HistoryId,
    cluster: Option<&str>,
) -> Result<Connected, Failure> {
    let at = |phase| move |error| Failure::Source(error, phase);
    let name = application_name(spec);
    let Both { wal, system, locked, control } = connect_both(spec, &name).await?;
    let identity = Some(Identity::from(&system));
    let columns = spec.columns();
    let ask = spec.ask(&identity, &columns);
    let facts = control.facts(&ask).await.map_err(at(Phase::Handshake))?;
    if let Locked::By { pid } = locked {
        return Err(not_the_owner(&facts, pid));
    }
    if facts.schema == SchemaState::Version(schema::VERSION)
        && let Some(first) = comes_first(&control, spec).await.map_err(at(Phase::Handshake))?
    {
        return Err(first);
    }
    let resume = decided(&facts)?;
    let halted = |halt| Failure::Halt(Box::new(halt));
    let known = (cluster, facts.table.as_ref());
    let change = settings_change::check_stream(control.client(), spec, known).await?;
    spec.fit(facts.table.as_ref()).map_err(halted)?;
    let encoding = spec.messages_encoding(&facts.server.encoding).map_err(halted)?;
    if resume.adopt {
        let made = cursor::create(control.client(), &resume.cursor).await;
        made.map_err(at(Phase::Control))?;
    }

    let backend_pid = wal.backend_pid();
    let start = StartReplication {
        lsn: resume.start.lsn(),
        messages: spec.messages(),
        confirm_interval: spec.confirm_interval,
        ..StartReplication::new(&spec.names.slot, &spec.names.publication)
    };
    let mut wal = wal.start(&start).await.map_err(at(Phase::Start))?;
    let past = Past { wal_end: facts.server.wal_end, switches: system.switches };
    let version = facts.server.version;
    let published = Published::of(&facts, &resume);
    let row = catalog::read_slot(control.client(), version, &spec.names.slot)
        .await
        .map_err(at(Phase::Control))?;
    match start::check_after_start(row.as_ref(), backend_pid, &resume) {
        AfterStart::Held => {
            let (seized, progress, parked) = take_over(spec, &control, &resume).await?;
            let epoch = seized.epoch;
            settings_change::record(control.client(), spec, epoch, &change).await?;
            let histories = settle(spec, &control, epoch, &facts, seen).await?;
            let former = Former { epoch: seized.before, left: seized.left };
            let desk = Desk::new(control, (former, epoch), histories);
            let resumed = Connected {
                wal,
                desk,
                resume,
                past,
                version,
                table_oid: facts.table.as_ref().map(|table| table.oid),
                encoding,
                published,
                parked,
                progress,
            };
            Ok(resumed)
        }
        AfterStart::Again { message } => match last_word(&mut wal).await {
            Some(error) => Err(Failure::Source(error, Phase::Stream)),
            None => Err(Failure::Wait { message }),
        },
    }
}

/// What was begun and comes before the stream: a repair, a backfill, or polling with the new slot standing already.
async fn comes_first(
    control: &Control,
    spec: &PipelineSpec,
) -> Result<Option<Failure>, SourceError> {
    let row = repair::read(control.client(), spec.name()).await?;
    if row.is_some_and(|row| row.unfinished()) {
        return Ok(Some(Failure::Unrepaired));
    }
    let polls_on = cursor::polls_on(control.client(), spec.name()).await?;
    Ok(polls_on.then_some(Failure::Unpolled))
}

/// Makes the pipeline's tables ours, now that the slot is, and reads what is parked. In this order: a write of the
/// owner before us that is still on its way is waited for, and then read.
async fn take_over(
    spec: &PipelineSpec,
    control: &Control,
    resume: &Resume,
) -> Result<(Seized, Progress, Vec<Loaded>), Failure> {
    let failed = |error| Failure::Source(error, Phase::Control);
    let (client, name) = (control.client(), spec.name());
    let seized = cursor::seize(client, name).await.map_err(failed)?;
    // What the fence made of the row it read, or the row where it has moved on since.
    let read = Progress { watermark: resume.start, partial: resume.skip_before };
    let same_stream =
        seized.messages == spec.messages() && seized.publication == spec.names.publication;
    let partial = seized.partial.filter(|_| same_stream);
    let progress = read.max(Progress { watermark: seized.watermark, partial });
    parked::put_before_stream(client, name, seized.epoch).await.map_err(failed)?;
    let parked = parked::load(client, name, progress.position()).await.map_err(failed)?;
    control.listen(name).await.map_err(failed)?;
    Ok((seized, progress, parked))
}

/// The histories in force on this server, which is ours now.
pub(super) async fn settle(
    spec: &PipelineSpec,
    control: &Control,
    epoch: i64,
    facts: &Facts,
    seen: HistoryId,
) -> Result<Settled, Failure> {
    let switches = facts.identity.as_ref().map_or(&[][..], |identity| &identity.switches);
    let of = cursor::Of {
        system_identifier: &facts.server.system_identifier,
        timeline: facts.server.timeline,
        switches,
    };
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u32::try_from(since.as_secs()).unwrap_or_default();
    let settled =
        cursor::settle_histories(control.client(), spec.name(), epoch, of, (now, seen)).await;
    let settled = settled.map_err(|error| Failure::Source(error, Phase::Control))?;
    let settled = settled.ok_or_else(|| Failure::Wait {
        message: "another process took the pipeline over".to_owned(),
    })?;
    end_of_its_second(&settled).await;
    Ok(settled)
}

/// Waits until the second is over whose number a new history has. Nothing is published under the number before that, so
/// a history of another branch of the database (a promoted standby, a restored backup), begun after something was
/// published under this one, gets a higher number. The first history of a pipeline has none beside it.
async fn end_of_its_second(settled: &Settled) {
    if settled.raised.is_none() || settled.first {
        return;
    }
    let second = Duration::from_secs(u64::from(settled.histories.current().0) + 1);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    tokio::time::sleep(second.saturating_sub(since).min(HISTORY_WAIT_MAX)).await;
}

/// What is parked, where no stream will bring anything again.
pub(super) async fn load_all(
    client: &tokio_postgres::Client,
    pipeline: &str,
) -> Result<Vec<Loaded>, SourceError> {
    parked::load(client, pipeline, Position { commit_lsn: Lsn::from_wire(u64::MAX), ordinal: 0 })
        .await
}

/// Tries once to get what polling needs: the pipeline's lock, and the right to write its tables.
pub(super) async fn open_poll(
    spec: Arc<PipelineSpec>,
    seen: HistoryId,
    cluster: Option<String>,
) -> Result<Polling, Failure> {
    let handshake = poll_handshake(&spec, seen, cluster.as_deref());
    let attempt = tokio::time::timeout(HANDSHAKE_MAX, handshake);
    attempt.await.unwrap_or_else(|elapsed| {
        let kind = SourceErrorKind::Timeout(HANDSHAKE_MAX);
        let error = SourceError::new(kind, "finish the handshake with the server");
        Err(Failure::Source(error.caused_by(elapsed), Phase::Connect))
    })
}

async fn poll_handshake(
    spec: &PipelineSpec,
    seen: HistoryId,
    cluster: Option<&str>,
) -> Result<Polling, Failure> {
    let at = |phase| move |error| Failure::Source(error, phase);
    let name = application_name(spec);
    let Some(poll_spec) = &spec.poll.table else {
        return Err(Failure::Halt(Box::new(halts::nothing_to_poll())));
    };
    let control = Control::connect(&spec.conninfo, &name).await.map_err(at(Phase::Connect))?;
    let client = control.client();
    let columns = spec.columns();
    let ask = Ask { messages: false, failover: false, ..spec.ask(&None, &columns) };
    let facts = control.facts(&ask).await.map_err(at(Phase::Handshake))?;
    match start::check_polling(&facts) {
        Ok(None) => {}
        Ok(Some(message)) => return Err(Failure::Wait { message }),
        Err(halt) => return Err(Failure::Halt(Box::new(halt))),
    }
    spec.fit(facts.table.as_ref()).map_err(|halt| Failure::Halt(Box::new(halt)))?;
    let opened =
        Poller::open(&spec.conninfo, &name, poll_spec).await.map_err(at(Phase::Handshake))?;
    let poller = match opened {
        Opened::Polling(poller) => Reader::Poll(poller),
        Opened::StandBy { pid } => {
            let active_pid = pid.unwrap_or_default();
            return Err(Failure::StandBy { active_pid, progress: None });
        }
    };
    let instance = one_server(client, poller.client()).await?;
    // What is compared below must be the table that is read.
    if facts.table.as_ref().is_some_and(|table| table.oid != poller.table_oid()) {
        let message = "another table has the outbox table's name since a moment ago".to_owned();
        return Err(Failure::Wait { message });
    }
    let known = (cluster, facts.table.as_ref());
    let change = settings_change::check(client, spec, known, settings_change::By::Polling).await?;
    cursor::create_for_polling(client, spec.name()).await.map_err(at(Phase::Control))?;
    let seized = cursor::seize(client, spec.name()).await.map_err(at(Phase::Control))?;
    let epoch = seized.epoch;
    let former = Former { epoch: seized.before, left: seized.left };
    settings_change::record(client, spec, epoch, &change).await?;
    let histories = settle(spec, &control, epoch, &facts, seen).await?;
    let parked = load_all(client, spec.name()).await.map_err(at(Phase::Control))?;
    control.listen(spec.name()).await.map_err(at(Phase::Control))?;
    let desk = Desk::new(control, (former, epoch), histories);
    let at = (facts.server.wal_end, History::polled(&facts.server), instance);
    Ok(Polling::new(poller, desk, parked, at, poll_spec.keeps_failures()))
}

/// The server that both sessions of polling, or of a repair, have reached: the rows are claimed on one, and the cursor
/// and parked events are written on the other.
pub(super) async fn one_server(
    control: &tokio_postgres::Client,
    reader: &tokio_postgres::Client,
) -> Result<Instance, Failure> {
    let failed = |error| Failure::Source(error, Phase::Handshake);
    let one = catalog::instance(control).await.map_err(failed)?;
    let other = catalog::instance(reader).await.map_err(failed)?;
    match one.differs(&other) {
        Some(message) => Err(Failure::Wait { message }),
        None => Ok(one),
    }
}

/// Why a stream whose slot is no longer ours has ended, if it has. A server that fails on the first change is faster
/// than our look at the slot, and what it said is the reason, not that the slot is free again.
async fn last_word(wal: &mut WalStream) -> Option<SourceError> {
    let ended = async {
        loop {
            match wal.next().await {
                Ok(_) => {}
                // It says nothing of the slot, and nothing that came before it is published.
                Err(error) if error.is_of_a_message() => return None,
                Err(error) => return Some(error),
            }
        }
    };
    tokio::time::timeout(LAST_WORD_MAX, ended).await.ok().flatten()
}
