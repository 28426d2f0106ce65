//! IP addresses of links.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_types::Cidr;
use libc::{RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR};
use netlink_packet_core::{Emitable, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags as Flags, AddressHeader, AddressMessage};
use nix::errno::Errno;
use rtnetlink::AddressMessageBuilder;

use crate::Net;
use crate::attributes::{attributes, ip};
use crate::error::{Failure, Result};

// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;

/// An address as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The link that has it.
    pub index: u32,
    /// The address and its prefix length.
    pub cidr: Cidr,
    /// The broadcast address of an IPv4 address that has one.
    pub broadcast: Option<Ipv4Addr>,
    /// The state of the address.
    pub flags: AddressFlags,
}

/// The state of an [`Address`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddressFlags {
    /// Duplicate address detection is not done yet: the address cannot be used (`IFA_F_TENTATIVE`).
    pub tentative: bool,
    /// Duplicate address detection found another owner (`IFA_F_DADFAILED`).
    pub dad_failed: bool,
    /// No duplicate address detection is done (`IFA_F_NODAD`).
    pub no_dad: bool,
    /// The second or later IPv4 address in its prefix, or a temporary IPv6 address (`IFA_F_SECONDARY`).
    pub secondary: bool,
    /// Configured, not learned from a router (`IFA_F_PERMANENT`).
    pub permanent: bool,
}

/// An address to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewAddress {
    /// The address and its prefix length. An IPv4 address with a prefix below 31 gets the last address of its network as
    /// its broadcast address, as from the reference and from no one by default.
    pub cidr: Cidr,
    /// Use an IPv6 address at once, without duplicate address detection. Nothing to IPv4.
    pub no_dad: bool,
}

impl Net {
    /// Adds an address to a link.
    ///
    /// # Errors
    /// The kernel refuses it; [`crate::Error::is_exists`] where the link has the address already.
    pub fn add_address(&mut self, index: u32, address: NewAddress) -> Result<()> {
        log::debug!("address {} on link {index}", address.cidr);
        let mut request = message(index, address.cidr);
        if address.no_dad && address.cidr.is_ipv6() {
            request.attributes.push(AddressAttribute::Flags(Flags::Nodad));
        }
        self.socket
            .change(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &request)
            .map_err(|failure| {
                let object = format!("{} to {}", address.cidr, self.named(index));
                failure.of("add address", object)
            })
    }

    /// Removes an address from a link and tells whether it was there.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn delete_address(&mut self, index: u32, cidr: Cidr) -> Result<bool> {
        match self.socket.change(RTM_DELADDR, 0, &message(index, cidr)) {
            Ok(()) => Ok(true),
            Err(failure) if matches!(failure.errno(), Errno::EADDRNOTAVAIL | Errno::ENODEV) => Ok(false),
            Err(failure) => {
                let object = format!("{cidr} from {}", self.named(index));
                Err(failure.of("delete address", object))
            }
        }
    }

    /// The addresses of a link, of both families; none where there is no such link.
    ///
    /// # Errors
    /// The kernel refuses the request, or the list changed at every one of many attempts.
    pub fn addresses(&mut self, index: u32) -> Result<Vec<Address>> {
        let mut request = AddressMessage::default();
        request.header.index = index;
        match self.socket.dump(RTM_GETADDR, &request, &decode) {
            Ok(mut addresses) => {
                // Kernels without strict checking do not filter.
                addresses.retain(|address| address.index == index);
                Ok(addresses)
            }
            Err(failure) if failure.errno() == Errno::ENODEV => Ok(Vec::new()),
            Err(failure) => {
                let object = format!("addresses of {}", self.named(index));
                Err(failure.of("list", object))
            }
        }
    }
}

fn message(index: u32, cidr: Cidr) -> AddressMessage {
    match cidr.address() {
        IpAddr::V4(address) => AddressMessageBuilder::<Ipv4Addr>::new()
            .index(index)
            .address(address, cidr.prefix())
            .build(),
        IpAddr::V6(address) => AddressMessageBuilder::<Ipv6Addr>::new()
            .index(index)
            .address(address, cidr.prefix())
            .build(),
    }
}

/// Decodes `RTM_NEWADDR`. An address that is neither IPv4 nor IPv6 is skipped.
pub(crate) fn decode(payload: &[u8]) -> Result<Option<Address>, Failure> {
    let header = AddressHeader::parse(payload).map_err(|_| Failure::malformed("address header"))?;
    let (mut own, mut broadcast) = (None, None);
    // The header has room for eight flags only; newer kernels repeat all of them in an attribute.
    let mut flags = Flags::from_bits_retain(u32::from(header.flags.bits()));
    for attribute in attributes(payload.get(header.buffer_len()..).unwrap_or_default()) {
        let attribute = attribute?;
        match attribute.kind {
            // Where both are given, IFA_ADDRESS is the other end of a point-to-point link.
            IFA_LOCAL => own = ip(attribute.value),
            IFA_ADDRESS => own = own.or(ip(attribute.value)),
            IFA_BROADCAST => broadcast = ip(attribute.value),
            IFA_FLAGS => flags = Flags::from_bits_retain(attribute.u32()?),
            _ => {}
        }
    }
    let Some(cidr) = own.and_then(|address| Cidr::new(address, header.prefix_len)) else {
        return Ok(None);
    };
    Ok(Some(Address {
        index: header.index,
        cidr,
        broadcast: broadcast.and_then(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }),
        flags: AddressFlags {
            tentative: flags.contains(Flags::Tentative),
            dad_failed: flags.contains(Flags::Dadfailed),
            no_dad: flags.contains(Flags::Nodad),
            secondary: flags.contains(Flags::Secondary),
            permanent: flags.contains(Flags::Permanent),
        },
    }))
}
