//! Creates a test directory whose files every user can read. Tests need such a directory when they
//! run programs as another user.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Lab, TACIT, new_directory};

/// A copy of the lab's files, with the program under test and a directory `scratch` that everybody
/// may write to: the sources may be in a directory that only one user may enter.
pub struct Public {
    pub directory: PathBuf,
}

/// Puts a copy of tacit there. Another process copies it: a descriptor of this one that writes to
/// the file would pass to programs that other tests start meanwhile, and the kernel runs no file
/// that some process may write to.
pub fn copy_program(to: &Path) {
    let copied = Command::new("cp").arg(TACIT).arg(to).status().unwrap();
    assert!(copied.success());
}

impl Public {
    pub fn of(lab: &Lab) -> Self {
        let directory = new_directory(&std::env::temp_dir());
        set_mode(&directory, 0o755);
        for file in std::fs::read_dir(&lab.directory).unwrap() {
            let file = file.unwrap();
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), directory.join(file.file_name())).unwrap();
            }
        }
        copy_program(&directory.join("tacit"));
        let scratch = directory.join("scratch");
        std::fs::create_dir(&scratch).unwrap();
        set_mode(&scratch, 0o777);
        Self { directory }
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

impl Drop for Public {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
