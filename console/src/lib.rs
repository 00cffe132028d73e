//! The web console: pages about a cluster, rendered on a server, at the HTTP port of a process.
//!
//! ```text
//!   request -> viewer    who asks, and whether this connection may see pages at all
//!           -> route     which page: pages/*, one module each
//!           -> Context   clients of the public API with the viewer's identity
//!           -> Page      title, command, parts; rendered by layout
//!   live                 the same parts again, once a second, as one event stream
//!   actions              login, drain, set a cell: only with the right origin
//!   export               a table of a page as CSV or JSON: pure
//!   findings             what is wrong, where, since when, and what to do: pure, shared with `ebla doctor`
//!   html, request        HTML that is escaped by construction, and its tables as text; decoded requests: pure
//! ```
//!
//! The console is a client: it shows nothing that the commands `ebla status`, `ebla tablet list`, `ebla events` or `ebla table describe` could not
//! show to the same caller, and each page names the command that prints the same. With access control every call has the viewer's token, and what
//! comes from METADATA is for administrators only, because METADATA knows no rights ([`Context::metadata`]).
//!
//! Pages work without JavaScript. The one script of this site replaces the parts that are marked as live.
//!
//! What is absent: state, except events of the cluster for a few seconds (`recent`). A restart of the process loses nothing, and any tablet server has the same pages. See decision 0030.

mod actions;
mod assets;
mod context;
mod export;
pub mod findings;
pub mod html;
mod layout;
mod live;
pub mod pages;
mod recent;
pub mod request;
mod route;
mod site;
mod viewer;

pub use context::{AccessMode, Actions, ConsoleConfig, Context, Setting};
pub use site::Console;
