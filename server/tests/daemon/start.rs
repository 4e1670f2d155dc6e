//! Test of what the program makes of a configuration.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn kprobed(config: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprobed"));
    command.arg("--config").arg(config).args(arguments).output().unwrap()
}

/// A start makes the same judgement as `--check-config`: everything that is wrong, in the order of its lines.
#[test]
fn all_that_is_wrong_with_a_configuration_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let (file, no_key) = (directory.path().join("start.toml"), directory.path().join("no_key"));
    fs::write(&no_key, "guest\n").unwrap();
    let no_key = no_key.display();
    let text = format!(
        "[listen]\nunix = \"\"\ntcp = \"127.0.0.1:7001\"\n[listen.tls]\ncertificate = \"/nosuch.pem\"\n\
         key = \"{no_key}\"\nclient_ca = \"/nosuch-ca.pem\"\n[state]\ndirectory = \"kprobed\"\n[tracing]\n\
         buffer_kib = 99_999_999_999\n[log]\nlevel = \"loud\"\nlevels = 3\n"
    );
    fs::write(&file, text).unwrap();
    let expected = [
        "2:1: `listen.unix` cannot be ``: it is empty",
        "5:1: `listen.tls.certificate` cannot be `/nosuch.pem`: No such file",
        &format!("6:1: `listen.tls.key` cannot be `{no_key}`: it holds no private key"),
        "7:1: `listen.tls.client_ca` cannot be `/nosuch-ca.pem`: No such file",
        "9:1: `state.directory` cannot be `kprobed`: it is relative",
        "11:1: `tracing.buffer_kib` cannot be `99999999999`: with ",
        "13:1: `log.level` cannot be `loud`: `loud` is not a level",
        "14:1: `log.levels` is not a setting",
    ];
    for arguments in [&["--check-config"][..], &[]] {
        let output = kprobed(&file, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        let place = format!("error: {}:", file.display());
        let errors: Vec<_> = said.lines().filter_map(|line| line.strip_prefix(&place)).collect();
        assert_eq!(errors.len(), expected.len(), "{said}");
        for (error, message) in errors.iter().zip(expected) {
            assert!(error.starts_with(message), "{error}");
        }
        assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), errors.len(), "{said}");
        assert!(said.lines().filter(|line| line.starts_with("hint: ")).count() >= expected.len(), "{said}");
    }
}

#[test]
fn a_warning_has_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("start.toml");
    fs::write(&file, "[listen]\ngroup = \"nosuch-group\"\n").unwrap();
    let output = kprobed(&file, &["--check-config"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = format!("warning: {}:2:1: this host has no group `nosuch-group`", file.display());
    assert!(output.status.success() && said.contains(&expected), "{said}");
}

#[test]
fn the_example_configuration_is_taken() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kprobed.example.toml");
    let output = kprobed(&example, &["--check-config"]);
    assert!(output.status.success(), "{output:?}");
}
