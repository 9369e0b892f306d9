//! Limits the files that the calling thread can open (Landlock).

use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, path_beneath_rules,
};

/// The newest version whose rights are known here; an older kernel checks those that it has.
const NEWEST: ABI = ABI::V5;

/// Files and directories with all that is beneath them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// To be read.
    pub read: Vec<PathBuf>,
    /// To be read, written, made and removed.
    pub write: Vec<PathBuf>,
    /// To be run as programs.
    pub run: Vec<PathBuf>,
}

/// How far the kernel follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesConfined {
    /// As far as is known here.
    Wholly,
    /// It is older: what it does not know is not checked.
    InPart,
    /// It has no Landlock.
    No,
}

impl Reach {
    /// The rules that leave a thread these files and no others. What does not exist now is left
    /// out.
    ///
    /// # Errors
    /// What the kernel answers, other than that it has no such thing.
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

/// Rules about files, for several threads.
#[derive(Debug)]
pub struct Rules(RulesetCreated);

impl Rules {
    /// The same for another thread.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn copy(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Confines the calling thread, and those that it starts.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn confine_thread(self) -> io::Result<FilesConfined> {
        let confined = self.0.restrict_self().map_err(io::Error::other)?;
        Ok(match confined.ruleset {
            RulesetStatus::FullyEnforced => FilesConfined::Wholly,
            RulesetStatus::PartiallyEnforced => FilesConfined::InPart,
            RulesetStatus::NotEnforced => FilesConfined::No,
        })
    }
}

/// Whether this kernel has Landlock.
#[must_use]
pub fn has_file_confinement() -> bool {
    let created = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Execute)
        .and_then(Ruleset::create);
    created.is_ok()
}
