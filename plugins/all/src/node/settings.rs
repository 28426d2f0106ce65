//! The settings of the whole node: a JSON object in a file, of which `backend` is the one key that we know.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cni_types::{Error, Result};
use netfilter::Backend;
use serde_json::{Map, Value};

/// Sets the backend. Other keys stay, and a reader sees the old settings or the new ones.
///
/// # Errors
///
/// Code 7 when the file holds something else than an object, code 5 when it cannot be read or written.
pub(super) fn write_backend(file: &Path, backend: Backend) -> Result<()> {
    let failed = |e: &std::io::Error| Error::io(file.display(), e);
    let invalid = |what: &str| Error::config(format!("{}: {what}", file.display()));
    let mut settings = match fs::read(file) {
        Ok(bytes) => serde_json::from_slice::<Map<String, Value>>(&bytes).map_err(|e| invalid(&e.to_string()))?,
        Err(e) if e.kind() == ErrorKind::NotFound => Map::new(),
        Err(e) => return Err(failed(&e)),
    };
    settings.insert("backend".to_owned(), Value::from(backend.name()));
    let text = serde_json::to_string_pretty(&settings).map_err(|e| invalid(&e.to_string()))?;

    let directory = file.parent().ok_or_else(|| invalid("no file"))?;
    fs::create_dir_all(directory).map_err(|e| failed(&e))?;
    let mut draft = file.as_os_str().to_owned();
    draft.push(".new");
    let draft = Path::new(&draft);
    let write = || {
        let mut new = File::create(draft)?;
        new.set_permissions(fs::Permissions::from_mode(0o644))?;
        new.write_all(format!("{text}\n").as_bytes())?;
        new.sync_all()?;
        fs::rename(draft, file)
    };
    write().map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni_types::Code;

    #[test]
    fn other_keys_stay() {
        let directory = std::env::temp_dir().join(format!("ferrule-settings-written-{}", std::process::id()));
        let file = directory.join("cni/ferrule.json");
        write_backend(&file, Backend::Nftables).unwrap();
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "{\n  \"backend\": \"nftables\"\n}\n"
        );
        fs::write(&file, r#"{"other": {"a": [1]}, "backend": "nftables"}"#).unwrap();
        write_backend(&file, Backend::Iptables).unwrap();
        let settings: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(
            settings,
            serde_json::json!({ "other": { "a": [1] }, "backend": "iptables" })
        );
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(
            fs::read_dir(file.parent().unwrap()).unwrap().count(),
            1,
            "no draft stays"
        );
        for text in ["", "[]", "{"] {
            fs::write(&file, text).unwrap();
            assert_eq!(
                write_backend(&file, Backend::Iptables).unwrap_err().code,
                Code::INVALID_CONFIG
            );
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
