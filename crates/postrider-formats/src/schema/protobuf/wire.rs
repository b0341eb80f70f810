//! Fields of Protobuf's binary form.

/// The type of a field in the binary form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Delimited = 2,
    Fixed32 = 5,
}

/// Adds a number with seven bits a byte, the least significant first.
pub(super) fn push_varint(mut rest: u64, out: &mut Vec<u8>) {
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push((rest & 0x7f) as u8);
}

/// Adds the beginning of a field.
pub(super) fn push_tag(number: u32, wire: Wire, out: &mut Vec<u8>) {
    push_varint(u64::from(number) << 3 | wire as u64, out);
}

/// Adds bytes with their length.
pub(super) fn push_delimited(bytes: &[u8], out: &mut Vec<u8>) {
    push_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// A signed number whose small values are short.
pub(super) fn zigzag(number: i64) -> u64 {
    (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned()
}
