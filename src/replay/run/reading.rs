//! What a session reads: the log or the table, asked the same questions.
//!
//! Knows neither progress nor time; what is fed goes to the outlet, and the loop decides when.

use crate::outbox::Mapper;
use crate::postgres::SourceError;
use crate::replay::ReplayError;
use crate::replay::log::Log;
use crate::replay::outlet::{Offered, Outlet};
use crate::replay::rows::Table;

pub(super) enum Reading {
    Log(Box<Log>),
    Table(Box<Table>),
    /// The log, after its connection.
    Nothing,
}

impl Reading {
    pub(super) fn over(&self) -> bool {
        match self {
            Self::Log(log) => log.over,
            Self::Table(table) => table.over,
            Self::Nothing => false,
        }
    }

    /// Lets go of the connection to a log.
    pub(super) fn hang_up(&mut self) {
        if matches!(self, Self::Log(_)) {
            *self = Self::Nothing;
        }
    }

    pub(super) fn wants_frames(&self) -> bool {
        matches!(self, Self::Log(log) if !log.has_frames() && !log.over)
    }

    /// Waits for frames of the log. Cancel-safe.
    pub(super) async fn read(&mut self) -> Result<(), SourceError> {
        match self {
            Self::Log(log) => log.read().await,
            Self::Table(_) | Self::Nothing => std::future::pending().await,
        }
    }

    /// Fetches rows of the table, where none are at hand.
    pub(super) async fn fetch(&mut self) -> Result<(), SourceError> {
        match self {
            Self::Table(table) if !table.has_rows() && !table.over => table.read().await,
            Self::Log(_) | Self::Table(_) | Self::Nothing => Ok(()),
        }
    }

    pub(super) fn feed(
        &mut self,
        mapper: &mut Mapper,
        outlet: &mut Outlet,
    ) -> Result<Offered, ReplayError> {
        match self {
            Self::Log(log) => log.feed(mapper, outlet),
            Self::Table(table) => table.feed(mapper, outlet),
            Self::Nothing => Ok(Offered::Done),
        }
    }

    pub(super) fn settle(&mut self, outlet: &Outlet) {
        if let Self::Table(table) = self {
            table.settle(outlet);
        }
    }

    pub(super) fn row_done(&self) -> Option<String> {
        match self {
            Self::Log(_) | Self::Nothing => None,
            Self::Table(table) => table.done.clone(),
        }
    }
}
