//! What is to be read, the urgent first.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};

use super::{Fetch, Urgency};

/// Fetches that wait, shared by those who ask and those who read.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    demand: VecDeque<Job>,
    ahead: VecDeque<Job>,
    /// Demanded fetches that are being read.
    demand_flying: usize,
    stopped: bool,
}

/// A fetch, and when it was asked for.
pub struct Job {
    pub fetch: Fetch,
    pub asked: std::time::Instant,
    /// It is read a second time because its checksum was wrong.
    pub again: bool,
    pub tally: super::FetchTally,
}

impl State {
    /// Reading ahead only starts while nothing urgent waits or flies.
    fn next(&mut self) -> Option<Job> {
        if let Some(job) = self.demand.pop_front() {
            self.demand_flying += 1;
            return Some(job);
        }
        if self.demand_flying == 0 { self.ahead.pop_front() } else { None }
    }
}

impl Queue {
    /// Gives the job back where the reader has stopped.
    #[must_use]
    pub fn push(&self, job: Job) -> Option<Job> {
        let mut state = self.lock();
        if state.stopped {
            return Some(job);
        }
        match job.fetch.urgency {
            Urgency::Demand if job.again => state.demand.push_front(job),
            Urgency::Demand => state.demand.push_back(job),
            Urgency::Ahead => state.ahead.push_back(job),
        }
        drop(state);
        self.changed.notify_all();
        None
    }

    /// The next one, waiting for it; `None` when the reader stops.
    pub fn take(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(job) = state.next() {
                return Some(job);
            }
            state = self.changed.wait(state).expect("no thread panics while it holds the queue");
        }
    }

    /// The next one, if there is one now.
    pub fn try_take(&self) -> Option<Job> {
        let mut state = self.lock();
        if state.stopped { None } else { state.next() }
    }

    /// A fetch that was taken is no longer being read.
    pub fn landed(&self, urgency: Urgency) {
        if urgency == Urgency::Demand {
            self.lock().demand_flying -= 1;
            self.changed.notify_all();
        }
    }

    /// Takes out what was to be read ahead and has not begun.
    pub fn cancel_ahead(&self) -> Vec<Job> {
        self.lock().ahead.drain(..).collect()
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Lets nothing begin any more; returns what waited.
    pub fn stop(&self) -> Vec<Job> {
        let mut state = self.lock();
        state.stopped = true;
        let mut left: Vec<Job> = state.demand.drain(..).collect();
        left.extend(state.ahead.drain(..));
        drop(state);
        self.changed.notify_all();
        left
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the queue")
    }
}
