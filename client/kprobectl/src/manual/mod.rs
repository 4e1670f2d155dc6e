//! Pages for `man`: this command and each of its commands, by their grammar; the daemon, its configuration and
//! definitions, by the documentation.
//!
//! `KPROBECTL_MANUAL=DIRECTORY kprobectl` writes them, as packages have them. It is no command: users have the pages.

mod markdown;

use std::mem::take;
use std::path::Path;
use std::{env, fs, io};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use self::markdown::inlines;
use crate::cli::Cli;
use crate::help;

/// The variable that names the directory.
const VARIABLE: &str = "KPROBECTL_MANUAL";

/// No date: the pages are those of a version.
const DATE: &str = "\"\"";

/// What each page says at its foot.
const SOURCE: &str = concat!("kprobed ", env!("CARGO_PKG_VERSION"));

/// What each page says at its head.
const MANUAL: &str = "kprobed manual";

/// A page that is made of the documentation.
struct Document {
    name: &'static str,
    section: &'static str,
    about: &'static str,
    text: &'static str,
    render: fn(&mut Roff, &str),
}

const DOCUMENTS: [Document; 3] = [
    Document {
        name: "kprobed",
        section: "8",
        about: "the daemon that owns the kprobes of a host",
        text: include_str!("../../../../deploy/docs/reference/daemon.md"),
        render: markdown::render,
    },
    Document {
        name: "kprobed.toml",
        section: "5",
        about: "configuration of kprobed",
        text: include_str!("../../../../deploy/kprobed.example.toml"),
        render: render_configuration,
    },
    Document {
        name: "kprobe-definitions",
        section: "7",
        about: "what kprobed traces, and how it is written",
        text: include_str!("../../../../deploy/docs/reference/definitions.md"),
        render: markdown::render,
    },
];

/// Writes the pages, if that is asked for. `false`: this is a command to carry out.
pub(crate) fn answer() -> bool {
    let Some(directory) = env::var_os(VARIABLE) else { return false };
    if let Err(error) = write(Path::new(&directory)) {
        let message = format!("cannot write the manual into `{}`: {error}\n", directory.display());
        clap::Error::raw(ErrorKind::Io, message).exit();
    }
    true
}

fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    pages()?.into_iter().try_for_each(|(file, page)| fs::write(directory.join(file), page))
}

/// All pages, with the names of their files.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let built = |command: Command| {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        command
    };
    // `kprobectl --help` leaves out the options that every command has. They are on the page of `kprobectl` alone.
    let hidden: Vec<_> = Cli::command().get_arguments().filter(|one| one.is_hide_set()).cloned().collect();
    let whole = help::grammar().mut_args(|one| {
        let is_hidden = hidden.iter().any(|other| other.get_id() == one.get_id());
        one.hide(is_hidden)
    });
    let mut found = vec![page_of(&built(whole))?];
    add_commands(&built(help::grammar()), &mut found)?;
    for Document { name, section, about, text, render } in DOCUMENTS {
        let mut page = Roff::new();
        page.control("TH", [name.to_uppercase().as_str(), section, DATE, SOURCE, MANUAL]);
        page.control("SH", ["NAME"]).text([roman(format!("{name} - {about}"))]);
        render(&mut page, text);
        see_also(&mut page, name);
        let mut bytes = Vec::new();
        page.to_writer(&mut bytes)?;
        found.push((format!("{name}.{section}"), bytes));
    }
    Ok(found)
}

/// The pages of the commands below a command.
fn add_commands(above: &Command, found: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for command in above.get_subcommands().filter(|command| !command.is_hide_set()) {
        found.push(page_of(command)?);
        add_commands(command, found)?;
    }
    Ok(())
}

/// The page of a command. The parts are those of its help.
fn page_of(command: &Command) -> io::Result<(String, Vec<u8>)> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let man = Man::new(command.clone()).title(name.to_uppercase()).date(DATE).source(SOURCE).manual(MANUAL);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    man.render_options_section(&mut page)?;
    let mut rest = Roff::new();
    let explanation = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let examples = command.get_before_long_help().map(ToString::to_string).unwrap_or_default();
    if name == "kprobectl-language" {
        rest.control("SH", ["NOTES"]).text([bold("kprobe-definitions"), roman("(7) has this text.")]);
    } else {
        add_section(&mut rest, "NOTES", &explanation);
    }
    add_section(&mut rest, "EXAMPLES", examples.strip_prefix("Examples:\n").unwrap_or(&examples));
    see_also(&mut rest, name);
    rest.to_writer(&mut page)?;
    Ok((man.get_filename(), page))
}

fn add_section(page: &mut Roff, heading: &str, text: &str) {
    if !text.is_empty() {
        page.control("SH", [heading]);
        add_help(page, text);
    }
}

/// A text of help: lines that begin with a blank are shown as they are, and others are paragraphs.
fn add_help(page: &mut Roff, text: &str) {
    let mut lines = text.lines().peekable();
    let mut is_first = true;
    while let Some(line) = lines.next() {
        if line.starts_with(' ') {
            let mut block = vec![line];
            while let Some(next) = lines.next_if(|next| next.starts_with(' ')) {
                block.push(next);
            }
            add_block(page, &block);
        } else if !line.is_empty() {
            if !is_first {
                page.control("PP", []);
            }
            page.text([roman(line)]);
        }
        is_first = false;
    }
}

/// Lines that are shown as they are.
fn add_block(page: &mut Roff, lines: &[impl AsRef<str>]) {
    page.control("PP", []).control("EX", []);
    for line in lines {
        page.text([roman(line.as_ref())]);
    }
    page.control("EE", []);
}

/// The pages that a reader of this one may want.
fn see_also(page: &mut Roff, name: &str) {
    let all = ["kprobectl(1)", "kprobed.toml(5)", "kprobe-definitions(7)", "kprobed(8)"];
    let mut names: Vec<Inline> = Vec::new();
    for (other, section) in all.iter().filter_map(|page| page.split_once('(')) {
        if other != name {
            names.extend((!names.is_empty()).then(|| roman(", ")));
            names.extend([bold(other), roman(format!("({section}"))]);
        }
    }
    page.control("SH", ["SEE ALSO"]).text(names);
    page.control("PP", []).text([
        roman("The documentation is in "),
        bold(markdown::DOCUMENTATION),
        roman("."),
    ]);
}

/// Adds the example of the configuration: a section for each table, and each setting with its comment, which stands
/// before what it explains.
fn render_configuration(page: &mut Roff, example: &str) {
    page.control("SH", ["DESCRIPTION"]);
    let mut comment = Vec::new();
    // The first comment is about the file.
    let mut is_about_file = true;
    let mut lines = example.lines().map(|line| (line.starts_with('#'), plain(line))).peekable();
    while let Some((is_comment, line)) = lines.next() {
        if line.starts_with('[') && line.ends_with(']') {
            page.control("SS", [line]);
            add_comment(page, &take(&mut comment));
        } else if is_setting(line) {
            page.control("TP", []).text([bold(line)]);
            while let Some((_, next)) = lines.next_if(|(_, next)| is_setting(next)) {
                page.control("TQ", []).text([bold(next)]);
            }
            add_comment(page, &take(&mut comment));
        } else if is_comment || !is_about_file {
            comment.push(line);
        } else {
            add_comment(page, &take(&mut comment));
            page.control("SH", ["SETTINGS"]);
            is_about_file = false;
        }
    }
}

/// A line without the sign of a comment: settings that have no default are in comments.
fn plain(line: &str) -> &str {
    line.strip_prefix("# ").unwrap_or(line.trim_start_matches('#'))
}

/// Whether a line has the form `NAME = VALUE`.
fn is_setting(line: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_lowercase() || matches!(c, '_' | '.' | '"');
    line.split_once(" = ").is_some_and(|(name, _)| name.chars().all(is_of_name))
}

/// A comment: paragraphs, and lines that are shown as they are because they begin with a blank.
fn add_comment(page: &mut Roff, lines: &[&str]) {
    let mut lines = lines.iter().skip_while(|line| line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        let mut text = (*line).to_owned();
        let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
        while let Some(next) = lines.next_if(|next| is_prose(line) && is_prose(next)) {
            text.extend([" ", next]);
        }
        if !text.is_empty() {
            page.text(inlines(&text));
        } else if lines.peek().is_some() {
            page.control("PP", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What pages consist of beside text.
    const MACROS: [&str; 14] =
        ["TH", "SH", "SS", "PP", "TP", "IP", "EX", "EE", "RS", "RE", "br", "ie", "el", "TQ"];

    fn text_of(file: &str) -> String {
        let found = pages().unwrap().into_iter().find(|(name, _)| name == file);
        String::from_utf8(found.unwrap_or_else(|| panic!("there is no {file}")).1).unwrap()
    }

    fn names(above: &Command, path: &str) -> Vec<String> {
        let inner = above
            .get_subcommands()
            .flat_map(|command| names(command, &format!("{path}-{}", command.get_name())));
        std::iter::once(format!("{path}.1")).chain(inner).collect()
    }

    #[test]
    fn every_command_has_a_page() {
        let files: Vec<_> = pages().unwrap().into_iter().map(|(name, _)| name).collect();
        let commands = names(&Cli::command(), "kprobectl");
        assert!(commands.len() > 45, "{commands:?}");
        assert_eq!(files[..commands.len()], commands);
        assert_eq!(files[commands.len()..], ["kprobed.8", "kprobed.toml.5", "kprobe-definitions.7"]);
    }

    #[test]
    fn pages_are_what_man_reads() {
        for (file, page) in pages().unwrap() {
            let page = String::from_utf8(page).unwrap();
            let parts = ["\n.TH ", "\n.SH NAME\n", "\n.SH \"SEE ALSO\"\n"].map(|part| page.find(part));
            assert!(parts.iter().all(Option::is_some) && parts.is_sorted(), "{file}: {page}");
            let (name, _) = file.rsplit_once('.').unwrap();
            assert!(page.contains(&format!("\n{} \\- ", name.replace('-', "\\-"))), "{file}: {page}");
            let mut before = "";
            for line in page.lines() {
                let control = line.strip_prefix('.').map(|line| line.split(' ').next().unwrap());
                assert!(control.is_none_or(|name| MACROS.contains(&name)), "{file}: {line}");
                assert!(!line.starts_with('\''), "{file}: {line}");
                let is_empty = line.starts_with(".SH") && (before == ".PP" || before.starts_with(".SH"));
                assert!(!is_empty, "{file}: nothing before {line}");
                before = line;
            }
            assert_eq!(page.matches("\n.EX\n").count(), page.matches("\n.EE\n").count(), "{file}");
        }
    }

    #[test]
    fn options_of_every_command_are_on_one_page() {
        assert!(text_of("kprobectl.1").contains("\\fB\\-\\-server\\fR"));
        assert!(!text_of("kprobectl-add.1").contains("\\fB\\-\\-server\\fR"));
        let trace = text_of("kprobectl-trace.1");
        assert!(trace.contains("\n.SH EXAMPLES\n.PP\n.EX\n  kprobectl trace "), "{trace}");
    }

    #[test]
    fn settings_have_their_comments() {
        let example = "# About\n# it.\n\n# Of `x`.\n\n# More.\n[x]\n# Both:\n#   a  one\n#   b  two\ny = 1\n# z = \"2\"\n#\n# [[w]]\n# v = []\n";
        let mut page = Roff::new();
        render_configuration(&mut page, example);
        let expected = ".SH DESCRIPTION\nAbout it.\n.SH SETTINGS\n.SS [x]\nOf \\fBx\\fR.\n.PP\nMore.\n\
                        .TP\n\\fBy = 1\\fR\n.TQ\n\\fBz = \"2\"\\fR\nBoth:\n  a  one\n  b  two\n\
                        .SS [[w]]\n.TP\n\\fBv = []\\fR\n";
        assert_eq!(page.to_roff(), expected);
    }

    #[test]
    fn every_setting_of_the_example_is_on_the_page() {
        let example = include_str!("../../../../deploy/kprobed.example.toml");
        let mut page = Roff::new();
        render_configuration(&mut page, example);
        let (text, settings) = (page.to_roff(), example.lines().map(plain).filter(|line| is_setting(line)));
        let named = text.lines().filter(|line| line.starts_with("\\fB") && line.contains(" = "));
        assert_eq!(named.count(), settings.count());
        assert!(text.contains("\n.TP\n\\fBinterval_ms = 30000\\fR\nMilliseconds between"), "{text}");
    }
}
