//! Experts read from files, from memory and through faults: the right bytes, or a typed error.

mod faults;
mod files;
mod fixture;
