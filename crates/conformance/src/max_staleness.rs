//! `max_staleness`: which secondaries are fresh enough. The files have the form of those of
//! `server_selection`, with dates.

use crate::ScenarioFile;
use crate::server_selection::check_selection;

pub(crate) fn check(file: &ScenarioFile) -> Result<(), String> {
    check_selection(&file.json)
}
