//! What was read and served, counted where it happens. Zero means zero.

use serde::{Deserialize, Serialize};

/// Declares counters that all add up and subtract alike.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name { $($(#[$doc])* pub $field: $kind,)* }

        impl $name {
            /// What came since `earlier`.
            pub fn since(&self, earlier: &$name) -> $name {
                $name { $($field: self.$field.since(&earlier.$field),)* }
            }

            /// Both together.
            pub fn plus(&self, other: &$name) -> $name {
                $name { $($field: self.$field.plus(&other.$field),)* }
            }
        }
    };
}

/// A counter by itself.
trait Count {
    fn since(&self, earlier: &Self) -> Self;
    fn plus(&self, other: &Self) -> Self;
}

impl Count for u64 {
    fn since(&self, earlier: &u64) -> u64 {
        self - earlier
    }

    fn plus(&self, other: &u64) -> u64 {
        self + other
    }
}

counters! {
    /// Where routed experts came from. Units: `_ns` are nanoseconds, blocks are projections.
    TierCounters {
        /// Layers that asked for experts.
        steps: u64,
        /// Of these, those that waited for no file.
        steps_without_miss: u64,
        /// Experts served from a mapped file, whose pages the system keeps or reads.
        mapped_experts: u64,
        mapped_bytes: u64,
        /// Experts that were in the memory of a GPU.
        vram_experts: u64,
        vram_bytes: u64,
        /// Experts that left it for others.
        vram_evicted: u64,
        /// Experts that it lacked and the processor computed.
        cpu_experts: u64,
        cpu_bytes: u64,
        /// Experts that were in memory when asked for, those read ahead counted apart.
        ram_experts: u64,
        ram_bytes: u64,
        /// Experts that were read because they were asked for.
        file_experts: u64,
        /// Bytes and reads of the file, for them and ahead of them.
        file_bytes: u64,
        file_reads: u64,
        /// Blocks that were compared with a manifest, with their first reading, or never seen.
        blocks_manifest: u64,
        blocks_first_seen: u64,
        blocks_new: u64,
        /// Experts read again because a checksum was wrong.
        retries: u64,
        /// Experts read before they were asked for: in memory in time, on the way, for nothing.
        ahead_used: u64,
        ahead_late: u64,
        ahead_wasted: u64,
        ahead_bytes: u64,
        /// Experts that left the cache.
        evicted: u64,
        /// Time that a layer had nothing to compute and waited for a read.
        stall_ns: u64,
        /// Time that reads took and checksums took, on threads of their own.
        read_ns: u64,
        check_ns: u64,
    }
}

counters! {
    /// Work of one phase of a request.
    PhaseCounters {
        /// Tokens that went through the layers.
        tokens: u64,
        /// Passes over the layers (one per chunk or decoded token).
        passes: u64,
        /// Routed experts computed, each once per pass and layer.
        experts: u64,
        /// Bytes of routed experts that were read from memory.
        expert_bytes: u64,
        /// The same as if none of them were packed.
        expert_plain_bytes: u64,
        /// Bytes of all other weights that were read from memory.
        dense_bytes: u64,
        /// Where the experts came from.
        tiers: TierCounters,
    }
}

impl Count for TierCounters {
    fn since(&self, earlier: &TierCounters) -> TierCounters {
        TierCounters::since(self, earlier)
    }

    fn plus(&self, other: &TierCounters) -> TierCounters {
        TierCounters::plus(self, other)
    }
}

impl PhaseCounters {
    /// Bytes of weights read from memory.
    pub fn bytes(&self) -> u64 {
        self.expert_bytes + self.dense_bytes
    }
}
