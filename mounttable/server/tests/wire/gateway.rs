//! The gateway, route by route, over HTTP/1.1. Every response is validated against `openapi.json`.

mod client;
mod contract;
mod healthz;
mod names;
mod permissions;
mod refusals;
mod streams;
mod untrusted;
