//! Statements on the parked table, as jobs beside the stream: the write, the records of tries, people's requests.

use super::alarm::Alarm;
use super::cut::cut;
use super::former::Former;
use super::looks::{KEPT, PRUNE_INTERVAL};
use super::pipeline::Pipeline;
use super::say;
use super::session::{Job, job};
use super::shelf::Wanted;
use super::spec::Mode;
use crate::event::Position;
use crate::lsn::Lsn;
use crate::outbox::of_retried;
use crate::parked::{Mark, Wish};
use crate::postgres::SourceError;
use crate::postgres::action::{self, Action, Phase};
use crate::postgres::control::{Control, Notifications};
use crate::postgres::cursor::{Settled, Written};
use crate::postgres::locks::Holder;
use crate::postgres::parked::{self, Loaded, Stored};
use crate::record::{OwnedRecord, Ticket};
use crate::relay::Input;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pause between two looks for requests: a notification that got lost costs no more than this.
const REQUESTS_INTERVAL: Duration = Duration::from_secs(5);

/// Payloads that are read for tries and not handed over yet: no more are read then. Parked events are the large ones.
const TRIES_BYTES_MAX: u32 = 16 << 20;

/// Pause before a write is made again that met a row which another session has locked.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// Pause between two looks at who holds locks on rows that could not be written.
const LOCKERS_INTERVAL: Duration = Duration::from_secs(5);

/// What became of a write, and who has locked what it did not get, where that was looked for.
pub(super) struct Wrote {
    /// The error where nothing was written, and the same write may succeed later on this connection.
    stored: Result<Stored, SourceError>,
    holders: Vec<Holder>,
}

/// What was asked for, and the records that were there.
type Fetched = (Vec<Wanted>, Vec<(Ticket, OwnedRecord)>);

/// Dead events whose rows are looked for at once.
const DEAD_MAX: usize = 10_000;

/// What people did to the table.
#[derive(Default)]
pub(super) struct Asked {
    wishes: Vec<(Position, Wish)>,
    /// Dead events whose rows were deleted.
    deleted: Vec<Position>,
    /// How long the oldest has been parked, where nothing else looks.
    oldest: Option<Duration>,
}

/// The control connection, our right to write on it, and what is under way.
pub(super) struct Desk {
    pub(super) control: Control,
    /// Another process that takes over raises it.
    pub(super) epoch: i64,
    /// The owner before us.
    pub(super) former: Former,
    /// Which histories positions belong to, committed to the cursor row.
    pub(super) histories: Settled,
    pub(super) jobs: Jobs,
    /// Another process has raised the epoch: nothing is stored any more.
    pub(super) overruled: bool,
}

impl Desk {
    pub(super) fn new(
        control: Control,
        (former, epoch): (Former, i64),
        histories: Settled,
    ) -> Self {
        Self { control, epoch, former, histories, jobs: Jobs::default(), overruled: false }
    }
}

/// What is under way.
pub(super) struct Jobs {
    writing: Option<Job<Wrote>>,
    writing_since: Instant,
    /// The changes to rows of that write.
    marks: Arc<[Mark]>,
    /// When it was last found out who has locked rows.
    lockers_at: Option<Instant>,
    /// The claim, not committed, in which rows stand that the relay takes for written: here they can't be seen yet,
    /// which does not mean that somebody has deleted them.
    pub(super) unseen: Option<Lsn>,
    fetching: Option<Job<Fetched>>,
    asking: Option<Job<Asked>>,
    /// When requests are looked for, though nobody has said that there are any.
    ask_at: Instant,
    alarm: Alarm,
    prune_at: Instant,
}

/// What came of one.
pub(super) enum Said {
    Stored(Result<Wrote, SourceError>),
    Fetched(Result<Fetched, SourceError>),
    Asked(Result<Asked, SourceError>),
    /// It is time to look for requests.
    Ask,
}

impl Default for Jobs {
    fn default() -> Self {
        let now = Instant::now();
        let (writing, fetching, asking) = (None, None, None);
        let (writing_since, ask_at, prune_at) = (now, now, now);
        let (unseen, alarm) = (None, Alarm::default());
        let (marks, lockers_at) = (Arc::default(), None);
        Self {
            writing,
            writing_since,
            marks,
            lockers_at,
            unseen,
            fetching,
            asking,
            ask_at,
            alarm,
            prune_at,
        }
    }
}

impl Jobs {
    /// Whether it is time to find out who has locked rows.
    pub(super) fn looks_for_lockers(&self) -> bool {
        self.lockers_at.is_none_or(|at| at.elapsed() >= LOCKERS_INTERVAL)
    }

    /// When the write began that is under way.
    pub(super) fn written_since(&self) -> Option<Instant> {
        self.writing.as_ref().map(|_| self.writing_since)
    }

    /// Waits until all that is under way has its answer, and keeps the answers for [`next`](Self::next).
    ///
    /// To be awaited before anything else is asked on this session and waited for: its answers come in order, and one
    /// that nobody takes holds up those behind it (the client's buffer has a few messages of each).
    pub(super) async fn finish(&mut self) {
        let Self { writing, fetching, asking, .. } = self;
        tokio::join!(finished(writing), finished(fetching), finished(asking));
    }

    /// Waits for whatever comes first. Cancel-safe.
    pub(super) async fn next(&mut self, notifications: &Notifications) -> Said {
        tokio::select! {
            biased;
            stored = job(&mut self.writing), if self.writing.is_some() => Said::Stored(stored),
            fetched = job(&mut self.fetching), if self.fetching.is_some() => Said::Fetched(fetched),
            asked = job(&mut self.asking), if self.asking.is_some() => Said::Asked(asked),
            () = notifications.next(), if self.asking.is_none() => Said::Ask,
            () = self.alarm.at(self.ask_at), if self.asking.is_none() => Said::Ask,
        }
    }
}

/// Whether only this statement failed, and may succeed later on the same connection.
fn is_passing(error: &SourceError) -> bool {
    matches!(action::action(error, Phase::Control, true), Action::Later(_))
}

async fn finished<T: 'static>(job: &mut Option<Job<T>>) {
    if let Some(pending) = job {
        let answer = pending.await;
        *job = Some(Box::pin(std::future::ready(answer)));
    }
}

impl Pipeline {
    /// Commits rows and marks, fenced by our epoch.
    pub(super) fn write_parking(&mut self, desk: &mut Desk, rows: usize, marks: Vec<Mark>) {
        assert!(desk.jobs.writing.is_none(), "two writes of parked events at once");
        cut(if rows > 0 { "parked_row_due" } else { "mark_due" });
        say::marked(self, &marks);
        drop(self.shelf.take_rows(rows));
        desk.jobs.marks = marks.into();
        desk.jobs.writing_since = Instant::now();
        self.write(desk, Duration::ZERO);
    }

    /// Makes the write that is due, after this pause.
    fn write(&self, desk: &mut Desk, pause: Duration) {
        let (client, spec) = (desk.control.shared_client(), Arc::clone(&self.spec));
        let (rows, marks, epoch) =
            (self.shelf.rows_being_written(), Arc::clone(&desk.jobs.marks), desk.epoch);
        let looks = desk.jobs.looks_for_lockers();
        desk.jobs.writing = Some(Box::pin(async move {
            tokio::time::sleep(pause).await;
            let name = spec.name();
            let stored = match parked::write(&client, name, epoch, &rows, &marks).await {
                Err(error) if !is_passing(&error) => return Err(error),
                stored => stored,
            };
            let holders = match &stored {
                // Such an error has taken longer than the pause between two looks.
                Err(_) => parked::table_lockers(&client, name).await,
                Ok(Stored::Except(left)) if looks => parked::lockers(&client, name, left).await,
                Ok(_) => Ok(Vec::new()),
            };
            // For people: a look that fails must not fail the write.
            Ok(Wrote { stored, holders: holders.unwrap_or_default() })
        }));
    }

    /// Reads the records that are to be tried and are not here.
    pub(super) fn fetch_for_tries(&self, desk: &mut Desk) {
        let full = self.shelf.bytes_to_try() >= TRIES_BYTES_MAX as usize;
        if desk.jobs.fetching.is_some() || full || !self.shelf.wants_records() {
            return;
        }
        let mut wanted = self.shelf.missing();
        wanted.retain(|wanted| Some(wanted.position.commit_lsn) != desk.jobs.unseen);
        if wanted.is_empty() {
            return;
        }
        let (client, spec) = (desk.control.shared_client(), Arc::clone(&self.spec));
        let positioned = spec.outbox.standard_headers.position;
        let histories = self.histories.clone();
        desk.jobs.fetching = Some(Box::pin(async move {
            let of = |letter: bool| {
                let those = wanted.iter().filter(move |wanted| wanted.letter == letter);
                those.map(|wanted| (wanted.position, wanted.ticket)).collect::<HashMap<_, _>>()
            };
            let (tries, letters) = (of(false), of(true));
            let mut found = Vec::with_capacity(wanted.len());
            if !tries.is_empty() {
                let positions: Vec<Position> = tries.keys().copied().collect();
                let records =
                    parked::fetch(&client, spec.name(), &positions, TRIES_BYTES_MAX).await?;
                // What did not fit is asked for again: it is not gone.
                let values = records.iter().filter_map(|fetched| fetched.record.value.as_ref());
                if values.map(Vec::len).sum::<usize>() >= TRIES_BYTES_MAX as usize {
                    let last = records.last().map(|fetched| fetched.position);
                    wanted.retain(|wanted| wanted.letter || Some(wanted.position) <= last);
                }
                found.extend(records.into_iter().map(|fetched| {
                    let parked::Fetched { position, mut record, keeps_order } = fetched;
                    if positioned {
                        of_retried(&mut record, keeps_order, &histories);
                    }
                    (tries[&position], record)
                }));
            }
            if let Some(topic) = spec.dead_topic.as_deref().filter(|_| !letters.is_empty()) {
                let positions: Vec<Position> = letters.keys().copied().collect();
                let records =
                    parked::fetch_letters(&client, spec.name(), &positions, topic).await?;
                found.extend(records.into_iter().map(|(at, record)| (letters[&at], record)));
            }
            Ok((wanted, found))
        }));
    }

    /// Goes on with what a start has found in the table: letters that were not sent.
    pub(super) fn go_on_with(&mut self, loaded: &[Loaded]) {
        for row in loaded.iter().filter(|row| row.dead_unsent) {
            self.apply(self.now(), Input::Unsent { position: row.entry.position });
        }
    }

    /// Takes what came of a job. An error is the connection's.
    pub(super) fn parking_said(&mut self, desk: &mut Desk, said: Said) -> Result<(), SourceError> {
        let (now, jobs) = (self.now(), &mut desk.jobs);
        match said {
            Said::Stored(wrote) => {
                jobs.writing = None;
                let Wrote { stored, holders } = wrote?;
                if !holders.is_empty() {
                    jobs.lockers_at = Some(Instant::now());
                }
                match stored {
                    Ok(stored) => {
                        desk.overruled |= stored == Stored::TakenOver;
                        self.stored(now, &stored, &holders);
                    }
                    // Somebody has locked the table or the cursor row. Nothing was written; the stream goes on.
                    Err(error) => {
                        say::parked_rows_wait(self, &error, &holders);
                        self.write(desk, LOCKED_PAUSE);
                    }
                }
            }
            Said::Fetched(Err(error)) if is_passing(&error) => {
                // They are asked for again with the next effects.
                jobs.fetching = None;
                say::look_failed(self, &error);
            }
            Said::Fetched(fetched) => {
                jobs.fetching = None;
                let (asked, found) = fetched?;
                self.fetched(&asked, found);
                self.offer_tries(now);
            }
            Said::Ask => {
                jobs.ask_at = Instant::now() + REQUESTS_INTERVAL;
                self.ask(desk);
            }
            Said::Asked(Err(error)) if is_passing(&error) => {
                // No event waits for them: they are looked for again when they are due.
                jobs.asking = None;
                say::look_failed(self, &error);
            }
            Said::Asked(asked) => {
                jobs.asking = None;
                let Asked { wishes, deleted, oldest } = asked?;
                self.shelf.oldest = oldest;
                for position in deleted {
                    self.apply(now, Input::Deleted { position });
                }
                for (position, wish) in wishes {
                    // Of one that is to come again: its row keeps the request until then.
                    if self.returning.holds(position) {
                        continue;
                    }
                    self.apply(now, Input::Wish { position, wish });
                }
            }
        }
        Ok(())
    }

    /// Looks for what people did to the table; where the outbox is polled, also what a stream's looks would see to.
    fn ask(&self, desk: &mut Desk) {
        let (client, spec) = (desk.control.shared_client(), Arc::clone(&self.spec));
        let unseen = desk.jobs.unseen;
        let mut dead = self.relay.dead(DEAD_MAX);
        dead.retain(|position| Some(position.commit_lsn) != unseen);
        let polls = self.tell.polling;
        let prune = polls && desk.jobs.prune_at <= Instant::now();
        if prune {
            desk.jobs.prune_at = Instant::now() + PRUNE_INTERVAL;
        }
        let any = self.relay.parked().total() > 0;
        desk.jobs.asking = Some(Box::pin(async move {
            let (name, mut asked) = (spec.name(), Asked::default());
            if prune && spec.mode == Mode::Poll {
                parked::prune_polled(&client, name, KEPT).await?;
            } else if prune {
                parked::prune(&client, name, Lsn::from_wire(u64::MAX), KEPT).await?;
            }
            if !dead.is_empty() {
                asked.deleted = parked::missing(&client, name, &dead).await?;
            }
            if polls && any {
                asked.oldest = parked::counts(&client, name).await?.oldest;
            }
            asked.wishes = parked::requests(&client, name).await?;
            Ok(asked)
        }));
    }

    fn stored(&mut self, now: Duration, stored: &Stored, holders: &[Holder]) {
        match stored {
            Stored::Yes | Stored::Except(_) => {
                let rows = self.shelf.is_writing_rows();
                cut(if rows { "parked_row_committed" } else { "mark_committed" });
                for row in self.shelf.stored() {
                    self.marking.parked(row);
                }
                self.parking_written(now, stored, holders);
            }
            Stored::TakenOver => {
                say::row_taken(self, &Written::TakenOver);
                self.apply(now, Input::SlotTaken);
            }
        }
    }
}

impl Pipeline {
    /// A write is committed; which rows it has left out, and who has locked them, is reported until they are written.
    pub(super) fn parking_written(&mut self, now: Duration, stored: &Stored, holders: &[Holder]) {
        let left: &[Position] = match stored {
            Stored::Except(left) => left,
            Stored::Yes | Stored::TakenOver => &[],
        };
        self.apply(now, Input::ParkingWritten { left });
        match self.relay.marks_left() {
            0 => say::parked_rows_written(self),
            rows if !left.is_empty() => say::parked_rows_locked(self, rows, holders),
            _ => {}
        }
    }
}

/// What persons asked for before a start.
pub(super) fn wishes(loaded: &[Loaded]) -> Vec<(Position, Wish)> {
    loaded.iter().filter_map(|row| Some((row.entry.position, row.wish?))).collect()
}
