//! What this machine's kernel was built with.

use crate::World;

/// Whether bridges can tell VLANs apart (`CONFIG_BRIDGE_VLAN_FILTERING`): tries it in `world`. Panics where that fails for
/// any other reason.
pub fn has_bridge_vlan_filtering(world: &World) -> bool {
    let tried = world.try_sh("ip link add vlan-probe type bridge vlan_filtering 1 && ip link delete vlan-probe");
    let stderr = String::from_utf8_lossy(&tried.stderr);
    assert!(
        tried.status.success() || stderr.contains("Operation not supported"),
        "{stderr}"
    );
    tried.status.success()
}
