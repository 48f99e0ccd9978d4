//! The fast checksum of a block, bound to which block it is.

use twox_hash::XxHash3_128;

use super::{BlockId, Projection};

/// XXH3-128 of a block's stored bytes, seeded with its layer, expert and projection.
///
/// It finds damage and mix-ups (a block of another expert, layer or projection fails), not
/// malice: SHA-256 in the manifest is for that.
pub fn checksum(id: BlockId, bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot_with_seed(seed(id), bytes)
}

/// Injective up to 2^24 layers and 2^32 experts.
fn seed(id: BlockId) -> u64 {
    let projection = match id.projection {
        Projection::GateUp => 0,
        Projection::Gate => 1,
        Projection::Up => 2,
        Projection::Down => 3,
    };
    u64::from(id.layer) << 40 | u64::from(id.expert) << 8 | projection
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_name_counts() {
        let id = BlockId { layer: 3, expert: 7, projection: Projection::Down };
        let all = [
            id,
            BlockId { layer: 4, ..id },
            BlockId { expert: 8, ..id },
            BlockId { projection: Projection::GateUp, ..id },
        ];
        let sums: std::collections::BTreeSet<u128> =
            all.iter().map(|id| checksum(*id, &[9; 5000])).collect();
        assert_eq!(sums.len(), all.len());
        let mut flipped = [9; 5000];
        flipped[4321] ^= 1;
        assert_ne!(checksum(id, &flipped), checksum(id, &[9; 5000]));
    }
}
