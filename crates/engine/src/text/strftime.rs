//! Dates for templates that print today's, without a time-zone database: always UTC.

const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const SECONDS_PER_DAY: u64 = 86_400;

/// A moment in UTC, split as a calendar does.
struct Calendar {
    year: u64,
    /// 0 for January.
    month: usize,
    day: u64,
    /// 0 for the first of January.
    day_of_year: u64,
    /// 0 for Sunday.
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Calendar {
    fn of(unix_seconds: u64) -> Calendar {
        let days = unix_seconds / SECONDS_PER_DAY;
        let in_day = unix_seconds % SECONDS_PER_DAY;
        // From 1970 on, a loop over years is plain to read and takes microseconds.
        let mut year = 1970;
        let mut day_of_year = days;
        while day_of_year >= days_in_year(year) {
            day_of_year -= days_in_year(year);
            year += 1;
        }
        let mut month = 0;
        let mut day = day_of_year;
        while day >= days_in_month(year, month) {
            day -= days_in_month(year, month);
            month += 1;
        }
        Calendar {
            year,
            month,
            day: day + 1,
            day_of_year,
            weekday: ((days + 4) % 7) as usize,
            hour: in_day / 3600,
            minute: in_day / 60 % 60,
            second: in_day % 60,
        }
    }

    fn hour_of_12(&self) -> u64 {
        (self.hour + 11) % 12 + 1
    }

    /// One `%` directive, or `None` where it is not known here.
    fn directive(&self, directive: char) -> Option<String> {
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month + 1),
            'B' => MONTHS[self.month].to_owned(),
            'b' | 'h' => MONTHS[self.month][..3].to_owned(),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year + 1),
            'A' => WEEKDAYS[self.weekday].to_owned(),
            'a' => WEEKDAYS[self.weekday][..3].to_owned(),
            'w' => self.weekday.to_string(),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{:02}", self.hour_of_12()),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month + 1, self.day),
            'T' => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

fn days_in_year(year: u64) -> u64 {
    if year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400) {
        366
    } else {
        365
    }
}

fn days_in_month(year: u64, month: usize) -> u64 {
    match month {
        1 => days_in_year(year) - 337,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Formats a moment as Python's `strftime` does, in UTC and English.
///
/// Units: seconds since 1970-01-01T00:00:00Z.
/// Errors: the character of a directive that is not known here (`'%'` for a lone one at the end).
pub(super) fn strftime(format: &str, unix_seconds: u64) -> Result<String, char> {
    let calendar = Calendar::of(unix_seconds);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        // `%-d` is `%d` without the padding, as on Linux.
        let mut directive = characters.next().ok_or('%')?;
        let bare = directive == '-';
        if bare {
            directive = characters.next().ok_or('%')?;
        }
        let formatted = calendar.directive(directive).ok_or(directive)?;
        let trimmed = formatted.trim_start_matches(['0', ' ']);
        let digits = formatted.trim().bytes().all(|byte| byte.is_ascii_digit());
        match (bare && digits, trimmed.is_empty()) {
            (true, true) => text.push('0'),
            (true, false) => text.push_str(trimmed),
            (false, _) => text.push_str(&formatted),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_python_prints_them() {
        let check = |seconds, format, expect: &str| {
            assert_eq!(strftime(format, seconds), Ok(expect.to_owned()), "{format} of {seconds}");
        };
        check(0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001");
        check(951_782_399, "%d %b %Y %I:%M %p %a", "28 Feb 2000 11:59 PM Mon");
        check(951_782_400, "%F %T %B %-d 100%%", "2000-02-29 00:00:00 February 29 100%");
        check(4_102_444_799, "%y %e %-H %w", "99 31 23 4");
        check(1_767_225_600, "%-m/%-d %-M", "1/1 0");
    }

    #[test]
    fn unknown_directives_are_named() {
        assert_eq!(strftime("%Q", 0), Err('Q'));
        assert_eq!(strftime("50%", 0), Err('%'));
    }
}
