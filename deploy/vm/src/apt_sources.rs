//! The Debian archive of this machine, from its package sources, so that no address is written into
//! this program.
//!
//! Reads `/etc/apt`, in both of apt's notations; writes a source list for other suites of the same
//! archive. Never changes the machine's configuration.

use std::fs;
use std::path::Path;

/// One archive: where it is, and who signs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Archive {
    uri: String,
    /// The value of `Signed-By`, which may have several lines (an embedded key).
    signed_by: Option<String>,
}

/// The archives that Debian releases come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Archives {
    main: Archive,
    security: Archive,
}

/// One enabled source of binary packages.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    archive: Archive,
    suites: Vec<String>,
    components: Vec<String>,
}

/// Debian's own suites all start with one of these.
const CODENAMES: [&str; 10] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "stable",
    "oldstable",
    "oldoldstable",
    "testing",
    "unstable",
];

impl Archives {
    /// From the files below `etc_apt`; none when no source there looks like Debian's.
    pub(crate) fn from_machine(etc_apt: &Path) -> Option<Self> {
        let mut files = vec![etc_apt.join("sources.list")];
        let parts = fs::read_dir(etc_apt.join("sources.list.d")).into_iter().flatten();
        files.extend(parts.filter_map(|entry| Some(entry.ok()?.path())));
        files.sort();
        let mut sources = Vec::new();
        for file in files {
            let Ok(text) = fs::read_to_string(&file) else { continue };
            match file.extension().and_then(|extension| extension.to_str()) {
                Some("list") => sources.extend(text.lines().filter_map(one_line)),
                Some("sources") => sources.extend(stanzas(&text)),
                _ => {}
            }
        }
        Self::choose(&sources)
    }

    fn choose(sources: &[Source]) -> Option<Self> {
        let best = |security: bool| {
            sources
                .iter()
                .filter(|source| {
                    let wanted = |suite: &String| is_debian(suite) && suite.contains("security") == security;
                    source.components.iter().any(|component| component == "main")
                        && source.suites.iter().any(wanted)
                })
                // Other archives name their suites after Debian's, too.
                .max_by_key(|source| {
                    let uri = source.archive.uri.trim_end_matches('/');
                    (uri.ends_with("/debian") || uri.contains("debian-security"), uri.contains("debian"))
                })
                .map(|source| source.archive.clone())
        };
        let main = best(false)?;
        let security = best(true).unwrap_or_else(|| {
            // Mirrors usually carry both next to each other.
            let uri = main.uri.trim_end_matches('/').to_owned();
            Archive { uri: format!("{uri}-security"), ..main.clone() }
        });
        Some(Self { main, security })
    }

    /// A deb822 list of `suites`; those with `-security` in their name come from the security
    /// archive.
    pub(crate) fn list(&self, suites: &[&str]) -> String {
        let (security, main): (Vec<_>, Vec<_>) =
            suites.iter().copied().partition(|suite| suite.ends_with("-security"));
        let mut stanzas = Vec::new();
        for (archive, suites) in [(&self.main, main), (&self.security, security)] {
            if suites.is_empty() {
                continue;
            }
            let (uri, suites) = (&archive.uri, suites.join(" "));
            stanzas.push(format!("Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\n"));
            stanzas.extend(archive.signed_by.as_ref().map(|key| format!("Signed-By: {key}\n")));
            stanzas.push("\n".to_owned());
        }
        stanzas.concat()
    }
}

fn is_debian(suite: &str) -> bool {
    let name = suite.split(['-', '/']).next().unwrap_or_default();
    let rest = suite.trim_start_matches(name);
    let known = ["", "-updates", "-security", "/updates", "-backports", "-proposed-updates"];
    CODENAMES.contains(&name) && known.contains(&rest)
}

/// `deb [signed-by=KEY arch=amd64] URI SUITE COMPONENT...`
fn one_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let mut rest = line.strip_prefix("deb")?;
    rest = rest.starts_with(char::is_whitespace).then(|| rest.trim_start())?;
    let mut signed_by = None;
    if let Some((options, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        signed_by = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
        rest = after;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source {
        archive: Archive { uri: words.next()?, signed_by: signed_by.map(|key| key.replace(',', " ")) },
        suites: vec![words.next()?],
        components: words.collect(),
    })
}

fn stanzas(text: &str) -> Vec<Source> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines
        .split(|line| line.trim().is_empty())
        .filter_map(|stanza| {
            let field = |name: &str| {
                let mut lines = stanza.iter().skip_while(|line| {
                    !line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name))
                });
                let mut value = lines.next()?.split_once(':')?.1.trim().to_owned();
                for more in lines.take_while(|line| line.starts_with([' ', '\t'])) {
                    value.push('\n');
                    value.push_str(more);
                }
                Some(value)
            };
            let words = |value: String| value.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let off = |value: &String| matches!(value.to_ascii_lowercase().as_str(), "no" | "false");
            if field("Enabled").as_ref().is_some_and(off)
                || !words(field("Types")?).iter().any(|kind| kind == "deb")
            {
                return None;
            }
            Some(Source {
                archive: Archive {
                    uri: words(field("URIs")?).into_iter().next()?,
                    signed_by: field("Signed-By"),
                },
                suites: words(field("Suites")?),
                components: words(field("Components").unwrap_or_default()),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Option<Archives> {
        let etc = tempfile::tempdir().unwrap();
        fs::create_dir(etc.path().join("sources.list.d")).unwrap();
        for (name, text) in files {
            fs::write(etc.path().join(name), text).unwrap();
        }
        Archives::from_machine(etc.path())
    }

    #[test]
    fn deb822_with_comments_disabled_stanzas_and_foreign_archives() {
        let archives = machine(&[
            (
                "sources.list.d/debian.sources",
                "Types: deb\n# URIs: http://old.example/debian\nURIs: http://mirror.example/debian\n\
                 Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: /keys/debian.gpg\n\n\
                 Types: deb\nURIs: http://mirror.example/debian-security/\nSuites: bookworm-security\n\
                 Components: main\nSigned-By:\n -----BEGIN\n .\n xyz\n\n\
                 Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: sid\nComponents: main\n",
            ),
            (
                "sources.list.d/other.sources",
                "Types: deb\nURIs: http://other.example/tool\nSuites: bookworm\nComponents: main\n",
            ),
            ("sources.list.d/old.list.disabled", "deb http://disabled.example/debian sid main\n"),
        ])
        .unwrap();
        assert_eq!(
            archives.list(&["trixie", "bookworm", "trixie-security"]),
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie bookworm\nComponents: main\n\
             Signed-By: /keys/debian.gpg\n\n\
             Types: deb\nURIs: http://mirror.example/debian-security/\nSuites: trixie-security\nComponents: main\n\
             Signed-By: \n -----BEGIN\n .\n xyz\n\n"
        );
    }

    #[test]
    fn one_line_notation() {
        let archives = machine(&[(
            "sources.list",
            "# deb http://no.example/debian sid main\ndeb-src http://src.example/debian bookworm main\n\
             deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian bookworm main contrib # here\n",
        )])
        .unwrap();
        let signed = |uri: &str| Archive { uri: uri.to_owned(), signed_by: Some("/k.gpg".to_owned()) };
        assert_eq!(archives.main, signed("http://m.example/debian"));
        assert_eq!(archives.security, signed("http://m.example/debian-security"));
    }

    #[test]
    fn mirror_lists_are_kept_as_they_are() {
        let archives = machine(&[(
            "sources.list.d/debian.sources",
            "Types: deb deb-src\nURIs: mirror+file:/etc/apt/mirrors/debian.list\nSuites: trixie trixie-backports\n\
             Components: main\n\nTypes: deb\nURIs: mirror+file:/etc/apt/mirrors/debian-security.list\n\
             Suites: trixie-security\nComponents: main\n",
        )])
        .unwrap();
        assert_eq!(archives.main.uri, "mirror+file:/etc/apt/mirrors/debian.list");
        assert_eq!(archives.security.uri, "mirror+file:/etc/apt/mirrors/debian-security.list");
    }

    #[test]
    fn a_machine_without_debian_sources_has_none() {
        assert_eq!(machine(&[("sources.list", "deb http://a.example/ubuntu noble main\n")]), None);
        assert_eq!(machine(&[]), None);
    }
}
