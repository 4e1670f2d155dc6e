//! Test of facts that pages, units and the example of the configuration repeat: they are those of the code.

use std::collections::BTreeSet;

use super::pages::{files, read, root};

/// The words of a text that begin like this.
fn words<'a>(text: &'a str, beginning: &str) -> BTreeSet<&'a str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with(beginning)).collect()
}

/// The values of a setting, with or without a comment sign.
fn settings<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let lines = text.lines().map(|line| line.trim_start_matches(['#', ' ']));
    let values = lines.filter_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix('='));
    values.map(|value| value.trim().trim_matches('"')).collect()
}

#[test]
fn the_capabilities_are_those_that_the_daemon_keeps() {
    let code = read("server/src/sandbox/mod.rs");
    let kept = code.lines().find(|line| line.starts_with("pub const KEPT")).unwrap();
    let names = kept.split("CapabilitySet::").skip(1);
    let kept: Vec<_> =
        names.map(|rest| format!("CAP_{}", rest.split(['.', ')', ';']).next().unwrap())).collect();
    let kept: BTreeSet<_> = kept.iter().map(String::as_str).collect();
    assert!(kept.len() > 1, "{kept:?}");
    let unit = read("deploy/systemd/kprobed.service");
    assert_eq!(words(settings(&unit, "CapabilityBoundingSet")[0], "CAP_"), kept);
    // What the daemon does not have is named too.
    let example = read("deploy/kprobed.example.toml").replace("Without CAP_DAC_OVERRIDE", "");
    assert_eq!(words(&example, "CAP_"), kept);
    let page = read("deploy/docs/explain/security.md");
    let rows: String = page.lines().filter(|line| line.starts_with("| `CAP_")).collect();
    assert_eq!(words(&rows, "CAP_"), kept);
}

#[test]
fn the_workflow_has_the_compiler_that_the_checks_are_made_for() {
    let script = read(".ci/run");
    let compiler = script.split_once("TOOLCHAIN=").unwrap().1.split_whitespace().next().unwrap();
    let workflow = read(".github/workflows/checks.yml");
    assert!(workflow.contains(&format!("container: rust:{compiler}-")), "{compiler}: {workflow}");
    assert!(workflow.contains("run: .ci/run"));
}

#[test]
fn the_units_open_the_sockets_of_the_configuration() {
    let example = read("deploy/kprobed.example.toml");
    for (unit, setting) in [("kprobed.socket", "unix"), ("kprobed-tcp.socket", "tcp")] {
        let unit = read(&format!("deploy/systemd/{unit}"));
        assert_eq!(settings(&unit, "ListenStream"), settings(&example, setting));
    }
}

#[test]
fn the_unit_lets_the_daemon_write_where_the_examples_do() {
    let unit = read("deploy/systemd/kprobed.service");
    let logs = format!("/var/log/{}/", settings(&unit, "LogsDirectory")[0]);
    assert_eq!(settings(&unit, "ProtectSystem"), ["strict"]);
    let examples = ["kprobed.example.toml", "pipelines/vector.yaml", "pipelines/fluent-bit.yaml"];
    for example in examples {
        let text = read(&format!("deploy/{example}"));
        let paths: Vec<_> =
            settings(&text, "path").into_iter().filter(|path| path.contains(".jsonl")).collect();
        assert!(
            !paths.is_empty() && paths.iter().all(|path| path.starts_with(&logs)),
            "{example}: {paths:?}"
        );
    }
    assert!(read("deploy/pipelines/logrotate.conf").contains(&format!("\n{logs}")));
}

#[test]
fn no_message_sends_an_operator_to_a_file_of_a_checkout() {
    let mut seen = 0;
    for directory in ["server", "client", "proto"] {
        let texts = files(directory, ".rs").into_iter().chain(files(directory, ".txt"));
        for path in texts.filter(|path| path.contains("/src/")) {
            let source = read(&path);
            // Tests are at the end of a file, or in files of their own.
            let product = source.split("#[cfg(test)]").next().unwrap_or_default();
            let is_test = path.contains("test") || path.contains("/bin/");
            seen += usize::from(!is_test);
            for line in product.lines().filter(|line| !is_test && !line.trim_start().starts_with("//")) {
                let names = ["deploy/", "server/", "migrations/"].iter().any(|top| line.contains(top));
                assert!(!names || line.contains("include_"), "{path}: {line}");
            }
        }
    }
    assert!(seen > 600, "only {seen} files were found");
}

#[test]
fn pages_for_users_name_installed_files() {
    const EXAMPLES: &str = "/usr/share/doc/kprobed/examples/";
    let mut examples = 0;
    for path in files("deploy/docs", ".md").iter().filter(|path| !path.contains("/project/")) {
        let page = read(path);
        for paragraph in page.split("\n\n") {
            let is_of_checkout = paragraph.contains("checkout");
            assert!(is_of_checkout || !paragraph.contains("`deploy/"), "{path}: {paragraph}");
        }
        let is_end = |c: char| c.is_whitespace() || "`'|)".contains(c);
        for name in page.split(EXAMPLES).skip(1).filter_map(|rest| rest.split(is_end).next()) {
            examples += 1;
            // `deploy/release` copies them from these directories.
            let from = ["deploy", "deploy/systemd"].map(|from| root().join(from).join(name).exists());
            assert!(
                name == "kprobed.toml" || from.contains(&true),
                "{path}: no package has {EXAMPLES}{name}"
            );
        }
    }
    assert!(examples > 5, "{examples}");
}

#[test]
fn a_table_of_a_page_is_one_block() {
    let pages = files("", ".md");
    let is_row = |line: &str| line.trim_start().starts_with('|');
    let mut tables = 0;
    for path in &pages {
        let (mut fenced, mut before) = (false, "");
        let text = read(path);
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            if !fenced && is_row(line) && !is_row(before) {
                let ruled = lines.peek().is_some_and(|next| next.replace(' ', "").starts_with("|-"));
                assert!(ruled, "{path}: a row without a heading: {line}");
                tables += 1;
            }
            before = line;
        }
    }
    assert!(tables > 20, "{tables}");
}

#[test]
fn reasons_that_the_command_looks_for_are_the_daemons() {
    // Variables of the environment look the same.
    let is_code = |text: &&str| {
        !text.starts_with("KPROBE")
            && text.contains('_')
            && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    };
    let mut sources = String::new();
    for path in files("server", ".rs").iter().filter(|path| path.contains("/src/")) {
        sources.push_str(&read(path));
    }
    let known: BTreeSet<_> = sources.split(|c: char| !c.is_ascii_uppercase() && c != '_').collect();
    let mut found = 0;
    for path in files("client", ".rs").iter().filter(|path| path.contains("/src/")) {
        for line in read(path).lines().filter(|line| line.contains("const ") && line.contains(": &str = ")) {
            let Some(code) = line.split('"').nth(1).filter(is_code) else { continue };
            found += 1;
            assert!(known.contains(code), "{path}: the daemon has no reason {code}");
        }
    }
    assert!(found >= 3, "{found}");
}
