//! Pages of the documentation as pages for `man`: what these pages have of Markdown, and no more.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::add_block;

/// Where packages have the documentation.
pub(super) const DOCUMENTATION: &str = "/usr/share/doc/kprobed";

/// The directory of the pages that are rendered: their links are relative to it.
const PARENT: &str = "../";

/// Adds a page of the documentation. Its first heading is the title, which a page for `man` has already.
pub(super) fn render(page: &mut Roff, text: &str) {
    let (_, text) = text.split_once("\n\n").unwrap_or_default();
    let mut lines = text.lines().peekable();
    // A paragraph directly behind a heading needs no distance.
    let mut is_first = true;
    if !text.starts_with("## ") {
        page.control("SH", ["DESCRIPTION"]);
    }
    while let Some(line) = lines.next() {
        let was_first = std::mem::take(&mut is_first);
        if let Some(heading) = line.strip_prefix("## ") {
            page.control("SH", [heading.to_uppercase().as_str()]);
            is_first = true;
        } else if let Some(heading) = line.strip_prefix("### ") {
            page.control("SS", [heading]);
            is_first = true;
        } else if line.starts_with("```") {
            let block: Vec<_> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            add_block(page, &block.iter().map(|line| format!("    {line}")).collect::<Vec<_>>());
        } else if line.starts_with("    ") {
            let mut block = vec![line];
            while let Some(next) = lines.next_if(|next| next.starts_with("    ")) {
                block.push(next);
            }
            add_block(page, &block);
        } else if line.starts_with('|') {
            add_row(page, line);
            // The line that rules off the heading.
            lines.next_if(|next| next.starts_with("|-"));
        } else if let Some(item) = line.strip_prefix("- ") {
            let mut item = item.to_owned();
            while let Some(next) = lines.next_if(|next| next.starts_with("  ")) {
                item.extend([" ", next.trim()]);
            }
            page.control("IP", ["\\(bu", "2"]).text(inlines(&item));
        } else if line.is_empty() {
            is_first = was_first;
        } else {
            let mut paragraph = line.to_owned();
            while let Some(next) = lines.next_if(|next| is_prose(next)) {
                paragraph.extend([" ", next]);
            }
            if !was_first {
                page.control("PP", []);
            }
            page.text(inlines(&paragraph));
        }
    }
}

/// Whether a line continues a paragraph.
fn is_prose(line: &str) -> bool {
    !line.is_empty() && !["#", "```", "|", "- "].iter().any(|start| line.starts_with(start))
}

/// A row of a table: what its first cell names is explained by the others.
fn add_row(page: &mut Roff, row: &str) {
    let row = row.trim_matches('|').trim();
    let (name, rest) = row.split_once(" | ").unwrap_or((row, ""));
    let is_heading = !name.contains('`') && !rest.contains('`');
    let explanation = rest.split(" | ").map(str::trim).collect::<Vec<_>>().join("; ");
    page.control("TP", []);
    if is_heading {
        page.text([italic(name)]).text([italic(explanation)]);
    } else {
        page.text(inlines(name.trim())).text(inlines(&explanation));
    }
}

/// A text with its words in backquotes in bold, and its links by what they are called.
pub(super) fn inlines(text: &str) -> Vec<Inline> {
    let mut found = Vec::new();
    for (index, part) in text.split('`').enumerate().filter(|(_, part)| !part.is_empty()) {
        if index % 2 == 1 {
            found.push(bold(part));
        } else {
            found.push(roman(without_links(&part.replace("**", ""))));
        }
    }
    found
}

/// Links by their texts, with the files that they lead to if packages have these.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some(((name, target), after)) =
            link.split_once(')').and_then(|(link, after)| Some((link.split_once("](")?, after)))
        else {
            break;
        };
        plain.extend([before, name]);
        let file = target.split('#').next().unwrap_or(target);
        match file.strip_prefix(PARENT) {
            _ if file.contains("://") => plain.extend([" (", file, ")"]),
            Some(file) if !file.starts_with(PARENT) => plain.extend([" (", DOCUMENTATION, "/", file, ")"]),
            _ => {}
        }
        rest = after;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> String {
        let mut page = Roff::new();
        render(&mut page, text);
        page.to_roff()
    }

    #[test]
    fn a_page_keeps_its_parts() {
        let text = "# Title\n\nOne `two`\nthree.\n\nFour.\n\n## Head\n\n| `a` | b | c `d` |\n|---|---|---|\n| `e` | f | g |\n\n\
                    - item\n  more\n\n```sh\n.x 'y'\n```\n\n    plain\n    text\n\nEnd.\n";
        let expected = ".SH DESCRIPTION\nOne \\fBtwo\\fR three.\n.PP\nFour.\n.SH HEAD\n.TP\n\\fBa\\fR\nb; c \\fBd\\fR\n\
                        .TP\n\\fBe\\fR\nf; g\n.IP \\(bu 2\nitem more\n.PP\n.EX\n    .x \\*(Aqy\\*(Aq\n.EE\n\
                        .PP\n.EX\n    plain\n    text\n.EE\n.PP\nEnd.\n";
        assert_eq!(rendered(text).replace('\'', "\\*(Aq"), expected);
    }

    #[test]
    fn a_link_names_a_file_that_is_installed() {
        assert_eq!(
            without_links("See [roles](../howto/roles.md#who), [a](b.md) and [c](https://d.e)."),
            "See roles (/usr/share/doc/kprobed/howto/roles.md), a and c (https://d.e)."
        );
        assert_eq!(without_links("`x[1]` a[2] [no"), "`x[1]` a[2] [no");
        assert_eq!(without_links("[out](../../../server/README.md)"), "out");
    }
}
