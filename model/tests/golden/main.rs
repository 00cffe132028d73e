//! Golden scripts: `model/testdata/<subject>/*.txt`, transcripts of the model's decisions.
//!
//! A case is a few lines of input, `---`, and the output; an empty line ends it, `#` begins a comment.
//! `UPDATE=1 cargo test -p ebla-model --test golden` writes the current output; the change is reviewed as code.

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
