//! Text that somebody else wrote, for people to read: as it is, but for what would work a terminal or hide.

/// Control characters and what can't be seen are escaped; quotes and backslashes stay as they are.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn quotes_and_backslashes_stay_and_control_characters_are_escaped() {
        assert_eq!(printable(r#"{"a": 'b\'}é"#), r#"{"a": 'b\'}é"#);
        assert_eq!(printable("a\u{1b}[2J\nb\0"), r"a\u{1b}[2J\nb\0");
    }
}
