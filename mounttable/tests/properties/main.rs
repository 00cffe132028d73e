//! Laws that hold for every input: of names as text, of names of nodes and of patterns.

#![expect(clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod glob;
mod names;
