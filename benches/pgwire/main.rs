//! Reads a slot with `pgwire-replication` up to a position and discards the data:
//! `pgwire-reader HOST PORT DATABASE SLOT PUBLICATION END`.

use pgwire_replication::client::ReplicationEvent;
use pgwire_replication::{Lsn, ReplicationClient, ReplicationConfig, TlsConfig};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [host, port, database, slot, publication, end] = words.as_slice() else {
        return Err("HOST PORT DATABASE SLOT PUBLICATION END".into());
    };
    let end = Lsn::parse(end)?;
    let config = ReplicationConfig::new(host, "postgres", "", database, slot, publication.as_str())
        .with_port(port.parse()?)
        .with_tls(TlsConfig::disabled())
        .with_stop_lsn(end);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = ReplicationClient::connect(config).await?;
        while let Some(event) = client.recv().await? {
            match event {
                // If the end is behind the last commit, a keepalive reports a position past it.
                ReplicationEvent::KeepAlive { wal_end, .. } if wal_end >= end => break,
                ReplicationEvent::Commit { end_lsn, .. } => client.update_applied_lsn(end_lsn),
                _ => {}
            }
        }
        Ok(())
    })
}
