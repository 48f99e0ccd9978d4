//! Checkpoints as files: every layout of the same weights gives the same bits, damaged ones give
//! an error that says where, and sizes that nothing likes give the bits of the oracle.

mod damage;
mod folder;
mod layouts;
mod strange;
