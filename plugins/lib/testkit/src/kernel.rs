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

/// Whether the kernel answers a request for a new link with what it made (`NLM_F_ECHO`), as it does since 6.2. To older ones
/// a second request has to be sent.
pub fn echoes_new_links() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(2))
}
