//! Hash slots of a cluster: to which slot a key belongs, and which node has a slot.

use super::resp::Reply;
use super::spec::Address;

/// Slots of every cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: of what is between the first `{` and the next `}`, if that is not empty, else of the whole key.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let place = |bytes: &[u8], brace: u8| bytes.iter().position(|byte| *byte == brace);
    let tag = place(key, b'{').and_then(|open| key.get(open + 1..)).and_then(|rest| {
        let close = place(rest, b'}').filter(|close| *close > 0)?;
        rest.get(..close)
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// A key of this slot that begins with `prefix`: the smallest number that hashes to the slot is its tag.
pub(super) fn key_of_slot(prefix: &str, slot: u16) -> String {
    let number = (0..u32::MAX).find(|number| crc16(number.to_string().as_bytes()) % SLOTS == slot);
    format!("{prefix}:{{{}}}", number.unwrap_or_default())
}

/// Which node has a slot.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct SlotMap {
    /// First and last slot, and the place of the node in `nodes`.
    ranges: Vec<(u16, u16, usize)>,
    /// The primaries.
    pub(super) nodes: Vec<Address>,
}

impl SlotMap {
    /// Without a cluster: one node has all slots.
    pub(super) fn single(node: Address) -> Self {
        Self { ranges: vec![(0, SLOTS - 1, 0)], nodes: vec![node] }
    }

    /// Reads the answer to `CLUSTER SLOTS` of the node at `asked`; `None` if it is none.
    pub(super) fn read(reply: &Reply, asked: &Address) -> Option<Self> {
        let mut map = Self::default();
        for range in reply.elements() {
            let [first, last, primary, ..] = range.elements() else { return None };
            let number = |reply: &Reply| u16::try_from(reply.integer()?).ok();
            let [host, port, ..] = primary.elements() else { return None };
            // A node that does not know its own name is the one that was asked.
            let host = host.text().filter(|host| !host.is_empty() && host != "?");
            let host = host.unwrap_or_else(|| asked.host.clone());
            let node = Address { host, port: number(port)? };
            let known = map.nodes.iter().position(|known| *known == node);
            let place = known.unwrap_or_else(|| {
                map.nodes.push(node);
                map.nodes.len() - 1
            });
            map.ranges.push((number(first)?, number(last)?, place));
        }
        (!map.nodes.is_empty()).then_some(map)
    }

    /// The place of the node that has the slot.
    pub(super) fn node(&self, slot: u16) -> Option<usize> {
        let has = |range: &&(u16, u16, usize)| (range.0..=range.1).contains(&slot);
        self.ranges.iter().find(has).map(|range| range.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"a}b{c"), crc16(b"a}b{c") % SLOTS);
    }

    #[test]
    fn the_progress_of_a_slot_has_a_key_in_it() {
        for slot in [0, 1, 12_182, SLOTS - 1] {
            let key = key_of_slot("postrider:app:orders", slot);
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn the_map_names_the_primary_of_each_slot() {
        let node = |host: &str, port| {
            Reply::Array(vec![Reply::Bulk(host.into()), Reply::Integer(port), Reply::Nil])
        };
        let range = |first, last, primary| {
            let replica = node("replica", 1);
            Reply::Array(vec![Reply::Integer(first), Reply::Integer(last), primary, replica])
        };
        let asked = Address { host: "seed".to_owned(), port: 7000 };
        let reply = Reply::Array(vec![
            range(0, 99, node("a", 7001)),
            range(100, 199, node("", 7002)),
            range(300, 16_383, node("a", 7001)),
        ]);
        let map = SlotMap::read(&reply, &asked).unwrap();
        let place = |slot| map.node(slot).map(|node| map.nodes[node].to_string());
        assert_eq!(place(99).as_deref(), Some("a:7001"));
        assert_eq!(place(150).as_deref(), Some("seed:7002"));
        assert_eq!((place(200), place(16_383).as_deref()), (None, Some("a:7001")));
        assert_eq!(SlotMap::read(&Reply::Array(Vec::new()), &asked), None);
        assert_eq!(SlotMap::read(&Reply::Nil, &asked), None);
    }
}
