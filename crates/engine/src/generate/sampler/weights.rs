//! Integer weights: where floating point ends and exact arithmetic begins.

use numerics::elementary::exp32;

/// 2^40: the weight of the largest logit.
pub(super) const WEIGHT_MAX: u64 = 1 << 40;

/// Turns the logits of one position into weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weigher {
    max: f32,
    temperature: f64,
}

impl Weigher {
    /// `max` is the largest logit; the temperature is above 0.
    pub(super) fn new(max: f32, temperature: f64) -> Weigher {
        Weigher { max, temperature }
    }

    /// `floor(exp32(f32((l - max) / T)) * 2^40)`, from 0 to 2^40.
    ///
    /// Subtraction and division are one f64 operation each. The product is exact (a power of two),
    /// and the conversion to an integer is the floor. Every step is monotone, so the whole is.
    pub(super) fn weight(&self, logit: f32) -> u64 {
        let exponent = (f64::from(logit) - f64::from(self.max)) / self.temperature;
        (f64::from(exp32(exponent as f32)) * WEIGHT_MAX as f64) as u64
    }

    /// The lowest finite f32 that weighs at least `weight_min`, which is at most 2^40.
    ///
    /// Bisection over the f32s in order: 32 weights instead of one per token.
    pub(super) fn lowest_logit(&self, weight_min: u64) -> f32 {
        let mut low = rank(f32::MIN);
        let mut high = rank(self.max);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.weight(of_rank(middle)) >= weight_min {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        of_rank(high)
    }
}

/// The place of a number among all f32s in ascending order.
fn rank(number: f32) -> u32 {
    let bits = number.to_bits();
    if number.is_sign_negative() { !bits } else { bits | 1 << 31 }
}

fn of_rank(rank: u32) -> f32 {
    f32::from_bits(if rank >> 31 == 0 { !rank } else { rank & !(1 << 31) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_order() {
        let ordered = [f32::MIN, -1.5, -f32::MIN_POSITIVE, -0.0, 0.0, 1e-45, 1.0, f32::MAX];
        assert!(ordered.is_sorted_by_key(|&number| rank(number)));
        assert!(ordered.iter().all(|n| of_rank(rank(*n)).to_bits() == n.to_bits()));
    }

    #[test]
    fn weights_by_hand() {
        let check = |logit, max, temperature, expect: u64| {
            assert_eq!(Weigher::new(max, temperature).weight(logit), expect, "{logit} {max}");
        };
        check(3.0, 3.0, 0.7, WEIGHT_MAX);
        check(-0.0, 0.0, 1e300, WEIGHT_MAX);
        // exp(-1) in f32 is 12343986 * 2^-25.
        check(1.0, 2.0, 1.0, 12_343_986 << 15);
        check(1.0, 3.0, 2.0, 12_343_986 << 15);
        // exp(-27.725887) is 2^-40 from above, the next f32 is below.
        check(-27.725_885, 0.0, 1.0, 1);
        check(-27.725_89, 0.0, 1.0, 0);
        check(f32::MIN, f32::MAX, 1e-300, 0);
        check(0.0, 1.0, 5e-324, 0);
    }

    #[test]
    fn the_lowest_logit_is_the_lowest() {
        for (max, temperature) in [(0.0, 1.0), (17.25, 0.7), (-3.0, 1e-6), (1e30, 1e30)] {
            let weigher = Weigher::new(max, temperature);
            for weight_min in [1, 2, 1 << 20, WEIGHT_MAX - 1, WEIGHT_MAX] {
                let lowest = weigher.lowest_logit(weight_min);
                assert!(weigher.weight(lowest) >= weight_min, "{max} {temperature} {weight_min}");
                assert!(weigher.weight(lowest.next_down()) < weight_min, "{max} {weight_min}");
            }
        }
    }

    #[test]
    fn very_high_temperature_keeps_all() {
        assert_eq!(Weigher::new(f32::MAX, 1e300).lowest_logit(WEIGHT_MAX), f32::MIN);
    }
}
