//! Gets random bytes from the kernel.

use std::io;

use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills a buffer with random bytes.
///
/// # Errors
/// The kernel returns no random bytes.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        // More than 256 bytes may be returned in part (getrandom(2)).
        let filled = retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::empty()))?;
        rest = rest.get_mut(filled..).ok_or(Errno::IO)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_long_buffer_is_filled() {
        let mut bytes = [0; 4096];
        fill(&mut bytes).unwrap();
        assert!(bytes.chunks(64).all(|part| part.iter().any(|byte| *byte != 0)));
    }
}
