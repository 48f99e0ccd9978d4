//! Conversions that fail at any step, and what else happens meanwhile.

mod crashes;
mod faulty;
mod fixture;
mod meanwhile;
