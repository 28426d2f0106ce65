//! `CNI_ARGS`.

use crate::{Code, Error, Result};

/// The pairs of `CNI_ARGS` that a plugin has keys for.
///
/// Case matters, a value holds no `=`, and a key that is not known is refused unless `IgnoreUnknown` says otherwise, all as
/// in the reference. A plugin without keys of its own does not read the variable at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniArgs<'a>(Vec<(&'a str, &'a str)>);

impl<'a> CniArgs<'a> {
    /// Reads `KEY=VALUE;KEY=VALUE`. `known` are the plugin's own keys; `IgnoreUnknown` is known to all.
    ///
    /// # Errors
    ///
    /// [`Code::INVALID_ENVIRONMENT`] for what is no pair, for unknown keys, and for an `IgnoreUnknown` that is no boolean.
    pub fn parse(text: &'a str, known: &[&str]) -> Result<CniArgs<'a>> {
        let invalid = |msg: String| Error::new(Code::INVALID_ENVIRONMENT, msg);
        if text.is_empty() {
            return Ok(CniArgs(Vec::new()));
        }
        let mut pairs = Vec::new();
        let mut unknown = Vec::new();
        let mut ignore_unknown = false;
        for pair in text.split(';') {
            match pair.split_once('=') {
                Some((_, value)) if value.contains('=') => return Err(invalid(format!("ARGS: invalid pair {pair:?}"))),
                None => return Err(invalid(format!("ARGS: invalid pair {pair:?}"))),
                Some(("IgnoreUnknown", value)) => {
                    ignore_unknown = boolean(value).ok_or_else(|| {
                        invalid(format!(
                            "ARGS: error parsing value of pair {pair:?}: IgnoreUnknown must be true, false, 1 or 0"
                        ))
                    })?
                }
                Some((key, value)) if known.contains(&key) => pairs.push((key, value)),
                Some(_) => unknown.push(format!("{pair:?}")),
            }
        }
        if !unknown.is_empty() && !ignore_unknown {
            return Err(invalid(format!("ARGS: unknown args [{}]", unknown.join(" "))));
        }
        Ok(CniArgs(pairs))
    }

    /// The value of a key; the last one if it is given twice. An empty value is none.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.0
            .iter()
            .rev()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| *value)
            .filter(|value| !value.is_empty())
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_keys_are_found_among_those_of_the_runtime() {
        let args = CniArgs::parse("K8S_POD_NAME=e2e;IgnoreUnknown=1;MAC=0a:58:0a:01:00:05", &["MAC"]).unwrap();
        assert_eq!(args.get("MAC"), Some("0a:58:0a:01:00:05"));
        assert_eq!(args.get("K8S_POD_NAME"), None);
        assert_eq!(CniArgs::parse("", &[]).unwrap().get("MAC"), None);
        assert_eq!(CniArgs::parse("MAC=", &["MAC"]).unwrap().get("MAC"), None);
    }

    #[test]
    fn refusals_have_the_texts_of_the_reference() {
        for (text, msg) in [
            ("FOO=1", r#"ARGS: unknown args ["FOO=1"]"#),
            (
                "FOO=1;mac=2;IgnoreUnknown=false",
                r#"ARGS: unknown args ["FOO=1" "mac=2"]"#,
            ),
            ("FOO", r#"ARGS: invalid pair "FOO""#),
            ("MAC=a=b", r#"ARGS: invalid pair "MAC=a=b""#),
            ("MAC=a;", r#"ARGS: invalid pair """#),
        ] {
            let error = CniArgs::parse(text, &["MAC"]).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (Code::INVALID_ENVIRONMENT, msg));
        }
        assert!(CniArgs::parse("IgnoreUnknown=maybe", &[]).is_err());
    }
}
