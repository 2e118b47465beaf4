//! What the poll thread, the producer's reports and the bus share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use lapse_sagas::Timestamp;
use tokio::sync::Notify;

use super::assignment::Assignment;
use super::health::Health;
use crate::bus::Clock;

/// Locked for moments only; never across a call into the client.
pub(super) struct Shared {
    pub health: Health,
    pub ripened: Notify,
    clock: Clock,
    assignment: Mutex<Assignment>,
    suspicion: AtomicBool,
    stopping: AtomicBool,
    poll_thread: OnceLock<Thread>,
}

impl Shared {
    pub fn new(assignment: Assignment, clock: Clock) -> Self {
        Shared {
            health: Health::new(),
            ripened: Notify::new(),
            clock,
            assignment: Mutex::new(assignment),
            suspicion: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            poll_thread: OnceLock::new(),
        }
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub fn assignment(&self) -> MutexGuard<'_, Assignment> {
        self.assignment
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Something may have been lost.
    pub fn suspect(&self) {
        self.suspicion.store(true, Ordering::Relaxed);
    }

    pub fn take_suspicion(&self) -> bool {
        self.suspicion.swap(false, Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.wake_poll_thread();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The calling thread is the one to be woken.
    pub fn register_poll_thread(&self) {
        // Set once: there is one poll thread per bus.
        let _ = self.poll_thread.set(std::thread::current());
    }

    pub fn wake_poll_thread(&self) {
        if let Some(thread) = self.poll_thread.get() {
            thread.unpark();
        }
    }
}
