//! Limits how many connections one engine sets up at the same time. An engine is a thread that does
//! handshakes on a reserved CPU.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// The slots of one engine.
#[derive(Clone, Debug)]
pub struct EngineSlots {
    turns: Arc<Semaphore>,
    /// The number of slots.
    max: usize,
}

impl EngineSlots {
    /// Slots for `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(max)), max }
    }

    /// The number of connections that are being set up.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.max.saturating_sub(self.turns.available_permits())
    }

    /// The number of slots.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether every slot is taken.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.turns.available_permits() == 0
    }

    /// Takes a slot, if one is free.
    ///
    /// # Errors
    /// No slot is free.
    pub fn try_enter(&self) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        Arc::clone(&self.turns).try_acquire_owned()
    }

    /// Waits for a free slot.
    ///
    /// # Errors
    /// Never, because the semaphore is not closed.
    pub async fn enter(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.turns).acquire_owned().await
    }
}
