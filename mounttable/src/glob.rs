//! Glob patterns: what asks for many names at once.
//!
//! ```text
//!   prod/*/web    one element each; * ? [a-z] [^a] never cross a slash, \c is the character c
//!   prod/...      prod and everything below it
//!   prod/***      the same, but not beyond servers that are no mount tables
//!   (empty)       the node that was asked
//! ```
//!
//! A pattern is taken apart as the tree is walked: [`Pattern::head_matches`] chooses among the children of a node, and
//! [`Pattern::tail`] is what they are asked in turn. In any but the last place `...` is three dots and `***` a `*`.

mod element;
mod pattern;

pub use element::Element;
pub use pattern::{Pattern, Recursion};
