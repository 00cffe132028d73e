//! Whether a request leaves this server. Pure.

use ebla_client::Target;
use ebla_model::id::ServerId;

/// The route of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To a tablet of this server, by a call.
    Local,
    /// To another server.
    Remote,
}

/// The route from the server `home` to `target`. Only the server's id decides: addresses change, and a request that
/// came over the network must not loop because of one.
#[must_use]
pub fn route(home: ServerId, target: &Target) -> Route {
    if target.server == home { Route::Local } else { Route::Remote }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_decides_not_the_address() {
        let target = |server, address: &str| Target { server: ServerId::new(server), address: address.to_owned() };
        assert_eq!(route(ServerId::new(1), &target(1, "elsewhere:1")), Route::Local);
        assert_eq!(route(ServerId::new(1), &target(2, "127.0.0.1:1")), Route::Remote);
    }
}
