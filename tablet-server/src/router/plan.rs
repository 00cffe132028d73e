//! Whether a request leaves this server. Pure.

use ebla_client::Target;
use ebla_model::id::ServerId;

/// The way of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To a tablet of this server, as a call.
    Here,
    /// To another server, over the network.
    There,
}

/// The way from the server `home` to `target`. Decided by the server's id alone: addresses change, and a request that
/// came over the network must not go round in circles because of one.
#[must_use]
pub fn way(home: ServerId, target: &Target) -> Way {
    if target.server == home { Way::Here } else { Way::There }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_decides_not_the_address() {
        let target = |server, address: &str| Target { server: ServerId::new(server), address: address.to_owned() };
        assert_eq!(way(ServerId::new(1), &target(1, "elsewhere:1")), Way::Here);
        assert_eq!(way(ServerId::new(1), &target(2, "127.0.0.1:1")), Way::There);
    }
}
