//! What a run breaks: which acts there are to be, and each from its beginning until events flow again.
//!
//! When one is due is for `chaos` to say. What may be repeated because of it is counted in the show, for the report.

use super::Show;
use crate::demo::broker::Broker;
use crate::demo::chaos::{Act, FREEZE, Played};
use crate::demo::database::Database;
use crate::demo::view::Phase;
use crate::demo::{DemoError, Options};
use std::time::Duration;

impl Show<'_> {
    /// Begins the next act when it is due; each waits until events flow again, so that each hits a working relay.
    pub(super) fn play(
        &mut self,
        database: &mut Database,
        broker: &Broker,
    ) -> Result<(), DemoError> {
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
pub(super) fn acts(options: &Options) -> Vec<Act> {
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
pub(in crate::demo) fn promise(options: &Options) -> String {
    let acts: Vec<&str> = acts(options).iter().map(|act| act.words()).collect();
    let left = if acts.len() < 3 { "; servers of yours are left alone" } else { "" };
    format!("{}{left}", acts.join(", then "))
}
