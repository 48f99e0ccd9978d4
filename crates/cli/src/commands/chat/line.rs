//! What a typed line means.

/// A line of the chat.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    Blank,
    Exit,
    Reset,
    /// The system message from now on; empty means none.
    System(&'a str),
    /// A slash and a word that is none of the above.
    Unknown(&'a str),
    Say(&'a str),
}

impl Line<'_> {
    /// Reads a line, with or without its end.
    pub fn parse(line: &str) -> Line<'_> {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            "" => Line::Blank,
            "/exit" => Line::Exit,
            "/reset" => Line::Reset,
            "/system" => Line::System(rest.trim()),
            _ if word.starts_with('/') => Line::Unknown(word),
            _ => Line::Say(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_mean_what_they_say() {
        let check = |line, expect| assert_eq!(Line::parse(line), expect, "{line:?}");
        check("", Line::Blank);
        check(" \r\n", Line::Blank);
        check("/exit\n", Line::Exit);
        check("/reset", Line::Reset);
        check("/system  Be brief. \n", Line::System("Be brief."));
        check("/system", Line::System(""));
        check("/quit now", Line::Unknown("/quit"));
        check("Hello, you!\r\n", Line::Say("Hello, you!"));
        check("1/2 is what?", Line::Say("1/2 is what?"));
    }
}
