//! Test of citations in documents: files, functions, tests and guest themes exist, and all threads,
//! locks, states and crates are listed.
//!
//! A citation is in backquotes: `server/src/lib.rs` or `server/control/src/` is a path from the
//! root, `server/src/shutdown.rs: Tasks::spawn` an item of that file, and `guest: survival` or
//! `guest: survival::probes_survive_the_death_of_the_daemon` a theme of the guest tests or one of
//! its tests. Links to files are relative to their page.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The directories of the root that a citation can begin with.
const TOP: &[&str] = &["proto", "server", "client", "deploy", "migrations", ".ci", ".cargo", ".github"];

/// The directory of pages that forges show; no other hidden one has pages.
const FORGES: &str = ".github";

const ARCHITECTURE: &str = "server/ARCHITECTURE.md";

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[cfg(test)]
pub(super) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files below a directory that end like this, as paths from the root.
#[cfg(test)]
pub(super) fn files(directory: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(directory)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        if name.starts_with('.') && name != FORGES || name == "target" {
            continue;
        }
        let inner = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&inner, ending));
        } else if name.ends_with(ending) {
            found.push(inner);
        }
    }
    found
}

/// The texts in backquotes of a page, with their lines. What is between fences is text of a
/// terminal.
pub(super) fn quoted(page: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.extend(line.split('`').skip(1).step_by(2).map(|text| (index + 1, text)));
        }
    }
    found
}

/// The targets of links of a page, with their lines.
pub(super) fn links(page: &str) -> Vec<(usize, &str)> {
    let lines = page.lines().enumerate();
    lines
        .flat_map(|(index, line)| {
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            targets.map(move |target| (index + 1, target))
        })
        .collect()
}

/// Whether a source defines this, as a whole word after a keyword. Of `Type::name`, both.
fn defines(source: &str, item: &str) -> bool {
    let keywords =
        ["fn ", "struct ", "enum ", "trait ", "const ", "static ", "mod ", "type ", "macro_rules! ", "impl "];
    item.split("::").all(|name| {
        let is_end = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let is_named = |at: usize| is_end(source[at + name.len()..].chars().next());
        let is_defined = |at: usize| keywords.iter().any(|keyword| source[..at].ends_with(keyword));
        // A method is that of its type, whose block may be in another file than the type; a variant
        // begins a line.
        let may_be_variant = name.starts_with(char::is_uppercase);
        let is_variant = |at: usize| {
            may_be_variant && source[..at].rsplit('\n').next().is_some_and(|line| line.trim().is_empty())
        };
        source.match_indices(name).any(|(at, _)| is_named(at) && (is_defined(at) || is_variant(at)))
    })
}

/// What is wrong with a citation. `None`: nothing, or it is not one.
fn problem(text: &str, main: &str) -> Option<String> {
    if let Some(wanted) = text.strip_prefix("guest: ") {
        let (theme, test) =
            wanted.split_once("::").map_or((wanted, None), |(theme, test)| (theme, Some(test)));
        let Some(module) = main
            .split_once(&format!("(\"{theme}\", "))
            .and_then(|(_, rest)| rest.split_once("::TESTS"))
            .and_then(|(entry, _)| entry.rsplit(' ').next())
        else {
            return Some(format!("there is no theme `{theme}`"));
        };
        let directory = root().join("deploy/vm/tests/guest");
        let source = [directory.join(format!("{module}.rs")), directory.join(module).join("mod.rs")]
            .iter()
            .find_map(|path| fs::read_to_string(path).ok())
            .unwrap_or_default();
        return test
            .filter(|test| !source.contains(&format!("\nfn {test}(")))
            .map(|test| format!("the theme `{theme}` has no test `{test}`"));
    }
    let (path, item) = text.split_once(": ").map_or((text, None), |(path, item)| (path, Some(item)));
    let is_path = path.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c));
    let top = path.split('/').next().unwrap_or_default();
    if !is_path || !path.contains('/') || !TOP.contains(&top) {
        return None;
    }
    // `NAME` and `NNNN` are placeholders for files that the reader makes: their directory exists.
    let is_pattern = path.contains("NAME") || path.contains("NNNN");
    let place = root().join(path);
    if is_pattern {
        let is_there = place.parent().is_some_and(Path::is_dir);
        return (!is_there).then(|| "there is no such directory".to_owned());
    }
    if !place.exists() {
        return Some("there is no such file".to_owned());
    }
    let item = item?;
    let source = fs::read_to_string(place).unwrap_or_default();
    (!defines(&source, item)).then(|| format!("the file does not define `{item}`"))
}

#[test]
fn what_pages_cite_is_there() {
    let main = read("deploy/vm/tests/guest/main.rs");
    let (mut findings, mut paths, mut items, mut guest) = (String::new(), 0, 0, 0);
    for page in files("", ".md") {
        let text = read(&page);
        for (line, cited) in quoted(&text) {
            match problem(cited, &main) {
                Some(problem) => writeln!(findings, "{page}:{line}: `{cited}`: {problem}").unwrap(),
                None if cited.starts_with("guest: ") => guest += 1,
                None if cited.contains(".rs: ") => items += 1,
                None if TOP.iter().any(|top| cited.starts_with(&format!("{top}/"))) => paths += 1,
                None => {}
            }
        }
        for (line, target) in links(&text) {
            let target = target.split('#').next().unwrap_or_default();
            let is_file = !target.is_empty() && !target.contains(':');
            if is_file && !root().join(&page).with_file_name(target).exists() {
                writeln!(findings, "{page}:{line}: a link to `{target}`: there is no such file").unwrap();
            }
        }
    }
    assert!(findings.is_empty(), "pages cite what is not there:\n{findings}");
    assert!(paths > 60 && items > 60 && guest > 20, "only {paths} paths, {items} items, {guest} guest tests");
}

#[test]
fn wrong_citations_are_found() {
    let main = read("deploy/vm/tests/guest/main.rs");
    let of = |text: &str| problem(text, &main);
    for wrong in [
        "server/src/nowhere.rs",
        "deploy/nowhere/",
        "server/nowhere/NAME.rs",
        "server/src/shutdown.rs: Tasks::stop_all",
        "server/src/shutdown.rs: Task",
        "guest: nowhere",
        "guest: survival::nothing_survives",
    ] {
        assert!(of(wrong).is_some(), "{wrong}");
    }
    for right in [
        "server/src/shutdown.rs: Tasks::stop",
        "server/src/shutdown.rs",
        "migrations/NNNN_name.sql",
        "guest: survival",
        "guest: survival::probes_survive_a_power_cut",
        "guest: reconcile_triggers",
        "server",
        "client/…",
        "kprobes/open",
    ] {
        assert_eq!(of(right), None, "{right}");
    }
    assert_eq!(quoted("a `b` c\n```\n`d`\n```\n`e` `f`"), [(1, "b"), (5, "e"), (5, "f")]);
    assert_eq!(links("[a](b.md) and [c](../d.md#e)"), [(1, "b.md"), (1, "../d.md#e")]);
}

/// The word after a text, at each occurrence in a source.
fn words_behind<'a>(source: &'a str, text: &str, end: char) -> Vec<&'a str> {
    source.split(text).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

#[test]
fn the_architecture_has_every_thread_lock_state_and_crate() {
    let page = read(ARCHITECTURE);
    let (mut threads, mut missing) = (Vec::new(), String::new());
    let mut need = |wanted: String, what: String| {
        if !page.contains(&wanted) {
            writeln!(missing, "{what}").unwrap();
        }
    };
    for path in
        ["server/src", "server/control/src", "server/trace/src", "server/host/src", "server/verdict/src"]
            .iter()
            .flat_map(|directory| files(directory, ".rs"))
    {
        let source = read(&path);
        threads.extend(words_behind(&source, "\"kprobed-", '"').into_iter().map(str::to_owned));
    }
    let threads: Vec<_> = threads.iter().map(|name| name.split('{').next().unwrap_or_default()).collect();
    let named = ["control", "read-", "rpc", "spool", "stream"];
    for name in named {
        assert!(threads.contains(&name), "no thread `kprobed-{name}` any more: {threads:?}");
        need(format!("`kprobed-{name}"), format!("the thread `kprobed-{name}`"));
    }
    // Each place that starts a thread or a task by a name of its own is on the page.
    let mut starts = 0;
    for path in ["server/src", "server/control/src", "server/trace/src"]
        .iter()
        .flat_map(|directory| files(directory, ".rs"))
    {
        let source = read(&path);
        let product = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        if path.contains("/tests") {
            continue;
        }
        for name in words_behind(product, "tasks.spawn(\"", '"') {
            starts += 1;
            need(format!("`{name}`"), format!("the task `{name}` of {path}"));
        }
        if product.contains("thread::Builder")
            || product.contains("Builder::new().name(")
            || product.contains("Builder::new_multi_thread")
        {
            starts += 1;
            need(path.clone(), format!("{path}, which starts threads"));
        }
    }
    assert!(starts >= 9, "only {starts} places start threads and tasks");

    // So is each file that has a lock.
    let mut locks = 0;
    for path in [
        "server/src",
        "server/control/src",
        "server/trace/src",
        "server/host/src",
        "server/verdict/src",
        "server/lang/src",
    ]
    .iter()
    .flat_map(|directory| files(directory, ".rs"))
    .filter(|path| !path.contains("/tests"))
    {
        let source = read(&path);
        let product = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let is_field = |line: &&str| !line.contains("fn ") && !line.trim_start().starts_with("//");
        let has_lock = |line: &str| ["Mutex<", "RwLock<"].iter().any(|lock| line.contains(lock));
        if product.lines().filter(is_field).any(has_lock) {
            locks += 1;
            need(path.clone(), format!("{path}, which has a lock"));
        }
    }
    assert!(locks > 15, "only {locks} files have locks");

    let probe = read("server/control/src/probe.rs");
    let states = probe.split_once("pub enum ProbeState {").unwrap().1.split_once("\n}").unwrap().0;
    let states: Vec<_> = states
        .lines()
        .filter_map(|line| line.strip_prefix("    ").filter(|line| line.starts_with(char::is_uppercase)))
        .map(|line| line.trim_end_matches(',').split('(').next().unwrap_or_default())
        .collect();
    assert!(states.len() > 5, "{states:?}");
    for state in states {
        need(format!("`{state}`"), format!("the state `{state}`"));
    }

    let manifest = read("Cargo.toml");
    let members = manifest.split_once("\nmembers = [").unwrap().1.split_once(']').unwrap().0;
    for member in members.split('"').skip(1).step_by(2) {
        need(format!("`{member}/`"), format!("the crate in `{member}/`"));
    }
    assert!(missing.is_empty(), "{ARCHITECTURE} does not have:\n{missing}");
}
