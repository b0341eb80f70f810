//! How lanes are looked up: a lane is a hash already, so one multiplication by a number of this process is enough.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Odd, with its bits well spread: the fraction of the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes lanes with a random seed of the process, so that nobody can choose aggregates whose hashes collide.
#[derive(Clone, Debug)]
pub(in crate::relay) struct ByLane(u64);

impl Default for ByLane {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for ByLane {
    type Hasher = LaneHasher;

    #[inline]
    fn build_hasher(&self) -> LaneHasher {
        LaneHasher(self.0)
    }
}

/// See [`ByLane`].
pub(in crate::relay) struct LaneHasher(u64);

impl Hasher for LaneHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = (self.0 ^ number).wrapping_mul(SPREAD);
        // The table takes the lowest bits, which know nothing of the highest.
        self.0 = product ^ (product >> 32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
