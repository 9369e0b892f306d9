//! How many connections one engine sets up at a time.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// The places of one engine.
#[derive(Clone, Debug)]
pub struct Queue {
    turns: Arc<Semaphore>,
    /// How many there are.
    max: usize,
}

impl Queue {
    /// Places for `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(max)), max }
    }

    /// Connections that are being set up.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.max.saturating_sub(self.turns.available_permits())
    }

    /// How many there may be.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether every place is taken.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.turns.available_permits() == 0
    }

    /// Takes a place, if one is free.
    ///
    /// # Errors
    /// None is.
    pub fn try_enter(&self) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        Arc::clone(&self.turns).try_acquire_owned()
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// Never: no queue is closed.
    pub async fn enter(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.turns).acquire_owned().await
    }
}
