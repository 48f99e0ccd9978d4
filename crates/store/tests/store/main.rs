//! Stores: made whole whatever happens, refused where anything is not what it was.

mod crashes;
mod faulty;
mod fixture;
mod kept;
mod meanwhile;
mod mixed;
mod refusals;
mod round_trip;
mod sidecar;
