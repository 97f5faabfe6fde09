//! MQTT over WebSocket: the bytes of MQTT are in binary frames, of which packets may span and share several. Nothing is kept of
//! a frame but what of its payload has come.

mod frames;
mod handshake;

pub(super) use frames::{FrameDecoder, close_frame, data_head, fuzz};
pub(super) use handshake::{OriginRule, UpgradeAnswer, UpgradeRule};
