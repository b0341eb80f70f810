//! The publisher of one stream, with a connection of its own to the stream's leader.
//!
//! One publisher has a connection for a reason: RabbitMQ remembers the rights of twelve streams for a connection, and
//! checks those of any other with each frame. So no frame of a connection is refused while a later one is stored, which
//! would make the refused message look stored when it is sent again with its id.
//!
//! The leader is connected to, and no other node, because between nodes a message can get lost that is followed by a
//! later one.

use super::amqp10::put_message;
use super::codec::{NOT_AVAILABLE, OK, PUBLISH_OVERHEAD, PublishFrame};
use super::inbox::PublisherInbox;
use super::line::StreamLine;
use super::link::{StreamEvent, StreamLink};
use super::problem::{StreamProblem, StreamStep};
use super::shared::{PublisherShared, WorkerLife};
use crate::rabbitmq::spec::RabbitHost;
use postrider_core::backoff::Backoff;
use postrider_core::record::{Refusal, Scope};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Pauses between attempts.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Bytes that wait for the socket.
const UNWRITTEN_MAX: usize = 256 << 10;

/// A frame with more bytes gets no further message.
const FRAME_FULL: usize = 64 << 10;

/// Waiting for confirms is reported after this time, and repeated.
const SLOW: Duration = Duration::from_secs(5);

/// A connection without events is closed after this time.
const IDLE_MAX: Duration = Duration::from_mins(1);

/// How long the answers to other messages are waited for, after a message was refused.
const ANSWERS_MAX: Duration = Duration::from_secs(5);

/// The number of the only publisher of a connection.
const PUBLISHER: u8 = 1;

/// What ends the use of a connection without a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PublishEnd {
    /// The sink is closed, or the stream is not needed any more.
    Closed,
    /// There was nothing to send for a while.
    Idle,
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameFill {
    /// It has messages.
    Some,
    /// There is nothing to send.
    None,
    /// The next message needs a frame of so many bytes.
    TooLarge(usize),
}

/// A connection, while it is used.
#[derive(Debug)]
struct PublisherSession {
    link: StreamLink,
    /// The number of the fence that what is to be written has.
    epoch: u64,
    /// Since when there is nothing in flight.
    idle_since: Instant,
    /// When waiting for the server was last reported.
    slow_at: Instant,
    /// The first refusal, and when it came.
    refused: Option<(u16, Instant)>,
}

/// The publisher of a stream.
#[derive(Debug)]
pub(super) struct StreamPublisher {
    shared: Arc<PublisherShared>,
    stream: String,
    inbox: Arc<PublisherInbox>,
    life: watch::Receiver<WorkerLife>,
    line: StreamLine,
    pauses: Backoff,
}

impl StreamPublisher {
    pub(super) fn new(
        shared: Arc<PublisherShared>,
        stream: String,
        inbox: Arc<PublisherInbox>,
        life: watch::Receiver<WorkerLife>,
    ) -> Self {
        Self { shared, stream, inbox, life, line: StreamLine::default(), pauses: PAUSES }
    }

    /// Runs until the sink is closed, or the worker has ended the inbox.
    pub(super) async fn run(mut self) {
        while self.has_work().await {
            let ended = self.publish().await;
            let problem = match ended {
                Ok(PublishEnd::Closed) => return,
                Ok(PublishEnd::Idle) => continue,
                Err(problem) => problem,
            };
            let worked = self.pauses.attempts() == 0 && problem.step == StreamStep::Publish;
            self.line.lost();
            self.follow();
            // What the next attempt finds says more than the end of a connection that worked.
            if !worked || problem.of_stream {
                self.shared.failed(&self.stream, self.line.is_live(), problem);
            }
            self.shared.next_host();
            let pause = self.pauses.next(fastrand::f64());
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.is_closed() {
                tokio::select! {
                    () = tokio::time::sleep_until(until.into()) => {}
                    changed = self.life.changed() => if changed.is_err() { return },
                }
                self.follow();
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.life.borrow().closed
    }

    /// Waits for a record. False: the publisher ends.
    async fn has_work(&mut self) -> bool {
        loop {
            self.follow();
            if self.is_closed() {
                return false;
            }
            if !self.line.is_empty() {
                return true;
            }
            self.shared.rests(&self.stream);
            if self.inbox.is_ended() {
                return false;
            }
            tokio::select! {
                () = self.inbox.arrived() => {}
                changed = self.life.changed() => if changed.is_err() { return false },
            }
        }
    }

    /// Takes what was sent to this publisher, and gives up what is of an earlier number of the fence.
    fn follow(&mut self) {
        for record in self.inbox.take() {
            self.line.add(record);
        }
        self.report();
        let epoch = self.life.borrow_and_update().epoch;
        let dropped = self.line.give_up(epoch);
        self.inbox.done(dropped);
        self.shared.queue.dropped(dropped);
    }

    /// Reports what is published.
    fn report(&mut self) {
        let acked = self.line.take_acked();
        if !acked.is_empty() {
            self.inbox.done(acked.len());
            self.shared.queue.acked(&acked);
        }
        while let Some(batch) = self.line.spent() {
            self.shared.queue.recycle(batch);
        }
    }

    /// Connects to the leader, and declares the publisher.
    async fn connect(&mut self) -> Result<StreamLink, StreamProblem> {
        let shared = Arc::clone(&self.shared);
        let mut link = StreamLink::open(&shared.spec, &shared.host()).await?;
        let place = link.find(&self.stream).await?;
        if place.code != OK {
            let (step, code) = (StreamStep::Find, place.code);
            return Err(StreamProblem::refused(step, code, &self.stream, &shared.spec));
        }
        let Some((name, port)) = place.leader else {
            let (step, code) = (StreamStep::Find, NOT_AVAILABLE);
            return Err(StreamProblem::refused(step, code, &self.stream, &shared.spec));
        };
        if link.server.advertised.as_ref() != Some(&(name.clone(), port)) {
            link.close().await;
            let leader = RabbitHost { name, port };
            link = StreamLink::open(&shared.spec, &leader).await.map_err(|problem| {
                let hint = format!(
                    "the leader of stream {:?} is at {leader}, as its node advertises itself: that address must be \
                     reachable from here; correct stream.advertised_host in rabbitmq.conf",
                    self.stream
                );
                let hint = Some(problem.hint.filter(|_| problem.step != StreamStep::Connect).unwrap_or(hint));
                StreamProblem { of_stream: problem.code.is_none(), hint, ..problem }
            })?;
        }
        link.declare(PUBLISHER, &shared.reference, &self.stream, &shared.spec).await?;
        shared.limit.set(link.server.frame_max);
        Ok(link)
    }

    /// Uses a connection until it is lost (`Err`), or not needed.
    async fn publish(&mut self) -> Result<PublishEnd, StreamProblem> {
        let shared = Arc::clone(&self.shared);
        let _permit = loop {
            tokio::select! {
                permit = shared.connections.acquire() => break permit,
                _changed = self.life.changed() => self.follow(),
            }
            if self.line.is_empty() {
                return Ok(PublishEnd::Idle);
            }
        };
        let link = self.connect().await?;
        let now = Instant::now();
        let mut session = PublisherSession {
            link,
            epoch: shared.fence.number(),
            idle_since: now,
            slow_at: now,
            refused: None,
        };
        shared.works(&self.stream);
        loop {
            self.follow();
            if self.is_closed() || (self.inbox.is_ended() && self.line.is_empty()) {
                // To end the connection with a word would first write what is left, without the fence.
                if session.link.unwritten() == 0 {
                    session.link.close().await;
                }
                return Ok(PublishEnd::Closed);
            }
            if self.is_idle(&mut session) {
                session.link.close().await;
                return Ok(PublishEnd::Idle);
            }
            self.end_after_refusal(&session)?;
            self.send(&mut session);
            self.report_slow(&mut session);
            let due = self.next_due(&session);
            let fence = Some((&shared.fence, session.epoch));
            let turned = tokio::select! {
                turned = session.link.turn(fence) => turned,
                () = self.inbox.arrived() => Ok(()),
                _changed = self.life.changed() => Ok(()),
                () = tokio::time::sleep_until(due.into()) => Ok(()),
            };
            // What has arrived before the end counts.
            self.take_events(&mut session)?;
            turned?;
            session.link.beat()?;
        }
    }

    /// Whether the connection is closed because nothing was sent for a while.
    fn is_idle(&self, session: &mut PublisherSession) -> bool {
        if !self.line.is_empty() {
            session.idle_since = Instant::now();
        }
        let wanted = self.shared.connections.available_permits() == 0;
        self.line.is_empty() && (wanted || session.idle_since.elapsed() >= IDLE_MAX)
    }

    /// After a refusal the connection is given up, once the other messages are answered.
    fn end_after_refusal(&self, session: &PublisherSession) -> Result<(), StreamProblem> {
        let Some((code, at)) = session.refused else { return Ok(()) };
        if self.line.unanswered() > 0 && at.elapsed() < ANSWERS_MAX {
            return Ok(());
        }
        Err(StreamProblem::refused(StreamStep::Publish, code, &self.stream, &self.shared.spec))
    }

    /// Appends messages to what is to be written.
    fn send(&mut self, session: &mut PublisherSession) {
        let shared = Arc::clone(&self.shared);
        let present = shared.fence.number();
        if session.epoch != present {
            // What is in flight is of an earlier number: nothing later is sent before it is answered.
            if session.link.unwritten() > 0 || self.line.in_flight() > 0 {
                return;
            }
            session.epoch = present;
        }
        if session.refused.is_some() {
            return;
        }
        if self.line.in_flight() == 0 {
            session.slow_at = Instant::now();
        }
        let (window, frame_max) = (shared.spec.window, session.link.server.frame_max);
        while self.line.in_flight() < window && session.link.unwritten() < UNWRITTEN_MAX {
            let out = session.link.out();
            match self.fill_frame(out, frame_max, present) {
                FrameFill::Some => {}
                FrameFill::None => break,
                FrameFill::TooLarge(size) => self.reject_next(size, frame_max),
            }
        }
    }

    /// Appends a frame with messages of this number of the fence.
    fn fill_frame(&mut self, out: &mut Vec<u8>, frame_max: usize, epoch: u64) -> FrameFill {
        let (window, rules) = (self.shared.spec.window, &self.shared.spec.rules);
        let mut frame = PublishFrame::begin(out, PUBLISHER);
        let mut too_large = None;
        while self.line.in_flight() < window && frame.size_bytes(out) < FRAME_FULL {
            let Some(next) = self.line.next().filter(|next| next.epoch() == epoch) else { break };
            let at = frame.add(out, |out| put_message(out, &next.record(), rules));
            let alone = PUBLISH_OVERHEAD + out.len() - at;
            if alone > frame_max {
                too_large = Some(alone);
            }
            let sent = frame.size_bytes(out) <= frame_max;
            let Some(id) = sent.then(|| self.line.send(&self.shared.ids)).flatten() else {
                frame.take_back(out, at);
                break;
            };
            PublishFrame::number(out, at, id);
        }
        match (too_large, frame.end(out)) {
            (Some(size), true) => FrameFill::TooLarge(size),
            (None, true) => FrameFill::None,
            (_, false) => FrameFill::Some,
        }
    }

    /// The next record is too large for this server, which takes less than the one that it was admitted for.
    fn reject_next(&mut self, size: usize, limit: usize) {
        let Some((ticket, is_retry)) = self.line.refuse_next() else { return };
        self.inbox.done(1);
        let queue = &self.shared.queue;
        let refusal = Refusal::too_large(size, limit);
        if is_retry {
            queue.retry_rejected(ticket, Scope::Event, refusal);
        } else {
            // Nothing that was taken before is sent any more.
            self.shared.fence.resets();
            queue.rejected(queue.life().generation, ticket, Scope::Event, refusal);
        }
    }

    /// Handles what the server has sent.
    fn take_events(&mut self, session: &mut PublisherSession) -> Result<(), StreamProblem> {
        let mut gone = false;
        while let Some(event) = session.link.next_event() {
            match event {
                StreamEvent::Confirmed { publisher: PUBLISHER, ids } => {
                    for id in ids {
                        self.line.answered(id, true);
                    }
                    session.slow_at = Instant::now();
                    self.pauses.reset();
                    self.shared.reached(&self.stream);
                }
                StreamEvent::Refused { publisher: PUBLISHER, ids } => {
                    for (id, code) in ids {
                        self.line.answered(id, false);
                        session.refused.get_or_insert_with(|| (code, Instant::now()));
                    }
                }
                StreamEvent::Unavailable { stream } => gone |= stream == self.stream,
                StreamEvent::Confirmed { .. } | StreamEvent::Refused { .. } => {}
            }
        }
        self.report();
        if gone {
            let (step, code) = (StreamStep::Publish, NOT_AVAILABLE);
            return Err(StreamProblem::refused(step, code, &self.stream, &self.shared.spec));
        }
        Ok(())
    }

    /// Reports that the server does not confirm.
    fn report_slow(&self, session: &mut PublisherSession) {
        if self.line.unanswered() == 0 || session.slow_at.elapsed() < SLOW {
            return;
        }
        session.slow_at = Instant::now();
        let (host, count) = (session.link.host(), self.line.unanswered());
        let reason = format!(
            "RabbitMQ at {host} has confirmed none of {count} messages of stream {:?} for {SLOW:?}",
            self.stream
        );
        let hint = "see whether the server has an alarm or is overloaded, or most members of the stream are down: \
                    rabbitmq-diagnostics alarms; rabbitmq-streams stream_status STREAM";
        let problem = StreamProblem::new(StreamStep::Publish, reason, Some(hint.to_owned()));
        self.shared.failed(&self.stream, self.line.is_live(), problem);
    }

    /// When something is due without an event.
    fn next_due(&self, session: &PublisherSession) -> Instant {
        let mut due = session.link.beats_at();
        if self.line.unanswered() > 0 {
            due = due.min(session.slow_at + SLOW);
        }
        if self.line.is_empty() {
            due = due.min(session.idle_since + IDLE_MAX);
        }
        if let Some((_, at)) = session.refused {
            due = due.min(at + ANSWERS_MAX);
        }
        due
    }
}
