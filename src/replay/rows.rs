//! The table as a source: its rows in the order of the layout's key.
//!
//! A row has no position that could be known, so records carry none; the id is the same as the first time.

use super::ReplayError;
use super::outlet::{Offered, Outlet};
use crate::event::{PgTime, Position};
use crate::lsn::Lsn;
use crate::outbox::{At, Mapper};
use crate::pgoutput::{self, Message};
use crate::postgres::SourceError;
use crate::postgres::replay::{Rows, TableRow};
use std::collections::VecDeque;
use std::time::{Instant, SystemTime};

/// Rows fed before everything else has its turn.
const ROWS_MAX: usize = 1024;

/// The rows, and the place in them.
pub(super) struct Table {
    rows: Rows,
    at_hand: VecDeque<TableRow>,
    /// Rows that were offered, by ticket, and not yet done.
    offered: VecDeque<(u64, String)>,
    /// The last row that is done.
    pub(super) done: Option<String>,
    /// There are no more.
    pub(super) over: bool,
    next_ticket: u64,
}

impl Table {
    /// Takes rows behind `done`.
    pub(super) fn new(
        rows: Rows,
        done: Option<String>,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
    ) -> Result<Self, ReplayError> {
        mapper.forget_relations(Some(rows.table_oid()));
        if let Message::Relation(relation) =
            pgoutput::decode(rows.relation()).map_err(ReplayError::Protocol)?
        {
            mapper.relation(&relation).map_err(ReplayError::Unfit)?;
        }
        outlet.tracker.begin(Lsn::ZERO, 0).map_err(ReplayError::Broken)?;
        let next_ticket = outlet.tracker.low().0;
        let (at_hand, offered) = (VecDeque::new(), VecDeque::new());
        Ok(Self { rows, at_hand, offered, done, over: false, next_ticket })
    }

    /// Whether rows are at hand.
    pub(super) fn has_rows(&self) -> bool {
        !self.at_hand.is_empty()
    }

    /// Fetches rows. Not cancel-safe: a fetch that is dropped loses its rows.
    pub(super) async fn read(&mut self) -> Result<(), SourceError> {
        self.at_hand = self.rows.next().await?.into();
        self.over = self.at_hand.is_empty();
        Ok(())
    }

    /// Whether the place where it was to go on is gone.
    pub(super) fn lost_its_place(&self) -> bool {
        self.rows.lost_its_place()
    }

    /// Feeds what is at hand, as `Log::feed`.
    pub(super) fn feed(
        &mut self,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
    ) -> Result<Offered, ReplayError> {
        for _ in 0..ROWS_MAX {
            let Some(row) = self.at_hand.front() else { break };
            let message = pgoutput::decode(&row.message).map_err(ReplayError::Protocol)?;
            let Message::Insert(insert) = message else { break };
            let at = At { position: Position::default(), commit_time: now() };
            let event = mapper.insert(&insert, at);
            match outlet.offer(event, at, false, Instant::now())? {
                Offered::Done => {}
                waits @ Offered::Wait(_) => return Ok(waits),
            }
            if let Some(row) = self.at_hand.pop_front() {
                self.offered.push_back((self.next_ticket, row.id));
                self.next_ticket += 1;
            }
        }
        Ok(Offered::Done)
    }

    /// Looks how far the rows are done.
    pub(super) fn settle(&mut self, outlet: &Outlet) {
        let low = outlet.tracker.low().0;
        while self.offered.front().is_some_and(|(ticket, _)| *ticket < low) {
            self.done = self.offered.pop_front().map(|(_, id)| id);
        }
    }
}

fn now() -> PgTime {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(unix.as_micros()).unwrap_or(i64::MAX);
    PgTime { micros: micros.saturating_sub(PgTime::UNIX_OFFSET_MICROS) }
}
