//! Golden scripts: `model/testdata/<subject>/*.txt`, read as transcripts of what the model decides.
//!
//! A case is a few lines of input, `---`, and what came out; an empty line ends it, `#` begins a comment.
//! `UPDATE=1 cargo test -p ebla-model --test golden` writes what comes out now; the change is reviewed as code.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

mod codec;
mod filter;
mod gc;
mod metadata;
mod mutation;
mod notation;
mod rmw;
mod runner;
mod schema;
mod session;
mod tree;
