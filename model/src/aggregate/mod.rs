//! Aggregate families: each cell holds the aggregate of all inputs that were added to it.
//!
//! A cell's content is its encoded state; readers see these bytes. The state of a sum, minimum or maximum is a signed
//! 8-byte integer, big endian; that of an approximate distinct count is a [`Sketch`]. Cells with different timestamps
//! aggregate separately. After a delete a cell starts empty, also within one request.
//!
//! The leader converts additions to plain writes of the new state under the row latch ([`Resolution::merge`]), so applying
//! a log involves no arithmetic: replicas cannot differ, and a replayed log gives the same result.

mod fingerprint2011;
mod merge;
mod sketch;
mod sparse;
mod wire;

use std::fmt;

use bytes::Bytes;

use crate::error::Error;

pub(crate) use self::merge::ResolvedMutation;
pub use self::merge::{Resolution, SKETCHES_MAX};
pub use self::sketch::{InputKind, SKETCH_BYTES_MAX, Sketch};
pub use self::wire::SketchError;

/// How the cells of an aggregate family merge two states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aggregator {
    /// The sum, wrapping around.
    Sum,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// The approximate number of distinct inputs.
    UniqueCount(InputType),
}

/// Type of the inputs of an approximate distinct count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputType {
    /// Signed integers of 64 bits.
    Int64,
    /// Bytes.
    Bytes,
    /// Text, hashed as its UTF-8 bytes.
    String,
}

/// An input that a request adds to a cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AggregateInput {
    /// An integer.
    Int64(i64),
    /// Bytes.
    Bytes(Bytes),
    /// Text.
    String(String),
}

/// The state of a cell of an aggregate family. All states of a family are of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AggregateState {
    /// A sum, minimum or maximum.
    Integer(i64),
    /// An approximate distinct count.
    Sketch(Sketch),
}

impl Aggregator {
    /// Whether its states are sketches, which are much larger than their inputs.
    pub const fn is_sketch(self) -> bool {
        matches!(self, Self::UniqueCount(_))
    }

    /// The state of a single input.
    ///
    /// # Errors
    /// `InvalidArgument` when the family has another type of inputs.
    pub fn state_of(self, input: &AggregateInput) -> Result<AggregateState, Error> {
        match (self, input) {
            (Self::Sum | Self::Min | Self::Max, AggregateInput::Int64(input)) => Ok(AggregateState::Integer(*input)),
            (Self::UniqueCount(InputType::Int64), AggregateInput::Int64(input)) => {
                Ok(AggregateState::Sketch(Sketch::of_integer(*input)))
            }
            (Self::UniqueCount(InputType::Bytes), AggregateInput::Bytes(input)) => {
                Ok(AggregateState::Sketch(Sketch::of_bytes(input)))
            }
            (Self::UniqueCount(InputType::String), AggregateInput::String(input)) => {
                Ok(AggregateState::Sketch(Sketch::of_bytes(input.as_bytes())))
            }
            (Self::UniqueCount(InputType::Bytes), _) => Err(wrong_input("a bytes_value or a raw_value")),
            (Self::UniqueCount(InputType::String), _) => Err(wrong_input("a string_value")),
            (_, _) => Err(wrong_input("an int_value")),
        }
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// What is wrong with the bytes, as a predicate whose subject is the bytes.
    pub fn decode(self, bytes: &[u8]) -> Result<AggregateState, String> {
        let kind = match self {
            Self::Sum | Self::Min | Self::Max => {
                let state = decode_state(bytes).map(AggregateState::Integer);
                return state
                    .ok_or_else(|| format!("has {} bytes: expected a big-endian integer of 8 bytes", bytes.len()));
            }
            Self::UniqueCount(InputType::Int64) => InputKind::Integers,
            Self::UniqueCount(InputType::Bytes | InputType::String) => InputKind::Strings,
        };
        Sketch::decode(bytes, kind)
            .map(AggregateState::Sketch)
            .map_err(|error| format!("is not a sketch of this family: {error}"))
    }

    /// Merges `other` into `state`; the order of merges does not matter. Returns whether `state` changed.
    pub fn merge(self, state: &mut AggregateState, other: &AggregateState) -> bool {
        match (state, other) {
            (AggregateState::Integer(state), AggregateState::Integer(other)) => {
                let before = *state;
                *state = match self {
                    Self::Sum => before.wrapping_add(*other),
                    Self::Min => before.min(*other),
                    Self::Max => before.max(*other),
                    Self::UniqueCount(_) => before,
                };
                *state != before
            }
            (AggregateState::Sketch(state), AggregateState::Sketch(other)) => state.merge(other),
            // Unreachable: both states come from this aggregator.
            (AggregateState::Integer(_), AggregateState::Sketch(_))
            | (AggregateState::Sketch(_), AggregateState::Integer(_)) => false,
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

impl AggregateState {
    /// The encoded state.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Integer(state) => encode_state(*state),
            Self::Sketch(sketch) => sketch.encode(),
        }
    }
}

/// Encodes a sum, minimum or maximum.
pub fn encode_state(state: i64) -> Bytes {
    Bytes::copy_from_slice(&state.to_be_bytes())
}

/// Decodes a sum, minimum or maximum; `None` unless there are 8 bytes.
pub fn decode_state(bytes: &[u8]) -> Option<i64> {
    bytes.try_into().ok().map(i64::from_be_bytes)
}
