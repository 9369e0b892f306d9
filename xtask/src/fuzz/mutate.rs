//! Randomness from a seed, and what is done with it to an input.

/// SplitMix64: small, and the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `limit`; 0 where that is 0.
    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        usize::try_from(self.next().checked_rem(limit).unwrap_or(0)).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }

    fn pick<'a, T: ?Sized>(&mut self, items: &'a [&'a T]) -> Option<&'a T> {
        items.get(self.below(items.len())).copied()
    }

    /// A range of `0..length`, more often short than long.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let longest = match self.below(4) {
            0 => length - start,
            _ => (length - start).min(16),
        };
        start..start + self.below(longest + 1)
    }
}

/// Numbers that sit on the edges of length fields.
const EDGES: [&[u8]; 9] = [
    &[0],
    &[1],
    &[0x7f],
    &[0x80],
    &[0xff],
    &[0, 0],
    &[0xff, 0xff],
    &[0, 0, 0, 0],
    &[0xff, 0xff, 0xff, 0xff],
];

/// An input of the corpus with one to eight changes.
pub(crate) fn mutate(
    random: &mut Random,
    corpus: &[Vec<u8>],
    words: &[&[u8]],
    bytes_max: usize,
) -> Vec<u8> {
    let pick = |random: &mut Random| corpus.get(random.below(corpus.len()));
    let mut input = pick(random).cloned().unwrap_or_default();
    for _ in 0..=random.below(8) {
        let range = random.range(input.len());
        match random.below(8) {
            0 => {
                if let Some(byte) = input.get_mut(range.start) {
                    *byte ^= 1 << random.below(8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(range.start) {
                    *byte = random.byte();
                }
            }
            2 => drop(input.drain(range)),
            3 => {
                let copy = input.get(range.clone()).unwrap_or_default().to_vec();
                insert(&mut input, range.end, &copy);
            }
            4 => overwrite(&mut input, range.start, random.pick(&EDGES).unwrap_or_default()),
            5 => insert(&mut input, range.start, random.pick(words).unwrap_or(&[0])),
            6 => {
                let other = pick(random).map(Vec::as_slice).unwrap_or_default();
                let piece = random.range(other.len());
                insert(&mut input, range.start, other.get(piece).unwrap_or_default());
            }
            _ => {
                let byte = random.byte();
                insert(&mut input, range.start, &[byte]);
            }
        }
    }
    input.truncate(bytes_max);
    input
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    input.splice(at..at, piece.iter().copied());
}

fn overwrite(input: &mut [u8], at: usize, piece: &[u8]) {
    for (byte, new) in input.iter_mut().skip(at).zip(piece) {
        *byte = *new;
    }
}
