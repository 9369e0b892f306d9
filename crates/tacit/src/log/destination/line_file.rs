//! Writes lines to a file. If a line can be written only in part, for example because the disk is
//! full, the next line begins on a new line. So all other lines stay complete.

use std::fs::File;
use std::io::{self, Write};

/// A file of lines.
#[derive(Debug)]
pub(in crate::log) struct LineFile {
    file: File,
    /// Whether the last line in the file is incomplete.
    is_torn: bool,
}

impl LineFile {
    /// For a file that is empty, or ends with a line feed.
    pub(in crate::log) fn new(file: File) -> Self {
        Self { file, is_torn: false }
    }

    /// Writes one line, which ends with a line feed.
    ///
    /// # Errors
    /// The line is not written, or only in part.
    pub(in crate::log) fn write(&mut self, line: &str) -> io::Result<()> {
        if self.is_torn {
            self.file.write_all(b"\n")?;
            self.is_torn = false;
        }
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn a_line_after_an_incomplete_one_is_complete() {
        let (reader, writer) = io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut file = LineFile::new(File::from(writer));
        file.write("first\n").unwrap();
        // It is longer than the pipe.
        let long = format!("{}\n", "x".repeat(1 << 20));
        assert_eq!(file.write(&long).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(file.write("lost\n").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut reader = File::from(OwnedFd::from(reader));
        let mut read = vec![0; 1 << 21];
        let count = reader.read(&mut read).unwrap();
        file.write("next\n").unwrap();
        let more = reader.read(&mut read[count..]).unwrap();
        let text = String::from_utf8(read[..count + more].to_vec()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines[0], lines.len(), lines[2]), ("first", 3, "next"));
        assert!(lines[1].len() < long.len() && text.ends_with("next\n"));
    }
}
