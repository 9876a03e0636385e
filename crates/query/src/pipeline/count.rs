//! `$count`: how many documents there are, as one document; none if there are none.

use bson::Document;

use super::Documents;
use super::stage::{Made, deferred};
use crate::value::Number;

pub(super) fn run(field: String, mut input: Documents) -> Documents {
    deferred(move || {
        let mut counted: i64 = 0;
        input.try_for_each(|document| document.map(|_| counted += 1))?;
        if counted == 0 {
            return Ok(Made::default());
        }
        let mut document = Document::new();
        let number = i32::try_from(counted).map_or(Number::Int64(counted), Number::Int32);
        document.insert(field, number);
        Ok(Made { documents: vec![document], memory: None })
    })
}
