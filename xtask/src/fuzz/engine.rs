//! The loop of one target: pick, mutate, run, keep or minimise.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use super::mutate::{Random, mutate};
use super::targets::Target;

/// Longest input tried.
const INPUT_BYTES_MAX: usize = 64 * 1024;
/// Inputs kept for having brought something new.
const CORPUS_INPUTS_MAX: usize = 2048;
/// Runs spent on making a failing input smaller.
const MINIMISE_RUNS_MAX: usize = 4000;

/// A panic of a target.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The smallest input found that still panics.
    pub(crate) input: Vec<u8>,
    /// What the panic said, and where.
    pub(crate) message: String,
}

/// One target being fuzzed.
pub(crate) struct Fuzzer<'a> {
    target: &'a Target,
    random: Random,
    corpus: Vec<Vec<u8>>,
    /// Inputs at the front of the corpus that were given.
    seeds: usize,
    outcomes: BTreeSet<u64>,
    runs: u64,
}

impl<'a> Fuzzer<'a> {
    pub(crate) fn new(target: &'a Target, seeds: &[Vec<u8>], seed: u64) -> Self {
        quieten_panics();
        let corpus = if seeds.is_empty() { vec![Vec::new()] } else { seeds.to_vec() };
        let random = Random::new(seed);
        let seeds = corpus.len();
        Self { target, random, corpus, seeds, outcomes: BTreeSet::new(), runs: 0 }
    }

    /// Inputs tried so far.
    pub(crate) fn runs(&self) -> u64 {
        self.runs
    }

    /// Different outcomes met so far.
    pub(crate) fn outcomes(&self) -> usize {
        self.outcomes.len()
    }

    /// Tries one input: first each seed as it is, then mutations.
    pub(crate) fn step(&mut self) -> Result<u64, Failure> {
        let at = usize::try_from(self.runs).unwrap_or(usize::MAX);
        self.runs += 1;
        let input = match self.corpus.get(at) {
            Some(seed) if at < self.seeds => seed.clone(),
            _ => mutate(&mut self.random, &self.corpus, self.target.words, INPUT_BYTES_MAX),
        };
        match attempt(self.target, &input) {
            Ok(outcome) => {
                let fresh = self.outcomes.insert(outcome);
                if fresh && at >= self.seeds && self.corpus.len() < CORPUS_INPUTS_MAX {
                    self.corpus.push(input);
                }
                Ok(outcome)
            }
            Err(message) => Err(self.minimise(input, message)),
        }
    }

    /// Takes away pieces, the large ones first, as long as what is left still panics.
    fn minimise(&self, mut input: Vec<u8>, mut message: String) -> Failure {
        let mut piece = input.len().div_ceil(2);
        let mut runs = 0;
        while piece > 0 {
            let mut at = 0;
            let mut smaller = false;
            while at < input.len() && runs < MINIMISE_RUNS_MAX {
                let mut shorter = input.clone();
                shorter.drain(at..(at + piece).min(input.len()));
                runs += 1;
                match attempt(self.target, &shorter) {
                    Err(said) => (input, message, smaller) = (shorter, said, true),
                    Ok(_) => at += piece,
                }
            }
            if !smaller || runs >= MINIMISE_RUNS_MAX {
                piece /= 2;
            }
        }
        Failure { input, message }
    }
}

/// Runs a target once; a panic comes back as what it said.
fn attempt(target: &Target, input: &[u8]) -> Result<u64, String> {
    IN_TARGET.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    IN_TARGET.set(false);
    outcome.map_err(|_| LAST_PANIC.take())
}

thread_local! {
    static IN_TARGET: Cell<bool> = const { Cell::new(false) };
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps a target's panics from being printed by the thousand while one is minimised. All others
/// are told as ever.
fn quieten_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| match IN_TARGET.get() {
            true => LAST_PANIC.set(info.to_string().replace('\n', " ")),
            false => before(info),
        }));
    });
}
