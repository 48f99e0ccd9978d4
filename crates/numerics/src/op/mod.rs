//! The contract of every operation: one file each, its shapes and its rounding.

pub mod attention;
pub mod conv;
pub mod delta_rule;
pub mod dot;
pub mod linear;
pub mod mix;
pub mod norm;
pub mod rope;
