//! Responses that are encoded elsewhere and only forwarded.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, check_wire_type},
};

/// A message that is already encoded: written to the wire as it is.
///
/// Only for sending. Decoding one is an error, so that it cannot be mistaken for a validated message.
#[derive(Clone, Debug)]
pub struct Encoded<M> {
    bytes: Bytes,
    kind: PhantomData<fn() -> M>,
}

impl<M: Message> Encoded<M> {
    /// Encodes `message`.
    pub fn new(message: &M) -> Self {
        Self::from_bytes(message.encode_to_vec().into())
    }

    /// Wraps `bytes` as the encoding of an `M`, without validation.
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self { bytes, kind: PhantomData }
    }

    /// The encoding.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl<M: Message> Message for Encoded<M> {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.bytes);
    }

    fn merge_field(
        &mut self,
        _tag: u32,
        wire_type: WireType,
        _buffer: &mut impl Buf,
        _context: DecodeContext,
    ) -> Result<(), DecodeError> {
        // No field has this wire type, so this is always the error.
        check_wire_type(WireType::EndGroup, wire_type)
    }

    fn encoded_len(&self) -> usize {
        self.bytes.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
    }
}
