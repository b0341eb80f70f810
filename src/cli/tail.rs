//! `postrider tail`: what is in the WAL or in the table now, as the records that would be published, without moving
//! anything.
//!
//! Rows become records by the code that a pipeline uses: decoder, mapper, routing. What is shown is a record before a
//! format is applied to it.

pub(super) mod error;
mod record;

use super::Output;
use super::bookmark::{session, the_one};
use super::error::{CliError, Exit};
use crate::config::{self, Config};
use crate::event::Position;
use crate::outbox::{At, MapError, Mapper};
use crate::pipeline::{Mode, PipelineSpec, TableOids};
use crate::postgres::ChangeReader;
use crate::postgres::catalog::{self, SlotRow};
use crate::postgres::poll::ROW_BYTES_MAX;
use crate::postgres::store::cursor;
use crate::postgres::tail::{
    DecodeOptions, PeekedFrames, TemporarySlot, WaitingPage, limit, peek, resolved, waiting_rows,
};
use crate::row::TableId;
use crate::source::{self, Change};
use crate::timestamp::Timestamp;
use error::TailError;
use record::TailedEvent;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider tail";

/// Pause between two queries of a temporary slot.
const QUERY_PAUSE: Duration = Duration::from_millis(250);

/// `postrider tail`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Moves nothing and publishes nothing. The way depends on the state, and is printed to standard error: \
                  a slot that nobody uses is peeked from its confirmed position on; while a process streams from the \
                  slot, and with --follow, a temporary slot shows what is committed from now on; a polled table is read. \
                  The temporary slot is dropped at the end, also after kill -9. Keys and headers are shown, payloads \
                  only with --payload."
)]
pub struct TailArgs {
    /// End after N events
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Show what is committed from now on, until Ctrl-C or --limit
    #[arg(long)]
    pub follow: bool,
    /// How long to wait for events that are committed from now on, without --follow
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = config::duration)]
    pub wait: Duration,
    /// Also print the payloads
    #[arg(long)]
    pub payload: bool,
    /// Print JSON, one object per event; bytes that are not UTF-8 are in base64
    #[arg(long)]
    pub json: bool,
}

/// How the events are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// The pipeline's slot is peeked.
    Peek,
    /// A temporary slot.
    Temporary,
    /// The polled table.
    Table,
}

impl Way {
    fn choose(
        spec: &PipelineSpec,
        slot: Option<&SlotRow>,
        follow: bool,
    ) -> Result<Self, TailError> {
        let name = || spec.names.slot.clone();
        match (spec.common.mode, slot) {
            (Mode::Poll, _) if follow => Err(TailError::FollowsTable),
            (Mode::Poll, _) => Ok(Self::Table),
            (_, Some(slot)) if slot.lost() => Err(TailError::Lost(name())),
            (_, Some(slot)) if slot.active_pid.is_none() && !follow => Ok(Self::Peek),
            (_, Some(_)) => Ok(Self::Temporary),
            (Mode::Auto, None) if !follow && spec.poll.table.is_some() => Ok(Self::Table),
            (_, None) => Err(TailError::NoSlot(name())),
        }
    }

    fn note(self, spec: &PipelineSpec, args: &TailArgs) -> String {
        let slot = &spec.names.slot;
        match self {
            Self::Peek => format!(
                "reading slot {slot} without moving it: the next events of the pipeline. Meanwhile the slot is in use, \
                 and a process that starts waits for it for a moment. Events that are published and not confirmed yet \
                 may be among them"
            ),
            Self::Temporary => {
                let until = if args.follow {
                    "until Ctrl-C".to_owned()
                } else {
                    format!("for {} s", args.wait.as_secs_f64())
                };
                format!(
                    "reading a temporary slot {until}: events that are committed from now on, whether they are \
                     published or not. What was committed before is not seen: slot {slot} can be peeked only while \
                     nobody uses it (postrider pause)"
                )
            }
            Self::Table => {
                "reading the table: rows that polling has not published yet, in its order. A row that is claimed at \
                 this moment is among them"
                    .to_owned()
            }
        }
    }
}

pub(super) async fn run(config: &Config, args: &TailArgs) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    let control = session(spec, APPLICATION_NAME).await?;
    let client = control.client();
    limit(client).await?;
    let server = catalog::read_server(client).await?;
    let slot = catalog::read_slot(client, server.version, &spec.names.slot).await?;
    let way = Way::choose(spec, slot.as_ref(), args.follow)?;
    let mut note = way.note(spec, args);
    if spec.common.sink.inner().is_some() {
        note.push_str(". Records are shown before the format of the configuration is applied");
    }
    Output::stderr().line_or_ignore(&format!("{}: {note}", spec.name()));
    let mut tail = Tail::open(spec, client, &server.encoding, args).await?;
    let ended = match way {
        Way::Peek => tail.peek(client).await,
        Way::Temporary => tail.follow(client).await,
        Way::Table => tail.table(client).await,
    };
    ended?;
    let count = tail.shown;
    Output::stderr().line_or_ignore(&format!("{}: {count} events{}", spec.name(), tail.rest));
    Ok(Exit::Done)
}

/// What stopped the reading of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stopped {
    /// They are used up.
    Whole,
    /// Types must be looked up.
    Blocked,
    /// The limit is reached.
    Full,
}

/// The transaction that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct OpenTransaction {
    next: Position,
    time: Timestamp,
}

/// The events, as they are read and printed.
struct Tail<'a> {
    spec: &'a PipelineSpec,
    args: &'a TailArgs,
    mapper: Mapper,
    reader: ChangeReader,
    /// Events below it are dealt with.
    from: Position,
    open: OpenTransaction,
    shown: u32,
    /// Nobody reads the output any more.
    over: bool,
    /// What is not shown, for the last line.
    rest: &'static str,
}

impl<'a> Tail<'a> {
    async fn open(
        spec: &'a PipelineSpec,
        client: &Client,
        encoding: &str,
        args: &'a TailArgs,
    ) -> Result<Self, CliError> {
        let mut mapper = spec.mapper().map_err(TailError::Outbox)?;
        let found = TableOids::read(client, spec).await?;
        mapper.clear_tables(found.outbox.map(TableId));
        let histories = cursor::histories(client, spec.key()).await?.unwrap_or_default();
        let polls = spec.common.mode == Mode::Poll;
        mapper.set_histories(histories.clone(), polls);
        let encoding =
            spec.messages_encoding(encoding).map_err(|halt| TailError::Messages(Box::new(halt)))?;
        let reader = spec.change_reader(&mapper, found, encoding, histories);
        let open = OpenTransaction::default();
        let from = Position::default();
        Ok(Self { spec, args, mapper, reader, from, open, shown: 0, over: false, rest: "" })
    }

    fn options(&self) -> DecodeOptions<'a> {
        DecodeOptions { publication: &self.spec.names.publication, messages: self.spec.messages() }
    }

    fn is_full(&self) -> bool {
        self.over || self.shown >= self.args.limit
    }

    /// The next events of the pipeline's slot.
    async fn peek(&mut self, client: &Client) -> Result<(), CliError> {
        self.from = resolved(client, self.spec.key()).await?;
        let slot = &self.spec.names.slot;
        let frames = peek(client, slot, self.options()).await.map_err(TailError::Slot)?;
        self.print(&frames, client).await?;
        if self.is_full() {
            self.rest = "; there may be more: raise --limit";
        } else if frames.is_full() {
            self.rest = "; there is more WAL after the first 10,000 changes, which was not read";
        }
        Ok(())
    }

    /// What is committed from now on.
    async fn follow(&mut self, client: &Client) -> Result<(), CliError> {
        let slot = TemporarySlot::create(client).await.map_err(TailError::Slot)?;
        let followed = tokio::select! {
            biased;
            stopped = tokio::signal::ctrl_c() => stopped.map_err(CliError::Runtime),
            followed = self.read(&slot, client) => followed,
        };
        // A query that was given up is ended by the server before the next statement of the session.
        slot.drop_now().await?;
        followed
    }

    async fn read(&mut self, slot: &TemporarySlot<'_>, client: &Client) -> Result<(), CliError> {
        let until = Instant::now() + self.args.wait;
        while !self.is_full() {
            let frames = slot.next(self.options()).await?;
            self.print(&frames, client).await?;
            if !self.args.follow && Instant::now() >= until {
                return Ok(());
            }
            if frames.is_empty() {
                sleep(QUERY_PAUSE).await;
            }
        }
        Ok(())
    }

    /// The rows that polling would publish.
    async fn table(&mut self, client: &Client) -> Result<(), CliError> {
        // Without a table there is no mode that polls.
        let Some(table) = self.spec.poll.table.clone() else { return Ok(()) };
        let WaitingPage { table, page, more } =
            waiting_rows(client, table, self.args.limit).await?;
        self.mapper.clear_tables(Some(table.id));
        self.mapper.table(&table.as_table()).map_err(TailError::Unfit)?;
        let claim = page.claim;
        let at = At { position: Position::default(), commit_time: claim.claimed_at };
        for number in 0..claim.rows.len() {
            let Some(row) = claim.rows.row(number) else { continue };
            let mapped = if claim.is_too_large(number) {
                Err(self.mapper.too_large(&row, at, ROW_BYTES_MAX))
            } else {
                self.mapper.row(&row, at)
            };
            let event = match mapped {
                Ok(Some(mapped)) => TailedEvent::of(&mapped, None, self.args.payload),
                Ok(None) => continue,
                Err(MapError::Poison(poison)) => TailedEvent::poison(&poison, None),
                Err(error) => return Err(TailError::Unfit(error).into()),
            };
            self.show(&event)?;
        }
        if more {
            self.rest = "; there are more rows: raise --limit";
        }
        Ok(())
    }

    fn show(&mut self, event: &TailedEvent) -> Result<(), CliError> {
        let name = self.spec.name();
        let text = if self.args.json { event.json(name).to_string() } else { event.text() };
        self.shown += 1;
        self.over |= !Output::stdout().line_if_read(&text).map_err(CliError::Output)?;
        Ok(())
    }

    async fn print(&mut self, frames: &PeekedFrames, client: &Client) -> Result<(), CliError> {
        self.reader.begin_batch();
        let mut place = 0;
        loop {
            let (stopped, events) = self.changes(frames, &mut place)?;
            for event in &events {
                self.show(event)?;
            }
            match stopped {
                Stopped::Whole | Stopped::Full => return Ok(()),
                Stopped::Blocked => self.reader.look_up_types(client).await?,
            }
        }
    }

    fn changes(
        &mut self,
        frames: &PeekedFrames,
        place: &mut usize,
    ) -> Result<(Stopped, Vec<TailedEvent>), TailError> {
        let room = usize::try_from(self.args.limit.saturating_sub(self.shown)).unwrap_or(0);
        let reading = EventReading {
            mapper: &mut self.mapper,
            open: &mut self.open,
            from: self.from,
            payload: self.args.payload,
            room,
        };
        match &mut self.reader {
            ChangeReader::Rows(decoder) => reading.read(&mut frames.decoded(decoder), place),
            ChangeReader::Deltas(deltas) => reading.read(&mut deltas.batch(frames), place),
        }
    }
}

/// The reading of frames up to a limit.
struct EventReading<'a> {
    mapper: &'a mut Mapper,
    open: &'a mut OpenTransaction,
    from: Position,
    payload: bool,
    /// The number of events to read at most.
    room: usize,
}

impl EventReading<'_> {
    fn read(
        self,
        batch: &mut impl source::Batch,
        place: &mut usize,
    ) -> Result<(Stopped, Vec<TailedEvent>), TailError> {
        let mut events = Vec::new();
        loop {
            if events.len() >= self.room {
                return Ok((Stopped::Full, events));
            }
            let found = batch.change_at(*place).map_err(TailError::Unreadable)?;
            let Some((change, next)) = found else { return Ok((Stopped::Whole, events)) };
            let at = At { position: self.open.next, commit_time: self.open.time };
            let mapped = match &change {
                Change::Blocked => return Ok((Stopped::Blocked, events)),
                Change::Begin { commit, time, .. } => {
                    self.open.next = Position { commit: *commit, ordinal: 0 };
                    self.open.time = *time;
                    Ok(None)
                }
                Change::Table(table) => self.mapper.table(table).map(|()| None),
                Change::Row(row) => self.mapper.row(row, at),
                Change::Message(message) if message.transactional => {
                    self.mapper.message(message, at)
                }
                Change::Message(_)
                | Change::Updated(_)
                | Change::Collected
                | Change::Other
                | Change::Commit { .. }
                | Change::Heartbeat(_)
                | Change::Nothing => Ok(None),
            };
            let event = match mapped {
                Ok(None) => None,
                Ok(Some(mapped)) => Some(TailedEvent::of(&mapped, Some(at.position), self.payload)),
                Err(MapError::Poison(poison)) => {
                    Some(TailedEvent::poison(&poison, Some(at.position)))
                }
                Err(error) => return Err(TailError::Unfit(error)),
            };
            if counts(&change) {
                self.open.next.ordinal += 1;
            }
            events.extend(event.filter(|_| at.position >= self.from));
            *place = next;
        }
    }
}

/// Whether a change counts for the ordinals of its transaction.
fn counts(change: &Change<'_>) -> bool {
    match change {
        Change::Row(_) | Change::Updated(_) | Change::Collected | Change::Other => true,
        Change::Message(message) => message.transactional,
        Change::Begin { .. }
        | Change::Table(_)
        | Change::Commit { .. }
        | Change::Heartbeat(_)
        | Change::Nothing
        | Change::Blocked => false,
    }
}
