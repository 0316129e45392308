//! The page.

use std::path::Path;

use crate::Result;
use crate::check::Counts;
use crate::model::Trace;

/// Writes the page.
pub fn write(_first: &mut Trace, _counts: Option<&Counts>, _second: Option<Trace>, _file: &Path) -> Result<()> {
    Ok(())
}
