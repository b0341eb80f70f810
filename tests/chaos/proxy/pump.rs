//! One direction of one connection.

use super::tap::Connection;
use super::{Controls, Mode};
use std::io::{Error, ErrorKind};
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes of a piece.
const PIECE: usize = 64 << 10;
/// Bytes of a slice.
const SLICE: usize = 23;

/// Where the bytes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// From the client.
    Up,
    /// From the server.
    Down,
}

impl Mode {
    const fn shuts(self, direction: Direction) -> bool {
        match (self, direction) {
            (Self::Hole, _) | (Self::HoleUp, Direction::Up) | (Self::HoleDown, Direction::Down) => {
                true
            }
            (
                Self::HoleUp
                | Self::HoleDown
                | Self::Pass
                | Self::Delay(_)
                | Self::Slow(_)
                | Self::Slice,
                _,
            ) => false,
        }
    }
}

/// A pause that a fault requires: there is no state to wait for.
pub(crate) async fn hold(time: Duration) {
    drop(tokio::time::timeout(time, std::future::pending::<()>()).await);
}

/// Passes bytes until the end, which is passed too; an error ends the connection.
pub(super) async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    direction: Direction,
    controls: &Controls,
    seen: Option<Arc<Mutex<Connection>>>,
) -> Result<(), Error> {
    let mut mode = controls.mode.subscribe();
    let mut piece = vec![0; PIECE];
    loop {
        let now = *mode.borrow_and_update();
        if now.shuts(direction) {
            mode.changed().await.map_err(Error::other)?;
            continue;
        }
        tokio::select! {
            biased;
            changed = mode.changed() => {
                changed.map_err(Error::other)?;
                continue;
            }
            readable = from.readable() => readable?,
        }
        let read = match from.try_read(&mut piece) {
            Ok(0) => return socket2::SockRef::from(to).shutdown(Shutdown::Write),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let piece = &piece[..read];
        if let Some(seen) = &seen {
            seen.lock().expect("what was seen").pass(direction, piece);
        }
        if controls.halve.swap(false, Ordering::Relaxed) {
            write(to, &piece[..read / 2]).await?;
            return Err(ErrorKind::ConnectionReset.into());
        }
        pass(to, piece, now).await?;
    }
}

async fn pass(to: &TcpStream, piece: &[u8], mode: Mode) -> Result<(), Error> {
    match mode {
        Mode::Delay(time) => hold(time).await,
        Mode::Slow(bytes_a_second) => {
            let bytes = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            hold(Duration::from_secs(1) * bytes / bytes_a_second).await;
        }
        Mode::Slice => {
            for slice in piece.chunks(SLICE) {
                write(to, slice).await?;
                tokio::task::yield_now().await;
            }
            return Ok(());
        }
        Mode::Pass | Mode::HoleUp | Mode::HoleDown | Mode::Hole => {}
    }
    write(to, piece).await
}

async fn write(to: &TcpStream, mut piece: &[u8]) -> Result<(), Error> {
    while !piece.is_empty() {
        to.writable().await?;
        match to.try_write(piece) {
            Ok(written) => piece = &piece[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
