//! Removal of passwords from texts that leave the host.
//!
//! Owns what counts as one: whatever stands before the `@` in the authority of an address with a
//! scheme. It removes too much rather than too little.

/// Characters that end the authority of an address, also in JSON.
const ENDS: &[char] = &['/', '?', '#', '"', '\\', ' ', '\n', '\t', '\'', '<', '>'];

/// The text with `***` in place of `user:password` in addresses.
pub(super) fn without_credentials(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("://") {
        let (before, after) = rest.split_at(begin + 3);
        redacted.push_str(before);
        let authority = after.find(ENDS).unwrap_or(after.len());
        let (authority, behind) = after.split_at(authority);
        match authority.rfind('@') {
            Some(at) => {
                redacted.push_str("***");
                redacted.push_str(authority.get(at..).unwrap_or_default());
            }
            None => redacted.push_str(authority),
        }
        rest = behind;
    }
    redacted.push_str(rest);
    redacted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn passwords_go_and_addresses_stay() {
        for (text, expected) in [
            ("nats://me:secret@host:4222/x", "nats://***@host:4222/x"),
            (r#"{"a":"http://u:p@h","b":"https://h/p@th"}"#, r#"{"a":"http://***@h","b":"https://h/p@th"}"#),
            ("nats://token@h, tls://a:b@c@d:1", "nats://***@h, tls://***@d:1"),
            ("spiffe://prod/ns/x", "spiffe://prod/ns/x"),
            ("p:open do_sys_openat2 @jiffies", "p:open do_sys_openat2 @jiffies"),
            ("://", "://"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
    }

    proptest! {
        #[test]
        fn no_password_stays(before in ".{0,20}", user in "[a-z]{1,5}", password in "[a-z0-9:@%]{1,12}zzz", behind in "(/.{0,20})?") {
            let text = format!("{before} nats://{user}:{password}@host{behind}");
            let secret = [&password, "@"].concat();
            prop_assert!(!without_credentials(&text).contains(&secret));
        }

        #[test]
        fn other_text_stays(text in "[^:]{0,60}") {
            prop_assert_eq!(without_credentials(&text), text);
        }
    }
}
