//! The runtime's side of CNI: what containerd or a kubelet does with a network configuration, as a library.
//!
//! [`conf`] loads network configurations, [`chain`] runs their plugins one after the other, [`plugin`] executes one of
//! them, and [`cache`] keeps results between ADD and DEL. Configurations and results stay JSON values on their way
//! through: a runtime has no business with what plugins say to each other, and a plugin under test must get exactly
//! what was written, not what our own types make of it.

pub mod bench;
pub mod cache;
pub mod call;
pub mod chain;
pub mod checks;
pub mod conf;
pub mod feature;
pub mod host;
pub mod known;
pub mod plugin;
pub mod replay;
pub mod report;
pub mod run;
pub mod state;
