//! Uses Landlock to limit the files that the calling thread can open.

use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, path_beneath_rules,
};

/// The newest version of Landlock that this module knows. An older kernel checks the rights that it
/// supports.
const NEWEST: ABI = ABI::V5;

/// The files that a thread may use. A directory stands for everything below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Files and directories to read.
    pub read: Vec<PathBuf>,
    /// Files and directories to read, write, create and remove.
    pub write: Vec<PathBuf>,
    /// Programs to execute.
    pub run: Vec<PathBuf>,
}

/// How much of the confinement the kernel supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesConfined {
    /// All rights that this module knows.
    Wholly,
    /// Only some rights: the kernel is older.
    InPart,
    /// None: the kernel has no Landlock.
    No,
}

impl Reach {
    /// Builds the rules that allow a thread only these files. Paths that do not exist now are
    /// omitted.
    ///
    /// # Errors
    /// The error of the kernel. A kernel without Landlock is not an error.
    pub fn rules(&self) -> io::Result<Rules> {
        let read = AccessFs::from_read(NEWEST) & !BitFlags::from_flag(AccessFs::Execute);
        let run = AccessFs::Execute | AccessFs::ReadFile;
        let write = AccessFs::from_all(NEWEST) & !BitFlags::from_flag(AccessFs::Execute);
        let rules = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))
            .and_then(Ruleset::create)
            .and_then(|rules| rules.add_rules(path_beneath_rules(&self.read, read)))
            .and_then(|rules| rules.add_rules(path_beneath_rules(&self.write, write)))
            .and_then(|rules| rules.add_rules(path_beneath_rules(&self.run, run)));
        rules.map(Rules).map_err(io::Error::other)
    }
}

/// Landlock rules that can be applied to several threads.
#[derive(Debug)]
pub struct Rules(RulesetCreated);

impl Rules {
    /// Duplicates the rules for another thread.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn copy(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Confines the calling thread, and the threads that it starts later.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn confine_thread(self) -> io::Result<FilesConfined> {
        let confined = self.0.restrict_self().map_err(io::Error::other)?;
        Ok(match confined.ruleset {
            RulesetStatus::FullyEnforced => FilesConfined::Wholly,
            RulesetStatus::PartiallyEnforced => FilesConfined::InPart,
            RulesetStatus::NotEnforced => FilesConfined::No,
        })
    }
}

/// Whether this kernel supports Landlock.
#[must_use]
pub fn has_file_confinement() -> bool {
    let created = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Execute)
        .and_then(Ruleset::create);
    created.is_ok()
}
