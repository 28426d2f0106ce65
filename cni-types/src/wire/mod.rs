//! The one entry for JSON: it reads as the runtimes' Go code does, where they rely on it.
//!
//! Go's `encoding/json` matches the keys of a struct whatever their case (containerd sends `HostPort`), takes `null` for
//! an absent key, and lets the last of several equal keys win. serde does the opposite in all three. So a text is first
//! read into a [`Value`] that forgets nothing, and types are decoded from that with Go's rules.
//!
//! One deliberate difference: text that is not valid UTF-8 is refused, where Go replaces the bytes.

mod decode;
mod value;

pub use decode::{DecodeError, decode};
pub(crate) use decode::{Seen, decode_noting};
pub use value::{Object, Value};

use crate::{Code, Error, Result};

/// Input of this many bytes or more is refused: no configuration is near it, and a runaway writer must not be able to
/// exhaust the node's memory through a plugin.
pub const INPUT_LIMIT: usize = 16 << 20;

/// Reads one JSON document.
///
/// # Errors
///
/// [`Code::DECODING_FAILURE`] for text that is no JSON, with its place, and for text of [`INPUT_LIMIT`] bytes or more.
pub fn parse(text: &[u8]) -> Result<Value> {
    if text.len() >= INPUT_LIMIT {
        return Err(Error::new(
            Code::DECODING_FAILURE,
            format!("input is {INPUT_LIMIT} bytes (16 MiB) or more"),
        ));
    }
    serde_json::from_slice(text).map_err(|e| match e.is_eof() {
        // The words of Go's decoder, which people search for.
        true => Error::new(Code::DECODING_FAILURE, "unexpected end of JSON input"),
        false => Error::new(Code::DECODING_FAILURE, format!("invalid JSON: {e}")),
    })
}
