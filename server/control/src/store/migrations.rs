//! Migrations: the steps from one version of the database to the next.
//!
//! Owns the list of the files in `migrations/`, which are a part of the program. Without the macro of sqlx, which would
//! have SQLite compiled a second time for the compiler's own use. Never runs a step: the store does.

use std::sync::LazyLock;

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// The files, in the order of their numbers: the name of each without its suffix, and its text.
const FILES: &[(&str, &str)] = &[("0001_schema", include_str!("../../../../migrations/0001_schema.sql"))];

/// All steps.
pub(super) static MIGRATIONS: LazyLock<Migrator> =
    LazyLock::new(|| Migrator::with_migrations(FILES.iter().filter_map(migration).collect()));

/// A step. `None` for a name that is not `NNNN_name`.
fn migration((name, text): &(&'static str, &'static str)) -> Option<Migration> {
    let (number, description) = name.split_once('_')?;
    let version = number.parse().ok()?;
    let description = description.replace('_', " ").into();
    Some(Migration::new(version, description, MigrationType::Simple, SqlStr::from_static(text), false))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_is_a_step() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
        let mut files: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let listed: Vec<_> = FILES.iter().map(|(name, _)| format!("{name}.sql")).collect();
        assert_eq!(listed, files);
        let steps: Vec<_> = MIGRATIONS.iter().map(|step| (step.version, step.description.as_ref())).collect();
        assert_eq!((steps.len(), steps[0]), (FILES.len(), (1, "schema")));
        assert!(steps.is_sorted_by(|one, next| one.0 < next.0), "{steps:?}");
    }
}
