//! The quantile function of the standard normal distribution.
// The coefficients are those of the paper, digit by digit, so that they can be compared.
#![allow(clippy::excessive_precision)]

/// The standard normal quantile of a probability in [1e-9, 1 - 1e-9].
///
/// Source: Wichura, algorithm AS 241 (1988), PPND16: relative error about 1e-16.
pub fn normal_quantile(probability: f64) -> f64 {
    let q = probability - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180625 - q * q;
        return q * horner(&CENTRAL_TOP, r) / horner(&CENTRAL_BOTTOM, r);
    }
    let r = (-probability.min(1.0 - probability).ln()).sqrt() - 1.6;
    assert!(r <= 3.4, "a probability this far out needs the third branch of AS 241");
    (horner(&TAIL_TOP, r) / horner(&TAIL_BOTTOM, r)).copysign(q)
}

/// Coefficients from the constant term upwards.
fn horner(coefficients: &[f64; 8], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

const CENTRAL_TOP: [f64; 8] = [
    3.387_132_872_796_366_608,
    133.141_667_891_784_377_45,
    1_971.590_950_306_551_442_7,
    13_731.693_765_509_461_125,
    45_921.953_931_549_871_457,
    67_265.770_927_008_700_853,
    33_430.575_583_588_128_105,
    2_509.080_928_730_122_672_7,
];
const CENTRAL_BOTTOM: [f64; 8] = [
    1.0,
    42.313_330_701_600_911_252,
    687.187_007_492_057_908_3,
    5_394.196_021_424_751_107_7,
    21_213.794_301_586_595_867,
    39_307.895_800_092_710_61,
    28_729.085_735_721_942_674,
    5_226.495_278_852_854_561,
];
const TAIL_TOP: [f64; 8] = [
    1.423_437_110_749_683_577_34,
    4.630_337_846_156_545_295_9,
    5.769_497_221_460_691_405_5,
    3.647_848_324_763_204_605_04,
    1.270_458_252_452_368_382_58,
    2.417_807_251_774_506_117_7e-1,
    2.272_384_498_926_918_458_33e-2,
    7.745_450_142_783_414_076_4e-4,
];
const TAIL_BOTTOM: [f64; 8] = [
    1.0,
    2.053_191_626_637_758_821_87,
    1.676_384_830_183_803_849_4,
    6.897_673_349_851_000_045_5e-1,
    1.481_039_764_274_800_745_9e-1,
    1.519_866_656_361_645_719_66e-2,
    5.475_938_084_995_344_946e-4,
    1.050_750_071_644_416_843_24e-9,
];
