//! Aggregate families: cells that hold what all that was added to them comes to.
//!
//! A cell's content is its state; a reader sees just these bytes. Of a sum, a least or a greatest it is a signed integer
//! of 8 bytes, big endian; of an approximate count of different inputs a [`Sketch`]. Cells of different timestamps
//! aggregate apart from each other. What follows a delete begins anew, in the same request too.
//!
//! The leader turns additions into plain writes of the new state while it holds the row ([`Resolution::settle`]), so
//! nothing is added up when a log is applied: replicas cannot differ, and a log that is read again comes to the same.

mod fingerprint;
mod settle;
mod sketch;
mod sparse;
mod wire;

use std::fmt;

use bytes::Bytes;

use crate::error::Error;

pub(crate) use self::settle::Step;
pub use self::settle::{Resolution, SKETCHES_MAX};
pub use self::sketch::{InputKind, SKETCH_BYTES_MAX, Sketch};
pub use self::wire::SketchError;

/// How the cells of an aggregate family bring two states together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aggregator {
    /// Their sum, wrapping around.
    Sum,
    /// The lesser.
    Min,
    /// The greater.
    Max,
    /// About how many different inputs there were.
    UniqueCount(InputType),
}

/// What the inputs of an approximate count are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputType {
    /// Signed integers of 64 bits.
    Int64,
    /// Bytes.
    Bytes,
    /// Text, which counts as its UTF-8.
    String,
}

/// What a request adds to a cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// An integer.
    Int64(i64),
    /// Bytes.
    Bytes(Bytes),
    /// Text.
    String(String),
}

/// What a cell of an aggregate family holds. All of a family's are of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// A sum, the least or the greatest.
    Integer(i64),
    /// An approximate count.
    Sketch(Sketch),
}

impl Aggregator {
    /// Whether its states are sketches, which are large beside their inputs.
    pub const fn is_sketch(self) -> bool {
        matches!(self, Self::UniqueCount(_))
    }

    /// The state of one input alone.
    ///
    /// # Errors
    /// `InvalidArgument` when the family takes inputs of another type.
    pub fn state_of(self, input: &Input) -> Result<State, Error> {
        match (self, input) {
            (Self::Sum | Self::Min | Self::Max, Input::Int64(input)) => Ok(State::Integer(*input)),
            (Self::UniqueCount(InputType::Int64), Input::Int64(input)) => Ok(State::Sketch(Sketch::of_integer(*input))),
            (Self::UniqueCount(InputType::Bytes), Input::Bytes(input)) => Ok(State::Sketch(Sketch::of_bytes(input))),
            (Self::UniqueCount(InputType::String), Input::String(input)) => {
                Ok(State::Sketch(Sketch::of_bytes(input.as_bytes())))
            }
            (Self::UniqueCount(InputType::Bytes), _) => Err(wrong_input("a bytes_value or a raw_value")),
            (Self::UniqueCount(InputType::String), _) => Err(wrong_input("a string_value")),
            (_, _) => Err(wrong_input("an int_value")),
        }
    }

    /// The state of these bytes.
    ///
    /// # Errors
    /// Why they are none, as the rest of a sentence that begins with the bytes.
    pub fn decode(self, bytes: &[u8]) -> Result<State, String> {
        let kind = match self {
            Self::Sum | Self::Min | Self::Max => {
                let state = decode_state(bytes).map(State::Integer);
                return state
                    .ok_or_else(|| format!("has {} bytes: it is a big-endian integer of 8 bytes", bytes.len()));
            }
            Self::UniqueCount(InputType::Int64) => InputKind::Integers,
            Self::UniqueCount(InputType::Bytes | InputType::String) => InputKind::Strings,
        };
        Sketch::decode(bytes, kind).map(State::Sketch).map_err(|error| format!("is no sketch of this family: {error}"))
    }

    /// Brings `other` into `state`. In which order states are brought together does not matter. Whether this changes
    /// `state`.
    pub fn merge(self, state: &mut State, other: &State) -> bool {
        match (state, other) {
            (State::Integer(state), State::Integer(other)) => {
                let before = *state;
                *state = match self {
                    Self::Sum => before.wrapping_add(*other),
                    Self::Min => before.min(*other),
                    Self::Max => before.max(*other),
                    Self::UniqueCount(_) => before,
                };
                *state != before
            }
            (State::Sketch(state), State::Sketch(other)) => state.merge(other),
            // Never: both were made by this aggregator.
            (State::Integer(_), State::Sketch(_)) | (State::Sketch(_), State::Integer(_)) => false,
        }
    }
}

fn wrong_input(right: &str) -> Error {
    Error::invalid(format!("input of AddToCell must be {right} in this column family"))
}

impl fmt::Display for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::UniqueCount(_) => "hllpp_unique_count",
        })
    }
}

impl State {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Integer(state) => encode_state(*state),
            Self::Sketch(sketch) => sketch.encode(),
        }
    }
}

/// The bytes of a sum, a least or a greatest.
pub fn encode_state(state: i64) -> Bytes {
    Bytes::copy_from_slice(&state.to_be_bytes())
}

/// The sum, least or greatest of these bytes, `None` when they are not 8.
pub fn decode_state(bytes: &[u8]) -> Option<i64> {
    bytes.try_into().ok().map(i64::from_be_bytes)
}
