//! JSON, whose first keys say whose it is: rocprofv3's results or a Chrome trace.

use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::chrome::{Events, OtherData};
use super::rocprof_json::{self, Tool};
use super::{Builder, malformed, unknown};
use crate::model::Format;
use crate::{Error, Result};

pub(super) fn read(file: &Path, content: impl Read, builder: &mut Builder) -> Result<()> {
    // The format is known only when its key comes.
    let source = builder.source(file, Format::Chrome)?;
    let mut events = Events::new(file, source, builder);
    let mut reader = serde_json::Deserializer::from_reader(content);
    let found = Document { events: &mut events }
        .deserialize(&mut reader)
        .and_then(|found| reader.end().map(|()| found))
        .map_err(|error| broken(file, error))?;
    if !found.tools.is_empty() {
        return rocprof_json::take(file, source, found.tools, builder);
    }
    if !found.chrome {
        return Err(unknown(file, "it is JSON without rocprofiler-sdk-tool and without traceEvents"));
    }
    events.finish(&found.other);
    Ok(())
}

fn broken(file: &Path, error: serde_json::Error) -> Error {
    if error.is_io() {
        return Error::Read { file: file.to_owned(), source: error.into() };
    }
    let place = format!("line {} column {}", error.line(), error.column());
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    malformed(file, place, what)
}

struct Document<'e, 'b> {
    events: &'e mut Events<'b>,
}

#[derive(Default)]
struct Found {
    tools: Vec<Tool>,
    other: OtherData,
    chrome: bool,
}

impl<'de> DeserializeSeed<'de> for Document<'_, '_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Found, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_, '_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list of trace events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Found, A::Error> {
        let mut found = Found::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "rocprofiler-sdk-tool" => found.tools.append(&mut map.next_value()?),
                "traceEvents" => {
                    map.next_value_seed(&mut *self.events)?;
                    found.chrome = true;
                }
                "otherData" => found.other = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Found, A::Error> {
        while let Some(event) = list.next_element()? {
            self.events.take(event);
        }
        Ok(Found { chrome: true, ..Found::default() })
    }
}
