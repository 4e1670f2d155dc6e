//! Harmful kernel filters: accepted by the kernel, they crash the host or select nothing.
//!
//! Owns the rule for them: a comparison of a field whose size is not that of a number. For these
//! the kernel finds no comparison function
//! (kernel/trace/trace_events_filter.c:select_comparison_fn), and before 6.1 it calls the missing
//! function at the first hit (filter_match_preds): a panic, seen on 5.10. Later kernels let no
//! event pass, so that refusing all of them loses nothing. Never says whether a filter is otherwise
//! valid.

use super::{Filter, FilterCode, FilterError};
use kprobed_host::tracefs::format::{Field, Format, Presentation, Shape};
use kprobed_lang::definition::Span;

/// The reason why a filter must not reach the kernel, if there is one. A filter that only the
/// kernel can parse is refused if it names such a field at all.
pub fn harm(text: &str, format: &Format) -> Option<FilterError> {
    let mut fields = format.common.iter().chain(&format.fields).filter(|field| !is_comparable(field));
    match Filter::parse(text) {
        Ok(filter) => {
            let mut found = None;
            filter.fields(&mut |name, span| {
                if found.is_none()
                    && let Some(field) = fields.clone().find(|field| field.name == name)
                {
                    found = Some(refusal(field, span));
                }
            });
            found
        }
        Err(_) => fields.find_map(|field| {
            let start = text.find(&field.name)?;
            Some(refusal(field, Span::new(start, start + field.name.len())))
        }),
    }
}

/// Whether the kernel has a comparison function for the field: numbers of four sizes, and strings
/// (`filter_assign_type`).
fn is_comparable(field: &Field) -> bool {
    let is_one = matches!(field.shape, Shape::Scalar { .. });
    let is_text = field.presentation == Presentation::String || (field.type_text.contains("char") && !is_one);
    is_text || matches!(field.size, 1 | 2 | 4 | 8)
}

fn refusal(field: &Field, span: Span) -> FilterError {
    FilterError::new(
        FilterCode::IllegalFieldOp,
        span,
        format!(
            "`{}` has {} bytes: the kernel compares fields of 1, 2, 4 or 8 bytes, and kernels before 6.1 crash on others",
            field.name, field.size
        ),
        "have the probe record one element as an argument of its own, or filter with `kprobectl observe --filter`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: e\nID: 1500\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:u8 three[3];\toffset:16;\tsize:3;\tsigned:0;\n\
        \tfield:u16 four[2];\toffset:19;\tsize:4;\tsigned:0;\n\
        \tfield:char text[16];\toffset:23;\tsize:16;\tsigned:0;\n\
        \tfield:__data_loc char[] name;\toffset:39;\tsize:4;\tsigned:1;\n\
        \tfield:struct in6_addr address;\toffset:43;\tsize:16;\tsigned:0;\n\
        \tfield:unsigned char mac[6];\toffset:59;\tsize:6;\tsigned:0;\n\
        \tfield:struct char_device device;\toffset:65;\tsize:24;\tsigned:0;\n\n\
        print fmt: \"(%lx)\", REC->__probe_ip\n";

    #[test]
    fn fields_that_no_number_has_the_size_of() {
        let format = Format::parse(FORMAT).unwrap();
        let found = |text: &str| {
            let found = harm(text, &format)?;
            assert!(!found.hint.is_empty() && found.code == FilterCode::IllegalFieldOp, "{found:?}");
            Some(text[found.span.start..found.span.end].to_owned())
        };
        for good in [
            "four == 1",
            "text ~ \"three*\"",
            "name == \"x\"",
            "common_pid != 3",
            "mac == \"x\"",
            "nosuch == 1",
            "((",
        ] {
            assert_eq!(found(good), None, "{good}");
        }
        for bad in ["three == 1", "four == 1 && !(name == \"x\" || three > 2)", "three & 1", "three != 0 &&"]
        {
            assert_eq!(found(bad).as_deref(), Some("three"), "{bad}");
        }
        assert_eq!(found("address == 0").as_deref(), Some("address"));
        assert_eq!(found("device == 0").as_deref(), Some("device"));
    }
}
