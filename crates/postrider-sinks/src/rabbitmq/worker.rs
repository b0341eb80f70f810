//! The worker thread: it connects, publishes, and reports.
//!
//! A connection publishes only while it has the lock: an exclusive queue, which the server gives to one connection at a
//! time and frees when that connection has ended there. So nothing that an older connection still has on the way is
//! published behind what a newer one sends. The lock is taken with the first record, and freed when nothing is in
//! flight for a second, because another process may publish next.

use super::codec::{
    CONFIRM_SELECT_OK, EXCHANGE_DECLARE_OK, QUEUE_DECLARE_OK, QUEUE_DELETE_OK, put_field, put_short,
};
use super::facts::{RabbitFacts, RoutedKeys};
use super::link::{AmqpLink, LinkEvent, PUBLISH, ReturnedMessage};
use super::message;
use super::pauses::Pauses;
use super::problem::{NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED, RabbitProblem, RabbitStep};
use super::spec::RabbitSpec;
use super::window::{Settled, Window, WindowEntry};
use crate::life::Life;
use crate::moment::Moment;
use crate::send_queue::SendQueue;
use postrider_core::backoff::Backoff;
use postrider_core::record::{Refusal, RefusalKind, Scope, Ticket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pauses between attempts to connect, and between attempts to get the lock.
const CONNECT_PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
const LOCK_PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// A connection that has ended at the server frees the lock before the last of its messages is in its queue.
const LOCK_SETTLES: Duration = Duration::from_millis(100);

/// The lock is freed after this time without a message in flight.
const LOCK_IDLE: Duration = Duration::from_secs(1);

/// Waiting for confirms is reported after this time, and repeated.
const SLOW: Duration = Duration::from_secs(5);

/// How long a parked event is sent again and again before its routing key counts as missing.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Bytes that wait for the socket.
const UNWRITTEN_MAX: usize = 256 << 10;

/// RabbitMQ's code of a message that no queue gets.
const NO_ROUTE: i32 = 312;

/// Whether another process may have published meanwhile.
#[derive(Clone, Copy, Debug)]
struct Absence {
    /// When the worker was last seen to run.
    alive: Moment,
    /// Since when the records are held without the lock.
    in_doubt: Option<Moment>,
}

/// Shorter than the time that a successor waits before it publishes, if nothing else stops it.
const SUCCESSOR_WAITS: Duration = Duration::from_secs(5);

/// The lock of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lock {
    /// Not held. `due`: when it is asked for, if there are records.
    Free { due: Instant },
    /// Held; messages may be sent from `from` on.
    Held { from: Instant },
}

/// A connection, while it is used.
#[derive(Debug)]
struct RabbitSession {
    link: AmqpLink,
    lock: Lock,
    lock_pauses: Backoff,
    /// Since when there is nothing in flight.
    idle_since: Instant,
    /// The server's reason for reading nothing.
    blocked: Option<String>,
    /// When waiting for the server was last reported.
    slow_at: Instant,
    /// The server has accepted something, or there is nothing to accept.
    works: bool,
    settled: Vec<Settled>,
}

/// The worker.
pub(super) struct Worker {
    queue: Arc<SendQueue<()>>,
    spec: Arc<RabbitSpec>,
    facts: Arc<RabbitFacts>,
    window: Window,
    pauses: Pauses,
    routed: RoutedKeys,
    generation: u64,
    /// What is in flight is of an earlier generation, or behind a failure: its reports are all that is left.
    ending: bool,
    absence: Absence,
    /// A problem was reported.
    is_down: bool,
    /// After the server refused a message by closing the channel: so many messages are sent one at a time.
    alone: usize,
    acked: Vec<Ticket>,
}

impl Worker {
    pub(super) fn new(
        queue: Arc<SendQueue<()>>,
        spec: RabbitSpec,
        facts: Arc<RabbitFacts>,
    ) -> Self {
        Self {
            queue,
            spec: Arc::new(spec),
            facts,
            window: Window::default(),
            pauses: Pauses::default(),
            routed: RoutedKeys::default(),
            generation: 0,
            ending: false,
            absence: Absence { alive: Moment::now(), in_doubt: None },
            is_down: false,
            alone: 0,
            acked: Vec::new(),
        }
    }

    /// Runs until the queue is closed.
    pub(super) async fn run(mut self) {
        let spec = Arc::clone(&self.spec);
        let mut pauses = CONNECT_PAUSES;
        let mut next_host = 0;
        loop {
            let host = &spec.address.hosts[next_host % spec.address.hosts.len()];
            let opened = tokio::select! {
                opened = AmqpLink::open(&spec, host) => opened,
                () = self.attend() => return,
            };
            let (ended, was_open) = match opened {
                Ok(link) => (self.serve(link, &mut pauses).await, true),
                Err(problem) => (Err(problem), false),
            };
            let Err(problem) = ended else { return };
            next_host += 1;
            self.lost(&problem);
            // What the next attempt finds says more than the end of a connection that worked.
            if !was_open || pauses.attempts() > 0 || !problem.is_of_connection() {
                self.down(problem.reason, problem.hint);
            }
            // The other servers are tried at once.
            let pause = if next_host % spec.address.hosts.len() == 0 {
                pauses.next(fastrand::f64())
            } else {
                Duration::ZERO
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.attend() => return,
            }
        }
    }

    /// Follows resets while there is no connection. Returns when the sink is closed.
    async fn attend(&mut self) {
        while !self.follow() {
            self.queue.ended(self.generation).await;
        }
    }

    /// Follows a reset. Returns whether the sink is closed.
    fn follow(&mut self) -> bool {
        let life = self.queue.life();
        if life.generation != self.generation {
            self.generation = life.generation;
            self.give_up();
        }
        if self.window.in_flight() == 0 && self.window.is_empty() {
            self.ending = false;
        }
        life.closed
    }

    /// Gives up what is not in flight, and reports no failure of the rest.
    fn give_up(&mut self) {
        self.pauses.end();
        let dropped = self.window.drop_waiting();
        self.queue.dropped(dropped);
        self.absence.in_doubt = None;
        self.ending = true;
    }

    /// Answers for which routing keys messages are accepted. Of the default exchange a routing key is the name of a
    /// queue, and the server is asked for it. Whether a binding exists can't be asked: what is known is that none did.
    async fn look_up(&self, link: &mut AmqpLink, spec: &RabbitSpec) -> Result<(), RabbitProblem> {
        while let Some(name) = self.queue.next_wanted() {
            let exists = if spec.rules.exchange.is_empty() {
                queue_exists(link, &name, spec).await?
            } else {
                !self.facts.is_unroutable(&name)
            };
            if exists {
                let was_down = self.facts.has_route(&name);
                self.queue.opened(&name, (), was_down);
            } else {
                self.facts.lacks_route(&name);
                self.unroutable(&name);
            }
        }
        Ok(())
    }

    /// The connection is lost. What was in flight is sent again by the next one, unless it is given up.
    fn lost(&mut self, problem: &RabbitProblem) {
        let of_publish = problem.step == RabbitStep::Publish && !self.ending;
        let refused = of_publish && problem.code == Some(PRECONDITION_FAILED);
        let single = self.window.only_in_flight().filter(|_| refused);
        if of_publish && problem.code.is_some() {
            // One of them has closed the channel. The others are not published again with each attempt.
            self.alone = self.window.in_flight();
        }
        self.window.lost();
        for entry in self.pauses.end() {
            self.window.again(entry);
        }
        // Also if the window is empty: records may wait in the queue.
        self.absence.in_doubt.get_or_insert(self.absence.alive);
        if self.ending {
            self.give_up();
        } else if let Some(entry) = single {
            // No other message was in flight, so this one is meant.
            let kind = RefusalKind::TooLarge(None);
            let native = Some(i32::from(PRECONDITION_FAILED));
            self.reject(entry, Scope::Event, Refusal { kind, native, of_batch: false });
        }
    }

    /// Uses a connection until it is lost (`Err`), or the sink is closed.
    async fn serve(
        &mut self,
        mut link: AmqpLink,
        pauses: &mut Backoff,
    ) -> Result<(), RabbitProblem> {
        let spec = Arc::clone(&self.spec);
        prepare(&mut link, &spec).await?;
        self.facts.set_frame_max(link.frame_max());
        link.publishes();
        let now = Instant::now();
        let mut session = RabbitSession {
            link,
            lock: Lock::Free { due: now },
            lock_pauses: LOCK_PAUSES,
            idle_since: now,
            blocked: None,
            slow_at: now,
            works: false,
            settled: Vec::new(),
        };
        self.absence.alive = Moment::now();
        loop {
            if self.follow() {
                session.link.close(&spec).await;
                return Ok(());
            }
            session.link.notice_stall()?;
            self.absence.alive = session.link.alive();
            // During an alarm the server reads no request.
            if session.blocked.is_none() {
                self.look_up(&mut session.link, &spec).await?;
            }
            self.take();
            self.lock(&mut session, &spec).await?;
            self.send(&mut session);
            self.report_health(&mut session);
            if session.works {
                pauses.reset();
            }
            let due = tokio::time::Instant::from_std(self.next_due(&session));
            tokio::select! {
                turned = session.link.turn(&spec) => turned?,
                () = self.queue.worked() => {}
                () = tokio::time::sleep_until(due) => {}
            }
            session.link.beat()?;
            self.take_events(&mut session, &spec)?;
        }
    }

    /// The sink may publish. What was held without the lock for longer than the server waits for a heartbeat may be
    /// published by another process by now, and newer events too: the pipeline decides what is sent.
    fn resume(&mut self, spec: &RabbitSpec) {
        let Some(since) = self.absence.in_doubt.take() else { return };
        let without = since.elapsed();
        if without > spec.heartbeat.min(SUCCESSOR_WAITS) && !self.window.is_empty() {
            self.give_up();
            let reason = format!("nothing could be published for {without:.0?}");
            self.queue.broken(self.generation, reason);
        }
    }

    /// Takes the records that wait in the queue, once nothing of an earlier generation is in flight.
    fn take(&mut self) {
        while let Some(batch) = self.window.spent() {
            self.queue.recycle(batch);
        }
        if !self.ending {
            let batch = self.queue.take(self.generation);
            if !batch.is_empty() {
                self.window.add(batch);
            }
            for entry in self.pauses.due(Instant::now()) {
                self.window.again(entry);
            }
        }
    }

    /// Takes the lock if there is something to send, and frees it if there is nothing in flight for a while.
    async fn lock(
        &mut self,
        session: &mut RabbitSession,
        spec: &RabbitSpec,
    ) -> Result<(), RabbitProblem> {
        let now = Instant::now();
        if !self.window.is_empty() {
            session.idle_since = now;
        }
        let Some(queue) = &spec.lock_queue else {
            if matches!(session.lock, Lock::Free { .. }) {
                session.lock = Lock::Held { from: now };
                self.resume(spec);
            }
            return Ok(());
        };
        match session.lock {
            Lock::Free { due } if self.window.has_ready() && due <= now => {
                if declare_lock(&mut session.link, queue, spec).await? {
                    session.lock = Lock::Held { from: Instant::now() + LOCK_SETTLES };
                    session.lock_pauses = LOCK_PAUSES;
                    self.resume(spec);
                    return Ok(());
                }
                self.absence.in_doubt.get_or_insert_with(Moment::now);
                let pause = session.lock_pauses.next(fastrand::f64());
                session.lock = Lock::Free { due: Instant::now() + pause };
                // A connection that was just given up is no problem.
                if session.lock_pauses.attempts() > 3 {
                    let reason = format!(
                        "another connection publishes for this pipeline: it has the lock queue {queue:?}"
                    );
                    let hint = format!(
                        "the sink waits until that connection has ended, at the latest {:?} after its process or \
                         machine; two pipelines must not have one sink.rabbitmq.lock_queue",
                        2 * spec.heartbeat
                    );
                    session.works = false;
                    self.down(reason, Some(hint));
                }
            }
            Lock::Held { .. }
                if self.frees_lock(session) && session.idle_since.elapsed() >= LOCK_IDLE =>
            {
                free_lock(&mut session.link, queue, spec).await?;
                session.lock = Lock::Free { due: Instant::now() };
            }
            Lock::Free { .. } | Lock::Held { .. } => {}
        }
        Ok(())
    }

    /// Whether the lock is freed if nothing more comes. During an alarm the server reads no request.
    fn frees_lock(&self, session: &RabbitSession) -> bool {
        self.window.is_empty() && session.blocked.is_none() && self.spec.lock_queue.is_some()
    }

    /// Appends messages to what is to be written.
    fn send(&mut self, session: &mut RabbitSession) {
        let Lock::Held { from } = session.lock else { return };
        let is_over = self.queue.life() != Life { generation: self.generation, closed: false };
        if from > Instant::now() || session.blocked.is_some() || self.ending || is_over {
            return;
        }
        let limit = if self.alone > 0 { 1 } else { self.spec.window };
        let frame_max = session.link.frame_max();
        if self.window.in_flight() == 0 {
            session.slow_at = Instant::now();
        }
        while self.window.in_flight() < limit && session.link.unwritten() < UNWRITTEN_MAX {
            let Some(entry) = self.window.next_ready() else { break };
            let record = self.window.record(entry);
            if !self.pauses.is_empty() && self.pauses.keeps(record.topic, entry, record.is_retry) {
                continue;
            }
            let out = session.link.out();
            if message::put_message(out, PUBLISH, &record, &self.spec.rules, frame_max) {
                self.window.sent(entry);
                continue;
            }
            // It was accepted for a connection with larger frames, and would close this one.
            let topic = record.topic.to_owned();
            self.pauses.gave_up(&topic, entry);
            self.reject(entry, Scope::Event, message::frame_refusal());
            if self.ending {
                return;
            }
        }
    }

    /// Handles what the server has sent.
    fn take_events(
        &mut self,
        session: &mut RabbitSession,
        spec: &RabbitSpec,
    ) -> Result<(), RabbitProblem> {
        while let Some(event) = session.link.next_event() {
            match event {
                LinkEvent::Confirmed { tag, multiple, stored } => {
                    let mut settled = std::mem::take(&mut session.settled);
                    let known = self.window.settle(tag, multiple, &mut settled);
                    for settled in settled.drain(..) {
                        session.works |= stored && !settled.returned;
                        self.settle(settled, stored);
                    }
                    session.settled = settled;
                    session.slow_at = Instant::now();
                    if !known {
                        return Err(nonsense(spec, "confirmed a message that was not sent"));
                    }
                }
                LinkEvent::Returned(message) => {
                    if !self.window.returned(|record| is_same(&message, record)) {
                        return Err(nonsense(spec, "returned a message that was not sent"));
                    }
                }
                LinkEvent::Blocked(reason) => {
                    session.blocked = Some(reason);
                    session.slow_at = Instant::now();
                    self.report_blocked(session);
                }
                LinkEvent::Unblocked => {
                    session.blocked = None;
                    session.slow_at = Instant::now();
                }
                LinkEvent::ChannelClosed(PUBLISH, close) => {
                    self.report_acked();
                    return Err(RabbitProblem::closed(RabbitStep::Publish, &close, spec));
                }
                // The answer to a request has reported it.
                LinkEvent::ChannelClosed(..) | LinkEvent::Delivered(_) | LinkEvent::Cancelled => {}
            }
        }
        self.report_acked();
        Ok(())
    }

    fn report_acked(&mut self) {
        if !self.acked.is_empty() {
            self.queue.acked(&self.acked);
            self.acked.clear();
        }
    }

    /// A message is confirmed: `stored`, or refused.
    fn settle(&mut self, Settled { entry, returned }: Settled, stored: bool) {
        self.alone = self.alone.saturating_sub(1);
        if stored && !returned {
            return self.published(entry);
        }
        if self.ending {
            self.window.finish(entry);
            return self.queue.dropped(1);
        }
        let record = self.window.record(entry);
        let (topic, is_retry) = (record.topic.to_owned(), record.is_retry);
        let is_routed = self.routed.has(&topic);
        if !returned {
            // A queue has refused it, so there is one.
            self.routed(&topic);
            if self.pauses.refused(&topic, entry, is_retry) {
                let reason = if self.spec.rules.exchange.is_empty() {
                    format!("queue {topic:?} refuses messages (basic.nack)")
                } else {
                    let shown = self.spec.rules.exchange_shown();
                    format!(
                        "a queue of {shown} refuses messages with routing key {topic:?} (basic.nack)"
                    )
                };
                self.hold(&topic, reason, FULL_HINT.to_owned());
            }
            return;
        }
        let missing = Refusal::of_broker(RefusalKind::Other, NO_ROUTE);
        if is_retry {
            let since = self.window.first_returned(entry);
            if since.elapsed() <= RETRY_MAX {
                self.pauses.refused(&topic, entry, is_retry);
                return;
            }
            self.pauses.gave_up(&topic, entry);
            self.reject(entry, Scope::Destination, missing);
            if !is_routed {
                self.facts.lacks_route(&topic);
                self.unroutable(&topic);
            }
        } else if is_routed {
            if self.pauses.refused(&topic, entry, is_retry) {
                let (reason, hint) = self.no_route(&topic);
                self.hold(&topic, reason, hint);
            }
        } else {
            self.facts.lacks_route(&topic);
            self.unroutable(&topic);
            self.reject(entry, Scope::Destination, missing);
        }
    }

    /// A queue has got the message.
    fn published(&mut self, entry: WindowEntry) {
        let record = self.window.record(entry);
        let is_new = !self.routed.has(record.topic);
        let waits = !self.pauses.is_empty() || self.pauses.has_reports();
        if is_new || waits || self.facts.is_unroutable(record.topic) {
            let topic = record.topic.to_owned();
            self.routed(&topic);
            if self.pauses.ends_report(&topic, entry) {
                self.queue.released(&topic);
            }
            if let Some(waiting) = self.pauses.published(&topic, entry) {
                for entry in waiting.into_iter().rev() {
                    self.window.again(entry);
                }
            }
        }
        let ticket = self.window.finish(entry);
        self.acked.push(ticket);
    }

    /// There is a queue for this routing key.
    fn routed(&mut self, topic: &str) {
        self.routed.add(topic);
        if self.facts.has_route(topic) {
            self.queue.opened(topic, (), true);
        }
    }

    /// Reports a refusal. The pipeline restarts, unless the event was a parked one.
    fn reject(&mut self, entry: WindowEntry, scope: Scope, refusal: Refusal) {
        self.report_acked();
        let is_retry = self.window.record(entry).is_retry;
        let ticket = self.window.finish_unsent(entry);
        if is_retry {
            self.queue.retry_rejected(ticket, scope, refusal);
        } else {
            self.give_up();
            self.queue.rejected(self.generation, ticket, scope, refusal);
        }
    }

    /// No queue has ever got a message with this routing key.
    fn unroutable(&self, topic: &str) {
        let (reason, hint) = self.no_route(topic);
        self.queue.unavailable(topic, true, reason, Some(hint));
    }

    fn no_route(&self, topic: &str) -> (String, String) {
        let exchange = &self.spec.rules.exchange;
        let shown = self.spec.rules.exchange_shown();
        let reason =
            format!("no queue gets messages of {shown} with routing key {topic:?} (NO_ROUTE)");
        let hint = if exchange.is_empty() {
            format!("declare queue {topic:?} in virtual host {:?}", self.spec.address.vhost)
        } else {
            format!(
                "bind a queue to {shown} with routing key {topic:?}, in virtual host {:?}; with parking.on_poison = \
                 \"stop\" restart Postrider after that, because only a message shows whether a queue is bound",
                self.spec.address.vhost
            )
        };
        (reason, hint)
    }

    // Health.

    /// A routing key whose messages are refused. Those of others are published.
    fn hold(&mut self, topic: &str, reason: String, hint: String) {
        self.pauses.reports(topic);
        self.queue.held(topic, self.pauses.has_live(topic), reason, Some(hint));
    }

    fn down(&mut self, reason: String, hint: Option<String>) {
        self.is_down = true;
        self.queue.down(reason, hint);
    }

    fn report_blocked(&mut self, session: &mut RabbitSession) {
        let Some(reason) = &session.blocked else { return };
        session.works = false;
        let host = session.link.host();
        let reason =
            format!("RabbitMQ at {host} accepts no messages because of an alarm: {reason}");
        let hint = "free memory or disk space of the server, or raise vm_memory_high_watermark or lower \
                    disk_free_limit: rabbitmq-diagnostics alarms";
        self.down(reason, Some(hint.to_owned()));
    }

    /// Reports what lasts, and that it is over.
    fn report_health(&mut self, session: &mut RabbitSession) {
        let waits = session.slow_at.elapsed() >= SLOW;
        if waits && session.blocked.is_some() {
            session.slow_at = Instant::now();
            self.report_blocked(session);
        } else if waits && self.window.in_flight() > 0 {
            session.slow_at = Instant::now();
            session.works = false;
            let (host, count) = (session.link.host(), self.window.in_flight());
            let reason =
                format!("RabbitMQ at {host} has confirmed none of {count} messages for {SLOW:?}");
            let hint = "see whether the server is overloaded, or most members of a quorum queue are down: \
                        rabbitmq-queues quorum_status QUEUE";
            self.down(reason, Some(hint.to_owned()));
        }
        session.works |= self.window.is_empty();
        let over = session.works && session.blocked.is_none();
        if self.is_down && over {
            self.is_down = false;
            self.queue.up();
        }
    }

    /// When something is due without an event.
    fn next_due(&self, session: &RabbitSession) -> Instant {
        let mut due = session.link.beats_at();
        let mut or = |at: Instant| due = due.min(at);
        if let Some(at) = self.pauses.next_due() {
            or(at);
        }
        if session.blocked.is_some() || self.window.in_flight() > 0 {
            or(session.slow_at + SLOW);
        }
        match session.lock {
            Lock::Free { due } if self.window.has_ready() => or(due),
            Lock::Held { from } if from > Instant::now() => or(from),
            Lock::Held { .. } if self.frees_lock(session) => or(session.idle_since + LOCK_IDLE),
            Lock::Free { .. } | Lock::Held { .. } => {}
        }
        due
    }
}

const FULL_HINT: &str = "let consumers empty the queue, or raise its limits (max-length, max-length-bytes): with \
                         overflow reject-publish a full queue refuses messages. They are sent again in their order";

/// Lets the channel confirm messages, and looks the exchange up.
async fn prepare(link: &mut AmqpLink, spec: &RabbitSpec) -> Result<(), RabbitProblem> {
    let exchange = &spec.rules.exchange;
    if !exchange.is_empty() {
        let step = RabbitStep::Exchange;
        let answer = link.ask(step, (40, 10), EXCHANGE_DECLARE_OK, spec, |out| {
            out.extend_from_slice(&[0; 2]);
            put_short(out, exchange.as_bytes());
            // Of a passive declaration the type does not count.
            put_short(out, b"topic");
            out.push(1);
            out.extend_from_slice(&[0; 4]);
        });
        if let Err(close) = answer.await? {
            return Err(RabbitProblem::closed(step, &close, spec));
        }
    }
    link.set_up((85, 10), CONFIRM_SELECT_OK, spec, |out| out.push(0)).await
}

/// Whether there is a queue of this name.
pub(super) async fn queue_exists(
    link: &mut AmqpLink,
    queue: &str,
    spec: &RabbitSpec,
) -> Result<bool, RabbitProblem> {
    let answer = link.ask(RabbitStep::Queue, (50, 10), QUEUE_DECLARE_OK, spec, |out| {
        out.extend_from_slice(&[0; 2]);
        put_short(out, queue.as_bytes());
        // Passive: nothing is declared.
        out.push(1);
        out.extend_from_slice(&[0; 4]);
    });
    match answer.await? {
        Ok(()) => Ok(true),
        Err(close) if close.code == NOT_FOUND => Ok(false),
        // It is another connection's exclusive queue, which gets messages.
        Err(close) if close.code == RESOURCE_LOCKED => Ok(true),
        Err(close) => Err(RabbitProblem::closed(RabbitStep::Queue, &close, spec)),
    }
}

/// Declares the exclusive queue. False: another connection has it.
pub(super) async fn declare_lock(
    link: &mut AmqpLink,
    queue: &str,
    spec: &RabbitSpec,
) -> Result<bool, RabbitProblem> {
    let answer = link.ask(RabbitStep::Lock, (50, 10), QUEUE_DECLARE_OK, spec, |out| {
        out.extend_from_slice(&[0; 2]);
        put_short(out, queue.as_bytes());
        // Exclusive, and deleted with its last consumer.
        out.push(0b1100);
        super::codec::put_counted(out, |out| put_field(out, "x-queue-type", Some(b"classic")));
    });
    match answer.await? {
        Ok(()) => Ok(true),
        Err(close) if close.code == RESOURCE_LOCKED => Ok(false),
        Err(close) => Err(RabbitProblem::closed(RabbitStep::Lock, &close, spec)),
    }
}

pub(super) async fn free_lock(
    link: &mut AmqpLink,
    queue: &str,
    spec: &RabbitSpec,
) -> Result<(), RabbitProblem> {
    let answer = link.ask(RabbitStep::Lock, (50, 40), QUEUE_DELETE_OK, spec, |out| {
        out.extend_from_slice(&[0; 2]);
        put_short(out, queue.as_bytes());
        out.push(0);
    });
    answer.await?.map_err(|close| RabbitProblem::closed(RabbitStep::Lock, &close, spec))
}

fn nonsense(spec: &RabbitSpec, what: &str) -> RabbitProblem {
    let place = spec.address.place();
    RabbitProblem::new(RabbitStep::Publish, format!("RabbitMQ at {place} {what}"), None)
}

/// Whether a returned message is that of the record. Two messages that agree in all of this are the same to everybody.
fn is_same(message: &ReturnedMessage, record: &crate::record_batch::QueuedRecord<'_>) -> bool {
    let ReturnedMessage { routing_key, properties, body } = message;
    let id = record.headers.value_of("id").filter(|id| std::str::from_utf8(id).is_ok());
    // Without a key of the event, a header of this name is that of its row.
    let of_row = || record.headers.filter(|header| header.name == "key").last()?.value;
    record.topic.as_bytes() == routing_key
        && record.key.or_else(of_row) == properties.key.as_deref()
        && record.headers.value_of("position") == properties.position.as_deref()
        && id == properties.message_id.as_deref()
        && record.value.unwrap_or_default() == body
}
