//! SQLite, opened with distrust: read-only, no trust in its schema, bounded lengths, typed columns.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};

use super::{Builder, malformed, nsys, rocpd, unknown};
use crate::{Error, Result};

/// Bytes of a text or blob at most; no profiler writes a longer one, and a broken file may claim gigabytes.
const LENGTH_MAX: i32 = 1 << 24;

pub(super) fn read(file: &Path, builder: &mut Builder) -> Result<()> {
    let database = Database::open(file)?;
    let tables = database.tables()?;
    if tables.iter().any(|table| table.starts_with("rocpd_")) {
        return rocpd::read(&database, &tables, builder);
    }
    let nsys = ["NVTX_EVENTS", "StringIds", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT"];
    if tables.iter().any(|table| nsys.contains(&table.as_str())) {
        return nsys::read(&database, &tables, builder);
    }
    let what =
        if tables.is_empty() { "it is SQLite without a table" } else { "it is SQLite of something else" };
    Err(unknown(file, what))
}

/// A database, and the name by which errors call it.
pub(super) struct Database<'f> {
    pub(super) file: &'f Path,
    connection: Connection,
}

impl<'f> Database<'f> {
    fn open(file: &'f Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags).map_err(|e| broken(file, "header", &e))?;
        let settle = || -> rusqlite::Result<()> {
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
            connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LENGTH_MAX)?;
            connection.pragma_update(None, "cell_size_check", true)
        };
        settle().map_err(|error| broken(file, "header", &error))?;
        Ok(Database { file, connection })
    }

    /// The names of the tables. Views are left out: a view can be made to never end.
    fn tables(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.rows("SELECT name FROM sqlite_master WHERE type = 'table'", "sqlite_master", &mut |row| {
            names.push(text(row.get_ref(0)?));
            Ok(Ok(()))
        })?;
        Ok(names)
    }

    /// The names of a table's columns.
    pub(super) fn columns(&self, table: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.rows(&format!("SELECT name FROM pragma_table_info({})", quoted(table)), table, &mut |row| {
            names.push(text(row.get_ref(0)?));
            Ok(Ok(()))
        })?;
        Ok(names)
    }

    /// The columns that are wanted, `NULL` in the place of those that are missing and may be.
    ///
    /// # Errors
    /// Names the first of `needed` that the table does not have.
    pub(super) fn select(&self, table: &str, needed: &[&str], optional: &[&str]) -> Result<String> {
        let columns = self.columns(table)?;
        let has = |name: &str| columns.iter().any(|column| column == name);
        if let Some(missing) = needed.iter().find(|name| !has(name)) {
            return Err(malformed(
                self.file,
                format!("table {table}"),
                format!("there is no column {missing}"),
            ));
        }
        let mut list: Vec<String> = needed.iter().map(|name| quoted(name)).collect();
        list.extend(optional.iter().map(|name| if has(name) { quoted(name) } else { "NULL".to_owned() }));
        Ok(format!("SELECT rowid, {} FROM {}", list.join(", "), quoted(table)))
    }

    /// Calls `take` for every row of `query`; `place` names it in errors.
    pub(super) fn rows(
        &self,
        query: &str,
        place: &str,
        take: &mut dyn FnMut(&Row<'_>) -> rusqlite::Result<Result<()>>,
    ) -> Result<()> {
        let failed = |error: rusqlite::Error| broken(self.file, &format!("table {place}"), &error);
        let mut statement = self.connection.prepare(query).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        let mut count = 0_u64;
        loop {
            match rows.next() {
                Ok(Some(row)) => {
                    count += 1;
                    take(row).map_err(failed)??;
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    return Err(broken(self.file, &format!("table {place}, after {count} rows"), &error));
                }
            }
        }
    }

    /// The whole number in column `at` (0 is the row id) of a row; `None` for NULL.
    pub(super) fn integer(&self, row: &Row<'_>, at: usize, table: &str) -> Result<Option<i64>> {
        match row.get_ref(at) {
            Ok(ValueRef::Null) => Ok(None),
            Ok(ValueRef::Integer(value)) => Ok(Some(value)),
            Ok(other) => Err(self.wrong(row, at, table, other, "a whole number")),
            Err(error) => Err(broken(self.file, &format!("table {table}"), &error)),
        }
    }

    /// As [`integer`](Self::integer), where NULL is an error.
    pub(super) fn needed(&self, row: &Row<'_>, at: usize, table: &str) -> Result<i64> {
        match self.integer(row, at, table)? {
            Some(value) => Ok(value),
            None => Err(self.wrong(row, at, table, ValueRef::Null, "a whole number")),
        }
    }

    /// The bytes of a text; `None` for NULL.
    pub(super) fn bytes<'r>(&self, row: &'r Row<'_>, at: usize, table: &str) -> Result<Option<&'r [u8]>> {
        match row.get_ref(at) {
            Ok(ValueRef::Null) => Ok(None),
            Ok(ValueRef::Text(bytes)) => Ok(Some(bytes)),
            Ok(other) => Err(self.wrong(row, at, table, other, "a text")),
            Err(error) => Err(broken(self.file, &format!("table {table}"), &error)),
        }
    }

    fn wrong(&self, row: &Row<'_>, at: usize, table: &str, found: ValueRef<'_>, expected: &str) -> Error {
        let column = row.as_ref().column_name(at).unwrap_or("?").to_owned();
        let found = match found {
            ValueRef::Null => "nothing",
            ValueRef::Integer(_) => "a whole number",
            ValueRef::Real(_) => "a fraction",
            ValueRef::Text(_) => "a text",
            ValueRef::Blob(_) => "a blob",
        };
        let id: i64 = row.get(0).unwrap_or(0);
        malformed(
            self.file,
            format!("table {table} row {id}"),
            format!("{column} holds {found}, expected {expected}"),
        )
    }
}

fn text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).to_string(),
        _ => String::new(),
    }
}

/// A name or a text as SQL writes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn broken(file: &Path, place: &str, error: &rusqlite::Error) -> Error {
    malformed(file, place, format!("SQLite says: {error}"))
}

/// A row's number as ranges keep it.
pub(super) fn row_number(id: i64) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}
