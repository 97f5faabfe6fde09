//! The limits of one message. Messages beyond them are refused with a reason.

use thalweg_columns::rows::record_limits::RejectionReason;
use thalweg_record::{DropReason, Metadata};

use super::series::{FixedMetadata, entries, tag_of};

#[derive(Clone, Copy, Debug)]
pub struct TagRowLimits {
    pub attributes_max: usize,
    pub attribute_name_bytes_max: usize,
    pub attribute_value_bytes_max: usize,
    pub value_bytes_max: usize,
}

impl Default for TagRowLimits {
    fn default() -> TagRowLimits {
        TagRowLimits {
            attributes_max: 1024,
            attribute_name_bytes_max: 512,
            attribute_value_bytes_max: 1 << 20,
            value_bytes_max: 16 << 20,
        }
    }
}

/// Why a message can never become a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRefusal {
    pub reason: DropReason,
    pub error: String,
}

impl MessageRefusal {
    pub(super) fn too_large(error: String) -> MessageRefusal {
        MessageRefusal {
            reason: DropReason::TooLarge,
            error,
        }
    }
}

impl TagRowLimits {
    /// Whether a metadata entry is within the limits.
    #[inline]
    pub(super) fn allow(&self, name: &str, text: &str) -> bool {
        name.len() <= self.attribute_name_bytes_max && text.len() <= self.attribute_value_bytes_max
    }

    /// Checks the attributes of a message. At most one more than the allowed number is examined.
    pub(super) fn check(&self, meta: &Metadata) -> Result<(), MessageRefusal> {
        let fixed = FixedMetadata::of(meta, tag_of(meta).1);
        let max = self.attributes_max;
        let attributes = entries(meta).filter(|(name, _)| !fixed.has(name));
        for (number, (name, value)) in attributes.enumerate() {
            if number == max {
                let code = RejectionReason::TooManyAttributes.name();
                return Err(MessageRefusal::too_large(format!(
                    "{code}: the message has more than {max} metadata entries; remove some in a processor"
                )));
            }
            self.check_attribute(name, value)?;
        }
        Ok(())
    }

    fn check_attribute(&self, name: &str, value: &str) -> Result<(), MessageRefusal> {
        if name.len() > self.attribute_name_bytes_max {
            let code = RejectionReason::NameTooLong.name();
            let (max, start) = (self.attribute_name_bytes_max, name.chars().take(40).collect::<String>());
            return Err(MessageRefusal::too_large(format!(
                "{code}: the metadata key that begins {start:?} has {} bytes, {max} are allowed",
                name.len()
            )));
        }
        if value.len() > self.attribute_value_bytes_max {
            let code = RejectionReason::ValueTooLong.name();
            return Err(MessageRefusal::too_large(format!(
                "{code}: the metadata entry {name:?} has {} bytes, {} are allowed",
                value.len(),
                self.attribute_value_bytes_max
            )));
        }
        Ok(())
    }
}
