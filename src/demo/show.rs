//! One run: write, break things, deliver the rest, stop cleanly, add up.

use super::broker::Broker;
use super::chaos::{Act, Chaos, FREEZE, Played};
use super::database::Database;
use super::ledger::SharedLedger;
use super::probe::{Probe, Status};
use super::process::{Dir, Interrupts};
use super::reader::Reader;
use super::relay::Relay;
use super::report::Report;
use super::screen::Screen;
use super::view::{Meter, Phase, Quantiles, View};
use super::writer::{AGGREGATES, Writers};
use super::{DemoError, Options};
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// Between two looks at everything, and two pictures.
const TICK: Duration = Duration::from_millis(100);
/// How long the relay may take until it streams for the first time.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// How long the first event may take; then the others are written all the same.
const WARM_UP_DEADLINE: Duration = Duration::from_secs(5);
/// How long the last events may take.
const DRAIN_DEADLINE: Duration = Duration::from_secs(30);
/// How far acts that could not be done in time may put the end off.
const ACTS_DEADLINE: Duration = Duration::from_secs(45);
/// Once the relay has ended, the reader has everything when nothing came for so long.
const QUIET: Duration = Duration::from_millis(400);

/// Everything that runs. Dropped, it all ends.
pub(super) struct Show<'o> {
    options: &'o Options,
    // In the order of their end.
    writers: Option<Writers>,
    relay: Relay,
    probe: Probe,
    _reader: Reader,
    ledger: SharedLedger,
    meter: Meter,
    phase: Phase,
    chaos: Chaos,
    /// What was delivered when the act at hand was done; `None` while it is being done.
    delivered_before: Option<u64>,
    repeatable: u64,
    started: Instant,
    phase_since: Instant,
}

impl<'o> Show<'o> {
    /// Starts relay and reader, and waits until the relay streams: the writer's first event finds it ready.
    pub(super) async fn begin(
        options: &'o Options,
        dir: &Dir,
        database: &Database,
        broker: &Broker,
    ) -> Result<Self, DemoError> {
        let mut relay = Relay::set_up(options, dir, database, broker).await?;
        let ledger = SharedLedger::new(AGGREGATES);
        let reader = Reader::start(broker, &ledger)?;
        let probe = Probe::start(relay.admin_port)?;
        relay.start()?;
        probe.watch(relay.pid());
        let (meter, now) = (Meter::new(&ledger), Instant::now());
        let mut show = Self {
            options,
            writers: None,
            relay,
            probe,
            _reader: reader,
            ledger,
            meter,
            phase: Phase::Writing,
            chaos: Chaos::new(acts(options), options.limit, options.chaos),
            delivered_before: None,
            repeatable: 0,
            started: now,
            phase_since: now,
        };
        show.await_streaming().await?;
        Ok(show)
    }

    async fn await_streaming(&mut self) -> Result<(), DemoError> {
        while !self.is_streaming() {
            self.relay.check()?;
            if self.started.elapsed() > READY_DEADLINE {
                let status = self.probe.look().status.unwrap_or_default();
                let reason = status.reason.map(|reason| format!(", {reason}")).unwrap_or_default();
                return Err(DemoError::RelayNotReady {
                    seconds: READY_DEADLINE.as_secs(),
                    state: format!("state \"{}\"{reason}", status.state),
                    log: self.relay.log_tail(),
                });
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    /// Starts the writers, and waits until the first event has made its way: the clients have connected then. It
    /// stands in the ledger, but its time does not count.
    pub(super) async fn warm_up(&mut self, database: &Database) -> Result<(), DemoError> {
        let writers = Writers::start(database, &self.ledger, self.options.rate)?;
        let writers = self.writers.insert(writers);
        let deadline = Instant::now() + WARM_UP_DEADLINE;
        while self.ledger.lock().totals().delivered == 0 && Instant::now() < deadline {
            self.relay.check()?;
            tokio::time::sleep(TICK / 10).await;
        }
        self.probe.forget();
        self.ledger.lock().forget_latencies();
        self.meter.forget();
        writers.go();
        self.enter(Phase::Writing);
        self.started = Instant::now();
        Ok(())
    }

    fn is_streaming(&self) -> bool {
        let state = self.probe.look().status.map(|status| status.state);
        matches!(state.as_deref(), Some("streaming" | "catching_up"))
    }

    /// Runs to the end.
    pub(super) async fn run(
        &mut self,
        database: &mut Database,
        broker: &Broker,
        interrupts: &mut Interrupts,
        parts: &[(&str, String)],
    ) -> Result<Report, DemoError> {
        let mut screen = Screen::open(self.options.is_terminal, self.options.color, parts);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let interrupted = tokio::select! {
                biased;
                () = interrupts.next() => true,
                _ = ticks.tick() => screen.asked_to_stop().map_err(DemoError::Screen)?,
            };
            self.relay.check()?;
            if database.is_gone() {
                return Err(database.ended());
            }
            self.play(database, broker)?;
            if self.turn(interrupted) {
                break;
            }
            let view = self.view();
            self.meter.plot(&view);
            screen.show(&view, &self.meter).map_err(DemoError::Screen)?;
        }
        drop(screen);
        self.finish(interrupts).await
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.phase_since = Instant::now();
    }

    /// One step; true when there is nothing left to wait for.
    fn turn(&mut self, interrupted: bool) -> bool {
        let totals = self.meter.sample();
        match self.phase {
            Phase::Writing => {
                if interrupted || self.is_over() {
                    self.writers.iter().for_each(Writers::stop);
                    self.enter(Phase::Draining);
                }
                false
            }
            Phase::Draining => {
                let written = self.writers.as_ref().is_none_or(Writers::are_done);
                let late = self.phase_since.elapsed() > DRAIN_DEADLINE;
                (written && totals.outstanding == 0) || late || interrupted
            }
        }
    }

    fn is_over(&self) -> bool {
        let elapsed = self.started.elapsed();
        let patient = |limit| self.chaos.is_over() || elapsed >= limit + ACTS_DEADLINE;
        self.options.limit.is_some_and(|limit| elapsed >= limit && patient(limit))
    }

    fn view(&self) -> View {
        let look = self.probe.look();
        View {
            phase: self.phase,
            elapsed: self.started.elapsed(),
            limit: self.options.limit,
            written: self.meter.written(),
            delivered: self.meter.delivered(),
            acknowledged: Quantiles {
                p50: look.recent.quantile(0.5),
                p99: look.recent.quantile(0.99),
            },
            consumed: self.meter.consumed(),
            totals: self.ledger.lock().totals(),
            look,
            breaking: self.chaos.current().map(|played| played.act),
            broken: self.chaos.begun(),
            planned: self.chaos.planned(),
            chaos: self.options.chaos,
            trouble: self.writers.as_ref().and_then(Writers::trouble),
        }
    }

    /// The clean stop, the last records, the sums.
    async fn finish(&mut self, interrupts: &mut Interrupts) -> Result<Report, DemoError> {
        let look = self.probe.look();
        let stopped = tokio::select! {
            biased;
            () = interrupts.next() => Err(DemoError::Interrupted),
            stopped = self.relay.stop() => stopped,
        };
        self.await_quiet().await;
        let ledger = self.ledger.lock();
        let totals = ledger.totals();
        let trouble = match stopped {
            Err(error) => Some(error.to_string()),
            Ok(()) if totals.outstanding > 0 => Some(self.why_outstanding(look.status)),
            Ok(()) => None,
        };
        Ok(Report {
            totals,
            played: self.chaos.played.clone(),
            chaos: self.options.chaos,
            repeatable: self.repeatable,
            acknowledged: Quantiles {
                p50: look.total.quantile(0.5),
                p99: look.total.quantile(0.99),
            },
            consumed: Quantiles {
                p50: ledger.consumed.quantile(0.5),
                p99: ledger.consumed.quantile(0.99),
            },
            memory_peak: look.memory_peak,
            trouble,
        })
    }

    fn why_outstanding(&self, status: Option<Status>) -> String {
        let status = status.unwrap_or_default();
        let reason = status.reason.unwrap_or_default();
        let log = self.relay.log_tail();
        format!(
            "gave up waiting for the rest; the relay was \"{}\" {reason}; the end of its log:{log}",
            status.state
        )
    }

    /// What the broker has is read to its end: late repetitions count too.
    async fn await_quiet(&self) {
        let deadline = Instant::now() + DRAIN_DEADLINE / 10;
        let (mut seen, mut since) = (self.records(), Instant::now());
        while since.elapsed() < QUIET && Instant::now() < deadline {
            tokio::time::sleep(TICK).await;
            let now = self.records();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
    }

    fn records(&self) -> u64 {
        self.ledger.lock().totals().records
    }
}

// What a run breaks: which acts there are to be, and each from its beginning until events flow again.
//
// When one is due is for `chaos` to say. What may be repeated because of it is counted in the show, for the report.

impl Show<'_> {
    /// Begins the next act when it is due; each waits until events flow again, so that each hits a working relay.
    fn play(&mut self, database: &mut Database, broker: &Broker) -> Result<(), DemoError> {
        let elapsed = self.started.elapsed();
        if let Some(played) = self.chaos.current() {
            return self.go_on(played, elapsed, database, broker);
        }
        let writing = self.phase == Phase::Writing && self.is_streaming();
        let Some(act) = self.chaos.due(elapsed).filter(|_| writing) else { return Ok(()) };
        self.chaos.begin(act, elapsed);
        self.delivered_before = None;
        match act {
            Act::KillRelay => {
                self.repeatable += self.meter.repeatable() + self.probe.look().in_flight_peak;
                self.probe.watch(None);
                self.relay.kill_and_restart()?;
                self.probe.watch(self.relay.pid());
                Ok(())
            }
            Act::FreezeBroker => {
                broker.answer_after(FREEZE);
                Ok(())
            }
            Act::RestartDatabase => database.begin_restart(),
        }
    }

    /// The act at hand: until it is done, and then until events flow again.
    fn go_on(
        &mut self,
        played: Played,
        elapsed: Duration,
        database: &mut Database,
        broker: &Broker,
    ) -> Result<(), DemoError> {
        let delivered = self.ledger.lock().totals().delivered;
        if let Some(before) = self.delivered_before {
            if delivered > before && self.is_streaming() {
                self.chaos.overcome(elapsed);
            }
            return Ok(());
        }
        let done = match played.act {
            Act::KillRelay => true,
            Act::FreezeBroker => {
                // All answers come at the same time: at the thaw.
                let left = FREEZE.saturating_sub(elapsed.saturating_sub(played.at));
                broker.answer_after(left);
                left.is_zero()
            }
            Act::RestartDatabase => database.step_restart()?,
        };
        if done {
            let status = self.probe.look().status;
            self.repeatable += status.map_or(0, |status| status.in_flight_events);
            self.delivered_before = Some(delivered);
        }
        Ok(())
    }
}

/// What a run is to break, where it is the demo's own.
fn acts(options: &Options) -> Vec<Act> {
    if !options.chaos {
        let kills = usize::try_from(options.kills).unwrap_or(usize::MAX);
        return vec![Act::KillRelay; kills];
    }
    let all = [Act::KillRelay, Act::FreezeBroker, Act::RestartDatabase];
    let own = |act: &Act| match act {
        Act::KillRelay => true,
        Act::FreezeBroker => options.brokers.is_none(),
        Act::RestartDatabase => options.url.is_none(),
    };
    all.into_iter().filter(own).collect()
}

/// What `--chaos` will do, in one line.
pub(super) fn promise(options: &Options) -> String {
    let acts: Vec<&str> = acts(options).iter().map(|act| act.words()).collect();
    let left = if acts.len() < 3 { "; servers of yours are left alone" } else { "" };
    format!("{}{left}", acts.join(", then "))
}
