//! The planner under every order of events that an executor may bring about.

mod driver;
mod lru;
mod planner;
