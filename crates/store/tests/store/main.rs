//! Stores: made whole whatever happens, refused where anything is not what it was.

mod fixture;
mod kept;
mod refusals;
mod round_trip;
mod sidecar;
