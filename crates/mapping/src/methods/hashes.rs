//! `hash`: digests, keyed digests and checksums of strings and bytes.

use hmac::{Hmac, Mac as _};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha512};
use thalweg_record::Value;
use xxhash_rust::xxh64::xxh64;

use super::{MethodSpec, argument_text, given, text_argument, with};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::parser::arguments::{Param, ParamKind};
use crate::view;

pub(super) static METHODS: &[MethodSpec] = &[with(
    "hash",
    &[
        Param::needed("algorithm", ParamKind::Text),
        Param::optional("key", ParamKind::Text),
        Param::optional("polynomial", ParamKind::Text),
    ],
    hash,
)];

const ALGORITHMS: &str = "crc32, fnv32, hmac_sha1, hmac_sha256, hmac_sha512, md5, sha1, sha256, sha512, xxhash64";

/// The result is bytes. Those of `fnv32` and `xxhash64` are the digits of the number.
fn hash(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let data = view::bytes(&value).ok_or_else(|| view::mismatch("string or bytes", &value))?;
    context.spend(data.len())?;
    let algorithm = text_argument(arguments, 0, "algorithm")?;
    let key = || match given(arguments, 1) {
        Some(key) => argument_text(key, "key"),
        None => Err(Fault::text(format!(
            "hash algorithm `{algorithm}` needs the argument `key`"
        ))),
    };
    let hash = match &*algorithm {
        "crc32" => {
            let polynomial = match given(arguments, 2) {
                Some(polynomial) => argument_text(polynomial, "polynomial")?,
                None => "IEEE".into(),
            };
            crc32(&data, reflected(&polynomial)?).to_be_bytes().to_vec()
        }
        "fnv32" => fnv32(&data).to_string().into_bytes(),
        "hmac_sha1" => keyed(Hmac::<Sha1>::new_from_slice(key()?.as_bytes()), &data)?,
        "hmac_sha256" => keyed(Hmac::<Sha256>::new_from_slice(key()?.as_bytes()), &data)?,
        "hmac_sha512" => keyed(Hmac::<Sha512>::new_from_slice(key()?.as_bytes()), &data)?,
        "md5" => Md5::digest(&data).to_vec(),
        "sha1" => Sha1::digest(&data).to_vec(),
        "sha256" => Sha256::digest(&data).to_vec(),
        "sha512" => Sha512::digest(&data).to_vec(),
        "xxhash64" => xxh64(&data, 0).to_string().into_bytes(),
        other => {
            return Err(Fault::text(format!(
                "unrecognized hash algorithm `{other}`; there are: {ALGORITHMS}"
            )));
        }
    };
    Ok(ExprValue::Value(Value::Bytes(hash.into())))
}

fn keyed<M: hmac::Mac>(mac: Result<M, hmac::digest::InvalidLength>, data: &[u8]) -> EvalResult<Vec<u8>> {
    let mut mac = mac.map_err(|error| Fault::text(format!("the key cannot be used: {error}")))?;
    mac.update(data);
    Ok(mac.finalize().into_bytes().to_vec())
}

/// A polynomial with the lowest bit first.
fn reflected(polynomial: &str) -> EvalResult<u32> {
    match polynomial {
        "IEEE" => Ok(0xedb8_8320),
        "Castagnoli" => Ok(0x82f6_3b78),
        "Koopman" => Ok(0xeb31_d82e),
        other => Err(Fault::text(format!(
            "unrecognized polynomial `{other}`; there are: IEEE, Castagnoli, Koopman"
        ))),
    }
}

/// Bit by bit: the polynomial is not known before, and a payload is short.
fn crc32(data: &[u8], polynomial: u32) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (polynomial & 0_u32.wrapping_sub(crc & 1));
    !data
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn fnv32(data: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(0x0100_0193) ^ u32::from(*byte);
    data.iter().fold(0x811c_9dc5, step)
}
