//! Differences between two configuration files, setting by setting.
//!
//! Owns how a setting is named and shown, and which of them a reload puts in force. Never applies one.

use std::collections::BTreeMap;

use toml::{Table, Value};

/// A setting whose value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// Its path: `log.level`, `role[storage-team].allow[1].reads`.
    pub setting: String,
    /// Its value in the file before, as TOML. Absent: it was not there, and had its default.
    pub before: Option<String>,
    /// Its value in the file now, likewise.
    pub after: Option<String>,
    /// Whether it is in force only after a restart.
    pub needs_restart: bool,
}

/// What stands for values that can be secrets.
const HIDDEN: &str = "(not shown)";

/// What differs between two files.
pub fn changes(before: &Table, now: &Table) -> Vec<SettingChange> {
    let (was, is) = (flat(before), flat(now));
    let settings: std::collections::BTreeSet<_> = was.keys().chain(is.keys()).collect();
    let tls_stays = has_tls(before) && has_tls(now);
    let differ = settings.into_iter().filter(|setting| was.get(*setting) != is.get(*setting));
    differ
        .map(|setting| SettingChange {
            setting: setting.clone(),
            before: was.get(setting).map(|value| shown(setting, value)),
            after: is.get(setting).map(|value| shown(setting, value)),
            needs_restart: needs_restart(setting, tls_stays),
        })
        .collect()
}

/// What the daemon runs with after a reload: the settings before, with those of `now` that are in force at
/// once.
pub fn after_reload(before: &Table, now: &Table) -> Table {
    let mut running = before.clone();
    replace(&mut running, "role", now.get("role"));
    if has_tls(before)
        && has_tls(now)
        && let Some(Value::Table(listen)) = running.get_mut("listen")
    {
        let tls = now.get("listen").and_then(|listen| listen.get("tls"));
        replace(listen, "tls", tls);
    }
    running
}

fn replace(table: &mut Table, key: &str, value: Option<&Value>) {
    match value {
        Some(value) => drop(table.insert(key.to_owned(), value.clone())),
        None => drop(table.remove(key)),
    }
}

/// Roles, and certificates where there were some, are replaced while the daemon runs.
fn needs_restart(setting: &str, tls_stays: bool) -> bool {
    !(setting.starts_with("role[") || (tls_stays && setting.starts_with("listen.tls.")))
}

fn has_tls(file: &Table) -> bool {
    file.get("listen").and_then(Value::as_table).is_some_and(|listen| listen.contains_key("tls"))
}

/// Headers for a collector are the one place for secrets: others are in files of their own.
fn shown(setting: &str, value: &str) -> String {
    if setting.contains(".headers.") { HIDDEN.to_owned() } else { value.to_owned() }
}

fn flat(file: &Table) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    add(&mut settings, "", file);
    settings
}

fn add(settings: &mut BTreeMap<String, String>, path: &str, table: &Table) {
    for (key, value) in table {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            Value::Table(table) => add(settings, &path, table),
            Value::Array(values) if values.iter().all(Value::is_table) && !values.is_empty() => {
                for (index, table) in values.iter().filter_map(Value::as_table).enumerate() {
                    let name = table.get("name").and_then(Value::as_str);
                    let name = name.map_or_else(|| (index + 1).to_string(), str::to_owned);
                    add(settings, &format!("{path}[{name}]"), table);
                }
            }
            value => drop(settings.insert(path, value.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn changed(before: &str, now: &str) -> Vec<String> {
        let changes = changes(&before.parse().unwrap(), &now.parse().unwrap());
        let value = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let line = |one: SettingChange| {
            let when = if one.needs_restart { "restart" } else { "now" };
            format!("{}: {} -> {} ({when})", one.setting, value(one.before), value(one.after))
        };
        changes.into_iter().map(line).collect()
    }

    #[test]
    fn settings_are_named_by_their_path() {
        let before = "[log]\nlevel = 'info'\n[spool]\nmax_mib = 100\n[[role]]\nname = 'a'\nprincipals = ['uid:1']\n\
            [[role.allow]]\nmethods = ['read']\n[[role]]\nname = 'b'\nprincipals = ['uid:2']\n";
        let now = "[log]\nlevel = 'debug'\n[[role]]\nname = 'b'\nprincipals = ['uid:2']\n[[role]]\nname = 'a'\n\
            principals = ['uid:1', 'uid:3']\n[[role.allow]]\nmethods = ['read']\n[[role.allow]]\nmethods = ['check']\n";
        assert_eq!(
            changed(before, now),
            [
                "log.level: \"info\" -> \"debug\" (restart)",
                "role[a].allow[2].methods: - -> [\"check\"] (now)",
                "role[a].principals: [\"uid:1\"] -> [\"uid:1\", \"uid:3\"] (now)",
                "spool.max_mib: 100 -> - (restart)",
            ]
        );
        assert_eq!(changed(before, before), Vec::<String>::new());
    }

    #[test]
    fn certificates_are_replaced_and_tls_is_not_switched() {
        let (without, with) = ("[listen]\ntcp = 'x'\n", "[listen]\ntcp = 'x'\n[listen.tls]\nkey = '/a'\n");
        assert_eq!(changed(without, with), ["listen.tls.key: - -> \"/a\" (restart)"]);
        let other = with.replace("/a", "/b");
        assert_eq!(changed(with, &other), ["listen.tls.key: \"/a\" -> \"/b\" (now)"]);
    }

    #[test]
    fn what_waits_for_a_restart_differs_until_then() {
        let file = |level: &str, key: &str, role: &str| -> Table {
            format!("[log]\nlevel = '{level}'\n[listen.tls]\nkey = '{key}'\n[[role]]\nname = '{role}'\n")
                .parse()
                .unwrap()
        };
        let now = file("debug", "/b", "b");
        let running = after_reload(&file("info", "/a", "a"), &now);
        assert_eq!(running, file("info", "/b", "b"));
        assert!(changes(&running, &now).iter().all(|change| change.setting == "log.level"));
        assert_eq!(after_reload(&running, &Table::new()).get("role"), None);
    }

    #[test]
    fn secrets_are_not_shown() {
        let header = |value: &str| format!("[export.otlp.headers]\nauthorization = '{value}'\n");
        assert_eq!(
            changed(&header("one"), &header("two")),
            ["export.otlp.headers.authorization: (not shown) -> (not shown) (restart)"]
        );
    }

    proptest! {
        /// A file differs from another exactly if a setting does.
        #[test]
        fn nothing_is_missed(before in "[a-c]", now in "[a-c]", more in any::<bool>()) {
            let file = |value: &str, more: bool| {
                let more = if more { "x = 1\n" } else { "" };
                format!("[state]\ndirectory = '{value}'\n[budget]\n{more}")
            };
            let changed = changed(&file(&before, false), &file(&now, more));
            prop_assert_eq!(changed.len(), usize::from(before != now) + usize::from(more));
        }
    }
}
