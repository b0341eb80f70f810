//! The replication commands we send, as text, and their answers.
//!
//! The replication grammar has no parameters, so names are quoted here, in one place.

use super::{CreatedSlot, StartReplication, SystemIdentity};
use crate::error::{SourceError, SourceErrorKind, SqlState};
use crate::wire::Wire;
use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::message::frontend;

/// Longest name the server keeps (`NAMEDATALEN - 1`). Unit: bytes.
const NAME_BYTES_MAX: usize = 63;

/// A name that can't stand in a command.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NameError {
    /// Slots have their own rule (`ReplicationSlotValidateName`, `src/backend/replication/slot.c`).
    #[error("a slot's name has 1 to 63 of the characters a to z, 0 to 9 and _")]
    Slot,
    /// Any identifier.
    #[error("a publication's name has 1 to 63 bytes and no zero byte")]
    Publication,
    /// pgoutput refuses it too.
    #[error("there is no publication to stream")]
    NoPublication,
}

/// `START_REPLICATION SLOT "s" LOGICAL 0/0 (proto_version '1', publication_names '"p"', messages 'false')`
pub(super) fn start_replication(start: &StartReplication) -> Result<String, NameError> {
    let slot = &start.slot;
    if !slot_fits(slot) {
        return Err(NameError::Slot);
    }
    if start.publications.is_empty() {
        return Err(NameError::NoPublication);
    }
    let mut names = Vec::new();
    for name in &start.publications {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(NameError::Publication);
        }
        // An identifier in a list in a literal: quoted twice.
        names.push(format!("\"{}\"", name.replace('"', "\"\"")));
    }
    let names = names.join(",").replace('\'', "''");
    Ok(format!(
        "START_REPLICATION SLOT \"{slot}\" LOGICAL {} (proto_version '1', publication_names \
         '{names}', messages '{}')",
        start.lsn, start.messages
    ))
}

fn slot_fits(slot: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    !slot.is_empty() && slot.len() <= NAME_BYTES_MAX && slot.bytes().all(fits)
}

/// Sends `START_REPLICATION` and waits for `CopyBothResponse`.
pub(super) async fn copy_both(wire: &mut Wire, doing: &str, sql: &str) -> Result<(), SourceError> {
    query(wire, doing, sql).await?;
    let frame = wire.receive(doing).await?;
    if frame.tag == b'W' { Ok(()) } else { Err(broken(doing)) }
}

/// Sends `IDENTIFY_SYSTEM` and reads its one row.
pub(super) async fn identify_system(
    wire: &mut Wire,
    doing: &str,
) -> Result<SystemIdentity, SourceError> {
    let row = one_row(wire, doing, "IDENTIFY_SYSTEM").await?;
    identity(row.as_deref()).ok_or_else(|| broken(doing))
}

/// `CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)`: in this form since 15, with
/// `FAILOVER` since 17 (manual, 54.4).
pub(super) fn create_slot(slot: &str, failover: bool) -> Result<String, NameError> {
    if !slot_fits(slot) {
        return Err(NameError::Slot);
    }
    let failover = if failover { ", FAILOVER true" } else { "" };
    Ok(format!("CREATE_REPLICATION_SLOT \"{slot}\" LOGICAL pgoutput (SNAPSHOT 'export'{failover})"))
}

/// Sends it and reads its one row.
pub(super) async fn created_slot(
    wire: &mut Wire,
    doing: &str,
    sql: &str,
) -> Result<CreatedSlot, SourceError> {
    let row = one_row(wire, doing, sql).await?;
    let created = match row.as_deref() {
        Some([_, Some(at), Some(snapshot), ..]) => at
            .parse()
            .ok()
            .map(|consistent_point| CreatedSlot { consistent_point, snapshot: snapshot.clone() }),
        _ => None,
    };
    created.ok_or_else(|| broken(doing))
}

/// Decoding a transaction is a transaction of its own: one that takes long must not end the stream.
pub(super) async fn set_transaction_timeout(
    wire: &mut Wire,
    doing: &str,
) -> Result<(), SourceError> {
    one_row(wire, doing, "SET transaction_timeout = 0").await.map(drop)
}

/// Sends a command and reads the one row of its answer.
pub(super) async fn one_row(
    wire: &mut Wire,
    doing: &str,
    sql: &str,
) -> Result<Option<Vec<Option<String>>>, SourceError> {
    query(wire, doing, sql).await?;
    let mut row = None;
    loop {
        let frame = wire.receive(doing).await?;
        match frame.tag {
            b'D' => row = Some(columns(frame.body).ok_or_else(|| broken(doing))?),
            b'T' | b'C' | b'S' => {}
            b'Z' => return Ok(row),
            _ => return Err(broken(doing)),
        }
    }
}

/// Sends `TIMELINE_HISTORY` and gives back the file's text; `None` where the server does not have it any more, which a
/// copy of its files may lack.
pub(super) async fn timeline_history(
    wire: &mut Wire,
    doing: &str,
    timeline: u32,
) -> Result<Option<String>, SourceError> {
    query(wire, doing, &format!("TIMELINE_HISTORY {timeline}")).await?;
    let mut text = None;
    loop {
        let frame = match wire.receive(doing).await {
            Ok(frame) => frame,
            // The connection stays as it is: the end of the command follows.
            Err(error) if error.sqlstate() == Some(SqlState::UNDEFINED_FILE) => continue,
            Err(error) => return Err(error),
        };
        match frame.tag {
            b'D' => {
                let row = columns(frame.body).ok_or_else(|| broken(doing))?;
                text = row.into_iter().nth(1).flatten();
            }
            b'T' | b'C' | b'S' => {}
            b'Z' => return Ok(text),
            _ => return Err(broken(doing)),
        }
    }
}

fn identity(row: Option<&[Option<String>]>) -> Option<SystemIdentity> {
    let [Some(system_id), Some(timeline), Some(flush_lsn), Some(database), ..] = row? else {
        return None;
    };
    Some(SystemIdentity {
        system_id: system_id.clone(),
        timeline: timeline.parse().ok()?,
        flush_lsn: flush_lsn.parse().ok()?,
        database: database.clone(),
        switches: Vec::new(),
    })
}

/// The columns of a `DataRow` in text form.
fn columns(mut body: Bytes) -> Option<Vec<Option<String>>> {
    let count = body.try_get_u16().ok()?;
    let mut columns = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let length = body.try_get_i32().ok()?;
        let column = match usize::try_from(length) {
            Err(_) => None,
            Ok(length) if length <= body.len() => {
                Some(String::from_utf8(body.split_to(length).to_vec()).ok()?)
            }
            Ok(_) => return None,
        };
        columns.push(column);
    }
    Some(columns)
}

async fn query(wire: &mut Wire, doing: &str, sql: &str) -> Result<(), SourceError> {
    let mut out = BytesMut::new();
    frontend::query(sql, &mut out)
        .map_err(|error| SourceError::new(SourceErrorKind::Settings, doing).caused_by(error))?;
    wire.send(doing, &out).await
}

fn broken(doing: &str) -> SourceError {
    SourceError::new(SourceErrorKind::Protocol, doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_the_grammar_they_stand_in() {
        let mut start = StartReplication::new("9_slot", "Pub'\"s");
        start.publications.push("b,c".to_owned());
        start.lsn = "1/AB".parse().unwrap();
        start.messages = true;
        assert_eq!(
            start_replication(&start).unwrap(),
            "START_REPLICATION SLOT \"9_slot\" LOGICAL 1/AB (proto_version '1', \
             publication_names '\"Pub''\"\"s\",\"b,c\"', messages 'true')"
        );
    }

    #[test]
    fn a_slot_is_made_with_a_snapshot() {
        assert_eq!(
            create_slot("s", true).unwrap(),
            "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)"
        );
        assert_eq!(create_slot("S\"", false), Err(NameError::Slot));
    }

    #[test]
    fn names_that_cannot_exist_are_refused() {
        let long = "x".repeat(64);
        for slot in ["", "Upper", "a b", "a\"b", "ä", "a-b", long.as_str()] {
            let start = StartReplication::new(slot, "p");
            assert_eq!(start_replication(&start), Err(NameError::Slot), "{slot:?}");
        }
        for publication in ["", "a\0b", long.as_str()] {
            let start = StartReplication::new("s", publication);
            assert_eq!(start_replication(&start), Err(NameError::Publication));
        }
        let mut start = StartReplication::new("s", "p");
        start.publications.clear();
        assert_eq!(start_replication(&start), Err(NameError::NoPublication));
    }

    #[test]
    fn a_row_cut_anywhere_is_no_row() {
        let row = b"\0\x02\0\0\0\x01a\xff\xff\xff\xff";
        let whole = columns(Bytes::from_static(row));
        assert_eq!(whole, Some(vec![Some("a".to_owned()), None]));
        for cut in 0..row.len() {
            assert_eq!(columns(Bytes::copy_from_slice(&row[..cut])), None, "cut at {cut}");
        }
    }
}
