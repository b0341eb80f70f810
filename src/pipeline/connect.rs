//! One attempt to connect: the full handshake of every start and every reconnect.
//!
//! ```text
//! replication login ─▶ IDENTIFY_SYSTEM ─▶ the pipeline's lock ─▶ control login ─▶ facts ─▶ start check
//!     ─▶ START_REPLICATION ─▶ check the slot again
//! ```
//!
//! The handshake creates no slot, and keeps nothing from one attempt to the next.

use super::claim_reader::ClaimReader;
use super::counting::{Counting, StreamOptions};
use super::failure::Failure;
use super::history::{ServerHistory, ServerPast};
use super::slot_monitor::PublicationState;
use super::spec::{PipelineSpec, TableOids};
use super::store_port::{FormerOwner, StorePort};
use super::{halts, pause, settings_change};
use crate::ack::Progress;
use crate::error::HaltReason;
use crate::event::{HistoryId, Position};
use crate::offset::Offset;
use crate::postgres::capture::CaptureSpec;
use crate::postgres::catalog::{self, Instance, TableFacts};
use crate::postgres::control::{Control, FactsQuery};
use crate::postgres::error_policy::Phase;
use crate::postgres::pipeline_lock::{PipelineLock, lock_stream};
use crate::postgres::poll::{Opened, Poller};
use crate::postgres::schema::{self, SchemaState};
use crate::postgres::start::{self, AfterStart, Decision, Facts, Identity, Resume};
use crate::postgres::store::cursor::{self, Seized, SettledHistories};
use crate::postgres::store::parked::{self, Loaded};
use crate::postgres::store::requeue;
use crate::postgres::stream::SystemIdentity;
use crate::postgres::{
    Encoding, SourceError, SourceErrorKind, StartReplication, WalConnection, WalStream, repair,
};
use crate::store::PipelineKey;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The longest time for a whole handshake. Each step has a time-out of its own; a slot with much WAL to skip needs time
/// only after START_REPLICATION has answered.
const HANDSHAKE_MAX: Duration = Duration::from_secs(90);

/// The longest wait for the end of a history's second. The wait would be longer only if the clocks of the server and of
/// this host differ, or if a clock was set back.
const HISTORY_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long to wait for the error of a stream that seems to have ended as soon as it began.
const STREAM_ERROR_WAIT: Duration = Duration::from_secs(1);

/// `application_name` of the sessions.
pub(super) fn application_name(spec: &PipelineSpec) -> String {
    format!("postrider {}", spec.name())
}

/// Both connections, with the stream started, and its start position.
pub(super) struct Connected {
    /// The stream.
    pub(super) wal: WalStream,
    /// The session on which the pipeline's tables are written.
    pub(super) store: StorePort,
    /// Where the stream starts, and with which cursor.
    pub(super) resume: Box<Resume>,
    /// What the server knows of its past.
    pub(super) past: ServerPast,
    /// `server_version_num`.
    pub(super) version: u32,
    /// OIDs of the outbox table and of the captured tables.
    pub(super) tables: TableOids,
    /// Encoding of logical messages.
    pub(super) encoding: Encoding,
    /// The publication, if there is an outbox table.
    pub(super) publication: Option<PublicationState>,
    /// Rows of the parked table.
    pub(super) parked: Vec<Loaded>,
    /// The cursor row, read after other processes could no longer write it.
    pub(super) progress: Progress,
    /// How positions within a transaction are stored, unless this process was the owner before.
    pub(super) counting: Counting,
}

/// What polling, or a repair, needs: this process is the owner of the pipeline.
pub(super) struct Polling {
    /// Claims rows.
    pub(super) poller: ClaimReader,
    /// Writes the pipeline's tables.
    pub(super) store: StorePort,
    /// The parked events, read after this process had become the owner.
    pub(super) parked: Vec<Loaded>,
    /// The server's end of WAL when polling began.
    pub(super) start: Offset,
    /// The history of the server.
    pub(super) server: ServerHistory,
    /// The server process that other sessions of the pipeline must reach too.
    pub(super) instance: Instance,
    /// Failures are kept in the outbox table itself.
    pub(super) keeps_failures: bool,
}

/// Makes one attempt. `seen`: the highest history under which this process has published. `cluster`: the cluster of the
/// brokers that answer.
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
fn resume_point(facts: &Facts) -> Result<Box<Resume>, Failure> {
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

/// The result of a start while another process has the lock, whose backend is `pid`. That process may be changing what
/// was read: it recreates the slot, and writes the cursor row afterwards. So a problem with the slot or the cursor row
/// is no reason to halt before this process has the lock; any other problem is.
fn not_the_owner(facts: &Facts, pid: Option<u32>) -> Failure {
    match resume_point(facts) {
        Err(Failure::Halt(halt)) if !changes_with_the_owner(halt.reason) => Failure::Halt(halt),
        Ok(_) | Err(Failure::Halt(_)) => {
            Failure::StandBy { active_pid: pid.unwrap_or_default(), progress: None }
        }
        Err(failure) => failure,
    }
}

/// Whether the reason to halt lies in the slot or in the cursor row.
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
struct ServerConnections {
    /// The replication connection.
    wal: WalConnection,
    /// The server's identity.
    system: SystemIdentity,
    /// Whether the replication connection has the pipeline's lock.
    locked: PipelineLock,
    /// The control connection.
    control: Control,
}

async fn connect_both(spec: &PipelineSpec, name: &str) -> Result<ServerConnections, Failure> {
    let failed = |error| Failure::Source(error, Phase::Connect);
    let mut wal = WalConnection::connect(&spec.conninfo, name).await.map_err(failed)?;
    let system = wal.identify_system().await.map_err(failed)?;
    // The lock comes before all reads: decisions must rest on facts that are true while this process has the lock.
    let locked = lock_stream(&mut wal, spec.key()).await.map_err(failed)?;
    let control = Control::connect(&spec.conninfo, name).await.map_err(failed)?;
    // Two servers can have the same cluster identifier and timeline. To start on one with the cursor of the other could
    // lose events.
    if !catalog::has_backend(control.client(), wal.backend_pid()).await.map_err(failed)? {
        return Err(Failure::Wait { message: catalog::TWO_SERVERS.to_owned() });
    }
    Ok(ServerConnections { wal, system, locked, control })
}

async fn handshake(
    spec: &Arc<PipelineSpec>,
    seen: HistoryId,
    cluster: Option<&str>,
) -> Result<Connected, Failure> {
    let at = |phase| move |error| Failure::Source(error, phase);
    let name = application_name(spec);
    let ServerConnections { wal, system, locked, control } = connect_both(spec, &name).await?;
    let identity = Some(Identity::from(&system));
    let columns = spec.columns();
    let ask = spec.ask(&identity, &columns);
    let facts = control.facts(&ask).await.map_err(at(Phase::Handshake))?;
    if let PipelineLock::HeldBy { pid } = locked {
        return Err(not_the_owner(&facts, pid));
    }
    let known = (cluster, facts.table.as_ref());
    comes_first(&control, spec, &facts, known).await?;
    let mut resume = resume_point(&facts)?;
    let halted = |halt| Failure::Halt(Box::new(halt));
    let change = settings_change::check_stream(control.client(), spec, known).await?;
    spec.fit(facts.table.as_ref()).map_err(halted)?;
    let encoding = spec.messages_encoding(&facts.server.encoding).map_err(halted)?;
    if resume.adopt {
        let made = cursor::create(control.client(), &resume.cursor).await;
        made.map_err(at(Phase::Control))?;
    }

    let backend_pid = wal.backend_pid();
    let start = StartReplication {
        lsn: crate::postgres::wire::to_wire(resume.start.offset()),
        messages: spec.messages(),
        confirm_interval: spec.confirm_interval,
        ..StartReplication::new(&spec.names.slot, &spec.names.publication)
    };
    let mut wal = wal.start(&start).await.map_err(at(Phase::Start))?;
    let past = ServerPast { wal_end: facts.server.wal_end, switches: system.switches };
    let captured = TableOids::read_captured(control.client(), spec).await;
    let captured = captured.map_err(at(Phase::Control))?;
    let publication = PublicationState::of(&facts, &resume);
    let row = catalog::read_slot(control.client(), facts.server.version, &spec.names.slot)
        .await
        .map_err(at(Phase::Control))?;
    match start::check_after_start(row.as_ref(), backend_pid, &resume) {
        AfterStart::Held => {
            let TakenOver { seized, progress, parked, counting } =
                take_over(spec, &control, &mut resume, &facts).await?;
            // The position that counts is that of the sink, which is not known yet.
            if spec.common.sink.capabilities().transactions.is_some() {
                resume.notes.retain(|note| note.name != "partial_dropped");
            }
            let epoch = seized.epoch;
            settings_change::record(control.client(), spec, epoch, &change).await?;
            let histories = settle(spec, &control, epoch, &facts, seen).await?;
            let former = FormerOwner { epoch: seized.before, left: seized.left };
            let store = StorePort::new(control, Arc::clone(spec), (former, epoch), histories);
            let resumed = Connected {
                wal,
                store,
                resume,
                past,
                version: facts.server.version,
                tables: TableOids { outbox: facts.table.as_ref().map(|table| table.oid), captured },
                encoding,
                publication,
                parked,
                progress,
                counting,
            };
            Ok(resumed)
        }
        AfterStart::Again { message } => match stream_error(&mut wal).await {
            Some(error) => Err(Failure::Source(error, Phase::Stream)),
            None => Err(Failure::Wait { message }),
        },
    }
}

/// What comes before the objects of the pipeline are compared: work that was begun, and other captured tables. The
/// remedy for a publication that differs from the captured tables would leave out what the slot still has of a table
/// that was removed from the settings.
async fn comes_first(
    control: &Control,
    spec: &PipelineSpec,
    facts: &Facts,
    known: (Option<&str>, Option<&TableFacts>),
) -> Result<(), Failure> {
    if facts.schema != SchemaState::Version(schema::VERSION) {
        return Ok(());
    }
    pause::check(control.client(), spec).await?;
    let first = unfinished_work(control, spec).await;
    if let Some(first) = first.map_err(|error| Failure::Source(error, Phase::Handshake))? {
        return Err(first);
    }
    if spec.names.captures() {
        settings_change::check_stream(control.client(), spec, known).await?;
    }
    Ok(())
}

/// Work that was begun and comes before the stream: a repair, a backfill, or polling while the new slot exists already.
async fn unfinished_work(
    control: &Control,
    spec: &PipelineSpec,
) -> Result<Option<Failure>, SourceError> {
    let row = repair::read(control.client(), spec.key()).await?;
    if row.is_some_and(|row| row.unfinished()) {
        return Ok(Some(Failure::Unrepaired));
    }
    let polls_on = cursor::polls_on(control.client(), spec.key()).await?;
    Ok(polls_on.then_some(Failure::Unpolled))
}

/// What was read after this process had become the owner of the pipeline's tables.
struct TakenOver {
    /// The row of the cursor.
    seized: Seized,
    /// How far the pipeline is.
    progress: Progress,
    /// Rows of the parked table.
    parked: Vec<Loaded>,
    /// As [`Connected::counting`].
    counting: Counting,
}

/// Takes ownership of the pipeline's tables, after that of the slot, and then reads the parked events. In this order a
/// write of the previous owner that is still running is waited for, and then read.
async fn take_over(
    spec: &PipelineSpec,
    control: &Control,
    resume: &mut Resume,
    facts: &Facts,
) -> Result<TakenOver, Failure> {
    let failed = |error| Failure::Source(error, Phase::Control);
    let (client, key) = (control.client(), spec.key());
    let seized = cursor::seize(client, key).await.map_err(failed)?;
    // The start position by the row that the start check has read, or the row itself if it has moved forward since.
    let mut read = Progress { watermark: resume.start, partial: resume.skip_before };
    let same_stream =
        seized.messages == spec.messages() && seized.publication == spec.names.publication;
    let stream = StreamOptions::new(&spec.names.publication, spec.messages(), same_stream);
    let mut counting = Counting::new(spec.capture.clone(), stream, facts.server.wal_end);
    let stored = seized.partial;
    let partial = if same_stream {
        counting.resumed(stored)
    } else {
        counting.begins_again(stored);
        None
    };
    // Only a position that was counted in this way is used.
    read.partial = read.partial.and_then(|read| counting.clone().resumed(Some(read)));
    let within = resume.skip_before.take().is_some_and(CaptureSpec::is_within);
    if within && read.partial.is_none() && partial.is_none() {
        resume.notes.push(start::Note {
            name: "partial_dropped",
            message: "the captured tables or the limits of their documents changed in the middle of a transaction: its \
                      published part is published again"
                .to_owned(),
        });
    }
    let progress = read.max(Progress { watermark: seized.watermark, partial });
    if counting.needs_position() && stored.is_none() {
        store_first_position(control, resume, (seized.epoch, counting.stored(progress))).await?;
    }
    requeue::put_before_stream(client, key, seized.epoch).await.map_err(failed)?;
    let parked = parked::load(client, key, progress.position()).await.map_err(failed)?;
    control.listen(spec.name()).await.map_err(failed)?;
    Ok(TakenOver { seized, progress, parked, counting })
}

/// Stores the position of a pipeline that has none, before anything is published. `stored`: the epoch of this owner,
/// and the position.
async fn store_first_position(
    control: &Control,
    resume: &Resume,
    (owner_epoch, partial): (i64, Option<Position>),
) -> Result<(), Failure> {
    let cursor = cursor::Cursor { owner_epoch, partial, ..resume.cursor.clone() };
    let written = cursor::write(control.client(), &cursor, &cursor::SnapshotPolicy::Never).await;
    match written.map_err(|error| Failure::Source(error, Phase::Control))? {
        cursor::CursorWrite::Stored => Ok(()),
        cursor::CursorWrite::Behind(_)
        | cursor::CursorWrite::Rebound(_)
        | cursor::CursorWrite::TakenOver
        | cursor::CursorWrite::Missing => {
            Err(Failure::Wait { message: "another process took the pipeline over".to_owned() })
        }
    }
}

/// The histories in force on this server, which this process owns now.
pub(super) async fn settle(
    spec: &PipelineSpec,
    control: &Control,
    epoch: i64,
    facts: &Facts,
    seen: HistoryId,
) -> Result<SettledHistories, Failure> {
    let switches = facts.identity.as_ref().map_or(&[][..], |identity| &identity.switches);
    let of = cursor::ServerHistory {
        system_identifier: &facts.server.system_identifier,
        timeline: facts.server.timeline,
        switches,
    };
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u32::try_from(since.as_secs()).unwrap_or_default();
    let settled =
        cursor::settle_histories(control.client(), spec.key(), epoch, of, (now, seen)).await;
    let settled = settled.map_err(|error| Failure::Source(error, Phase::Control))?;
    let settled = settled.ok_or_else(|| Failure::Wait {
        message: "another process took the pipeline over".to_owned(),
    })?;
    await_end_of_second(&settled).await;
    Ok(settled)
}

/// Waits until the second that a new history has as its number is over. Nothing is published under the number before.
/// So a history of another branch of the database (a promoted standby, a restored backup) that begins after something
/// was published under this one gets a higher number. The first history of a pipeline has no other one beside it.
async fn await_end_of_second(settled: &SettledHistories) {
    if settled.raised.is_none() || settled.first {
        return;
    }
    let second = Duration::from_secs(u64::from(settled.histories.current().0) + 1);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    tokio::time::sleep(second.saturating_sub(since).min(HISTORY_WAIT_MAX)).await;
}

/// Reads all parked events, because no stream will repeat any of them.
pub(super) async fn load_all(
    client: &tokio_postgres::Client,
    key: &PipelineKey,
) -> Result<Vec<Loaded>, SourceError> {
    parked::load(client, key, Position { commit: Offset::MAX, ordinal: 0 }).await
}

/// Makes one attempt to get what polling needs: the pipeline's lock, and the ownership of its tables.
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
    spec: &Arc<PipelineSpec>,
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
    let ask = FactsQuery { messages: false, failover: false, ..spec.ask(&None, &columns) };
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
        Opened::Polling(poller) => ClaimReader::Poll(poller),
        Opened::StandBy { pid } => {
            let active_pid = pid.unwrap_or_default();
            return Err(Failure::StandBy { active_pid, progress: None });
        }
    };
    pause::check(client, spec).await?;
    let instance = one_server(client, poller.client()).await?;
    // The table that is compared below must be the table that is read.
    if facts.table.as_ref().is_some_and(|table| table.oid != poller.description().id.0) {
        let message = "another table has the outbox table's name since a moment ago".to_owned();
        return Err(Failure::Wait { message });
    }
    let known = (cluster, facts.table.as_ref());
    let change = settings_change::check(client, spec, known, settings_change::By::Polling).await?;
    cursor::create_for_polling(client, spec.key()).await.map_err(at(Phase::Control))?;
    let seized = cursor::seize(client, spec.key()).await.map_err(at(Phase::Control))?;
    let epoch = seized.epoch;
    let former = FormerOwner { epoch: seized.before, left: seized.left };
    settings_change::record(client, spec, epoch, &change).await?;
    let histories = settle(spec, &control, epoch, &facts, seen).await?;
    let parked = load_all(client, spec.key()).await.map_err(at(Phase::Control))?;
    control.listen(spec.name()).await.map_err(at(Phase::Control))?;
    let store = StorePort::new(control, Arc::clone(spec), (former, epoch), histories);
    Ok(Polling {
        poller,
        store,
        parked,
        start: facts.server.wal_end,
        server: ServerHistory::polled(&facts.server),
        instance,
        keeps_failures: poll_spec.keeps_failures(),
    })
}

/// Checks that both sessions of polling, or of a repair, have reached the same server, and returns it: rows are claimed
/// on one session, and the cursor and parked events are written on the other.
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

/// The error of a stream that has lost its slot, if it has ended. A server that fails on the first change is faster
/// than the second check of the slot, and its error is the reason, not that the slot is free again.
async fn stream_error(wal: &mut WalStream) -> Option<SourceError> {
    let ended = async {
        loop {
            match wal.next().await {
                Ok(_) => {}
                // Such an error says nothing about the slot, and nothing that came before it is published.
                Err(error) if error.is_of_a_message() => return None,
                Err(error) => return Some(error),
            }
        }
    };
    tokio::time::timeout(STREAM_ERROR_WAIT, ended).await.ok().flatten()
}
