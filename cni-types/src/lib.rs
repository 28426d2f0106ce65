//! The CNI specification, 0.1.0 to 1.1.0, as types.
//!
//! Nothing here does input or output, talks to the kernel, or reads the environment: bytes in, values out, and back.

mod args;
mod attachment;
mod cidr;
mod conf;
mod error;
mod id;
mod ifname;
mod mac;
mod result;
mod version;
pub mod wire;

pub use args::CniArgs;
pub use attachment::Attachment;
pub use cidr::{Cidr, ParseCidrError};
pub use conf::{NetConf, UnknownKey, ValidAttachments};
pub use error::{Code, Error, Result};
pub use id::{ContainerId, NetworkName, ParseIdError};
pub use ifname::{IfName, ParseIfNameError};
pub use mac::{MacAddr, ParseMacError};
pub use result::{CniResult, Dns, Interface, IpConfig, Route};
pub use version::Version;
