//! The doors to the operating system; the only modules of this crate that may hold `unsafe`.

#[allow(unsafe_code)]
pub mod arena;
pub mod fault;
pub mod file;
#[allow(unsafe_code)]
pub mod mapping;
#[allow(unsafe_code)]
pub mod raw;
#[allow(unsafe_code)]
pub mod ring;
