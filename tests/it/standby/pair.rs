//! A primary and a physical standby of it, as an operator would have them: the standby streams through a physical slot,
//! sends feedback, carries failover slots over, and confirms each commit before it is answered.
//!
//! The servers of the tests come without `pg_basebackup`: the standby begins as a copy of the stopped primary's files.

use crate::await_that::{SOON, await_or_dump};
use crate::private::PrivatePostgres;
use crate::server::{Client, Version, describe};

/// The standby's physical slot, and its `application_name`.
pub(crate) const STANDBY: &str = "standby_a";

/// The two servers, and one connection string for whichever takes writes.
pub(crate) struct Pair {
    pub(crate) primary: PrivatePostgres,
    pub(crate) standby: PrivatePostgres,
}

impl Pair {
    /// Starts both. `synchronous` makes each commit wait for the standby, so that what a writer was told is on both.
    pub(crate) async fn start(version: Version, synchronous: bool) -> Self {
        let primary = PrivatePostgres::start(version, "max_wal_senders = 10").await;
        Self::of(primary, synchronous).await
    }

    /// A server that runs, and a new standby of it.
    pub(crate) async fn of(mut primary: PrivatePostgres, synchronous: bool) -> Self {
        let slot = format!("select pg_create_physical_replication_slot('{STANDBY}', true)");
        primary.connect().await.text(&slot).await;
        primary.stop_fast(SOON).await;
        let mut standby = primary.cold_copy(&format!(
            "primary_conninfo = 'host=127.0.0.1 port={} user=postgres dbname=postgres application_name={STANDBY}'\n\
             primary_slot_name = '{STANDBY}'\nhot_standby_feedback = on\nsync_replication_slots = on\n\
             wal_receiver_status_interval = 1s",
            primary.port
        ));
        standby.place("standby.signal");
        // As a backup that was taken from a running server: what has slots here is carried over.
        for slot in std::fs::read_dir(standby.data().join("pg_replslot")).expect("slots") {
            std::fs::remove_dir_all(slot.expect("a slot").path()).expect("a slot's files");
        }
        let waits = if synchronous { STANDBY } else { "" };
        primary.configure(&format!(
            "synchronized_standby_slots = '{STANDBY}'\nsynchronous_standby_names = '{waits}'"
        ));
        primary.restart().await;
        standby.restart().await;
        let pair = Self { primary, standby };
        pair.await_streaming().await;
        pair
    }

    /// A connection string that finds the primary of the two.
    pub(crate) fn url(&self) -> String {
        format!(
            "postgresql://postgres@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
            self.primary.port, self.standby.port
        )
    }

    async fn await_streaming(&self) {
        let sql = "select sync_state from pg_stat_replication where state = 'streaming'";
        let look =
            || async { self.primary.connect().await.text(sql).await.ok_or("nobody streams") };
        await_or_dump("the standby to stream", SOON, look, || self.standby.log()).await;
    }

    /// Waits until the standby has the slot so that it would outlive a promotion.
    pub(crate) async fn await_synced(&self, slot: &str) {
        let sql = format!(
            "select format('synced %s, temporary %s, at %s, %s', synced, temporary, confirmed_flush_lsn, \
               coalesce(invalidation_reason, 'valid')) from pg_replication_slots where slot_name = '{slot}'"
        );
        // A slot follows from one record of running transactions to the next, which the server writes every 15 s; and
        // the standby looks less often, up to every 30 s, while the slot stands still.
        let look = || async {
            self.primary.connect().await.text("select pg_log_standby_snapshot()::text").await;
            let found = self.standby.connect().await.text(&sql).await;
            let found = found.unwrap_or_else(|| "no slot".to_owned());
            let ready = found.starts_with("synced t, temporary f") && found.ends_with("valid");
            if ready { Ok(()) } else { Err(found) }
        };
        await_or_dump("the slot on the standby", SOON, look, || self.standby.log()).await;
    }

    /// The primary is killed with -9, all its processes at once, and the standby promoted.
    pub(crate) async fn fail_over(&mut self) {
        self.primary.kill().await;
        self.promote().await;
    }

    /// Promotes the standby; it takes writes when this returns.
    pub(crate) async fn promote(&self) -> Client {
        let client = self.standby.connect().await;
        // A statement that waits on a standby may be cancelled by what is replayed (40001), so ours only asks.
        client.text("select pg_promote(false)::text").await;
        let look = || async {
            match client.query_one("select pg_is_in_recovery()", &[]).await {
                Ok(row) if row.get::<_, bool>(0) => Err("still in recovery".to_owned()),
                Ok(_) => Ok(()),
                Err(error) => Err(describe(&error)),
            }
        };
        await_or_dump("the standby to be promoted", SOON, look, || self.standby.log()).await;
        client
    }
}
