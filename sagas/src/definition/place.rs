//! Where in the text a finding is: a second pass over the YAML that keeps positions only.
//!
//! Only done when there is something to report, so the types of a definition stay free of positions. Relies on the
//! text having been read before with the same options.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::validation::Finding;
use super::{Problem, reading};

/// Gives the findings their positions: errors and warnings, each in the order of the file.
pub(super) fn locate(
    file: &str,
    text: &str,
    findings: Vec<Finding>,
) -> (Vec<Problem>, Vec<Problem>) {
    if findings.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let root: Option<Node> = serde_saphyr::from_str_with_options(text, reading::options()).ok();
    let mut problems: Vec<Problem> = findings
        .into_iter()
        .map(|finding| {
            let place = root.as_ref().and_then(|root| find(root, &finding.path));
            Problem {
                file: file.to_owned(),
                line: place.map(|place| place.line()),
                column: place.map(|place| place.column()),
                code: finding.code,
                message: finding.message,
            }
        })
        .collect();
    problems.sort_by_key(|problem| (problem.line, problem.column));
    problems
        .into_iter()
        .partition(|problem| !problem.is_warning())
}

/// The place of the last part of the path that is there: a default has no place of its own.
fn find(root: &Node, path: &[String]) -> Option<Location> {
    let mut place = root.place;
    let mut node = root;
    for part in path {
        let Some(next) = node.children.get(part) else {
            break;
        };
        node = next;
        place = node.place;
    }
    (place.line() > 0).then_some(place)
}

struct Node {
    place: Location,
    children: BTreeMap<String, Node>,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Children>::deserialize(deserializer)?;
        Ok(Node {
            place: spanned.referenced,
            children: spanned.value.0,
        })
    }
}

struct Children(BTreeMap<String, Node>);

impl<'de> Deserialize<'de> for Children {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Shape)
    }
}

struct Shape;

impl<'de> Visitor<'de> for Shape {
    type Value = Children;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Children, A::Error> {
        let mut children = BTreeMap::new();
        while let Some((key, node)) = map.next_entry::<String, Node>()? {
            children.insert(key, node);
        }
        Ok(Children(children))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Children, A::Error> {
        let mut children = BTreeMap::new();
        while let Some(node) = seq.next_element::<Node>()? {
            children.insert(children.len().to_string(), node);
        }
        Ok(Children(children))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Children, E> {
        Ok(Children(BTreeMap::new()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Children, E> {
        Ok(Children(BTreeMap::new()))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Children, E> {
        Ok(Children(BTreeMap::new()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Children, E> {
        Ok(Children(BTreeMap::new()))
    }

    fn visit_str<E>(self, _: &str) -> Result<Children, E> {
        Ok(Children(BTreeMap::new()))
    }

    fn visit_unit<E>(self) -> Result<Children, E> {
        Ok(Children(BTreeMap::new()))
    }
}
