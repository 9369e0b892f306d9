//! Finds the lines of positions in a text. Counting the lines near a position takes less time than
//! building a list of all lines, because few positions are needed.

/// The lines of a text.
#[derive(Debug)]
pub(super) struct Lines<'t> {
    text: &'t str,
    /// The number of lines that end before each block of [`BLOCK_BYTES`].
    ended_before: Vec<usize>,
}

const BLOCK_BYTES: usize = 128;

impl<'t> Lines<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let mut ended = 0;
        let mut ended_before = vec![ended];
        for block in text.as_bytes().chunks(BLOCK_BYTES) {
            ended += ends_in(block);
            ended_before.push(ended);
        }
        Self { text, ended_before }
    }

    /// Returns the number of lines that end before a position in the text, or at its end.
    pub(super) fn ended_before(&self, at: usize) -> usize {
        let block = at / BLOCK_BYTES;
        self.ended_before[block] + ends_in(&self.text.as_bytes()[block * BLOCK_BYTES..at])
    }
}

fn ends_in(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_in_all_blocks() {
        for length in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES] {
            let text: String = "a\nbc\n\n".chars().cycle().take(length).collect();
            let lines = Lines::new(&text);
            for at in 0..=length {
                assert_eq!(lines.ended_before(at), text[..at].matches('\n').count(), "{at}");
            }
        }
    }
}
