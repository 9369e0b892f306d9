//! Generates random numbers that depend only on the seed.

/// A generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// One of these.
    pub fn of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
