//! A configuration described: a JSON Schema made of the types that read it, and a table made of the schema.
//!
//! JSON Schema knows exact keys alone. Plugins match them whatever their case, as Go does, so that a schema says nothing of
//! keys that it does not have: they are allowed, and what runtimes spell differently passes unseen.

use cni_types::NetConf;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::{Map, Value, json};

use crate::logger;

/// The keys of a plugin's configuration.
#[derive(Debug, Clone)]
pub struct Keys(Value);

impl Keys {
    /// Those that every plugin has, and none beside them.
    pub fn common() -> Keys {
        Keys(json!({})).and::<NetConf>().merged(by_runtimes_and_skel())
    }

    /// Those that every plugin has, and those of `T`: a type that the configuration is decoded into.
    pub fn of<T: JsonSchema>() -> Keys {
        Keys::common().and::<T>()
    }

    /// The same with those of `T` too. Where both have a key, what `T` says of it counts, and objects are joined.
    #[must_use]
    pub fn and<T: JsonSchema>(self) -> Keys {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        });
        self.merged(settings.into_generator().into_root_schema_for::<T>())
    }

    fn merged(mut self, more: Schema) -> Keys {
        let mut more = more.to_value();
        as_go_reads(&mut more);
        merge(&mut self.0, more);
        self
    }

    /// The JSON Schema of a configuration of the plugin `name`.
    pub(crate) fn into_document(self, name: &str, about: &str) -> Value {
        let mut document = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": format!("Configuration of the CNI plugin {name}"),
        });
        merge(&mut document, self.0);
        // The description of a type is for whoever reads the code.
        document["description"] = json!(format!("{name} {about}."));
        document
    }
}

/// The keys that no plugin decodes for itself: runtimes write or read them, or [`crate::run`] does.
fn by_runtimes_and_skel() -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "ipam": {
                "description": "The plugin that assigns addresses, by its type, and the keys of that one, which it describes itself \
                                (host-local --schema, static --schema). Plugins that make an interface ask it.",
                "type": "object",
                "properties": { "type": { "description": "The IPAM plugin: the name of its executable.", "type": "string" } },
            },
            "capabilities": {
                "description": "What the runtime may hand over in runtimeConfig: names such as portMappings, ips, ipRanges and mac, \
                                each with true.",
                "type": "object",
            },
            "runtimeConfig": {
                "description": "What the runtime hands over for capabilities. It is written by the runtime, not by hand.",
                "type": "object",
            },
            "args": {
                "description": "What is said of this network beside its configuration, under cni. Some orchestrators write it.",
                "type": "object",
                "properties": { "cni": { "description": "What is said of it.", "type": "object" } },
            },
            "prevResult": {
                "description": "The result of the plugins before this one in the list. It is written by the runtime.",
                "type": "object",
            },
            "log": logger::key().to_value(),
            "cni.dev/valid-attachments": {
                "description": "The attachments that GC must leave. It is written by the runtime.",
                "type": "array",
                "items": { "type": "object" },
            },
        },
    })
}

/// Lets a schema accept what [`cni_types::wire::decode`] does: `null` for an absent key. A default that says nothing is not told.
fn as_go_reads(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            for key in object
                .get_mut("properties")
                .and_then(Value::as_object_mut)
                .into_iter()
                .flatten()
            {
                accept_null(key.1);
            }
            object.values_mut().for_each(as_go_reads);
        }
        Value::Array(items) => items.iter_mut().for_each(as_go_reads),
        _ => {}
    }
}

fn accept_null(property: &mut Value) {
    let Some(object) = property.as_object_mut() else { return };
    join_option(object);
    let is_too_small = |default: &Value| default.as_i64() < object.get("minimum").and_then(Value::as_i64);
    if object
        .get("default")
        .is_some_and(|default| says_nothing(default) || (default.is_i64() && is_too_small(default)))
    {
        object.remove("default");
    }
    // The formats are names of Rust's, and the lines of a comment are no paragraphs.
    object.remove("format");
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    if let Some(kinds) = object.get_mut("type") {
        let mut all = match kinds.take() {
            Value::Array(all) => all,
            one => vec![one],
        };
        if !all.contains(&json!("null")) {
            all.push(json!("null"));
        }
        *kinds = Value::Array(all);
    }
    for list in ["enum", "oneOf"] {
        let null = if list == "enum" {
            Value::Null
        } else {
            json!({ "type": "null" })
        };
        if let Some(choices) = object.get_mut(list).and_then(Value::as_array_mut) {
            choices.push(null);
        }
    }
}

/// An `Option` of an object comes as a choice of two: the object, with `null` added by the caller, says the same.
fn join_option(object: &mut Map<String, Value>) {
    let Some(choices) = object.get("anyOf").and_then(Value::as_array) else {
        return;
    };
    let of_objects = choices.iter().filter_map(Value::as_object);
    let Some(inner) = of_objects
        .into_iter()
        .find(|choice| choice.contains_key("properties"))
        .cloned()
    else {
        return;
    };
    object.remove("anyOf");
    for (key, value) in inner {
        object.entry(key).or_insert(value);
    }
}

fn says_nothing(default: &Value) -> bool {
    match default {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => true,
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Joins objects at every depth; all else of `more` takes the place of what was there.
fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// A key of a configuration, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its path: `ipam.ranges[][].subnet`.
    pub key: String,
    /// Its type: `list of strings`.
    pub kind: String,
    /// Its default as JSON; empty where there is none.
    pub default: String,
    /// What it means, and which values it may have.
    pub meaning: String,
}

/// The keys of a schema that [`crate::Plugin::keys`] led to: the plugin's own, then those that every plugin has.
pub fn rows(schema: &Value) -> Vec<Row> {
    let (mut common, mut all) = (Vec::new(), Vec::new());
    collect("", &Keys::common().0, &mut common);
    collect("", schema, &mut all);
    let is_common = |row: &Row| common.iter().any(|other| other.key == row.key);
    let (of_all, mut rows): (Vec<Row>, Vec<Row>) = all.into_iter().partition(is_common);
    rows.extend(of_all);
    rows
}

fn collect(path: &str, schema: &Value, rows: &mut Vec<Row>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let key = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        rows.push(Row {
            kind: kind(property),
            default: property.get("default").map(Value::to_string).unwrap_or_default(),
            meaning: meaning(property),
            key: key.clone(),
        });
        let (mut inner, mut path) = (property, key);
        while let Some(items) = inner.get("items") {
            (inner, path) = (items, path + "[]");
        }
        collect(&path, inner, rows);
        for choice in inner["oneOf"].as_array().into_iter().flatten() {
            collect(&path, choice, rows);
        }
    }
}

fn kind(schema: &Value) -> String {
    let named = |kinds: &Value| match kinds {
        Value::Array(kinds) => kinds
            .iter()
            .filter_map(Value::as_str)
            .find(|kind| *kind != "null")
            .map(str::to_owned),
        one => one.as_str().map(str::to_owned),
    };
    if let Some(choices) = schema["oneOf"].as_array() {
        let kinds: Vec<String> = choices.iter().map(kind).filter(|kind| kind != "null").collect();
        return kinds.join(" or ");
    }
    match named(&schema["type"]).as_deref() {
        Some("array") => match kind(&schema["items"]).as_str() {
            list if list.starts_with("list of ") => list.replacen("list of ", "list of lists of ", 1),
            item => format!("list of {item}s"),
        },
        Some(other) => other.to_owned(),
        None => "any".to_owned(),
    }
}

fn meaning(schema: &Value) -> String {
    let mut text = schema["description"].as_str().unwrap_or_default().to_owned();
    let values = schema["enum"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let values: Vec<String> = values
        .filter(|value| !value.is_empty())
        .map(|value| format!("`{value}`"))
        .collect();
    if let [first @ .., one, last] = values.as_slice() {
        let rest: String = first.iter().map(|value| format!("{value}, ")).collect();
        text += &format!(" One of {rest}{one} or {last}.");
    }
    if let (Some(least), Some(most)) = (schema["minimum"].as_i64(), schema["maximum"].as_i64()) {
        text += &format!(" From {least} to {most}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize, Default, JsonSchema)]
    #[serde(default, rename_all = "camelCase")]
    struct Written {
        /// Whether.
        is_gateway: bool,
        /// Which.
        #[schemars(extend("enum" = ["", "a", "b", "c"]))]
        backend: String,
        /// How many.
        #[schemars(range(min = 0, max = 9))]
        count: Option<i64>,
        /// Ranges.
        ranges: Vec<Vec<Range>>,
        ipam: Option<Range>,
    }

    #[derive(Serialize, Deserialize, Default, JsonSchema)]
    #[serde(default)]
    struct Range {
        /// A network.
        subnet: String,
    }

    #[test]
    fn null_stands_for_an_absent_key() {
        let schema = Keys::of::<Written>().into_document("p", "does");
        let property = |name: &str| &schema["properties"][name];
        assert_eq!(property("isGateway")["type"], json!(["boolean", "null"]));
        assert_eq!(property("count")["type"], json!(["integer", "null"]));
        assert_eq!(property("backend")["enum"], json!(["", "a", "b", "c", null]));
        assert_eq!(property("ipam")["type"], json!(["object", "null"]));
        assert_eq!(
            property("ranges")["items"]["type"],
            "array",
            "an entry of a list is not absent"
        );
        let ipam = property("ipam")["properties"].as_object().unwrap();
        assert!(ipam.contains_key("subnet") && ipam.contains_key("type"), "{ipam:?}");
    }

    #[test]
    fn a_row_says_path_type_default_and_values() {
        let rows = rows(&Keys::of::<Written>().into_document("p", "does"));
        let row = |key: &str| {
            rows.iter()
                .find(|row| row.key == key)
                .unwrap_or_else(|| panic!("{key}: {rows:?}"))
        };
        assert_eq!(
            (row("isGateway").kind.as_str(), row("isGateway").default.as_str()),
            ("boolean", "false")
        );
        assert_eq!(row("backend").meaning, "Which. One of `a`, `b` or `c`.");
        assert_eq!(
            (row("count").meaning.as_str(), row("count").default.as_str()),
            ("How many. From 0 to 9.", "")
        );
        assert_eq!(row("ranges").kind, "list of lists of objects");
        assert_eq!(row("ranges[][].subnet").kind, "string");
        let at = |key: &str| rows.iter().position(|row| row.key == key).unwrap();
        assert!(
            at("ipam.subnet") < at("name") && at("ipam.type") > at("ranges"),
            "{rows:?}"
        );
    }
}
