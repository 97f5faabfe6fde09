//! The durability levels of acknowledgements.

/// When an append is acknowledged, which determines how much acknowledged data can be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// After `fdatasync` of its block. A killed process loses nothing. A power cut loses nothing if the device honours
    /// flushes.
    #[default]
    Fsync,
    /// After its block was handed to the kernel. A sync starts when the oldest unsynced byte is `interval` old. A
    /// killed process loses nothing. A power cut loses at most what was acknowledged in the last two intervals.
    Interval,
    /// After its block was handed to the kernel. A killed process loses nothing. A power cut loses everything that the
    /// kernel had not yet written back; no bound is stated.
    Os,
    /// When it is in memory. The end of the process loses everything, even a clean shutdown.
    Memory,
}

const ALL: [Durability; 4] = [
    Durability::Fsync,
    Durability::Interval,
    Durability::Os,
    Durability::Memory,
];

impl Durability {
    /// The stronger of the two.
    pub fn stronger(self, other: Durability) -> Durability {
        let strength = |durability| match durability {
            Durability::Memory => 0,
            Durability::Os => 1,
            Durability::Interval => 2,
            Durability::Fsync => 3,
        };
        if strength(other) > strength(self) { other } else { self }
    }

    /// The weaker of the two.
    pub fn weaker(self, other: Durability) -> Durability {
        if self.stronger(other) == self { other } else { self }
    }

    /// The encoding in files.
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
