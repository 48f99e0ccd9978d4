//! Numbers as people read them.

/// Bytes in decimal units with two digits or more: `5.1 MB`.
pub fn bytes(count: f64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (count, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    if unit == 0 || value >= 99.95 {
        return format!("{value:.0} {}", UNITS[unit]);
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A count in decimal units: `12.4 M`.
pub fn count(count: u64) -> String {
    const UNITS: [&str; 4] = ["", " k", " M", " B"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    if unit == 0 { format!("{count}") } else { format!("{value:.1}{}", UNITS[unit]) }
}

/// A count with commas: `1,204`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Tokens per second: `830`, `4.12`.
pub fn rate(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(999.0), "999 B");
        assert_eq!(bytes(5_100_000.0), "5.1 MB");
        assert_eq!(bytes(999_600.0), "1.0 MB");
        assert_eq!(bytes(244e9), "244 GB");
        assert_eq!(count(999), "999");
        assert_eq!(count(12_357_808), "12.4 M");
        assert_eq!(count(122_000_000_000), "122.0 B");
        assert_eq!([0, 999, 1204, 1_234_567].map(grouped), ["0", "999", "1,204", "1,234,567"]);
        assert_eq!(rate(829.6), "830");
        assert_eq!(rate(41.23), "41.2");
        assert_eq!(rate(4.123), "4.12");
    }
}
