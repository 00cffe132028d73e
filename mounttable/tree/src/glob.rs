//! Glob patterns, which match many names.
//!
//! ```text
//!   prod/*/web    one element each; * ? [a-z] [^a] never match a slash, \c is the character c
//!   prod/...      prod and everything below it
//!   prod/***      the same, but not below servers that are not mount tables
//!   (empty)       the receiver itself
//! ```
//!
//! A pattern is consumed as the tree is walked: [`Pattern::head_matches`] selects among the children of a node, and
//! [`Pattern::tail`] is the pattern for them. Only as the last element do `...` and `***` recurse; elsewhere `...` is
//! three dots and `***` a `*`.

mod element;
mod pattern;

pub use element::Element;
pub use pattern::{Pattern, Recursion};
