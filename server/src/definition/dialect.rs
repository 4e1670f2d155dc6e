//! Today's spelling of words from the first version of the language (2009), where arguments had no `$`.
//!
//! Only for hints: the words themselves are not accepted as what they meant then.

/// What a word of the old language is written like today, if it is one.
pub(super) fn modern_spelling(word: &str) -> Option<String> {
    let index = |prefix: char| -> Option<u32> {
        let digits = word.strip_prefix(prefix)?;
        if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
    };
    match word {
        "rv" => Some("the return value is written `$retval` today".to_owned()),
        "sa" => Some("the stack address is written `$stack` today".to_owned()),
        "ra" => Some("leave it out: every event of a return probe carries the return address".to_owned()),
        _ => index('a')
            .and_then(|n| n.checked_add(1))
            .map(|n| format!("function arguments count from one today: `$arg{n}`"))
            .or_else(|| index('s').map(|n| format!("stack entries are written `$stack{n}` today"))),
    }
}
