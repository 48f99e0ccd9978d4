//! A drive of numbers: one link that serves reads in order, and reads ahead only when idle.

use std::collections::VecDeque;

use engine::tiers::ExpertId;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Devices;

pub struct Disk {
    rate: f64,
    latency: f64,
    jitter: f64,
    dice: ChaCha8Rng,
    /// When the link has served all that was begun.
    free_at: f64,
    /// Not begun, with the time at which each was asked for.
    ahead: VecDeque<(ExpertId, f64)>,
    /// Begun ahead, with the time of arrival, in order.
    coming: VecDeque<(ExpertId, f64)>,
}

impl Disk {
    pub fn new(devices: &Devices) -> Disk {
        Disk {
            rate: devices.disk_rate,
            latency: devices.disk_latency,
            jitter: devices.disk_jitter,
            dice: ChaCha8Rng::seed_from_u64(devices.seed),
            free_at: 0.0,
            ahead: VecDeque::new(),
            coming: VecDeque::new(),
        }
    }

    /// A read that somebody waits for; the time of its arrival.
    pub fn read(&mut self, now: f64, bytes: u64) -> f64 {
        let share = self.dice.next_u32() as f64 / (1u64 << 32) as f64;
        let begun = self.free_at.max(now);
        self.free_at = begun + bytes as f64 / self.rate * (1.0 + self.jitter * share);
        self.free_at + self.latency
    }

    /// A read that waits until the link is idle.
    pub fn read_ahead(&mut self, now: f64, id: ExpertId) {
        self.ahead.push_back((id, now));
    }

    /// Begins the reads ahead for which the link was idle before `now`.
    pub fn advance(&mut self, now: f64, bytes: u64) {
        while let Some((id, asked)) = self.ahead.front().copied() {
            if self.free_at.max(asked) >= now {
                break;
            }
            self.ahead.pop_front();
            let arrival = self.read(asked, bytes);
            self.coming.push_back((id, arrival));
        }
    }

    /// Calls off the reads ahead that have not begun.
    pub fn call_off(&mut self) -> Vec<ExpertId> {
        self.ahead.drain(..).map(|(id, _)| id).collect()
    }

    /// Reads ahead that have arrived by `now`.
    pub fn arrived(&mut self, now: f64) -> Vec<ExpertId> {
        let count = self.coming.iter().take_while(|(_, arrival)| *arrival <= now).count();
        self.coming.drain(..count).map(|(id, _)| id).collect()
    }

    /// The arrival of a read ahead that is on its way and now waited for.
    pub fn wait_for(&mut self, id: ExpertId) -> f64 {
        let place = self.coming.iter().position(|(coming, _)| *coming == id);
        self.coming.remove(place.expect("it was begun")).expect("it is there").1
    }

    /// Reads ahead begun and not arrived.
    pub fn coming_count(&self) -> usize {
        self.coming.len()
    }
}
