//! The gateway, route by route, over connections of HTTP/1.1. Every answer is held against `openapi.json`.

mod client;
mod contract;
mod names;
mod permissions;
mod refusals;
mod streams;
