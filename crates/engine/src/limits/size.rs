//! Sizes and bandwidths as people write them.

/// A text that is no size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizeError {
    #[error("{found:?} does not begin with a number; write sizes as in 8GiB, 16GB or 500MB")]
    Number { found: String },
    #[error("{unit:?} is no unit; known: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB")]
    Unit { unit: String },
    #[error("{found:?} is beyond 16 EiB")]
    TooLarge { found: String },
}

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Bytes: `8GiB`, `16 GB`, `1.5GB`, `500MB`, `4096`. Units in any case; parts of a byte are cut.
///
/// Errors: no number, no unit, more than a u64 holds.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = factor(unit.trim())?;
    let bad = || SizeError::Number { found: text.to_string() };
    let too_large = || SizeError::TooLarge { found: text.to_string() };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') {
        return Err(bad());
    }
    let mut bytes = 0u128;
    for digit in whole.bytes() {
        bytes = bytes * 10 + u128::from(digit - b'0');
        if bytes > u128::from(u64::MAX) {
            return Err(too_large());
        }
    }
    // Eighteen decimals of the largest unit are below one byte.
    let (mut numerator, mut scale) = (0u128, 1u128);
    for digit in part.bytes().take(18) {
        (numerator, scale) = (numerator * 10 + u128::from(digit - b'0'), scale * 10);
    }
    let bytes = bytes * u128::from(factor) + numerator * u128::from(factor) / scale;
    u64::try_from(bytes).map_err(|_| too_large())
}

/// Bytes a second: as a size, with `/s` behind it or without.
///
/// Errors: as `parse_size`.
pub fn parse_bandwidth(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    parse_size(text.strip_suffix("/s").unwrap_or(text))
}

fn factor(unit: &str) -> Result<u64, SizeError> {
    if unit.is_empty() {
        return Ok(1);
    }
    let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    known.map(|(_, factor)| *factor).ok_or_else(|| SizeError::Unit { unit: unit.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_written() {
        let check = |text: &str, expect: u64| assert_eq!(parse_size(text), Ok(expect), "{text}");
        check("0", 0);
        check("4096", 4096);
        check("8GiB", 8 << 30);
        check(" 16 gb ", 16_000_000_000);
        check("500MB", 500_000_000);
        check("1.5KiB", 1536);
        check(".5kB", 500);
        check("1.0000000009GB", 1_000_000_000);
        check("18446744073709551615", u64::MAX);
        assert_eq!(parse_bandwidth("3.5GB/s"), Ok(3_500_000_000));
        assert_eq!(parse_bandwidth("200MiB"), Ok(200 << 20));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        let check = |text: &str, expect: &str| {
            let error = parse_size(text).expect_err(text).to_string();
            assert!(error.contains(expect), "{error:?} lacks {expect:?}");
        };
        check("", "does not begin with a number");
        check("GB", "does not begin with a number");
        check("-1GB", "is no unit");
        check("1.2.3GB", "does not begin with a number");
        check("8Gib/s", "is no unit");
        check("8 parsecs", "is no unit");
        check("18446744073709551616", "beyond");
        check("99999999999999999999999999999999999999999999999", "beyond");
        check("20000000TiB", "beyond");
    }
}
