//! What an acknowledgement promises.

/// When an append is acknowledged, and so what can be lost of what was acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// After `fdatasync` of its block. Lost by a killed process: nothing. Lost by a power cut: nothing, if the device
    /// honours flushes.
    #[default]
    Fsync,
    /// When its block was handed to the kernel; a sync starts when the oldest byte not synced is `interval` old. Lost by
    /// a killed process: nothing. Lost by a power cut: at most what was acknowledged in the last two intervals.
    Interval,
    /// When its block was handed to the kernel. Lost by a killed process: nothing. Lost by a power cut: all that the
    /// kernel had not written back by itself; no bound is stated.
    Os,
    /// When it is in memory. Lost by the end of the process, a clean one too: everything.
    Memory,
}

const ALL: [Durability; 4] = [
    Durability::Fsync,
    Durability::Interval,
    Durability::Os,
    Durability::Memory,
];

impl Durability {
    /// The one of two that promises more.
    pub fn stronger(self, other: Durability) -> Durability {
        let strength = |durability| match durability {
            Durability::Memory => 0,
            Durability::Os => 1,
            Durability::Interval => 2,
            Durability::Fsync => 3,
        };
        if strength(other) > strength(self) { other } else { self }
    }

    /// The one of two that promises less.
    pub fn weaker(self, other: Durability) -> Durability {
        if self.stronger(other) == self { other } else { self }
    }

    /// As it stands in files.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Durability::Fsync => 0,
            Durability::Interval => 1,
            Durability::Os => 2,
            Durability::Memory => 3,
        }
    }

    pub(crate) fn of_byte(byte: u8) -> Option<Durability> {
        ALL.into_iter().find(|one| one.byte() == byte)
    }

    pub fn name(self) -> &'static str {
        match self {
            Durability::Fsync => "fsync",
            Durability::Interval => "interval",
            Durability::Os => "os",
            Durability::Memory => "memory",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = ();

    fn from_str(name: &str) -> Result<Durability, ()> {
        ALL.into_iter().find(|mode| mode.name() == name).ok_or(())
    }
}
