//! The plan, made so in the kernel. All of it goes with the veth pair, whose undo is registered already.

use attach::Dad;
use cni_types::{Cidr, Error, IfName, Result};
use net::{Net, NewAddress, NewRoute};

use crate::plan::{Addressing, gateway_routes, gateways};

/// `RT_SCOPE_HOST` of linux/rtnetlink.h: the reference's choice for the host's routes. IPv6 ignores it.
const SCOPE_HOST: u8 = 254;

/// Gives the container's end its addresses and routes, and switches it on.
pub(crate) fn container_side(pod: &mut Net, index: u32, ifname: &IfName, plan: &Addressing) -> Result<()> {
    attach::bring_up(pod, index, ifname, &plan.addresses(), Dad::Skip)?;
    for ip in &plan.ips {
        // The kernel's own, which came with the address.
        pod.delete_route(&NewRoute::new(ip.address.network(), index))?;
    }
    for route in gateway_routes(&plan.ips) {
        let request = NewRoute {
            gateway: route.gateway,
            source: Some(route.source),
            scope: route.scope,
            ..NewRoute::new(route.dst, index)
        };
        pod.add_route(&request).map_err(failed)?;
    }
    attach::add_routes(pod, index, &plan.effective)
}

/// Gives the host's end the gateways' addresses, and a route to each address of the container.
pub(crate) fn host_side(host: &mut Net, index: u32, plan: &Addressing) -> Result<()> {
    for cidr in gateways(&plan.ips) {
        // Every pair of the network has this address: a detection of duplicates could only do harm.
        let request = NewAddress { cidr, no_dad: true };
        host.add_address(index, request)
            .map_err(|e| Error::from(e).context(format!("failed to add IP addr {cidr} to veth")))?;
    }
    for ip in &plan.ips {
        let request = NewRoute {
            scope: Some(SCOPE_HOST),
            ..NewRoute::new(Cidr::host(ip.address.address()), index)
        };
        host.add_route(&request).map_err(failed)?;
    }
    Ok(())
}

fn failed(e: net::Error) -> Error {
    Error::from(e).context("failed to add route")
}
