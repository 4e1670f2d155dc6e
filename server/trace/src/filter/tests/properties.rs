//! Property tests of filters: text and tree are inverse, no text panics, and selection follows the
//! laws of logic.

use proptest::prelude::*;

use super::kernel::{Rest, passes};
use super::strategies::{events, nearly, trees};
use super::*;

/// Properties of any text.
fn check_text(text: &str) {
    let checked = |error: &FilterError| {
        assert!(text.get(error.span.range()).is_some(), "{error:?} of {text:?}");
        assert!(!error.message.is_empty() && !error.hint.is_empty(), "{error:?}");
    };
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(error) => return checked(&error),
    };
    let canonical = filter.to_string();
    if canonical.len() >= 4096 {
        // Blanks take room: it was close to the limit without them.
        assert!(text.len() > 2048 && filter.bind(&schema(), &BINDING).is_ok());
        return;
    }
    let again = Filter::parse(&canonical).unwrap_or_else(|error| panic!("{canonical:?}: {error:?}"));
    assert_eq!(again.to_string(), canonical);
    match (filter.bind(&schema(), &BINDING), again.bind(&schema(), &BINDING)) {
        (Err(first), Err(second)) => {
            checked(&first);
            assert_eq!((first.code, first.message), (second.code, second.message));
        }
        (Ok(bound), Ok(_)) => {
            for features in
                [KernelFilterFeatures::default(), KernelFilterFeatures { functions: true, cpu_lists: true }]
            {
                if let Some(pushed) = bound.kernel_text(features).text {
                    let kernel =
                        Filter::parse(&pushed).unwrap_or_else(|error| panic!("{pushed:?}: {error:?}"));
                    kernel.check_for_kernel(&schema(), Some(&TwoFunctions)).unwrap();
                }
            }
        }
        (first, second) => panic!("{text:?} is {first:?} and {canonical:?} is {second:?}"),
    }
}

/// Nesting as deep as the limit of a text allows.
#[test]
fn deep_nesting_is_survived() {
    check_text(&"(".repeat(4000));
    check_text(&format!("{}u8==1{}", "(".repeat(2040), ")".repeat(2040)));
    check_text(&format!("{}u8==1", "!".repeat(4000)));
    check_text(&format!("{}u8==1{}", "u8<1&&!(".repeat(440), ")".repeat(440)));
    check_text(&format!("{}u8==1{}", "u8<1&&(u8<2||(".repeat(250), "))".repeat(250)));
    check_text(&format!("{}u8==1", "u8<1||".repeat(680)));
}

proptest! {
    #[test]
    fn any_text_is_survived(text in "\\PC{0,40}") {
        check_text(&text);
    }

    #[test]
    fn what_is_nearly_a_filter_is_survived(text in nearly()) {
        check_text(&text);
    }

    #[test]
    fn filters_mean_what_the_book_says(tree in trees(), events in prop::collection::vec(events(), 8)) {
        let text = tree.text();
        check_text(&text);
        let bound = bind(&text).unwrap();
        let opposite = bind(&format!("!({text})")).unwrap();
        let twice = bind(&format!("!(!({text}))")).unwrap();
        for event in events {
            let expected = tree.holds(&event);
            prop_assert_eq!(bound.matches(&event), expected == Some(true), "{} {:?}", text, event);
            prop_assert_eq!(opposite.matches(&event), expected == Some(false), "not {} {:?}", text, event);
            prop_assert_eq!(twice.matches(&event), bound.matches(&event));
        }
    }

    #[test]
    fn de_morgan(a in trees(), b in trees(), events in prop::collection::vec(events(), 8)) {
        let (a, b) = (a.text(), b.text());
        let pairs = [
            (format!("!(({a}) && ({b}))"), format!("!({a}) || !({b})")),
            (format!("!(({a}) || ({b}))"), format!("!({a}) && !({b})")),
        ];
        for (left, right) in pairs {
            let (first, second) = (bind(&left).unwrap(), bind(&right).unwrap());
            for event in &events {
                prop_assert_eq!(first.matches(event), second.matches(event), "{} {:?}", left, event);
            }
        }
    }

    /// The kernel's filter selects at least as much, whether or not the values of an event could be
    /// read.
    #[test]
    fn the_kernel_selects_no_less(tree in trees(), events in prop::collection::vec(events(), 8)) {
        let bound = bind(&tree.text()).unwrap();
        let pushed = bound.kernel_text(KernelFilterFeatures::default());
        let Some(text) = pushed.text else { return Ok(()) };
        let kernel = bind(&text).unwrap();
        for event in &events {
            prop_assert!(!bound.matches(event) || kernel.matches(event), "{} {:?}", text, event);
            prop_assert!(!pushed.exact || bound.matches(event) == kernel.matches(event), "{} {:?}", text, event);
        }
    }

    /// The kernel's filter, as a model of the kernel evaluates it, drops no event that the whole filter selects,
    /// whatever is in the record where nothing could be read.
    #[test]
    fn the_kernel_drops_nothing_that_is_wanted(
        tree in trees(),
        events in prop::collection::vec(events(), 8),
        number: i64,
        text in "[ab]{0,2}",
    ) {
        let rest = Rest { number, text };
        let bound = bind(&tree.text()).unwrap();
        let Some(pushed) = bound.kernel_text(KernelFilterFeatures::default()).text else { return Ok(()) };
        for event in &events {
            prop_assert!(!bound.matches(event) || passes(&pushed, event, &rest), "{} {:?}", pushed, event);
        }
    }
}
