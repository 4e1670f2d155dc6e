use proptest::prelude::*;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))).unwrap()
}

fn selector(text: &str) -> LabelSelector {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The message, and the text with the span in brackets.
fn refusal<T: fmt::Debug>(result: Result<T, LabelError>) -> (String, String) {
    let LabelError { mut text, span, message, .. } = result.unwrap_err();
    text.insert(span.end, ']');
    text.insert(span.start, '[');
    (message, text)
}

#[test]
fn labels_are_of_few_characters() {
    let pair = |key: &str, value: &str| Labels::new([(key.to_owned(), value.to_owned())]);
    let long = "x".repeat(63);
    for (key, value) in [("a", ""), ("team/Tier-1", "a.b_c"), (&long, &long), ("-", "/")] {
        assert_eq!(pair(key, value).unwrap().get(key), Some(value));
    }
    assert_eq!(refusal(pair("", "x")), ("a label needs a key".to_owned(), "[]=x".to_owned()));
    assert_eq!(refusal(pair("a b", "x")).1, "a[ ]b=x");
    assert_eq!(
        refusal(pair("a", "xé")),
        ("the value of a label cannot hold 'é'".to_owned(), "a=x[é]".to_owned())
    );
    assert_eq!(
        refusal(pair("a", &"x".repeat(64))).0,
        "the value of a label has 64 characters; at most 63 are allowed"
    );
    let huge = pair(&"k".repeat(1 << 20), "").unwrap_err();
    assert!(huge.text.len() < 200 && huge.span == (0..huge.text.len()), "{huge:?}");
    let many = (0..33).map(|number| (format!("k{number}"), String::new()));
    assert!(Labels::new(many.clone().take(32)).is_ok());
    let too_many = "the probe would have 33 labels; at most 32 are allowed";
    assert_eq!(Labels::new(many).unwrap_err().to_string(), too_many);
}

#[test]
fn a_change_names_what_it_touches() {
    let change = |set: &[(&str, &str)], remove: &[&str]| {
        LabelChange::new(labels(set), remove.iter().map(|key| (*key).to_owned()))
    };
    let before = labels(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let after = before.changed(&change(&[("a", "9"), ("d", "")], &["b", "absent"]).unwrap()).unwrap();
    assert_eq!(after.to_string(), "a=9,c=3,d=");
    assert_eq!(before.changed(&LabelChange::default()).unwrap(), before);
    assert!(change(&[], &[]).unwrap().is_empty() && !change(&[], &["x"]).unwrap().is_empty());
    assert_eq!(refusal(change(&[("a", "1")], &["a"])).0, "the same label cannot be set and removed");
    assert_eq!(refusal(change(&[], &["a=b"])).1, "a[=]b");
    let full = Labels::new((0..32).map(|number| (format!("k{number}"), String::new()))).unwrap();
    let error = full.changed(&change(&[("one-more", "")], &[]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "the probe would have 33 labels; at most 32 are allowed");
    assert!(full.changed(&change(&[("one-more", "")], &["k0"]).unwrap()).is_ok(), "removed first");
}

#[test]
fn selectors_mean_what_kubectl_means() {
    let web = labels(&[("app", "web"), ("tier", ""), ("in", "x")]);
    for (text, selects) in [
        ("", true),
        ("  ", true),
        ("app", true),
        ("!app", false),
        ("other", false),
        ("!other", true),
        ("app=web", true),
        (" app == web , tier ", true),
        ("app=api", false),
        ("app!=api", true),
        ("app!=web", false),
        ("other!=x", true),
        ("tier=", true),
        ("tier!=", false),
        ("app=", false),
        ("app in (api,web)", true),
        ("app in(api)", false),
        ("app notin (api , db)", true),
        ("app notin (web)", false),
        ("other notin (x)", true),
        ("tier in (,x)", true),
        ("in in (x)", true),
        ("in,in=x", true),
        ("app=web,tier=x", false),
    ] {
        assert_eq!(selector(text).matches(&web), selects, "`{text}`");
    }
    assert!(selector(" ").is_empty() && !selector("a").is_empty());
}

#[test]
fn what_is_no_selector_says_where() {
    let refused = |text: &str| refusal(text.parse::<LabelSelector>());
    for (text, shown, message) in [
        ("a,,b", "a,[],b", "expected a key"),
        ("a,", "a,[]", "expected a key"),
        (",", "[],", "expected a key"),
        ("=x", "[]=x", "expected a key"),
        ("!", "![]", "expected a key"),
        ("!a=b", "!a[]=b", "expected a comma"),
        ("a=b c", "a=b []c", "expected a comma"),
        ("a=b=c", "a=b[]=c", "expected a comma"),
        ("a b", "a []b", "a key is followed by `=`, `!=`, `in`, `notin`, a comma or the end"),
        ("a(", "a[](", "a key is followed by `=`, `!=`, `in`, `notin`, a comma or the end"),
        ("a in b", "a in []b", "`in` and `notin` are followed by values in parentheses"),
        ("a in (b", "a in (b[]", "expected a comma or `)`"),
        ("a in (b=c)", "a in (b[]=c)", "expected a comma or `)`"),
        ("a=b*", "a=b[*]", "the value of a label cannot hold '*'"),
        ("a:b", "a[:]b", "the key of a label cannot hold ':'"),
    ] {
        assert_eq!(refused(text), (message.to_owned(), shown.to_owned()), "`{text}`");
    }
    let long = refused(&"a,".repeat(3000)).0;
    assert_eq!(long, "the selector has 6000 bytes; at most 4096 are allowed");
}

fn word() -> impl Strategy<Value = String> {
    "[a-c/._-]{1,3}"
}

/// Whether a label's value, if it exists, meets a requirement.
type Meets = fn(Option<&str>, &[String]) -> bool;

/// One requirement: its text, its key, what it wants, and the values that it names.
fn requirement() -> impl Strategy<Value = (String, String, Meets, Vec<String>)> {
    let one_of =
        |value: Option<&str>, values: &[String]| value.is_some_and(|v| values.iter().any(|w| w == v));
    let values = prop::collection::vec(prop_oneof![word(), Just(String::new())], 1..4);
    (word(), values, 0..7).prop_map(move |(key, mut values, form)| {
        if form < 5 {
            values.truncate(1);
        }
        let list = values.join(", ");
        let (text, meets): (_, Meets) = match form {
            0 => (key.clone(), |value, _| value.is_some()),
            1 => (format!("! {key}"), |value, _| value.is_none()),
            2 => (format!("{key}={list}"), one_of),
            3 => (format!("{key} == {list}"), one_of),
            4 => (format!("{key}!={list}"), |value, values| value != values.first().map(String::as_str)),
            5 => (format!("{key} in ({list})"), one_of),
            _ => (format!("{key} notin ({list})"), |value, values| {
                !values.iter().any(|wanted| Some(wanted.as_str()) == value)
            }),
        };
        (text, key, meets, values)
    })
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_at_a_place(text in ".{0,40}") {
        if let Err(error) = text.parse::<LabelSelector>() {
            prop_assert!(error.text.get(error.span.clone()).is_some(), "{:?}", error);
        }
        if let Err(error) = Labels::new([(text.clone(), text.clone())]) {
            prop_assert!(error.text.get(error.span.clone()).is_some(), "{:?}", error);
        }
    }

    #[test]
    fn near_misses_are_read_or_refused_at_a_place(text in "([ab]|in|notin|[=!,() é]){0,12}") {
        match text.parse::<LabelSelector>() {
            Ok(read) => prop_assert_eq!(selector(&read.to_string()), read),
            Err(error) => prop_assert!(error.text.get(error.span.clone()).is_some(), "{:?}", error),
        }
    }

    #[test]
    fn every_requirement_has_to_be_met(
        all in prop::collection::vec(requirement(), 0..4),
        has in prop::collection::btree_map(word(), prop_oneof![word(), Just(String::new())], 0..5),
    ) {
        let text = all.iter().map(|(text, ..)| text.as_str()).collect::<Vec<_>>().join(",");
        let expected = all.iter().all(|(_, key, meets, values)| meets(has.get(key).map(String::as_str), values));
        let read = selector(&text);
        prop_assert_eq!(read.matches(&Labels::new(has).unwrap()), expected, "{}", text);
        prop_assert_eq!(selector(&read.to_string()), read);
    }

    #[test]
    fn a_change_sets_and_removes_and_leaves(
        before in prop::collection::btree_map("[a-e]", "[xy]?", 0..5),
        set in prop::collection::btree_map("[a-c]", "[xy]?", 0..3),
        remove in prop::collection::btree_set("[d-g]", 0..3),
    ) {
        let change = LabelChange::new(Labels::new(set.clone()).unwrap(), remove.clone()).unwrap();
        let after = Labels::new(before.clone()).unwrap().changed(&change).unwrap();
        for key in before.keys().chain(set.keys()).chain(&remove) {
            let expected = match (set.get(key), remove.contains(key)) {
                (Some(value), _) => Some(value),
                (None, true) => None,
                (None, false) => before.get(key),
            };
            prop_assert_eq!(after.get(key), expected.map(String::as_str));
        }
        prop_assert_eq!(after.changed(&change).unwrap(), after, "twice is once");
    }
}
