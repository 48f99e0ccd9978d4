//! Hit rates over the share of all experts that is cached, policy by policy.

use engine::tiers::policy::Policy;
use engine::tiers::trace::Trace;
use rayon::prelude::*;
use serde::Serialize;

use super::{Setup, optimum, run};

/// Shares of all experts that are cached.
pub const FRACTIONS: [f64; 7] = [0.015, 0.03, 0.06, 0.12, 0.24, 0.48, 0.75];

/// One policy at every share.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PolicyCurve {
    /// A policy's name, or `optimum` for Belady's.
    pub policy: String,
    pub hit_rates: Vec<f64>,
}

/// Policies compared.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Curve {
    pub fractions: Vec<f64>,
    pub slots: Vec<usize>,
    pub policies: Vec<PolicyCurve>,
}

/// Runs every policy at every share, and the optimum.
pub fn curve(trace: &Trace, setup: &Setup, policies: &[Policy], fractions: &[f64]) -> Curve {
    let total = trace.header.shape.total() as f64;
    let slots: Vec<usize> = fractions.iter().map(|f| (f * total).round() as usize).collect();
    let rates = |policy: &Policy| {
        let of = |ram_slots: &usize| {
            let setup = Setup {
                policy: *policy,
                ram_slots: *ram_slots,
                vram_slots: 0,
                lookahead: false,
                ..*setup
            };
            run(trace, &setup).hit_rate()
        };
        slots.par_iter().map(of).collect()
    };
    let curve = |p: &Policy| PolicyCurve { policy: p.to_string(), hit_rates: rates(p) };
    let mut all: Vec<PolicyCurve> = policies.iter().map(curve).collect();
    let best = |slots: &usize| optimum(trace, *slots, setup.warm_passes).hit_rate();
    let hit_rates = slots.par_iter().map(best).collect();
    all.push(PolicyCurve { policy: "optimum".to_string(), hit_rates });
    Curve { fractions: fractions.to_vec(), slots, policies: all }
}
