//! Keys of aggregations: the notation of `--by KEY`.
//!
//! Follows the kernel's `hist` triggers where they have a notation. It never checks that a probe has
//! such a field or that the kernel can count by it: the daemon does.

use std::str::FromStr;

use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::{AggregationKey, ContextKey, FieldKey, KeyScale};

use crate::output::context_key;

/// Key of `--by`: one of the kernel, or the host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CountKey<K> {
    Host,
    Key(K),
}

impl<K> CountKey<K> {
    /// The keys for the kernel, and whether hosts are counted separately.
    pub(crate) fn split(all: Vec<Self>) -> (Vec<K>, bool) {
        let is_by_host = all.iter().any(|by| matches!(by, Self::Host));
        let keys = all.into_iter().filter_map(|by| match by {
            Self::Host => None,
            Self::Key(key) => Some(key),
        });
        (keys.collect(), is_by_host)
    }
}

/// The word for hosts. A field of that name is `host.exact`.
const HOST: &str = "host";

impl FromStr for CountKey<AggregationKey> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == HOST { Ok(Self::Host) } else { aggregation_key(text).map(Self::Key) }
    }
}

impl FromStr for CountKey<ContextKey> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == HOST { Ok(Self::Host) } else { latency_key(text).map(Self::Key) }
    }
}

/// Suffixes of a field.
const FORMS: &str = "`.log2`, `.buckets=N`, `.sym`, `.sym-offset` or `.exact`";

/// One key of an aggregation.
fn aggregation_key(text: &str) -> Result<AggregationKey, String> {
    let (name, form) = text.split_once('.').map_or((text, None), |(name, form)| (name, Some(form)));
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err(format!(
            "`{name}` is not a key: write a field of the probe, or `thread`, `comm`, `cpu` or `stack`"
        ));
    }
    let key = match (context_key(name), form) {
        // The kernel's own way to ask for the thread.
        (Some(ContextKey::Thread), Some("execname")) => Key::Context(ContextKey::Thread.into()),
        (Some(context), None) => Key::Context(context.into()),
        _ => Key::Field(field(name, form)?),
    };
    Ok(AggregationKey { key: Some(key) })
}

fn field(name: &str, form: Option<&str>) -> Result<FieldKey, String> {
    let (scale, bucket_size) = match form {
        None | Some("exact") => (KeyScale::Unspecified, 0),
        Some("log2") => (KeyScale::Log2, 0),
        Some("sym") => (KeyScale::Symbol, 0),
        Some("sym-offset") => (KeyScale::SymbolOffset, 0),
        Some("execname") => {
            return Err("`.execname` is only for `thread`: write `thread` or `comm`".to_owned());
        }
        Some(form) => match form.strip_prefix("buckets=") {
            Some(width) => (KeyScale::Linear, bucket_size(width)?),
            None => return Err(format!("`.{form}` is unknown: write {FORMS} after a field")),
        },
    };
    Ok(FieldKey { field: name.to_owned(), scale: scale.into(), bucket_size })
}

fn bucket_size(text: &str) -> Result<u64, String> {
    let size = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    size.filter(|size| *size > 0)
        .ok_or_else(|| format!("`{text}` is not a width of a bucket: write 1 or more"))
}

/// A key of a latency besides the latency itself: something that every event has.
fn latency_key(text: &str) -> Result<ContextKey, String> {
    match context_key(text) {
        Some(ContextKey::Stack) => Err("a latency has no call stack: it lies between two probes".to_owned()),
        Some(key) => Ok(key),
        None => Err(format!("`{text}` is not a key of a latency: write `thread`, `comm` or `cpu`")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::output::key_notation;

    fn parsed(text: &str) -> Result<Key, String> {
        aggregation_key(text).map(|key| key.key.unwrap())
    }

    #[test]
    fn keys() {
        let field = |field: &str, scale: KeyScale, bucket_size| {
            Ok(Key::Field(FieldKey { field: field.to_owned(), scale: scale.into(), bucket_size }))
        };
        let context = |key: ContextKey| Ok(Key::Context(key.into()));
        assert_eq!(parsed("bytes"), field("bytes", KeyScale::Unspecified, 0));
        assert_eq!(parsed("bytes.log2"), field("bytes", KeyScale::Log2, 0));
        assert_eq!(parsed("bytes.buckets=0x10"), field("bytes", KeyScale::Linear, 16));
        assert_eq!(parsed("ip.sym"), field("ip", KeyScale::Symbol, 0));
        assert_eq!(parsed("comm"), context(ContextKey::Comm));
        // A field can have that name too.
        assert_eq!(parsed("comm.exact"), field("comm", KeyScale::Unspecified, 0));
        assert_eq!(parsed("common_pid.execname"), context(ContextKey::Thread));
    }

    #[test]
    fn hosts_are_told_apart_here_and_not_by_the_kernel() {
        let by = |text: &str| text.parse::<CountKey<AggregationKey>>().unwrap();
        let (keys, is_by_host) = CountKey::split(vec![by("host.exact"), by("host"), by("comm")]);
        assert_eq!((keys.len(), is_by_host), (2, true));
        assert_eq!(Ok(keys[0].key.clone().unwrap()), parsed("host"), "the field of that name");
        let (keys, is_by_host) = CountKey::split(vec!["cpu".parse::<CountKey<ContextKey>>().unwrap()]);
        assert_eq!((keys, is_by_host), (vec![ContextKey::Cpu], false));
        assert_eq!("host".parse(), Ok(CountKey::<ContextKey>::Host));
    }

    #[test]
    fn what_is_no_key_says_why() {
        insta::assert_snapshot!(
            ["", "a b", "x.log", "x.buckets=0", "x.buckets=", "x.execname"]
                .map(|text| parsed(text).unwrap_err())
                .join("\n"),
            @"
            `` is not a key: write a field of the probe, or `thread`, `comm`, `cpu` or `stack`
            `a b` is not a key: write a field of the probe, or `thread`, `comm`, `cpu` or `stack`
            `.log` is unknown: write `.log2`, `.buckets=N`, `.sym`, `.sym-offset` or `.exact` after a field
            `0` is not a width of a bucket: write 1 or more
            `` is not a width of a bucket: write 1 or more
            `.execname` is only for `thread`: write `thread` or `comm`
            "
        );
        assert!(latency_key("stack").is_err() && latency_key("bytes").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            if let Ok(key) = aggregation_key(&text) {
                prop_assert_eq!(aggregation_key(&key_notation(&key)), Ok(key));
            }
        }

        #[test]
        fn what_is_printed_can_be_read(
            name in prop_oneof![Just("comm".to_owned()), Just("common_pid".to_owned()), "[a-z_][a-z0-9_]{0,8}"],
            form in "(\\.(log2|exact|sym|sym-offset|buckets=[1-9][0-9]{0,8}))?",
        ) {
            let key = aggregation_key(&format!("{name}{form}")).unwrap();
            prop_assert_eq!(aggregation_key(&key_notation(&key)), Ok(key));
        }
    }
}
