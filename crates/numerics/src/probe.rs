//! Ceilings of this machine, measured with the same vectors as the kernels.
