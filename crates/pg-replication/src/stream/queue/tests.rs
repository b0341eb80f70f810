use super::*;
use crate::error::ServerReport;
use fuzzing::{Memory, hammer, hex};

const LIMIT: usize = 1 << 20;

fn copy_data(body: &[u8]) -> Vec<u8> {
    message(b'd', body)
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

fn xlog(position: u64, data: &[u8]) -> Vec<u8> {
    let position = position.to_be_bytes();
    copy_data(&[b"w", &position[..], &position[..], &[0; 8][..], data].concat())
}

fn keepalive(position: u64, reply: u8) -> Vec<u8> {
    copy_data(&[b"k", &position.to_be_bytes()[..], &[0; 8][..], &[reply][..]].concat())
}

fn stream() -> Vec<u8> {
    [
        xlog(7, b"Begin"),
        xlog(9, b""),
        keepalive(12, 1),
        xlog(0, &[7; 300]),
        message(b'N', b"SWARNING\0VWARNING\0C55000\0\0"),
        xlog(20, b"after"),
    ]
    .concat()
}

fn shown(frames: Frames<'_>) -> Vec<String> {
    frames.map(|frame| format!("{frame:?}")).collect()
}

/// Everything that can be split off the bytes that have arrived.
fn split_all(inbox: &mut BytesMut) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        match split_frames(inbox, LIMIT).unwrap() {
            Split::Frames(batch, _) => all.extend(shown(batch.frames())),
            Split::Other(tag, body) => all.push(format!("{} {} B", char::from(tag), body.len())),
            Split::Missing(missing) => {
                assert!(missing > 0);
                return all;
            }
        }
    }
}

#[test]
fn a_stream_cut_at_each_byte_gives_the_same_frames() {
    let bytes = stream();
    let whole = split_all(&mut BytesMut::from(&bytes[..]));
    assert_eq!(
        whole,
        [
            "XLogData(0/7, 0/7, 5 B)",
            "XLogData(0/9, 0/9, 0 B)",
            "Keepalive(0/C, reply true)",
            "XLogData(0/0, 0/0, 300 B)",
            "N 26 B",
            "XLogData(0/14, 0/14, 5 B)",
        ]
    );
    for at in 0..=bytes.len() {
        let mut inbox = BytesMut::from(&bytes[..at]);
        let mut parts = split_all(&mut inbox);
        inbox.extend_from_slice(&bytes[at..]);
        parts.extend(split_all(&mut inbox));
        assert_eq!(parts, whole, "cut at {at}");
        assert!(inbox.is_empty());
    }
}

#[test]
fn missing_bytes_are_counted_to_the_end_of_the_message() {
    let frame = xlog(1, &[0; 100]);
    for at in 0..frame.len() {
        let Split::Missing(missing) =
            split_frames(&mut BytesMut::from(&frame[..at]), LIMIT).unwrap()
        else {
            panic!("something whole in {at} bytes");
        };
        assert_eq!(missing, if at < 5 { 5 - at } else { frame.len() - at }, "cut at {at}");
    }
}

#[test]
fn a_batch_has_its_highest_position_and_the_last_request_for_a_reply() {
    let bytes = [xlog(30, b"x"), keepalive(31, 1), xlog(7, b"y"), keepalive(28, 0)].concat();
    let Split::Frames(batch, seen) = split_frames(&mut BytesMut::from(&bytes[..]), LIMIT).unwrap()
    else {
        panic!("frames");
    };
    assert_eq!(batch.size_bytes(), bytes.len());
    let expected = Seen { highest: Lsn::from_wire(31), ping: Some(Lsn::from_wire(31)) };
    assert_eq!(seen, expected);
}

#[test]
fn a_message_above_the_limit_is_an_error_after_what_came_before_it() {
    let small = xlog(1, b"small");
    let header = [&b"d"[..], &(2_000_000_u32).to_be_bytes()].concat();
    let mut inbox = BytesMut::from(&[small, header].concat()[..]);
    assert!(matches!(split_frames(&mut inbox, LIMIT), Ok(Split::Frames(..))));
    assert_eq!(split_frames(&mut inbox, LIMIT).unwrap_err(), SplitError::TooLarge(2_000_001));
    let mut whole = BytesMut::from(&[xlog(1, b""), xlog(2, &[0; 64])].concat()[..]);
    assert!(matches!(split_frames(&mut whole, 40), Ok(Split::Frames(..))));
    assert_eq!(split_frames(&mut whole, 40).unwrap_err(), SplitError::TooLarge(94));
}

#[test]
fn bytes_that_violate_the_protocol_are_an_error() {
    for bytes in [
        vec![b'd', 0, 0, 0, 3],
        vec![b'd', 0xFF, 0xFF, 0xFF, 0xFF],
        copy_data(b""),
        copy_data(b"w"),
        copy_data(&[b'w'; 24]),
        copy_data(&[b'k'; 17]),
        copy_data(&[b'k'; 19]),
        copy_data(b"?"),
    ] {
        let error = split_frames(&mut BytesMut::from(&bytes[..]), LIMIT).unwrap_err();
        assert_eq!(error, SplitError::Malformed, "{bytes:?}");
    }
}

#[test]
fn debug_shows_sizes_only() {
    let Split::Frames(batch, _) =
        split_frames(&mut BytesMut::from(&xlog(1, b"secret")[..]), LIMIT).unwrap()
    else {
        panic!("frames");
    };
    let shown = format!("{batch:?} {:?}", batch.frames().next());
    assert_eq!(shown, "Batch(36 B) Some(XLogData(0/1, 0/1, 6 B))");
}

/// Any bytes, in any chunks.
#[test]
fn any_bytes_are_frames_or_an_error() {
    let memory = Memory { base: 8 << 10, each: 8 };
    hammer(&hex("frames"), memory, |input| {
        for size in [1, 7, input.len().max(1)] {
            let (mut inbox, mut taken) = (BytesMut::new(), 0);
            'input: for piece in input.chunks(size) {
                inbox.extend_from_slice(piece);
                loop {
                    match split_frames(&mut inbox, LIMIT) {
                        Ok(Split::Frames(batch, seen)) => {
                            taken += batch.size_bytes();
                            for frame in batch.frames() {
                                assert!(position(frame) <= seen.highest);
                            }
                        }
                        Ok(Split::Other(tag, body)) => {
                            taken += HEADER_BYTES + body.len();
                            if matches!(tag, b'E' | b'N') {
                                drop(format!("{:?}", ServerReport::from_fields(&body)));
                            }
                        }
                        Ok(Split::Missing(missing)) => {
                            assert!(missing > 0 && missing <= LIMIT);
                            break;
                        }
                        Err(_) => break 'input,
                    }
                    assert!(taken <= input.len(), "the same bytes twice");
                }
            }
        }
    });
}

fn position(frame: Frame<'_>) -> Lsn {
    match frame {
        Frame::XLogData { wal_start, wal_end, .. } => wal_start.max(wal_end),
        Frame::Keepalive { wal_end, .. } => wal_end,
    }
}
