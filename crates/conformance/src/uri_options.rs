//! The suite of the specification "URI Options", whose files have the format of "Connection String".

use crate::{ScenarioFile, uri};

/// Judges one file.
pub(crate) fn check(file: &ScenarioFile) -> Result<(), String> {
    uri::check(file)
}
