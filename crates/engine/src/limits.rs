//! How much memory there is, and what fits into it.

mod memory;
mod size;

pub use memory::{Bound, Limits, available_memory, limits};
pub use size::{SizeError, parse_bandwidth, parse_size};

/// What a model wants to keep in memory.
///
/// Units: bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// For experts, as the user asked; `None` takes what there is.
    pub budget_bytes: Option<u64>,
    /// Weights that every token uses.
    pub dense_bytes: u64,
    /// Keys, values and other state of the sequences.
    pub state_bytes: u64,
    /// One expert with its padding.
    pub slot_bytes: u64,
    /// Slots that reads in flight and the layer in work need beside the cache.
    pub staging_slots: u64,
    /// Experts of all layers.
    pub experts: u64,
}

/// What a model gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// Experts that can be cached.
    pub slots: u64,
    /// Cache and staging.
    pub arena_bytes: u64,
    /// True where all of the arena may be locked in memory.
    pub lockable: bool,
}

/// Why a budget is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LimitError {
    #[error(
        "a RAM budget of {asked} bytes for experts does not fit: beside {dense} of other weights, \
         {state} of state and a reserve of {reserve}, {available} bytes ({bound}) leave {fits}; \
         ask for that or less, or leave the budget out"
    )]
    BudgetTooLarge {
        asked: u64,
        dense: u64,
        state: u64,
        reserve: u64,
        available: u64,
        bound: Bound,
        fits: u64,
    },

    #[error(
        "the model needs {needed} bytes at the least ({dense} of weights that every token uses, \
         {state} of state, {staging} to read experts into, a reserve of {reserve}), and \
         {available} are available ({bound}); free {missing} bytes or raise that limit"
    )]
    TooSmall {
        needed: u64,
        dense: u64,
        state: u64,
        staging: u64,
        reserve: u64,
        available: u64,
        bound: Bound,
        missing: u64,
    },
}

/// What stays free for activations, buffers and everything else of the process.
pub const RESERVE_BYTES: u64 = 300 << 20;

/// How many experts can be cached. The budget counts what is read into as well, down to no cache
/// at all: a budget of 0 is served from the file.
///
/// Errors: what is asked for does not fit, and what would.
pub fn fit(wish: &Wish, limits: &Limits) -> Result<Fit, LimitError> {
    let staging = wish.staging_slots.saturating_mul(wish.slot_bytes);
    let (dense, state, reserve) = (wish.dense_bytes, wish.state_bytes, RESERVE_BYTES);
    let (available, bound) = (limits.available_bytes, limits.bound.clone());
    let beside = dense.saturating_add(state).saturating_add(reserve);
    let needed = beside.saturating_add(staging);
    if needed > available {
        let missing = needed - available;
        let all = LimitError::TooSmall {
            needed,
            dense,
            state,
            staging,
            reserve,
            available,
            bound,
            missing,
        };
        return Err(all);
    }
    let fits = available - beside;
    let asked = wish.budget_bytes.unwrap_or(fits);
    if asked > fits {
        return Err(LimitError::BudgetTooLarge {
            asked,
            dense,
            state,
            reserve,
            available,
            bound,
            fits,
        });
    }
    let slots = asked.saturating_sub(staging).checked_div(wish.slot_bytes).unwrap_or(0);
    let slots = slots.min(wish.experts);
    let arena_bytes = staging + slots * wish.slot_bytes;
    Ok(Fit { slots, arena_bytes, lockable: limits.locked_bytes.is_none_or(|l| l >= arena_bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn wish(budget_bytes: Option<u64>) -> Wish {
        let (dense_bytes, state_bytes) = (4 * GB, GB);
        Wish {
            budget_bytes,
            dense_bytes,
            state_bytes,
            slot_bytes: GB / 50,
            staging_slots: 10,
            experts: 1000,
        }
    }

    fn machine(available_bytes: u64) -> Limits {
        Limits { available_bytes, bound: Bound::MemAvailable, locked_bytes: Some(GB) }
    }

    #[test]
    fn a_budget_counts_the_slots_to_read_into() {
        let found = fit(&wish(Some(GB)), &machine(16 * GB)).expect("fits");
        assert_eq!(found, Fit { slots: 40, arena_bytes: GB, lockable: true });
        let none = fit(&wish(Some(0)), &machine(16 * GB)).expect("fits");
        assert_eq!((none.slots, none.arena_bytes), (0, GB / 5));
        let unlocked = fit(&wish(Some(2 * GB)), &machine(16 * GB)).expect("fits");
        assert!(!unlocked.lockable);
    }

    #[test]
    fn without_a_budget_everything_is_used_but_no_more_than_there_are_experts() {
        let found = fit(&wish(None), &machine(16 * GB)).expect("fits");
        assert_eq!(found.slots, (11 * GB - RESERVE_BYTES - GB / 5) / (GB / 50));
        assert_eq!(fit(&wish(None), &machine(100 * GB)).expect("fits").slots, 1000);
    }

    #[test]
    fn what_is_refused_says_what_would_fit() {
        let error = fit(&wish(Some(12 * GB)), &machine(16 * GB)).expect_err("too large");
        let LimitError::BudgetTooLarge { fits, .. } = error else { panic!("{error}") };
        assert!(fit(&wish(Some(fits)), &machine(16 * GB)).is_ok());
        assert!(fit(&wish(Some(fits + 1)), &machine(16 * GB)).is_err());
        let error = fit(&wish(Some(0)), &machine(5 * GB)).expect_err("too small");
        let LimitError::TooSmall { missing, .. } = error else { panic!("{error}") };
        assert!(fit(&wish(Some(0)), &machine(5 * GB + missing)).is_ok());
        assert!(fit(&wish(Some(0)), &machine(5 * GB + missing - 1)).is_err());
    }
}
