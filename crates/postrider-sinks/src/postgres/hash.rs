//! The hash partition of a key. It is alone, because consumers in other languages compute the same.

use md5::{Digest, Md5};

/// The hash partition of a key, as `postrider.hash_partition` in SQL: the first 32 bits of MD5 without the highest one,
/// modulo the number of partitions.
pub(super) fn hash_partition(key: &str, partitions: u32) -> u16 {
    let digest = Md5::digest(key.as_bytes());
    let first = digest.iter().take(4).fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte));
    u16::try_from((first & 0x7FFF_FFFF) % partitions.max(1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SELECT k, postrider.hash_partition(k, n)` of PostgreSQL 17; `event_log::hash_partition_is_that_of_sql` asks the
    /// running servers.
    #[test]
    fn partitions_are_those_of_sql() {
        for (key, partitions, part) in PARTS {
            assert_eq!(hash_partition(key, *partitions), *part, "{key:?} of {partitions}");
        }
    }

    const PARTS: &[(&str, u32, u16)] = &[
        ("", 4, 1),
        ("42", 1, 0),
        ("42", 4, 0),
        ("order-1", 4, 1),
        ("", 16, 9),
        ("42", 16, 8),
        ("ü€", 16, 14),
        ("a b", 16, 13),
        ("7f0c", 16, 6),
        ("42", 1024, 744),
        ("ü€", 1024, 206),
        ("a b", 1024, 333),
    ];
}
